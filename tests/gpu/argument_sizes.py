"""The bytes that launch files pack are as many as the structs have that kernels take: a source with
a line for each launch, which does not compile where they are not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kernel_list import all_launches

ARGUMENT = """
#include "cuda/{source}"
template <class>
struct Argument;
template <class A>
struct Argument<void (*)(A)> {{
  static constexpr int bytes = (sizeof(A) + 15) / 16 * 16;
}};
"""
CHECK = 'static_assert(Argument<decltype(&{entry})>::bytes == {nbytes}, "{entry}");\n'


@cache
def packed(source: str) -> set[tuple[str, int]]:
    """(entry, bytes to whole 16) of every launch of this source."""
    return {
        (x.kernel.entry, -(-x.n_argument_bytes // 16) * 16)
        for x in all_launches()
        if x.kernel.source == source
    }


def with_checks(path: Path, source: str, more: int = 0) -> Path:
    """Written to path: a source, and what is wanted of its kernels with so many bytes more."""
    checks = (CHECK.format(entry=entry, nbytes=n + more) for entry, n in sorted(packed(source)))
    path.write_text(ARGUMENT.format(source=source) + "".join(checks))
    return path
