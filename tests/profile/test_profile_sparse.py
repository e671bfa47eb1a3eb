"""Sparse layers in a profile: halves, their overlap, and what was active."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from gguflow.engine.profile import (
    ActivityRow,
    PlanRow,
    Profile,
    ProfileFileError,
    load_jsonl,
    print_sparse_table,
    write_profile,
)
from gguflow.engine.profile.sparse import is_sparse, layer_times

BASE = 10**15
# name -> start and end in microseconds
SPANS = {
    "blk.0.attn.q": (0, 10),
    "blk.0.ffn.predict": (10, 12),
    "blk.0.ffn.predict_fc1": (12, 13),
    "blk.0.ffn.hot": (13, 20),
    "blk.0.ffn.cold": (14, 30),
    "blk.0.ffn.merge": (30, 31),
    "blk.1.ffn.hot_gate": (31, 35),
    "blk.1.ffn.hot": (35, 40),
    "blk.1.ffn.cold_gate": (34, 38),
    "blk.1.ffn.cold": (38, 39),
    "blk.2.ffn.sparse": (40, 47),
    "blk.3.ffn.down": (47, 50),
}


def sparse_profile(n_decode: int = 3) -> Profile:
    def row(name: str) -> PlanRow:
        return PlanRow(name, "sparse_ffn", "cpu", "k", ((1, 8),), ("f32",), 0, 0)

    rows = tuple(row(name) for name in SPANS)
    spans = BASE + 1000 * np.array(list(SPANS.values()), np.int64)
    profile = Profile("relu", threads=2)
    profile.add_step("prefill", 4, rows, spans, 60_000)
    for i in range(n_decode):
        profile.add_step("decode", 1, rows, spans, 60_000, n_past=4 + i)
    profile.activity += [
        ActivityRow("blk.0", 7, 0.1, 0.2, 0.95),
        ActivityRow("blk.1", 7, 0.3, 0.3, 0.75),
        ActivityRow("blk.2", 7, 0.0, 0.1, None),
    ]
    return profile


def test_halves_and_their_overlap() -> None:
    found = {t.layer: t for t in layer_times(sparse_profile(), "decode")}
    assert list(found) == ["blk.0", "blk.1", "blk.2"]  # blk.3 is dense
    a, b, c = found.values()
    assert (a.predict, a.hot, a.cold) == pytest.approx((0.009, 0.021, 0.048))
    assert a.overlap == pytest.approx(0.018)  # 14 to 20, three times
    assert (b.hot, b.cold, b.overlap) == pytest.approx((0.027, 0.015, 0.015))
    assert (c.predict, c.hot, c.cold, c.overlap) == pytest.approx((0, 0, 0.021, 0))


def test_rows_side_by_side_keep_the_wall_time() -> None:
    profile = sparse_profile(1)
    step = profile.steps[1]
    assert (step.wall_us, step.host_us) == (60, 10)
    rows = [r for r in profile.rows({1}) if r.op != "host"]
    assert [r.us for r in rows] == [end - start for start, end in SPANS.values()]
    last = max(r.start_us + r.us for r in rows)
    assert last == pytest.approx(step.start_us + step.wall_us)


def text_of(profile: Profile, phase: str | None = None) -> str:
    out = io.StringIO()
    print_sparse_table(profile, Console(file=out, width=120), phase)
    return out.getvalue()


def test_the_table() -> None:
    text = text_of(sparse_profile())
    assert text.count("sparse layers") == 2
    line = next(x for x in text.splitlines() if "blk.0" in x and "20.0" in x)
    cells = [c.strip() for c in line.strip("│ ").split("│")]
    assert cells == ["blk.0", "10.0", "20.0", "95.0", "0.00", "0.01", "0.02", "0.01"]
    total = [x for x in text_of(sparse_profile(), "decode").splitlines() if "total" in x]
    # 0.1 x 0.95 + 0.3 x 0.75 of 0.4
    assert len(total) == 1 and "80.0" in total[0] and "13.3" in total[0]


def test_a_dense_profile_has_none(make_profile) -> None:
    assert not is_sparse(make_profile(2)) and is_sparse(sparse_profile())
    assert "No sparse layers" in text_of(make_profile(2))


def test_activity_survives_a_file(tmp_path) -> None:
    profile = sparse_profile()
    path = write_profile(profile, tmp_path / "p.jsonl")
    back = load_jsonl(path)
    assert back.activity == profile.activity
    assert text_of(back) == text_of(profile)  # type: ignore[arg-type]
    lines = path.read_text().replace('"recall":0.95', '"recall":"x"')
    path.write_text(lines)
    with pytest.raises(ProfileFileError, match=r"p.jsonl:2: field 'recall' is 'x'"):
        load_jsonl(path)
