"""What is expected of a split: where the work of each layer is done, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguflow.engine.dataclass import dataclass

from .costs import NeuronBytes, Speeds
from .split import NeuronSplit


@dataclass(frozen=True)
class LayerExpectation:
    """Of one layer and token. n_gpu: neurons on the device; active: share of all neurons that
    fire; hot: share of the firing ones that are on the device; seconds of the host, of the device
    and in all (the longer of them, and meeting); n_bytes: on the device."""

    n_gpu: int
    active: float
    hot: float
    host_s: float
    device_s: float
    seconds: float
    n_bytes: int


def expect(
    split: NeuronSplit,
    probabilities: Sequence[np.ndarray],
    neurons: Sequence[NeuronBytes],
    speeds: Speeds,
    exact: bool = False,
) -> list[LayerExpectation]:
    """By layer. The arguments are those of `choose_split`; the split may be any."""
    return [
        _layer(split.n_ff, bucket, np.asarray(p, np.float64), neuron, speeds, exact)
        for bucket, p, neuron in zip(split.buckets, probabilities, neurons, strict=True)
    ]


def _layer(
    n_ff: int, bucket: np.ndarray, p: np.ndarray, neuron: NeuronBytes, speeds: Speeds, exact: bool
) -> LayerExpectation:
    n = bucket.size
    read = neuron.read(p, exact)
    hot_read = read[bucket].sum()
    host_s = float(speeds.host.seconds(read.sum() - hot_read)) if n < n_ff else 0.0
    device_s = float(speeds.device.seconds(hot_read)) if n else 0.0
    return LayerExpectation(
        n_gpu=n,
        active=float(p.mean()),
        hot=float(p[bucket].sum() / p.sum()) if p.sum() else 0.0,
        host_s=host_s,
        device_s=device_s,
        seconds=max(host_s, device_s) + (speeds.sync_s if n < n_ff else 0.0),
        n_bytes=neuron.on_device(n, n_ff),
    )
