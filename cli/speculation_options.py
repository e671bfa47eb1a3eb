"""Arguments for speculation, and the model that they are about."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING

from gguflow.engine.dataclass import replace

from .draft_options import NAMES, add_draft_placement, draft_changes, other_names
from .errors import UsageError
from .load import hub_model, note
from .options import gpu_layers, real, whole
from .progress import Bar

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.serving.speculation import Speculation
    from gguflow.engine.session import Timings

MOST, LEAST, P_MIN = 16, 0, 0.0
HUB = "hf:"  # before a draft's name where it is the hub's


def add_speculation(p: ArgumentParser) -> None:
    """-md, --lookup and their settings."""
    g = p.add_argument_group("guessing tokens ahead, which changes no output")
    add_draft(g)
    g.add_argument(
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        dest="model_draft",
        type=lambda name: f"{HUB}{name}",
        metavar="USER/REPO[:QUANT]",
        help="-md of the Hugging Face hub",
    )
    g.add_argument(
        "--lookup",
        action="store_true",
        help="guess what followed the last tokens when they stood in the text before",
    )
    g.add_argument(
        "--lookup-cache",
        metavar="FILE",
        help="--lookup with the n-grams of earlier texts too; this one's are added to the file",
    )
    add_draft_placement(g)
    other_names(g, NAMES)


def add_draft(g: ArgumentParser | _ArgumentGroup) -> None:
    """-md and how long its guesses are."""
    g.add_argument(
        "-md",
        "--model-draft",
        metavar="FILE",
        help="a smaller model with the same vocabulary that guesses; `bundled` is one for the "
        "bundled model",
    )
    g.add_argument(
        "-ngld",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
        type=gpu_layers,
        metavar="N",
        help="its layers on the GPU (default: all when -ngl puts any there)",
    )
    g.add_argument(
        "--draft-max",
        "--draft",
        "--draft-n",
        type=whole(1, 64),
        default=MOST,
        metavar="N",
        help=f"most tokens guessed at a time (default {MOST}); fewer where that is faster",
    )
    g.add_argument(
        "--draft-min",
        "--draft-n-min",
        type=whole(0, 64),
        default=LEAST,
        metavar="N",
        help=f"fewer guesses are not tried (default {LEAST})",
    )
    g.add_argument(
        "--draft-p-min",
        type=real,
        default=P_MIN,
        metavar="P",
        help=f"guess no token that the draft gives less probability (default {P_MIN:g})",
    )


def load_draft(model: Model, args: Namespace) -> Model:
    """The model of -md, beside the one it guesses for."""
    changes = draft_changes(args)
    if args.gpu_layers_draft is not None:
        changes["n_gpu_layers"] = args.gpu_layers_draft
    path = args.model_draft
    if path.startswith(HUB):
        path = hub_model(path.removeprefix(HUB), args)
    with Bar(f"loading {Path(path).name}") as bar:
        return model.load_draft(path, bar.update, **changes)


def speculation_settings(args: Namespace) -> Speculation | None:
    """What add_speculation's arguments ask for, without the draft model. Raises UsageError and
    SpeculationError for what does not go together."""
    lookup = args.lookup or args.lookup_cache is not None
    if args.model_draft is None and not lookup:
        for flag, given in (
            ("--draft-max", args.draft_max != MOST),
            ("--draft-min", args.draft_min != LEAST),
            ("--draft-p-min", args.draft_p_min != P_MIN),
            ("-ngld", args.gpu_layers_draft is not None),
            ("-otd", args.override_tensor_draft),
            ("-cmoed", args.cpu_experts_draft is not None),
            ("-ctkd", args.cache_type_k_draft is not None),
            ("-ctvd", args.cache_type_v_draft is not None),
        ):
            if given:
                raise UsageError(f"{flag}: only with -md or --lookup")
        return None
    from gguflow.engine.serving.speculation import Speculation

    return Speculation(
        lookup=True,
        lookup_cache=args.lookup_cache or "",
        most=args.draft_max,
        least=args.draft_min,
        p_min=args.draft_p_min,
    )


def set_speculation(model: Model, args: Namespace, settings: Speculation | None) -> None:
    """Make the model's sessions guess so, with the draft model if one is named."""
    if settings is None:
        return
    if args.model_draft is not None:
        lookup = args.lookup or args.lookup_cache is not None
        draft = load_draft(model, args)
        settings = replace(settings, draft=draft, lookup=lookup)
        note(f"guesses by {Path(draft.source.path).name}")
    model.speculate(settings)


def print_drafting(t: Timings) -> None:
    """What came of guesses, on stderr; nothing where none were made."""
    if t.n_drafted:
        note(
            f"         guesses = {t.n_drafted:5d} tokens, {t.n_accepted} came true "
            f"({t.n_accepted / t.n_drafted:.1%}), {t.n_drafted - t.n_accepted} wasted"
        )
