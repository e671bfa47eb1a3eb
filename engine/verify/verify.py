"""The whole of a verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from gguflow.engine.backends.base import Backend, DeviceId, find_backend
from gguflow.engine.dataclass import dataclass, field, replace
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.resolve import DEVICE_KIND
from gguflow.engine.sampling import SamplerSettings, SamplerState
from gguflow.engine.session import Session
from gguflow.models.chat import ChatTemplate

from .checks import Check, nmse
from .logits import Difference, GivenLogits, Window, log_softmax
from .ops import OpRow, Shadow, ShadowBackend, first_fault
from .oracle import Oracle
from .text import text_checks
from .weights import weight_checks

WHOLE = 1e-3  # NMSE of logits that two runs of a model may differ by
BLOCK = 64  # positions whose logits are held at once

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Settings:
    """What to look at. n_prompt, n_decode: tokens of a prompt, and then single ones, that ops are
    checked on. against: a device, or logits of another program; None for neither."""

    n_prompt: int = 32
    n_decode: int = 2
    weights: bool = True
    text: bool = True
    ops: bool = True
    against: DeviceId | GivenLogits | None = None


@dataclass
class Report:
    """What was found. rows: every op of every run, in order. difference: to `against`."""

    checks: list[Check] = field(default_factory=list)
    rows: list[OpRow] = field(default_factory=list)
    difference: Difference | None = None

    @property
    def fault(self) -> OpRow | None:
        """The first op that differs from its reference."""
        return first_fault(self.rows)

    @property
    def ok(self) -> bool:
        ok = self.fault is None and all(c.ok is not False for c in self.checks)
        return ok and (self.difference is None or self.difference.ok)


def verify(
    source: ModelSource,
    options: Options,
    text: str,
    settings: Settings,
    seen: Callable[[OpRow], None] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Verify a model as it runs under these options.

    text: what its tokens are taken from. seen: called with every op. progress: of loading. Beside
    the model, memory is needed for one op's operands at a time. Raises as `Model` does.
    """
    report = Report()
    needed = settings.n_prompt + settings.n_decode
    if isinstance(settings.against, GivenLogits):
        needed = max([needed, *(len(w.ids) for w in settings.against.windows)])
    n_ctx = options.n_ctx or -(-needed // 64) * 64
    options = replace(options, n_ctx=n_ctx, n_ubatch=min(max(settings.n_prompt, BLOCK), n_ctx))
    model = Model(source, options)
    if settings.weights:
        report.checks += weight_checks(source, _converter(model), progress)
    if settings.text:
        report.checks += text_checks(
            source.metadata, lambda: model.tokenizer,
            lambda t: ChatTemplate.for_model(source.metadata, t),
        )  # fmt: skip
    if not settings.ops and settings.against is None:
        return report
    model.load_weights(progress)
    ids = _tokens(model, text, needed)
    prompt, rest = ids[: settings.n_prompt], ids[settings.n_prompt :][: settings.n_decode]
    if settings.ops:
        _check_ops(report, model, prompt, rest, seen)
    if isinstance(settings.against, DeviceId):
        ours = list(_window_logits(model.session, Window(ids, 0, np.zeros((0, 0)))))
        model.close()
        other = Model(source, _on(options, settings.against))
        other.load_weights(progress)
        theirs = _window_logits(other.session, Window(ids, 0, np.zeros((0, 0))))
        report.difference = Difference()
        for a, b in zip(ours, theirs, strict=True):
            report.difference.add(log_softmax(a), log_softmax(b))
    elif settings.against is not None:
        report.difference = _given(model, settings.against)
    return report


def _converter(model: Model) -> Any:
    makers = (b.converter for b in model.backends.values() if b.converter is not None)
    make = next(makers, None)
    return None if make is None else make()


def _tokens(model: Model, text: str, n: int) -> list[int]:
    """n tokens of the text, repeated where it is short; of a model that has none, any."""
    try:
        ids = model.tokenizer.encode(text)
    except ValueError:
        ids = []
    ids = ids or [i % model.hp.n_vocab for i in range(7, 7 + 13 * n, 13)]
    return (ids * -(-n // len(ids)))[:n]


def _on(options: Options, device: DeviceId) -> Options:
    """The same on another device, all of it."""
    plain = replace(options, n_gpu_layers=0, overrides=())
    if device.kind == DEVICE_KIND:
        return replace(plain, n_gpu_layers=ALL_LAYERS, device=device.index)
    return replace(plain, overrides=((".*", str(device)),))


def _check_ops(
    report: Report, model: Model, prompt: Sequence[int], rest: Sequence[int],
    seen: Callable[[OpRow], None] | None,
) -> None:  # fmt: skip
    """Rows of a shadow run, and whether whole programs give what their ops do."""

    def row(r: OpRow) -> None:
        report.rows.append(r)
        if seen is not None:
            seen(r)

    def weight(name: str) -> np.ndarray | None:
        w = model.source.weights.get(name)
        return None if w is None else w.read()

    shadow = Shadow(Oracle(find_backend("numpy")), weight, row)
    other = model.with_options()
    other.backends = {
        name: cast(Backend, ShadowBackend(b, shadow)) for name, b in model.backends.items()
    }
    apart = list(_runs(other.new_session(), prompt, rest, shadow))
    whole = list(_runs(model.new_session(), prompt, rest))
    error = max(nmse(a, w) for a, w in zip(apart, whole, strict=True))
    same = all(np.array_equal(a, w) for a, w in zip(apart, whole, strict=True))
    said = "to the bit" if same else f"NMSE {error:.1e}"
    report.checks.append(
        Check("programs", error <= WHOLE, f"whole programs give what op by op gives, {said}")
    )
    bad = next((r for r in report.rows if r.not_finite), None)
    if bad is not None:
        said = f"{bad.not_finite:,} values of {bad.name} ({bad.op} on {bad.backend}, {bad.run})"
        whence = "its operands held such values" if bad.inherited else "its operands were finite"
        report.checks.append(
            Check("activations", False, f"NaN or infinity first in {said}; {whence}")
        )
    else:
        report.checks.append(Check("activations", True, "no op made NaN or infinity"))


def _runs(
    session: Session, prompt: Sequence[int], rest: Sequence[int], shadow: Shadow | None = None
) -> Iterator[np.ndarray]:
    """Logits of a prompt, then of every single token after it."""
    if shadow is not None:
        shadow.run = f"prompt of {len(prompt)}"
    yield session.step(prompt, "all", prompt=True)[0].copy()
    sampler = SamplerState(SamplerSettings(seed=1))
    for i, token in enumerate(rest):
        if shadow is not None:
            shadow.run = f"token {i + 1}"
        yield session.step([token], "last", sampler)[0].copy()


def _window_logits(session: Session, window: Window) -> Iterator[np.ndarray]:
    """Logits after the tokens of a window, from its `first` on, some positions at a time."""
    session.rewind(0)
    if window.first:
        session.prefill(window.ids[: window.first], None, "none")
    for i in range(window.first, len(window.ids), BLOCK):
        yield session.step(window.ids[i : i + BLOCK], "all", prompt=True)[0].copy()


def _given(model: Model, given: GivenLogits) -> Difference:
    d = Difference()
    for window in given.windows:
        at = 0
        for logits in _window_logits(model.session, window):
            known = window.log_probs[at : at + len(logits)]
            d.add(log_softmax(logits[: len(known)]), known)
            at += len(logits)
    return d
