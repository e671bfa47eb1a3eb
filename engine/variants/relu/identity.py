"""Which model a file of statistics or a split belongs to."""

from __future__ import annotations

from hashlib import blake2b

from gguflow.engine.load import ModelSource


def model_hash(source: ModelSource) -> str:
    """32 hexadecimal digits, equal for every quantization of a model.

    Of the architecture, its hyperparameters and the norms' weights, which quantizing leaves as they
    are: statistics counted with one type of a model hold for its others.
    """
    h = blake2b(digest_size=16)
    hp = source.arch.hp
    h.update(repr((hp.n_vocab, hp.n_embd, hp.n_layer, hp.n_ff, hp.n_head, hp.n_head_kv)).encode())
    for name in sorted(n for n in source.weights if n.endswith("_norm.weight")):
        h.update(name.encode())
        h.update(source.weights[name].read().tobytes())
    return h.hexdigest()
