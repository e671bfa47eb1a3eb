"""Several machines: what replicas and stages of a model on the nodes of a Ray cluster share.

`connect` finds a cluster, `nodes` reserves places on it, `sameness` compares files and programs.
"""
