"""Nothing that Python accepts makes native code read or write out of bounds: descriptors are
refused where they are lowered, or the op does as the oracle does and leaves all else alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Built, GuardedMemory, all_cases, build_case, nmse, run_on

from gguflow.engine.backends.cpu.abi import AbiError
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.backends.descriptors import DescriptorError, check_step
from gguflow.engine.backends.host import HostBuffer, read
from gguflow.engine.backends.numpy import NumpyBackend
from gguflow.engine.compile.batch_rows import TOKENS, RowsError
from gguflow.engine.graph import (
    F16,
    F32,
    I32,
    Case,
    Graph,
    OpSpec,
    Role,
    Tensor,
    all_ops,
    op_spec,
)

LARGEST = 20_000  # elements of an operand
ROOM = 1 << 28  # bytes of a result that there is memory for


@cache
def cpu() -> CpuBackend:
    return CpuBackend(2)


@pytest.mark.parametrize("spec", all_ops(), ids=lambda s: s.name)
def test_every_case_passes(spec: OpSpec) -> None:
    for case in list(spec.cases())[::20]:
        built = build_case(spec, case, np.random.default_rng(0))
        check_step(built.node, GuardedMemory(cpu(), built))


# -- what is refused -------------------------------------------------------------------------------


class Moved(GuardedMemory):
    """A memory that says a tensor lies elsewhere than it does."""

    name, by, cut = "", 0, 0
    at: Tensor | None = None

    def locate(self, owner: Tensor) -> tuple[Any, int]:
        buffer, offset = super().locate(self.at if owner.name == self.name and self.at else owner)
        if owner.name != self.name:
            return buffer, offset
        return HostBuffer(buffer.array[: buffer.nbytes - self.cut]), offset + self.by


def product() -> tuple[Built, Moved]:
    g = Graph()
    w, x = g.weight("w", F32, (8, 6)), g.input("x", F32, (3, 6))
    node = g.mul_mat(w, x, name="product")
    feeds = {n: np.zeros(t.nbytes, np.uint8) for n, t in g.leaves.items()}
    built = Built(g, node, feeds, np.zeros((3, 8), np.float32), {}, 0.0)
    return built, Moved(cpu(), built)


def change_source(i: int, **fields: Any) -> Callable[[Tensor, Moved], Tensor]:
    def change(node: Tensor, memory: Moved) -> Tensor:
        s = node.srcs[i]
        assert s is not None
        other = replace(s, role=Role.VIEW, view_of=s.owner, **fields)
        node.srcs = (*node.srcs[:i], other, *node.srcs[i + 1 :])
        return node

    return change


def set_fields(**fields: Any) -> Callable[[Tensor, Moved], Tensor]:
    def change(node: Tensor, memory: Moved) -> Tensor:
        for name, value in fields.items():
            setattr(node, name, value)
        return node

    return change


def move(name: str, **fields: Any) -> Callable[[Tensor, Moved], Tensor]:
    def change(node: Tensor, memory: Moved) -> Tensor:
        for key, value in {"name": name, **fields}.items():
            setattr(memory, key, value)
        return node

    return change


def alias(node: Tensor, memory: Moved) -> Tensor:
    memory.name, memory.at = node.name, node.srcs[0]
    return node


@pytest.mark.parametrize(
    "change, said",
    [
        (change_source(1, shape=(2, 6)), "a result of f32.3, 8., its operands give f32.2, 8."),
        (change_source(0, shape=(8, 5)), "inner lengths 5 and 6 differ"),
        (change_source(0, shape=(8, 7)), "operand w: ends at byte 196 of w, which has 192"),
        (change_source(0, view_offset=4), "operand w: ends at byte 196 of w, which has 192"),
        (change_source(0, view_offset=-4), "operand w: shape .*, offset -4"),
        (change_source(0, strides=(-24, 4)), "operand w: .* strides .-24, 4."),
        (change_source(0, strides=(26, 4)), "operand w: strides .26, 4. split an element"),
        (change_source(0, strides=(48, 4)), "operand w: ends at byte 360"),
        (change_source(0, strides=(4,)), "operand w: 2 dimensions with 1 strides"),
        (change_source(0, dtype=F16), "operand w: f16 in w, which is f32"),
        (set_fields(srcs=()), "0 operands, takes 2 to 2"),
        (set_fields(params={"eps": 1.0}), "unknown parameter eps"),
        (set_fields(dtype=I32), "a result of i32"),
        (set_fields(shape=(1 << 40, 8)), "its operands give f32.3, 8."),
        (set_fields(strides=(64, 4)), "operand product: ends at byte 160"),
        (set_fields(strides=(0, 4)), "a result with strides .0, 4."),
        (move("w", by=4096), "operand w: w has 192 bytes from 4352 on in a buffer of 704"),
        (move("w", by=-512), "operand w: w has 192 bytes from -256"),
        (move("x", cut=257), "operand x: x has 72 bytes from 256 on in a buffer of 327"),
        (move("x", by=2), "operand x: f32 at an address that is no multiple of 4"),
        (alias, "its result shares memory with operand 0, w"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[[Tensor, Moved], Tensor], said: str) -> None:
    built, memory = product()
    node = change(built.node, memory)
    with pytest.raises(DescriptorError, match=f"^product: mul_mat: .*{said}"):
        cpu().lower([node], memory)


def test_a_result_may_take_the_place_of_an_operand_as_the_op_allows() -> None:
    g = Graph()
    x = g.input("x", F32, (4, 6))
    for node, ok in ((g.silu(x), True), (g.cpy(x, type=F32.ggml_id), False)):
        built = Built(g, node, {"x": np.zeros(96, np.uint8)}, np.zeros((4, 6)), {}, 0.0)
        memory = GuardedMemory(cpu(), built, in_place=0)
        if ok:
            check_step(node, memory)
        else:
            with pytest.raises(DescriptorError, match="shares memory"):
                check_step(node, memory)


def test_more_rows_than_a_program_was_made_for_are_refused() -> None:
    built, memory = product()
    memory.rows = {built.node: TOKENS, built.graph.leaves["x"]: TOKENS}
    program = cpu().lower([built.node], memory)
    program.start(live={TOKENS: 2})
    for n in (0, 4, -1):
        with pytest.raises(RowsError):
            program.start(live={TOKENS: n})
    memory.check_guards()


# -- mutants ---------------------------------------------------------------------------------------

NUMBERS = (0, 1, 2, 3, 7, 31, 64, 1 << 20, (1 << 31) - 1, -1, -2, -(1 << 31), 1 << 40)


def mutate(built: Built, rng: np.random.Generator) -> Built:
    """The case with one thing changed: an operand's layout, a parameter, the numbers in an integer
    operand, or the result."""
    node = built.node
    kind = rng.choice(["layout", "params", "numbers", "result"])
    if kind == "params" and node.params:
        name = rng.choice(list(node.params))
        value = node.params[name]
        if isinstance(value, float):
            value = float(rng.choice([0.0, -1.0, 1e30, np.inf, np.nan, 1e-30]))
        elif isinstance(value, int):
            # So many neurons are memory that the oracle really takes.
            value = int(rng.choice([n for n in NUMBERS if name != "n_ff" or n <= 1 << 10]))
        return replace(built, node=replace(node, params={**node.params, name: value}))
    if kind == "numbers":
        feeds = dict(built.feeds)
        for name, leaf in built.graph.leaves.items():
            if leaf.dtype.is_integer and rng.random() < 0.7:
                info = np.iinfo(leaf.dtype.storage)
                pool = [n for n in NUMBERS if info.min <= n <= info.max]
                feeds[name] = rng.choice(pool, leaf.size).astype(leaf.dtype.storage).view(np.uint8)
        return replace(built, feeds=feeds)
    target, i = node, -1
    if kind == "layout":
        i = int(rng.choice([k for k, s in enumerate(node.srcs) if s is not None]))
        source = node.srcs[i]
        assert source is not None
        target = source
    fields: dict[str, Any] = {"shape": list(target.shape), "strides": list(target.strides)}
    what = rng.choice(["shape", "strides", "offset", "order"])
    if what == "offset" or not target.shape:
        unit = int(rng.choice([1, target.dtype.nbytes, 64, -4, 1 << 40]))
        fields["view_offset"] = target.view_offset + unit
    elif what == "order":
        axes = rng.permutation(len(target.shape))
        fields = {k: [v[a] for a in axes] for k, v in fields.items()}
    else:
        axis = int(rng.integers(len(target.shape)))
        old = fields[what][axis]
        fields[what][axis] = int(rng.choice([old + 1, old - 1, 2 * old, old // 2, *NUMBERS]))
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    if any(n < 0 for n in fields.get("shape", ())):  # a Tensor cannot be made so
        fields.pop("shape")
    changed = replace(target, **fields)
    if i < 0:
        return replace(built, node=changed)
    changed = replace(changed, role=Role.VIEW, op=None, view_of=target.owner)
    return replace(built, node=replace(node, srcs=(*node.srcs[:i], changed, *node.srcs[i + 1 :])))


def run_mutant(built: Built) -> str:
    """`refused`, or `ran` as the oracle does."""
    try:
        if built.node.nbytes > ROOM:
            return "refused"
        memory = GuardedMemory(cpu(), built)
    except (ValueError, MemoryError):  # a result of half a block, or of terabytes, has no place
        return "refused"
    try:
        check_step(built.node, memory)
        if not cpu().supports(built.node):
            return "refused"
    except (DescriptorError, AbiError):
        return "refused"
    try:
        built, expected = by_oracle(built)
    except (IndexError, MemoryError, ValueError, ArithmeticError):  # nothing is said of such
        return guarded(built)
    known = is_known(built)
    twice = built.node.owner.role is Role.STATE or op_spec(built.node.op or "").also_writes
    if not known or twice or built.node.size < 31 or not np.isfinite(expected).all():
        # Nobody says what comes of parameters that are no numbers or of a row that is written
        # twice, nor how exact a difference of large numbers is; but all else stays as it is.
        return guarded(built)
    error, most = nmse(run_on(cpu(), built), expected), 30 * max(built.tolerance, 1e-7)
    # Where one neuron of a few is active by a difference of large numbers the oracle is as far off.
    near = (by_oracle(rounded(built, seed))[1] for seed in range(8))
    assert error <= most or error <= 4 * max(nmse(x, expected) for x in near), built.node
    return "ran"


def rounded(built: Built, seed: int) -> Built:
    """The case with its activations about as far off as products of quantized weights read them,
    which have 8 bits of each."""
    feeds, rng = dict(built.feeds), np.random.default_rng(seed)
    for name, leaf in built.graph.leaves.items():
        if leaf.dtype is F32 and leaf.role is not Role.WEIGHT:
            x = feeds[name].view(np.float32)
            unit = np.abs(x).max(initial=0, where=np.isfinite(x)) / 127
            off = rng.uniform(-0.5, 0.5, x.shape) * unit
            feeds[name] = (x + off).astype(np.float32).view(np.uint8)
    return replace(built, feeds=feeds)


def is_known(built: Built) -> bool:
    """Whether float32 can tell what comes of the parameters: not the cosine of an angle of 1e30,
    nor a bias for every one of two billion positions."""
    params = built.node.params
    reals = [v for v in params.values() if isinstance(v, float) and v]
    if not all(1e-20 < abs(v) < 1e20 for v in reals):  # a NaN is not either
        return False
    integers = [
        built.feeds[name].view(leaf.dtype.storage)
        for name, leaf in built.graph.leaves.items()
        if leaf.dtype.is_integer
    ]
    return not params.get("max_bias") or all(
        np.all(np.abs(x.astype(np.int64)) < 1 << 24) for x in integers
    )


def by_oracle(built: Built) -> tuple[Built, np.ndarray]:
    """What the oracle leaves of a mutant's operands, and its result."""
    oracle = GuardedMemory(NumpyBackend(), built)
    with np.errstate(all="ignore"):
        NumpyBackend().lower([built.node], oracle).run()
    leaves = built.graph.leaves.items()
    after = {name: oracle.bytes_of(t) for name, t in leaves}
    return replace(built, after=after), read(built.node, after_of(built.node, oracle))


def after_of(t: Tensor, memory: GuardedMemory) -> dict[Tensor, np.ndarray]:
    return {t.owner: memory.bytes_of(t.owner)}


def guarded(built: Built) -> str:
    """Runs; nothing but results and states may change."""
    memory = GuardedMemory(cpu(), built)
    cpu().lower([built.node], memory).run()
    memory.check_guards()
    for name, leaf in built.graph.leaves.items():
        if leaf.role is not Role.STATE:
            assert np.array_equal(memory.bytes_of(leaf), built.feeds[name]), name
    return "ran"


def small_cases() -> list[tuple[OpSpec, Case]]:
    return [
        (spec, case)
        for spec in all_ops()
        for case in spec.cases()
        if all(o is None or np.prod(o.shape) <= LARGEST for o in case.srcs)
    ]


@cache
def _small() -> list[tuple[OpSpec, Case]]:
    return small_cases()


def mutants(seed: int, n: int) -> dict[str, int]:
    counts = {"refused": 0, "ran": 0}
    rng = np.random.default_rng(seed)
    for _ in range(n):
        spec, case = _small()[int(rng.integers(len(_small())))]
        built = build_case(spec, case, rng)
        counts[run_mutant(mutate(built, rng))] += 1
    return counts


def test_mutants_are_refused_or_run_as_the_oracle_does() -> None:
    counts = mutants(0, 400)
    assert min(counts.values()) > 80, counts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_mutants(seed: int) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    # A mutant that asks for more is refused memory, and no other process pays. What there is counts
    # too: a sanitizer reserves terabytes.
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[0]) if statm.exists() else 0
    most = pages * resource.getpagesize() + (8 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        mutants(seed, 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_there_are_cases() -> None:
    assert len(all_cases()) > 1000 and len(_small()) > 900
