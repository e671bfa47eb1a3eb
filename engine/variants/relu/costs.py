"""What a layer costs by how many of its neurons the device keeps: bytes there, expected time.

Neurons move in groups, the most active first: for any number of neurons kept, no other set of them
takes more work off the host, so a layer's choice is a single number, the groups kept.
"""

from __future__ import annotations

import numpy as np

from gguflow.engine.compile import round_up
from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class Side:
    """How fast one processor computes a sparse layer.

    bytes_per_s: of the rows of active neurons. layer_s: seconds a layer takes however few neurons
    are active (launch, finding the active ones).
    """

    bytes_per_s: float
    layer_s: float = 0.0

    def seconds(self, n_bytes: np.ndarray) -> np.ndarray:
        """Of a layer that reads so many bytes."""
        return self.layer_s + n_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Speeds:
    """Both processors, and sync_s: seconds that a layer with neurons on the host takes besides to
    bring its input there and its result back."""

    host: Side
    device: Side
    sync_s: float = 0.0


@dataclass(frozen=True)
class NeuronBytes:
    """Bytes of one neuron's row in each of a layer's matrices; 0 for a gate that it lacks."""

    gate: int
    up: int
    down: int

    @property
    def total(self) -> int:
        return self.gate + self.up + self.down

    def on_device(self, n: int, n_ff: int) -> int:
        """Bytes that `n` of a layer's `n_ff` neurons take there, as allocated: the matrices, and
        the list of their ids (i32) unless all of them are there."""
        if n == 0:
            return 0
        rows = sum(round_up(n * row) for row in (self.gate, self.up, self.down))
        return rows + (round_up(4 * n) if n < n_ff else 0)

    def read(self, probability: np.ndarray, exact: bool) -> np.ndarray:
        """Expected bytes read for each neuron: all rows of an active one; when activity is found
        out by the gate itself, or by up where there is none (`exact`), that row always."""
        if exact:
            first = self.gate or self.up
            return first + probability * (self.total - first)
        return probability * self.total


@dataclass(frozen=True)
class LayerCosts:
    """A layer's choices: with the first `cuts[g]` neurons of `order` on the device, `n_bytes[g]`
    bytes there and the seconds a token takes on either side and in all.

    order: i32 [n_ff], most active first, lower ids first among equals. The others: [n_groups + 1].
    """

    order: np.ndarray
    cuts: np.ndarray
    n_bytes: np.ndarray
    host_s: np.ndarray
    device_s: np.ndarray
    seconds: np.ndarray

    def bucket(self, g: int) -> np.ndarray:
        """Ids of the neurons on the device, ascending, i32."""
        return np.sort(self.order[: self.cuts[g]])


def layer_costs(
    probability: np.ndarray,
    neuron: NeuronBytes,
    speeds: Speeds,
    group: int = 128,
    exact: bool = False,
) -> LayerCosts:
    """Tabulate one layer.

    probability: [n_ff], the share of tokens for which each neuron is active. group: neurons that
    move together. exact: activity is found by the gate, not predicted.

    The two sides work at the same time: a token takes the longer of them, plus `speeds.sync_s`
    where the host has neurons.
    """
    p = np.asarray(probability, np.float64)
    n_ff = len(p)
    order = np.argsort(-p, kind="stable").astype(np.int32)
    cuts = np.unique(np.append(np.arange(0, n_ff, group), n_ff))
    read = np.append(0.0, np.cumsum(neuron.read(p[order], exact)))[cuts]
    n_bytes = np.array([neuron.on_device(int(n), n_ff) for n in cuts], np.int64)
    # Differences of a running sum may come out a hair below zero.
    host_s = np.where(cuts < n_ff, speeds.host.seconds(np.maximum(read[-1] - read, 0)), 0.0)
    device_s = np.where(cuts > 0, speeds.device.seconds(read), 0.0)
    sync_s = np.where(cuts < n_ff, speeds.sync_s, 0.0)
    return LayerCosts(order, cuts, n_bytes, host_s, device_s, np.maximum(host_s, device_s) + sync_s)
