"""Which tokens end a generation."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizer_vocabs import CONTROL, NORMAL, bpe_metadata

from gguflow.models.tokenizer import Tokenizer, TokenType

FIRST = 261


def load(*texts: str, kind: int = CONTROL, **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(
        bpe_metadata(special=tuple((text, kind) for text in texts), **keys)
    )


@pytest.mark.parametrize(
    "text",
    ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>", "<|end|>", "<|end_of_text|>"],
)
def test_end_of_turn_by_text(text: str) -> None:
    tokenizer = load("<other>", text)
    assert tokenizer.eot == FIRST + 1
    assert tokenizer.eog_ids == {FIRST + 1}


def test_keys_win_over_texts() -> None:
    tokenizer = load("<|im_end|>", "<e>", "<t>", eos_token_id=FIRST + 1, eot_token_id=FIRST + 2)
    assert (tokenizer.eos, tokenizer.eot) == (FIRST + 1, FIRST + 2)
    assert tokenizer.eog_ids == {FIRST, FIRST + 1, FIRST + 2}


def test_the_turn_ends_before_the_document() -> None:
    tokenizer = load("<|endoftext|>", "<|im_end|>")
    assert tokenizer.eot == FIRST + 1
    assert tokenizer.eog_ids == {FIRST, FIRST + 1}


def test_end_of_message_and_fill_in_middle() -> None:
    tokenizer = load("<|eom_id|>", "<|fim_pad|>", "<|file_sep|>", "<|fim_prefix|>")
    assert tokenizer.eog_ids == {FIRST, FIRST + 1, FIRST + 2}
    assert tokenizer.eot is None


def test_an_end_marked_as_text_becomes_control() -> None:
    tokenizer = load("<|im_end|>", kind=NORMAL)
    assert tokenizer.token_type(FIRST) is TokenType.CONTROL
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [FIRST]
    assert FIRST not in tokenizer.encode("<|im_end|>")
    assert tokenizer.decode([FIRST]) == ""


def test_end_inside_an_answer_does_not_end_it() -> None:
    tokenizer = load("<|end|>", "<|return|>", "<|call|>")
    assert tokenizer.eog_ids == {FIRST + 1, FIRST + 2}
    assert tokenizer.token_type(FIRST) is TokenType.USER_DEFINED


def test_no_special_tokens_at_all() -> None:
    tokenizer = load()
    assert tokenizer.eog_ids == set()
    assert tokenizer.bos is tokenizer.eos is tokenizer.eot is None
