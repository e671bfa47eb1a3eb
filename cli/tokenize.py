"""`gguflow tokenize`: text to token ids, or back."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace

from .errors import OK, UsageError
from .load import model_path
from .options import add_model, add_prompt
from .prompt import prompt_text, read_stdin
from .stream import add_raw, write_text

SUMMARY = "show the tokens of a text, or the text of tokens"
EPILOG = "Works on any GGUF file that holds a vocabulary, whole models included."


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    add_prompt(p)
    p.add_argument("text", nargs="?", help="the text, in place of -p")
    p.add_argument("--stdin", action="store_true", help="read the text from standard input")
    p.add_argument("--ids", action="store_true", help="print the ids alone, as a list")
    p.add_argument("--no-bos", action="store_true", help="add no token before or after the text")
    p.add_argument(
        "--parse-special",
        action="store_true",
        help="read the text of special tokens, such as <|eot_id|>, as those tokens",
    )
    p.add_argument("--show-count", action="store_true", help="print the number of tokens last")
    p.add_argument(
        "--decode",
        metavar="IDS",
        help="print the text of ids, e.g. 1,403,407; - reads them from standard input",
    )
    add_raw(p)


def run(args: Namespace) -> int:
    sources = (args.text, args.prompt, args.file, args.stdin or None, args.decode)
    if sum(s is not None for s in sources) != 1:
        raise UsageError("give one of: a text, -p/--prompt, -f/--file, --stdin, --decode")
    ids = None if args.decode is None else _parse_ids(args.decode)
    text = "" if args.decode is not None else _text(args)

    from gguflow.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model_path(args))
    if ids is not None:
        for token in ids:
            if token >= tokenizer.n_vocab:
                raise UsageError(f"--decode: {token} is no token of {tokenizer.n_vocab}")
        write_text(tokenizer.decode(ids, skip_special=False, strip_space=True) + "\n", args.raw)
        return OK
    ids = tokenizer.encode(text, add_special=not args.no_bos, parse_special=args.parse_special)
    if args.ids:
        print(ids)
    else:
        for token in ids:
            # The bytes may be half a character, so they are shown as the file writes the token.
            print(f"{token:6d} -> {tokenizer.token_text(token)!r}")
    if args.show_count:
        print(f"Total number of tokens: {len(ids)}")
    return OK


def _text(args: Namespace) -> str:
    if args.stdin:
        return read_stdin()
    if args.text is not None:
        return read_stdin() if args.text == "-" else args.text
    return prompt_text(args)


def _parse_ids(text: str) -> list[int]:
    words = re.split(r"[\s,]+", (read_stdin() if text == "-" else text).strip(" \n[]"))
    try:
        return [_id(w) for w in words if w]
    except ValueError as e:
        raise UsageError(f"--decode: {e} is no token id") from None


def _id(word: str) -> int:
    if not word.isdecimal():
        raise ValueError(repr(word))
    return int(word)
