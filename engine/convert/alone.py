"""A process of its own (see apart.py): what the tokenizers library makes of texts.

Reads {"tokenizer": text, "texts": [text], "cuts": bool} from standard input. Writes {"made": of
every text its ids, or where the pre-tokenizer cuts it} or {"error": why}. It runs by its path, and
needs nothing of this package.
"""

import contextlib
import json
import sys
from typing import Any

MOST_MEMORY, MOST_S = 4 << 30, 60  # bytes of addresses, seconds of a processor


def limit() -> None:
    with contextlib.suppress(ImportError):  # not on every system
        import resource

        for what, most in ((resource.RLIMIT_AS, MOST_MEMORY), (resource.RLIMIT_CPU, MOST_S)):
            with contextlib.suppress(OSError, ValueError):  # a lower one is there already
                resource.setrlimit(what, (most, most))


def made(asked: dict[str, Any]) -> list[Any]:
    import tokenizers

    theirs = tokenizers.Tokenizer.from_str(asked["tokenizer"])
    if not asked["cuts"]:
        return [theirs.encode(text, add_special_tokens=False).ids for text in asked["texts"]]
    if theirs.pre_tokenizer is None:
        raise ValueError("there is none")
    return [[at for _, at in theirs.pre_tokenizer.pre_tokenize_str(t)] for t in asked["texts"]]


if __name__ == "__main__":
    limit()
    try:
        answer: dict[str, Any] = {"made": made(json.load(sys.stdin))}
    except BaseException as e:  # the library raises bare Exception, and panics that are none
        answer = {"error": str(e)}
    json.dump(answer, sys.stdout)
