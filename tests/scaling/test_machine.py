"""Constants of machines: presets, files, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguflow.engine.scaling import PRESETS, MachineError, find_machine

GOOD = json.loads(PRESETS["h200"].json())


def test_a_file_says_what_the_preset_says(tmp_path: Path) -> None:
    for name, m in PRESETS.items():
        (tmp_path / "m.json").write_text(m.json())
        assert find_machine(str(tmp_path / "m.json")) == m == find_machine(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"read_gbs": 0}, "read_gbs: expected a number above 0"),
        ({"read_gbs": "fast"}, "read_gbs: expected a number above 0"),
        ({"read_gbs": float("nan")}, "read_gbs: expected a number above 0"),
        ({"read_gbs": True}, "read_gbs: expected a number above 0"),
        ({"hop_us": -1}, "hop_us: expected a number from 0 on"),
        ({"speed": 1}, "speed: no constant of a machine"),
        ({"name": 3}, "name: expected a text"),
        ({"exchange": [1, 2]}, r"exchange: expected a list of \[bytes, us\]"),
        ({"exchange": [[2, 1], [1, 2]]}, "exchange: bytes must rise"),
        ({"exchange": [[1, 2], [2, 1]]}, "exchange: bytes must rise, and times must not fall"),
    ],
)
def test_a_bad_constant_is_named(changes: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    with pytest.raises(MachineError, match=message) as e:
        find_machine(str(path))
    assert str(path) in str(e.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({k: v for k, v in GOOD.items() if k != "f16_tflops"}))
    with pytest.raises(MachineError, match="f16_tflops: missing"):
        find_machine(str(path))
    for text in ("", "[]", "{", "[" * 5000):
        path.write_text(text)
        with pytest.raises(MachineError, match=r"not JSON|expected a JSON object"):
            find_machine(str(path))
    with pytest.raises(LookupError, match="no such file, and no machine of that name; there are"):
        find_machine(str(tmp_path / "none.json"))
