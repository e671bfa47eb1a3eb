"""Options that put other values in place of a file's keys, as llama.cpp names them."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

from .options import real, whole

_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "bool": {"true": True, "false": False}.__getitem__, "str": str,
}  # fmt: skip


def key_value(text: str) -> tuple[str, Any]:
    """KEY=TYPE:VALUE."""
    key, equals, value = text.partition("=")
    kind, colon, value = value.partition(":")
    try:
        if not (key and equals and colon):
            raise ValueError
        return key, _KINDS[kind](value)
    except (KeyError, ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{text!r}: expected KEY=TYPE:VALUE, the type one of {', '.join(_KINDS)}"
        ) from None


def add_keys(p: ArgumentParser) -> None:
    """--override-kv and those of positions."""
    g = p.add_argument_group("keys of the file")
    g.add_argument(
        "--override-kv", type=key_value, action="append", default=[], metavar="KEY=TYPE:VALUE",
        help="another value for a key: int, float, bool or str; may be given more than once",
    )  # fmt: skip
    g.add_argument("--rope-scaling", choices=("none", "linear", "yarn"),
                   help="how positions are stretched (default: as the file says)")  # fmt: skip
    g.add_argument("--rope-scale", type=real, metavar="N",
                   help="how many times as far the context reaches")  # fmt: skip
    g.add_argument("--rope-freq-scale", type=real, metavar="N", help="1 / --rope-scale")
    g.add_argument("--rope-freq-base", type=real, metavar="N", help="base of the frequencies")
    g.add_argument("--yarn-orig-ctx", type=whole(0), metavar="N",
                   help="the context the model was trained with, before YaRN")  # fmt: skip
    for which in ("fast", "slow"):
        g.add_argument(f"--yarn-beta-{which}", type=real, metavar="N",
                       help="between which turns YaRN mixes")  # fmt: skip


def keys_of(args: Namespace) -> dict[str, Any]:
    """What `open_model` puts in place of a file's keys; 0 for a number means the file's."""
    found: dict[str, Any] = {}
    scale = args.rope_scale
    if args.rope_freq_scale:
        scale = 1 / args.rope_freq_scale
    for key, value in (
        ("type", args.rope_scaling), ("factor", scale),
        ("original_context_length", args.yarn_orig_ctx), ("yarn_beta_fast", args.yarn_beta_fast),
        ("yarn_beta_slow", args.yarn_beta_slow),
    ):  # fmt: skip
        if value:
            found[f".rope.scaling.{key}"] = value
    if args.rope_freq_base:
        found[".rope.freq_base"] = args.rope_freq_base
    return found | dict(args.override_kv)
