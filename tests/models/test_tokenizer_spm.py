"""SPM: merges, byte fallback, the space prefix and special tokens, on small vocabularies."""

from __future__ import annotations

import pytest
from tokenizer_vocabs import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, spm_metadata

from gguflow.models.tokenizer import Tokenizer, TokenType

BYTES = 3  # id of <0x00>
A, AB, SP_AB, SP, ONE_A, B, C, E_ACUTE, SP2 = 259, 260, 261, 264, 265, 266, 267, 268, 269
BC, ABC = 262, 263
FIRST_EXTRA = 270


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token) for token in ids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("ab", [SP_AB]),
        ("abc", [SP_AB, C]),  # ▁a merges first, then ▁ab: no abc is left
        (" ab", [SP, SP_AB]),
        ("  ", [SP2, SP]),
        ("cabc", [SP, C, ABC]),
        ("é", [SP, E_ACUTE]),
        ("e\u0301", [SP, BYTES + 0x65, BYTES + 0xCC, BYTES + 0x81]),  # not composed to é
        ("\n", [SP, BYTES + 0x0A]),
        ("\x00b", [SP, BYTES, B]),
        ("🦙", [SP, BYTES + 0xF0, BYTES + 0x9F, BYTES + 0xA6, BYTES + 0x99]),
        ("\u2581b", [SP2, B]),  # the escape character itself reads as a space
        ("<s>", [SP, BYTES + 0x3C, BYTES + 0x73, BYTES + 0x3E]),
        ("\ud800", [SP, BYTES + 0xEF, BYTES + 0xBF, BYTES + 0xBD]),  # read as U+FFFD
    ],
)
def test_encode(text: str, expected: list[int]) -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata())
    assert tokenizer.encode(text, add_special=False) == expected


def test_merges_take_the_best_score_first() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(add_space_prefix=False))
    assert tokenizer.encode("abc", add_special=False) == [ABC]
    assert tokenizer.encode("bca", add_special=False) == [BC, ONE_A]
    assert tokenizer.encode("ab ab", add_special=False) == [AB, SP_AB]


def test_equal_scores_merge_from_the_left() -> None:
    tokenizer = Tokenizer.from_metadata(
        spm_metadata(("xx", -20.0, NORMAL), ("x", -21.0, NORMAL), add_space_prefix=False)
    )
    assert texts(tokenizer, tokenizer.encode("xxx", add_special=False)) == ["xx", "x"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [1, SP_AB]),
        ({"add_bos_token": False}, [SP_AB]),
        ({"add_eos_token": True}, [1, SP_AB, 2]),
        ({"bos_token_id": 2}, [2, SP_AB]),
    ],
)
def test_added_tokens(keys: dict[str, object], expected: list[int]) -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(**keys))
    assert tokenizer.encode("ab") == expected
    assert tokenizer.encode("ab", add_special=False) == [SP_AB]


def test_empty_text_is_bos_alone() -> None:
    assert Tokenizer.from_metadata(spm_metadata()).encode("") == [1]


def test_special_tokens_in_text() -> None:
    tokenizer = Tokenizer.from_metadata(
        spm_metadata(("<ud>", 0.0, USER_DEFINED), ("<ctl>", 0.0, CONTROL), ("<ud>x", 0.0, CONTROL))
    )
    user, control, longer = FIRST_EXTRA, FIRST_EXTRA + 1, FIRST_EXTRA + 2
    # User-defined tokens are found in any text; each fragment after one gets a space again.
    assert tokenizer.encode("ab<ud>ab", add_special=False) == [SP_AB, user, SP_AB]
    assert control not in tokenizer.encode("a<ctl>")
    assert tokenizer.encode("ab<ctl>ab", False, parse_special=True) == [SP_AB, control, SP_AB]
    assert tokenizer.encode("<ud>x<ud>", False, parse_special=True) == [longer, user]
    assert tokenizer.encode("<s>ab</s>", False, parse_special=True) == [1, SP_AB, 2]
    assert tokenizer.encode("<unk>", False, parse_special=True) == [0]


def test_longest_special_wins_wherever_it_is() -> None:
    tokenizer = Tokenizer.from_metadata(
        spm_metadata(("xa", 0.0, USER_DEFINED), ("abc!", 0.0, USER_DEFINED))
    )
    ids = tokenizer.encode("xabc!", add_special=False)
    assert texts(tokenizer, ids) == ["▁", "<0x78>", "abc!"]


def test_unused_tokens_are_used() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(("▁abc", -20.0, UNUSED)))
    assert tokenizer.encode("abc", add_special=False) == [FIRST_EXTRA]
    assert tokenizer.decode([FIRST_EXTRA]) == "abc"


def test_several_unknown_tokens_and_none() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(("<unk2>", 0.0, UNKNOWN)))
    assert tokenizer.encode("ab") == [1, SP_AB]
    metadata = spm_metadata()
    metadata["tokenizer.ggml.token_type"][0] = CONTROL
    assert Tokenizer.from_metadata(metadata).encode("ab") == [1, SP_AB]


def test_without_all_byte_tokens_unknown_text_is_unk() -> None:
    metadata = spm_metadata()
    metadata["tokenizer.ggml.tokens"][BYTES + 0x7A] = "<not a byte>"
    metadata["tokenizer.ggml.token_type"][BYTES + 0x7A] = CONTROL
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a🦙b", add_special=False) == [A, 0, B]


def test_byte_tokens_without_token_types() -> None:
    metadata = spm_metadata()
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("\n", add_special=False) == [SP, BYTES + 0x0A]
    assert tokenizer.piece(BYTES + 0x0A) == b"\n"


@pytest.mark.parametrize("text", ["", "ab", " ab", "  a\n", "é🦙", "\u00a0x\u3000", "<s>", "ﬁ"])
@pytest.mark.parametrize("prefix", [True, False])
def test_round_trip(text: str, prefix: bool) -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(add_space_prefix=prefix))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decode_options() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata())
    assert tokenizer.decode([1, SP_AB, SP_AB, 2]) == "ab ab"
    assert tokenizer.decode([SP_AB], strip_space=False) == " ab"
    assert tokenizer.decode([1, SP_AB, 2], skip_special=False, strip_space=False) == "<s> ab</s>"
    assert tokenizer.decode([BYTES + 0xFF]) == "\ufffd"


def test_lookups() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata(("<ud>", 0.0, USER_DEFINED)))
    assert tokenizer.n_vocab == 271
    assert tokenizer.id_of("▁ab") == SP_AB
    assert tokenizer.id_of("nothing") is None
    assert tokenizer.token_text(SP_AB) == "▁ab"
    assert tokenizer.piece(SP_AB) == b" ab"
    assert tokenizer.piece(BYTES + 0x80) == b"\x80"
    assert tokenizer.piece(1) == b"<s>"
    assert tokenizer.token_type(FIRST_EXTRA) is TokenType.USER_DEFINED
    assert [tokenizer.is_special(token) for token in (0, 1, SP_AB, FIRST_EXTRA)] == [
        True,
        True,
        False,
        False,
    ]
