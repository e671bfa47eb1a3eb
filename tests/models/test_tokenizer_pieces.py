"""Long texts are encoded in pieces, to the same tokens, so that Ctrl-C is heard between them."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from gguflow.cli.load import bundled_model
from gguflow.models.tokenizer import Tokenizer, bpe, pieces, spm
from gguflow.models.tokenizer.pretokenizers import PRE_TOKENIZERS

BEFORE = ("x", "9", ".", "é", "中", "'s", "a b", "12345", "…", "(", "!!", "y\n\n z", "\tq", "ab12",
          "\u2581", " \u0301", "don't")  # fmt: skip
AFTER = ("y", "Y", "z q", "b1\n", "th'x")


def test_places() -> None:
    places = re.compile("[^ ](?= )")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", 3)
        found = list(pieces.in_pieces("one two  three four", places))
        assert found == ["one two", "  three", " four"]
        assert list(pieces.in_pieces("onetwothree", places)) == ["onetwothree"]
        assert list(pieces.in_pieces("", places)) == [""]


@pytest.mark.parametrize("name", sorted(n for n, p in PRE_TOKENIZERS.items() if not p.raw))
def test_words_end_with_lines(name: str) -> None:
    rules = PRE_TOKENIZERS[name]
    splitter = rules.splitter()

    def words(text: str) -> list[str]:
        return [word for word, _ in splitter.pre_tokenize_str(text)]

    pairs = list(product(BEFORE, AFTER))
    apart = [words(f"{a}\n{b}") == words(f"{a}\n") + words(b) for a, b in pairs]
    assert all(apart) or rules.joins_lines
    assert all(bpe._LINE_END.search(f"{a}\n{b}") for a, b in pairs)


@pytest.mark.parametrize("seed", range(20))
def test_spm_pieces_have_the_tokens_of_the_whole(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(bundled_model())
    rng = random.Random(seed)
    words = ["king", "queen", "  ", " ", "\n", "\n\n ", "é", "中文", "a", "12", "\u2581", "’s", "."]
    text = "".join(rng.choice(words) + rng.choice([" ", ""]) for _ in range(400))
    whole = tokenizer.encode(text)
    for size in (1, 7, 50):
        monkeypatch.setattr(pieces, "PIECE", size)
        monkeypatch.setattr(spm, "PIECE", size)
        assert tokenizer.encode(text) == whole


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_while_a_long_text_is_encoded(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("Once upon a time there was a king. " * 400_000)
    words = [sys.executable, "-m", "gguflow", "tokenize", "-f", str(path)]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        # Ignored where the tests are a job in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    time.sleep(1.2)  # it takes several seconds
    assert process.poll() is None
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert time.perf_counter() - began < 1.5  # 0.3 on a quiet machine
