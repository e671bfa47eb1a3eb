"""Messages without a chat template: each between two texts of the user's, as llama.cpp has it."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from .errors import UsageError
from .prompt import unescape


def add_surroundings(p: ArgumentParser) -> None:
    """--in-prefix and --in-suffix."""
    p.add_argument(
        "--in-prefix",
        metavar="TEXT",
        help="no chat template: -sys, then messages after this text, and answers as they come; "
        "what -r ends them with stays",
    )
    p.add_argument("--in-suffix", metavar="TEXT", help="the same, for what follows messages")
    p.add_argument(
        "--in-prefix-bos", action="store_true", help="the same, with a BOS token before each"
    )


def surroundings(args: Namespace) -> str | None:
    """A template that puts messages between these texts; None where there are none. Raises
    UsageError beside another template."""
    given = [
        flag
        for flag, value in (
            ("--in-prefix", args.in_prefix),
            ("--in-suffix", args.in_suffix),
            ("--in-prefix-bos", args.in_prefix_bos or None),
        )
        if value is not None
    ]
    if not given:
        return None
    if args.chat_template is not None or args.chat_template_file is not None:
        raise UsageError(
            f"{given[0]}: not with a chat template, which says what surrounds messages"
        )
    before, after = (
        json.dumps(text if args.no_escape else unescape(text), ensure_ascii=False)
        for text in (args.in_prefix or "", args.in_suffix or "")
    )
    bos = "{{ bos_token }}" if args.in_prefix_bos else ""
    return (
        "{% for m in messages %}{% if m['role'] == 'user' %}"
        f"{bos}{{{{ {before} }}}}{{{{ m['content'] }}}}{{{{ {after} }}}}"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    )
