"""What loading a vocabulary, tokenizing and a template take, beside the size of their input.

    python bench/limits.py vocab.gguf

Each is run in a process of its own; memory is the growth of its largest resident size, time the
processor's.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

TEXT_MB = 4


def peak() -> int:
    """Largest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def measured(make: Callable[[str], Callable[[], Any]], path: str, pipe: Any) -> None:
    run = make(path)
    before, began = peak(), time.process_time()
    run()
    pipe.send((peak() - before, time.process_time() - began))


def header(path: str) -> Callable[[], Any]:
    from gguflow.engine.gguf import GgufFile

    return lambda: GgufFile.open(path)


def vocabulary(path: str) -> Callable[[], Any]:
    import sentencepiece  # noqa: F401  (the libraries themselves do not count)
    import tokenizers  # noqa: F401

    from gguflow.engine.gguf import GgufFile
    from gguflow.models.tokenizer import Tokenizer

    GgufFile.open(path).close()
    return lambda: Tokenizer.load(path)


def tokens(unit: str) -> Callable[[str], Callable[[], Any]]:
    def make(path: str) -> Callable[[], Any]:
        from gguflow.models.tokenizer import Tokenizer

        tokenizer, text = Tokenizer.load(path), unit * ((TEXT_MB << 20) // len(unit.encode()))
        return lambda: tokenizer.encode(text)

    return make


def words(path: str) -> Callable[[], Any]:
    return tokens("The quick brown fox jumps over the lazy dog. ")(path)


def digits(path: str) -> Callable[[], Any]:
    return tokens("1")(path)


def template(path: str) -> Callable[[], Any]:
    from gguflow.models.chat import ChatTemplate

    form = ChatTemplate.named("llama3")
    said = [{"role": "user", "content": "x" * (1 << 20)}]
    return lambda: form.render(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("vocabulary", help="path of a GGUF file that has one")
    path = parser.parse_args().vocabulary
    size = os.path.getsize(path)
    rows = (("header", header, size), ("vocabulary", vocabulary, size),
            ("words", words, TEXT_MB << 20), ("digits", digits, TEXT_MB << 20),
            ("template", template, 1 << 20))  # fmt: skip
    context = get_context("spawn")
    for name, make, n in rows:
        ours, theirs = context.Pipe()
        process = context.Process(target=measured, args=(make, path, theirs))
        process.start()
        took, seconds = ours.recv()
        process.join()
        print(f"{name:<11} {n / 2**20:6.1f} MiB in, {took / 2**20:7.1f} MiB taken "
              f"({took / n:5.1f} times), {seconds:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
