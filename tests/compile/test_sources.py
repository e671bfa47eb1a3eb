"""What CMakeLists.txt takes for granted of the kernels' sources."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "kernels/cpu").glob("*.cpp"))
OURS = re.compile(r"__(AVX512BF16|AMX_\w+)__")


@cache
def text_of(path: Path) -> str:
    """A file's lines and those of all that it includes of ours."""
    seen, left = dict[Path, str](), [path]
    while left:
        file = left.pop()
        if file not in seen:
            seen[file] = file.read_text()
            for name in re.findall(r'^#include "(.+)"', seen[file], re.M):
                places = [ROOT / "kernels" / name, file.parent / name]
                left += [next(p for p in places if p.is_file())]
    return "\n".join(seen.values())


def sources_matching(name: str) -> set[Path]:
    """Of the pattern by which CMakeLists.txt takes a list out of all sources."""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    found = re.search(rf'list\(FILTER {name} INCLUDE REGEX "(.+)"\)', cmake)
    assert found
    return {p for p in SOURCES if re.search(found[1].replace(r"\\", "\\"), p.as_posix())}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_objects_are_shared_where_instruction_sets_make_no_difference(path: Path) -> None:
    """Sources that ask whether there is BF16 or AMX are compiled once for each library."""
    asks = set(OURS.findall(text_of(path)))
    if path in sources_matching("OF_BF16"):
        assert "AVX512BF16" in asks
    else:
        assert "AVX512BF16" not in asks
        assert (path in sources_matching("PACKED")) == bool(asks)
