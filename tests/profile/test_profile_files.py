"""Exports: valid in their format, true to the rows, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, fields, replace

import pytest
from known_plan import HOST_US, NATIVE_US, PEAKS, clock_reads, plan

from gguflow.engine.profile import (
    OpRow,
    Profile,
    ProfileFileError,
    ProfilePathError,
    check_path,
    load_jsonl,
    write_profile,
)
from gguflow.engine.profile.export import EXPORTS

FIELDS = [
    "name", "op", "step", "phase", "segment", "index", "backend", "kernel", "shapes", "types",
    "bytes", "flops", "start_us", "us", "gbs", "gflops", "share",
]  # fmt: skip


@pytest.fixture
def two_backends() -> Profile:
    profile = Profile("two", peaks={"cpu": PEAKS})
    rows = [*plan("cuda"), *plan("cpu")]
    rows = [replace(r, segment=i // 13, index=i % 13) for i, r in enumerate(rows)]
    profile.add_step("decode", 1, tuple(rows), clock_reads([2.0] * 26), 60_000)
    return profile


# -- JSON lines ------------------------------------------------------------------------------------


def test_jsonl_lines(make_profile, tmp_path):
    path = write_profile(make_profile(2), tmp_path / "p.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["header"] + ["step"] * 3 + ["op"] * 3 * 14
    header, step, op = lines[0], lines[1], lines[6]
    assert (header["model"], header["threads"]) == ("tiny", 2)
    assert header["peaks"] == {"cpu": asdict(PEAKS)}
    assert (step["wall_us"], step["host_us"]) == (NATIVE_US + HOST_US, HOST_US)
    assert [k for k in op if k != "kind"] == FIELDS == [f.name for f in fields(OpRow)]
    assert (op["name"], op["us"], op["shapes"][0]) == ("blk.0.attn.q", 10, [1, 8])


def test_jsonl_round_trip(make_profile, tmp_path):
    profile = make_profile(4)
    dump = load_jsonl(write_profile(profile, tmp_path / "p.jsonl"))
    assert dump.header == profile.header
    for read, made in zip(dump.steps, profile.steps, strict=True):
        assert asdict(read) == pytest.approx(asdict(made), abs=1e-3)
    for read, made in zip(dump.rows(), profile.rows(), strict=True):
        assert (read.name, read.shapes, read.types) == (made.name, made.shapes, made.types)
        assert (read.bytes, read.flops, read.phase) == (made.bytes, made.flops, made.phase)
        assert read.us == pytest.approx(made.us, abs=1e-3)
        assert read.share == (None if made.share is None else pytest.approx(made.share, abs=1e-4))
    again = write_profile(dump, tmp_path / "again.jsonl")
    assert again.read_text() == (tmp_path / "p.jsonl").read_text()
    assert [r.step for r in dump.rows({1})] == [1] * 14


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (1, lambda o: o | {"kind": "op"}, r":1: kind is 'op', expected \"header\""),
        (1, lambda o: o | {"format": 9}, r":1: format 9, this version reads 1"),
        (1, lambda o: o | {"peaks": {"cpu": 3}}, r":1: field 'peaks.cpu' is not an object"),
        (2, lambda o: o | {"kind": "stop"}, r":2: kind is 'stop'"),
        (3, lambda o: {"kind": "op"}, r":3: field 'name' is missing"),
        (3, lambda o: o | {"us": "fast"}, r":3: field 'us' is 'fast', expected"),
        (3, lambda o: o | {"bytes": True}, r":3: field 'bytes' is True, expected int"),
        (3, lambda o: o | {"us": float("nan")}, r":3: not a line of JSON"),
        (3, lambda o: o | {"shapes": [3]}, r":3: field 'shapes' is \[3\]"),
        (3, lambda o: o | {"types": ["f32"]}, r":3: field 'types' is \['f32'\]"),
        (3, lambda o: o | {"step": 7}, r"host is of decode step 7, which has no line"),
        (3, lambda o: [1], r":3: list, expected a JSON object"),
    ],
)
def test_jsonl_that_is_wrong_says_where(make_profile, tmp_path, line, change, message):
    path = write_profile(make_profile(1, n_prefill=0), tmp_path / "p.jsonl")
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps(change(json.loads(lines[line - 1])))
    path.write_text("\n".join(lines))
    with pytest.raises(ProfileFileError, match=message) as e:
        load_jsonl(path)
    assert str(path) in str(e.value) and "\n" not in str(e.value)


def test_files_that_are_no_dump(tmp_path):
    with pytest.raises(ProfileFileError, match="No such file"):
        load_jsonl(tmp_path / "absent.jsonl")
    with pytest.raises(ProfileFileError, match="directory"):
        load_jsonl(tmp_path)
    for content, message in [
        (b"", "empty"),
        (b"GGUF\x03\x00\xff\xfe", "no UTF-8 text"),
        (b"hello\n", ":1: not a line of JSON"),
    ]:
        (tmp_path / "x.jsonl").write_bytes(content)
        with pytest.raises(ProfileFileError, match=message):
            load_jsonl(tmp_path / "x.jsonl")


# -- Chrome trace ----------------------------------------------------------------------------------


def test_chrome_trace(two_backends, tmp_path):
    trace = json.loads(write_profile(two_backends, tmp_path / "p.json").read_text())
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "gguflow two", 2: "cuda", 3: "cpu"}
    tracks = {
        (names[e["pid"]], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert tracks[("cpu", 1)] == "segments" and tracks[("cpu", 2)] == "ops"
    spans = [e for e in events if e["ph"] == "X"]
    ops = [e for e in spans if tracks[(names[e["pid"]], e["tid"])] == "ops"]
    assert len(ops) == 26 and all(e["dur"] == 2 for e in ops)
    q = ops[1]
    assert (q["name"], q["cat"]) == ("blk.0.attn.q", "mul_mat")
    assert q["args"]["shapes"] == "f32[1, 8] <- q4_0[1, 8] <- f32[1, 8]"
    assert (q["args"]["bytes"], q["args"]["flops"]) == (50_000, 80_000)
    segments = [e for e in spans if e["name"].startswith("segment")]
    assert [(names[e["pid"]], e["dur"], e["args"]["ops"]) for e in segments] == [
        ("cuda", 26, 13),
        ("cpu", 26, 13),
    ]
    step = next(e for e in spans if e["name"] == "decode 0")
    assert step["dur"] == 60
    # Everything lies within its step, on the nanosecond.
    for e in spans:
        assert e["ts"] >= step["ts"] - 1e-3
        assert e["ts"] + e["dur"] <= step["ts"] + step["dur"] + 2e-3


def test_chrome_trace_tells_repeated_segments_apart(make_profile, tmp_path):
    trace = json.loads(write_profile(make_profile(5), tmp_path / "p.json").read_text())
    segments = [e for e in trace["traceEvents"] if e["name"] == "segment 0"]
    assert [e["args"]["step"] for e in segments] == list(range(6))
    assert all(e["dur"] == pytest.approx(NATIVE_US, abs=2e-3) for e in segments)


# -- all formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "json", "html"])
def test_an_empty_profile_can_be_written(tmp_path, ending):
    path = write_profile(Profile("none"), tmp_path / f"p.{ending}")
    assert "none" in path.read_text()


@pytest.mark.parametrize("ending", ["JSONL", "Json", "HTML"])
def test_endings_in_capitals(make_profile, tmp_path, ending):
    assert write_profile(make_profile(1), tmp_path / f"p.{ending}").stat().st_size > 0


# -- where it goes ---------------------------------------------------------------------------------


def test_bad_paths_are_found_before_any_work(tmp_path):
    assert check_path(str(tmp_path / "ok.html")) == tmp_path / "ok.html"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    for path in ("p.csv", "p", ".json", "p.json.gz"):
        with pytest.raises(ProfilePathError, match=r"\.jsonl .* \.json .* \.html"):
            check_path(tmp_path / path)
    (tmp_path / "d.json").mkdir()
    with pytest.raises(ProfilePathError, match="it is a directory"):
        check_path(tmp_path / "d.json")
    with pytest.raises(ProfilePathError, match=f"no directory {tmp_path}/absent"):
        check_path(tmp_path / "absent" / "p.json")
    with pytest.raises(ProfilePathError, match="cannot write a profile to /proc/p.json"):
        check_path("/proc/p.json")


def test_a_failed_export_leaves_what_was_there(make_profile, tmp_path, monkeypatch):
    path = tmp_path / "p.jsonl"
    path.write_text("precious")

    def full(recording, out):
        out.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(EXPORTS, ".jsonl", full)
    with pytest.raises(ProfilePathError, match=r"p\.jsonl: No space left on device"):
        write_profile(make_profile(1), path)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["p.jsonl"]


def test_permissions_are_those_of_any_new_file(make_profile, tmp_path):
    (tmp_path / "other").touch()
    path = write_profile(make_profile(1), tmp_path / "p.html")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)
