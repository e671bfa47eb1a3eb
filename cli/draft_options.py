"""A draft model's own placement and cache, and llama.cpp's other names for all of speculation."""

from __future__ import annotations

from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from typing import Any

from gguflow.engine.limits import ALL_LAYERS

from .options import cache_type, cpu_experts, overrides

NAMES = {
    "-md": ("--spec-draft-model",),
    "-hfd": ("--spec-draft-hf",),
    "-ngld": ("--spec-draft-ngl",),
    "--draft-max": ("--spec-draft-n-max",),
    "--draft-min": ("--spec-draft-n-min",),
    "--draft-p-min": ("--spec-draft-p-min",),
    "--lookup-cache": ("-lcd", "--lookup-cache-dynamic"),
}
# Forms of guessing, and whether the text is looked up for them: llama.cpp has several ways to do
# that, which differ in speed alone.
TYPES = {
    "none": False, "draft-simple": False, "ngram-simple": True, "ngram-map-k": True,
    "ngram-map-k4v": True, "ngram-mod": True, "ngram-cache": True,
}  # fmt: skip
OTHER_TYPES = ("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")


def other_names(p: ArgumentParser | _ArgumentGroup, names: dict[str, tuple[str, ...]]) -> None:
    """More names for options that are there; --help lists one of each."""
    known = p._option_string_actions
    for name, others in names.items():
        known.update(dict.fromkeys(others, known[name]))


class _Types(Action):
    """--spec-type: whether there is --lookup."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        for name in values:
            if TYPES.get(name):
                namespace.lookup = True
            if name in OTHER_TYPES:
                said = f"note: {option} {name} changes nothing: guesses come from -md and --lookup"
                namespace.notes = [*namespace.notes, said]


def _types(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in TYPES and name not in OTHER_TYPES:
            raise ArgumentTypeError(f"{name}: expected some of {', '.join((*TYPES, *OTHER_TYPES))}")
    return names


def add_draft_placement(g: ArgumentParser | _ArgumentGroup) -> None:
    """Where a draft's tensors lie and what its cache is of, as -ot, -cmoe and -ctk say it of the
    model."""
    g.add_argument("-otd", "--override-tensor-draft", "--spec-draft-override-tensor",
                   type=overrides, action="append", default=[], metavar="RE=BACKEND",
                   help="-ot of the draft")  # fmt: skip
    g.add_argument("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", dest="cpu_experts_draft",
                   action="store_const", const=ALL_LAYERS, help="-cmoe of the draft")  # fmt: skip
    g.add_argument("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe", "--spec-draft-ncmoe",
                   dest="cpu_experts_draft", type=cpu_experts, metavar="N",
                   help="-ncmoe of the draft")  # fmt: skip
    for letter, what in (("k", "keys"), ("v", "values")):
        g.add_argument(f"-ct{letter}d", f"--cache-type-{letter}-draft",
                       f"--spec-draft-type-{letter}", type=cache_type, metavar="TYPE",
                       help=f"type of the draft's cached {what} (default f16)")  # fmt: skip
    g.add_argument("--spec-type", type=_types, action=_Types, dest="lookup", default=False,
                   metavar="LIST", help="llama.cpp's names: those of n-grams are --lookup, a "
                   "draft is -md's")  # fmt: skip
    g.add_argument("--spec-default", dest="lookup", action="store_true", help="as --lookup")


def draft_changes(args: Namespace) -> dict[str, Any]:
    """What is so of the draft alone, as fields of `Options`, by the flag that says so."""
    from gguflow.engine.graph import dtype_by_name

    pairs = tuple(pair for pairs in args.override_tensor_draft for pair in pairs)
    given = {
        "overrides": pairs or None, "cpu_experts": args.cpu_experts_draft,
        "k_type": args.cache_type_k_draft, "v_type": args.cache_type_v_draft,
    }  # fmt: skip
    return {
        name: dtype_by_name(value) if name in ("k_type", "v_type") else value
        for name, value in given.items()
        if value is not None
    }
