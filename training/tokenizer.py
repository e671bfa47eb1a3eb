"""Trains the 4,096-piece SentencePiece vocabulary on the training stories.

    python -m training.tokenizer --corpus fairy-tales.txt.xz --out training/tales.model

The settings are Llama's: BPE (so a piece's score is minus its merge rank, which is what GGUF's
"llama" tokenizer merges by), byte fallback, digits split, text taken as it is (no Unicode
normalization, no whitespace trimming) and one space put before the text. Lines are paragraphs,
so a newline never is inside a piece: it is the byte token <0x0A>.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sentencepiece as spm

from training.corpus import read_stories, split


def train_tokenizer(stories: list[str], out: Path, n_vocab: int = 4096) -> None:
    """Trains on the stories' paragraphs and writes the SentencePiece model to `out`."""
    paragraphs = (p for story in stories for p in story.split("\n\n"))
    with out.open("wb") as file:
        spm.SentencePieceTrainer.train(
            sentence_iterator=paragraphs,
            model_writer=file,
            model_type="bpe",
            vocab_size=n_vocab,
            byte_fallback=True,
            character_coverage=1.0,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            allow_whitespace_only_pieces=True,
            max_sentence_length=65536,  # no paragraph is left out
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=2,
            minloglevel=1,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--out", type=Path, default=Path("training/tales.model"))
    args = parser.parse_args()
    train, valid = split(read_stories(args.corpus))
    train_tokenizer(train, args.out)
    sp = spm.SentencePieceProcessor(model_file=str(args.out))
    text = "\n\n".join(valid)
    n_tokens = len(sp.encode(text))
    print(f"{args.out}: {len(sp)} pieces, {len(text.encode()) / n_tokens:.3f} bytes/token (valid)")


if __name__ == "__main__":
    main()
