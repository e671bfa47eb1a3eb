"""Replicas of a model on the nodes of a Ray cluster, behind one endpoint.

This process answers HTTP: it makes tokens of a request and text of tokens, as without a cluster.
`engine` is what the rest of the server takes for the model's engine: it chooses a replica
(`router`), sends the request there (`travel`, `link`), and sends it elsewhere should the replica be
lost. A replica (`replica`) is an engine in a process of its own; `watch` puts together what they
say of themselves.
"""
