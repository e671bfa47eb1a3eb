"""Attention at the sizes of real models: split decoding, tiled prefill, many sequences, what the
kernels must not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness import build_case, nmse, results_of_runs, run_on
from kernel_list import DEVICE, launches_of

from gguflow.engine.graph import F32, I32, Case, Graph, Operand, dtype_by_name, op_spec
from gguflow.engine.plan_key import PAGE
from gguflow.kernels.cuda import attention
from gguflow.kernels.cuda.launch import Launch

TENSOR = 72  # bytes of a kernel's operand: address, extents, strides
EXACT = {"f32": 1e-7, "f16": 1e-6, "bf16": 1e-4, "q8_0": 1e-6}
Seqs = Sequence[tuple[int, int]]  # of each sequence, new tokens and those before


def case(
    seqs: Seqs, heads: tuple[int, int] = (32, 8), hd: int = 128, dtype: str = "f16", *,
    pos: Any = None, dirty: bool = False, v_dtype: str = "", told: bool = True, entries: int = 0,
    shared: int = 0, sinks: float = 0.0, **params: Any,
) -> Case:  # fmt: skip
    """New tokens of sequences, whose pages lie in a mixed order among some that nobody has.

    dirty: keys that no token sees are NaN. told: n_single says how many of the first tokens are
    alone. entries: of the table, at least. shared: first pages that all sequences have in common.
    """
    last = [past + n - 1 for n, past in seqs]
    window = params.get("window", 0)
    entries = max(entries, max(last) // PAGE + 1)
    n_pages = sum(end // PAGE + 1 for end in last) + 3
    free = iter(np.random.default_rng(len(seqs)).permutation(n_pages))
    table = np.full((len(seqs), entries), -1, np.int32)
    beginning = [next(free) for _ in range(shared)]
    seen = np.zeros((n_pages, PAGE), bool)
    for row, end, (_, past) in zip(table, last, seqs, strict=True):
        first = max(0, past - window + 1) if window else 0
        for i in range(first // PAGE, end // PAGE + 1):  # pages before a window are given back
            row[i] = beginning[i] if i < shared else next(free)
            keys = np.arange(i * PAGE, (i + 1) * PAGE)
            seen[row[i]] |= (keys >= first) & (keys <= end)

    def cache(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(shape).astype(np.float32)
        if dirty:
            x[~seen.reshape(-1)] = np.nan
        return x

    n_tok = sum(n for n, _ in seqs)
    where = np.concatenate([np.arange(past, past + n) for n, past in seqs])
    k, v = (Operand((seen.size, heads[1], hd), t, cache, role="state")
            for t in (dtype, v_dtype or dtype))  # fmt: skip
    q = Operand((n_tok, heads[0], hd), data=lambda rng, shape: rng.standard_normal(shape))
    single = next((i for i, (n, _) in enumerate(seqs) if n > 1), len(seqs))
    sink = Operand(heads[:1], data=lambda rng, n: sinks * rng.standard_normal(n), role="weight")
    return Case(
        (q, k, v, Operand((n_tok,), "i32", where if pos is None else pos),
         Operand((n_tok,), "i32", np.repeat(np.arange(len(seqs)), [n for n, _ in seqs])),
         Operand(table.shape, "i32", table), *([sink] if sinks else [])),
        {"scale": hd**-0.5, "n_single": single if told else 0, **params},
    )  # fmt: skip


def run(gpu: Any, c: Case) -> np.ndarray:
    return run_on(gpu, build_case(op_spec("attention"), c, np.random.default_rng(1)))


def check(gpu: Any, c: Case) -> None:
    built = build_case(op_spec("attention"), c, np.random.default_rng(1))
    names = {s.dtype for s in c.srcs[1:3]}  # type: ignore[union-attr]
    assert nmse(run_on(gpu, built), built.expected) <= max(EXACT[t] for t in names)


SHAPES = [((8, 2), 128), ((8, 2), 64), ((6, 2), 128), ((7, 7), 64), ((32, 1), 64), ((20, 2), 64)]
# What attention_decode.cu takes beside these.
SINGLE = [((8, 4), 256), ((16, 2), 256), ((5, 5), 96), ((8, 2), 96)]
OPTIONS: list[dict[str, Any]] = [
    {}, {"window": 100}, {"softcap": 3.0}, {"max_bias": 8.0},
    {"window": 333, "softcap": 5.0, "max_bias": 4.0}, {"sinks": 4.0},
    {"window": 128, "softcap": 5.0, "sinks": 4.0},
]  # fmt: skip
RNG = np.random.default_rng(11)
MANY: dict[str, Seqs] = {
    "two": [(1, 40), (1, 900)],
    "singles": [(1, int(n)) for n in RNG.integers(0, 1500, 40)],
    "few others": [(1, 70), (1, 640), (3, 500), (2, 0), (4, 127)],
    "singles and chunks": [*[(1, int(n)) for n in RNG.integers(0, 700, 9)], (70, 0), (5, 300),
                           (1, 200), (130, 411), (64, 64)],
    "short chunks": [(int(n), 100) for n in RNG.integers(1, 9, 60)],
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_tok, past", [(1, 0), (1, 126), (3, 127), (2, 1500), (11, 700)])
@pytest.mark.parametrize("heads, hd", SHAPES)
def test_decode(
    gpu: Any, heads: tuple[int, int], hd: int, n_tok: int, past: int, options: dict[str, Any]
) -> None:
    check(gpu, case([(n_tok, past)], heads, hd, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_tok, past", [(65, 0), (130, 0), (128, 61), (300, 411)])
@pytest.mark.parametrize("heads, hd", SHAPES)
def test_prefill(
    gpu: Any, heads: tuple[int, int], hd: int, n_tok: int, past: int, options: dict[str, Any]
) -> None:
    check(gpu, case([(n_tok, past)], heads, hd, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("heads, hd", SHAPES)
def test_many_sequences(
    gpu: Any, heads: tuple[int, int], hd: int, name: str, options: dict[str, Any]
) -> None:
    check(gpu, case(MANY[name], heads, hd, dirty=True, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("heads, hd", [*SINGLE, ((64, 8), 64), ((10, 1), 64), ((20, 1), 128)])
def test_single_tokens_of_other_heads(gpu: Any, heads: tuple[int, int], hd: int, name: str) -> None:
    for options in OPTIONS if name != "singles" else [{}]:  # the oracle takes seconds for these
        check(gpu, case(MANY[name], heads, hd, dirty=True, **options))
    for past in (0, 126, 600, 3000):
        check(gpu, case([(1, past)], heads, hd, dirty=True, sinks=2.0))


@pytest.mark.gpu
def test_launches_beside_each_other_have_room_of_their_own(gpu: Any) -> None:
    check(gpu, case([(1, 5000), (1, 7000), (9, 6000), (3, 8000)], (4, 2), 64))


@pytest.mark.gpu
@pytest.mark.parametrize("n", [4, 64, 128, 300])
def test_many_sequences_of_an_8b_model(gpu: Any, n: int) -> None:
    check(gpu, case([(1, 200 + i % 90) for i in range(n)]))
    check(gpu, case([(1, 64)] * n, entries=200))
    check(gpu, case([*[(1, 100 + i) for i in range(n)], (150, 0), (90, 300), (200, 50)]))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize(
    "n_tok, past, hd", [(1, 900, 128), (4, 300, 64), (70, 200, 64), (97, 0, 128)]
)
def test_other_types(gpu: Any, dtype: str, n_tok: int, past: int, hd: int) -> None:
    check(gpu, case([(n_tok, past)], (8, 2), hd, dtype))
    check(gpu, case([(1, 90), (1, 300), (n_tok, past)], (8, 2), hd, dtype, window=250))
    check(gpu, case([(1, 90), (1, 300), (1, past)], (8, 2), 2 * hd, dtype, sinks=2.0))


@pytest.mark.gpu
@pytest.mark.parametrize("types", [("f16", "q8_0"), ("q8_0", "f16"), ("f32", "q8_0")], ids=str)
@pytest.mark.parametrize("name", MANY)
def test_keys_of_another_type_than_values(gpu: Any, types: tuple[str, str], name: str) -> None:
    check(gpu, case(MANY[name], (8, 2), 64, types[0], v_dtype=types[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("hd", [80, 96, 256])
@pytest.mark.parametrize("n_tok", [1, 70])
def test_other_head_sizes(gpu: Any, hd: int, n_tok: int) -> None:
    check(gpu, case([(n_tok, 500)], (4, 2), hd))
    check(gpu, case([(1, 30), (1, 400), (n_tok, 130)], (4, 2), hd, dirty=True, window=120))


@pytest.mark.gpu
def test_a_long_context(gpu: Any) -> None:
    check(gpu, case([(1, 8191)], (8, 2)))
    check(gpu, case([(1, 20_000)], (4, 4), 64, "q8_0"))
    check(gpu, case([(2, 40_000)], (2, 1), 64))
    check(gpu, case([(1, 9000), (1, 3), (1, 20_000)], (4, 2), 64))


@pytest.mark.gpu
@pytest.mark.parametrize("n_tok", [5, 90])
def test_any_order_of_positions_and_padding(gpu: Any, n_tok: int) -> None:
    pos = np.random.default_rng(5).integers(-1, 600, n_tok)
    pos[1] = -1
    check(gpu, case([(n_tok, 600)], (8, 2), pos=pos))
    nothing = case([(n_tok, 600)], (8, 2), pos=np.full(n_tok, -1), dirty=True)
    assert not run(gpu, nothing).any()


@pytest.mark.gpu
@pytest.mark.parametrize("heads, hd", [((8, 2), 128), ((4, 2), 96)])
def test_padding_of_single_tokens_and_of_chunks(gpu: Any, heads: tuple[int, int], hd: int) -> None:
    seqs: Seqs = [*[(1, 300 + i) for i in range(12)], (100, 0), (60, 90)]
    where = np.concatenate([np.arange(past, past + n) for n, past in seqs])
    where[[0, 5, 6, 11]] = where[-30:] = where[60:70] = -1
    c = case(seqs, heads, hd, pos=where)
    check(gpu, c)
    assert not run(gpu, c)[where < 0].any()
    # What pads a batch belongs to no sequence.
    seq = np.where(where < 0, -1, c.srcs[4].data)  # type: ignore[union-attr]
    srcs = (*c.srcs[:4], Operand(seq.shape, "i32", seq), c.srcs[5])
    assert run(gpu, Case(srcs, c.params)).tobytes() == run(gpu, c).tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["singles", "singles and chunks"])
def test_shared_beginnings(gpu: Any, name: str) -> None:
    check(gpu, case(MANY[name], (8, 2), shared=3))


@pytest.mark.gpu
def test_a_page_missing_in_the_middle_is_not_seen(gpu: Any) -> None:
    for seqs in ([(1, 400), (1, 70)], [(3, 400)], [(90, 320)]):
        for hd in (64, 80):
            c = case(seqs, (8, 2), hd)
            table = np.array(c.srcs[5].data)  # type: ignore[union-attr]
            table[0, [1, 4]] = -1
            check(gpu, Case((*c.srcs[:5], Operand(table.shape, "i32", table)), c.params))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    "seqs", [[(1, 0)], [(1, 400)], [(3, 97)], [(100, 230)], MANY["singles and chunks"]], ids=str
)
def test_rows_that_nobody_sees_may_hold_anything(gpu: Any, dtype: str, seqs: Seqs) -> None:
    for window in (0, 90):
        clean, dirty = (
            run(gpu, case(seqs, (8, 2), 64, dtype, dirty=d, window=window)) for d in (False, True)
        )
        assert np.isfinite(dirty).all()
        assert clean.tobytes() == dirty.tobytes()


def part(c: Case, tokens: slice, **params: Any) -> Case:
    """Only these tokens of a case."""
    q, k, v, pos, seq, table, *sinks = c.srcs
    assert q and pos and seq
    values = np.random.default_rng(2).standard_normal(q.shape).astype(np.float32)[tokens]
    some = [Operand((len(values),), "i32", np.asarray(o.data)[tokens]) for o in (pos, seq)]
    srcs = (Operand(values.shape, data=values), k, v, *some, table, *sinks)
    return Case(srcs, {**c.params, **params})


def run_part(gpu: Any, c: Case, tokens: slice, **params: Any) -> np.ndarray:
    """Runs of parts see the same cache: queries are drawn apart from it."""
    return run(gpu, part(c, tokens, **params))


@pytest.mark.gpu
@pytest.mark.parametrize("heads, hd", [((32, 8), 128), ((8, 2), 64), ((20, 2), 64), *SINGLE])
@pytest.mark.parametrize("options", [{}, {"window": 200, "sinks": 2.0}], ids=str)
def test_a_single_token_has_the_same_bits_in_every_batch(
    gpu: Any, heads: tuple[int, int], hd: int, options: dict[str, Any]
) -> None:
    c = case([(1, int(n)) for n in RNG.integers(0, 3000, 24)], heads, hd, **options)
    whole = run_part(gpu, c, slice(None), n_single=24)
    for begin, end in [(0, 1), (3, 4), (4, 9), (9, 24), (23, 24)]:
        found = run_part(gpu, c, slice(begin, end), n_single=end - begin)
        assert found.tobytes() == whole[begin:end].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("window", [0, 200])
def test_a_prompts_token_has_the_same_bits_in_every_batch(gpu: Any, window: int) -> None:
    c = case([(100, 0), (70, 333), (90, 60), (300, 1700)], (8, 2), 64, window=window)
    whole = run_part(gpu, c, slice(None))
    cuts = [(0, 100), (50, 200), (100, 170), (170, 560), (98, 103), (0, 1), (300, 316), (559, 560)]
    for begin, end in cuts:
        found = run_part(gpu, c, slice(begin, end))
        assert found.tobytes() == whole[begin:end].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("heads, hd", [((32, 8), 128), ((4, 2), 96)])
def test_a_prompt_has_the_same_bits_however_it_is_cut(
    gpu: Any, heads: tuple[int, int], hd: int
) -> None:
    c = case([(700, 1300)], heads, hd)
    whole = run_part(gpu, c, slice(None))
    for step in (1, 7, 64, 200, 512):
        for begin in range(0, 700, 10 * step):
            found = run_part(gpu, c, slice(begin, begin + step))
            assert found.tobytes() == whole[begin : begin + step].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("heads, hd", [((32, 8), 128), ((8, 2), 64), ((4, 2), 96), ((8, 4), 256)])
def test_single_tokens_and_prompts_beside_each_other_keep_their_bits(
    gpu: Any, heads: tuple[int, int], hd: int
) -> None:
    c = case([*[(1, 300 * i) for i in range(9)], (150, 0), (5, 900), (80, 1900)], heads, hd)
    both = run_part(gpu, c, slice(None), n_single=9)
    alone = [
        *(run_part(gpu, c, slice(i, i + 1), n_single=1) for i in range(9)),
        *(run_part(gpu, c, slice(*s), n_single=0) for s in ((9, 159), (159, 164), (164, 244))),
    ]
    assert np.concatenate(alone).tobytes() == both.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_the_batch_changes_only_rounding(gpu: Any, dtype: str) -> None:
    c = case([(37, 150), (1, 80), (20, 0)], (8, 2), 64, dtype)
    whole = run_part(gpu, c, slice(None))
    for begin in range(0, 58, 5):
        found = run_part(gpu, c, slice(begin, begin + 5))
        assert nmse(found, whole[begin : begin + 5]) < (1e-12 if dtype == "f32" else 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["singles", "singles and chunks"])
def test_how_many_are_single_changes_only_rounding(gpu: Any, name: str) -> None:
    told, untold = (run(gpu, case(MANY[name], (8, 2), 64, told=t)) for t in (True, False))
    assert nmse(told, untold) < 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize(
    "seqs, dtype",
    [([(1, 3000)], "f16"), ([(1, 3000)], "f32"), ([(6, 3000)], "q8_0"), ([(200, 3000)], "f16"),
     ([(1, 100 * i) for i in range(30)], "f16"), (MANY["singles and chunks"], "f16")],
)  # fmt: skip
def test_every_run_gives_the_same_bits(gpu: Any, seqs: Seqs, dtype: str) -> None:
    built = build_case(
        op_spec("attention"), case(seqs, (8, 2), 64, dtype), np.random.default_rng(1)
    )
    assert len(results_of_runs(gpu, built, 20)) == 1


# -- plans, without a GPU --------------------------------------------------------------------------


def planned(
    n_tok: int, n_ctx: int, heads: tuple[int, int], hd: int, t: str = "f16", single: int = 0
) -> list[Launch]:
    g, dtype = Graph(), dtype_by_name(t)
    q, pos, seq = (
        g.input("q", F32, (n_tok, heads[0], hd)),
        *(g.input(i, I32, (n_tok,)) for i in "ps"),
    )
    kv = [g.state(name, dtype, (n_ctx, heads[1], hd)) for name in "kv"]
    table = g.input("t", I32, (max(single, 1), n_ctx // PAGE))
    node = g.attention(q, *kv, pos, seq, table, scale=1.0, n_single=single)
    launches = [x for x in launches_of(node) if isinstance(x, Launch)]
    splits = {"attention_decode.cu": 1, "attention.cu": 2}
    for launch in launches:
        axis = splits.get(launch.kernel.source)
        if axis is not None and launch.grid[axis] > 1:
            blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
            assert attention.scratch_bytes(node, DEVICE) >= 4 * blocks * (hd + 2)
    return launches


def test_one_token_shares_the_cache_among_all_multiprocessors() -> None:
    (one,) = planned(1, 8192, (32, 8), 128, single=1)
    assert (one.kernel.entry, one.grid) == ("attention_decode<f16, f16, 128, 1>", (8, 16, 1))
    assert planned(1, 320, (32, 8), 128, single=1)[0].grid == (8, 3, 1)
    (wide,) = planned(1, 8192, (40, 2), 128, single=1)  # two tiles of at most 16 heads
    assert (wide.kernel.entry, wide.grid) == ("attention_decode<f16, f16, 128, 2>", (2, 33, 2))


def test_a_decoding_block_fits_beside_another_kernels() -> None:
    for t in ("f16", "q8_0"):
        for single in (1, 64):
            (launch,) = planned(single, 8192, (32, 8), 128, t, single)
            assert launch.shared <= (72 if single == 1 else 100) << 10


@pytest.mark.parametrize("hd, t", [(96, "f16"), (96, "bf16"), (256, "f16"), (256, "q8_0")])
def test_single_tokens_of_heads_that_prompts_have_no_tiles_for(hd: int, t: str) -> None:
    name = {"q8_0": "block_q8_0"}.get(t, t)
    (one,) = planned(1, 8192, (8, 4), hd, t, 1)
    assert one.kernel.entry == f"attention_decode<{name}, {name}, {hd}, 1>"
    chunks, listed = planned(70, 2048, (8, 4), hd, t, 4)
    assert listed.kernel.entry == f"attention_decode_listed<{name}, {name}, {hd}, 1>"
    assert chunks.kernel.source == "attention.cu"
    # attention.cu lets the next launch in before its own wait.
    assert not beside(chunks) and not beside(listed)
    assert all(map(beside, planned(70, 2048, (8, 4), 128, t, 4)))


def beside(launch: Launch) -> bool:
    """Whether it runs beside another, as kernels are told."""
    at = 7 * TENSOR + 72
    return bool(np.frombuffer(launch.args[at : at + 4], np.int32)[0])


def test_heads_of_96_in_q8_0_and_groups_too_large_run_in_float() -> None:
    for heads, hd, t in (((8, 4), 96, "q8_0"), ((32, 2), 256, "f16")):
        for n in (1, 5):
            (launch,) = planned(n, 2048, heads, hd, t, n)
            assert launch.kernel.source == "attention.cu"


def test_prompts_are_tiles_of_rows() -> None:
    (many,) = planned(512, 512, (32, 8), 64, "q8_0")
    assert many.kernel.entry == "attention_prefill<block_q8_0, block_q8_0, 64, 128>"
    assert many.grid == (8, 16, 1)


def test_few_rows_of_prompts_are_shared_among_multiprocessors() -> None:
    for n, tiles in ((2, 1), (16, 1), (17, 2), (64, 4)):
        (few,) = planned(n, 8192, (32, 8), 128)
        assert few.kernel.entry == "attention_prefill_few<f16, f16, 128, 128>"
        assert few.grid == (8, tiles + 1, 4)  # 2048 keys each
    (deep,) = planned(64, 1 << 20, (32, 8), 128)
    assert deep.grid == (8, 4 + 1, 1)  # the parts would take too much room


@pytest.mark.parametrize("hd, t", [(80, "f16"), (128, "f32"), (256, "bf16")])
def test_what_tensor_cores_do_not_take_runs_in_float(hd: int, t: str) -> None:
    for n, grid in ((1, (16, 1, 8)), (512, (16, 512, 1))):
        (launch,) = planned(n, 4096, (16, 8), hd, t)
        assert (launch.kernel.source, launch.grid) == ("attention.cu", grid)
        # How a token's keys are cut is the same whatever the grid is.
        numbers = 7 * TENSOR + 20  # after the tensors and what the op is told
        assert np.frombuffer(launch.args[numbers : numbers + 4], np.int32) == 8


def test_single_tokens_are_a_list_for_two_blocks_a_multiprocessor() -> None:
    (listed,) = planned(128, 8192, (32, 8), 128, single=128)
    assert listed.kernel.entry == "attention_decode_listed<f16, f16, 128, 1>"
    assert listed.grid == (2 * DEVICE.sm_count, 1, 1)
    (wide,) = planned(128, 8192, (40, 2), 128, single=128)  # two tiles of 16 rows a token
    assert wide.kernel.entry == "attention_decode_listed<f16, f16, 128, 2>"
    assert wide.grid == (DEVICE.sm_count, 1, 1)
    assert planned(2, 128, (4, 1), 64, single=2)[0].grid == (2, 1, 1)
    assert [x.kernel.entry[:23] for x in planned(600, 512, (8, 2), 64, single=600)] == [
        "attention_decode_listed"
    ] * 3


@pytest.mark.parametrize("n_chunk", [3, 448])
def test_a_launch_has_the_tokens_of_its_kind(n_chunk: int) -> None:
    chunks, singles = planned(64 + n_chunk, 2048, (32, 8), 128, single=64)
    assert singles.kernel.entry.startswith("attention_decode_listed<")
    assert chunks.kernel.entry.startswith("attention_prefill")
    for i, rows, nbytes in ((0, 2, 32 * 128 * 4), (1, 2, 32 * 128 * 4), (4, 0, 4), (5, 0, 4)):
        first, second = (
            np.frombuffer(x.args[i * TENSOR : (i + 1) * TENSOR], np.int64)
            for x in (singles, chunks)
        )
        assert second[0] - first[0] == 64 * nbytes
        assert (first[1 + rows], second[1 + rows]) == (64, n_chunk)
