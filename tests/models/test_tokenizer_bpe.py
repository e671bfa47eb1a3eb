"""Byte-level BPE: merges, pre-tokenizers and families' defaults, on small vocabularies."""

from __future__ import annotations

import pytest
from tokenizer_vocabs import CONTROL, NORMAL, USER_DEFINED, bpe_metadata

from gguflow.models.tokenizer import Tokenizer
from gguflow.models.tokenizer.pretokenizers import PRE_TOKENIZERS

HE, LL, HELL, HELLO, SP_HELLO = 256, 257, 258, 259, 260
FIRST_SPECIAL = 261


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("hello", [HELLO]),
        ("hello hello", [HELLO, SP_HELLO]),
        ("hell", [HELL]),
        ("ll he", [LL, 0x20, HE]),
        ("\n", [0x0A]),
        ("é", [0xC3, 0xA9]),
        ("e\u0301", [0x65, 0xCC, 0x81]),  # not normalized
        ("\x00\x7f", [0x00, 0x7F]),
        ("🦙", [0xF0, 0x9F, 0xA6, 0x99]),
        ("\udc80", [0xEF, 0xBF, 0xBD]),
    ],
)
def test_encode(text: str, expected: list[int]) -> None:
    assert Tokenizer.from_metadata(bpe_metadata()).encode(text) == expected


def test_lower_ranks_merge_first() -> None:
    first = Tokenizer.from_metadata(bpe_metadata(["a b", "b c"]))
    assert first.encode("abc") == [256, 0x63]
    second = Tokenizer.from_metadata(bpe_metadata(["b c", "a b"]))
    assert second.encode("abc") == [0x61, 256]


def test_a_merge_given_twice_keeps_its_first_rank() -> None:
    metadata = bpe_metadata(["a b", "b c"])
    metadata["tokenizer.ggml.merges"] = ["a b", "b c", "a b"]
    assert Tokenizer.from_metadata(metadata).encode("abc") == [256, 0x63]


def test_whole_words_where_merges_are_ignored() -> None:
    # No merge leads to "cat"; families that ignore merges take a word that is a token whole.
    special = (("cat", NORMAL),)
    plain = Tokenizer.from_metadata(bpe_metadata(special=special))
    whole = Tokenizer.from_metadata(bpe_metadata(special=special, pre="llama-bpe"))
    assert plain.encode("cat") == [0x63, 0x61, 0x74]
    assert whole.encode("cat") == [FIRST_SPECIAL]


def test_special_tokens_in_text() -> None:
    tokenizer = Tokenizer.from_metadata(
        bpe_metadata(special=(("<|eot_id|>", CONTROL), ("lo h", USER_DEFINED)))
    )
    eot, user = FIRST_SPECIAL, FIRST_SPECIAL + 1
    assert tokenizer.encode("hello hell") == [HE, 0x6C, user, 0x65, LL]
    assert tokenizer.encode("<|eot_id|>hello", parse_special=True) == [eot, HELLO]
    assert eot not in tokenizer.encode("<|eot_id|>hello")
    assert tokenizer.decode([HELLO, eot]) == "hello"
    assert tokenizer.decode([HELLO, user, eot], skip_special=False) == "hellolo h<|eot_id|>"


@pytest.mark.parametrize(
    ("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False), ("qwen2", False)]
)
def test_default_of_add_bos(pre: str, adds: bool) -> None:
    special = (("<bos>", CONTROL),)
    tokenizer = Tokenizer.from_metadata(
        bpe_metadata(special=special, pre=pre, bos_token_id=FIRST_SPECIAL)
    )
    assert tokenizer.add_bos is adds
    assert tokenizer.encode("hello") == [FIRST_SPECIAL] * adds + [HELLO]
    told = Tokenizer.from_metadata(
        bpe_metadata(special=special, pre=pre, bos_token_id=FIRST_SPECIAL, add_bos_token=not adds)
    )
    assert told.add_bos is not adds


def test_no_bos_unless_the_file_names_one() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe"))
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos) == (None, None, False)
    assert tokenizer.encode("hello") == [HELLO]


def test_missing_pre_tokenizer_is_said(caplog: pytest.LogCaptureFixture) -> None:
    metadata = bpe_metadata()
    del metadata["tokenizer.ggml.pre"]
    assert Tokenizer.from_metadata(metadata).encode("hello") == [HELLO]
    assert "tokenizer.ggml.pre is missing" in caplog.text


def test_tokens_outside_the_byte_alphabet_are_text() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata(special=(("中 文", NORMAL),)))
    assert tokenizer.piece(FIRST_SPECIAL) == "中 文".encode()


SAMPLE = "I'll DON'T: 12345 na\u00efve(x)\n\n  \u00e9t\u00e9\u4e2d\u658742 CamelCase!"
ETE, HAN, NAIVE = "\u00e9t\u00e9", "\u4e2d\u6587", "na\u00efve"
DIGITS = list("12345")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("default", f"I|'|ll| DON|'|T|:| |123|45| {NAIVE}|(|x|)|\n\n | {ETE}{HAN}|42| CamelCase|!"),
        ("falcon", f"I|'|ll| DON|'|T|:| |123|45| {NAIVE}|(|x|)|\n\n | {ETE}{HAN}|42| CamelCase|!"),
        ("gpt-2", f"I|'ll| DON|'|T|:| 12345| {NAIVE}|(|x|)|\n\n | {ETE}{HAN}|42| CamelCase|!"),
        ("llama-bpe", f"I|'ll| DON|'T|:| |123|45| {NAIVE}|(x|)\n\n| | {ETE}{HAN}|42| CamelCase|!"),
        ("qwen2", f"I|'ll| DON|'T|:| |1|2|3|4|5| {NAIVE}|(x|)\n\n| | {ETE}{HAN}|4|2| CamelCase|!"),
        (
            "smollm",
            f"I|'ll| DON|'|T|:| |1|2|3|4|5| {NAIVE}|(|x|)|\n\n | {ETE}{HAN}|4|2| CamelCase|!",
        ),
        (
            "deepseek-llm",  # its punctuation class holds the ASCII letters: they stand apart
            f"I|'|ll| DON|'|T|:| |12345| na|\u00ef|ve|(|x|)|\n|\n| | \u00e9|t|\u00e9|{HAN}|42"
            "| CamelCase|!",
        ),
        (
            "deepseek-coder",
            f"I|'|ll| DON|'|T|:| |1|2|3|4|5| {NAIVE}|(|x|)|\n|\n| | {ETE}|{HAN}|4|2| CamelCase|!",
        ),
        (
            "deepseek-v3",
            f"I|'ll| DON|'T|:| |123|45| {NAIVE}|(x|)\n\n| | {ETE}|{HAN}|42| CamelCase|!",
        ),
        (
            "tekken",
            f"I|'ll| DON|'T|:| |1|2|3|4|5| {NAIVE}|(x|)\n\n| | {ETE}{HAN}|4|2| Camel|Case|!",
        ),
        ("gpt-4o", f"I'll| DON'T|:| |123|45| {NAIVE}|(x|)\n\n| | {ETE}{HAN}|42| Camel|Case|!"),
        ("poro-chat", f"I'll| DON'T:| 12345| {NAIVE}|(|x|)\n\n | {ETE}{HAN}42| CamelCase|!"),
        ("afmoe", f"I|'ll| DON|'T|:| |12|345| {NAIVE}|(x|)\n\n| | {ETE}|{HAN}|42| CamelCase|!"),
        ("kimi-k2", f"I'll| DON'T|:| |123|45| {NAIVE}|(x|)\n\n| | {ETE}|{HAN}|42| Camel|Case|!"),
        ("jais-2", f"I|'ll| DON|'T|:| |123|45| {NAIVE}|(x|)\n\n| | {ETE}{HAN}|42| CamelCase|!"),
        (
            "exaone-moe",
            f"I|'ll| DON|'T|:| |1|2|3|4|5| {NAIVE}|(x|)\n|\n| | {ETE}{HAN}|4|2| CamelCase|!",
        ),
        ("superbpe", f"I'll DON'T: |12|345| {NAIVE}(x)\n\n  {ETE}{HAN}|42| CamelCase!"),
    ],
)
def test_words(name: str, words: str) -> None:
    # No sample word holds the separator.
    split = PRE_TOKENIZERS[name].splitter().pre_tokenize_str(SAMPLE)
    assert [word for word, _ in split] == words.split("|")


@pytest.mark.parametrize("name", sorted(n for n, p in PRE_TOKENIZERS.items() if not p.raw))
def test_every_pre_tokenizer_loses_nothing(name: str) -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata(pre=name))
    text = SAMPLE + "\u017f\u2003 \t\r\n x\u0301 \u0661\u0662 🦙\x00\x85"
    assert tokenizer.decode(tokenizer.encode(text)) == text
