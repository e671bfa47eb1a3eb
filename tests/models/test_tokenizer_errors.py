"""Metadata that cannot be used: one line that names the file and the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_vocabs import BYTE, bpe_metadata, spm_metadata

from gguflow.engine.gguf import GgufError
from gguflow.models.tokenizer import Tokenizer


def refused(metadata: dict[str, Any]) -> str:
    with pytest.raises(GgufError) as caught:
        Tokenizer.from_metadata(metadata, source="model.gguf")
    message = str(caught.value)
    assert message.startswith("model.gguf: tokenizer.ggml.")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "none", ""])
def test_unsupported_model(model: str) -> None:
    message = refused({"tokenizer.ggml.model": model})
    assert f"unsupported tokenizer {model!r}" in message
    assert "llama, gpt2" in message


def test_no_model() -> None:
    assert "tokenizer.ggml.model: found no such key" in refused({})
    assert "found a int, expected a string" in refused({"tokenizer.ggml.model": 3})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tokens", [], "tokens: found no tokens"),
        ("tokens", "abc", "tokens: found a str, expected an array of strings"),
        ("tokens", np.arange(3), "tokens: found an array of int64"),
        ("scores", np.zeros(3, np.float32), "scores: found 3 entries, expected 270"),
        ("scores", np.zeros(270, bool), "scores: found an array of bool"),
        ("scores", ["a"] * 270, "scores: found an array of <U1"),
        ("scores", 1.0, "scores: found a float"),
        ("token_type", np.ones(271, np.int32), "token_type: found 271 entries, expected 270"),
        ("token_type", np.ones(270, np.float32), "token_type: found an array of float32"),
        ("token_type", np.full(270, 7, np.int32), "token_type[0]: found 7, expected 0 to 6"),
        ("bos_token_id", 270, "bos_token_id: found id 270, expected one of the 270 tokens"),
        ("eos_token_id", -1, "eos_token_id: found id -1"),
        ("eot_token_id", 2**31, "eot_token_id: found id 2147483648"),
        ("eom_token_id", 999, "eom_token_id: found id 999"),
        ("fim_pad_token_id", 999, "fim_pad_token_id: found id 999"),
        ("unknown_token_id", 1.0, "unknown_token_id: found a float, expected a token id"),
        ("bos_token_id", True, "bos_token_id: found a bool"),
        ("add_bos_token", 1, "add_bos_token: found a int, expected a bool"),
        ("add_space_prefix", "no", "add_space_prefix: found a str"),
    ],
)
def test_bad_value(key: str, value: Any, expected: str) -> None:
    assert expected in refused(spm_metadata(**{key: value}))


@pytest.mark.parametrize("text", ["<0x-1>", "<0xZZ>", "<0x100>", "<0x1>", "0x0A", "<0x0A> "])
def test_bad_byte_token(text: str) -> None:
    message = refused(spm_metadata((text, 0.0, BYTE)))
    assert f"tokens[270]: found the byte token {text!r}" in message


def test_byte_twice() -> None:
    message = refused(spm_metadata(("<0x0a>", 0.0, BYTE)))
    assert "tokens[270]: found byte 0x0A, as at 13" in message


def test_duplicate_token() -> None:
    assert "tokens[270]: found '▁ab', as at 261" in refused(spm_metadata(("▁ab", 0.0, 1)))


def test_token_of_wrong_type_or_encoding() -> None:
    metadata = spm_metadata()
    metadata["tokenizer.ggml.tokens"][5] = 7
    assert "tokens[5]: found a int, expected a string" in refused(metadata)
    metadata["tokenizer.ggml.tokens"][5] = "a\udcff"
    assert "tokens[5]: found 'a\\udcff', expected UTF-8" in refused(metadata)


def test_missing_scores_and_nan() -> None:
    metadata = spm_metadata()
    metadata["tokenizer.ggml.scores"][7] = np.nan
    assert "scores[7]: found NaN" in refused(metadata)
    del metadata["tokenizer.ggml.scores"]
    assert "scores: found no such key" in refused(metadata)


def test_flag_without_its_token() -> None:
    message = refused(bpe_metadata(add_bos_token=True))
    assert "add_bos_token: found true, expected false, as there is no bos_token_id" in message


@pytest.mark.parametrize(
    ("merges", "expected"),
    [
        (["q zz"], "merges: found merge 'q zz' without a token 'zz'"),
        (["z q"], "merges: found merge 'z q' without a token 'zq'"),
        (["hello"], "merges[0]: found 'hello', expected two tokens"),
        (["h e", "a b c"], "merges[1]: found 'a b c'"),
        (["h "], "merges[0]: found 'h '"),
        ([""], "merges[0]: found ''"),
        (np.arange(4), "merges: found an array of int64"),
    ],
)
def test_bad_merges(merges: Any, expected: str) -> None:
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.merges"] = merges
    assert expected in refused(metadata)


def test_missing_merges_and_unknown_pre_tokenizer() -> None:
    metadata = bpe_metadata()
    del metadata["tokenizer.ggml.merges"]
    assert "merges: found no such key" in refused(metadata)
    assert "pre: found unknown pre-tokenizer 'nonesuch', expected one of" in refused(
        bpe_metadata(pre="nonesuch")
    )


def test_empty_tokens_are_named(caplog: pytest.LogCaptureFixture) -> None:
    metadata = spm_metadata(("", 0.0, 1), ("", 0.0, 1))
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.token_text(271) == "[EMPTY_271]"
    assert "2 empty tokens" in caplog.text


@pytest.mark.parametrize("token", [-1, 270, 2**40])
def test_id_outside_the_vocabulary(token: int) -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata())
    calls = [
        lambda: tokenizer.decode([1, token]),
        lambda: tokenizer.piece(token),
        lambda: tokenizer.stream().push(token),
        lambda: tokenizer.token_text(token),
        lambda: tokenizer.token_type(token),
        lambda: tokenizer.is_special(token),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"token id {token} is outside .* \(0 to 269\)"):
            call()


def test_text_must_be_a_string() -> None:
    tokenizer = Tokenizer.from_metadata(spm_metadata())
    with pytest.raises(TypeError, match="text must be a str, not bytes"):
        tokenizer.encode(b"ab")  # type: ignore[arg-type]


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nothing.gguf"
    path.write_bytes(b"not a GGUF file")
    with pytest.raises(GgufError, match="nothing.gguf"):
        Tokenizer.load(path)
