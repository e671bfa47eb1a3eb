"""SPM's merges in Python are the library's."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizer_vocabs import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, spm_metadata

from gguflow.engine.gguf import GgufError
from gguflow.engine.load.bundled import bundled_folder, bundled_model
from gguflow.models.tokenizer import Tokenizer
from gguflow.models.tokenizer import spm as spm_module
from gguflow.models.tokenizer.spm import SpmModel

CHARACTERS = "abc \u2581é🦙\n"
ALWAYS = 1 << 40


def both(tokenizer: Tokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of fragments of text, merged here and by the library."""
    model = tokenizer._model
    assert isinstance(model, SpmModel)
    monkeypatch.setattr(spm_module, "_FEW", ALWAYS)
    here = [model.encode(text, True) for text in texts]
    assert model._library is None
    monkeypatch.setattr(spm_module, "_FEW", -ALWAYS)
    assert here == [model.encode(text, True) for text in texts]
    assert model._library is not None


def drawn(draw: random.Random) -> dict[str, object]:
    """A vocabulary of texts that no training would give, with equal scores and zeros of both signs,
    with bytes or without."""
    metadata = spm_metadata(add_space_prefix=draw.random() < 0.5)
    tokens, scores, types = (
        [*metadata[f"tokenizer.ggml.{k}"]] for k in ("tokens", "scores", "token_type")
    )
    n = draw.choice((3, 8, 259))  # with all bytes, some of them, none
    del tokens[n:], scores[n:], types[n:]
    for _ in range(draw.randrange(1, 60)):
        text = "".join(draw.choices(CHARACTERS.replace(" ", ""), k=draw.randrange(1, 6)))
        if text not in tokens:
            tokens.append(text)
            scores.append(draw.choice((-1.0, -2.0, 0.0, -0.0, 3.0, -5 * draw.random())))
            kinds = NORMAL, USER_DEFINED, UNUSED, CONTROL, UNKNOWN
            types.append(draw.choices(kinds, (20, 1, 1, 1, 1))[0])
    return metadata | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }


@pytest.mark.parametrize("seed", range(40))
def test_random_vocabularies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    texts = ["".join(draw.choices(CHARACTERS + "xy", k=draw.randrange(40))) for _ in range(20)]
    both(Tokenizer.from_metadata(drawn(draw)), texts, monkeypatch)


def test_zero_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(("\0", -1.0, NORMAL)))
    both(tokenizer, ["\0", "a\0\0b", " \0"], monkeypatch)
    for extra in ("\0a", "a\0"):
        with pytest.raises(GgufError, match=r"tokens\[270\].*expected what sentencepiece takes"):
            Tokenizer.from_metadata(spm_metadata((extra, -1.0, NORMAL)))


def test_the_bundled_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (bundled_folder() / "heldout.txt").read_text("utf-8")[:60_000]
    pieces = [text[i : i + 400] for i in range(0, len(text), 400)]
    both(Tokenizer.load(bundled_model()), ["-" * 3000, "🦙é", *pieces], monkeypatch)


def test_a_real_vocabulary(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_data / "ggml-vocab-llama-spm.gguf"
    cases = Path(f"{path}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    both(Tokenizer.load(path), ["-" * 3000, *cases], monkeypatch)


def test_much_text_is_for_the_library() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata())
    model = tokenizer._model
    assert isinstance(model, SpmModel)
    few = spm_module._FEW + tokenizer.n_vocab // spm_module._TOKENS
    short = tokenizer.encode("ab abc")
    assert model._library is None
    tokenizer.encode("a" * few)
    assert tokenizer.encode("ab abc") == short
    assert model._library is not None
