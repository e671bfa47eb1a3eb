"""From arguments to a model: the file or the bundled one, the forecast, the weights."""

from __future__ import annotations

import gc
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguflow.engine.harmless import many_lines

from .errors import PackageError, UsageError, with_flags
from .progress import Bar

if TYPE_CHECKING:
    from gguflow.engine.backends.base import Backend
    from gguflow.engine.load import ModelSource
    from gguflow.engine.model import Model
    from gguflow.engine.options import Options


_quiet = False


def be_quiet(quiet: bool) -> None:
    """Whether notes are left out from now on (-q)."""
    global _quiet
    _quiet = quiet


def note(text: str) -> None:
    """A line for the user that is not output."""
    if not _quiet:
        print(many_lines(text), file=sys.stderr)


def begin(args: Namespace) -> None:
    """Say of options what there is to say, as much as -q and -v ask for."""
    be_quiet(args.quiet)
    for text in args.notes:
        note(text)


def import_engine() -> None:
    """Import all that running a model takes, before there is one. What modules are made of stays to
    the end, so that looking for garbage among it, again and again as it grows, is of no use: in a
    process that began with the command (`start.py`) it is put aside, and never looked through."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.disable()
    try:
        import gguflow.engine.model  # noqa: F401
    finally:
        if frozen:
            gc.freeze()
            gc.enable()


def bundled_model() -> Path:
    """The dense model that ships with the package. Raises UsageError when this installation has
    none."""
    from gguflow.engine.load import bundled
    from gguflow.models.base import ModelError

    try:
        return bundled.bundled_model()
    except ModelError as e:
        raise UsageError(f"-m/--model is needed: {e}") from None


def model_path(args: Namespace) -> Path:
    """The file of -m or -hf, or the bundled model."""
    repo = getattr(args, "hf_repo", None)
    if (url := getattr(args, "model_url", None)) is not None:
        if repo is not None:
            raise UsageError("-mu/--model-url and -hf/--hf-repo exclude each other")
        return url_model(url, args.model, args)
    if repo is not None:
        if args.model is not None:
            raise UsageError("-m/--model and -hf/--hf-repo exclude each other")
        return hub_model(repo, args)
    if getattr(args, "hf_file", None) is not None:
        raise UsageError("-hff/--hf-file: only with -hf")
    if args.model is None:
        return bundled_model()
    return file_of(args.model)


def file_of(name: str) -> Path:
    """A model's file by its path, or ollama's by name."""
    if name.startswith("ollama:"):
        from gguflow.engine.hub import of_ollama

        return of_ollama(name)
    return Path(name).expanduser()


def hub_model(name: str, args: Namespace) -> Path:
    """A model of the hub. args: whose file, token and whether only the cache is asked. Raises
    PackageError without huggingface_hub."""
    from gguflow.engine import hub

    repos = getattr(args, "hf_repo", None)
    file = args.hf_file if name in (repos if isinstance(repos, list) else [repos]) else None
    token, offline = getattr(args, "hf_token", None), getattr(args, "offline", False)
    try:
        return hub.fetch(name, file, token, offline)
    except ImportError:
        raise PackageError("-hf needs huggingface_hub: pip install huggingface_hub") from None


def url_model(url: str, file: str | None, args: Namespace) -> Path:
    """A model of any web server. file: where it is kept, or is already. args: whether only what is
    kept is asked."""
    from gguflow.engine.url import fetch_url

    to = None if file is None else Path(file).expanduser()
    with Bar(f"fetching {url.rpartition('/')[2]:.60}") as bar:
        return fetch_url(url, to, bar.update, getattr(args, "offline", False))


def open_source(args: Namespace) -> ModelSource:
    """The model of -m, --random or the bundled one, before any memory is spent on it."""
    from gguflow.engine.load import open_model

    shape = getattr(args, "random", None)
    if shape is None:
        return open_model(model_path(args), _keys(args))
    for flag, given in (
        ("-m/--model", args.model),
        ("-hf/--hf-repo", getattr(args, "hf_repo", None)),
        ("-mu/--model-url", getattr(args, "model_url", None)),
    ):
        if given is not None:
            raise UsageError(f"{flag} and --random exclude each other")
    return random_source(shape)


def _keys(args: Namespace) -> dict[str, Any]:
    """Of a command that has add_keys's arguments."""
    if not hasattr(args, "override_kv"):
        return {}
    from .keys_options import keys_of

    return keys_of(args)


def random_source(shape: str) -> ModelSource:
    """A model of a named shape with random weights."""
    from gguflow.engine.load.random import random_model
    from gguflow.models.base import ModelError
    from gguflow.models.mixes import MixError

    try:
        return random_model(shape)
    except (ModelError, MixError) as e:
        raise UsageError(f"--random {shape}: {e}") from None


def check_context(source: ModelSource, options: Options) -> None:
    """Refuses a KV cache type that does not divide a head."""
    hp = source.arch.hp
    for flag, dtype, size in (
        ("--cache-type-k", options.k_type, hp.head_dim),
        ("--cache-type-v", options.v_type, hp.head_dim_v),
    ):
        if size % dtype.block:
            raise UsageError(
                f"{flag} {dtype.name}: this model's heads have {size} values, no multiple of "
                f"{dtype.name}'s block of {dtype.block}"
            )


def warn_of_context(source: ModelSource, n_ctx: int) -> None:
    """Says when a context is beyond what the model was trained with."""
    trained = source.arch.hp.n_ctx_train
    if n_ctx > trained:
        note(f"note: context {n_ctx} is beyond the {trained} the model was trained with")


def prepare(source: ModelSource, options: Options, args: Namespace | None = None) -> Model:
    """A model whose weights are not loaded yet. args: may ask for stages on other machines."""
    from gguflow.engine.model import Model

    from .auto_devices import with_devices
    from .ray_options import staged_model

    check_context(source, options)
    if args is not None and (model := staged_model(args, source, options)) is not None:
        return model
    return Model(source, with_devices(source, options, note))


def load_weights(model: Model, quiet: bool = False) -> None:
    """Say what runs where and in how many bytes, then bring the weights in.

    quiet: say only what the user would not expect.
    """
    from gguflow.engine.compile import fallbacks
    from gguflow.engine.planning import token_key

    unexpected = [*fallbacks(model.plan(token_key())), *model.notes]
    for line in unexpected if quiet else model.forecast():
        note(with_flags(line))
    warn_of_context(model.source, model.options.n_ctx)
    with Bar(f"loading {Path(model.source.path).name}") as bar:
        model.load_weights(bar.update)
    for line in model.weights.notes:
        note(with_flags(line))


def gpu(model: Model) -> Backend | None:
    """The first of a model's backends with memory of its own, or None."""
    return next((b for b in model.backends.values() if b.memory is not None), None)
