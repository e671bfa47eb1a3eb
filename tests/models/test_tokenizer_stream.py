"""Streaming: whole characters only, and nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizer_vocabs import bpe_metadata, spm_metadata

from gguflow.models.tokenizer import Tokenizer
from gguflow.models.tokenizer.stream import TextStream

BPE = Tokenizer.from_metadata(bpe_metadata())
SPM = Tokenizer.from_metadata(spm_metadata())


def test_a_character_comes_out_with_its_last_byte() -> None:
    stream = BPE.stream()
    assert [stream.push(byte) for byte in "🦙".encode()] == ["", "", "", "🦙"]
    assert stream.flush() == ""


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    stream = BPE.stream()
    assert [stream.push(0xF0), stream.push(0x9F)] == ["", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(0x41) == "A"  # afresh


def test_a_broken_character_is_replaced_as_soon_as_it_is_known() -> None:
    stream = BPE.stream()
    assert [stream.push(byte) for byte in (0xC3, 0x41, 0xFF)] == ["", "\ufffdA", "\ufffd"]


def test_leading_space() -> None:
    ids = SPM.encode("ab ab")
    kept, stripped = SPM.stream(), SPM.stream(strip_space=True)
    assert [kept.push(token) for token in ids] == ["", " ab", " ab"]
    assert [stripped.push(token) for token in ids] == ["", "ab", " ab"]


def test_special_tokens_show_when_asked() -> None:
    stream = SPM.stream(skip_special=False)
    assert [stream.push(token) for token in (1, 261, 2)] == ["<s>", " ab", "</s>"]


@given(st.binary(max_size=40))
def test_any_bytes_stream_to_their_decoding(data: bytes) -> None:
    stream = BPE.stream()
    pieces = [stream.push(byte) for byte in data] + [stream.flush()]
    assert "".join(pieces) == data.decode("utf-8", "replace") == BPE.decode(data)


@given(st.binary(max_size=40), st.integers(0, 40))
def test_many_at_once_are_each_by_itself(data: bytes, cut: int) -> None:
    for strip in (False, True):
        one, all = (TextStream(lambda i: bytes([i]), strip_space=strip) for _ in range(2))
        parts = [all.push_all(data[:cut]), all.push_all(data[cut:]), all.flush()]
        assert "".join(parts) == "".join([*map(one.push, data), one.flush()])


@given(st.text(max_size=30))
def test_any_text_round_trips(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text
    # U+2581 is SPM's spelling of a space.
    assert SPM.decode(SPM.encode(text)) == text.replace("\u2581", " ")
