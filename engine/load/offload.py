"""How much of a model goes to a device: layers as placement rules, and whether they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gguflow.engine.backends.base import Backend, DeviceMemory
from gguflow.engine.compile import Plan, SpaceBytes, human_bytes, layer_overrides
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.limits import ALL_LAYERS, AUTO_LAYERS
from gguflow.engine.room import memory_limit, own_memory

RESERVE = 256 << 20  # left free for the driver, the kernels and what else the device shows


Overrides = tuple[tuple[str, str], ...]
PlansFor = Callable[[Overrides], Sequence[Plan]]  # what a generation runs, under given overrides


def choose_layers(
    n_gpu_layers: int, n_layer: int, device: Backend, plans_for: PlansFor
) -> tuple[int, Overrides]:
    """The number of layers on the device and the overrides that put them there.

    n_gpu_layers: a number, AUTO_LAYERS or ALL_LAYERS; the output head counts as one more layer.
    Raises MemoryError with the figures when what was asked for does not fit.
    """
    everything = n_layer + 1
    if n_gpu_layers == AUTO_LAYERS:
        n = most_layers(
            everything,
            lambda n: fits(plans_for(layer_overrides(n_layer, n, device.name)), device),
        )
        return n, layer_overrides(n_layer, n, device.name)
    layers = everything if n_gpu_layers == ALL_LAYERS else min(n_gpu_layers, everything)
    overrides = layer_overrides(n_layer, layers, device.name)
    check_fits(plans_for(overrides), device)
    return layers, overrides


def most_layers(most: int, fit: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, 0 if none does, by bisection; all of them are
    tried first, for mostly they do."""
    if fit(most):
        return most
    least = 0
    while least < most - 1:
        middle = (least + most) // 2
        if fit(middle):
            least = middle
        else:
            most = middle
    return least


def needed(plans: Sequence[Plan], device: Backend) -> SpaceBytes:
    """What plans of one session take on the device."""
    return SpaceBytes.together([p.bytes_by_space()[device.space] for p in plans])


def _with_memory(devices: Iterable[Backend]) -> list[tuple[Backend, DeviceMemory]]:
    return [(d, d.memory) for d in devices if d.memory is not None]


def needed_by_device(
    plans: Callable[[], Sequence[Plan]], devices: Iterable[Backend]
) -> dict[str, SpaceBytes]:
    """What plans of one session take, by memory space, of the devices that have memory."""
    found = _with_memory(devices)
    of = plans() if found else []
    return {device.space: needed(of, device) for device, _ in found}


def reserve(plans: Callable[[], Sequence[Plan]], devices: Iterable[Backend]) -> None:
    """Tell the devices that have memory what plans of one session will take there."""
    found = _with_memory(devices)
    of = plans() if found else []
    for device, memory in found:
        b = needed(of, device)
        memory.reserve(b.total, b.scratch)


def device_lines(devices: Iterable[Backend], needs: Mapping[str, int]) -> list[str]:
    """What a session needs of each device beside what is taken there. needs: bytes by space."""
    lines = []
    for device, memory in _with_memory(devices):
        free, total = memory.room()
        lines.append(
            f"{device.space}: {human_bytes(needs[device.space])} beside {human_bytes(total - free)}"
            f" that the driver and other programs have, of {human_bytes(total)}"
        )
    return lines


def _room(device: Backend) -> tuple[int, int]:
    """(free, all) bytes of a device's memory."""
    assert device.memory is not None, f"{device.name} computes in the host's memory"
    return device.memory.room()


def fits(plans: Sequence[Plan], device: Backend) -> bool:
    """Whether the device has room for plans of one session."""
    return needed(plans, device).total + RESERVE <= _room(device)[0]


def check_fits(plans: Sequence[Plan], device: Backend) -> None:
    """Raises MemoryError with the figures when the plans do not fit the device."""
    free, total = _room(device)
    b = needed(plans, device)
    if b.total + RESERVE > free:
        raise MemoryError(
            f"{device.space}: {human_bytes(b.total)} are needed (weights {human_bytes(b.weights)}, "
            f"KV cache {human_bytes(b.states)}, intermediate values {human_bytes(b.working)}) and "
            f"{human_bytes(RESERVE)} kept free, but only {human_bytes(free)} of "
            f"{human_bytes(total)} are; lower `n_gpu_layers` or `n_ctx`, or use `n_gpu_layers=auto`"
        )


def check_limit(
    plans: Callable[[], Sequence[Plan]], repacked: Callable[[], Mapping[str, int]]
) -> None:
    """Raises MemoryError with the figures when the process may not take what a model will need of
    the host's memory, before any of it is loaded. repacked: bytes of weights by memory space that
    are copied; others stay in the file."""
    limit = memory_limit()
    if limit is None:
        return
    b = SpaceBytes.together([p.bytes_by_space().get(HOST_SPACE, SpaceBytes()) for p in plans()])
    weights, taken = repacked().get(HOST_SPACE, 0), own_memory()
    needs = weights + b.states + b.working
    if taken + needs > limit:
        raise MemoryError(
            f"{human_bytes(needs)} of the host's memory are needed (weights "
            f"{human_bytes(weights)}, "
            f"KV cache {human_bytes(b.states)}, intermediate values {human_bytes(b.working)}), "
            f"{human_bytes(taken)} are taken, and the limit is {human_bytes(limit)}; lower `n_ctx`"
        )
