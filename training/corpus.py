"""The fairy-tale corpus: reading, the split by story, the held-out excerpt, token streams.

The corpus is one text file compressed with xz: a paragraph a line, an empty line between
paragraphs, and stories separated by a line of exactly three asterisks.

    python -m training.corpus --corpus fairy-tales.txt.xz --train train.txt --heldout heldout.txt
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np
import sentencepiece as spm

SEPARATOR = "\n\n***\n\n"
VALID_EVERY = 20  # every 20th story is held out, so validation covers all the books
HELDOUT_EVERY = 3  # the shipped excerpt takes every 3rd validation story ...
HELDOUT_BYTES = 9000  # ... and at most about this much of each


def read_stories(path: str | Path) -> list[str]:
    """All the stories of the xz-compressed corpus, in file order."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return file.read().strip().split(SEPARATOR)


def split(stories: list[str]) -> tuple[list[str], list[str]]:
    """(training, validation) stories: story i is held out when i % 20 == 0."""
    train = [s for i, s in enumerate(stories) if i % VALID_EVERY]
    valid = [s for i, s in enumerate(stories) if i % VALID_EVERY == 0]
    return train, valid


def heldout_text(valid: list[str]) -> str:
    """The excerpt that ships beside the model: openings of validation stories, whole paragraphs."""
    excerpts = []
    for story in valid[::HELDOUT_EVERY]:
        kept: list[str] = []
        size = 0
        for paragraph in story.split("\n\n"):
            size += len(paragraph.encode()) + 2
            if kept and size > HELDOUT_BYTES:
                break
            kept.append(paragraph)
        excerpts.append("\n\n".join(kept))
    return "\n\n".join(excerpts) + "\n"


def without_title(story: str) -> str | None:
    """The story's body when its first paragraph is a title (short, no final stop), else None."""
    title, _, body = story.partition("\n\n")
    return body if body and len(title) < 80 and title[-1] not in '.!?"' else None


def token_stream(
    stories: list[str], sp: spm.SentencePieceProcessor, bodies: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenated `<s> story </s>` as int32 [n], and the index of each `<s>` as int64 [n_story].

    With `bodies` every titled story follows once more without its title, so that a prompt such
    as "Once upon a time" right after `<s>` is a beginning that the model has seen.
    """
    texts = list(stories)
    if bodies:
        texts += [body for body in map(without_title, stories) if body]
    pieces, starts, n = [], [], 0
    for ids in sp.encode(texts, num_threads=2):
        pieces.append(np.array([sp.bos_id(), *ids, sp.eos_id()], np.int32))
        starts.append(n)
        n += len(pieces[-1])
    return np.concatenate(pieces), np.array(starts, np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes parts of the corpus as plain text.")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--train", type=Path, help="all training stories")
    parser.add_argument("--heldout", type=Path, help="the excerpt that ships")
    args = parser.parse_args()
    train, valid = split(read_stories(args.corpus))
    if args.train:
        args.train.write_text("\n\n".join(train) + "\n", encoding="utf-8")
    if args.heldout:
        args.heldout.write_text(heldout_text(valid), encoding="utf-8")


if __name__ == "__main__":
    main()
