"""The terminal table and the comparison of two runs."""

from __future__ import annotations

import io

import pytest
from known_plan import clock_reads, plan
from rich.console import Console

from gguflow.engine.profile import (
    PlanRow,
    Profile,
    diff,
    load_jsonl,
    print_diff,
    print_table,
    write_profile,
)


def _printed(show) -> str:
    out = io.StringIO()
    show(Console(file=out, width=120, color_system=None))
    return out.getvalue()


def _cells(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip("│┃ ").startswith(name))
    return [c.strip() for c in line.strip("│┃").split("│")]


def test_table_by_module(make_profile):
    text = _printed(lambda c: print_table(make_profile(10), c, by="module", phase="decode"))
    assert "decode: 10 steps, 10 tokens, 1.6 ms, 6,250.0 tokens/s" in text
    assert "prefill" not in text
    # 30 calls of 10 us in 1600 us, 50 kB and 80 kFLOP each, against 10 GB/s.
    assert _cells(text, "attn.q") == [
        "attn.q", "30", "0.30", "18.8", "10.0", "5.0", "8.0", "50 %",
    ]  # fmt: skip
    assert _cells(text, "host") == ["host", "10", "0.05", "3.1", "5.0", "—", "—", "—"]
    assert _cells(text, "total")[1:4] == ["140", "1.60", "100.0"]


def test_table_of_both_phases_and_its_limit(make_profile):
    text = _printed(lambda c: print_table(make_profile(2), c, by="layer", limit=2))
    assert text.index("prefill: 1 step, 32 tokens") < text.index("decode: 2 steps")
    assert "3 more" in text and "blk.2" not in text
    assert _cells(text, "total")[3] == "100.0"


def test_table_of_nothing_and_of_a_wrong_grouping(make_profile):
    assert "No profiled steps." in _printed(lambda c: print_table(Profile(), c))
    assert "No decode steps." in _printed(lambda c: print_table(make_profile(0), c, phase="decode"))
    with pytest.raises(ValueError, match="'color', expected one of op, module, layer"):
        print_table(Profile(), Console(file=io.StringIO()), by="color")


def test_names_are_not_taken_for_markup():
    profile = Profile()
    row = PlanRow("[red]x[/]", "[bold]y", "cpu", "k", ((1,),), ("f32",), 8, 8)
    profile.add_step("decode", 1, (row,), clock_reads([3.0]), 5_000)
    assert "[red]x[/]" in _printed(lambda c: print_table(profile, c, by="module"))
    assert "[red]x[/]" in _printed(lambda c: print_diff(Profile(), profile, c))


def test_diff_joins_by_name_and_phase(make_profile, tmp_path):
    before = load_jsonl(write_profile(make_profile(4), tmp_path / "a.jsonl"))
    after = make_profile(9, slower=2.0)
    rows = {(r.phase, r.name): r for r in diff(before, after)}
    assert len(rows) == 2 * 14
    row = rows["decode", "blk.1.ffn.down"]
    assert (row.before_us, row.after_us) == (pytest.approx(20), pytest.approx(40))
    assert row.delta_us == pytest.approx(20) and row.ratio == pytest.approx(2)
    assert rows["decode", "host"].delta_us == pytest.approx(0)
    decode = [r.delta_us for r in diff(before, after) if r.phase == "decode"]
    assert decode == sorted(decode, reverse=True)


def test_diff_of_names_in_one_run_only():
    a, b = Profile(), Profile()
    a.add_step("decode", 1, plan()[:2], clock_reads([1.0, 5.0]), 6_000)
    b.add_step("decode", 1, plan()[1:3], clock_reads([5.0, 9.0]), 14_000)
    rows = {r.name: r for r in diff(a, b)}
    assert rows["blk.0.attn.norm"].after_us is None and rows["blk.0.attn.norm"].delta_us == -1
    assert rows["blk.0.attn.out"].before_us is None and rows["blk.0.attn.out"].delta_us == 9
    assert rows["blk.0.attn.out"].ratio is None
    text = _printed(lambda c: print_diff(a, b, c))
    assert "gone" in text and "new" in text
    assert _cells(text, "whole step")[2:] == ["0.006", "0.014", "+0.008", "+133.3 %"]


def test_printed_diff_warns_of_different_batches(make_profile):
    a, b = make_profile(1), Profile()
    ends = clock_reads([1.0] * len(plan()))
    b.add_step("prefill", 64, plan(), ends, 20_000)
    text = _printed(lambda c: print_diff(a, b, c, limit=3))
    assert "32 tokens a step before, 64 after" in text
    assert "11 smaller changes not shown" in text
    assert "empty" in _printed(lambda c: print_diff(Profile(), Profile(), c))
