"""WPM, UGM and BPE over characters, against the tokenizers library and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from tokenizer_vocabs import BYTE, CONTROL, NORMAL, UNKNOWN
from tokenizers import decoders, models, normalizers, pre_tokenizers

from gguflow.models.tokenizer import Tokenizer

TEXTS = [
    "",
    "The cat sat on the mat.",
    "cats, CATS & the Cat!",
    "Café  crème\tça",
    "猫 sat猫",
    "unseen zebra",
    "a-b_c $5 ¿que?",
    "  the  \n cat ",
]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat", "on", "mat", ".", ",", "!",
         "&", "cafe", "creme", "ca", "猫",
         "a", "-", "b", "_", "c", "$", "5", "##ed", "un", "##seen",
         "?", "¿", "que"]  # fmt: skip


def wpm() -> Tokenizer:
    texts = [w if w[0] == "[" else w[2:] if w.startswith("##") else "▁" + w for w in WORDS]
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.pre": "bert-bge",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": [CONTROL] * 4 + [NORMAL] * (len(texts) - 4),
            "tokenizer.ggml.unknown_token_id": 1,
            "tokenizer.ggml.cls_token_id": 2,
            "tokenizer.ggml.seperator_token_id": 3,
        }
    )


@pytest.mark.parametrize("text", TEXTS)
def test_wpm_is_berts(text: str) -> None:
    model = models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    theirs = tokenizers.Tokenizer(model)
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    assert wpm().encode(text) == [2, *theirs.encode(text).ids, 3]


def test_wpm_decodes_words_with_spaces() -> None:
    tokenizer = wpm()
    assert tokenizer.decode(tokenizer.encode("The cats sat")) == "the cats sat"


PIECES = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -2.0),
          ("s", -2.5), ("▁", -3.0), ("▁sat", -3.0), ("a", -4.0), ("t", -4.1), ("c", -4.2),
          ("▁c", -4.3), ("at", -3.9), ("he", -5.0),
          ("▁t", -4.0), (".", -3.3), ("e", -5.1)]  # fmt: skip


def ugm(prefix: bool) -> Tokenizer:
    texts, scores = zip(*PIECES, strict=True)
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": list(texts),
            "tokenizer.ggml.scores": np.array(scores, np.float32),
            "tokenizer.ggml.token_type": [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * (len(texts) - 3),
            "tokenizer.ggml.add_space_prefix": prefix,
            "tokenizer.ggml.remove_extra_whitespaces": True,
        }
    )


@pytest.mark.parametrize("text", ["the cats sat.", "tattat", "the  cat", "zz the", "eee"])
def test_ugm_is_a_unigram_model(text: str) -> None:
    theirs = tokenizers.Tokenizer(models.Unigram(list(PIECES), unk_id=2))
    theirs.normalizer = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    theirs.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    assert ugm(True).encode(text) == [*theirs.encode(text).ids, 1]


def test_ugm_without_a_prefix() -> None:
    assert ugm(False).encode("sat", add_special=False) == [5, 12]
    assert ugm(True).decode([3, 4, 5]) == "the cats"


@pytest.mark.parametrize("model", ["gemma4", "gpt2"])
def test_merges_of_characters(model: str) -> None:
    merges = ["▁ h", "▁h i", "e t", "\n \n"]
    tokens = [f"<0x{b:02X}>" for b in range(256)] + ["▁", "h", "i", "e", "t", "\n", "é"]
    tokens += ["▁h", "▁hi", "et", "\n\n", "\n\n\n"]
    metadata = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [BYTE] * 256 + [NORMAL] * (len(tokens) - 256),
        "tokenizer.ggml.merges": merges,
    }
    tokenizer = Tokenizer.from_metadata(metadata)
    theirs = tokenizers.Tokenizer(
        models.BPE(
            {t: i for i, t in enumerate(tokens)},
            [(m.split(" ")[0], m.split(" ")[1]) for m in merges],
            byte_fallback=True,
        )
    )
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    for text in ("hi hi", "été\n\nhi", "zoë 猫", "  hi\n"):
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text).ids
        assert tokenizer.decode(ids) == text
    three = tokenizer.id_of("\n\n\n")
    assert three is not None and tokenizer.encode("hi\n\n\nhi").count(three) == 1
