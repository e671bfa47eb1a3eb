"""Training activity predictors: two small matrices a layer that foretell which neurons fire.

A predictor is idx = fc2 . relu(fc1 . x), with x the layer's feed-forward input before its norm
(PowerInfer's graph); a neuron whose idx is below the threshold is skipped. Without biases relu
makes idx positively homogeneous in x, as the gate is (its norm divides by a positive number): at
threshold 0 only the direction of x counts, so predictors are trained for that threshold.

How many firing neurons a predictor may miss is set by the weight of the positives in its
loss; each layer's weight is steered until the layer's recall on held-out tokens is the one asked
for. So 0 nearly fits all layers, and each layer's exact threshold is near it. Needs torch (the
`train` extra).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gguflow.engine.dataclass import dataclass

STEER_EVERY = 20  # steps between two looks at the held-out recall
STEER_GAIN = 4.0  # e-folds of the positives' weight for each unit of recall that is missing
EVEN = 0.5  # of a positive's weight: what all get alike; the rest is by contribution
MAX_SHARE = 64.0  # a contribution counts as at most this many mean ones
# Of a batch, the part 1/RARE is drawn by the square of a token's largest contribution: the few
# tokens whose output hangs on one neuron (BOS above all) must not lose it.
RARE = 8
HELD_OUT_ROWS = 4096  # looked at while steering


@dataclass(frozen=True)
class Settings:
    """How to train one layer's predictor. recall: share of the firing neurons to be found."""

    rank: int = 128
    recall: float = 0.95
    steps: int = 1500
    batch: int = 2048  # tokens a step
    rate: float = 3e-3  # Adam's, at its peak
    held_out: float = 0.1  # share of the tokens, the last ones, that only measure
    seed: int = 1


@dataclass(frozen=True)
class Quality:
    """Of a predictor at a threshold on held-out tokens; all are shares, 0..1.

    active: of neurons that fire; predicted: of neurons that are computed; recall: of firing ones
    that are computed; reach: the same with neurons counted by their contribution |h| |down|;
    precision: of computed ones that fire.
    """

    active: float
    predicted: float
    recall: float
    precision: float
    reach: float


@dataclass(frozen=True)
class Predictor:
    """fc1 f32 [rank, n_embd], fc2 f32 [n_ff, rank], on the CPU.

    threshold: at which the recall on held-out tokens is the one asked for; quality: there.
    """

    fc1: Tensor
    fc2: Tensor
    threshold: float
    quality: Quality


def predict(x: Tensor, fc1: Tensor, fc2: Tensor) -> Tensor:
    """idx [n, n_ff] of x [n, n_embd]."""
    return F.relu(x @ fc1.T) @ fc2.T


def train_layer(
    x: Tensor,
    share: Tensor,
    settings: Settings,
    each: Callable[[int, float, float], None] | None = None,
    start: tuple[Tensor, Tensor] | None = None,
) -> Predictor:
    """Train one layer's predictor on the device where the tensors are.

    x: float [n, n_embd] inputs; share: [n, n_ff] contributions as `collect` has them, 0 for
    neurons that did not fire. each: called at every look at the held-out tokens with the step, the
    loss and the recall. start: fc1 and fc2 to go on from, instead of random ones. Raises ValueError
    when there are too few tokens to hold some out.
    """
    n_held = int(len(x) * settings.held_out)
    n = len(x) - n_held
    if n_held < 1 or n < 1:
        raise ValueError(f"{len(x)} tokens are too few to train a predictor and to measure it")
    rng = torch.Generator().manual_seed(settings.seed)
    scale = float(_scale(x[:HELD_OUT_ROWS]).mean())
    fc1, fc2 = start or _random(x.shape[1], share.shape[1], settings.rank, rng)
    if start:
        fc1 = fc1 * scale
    fc1, fc2 = (m.detach().clone().to(x.device).requires_grad_() for m in (fc1, fc2))
    opt = torch.optim.Adam([fc1, fc2], lr=settings.rate, betas=(0.9, 0.98))
    held = torch.randperm(n_held, generator=rng)[:HELD_OUT_ROWS].to(x.device) + n
    peaks = share[:n].amax(1).double().square().cumsum(0).cpu()
    weight = 1.0
    for step in range(settings.steps):
        rows = _rows(peaks, settings.batch, rng).to(x.device)
        opt.param_groups[0]["lr"] = settings.rate * _schedule(step / settings.steps)
        loss = _loss(predict(_unit(x[rows]), fc1, fc2), share[rows].float(), weight)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % STEER_EVERY == STEER_EVERY - 1:
            recall = measure(x[held], share[held], fc1, fc2).recall
            weight *= math.exp(STEER_GAIN * (settings.recall - recall))
            weight = min(max(weight, 1e-2), 1e4)
            if each:
                each(step + 1, float(loss.detach()), recall)
    # From inputs of unit scale back to the layer's, so that idx stays of about unit size.
    fc1, fc2 = fc1.detach() / scale, fc2.detach()
    threshold = _threshold(x[n:], share[n:], fc1, fc2, settings.recall)
    quality = measure(x[n:], share[n:], fc1, fc2, threshold)
    return Predictor(fc1.cpu(), fc2.cpu(), threshold, quality)


def _scale(x: Tensor) -> Tensor:
    """Root mean square of each token's input: [n, n_embd] -> f32 [n, 1]."""
    return x.float().pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-20)


def _unit(x: Tensor) -> Tensor:
    """Each token's input at unit scale: at threshold 0 the scale decides nothing."""
    return x.float() / _scale(x)


def _random(n_embd: int, n_ff: int, rank: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random matrices that make hidden values and logits of about one from unit inputs."""
    fc1 = torch.randn(rank, n_embd, generator=rng) / math.sqrt(n_embd)
    fc2 = torch.randn(n_ff, rank, generator=rng) / math.sqrt(rank)
    return fc1, fc2


def _rows(peaks: Tensor, n: int, rng: torch.Generator) -> Tensor:
    """n tokens of a batch. peaks: running sum of the weights that the RARE part is drawn by."""
    even = torch.randint(len(peaks), (n - n // RARE,), generator=rng)
    at = torch.rand(n // RARE, generator=rng, dtype=torch.float64) * peaks[-1]
    rare = torch.searchsorted(peaks, at, right=True).clamp_max(len(peaks) - 1)
    return torch.cat([even, rare])


def _schedule(progress: float) -> float:
    """A short warm-up, then a cosine down to nothing."""
    return min(1.0, progress / 0.03 + 0.03) * (1 + math.cos(math.pi * progress)) / 2


def _loss(logits: Tensor, share: Tensor, weight: float) -> Tensor:
    """Cross-entropy of firing or not; a positive counts by what missing it would cost."""
    fires = share > 0
    positive = weight * (EVEN + (1 - EVEN) * share.clamp(max=MAX_SHARE))
    sign = torch.where(fires, -1.0, 1.0)
    return (F.softplus(sign * logits) * torch.where(fires, positive, 1.0)).mean()


@torch.no_grad()
def _threshold(x: Tensor, share: Tensor, fc1: Tensor, fc2: Tensor, recall: float) -> float:
    """The score that this share of the firing neurons reach; 0 when none fires."""
    scores = torch.cat(
        [
            predict(part.float(), fc1, fc2)[truth > 0]
            for part, truth in zip(x.split(8192), share.split(8192), strict=True)
        ]
    )
    missed = int(len(scores) * (1 - recall))
    return float(scores.kthvalue(missed + 1).values) if missed < len(scores) else 0.0


@torch.no_grad()
def measure(
    x: Tensor, share: Tensor, fc1: Tensor, fc2: Tensor, threshold: float = 0.0, rows: int = 8192
) -> Quality:
    """The quality of a predictor at a threshold, `rows` tokens at a time."""
    sums = torch.zeros(6, dtype=torch.float64, device=x.device)
    for part, truth in zip(x.split(rows), share.split(rows), strict=True):
        found = predict(part.float(), fc1, fc2) >= threshold
        fires = truth > 0
        cost = truth.float()
        sums += torch.stack(
            [
                fires.sum().double(),
                found.sum().double(),
                (fires & found).sum().double(),
                cost.sum().double(),
                (cost * found).sum().double(),
                torch.tensor(float(fires.numel()), device=x.device).double(),
            ]
        )
    fires, found, both, cost, kept, n = (float(v) for v in sums)
    return Quality(
        active=fires / n,
        predicted=found / n,
        recall=both / fires if fires else 1.0,
        precision=both / found if found else 1.0,
        reach=kept / cost if cost else 1.0,
    )


def table(qualities: Sequence[Quality]) -> str:
    """Layers by lines and their mean, in Markdown."""
    lines = ["| layer | active | computed | recall | by contribution | precision |"]
    lines.append("| ---: | ---: | ---: | ---: | ---: | ---: |")

    def line(name: str, values: Sequence[float]) -> str:
        return " | ".join([f"| {name}", *(f"{v:.2%}" for v in values)]) + " |"

    rows = [(q.active, q.predicted, q.recall, q.reach, q.precision) for q in qualities]
    lines += [line(str(i), row) for i, row in enumerate(rows)]
    lines.append(line("mean", [sum(v) / len(rows) for v in zip(*rows, strict=True)]))
    return "\n".join(lines)
