"""Attention at the sizes of real models: split decoding, tiled prefill, many sequences, what the
kernels must not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import (
    MANY,
    OPTIONS,
    PROMPTS,
    RNG,
    SHAPES,
    SINGLE,
    Seqs,
    case,
    check,
    run,
    run_part,
)
from harness import build_case, nmse, results_of_runs
from sizes import SANITIZED, fewer

from gguflow.engine.graph import Case, Operand, op_spec
from gguflow.kernels.cuda import attention


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_tok, past", [(1, 0), (1, 126), (3, 127), (2, 1500), (11, 700)])
@pytest.mark.parametrize("heads, hd", [*SHAPES, *PROMPTS])
def test_decode(
    gpu: Any, heads: tuple[int, int], hd: int, n_tok: int, past: int, options: dict[str, Any]
) -> None:
    check(gpu, case([(n_tok, past)], heads, hd, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n_tok, past", [(65, 0), (130, 0), (128, 61), (300, 411), (257, 1)])
@pytest.mark.parametrize("heads, hd", [*SHAPES, *PROMPTS])
def test_prefill(
    gpu: Any, heads: tuple[int, int], hd: int, n_tok: int, past: int, options: dict[str, Any]
) -> None:
    if SANITIZED and n_tok > 250:
        n_tok, past = n_tok - 90, past // 2  # behind the widest window still
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
@pytest.mark.parametrize("name", ["few others", "singles and chunks", "short chunks"])
@pytest.mark.parametrize("heads, hd", PROMPTS)
def test_many_prompts_of_other_heads(gpu: Any, heads: tuple[int, int], hd: int, name: str) -> None:
    for options in OPTIONS:
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
@pytest.mark.parametrize("hd, keys", [(64, 64), (80, 64), (96, 64), (128, 64), (256, 32)])
def test_tiles_of_fewer_keys(gpu: Any, hd: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.TILES, hd, (attention.TILES[hd][0], (keys,)))
    for options in ({}, {"window": 333, "softcap": 5.0, "max_bias": 4.0}):
        for name in ("few others", "singles and chunks"):
            check(gpu, case(MANY[name], (8, 2), hd, dirty=True, **options))
    c = case([(300, 1700)], (4, 2), hd)
    whole = run_part(gpu, c, slice(None))
    assert run_part(gpu, c, slice(250, 300)).tobytes() == whole[250:].tobytes()


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
@pytest.mark.parametrize("dtype, hd", [("bf16", 80), ("bf16", 96), ("bf16", 256), ("bf16", 512),
                                       ("q8_0", 96), ("q8_0", 256), ("q8_0", 512)])  # fmt: skip
@pytest.mark.parametrize("n_tok, past", [(9, 300), (70, 200), (193, 0)])
def test_other_types_of_other_heads(gpu: Any, dtype: str, hd: int, n_tok: int, past: int) -> None:
    check(gpu, case([(n_tok, past)], (8, 2), hd, dtype))
    seqs: Seqs = [(1, 90), (1, 300), (n_tok, past)]
    dirty = dtype != "q8_0"  # which holds no NaN
    check(gpu, case(seqs, (6, 3), hd, dtype, dirty=dirty, window=70, sinks=2.0, softcap=4.0))


@pytest.mark.gpu
@pytest.mark.parametrize("types", [("f16", "q8_0"), ("q8_0", "f16"), ("f32", "q8_0")], ids=str)
@pytest.mark.parametrize("name", MANY)
def test_keys_of_another_type_than_values(gpu: Any, types: tuple[str, str], name: str) -> None:
    for hd in (64, 96, 256, 512):
        check(gpu, case(MANY[name], (8, 2), hd, types[0], v_dtype=types[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("hd", [72, 112, 192, 320])
@pytest.mark.parametrize("n_tok", [1, 70])
def test_other_head_sizes(gpu: Any, hd: int, n_tok: int) -> None:
    check(gpu, case([(n_tok, 500)], (4, 2), hd))
    check(gpu, case([(1, 30), (1, 400), (n_tok, 130)], (4, 2), hd, dirty=True, window=120))


@pytest.mark.gpu
def test_a_long_context(gpu: Any) -> None:
    check(gpu, case([(1, 8191)], (8, 2)))
    check(gpu, case([(1, 20_000)], (4, 4), 64, "q8_0"))
    for hd in (64, 80, 96, 256, 512):
        check(gpu, case([(2, 40_000)], (2, 1), hd))
        check(gpu, case([(70, 4060)], (2, 1), hd))
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
        for hd in (64, 80, 96, 256, 512):
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
    for window, hd in ((0, 64), (90, 64), (90, 96), (0, 256), (90, 512)):
        clean, dirty = (
            run(gpu, case(seqs, (8, 2), hd, dtype, dirty=d, window=window)) for d in (False, True)
        )
        assert np.isfinite(dirty).all()
        assert clean.tobytes() == dirty.tobytes()


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
@pytest.mark.parametrize("hd", [64, 80, 96, 256, 512])
def test_a_prompts_token_has_the_same_bits_in_every_batch(gpu: Any, hd: int, window: int) -> None:
    c = case([(100, 0), (70, 333), (90, 60), (300, 1700)], (8, 2), hd, window=window)
    whole = run_part(gpu, c, slice(None))
    cuts = [(0, 100), (50, 200), (100, 170), (170, 560), (98, 103), (0, 1), (300, 316), (559, 560)]
    for begin, end in cuts:
        found = run_part(gpu, c, slice(begin, end))
        assert found.tobytes() == whole[begin:end].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "heads, hd", [((32, 8), 128), ((4, 2), 96), ((3, 3), 80), ((4, 2), 256), ((4, 2), 512)]
)
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
@pytest.mark.parametrize(
    "heads, hd, dtype",
    [((32, 8), 128, "f16"), ((8, 2), 64, "f16"), ((4, 2), 96, "f16"), ((4, 2), 96, "q8_0"),
     ((8, 4), 256, "f16"), ((4, 4), 80, "f16"), ((32, 1), 256, "f16"),
     ((4, 2), 512, "bf16")],
)  # fmt: skip
def test_single_tokens_and_prompts_beside_each_other_keep_their_bits(
    gpu: Any, heads: tuple[int, int], hd: int, dtype: str
) -> None:
    seqs: Seqs = [*[(1, 300 * i) for i in range(9)], (150, 0), (5, 900), (80, 1900)]
    c = case(seqs, heads, hd, dtype)
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
    for hd in (64, 96, 256, 512):
        c = case(seqs, (8, 2), hd, dtype)
        built = build_case(op_spec("attention"), c, np.random.default_rng(1))
        assert len(results_of_runs(gpu, built, fewer(4, 20))) == 1
