"""Choose among some tokens only."""

from collections.abc import Sequence

import numpy as np

import gguflow

model = gguflow.Model.load()
allowed = [model.tokenizer.encode(w, add_special=False)[-1] for w in (" cat", " dog")]


def only_pets(ids: Sequence[int], logits: np.ndarray) -> None:
    banned = np.ones(len(logits), bool)
    banned[allowed] = False
    logits[banned] = -np.inf


(piece, *_) = model.generate("I have a", max_tokens=1, logits_processor=only_pets, seed=1)
assert piece.ids[0] in allowed
