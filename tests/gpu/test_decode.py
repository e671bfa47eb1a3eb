"""A decode step's launches joined into one kernel: which are, and that nothing changes by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode_plans import decode_step
from kernel_list import DEVICE
from tiny_model import write_tiny

from gguflow.engine.graph import F16, F32, dtype_by_name
from gguflow.engine.profile import Profile
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.session import Model
from gguflow.kernels.cuda.decode import SLOTS, STEP_BYTES, join_steps
from gguflow.kernels.cuda.launch import Launch

GREEDY = SamplerSettings(temperature=0.0)
# More than a chunk of columns, heads of 64, a group of two and an odd number of layers.
SIZES = {"n_embd": 2048, "n_head": 32, "n_head_kv": 16, "head_dim": 64, "n_ff": 4096,
         "n_layer": 3, "rope_dims": 64, "head_dim_v": 64}  # fmt: skip


def joined(shape: str, **options: Any) -> list[Launch]:
    ops = join_steps(decode_step(shape, **options), DEVICE)
    return [s for op in ops for s in op if isinstance(s, Launch) and s.steps > 1]


def test_all_layers_are_one_kernel() -> None:
    (launch,) = joined("llama3-8b:Q4_0")
    assert launch.kernel.entry == "decode<block_q4_0, block_q4_0, f16, f16, 128>"
    assert launch.steps == 5 * 32  # the head's type is its own
    assert launch.grid == (DEVICE.sm_count, 1, 1)
    assert len(launch.data) == launch.steps * STEP_BYTES
    assert launch.shared < DEVICE.shared_per_block
    (launch,) = joined("llama3-8b:Q8_0")
    assert launch.steps == 5 * 32 + 1
    (launch,) = joined("llama3-8b:Q4_K_M")
    assert launch.kernel.entry == "decode<block_q4_K, block_q6_K, f16, f16, 128>"


def test_the_ops_keep_their_places() -> None:
    before = decode_step("llama3.2-1b:Q4_0")
    after = join_steps(before, DEVICE)
    assert len(after) == len(before)
    at = next(i for i, op in enumerate(after) for s in op if isinstance(s, Launch) and s.steps > 1)
    n = after[at][0].steps  # type: ignore[union-attr]
    assert after[:at] == before[:at] and after[at + n :] == before[at + n :]
    assert all(op == [] for op in after[at + 1 : at + n])


def test_what_is_in_the_way_ends_a_run() -> None:
    # A cache in f32 has an attention of its own: what lies between two of them is joined.
    runs = joined("llama3.2-1b:Q4_0", cache_type=F32)
    assert [r.steps for r in runs] == [4] * 15 + [3]
    # Of several tokens only the last one goes on after the last layer's keys.
    assert [r.steps for r in joined("llama3.2-1b:Q4_0", n_tokens=2)] == [4]


def test_without_room_for_two_stages_nothing_is_joined() -> None:
    small = replace(DEVICE, shared_per_block=48 << 10)
    ops = decode_step("llama3-8b:Q8_0")
    assert join_steps(ops, small) == [list(op) for op in ops]


def test_a_step_in_shared_memory_is_not_replaced_while_it_is_read() -> None:
    """One slot is read, kAhead = 2 are asked from, and the next is on its way."""
    assert SLOTS == 4


# -- on the GPU -----------------------------------------------------------------------------------


def tokens(path: Path, n: int, joins: bool, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Greedy tokens and the last step's logits."""
    monkeypatch.setenv("GGUFLOW_CUDA_JOIN", str(int(joins)))
    model = Model.load(path, backends=("cuda", "numpy"), **options)
    session = model.new_session()
    found = list(session.generate([1, 5, 9, 33], n, GREEDY))
    last = session.step((7,), "last")[0][0].copy()
    names = {k for s in session.bound_plan(1, "last", True).segments for k in s.kernels}
    assert any(k.startswith("decode<") for k in names) is joins
    return found, last


@pytest.mark.gpu
@pytest.mark.parametrize(
    "weights, cache",
    [("q4_0", "f16"), ("q8_0", "q8_0"), ("q6_K", "f16"), ("f16", "f16"), ("bf16", "bf16"),
     ("q4_K", "f16"), ("q5_1", "f16")],
)  # fmt: skip
def test_joined_steps_give_the_same_bits(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, cache: str
) -> None:
    path = write_tiny(tmp_path / "m.gguf", seed=4, gain=2.0, dtype=weights, n_ctx_train=600,
                      **SIZES)  # fmt: skip
    types = {"k_type": dtype_by_name(cache), "v_type": dtype_by_name(cache)}
    apart = tokens(path, 300, False, monkeypatch, **types)
    for _ in range(2):
        together = tokens(path, 300, True, monkeypatch, **types)
        assert together[0] == apart[0]
        assert np.array_equal(together[1], apart[1])


@pytest.mark.gpu
def test_a_joined_step_times_every_op(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf", seed=4, gain=2.0, dtype="q4_0", n_ctx_train=64, **SIZES)
    model = Model.load(path, backends=("cuda", "numpy"), k_type=F16, v_type=F16)
    profile = Profile()
    session = model.new_session(profile)
    expected = list(model.new_session().generate([1, 5, 9], 12, GREEDY))
    assert list(session.generate([1, 5, 9], 12, GREEDY)) == expected
    rows = [r for r in profile.rows() if r.step > 2 and r.op != "host"]
    inside = [r for r in rows if r.kernel.startswith("decode<")]
    assert inside and all(0 < r.us < 1000 for r in inside)
