"""The cost model beside what was measured: a table for docs/scaling.md.

    python bench/scaling_check.py

One card and two CPU threads: figures of README.md, by the commands that stand there. Two cards:
`bench/cards.py`, see docs/scaling.md. "fitted": constants of `engine/scaling/machine.py` were taken
from this row; "form": it was in view when the sum of bytes and operations was chosen over their
maximum. All others are forecasts.
"""

from __future__ import annotations

import argparse

from gguflow.engine.load.random import random_model
from gguflow.engine.scaling import PRESETS, Question, forecast

# machine, shape, cards, test, sequences, measured, what it was used for
Row = tuple[str, str, int, str, int, float, str]
MEASURED: list[Row] = [
    ("h200", "llama3-8b:Q4_0", 1, "tg", 1, 594, "fitted"),
    ("h200", "llama3-8b:Q4_0", 1, "pp512", 1, 30821, "fitted"),
    ("h200", "llama3-8b:Q4_0", 1, "tg", 4, 1890, "fitted"),
    ("h200", "llama3-8b:Q4_0", 1, "tg", 16, 5199, "fitted"),
    ("h200", "llama3-8b:Q4_0", 1, "tg", 64, 13201, "fitted"),
    ("h200", "llama3-8b:F16", 1, "tg", 1, 243, "fitted"),
    ("h200", "llama3-8b:F16", 1, "pp512", 1, 34730, "fitted"),
    ("h200", "llama3-8b:F16", 1, "tg", 4, 922, "fitted"),
    ("h200", "llama3-8b:F16", 1, "tg", 16, 3434, "fitted"),
    ("h200", "llama3-8b:F16", 1, "tg", 64, 11985, "fitted"),
    ("h200", "llama3-8b:F16", 1, "tg", 128, 18311, "fitted"),
    ("h200", "llama3-8b:Q8_0", 1, "tg", 1, 416, ""),
    ("h200", "llama3-8b:Q8_0", 1, "pp512", 1, 27137, ""),
    ("h200", "llama3-8b:Q4_K_M", 1, "tg", 1, 546, ""),
    ("h200", "llama3-8b:Q4_K_M", 1, "pp512", 1, 26369, ""),
    ("h200", "llama3-8b:Q4_K_M", 1, "tg@8192", 1, 428, ""),
    ("h200", "llama3.2-1b:Q4_0", 1, "tg", 1, 2050, ""),
    ("h200", "llama3.2-1b:Q4_0", 1, "pp512", 1, 143877, ""),
    ("h200", "llama3-70b-10l:Q4_0", 1, "tg", 1, 614, "fitted"),
    ("h200", "llama3-70b-10l:F16", 1, "tg", 1, 208, "fitted"),
    ("h200", "llama3-70b-10l:F16", 1, "pp512", 1, 35654, "fitted"),
    ("h200", "llama3-70b:Q4_0", 1, "tg", 1, 88.7, "fitted"),
    ("h200", "llama3-70b:Q4_0", 1, "pp512", 1, 3835, "fitted"),
    ("h200", "llama3-70b:Q4_0", 1, "tg", 16, 756.6, "fitted"),
    ("h200", "llama3-70b:Q4_0", 1, "tg", 64, 2105, "fitted"),
    ("h200", "llama3-70b:Q4_0", 1, "tg", 128, 2952, "fitted"),
    ("h200", "llama3-70b:Q8_0", 1, "tg", 1, 54.0, ""),
    ("h200", "llama3-70b:Q8_0", 1, "pp512", 1, 2946, ""),
    ("h200", "llama3-70b:Q8_0", 1, "tg", 16, 691.9, ""),
    ("h200", "llama3-70b:Q8_0", 1, "tg", 64, 1610, ""),
    ("h200", "llama3-70b:Q8_0", 1, "tg", 128, 2359, ""),
    ("h200", "llama3-8b:Q4_0", 2, "tg", 1, 753, "fitted"),
    ("h200", "llama3-8b:Q4_0", 2, "tg", 16, 7195, "fitted"),
    ("h200", "llama3-8b:Q4_0", 2, "tg", 64, 17445, "fitted"),
    ("h200", "llama3-8b:F16", 2, "tg", 1, 400, "fitted"),
    ("h200", "llama3-8b:F16", 2, "pp512", 1, 49253, "fitted"),
    ("h200", "llama3-8b:F16", 2, "tg", 16, 5475, "fitted"),
    ("h200", "llama3-8b:F16", 2, "tg", 64, 18725, "fitted"),
    ("h200", "llama3-8b:F16", 2, "tg", 128, 28545, "fitted"),
    ("h200", "llama3-70b-10l:Q4_0", 2, "tg", 1, 993.5, ""),
    ("h200", "llama3-70b-10l:F16", 2, "tg", 1, 381.7, ""),
    ("h200", "llama3-70b-10l:F16", 2, "pp512", 1, 58332, ""),
    ("h200", "llama3-70b:F16", 2, "tg", 1, 54.3, ""),
    ("h200", "llama3-70b:F16", 2, "pp512", 1, 7174, ""),
    ("h200", "llama3-70b:Q4_0", 2, "tg", 1, 142.2, ""),
    ("h200", "llama3-70b:Q4_0", 2, "pp512", 1, 5720, ""),
    ("h200", "llama3-70b:Q4_0", 2, "tg", 16, 1245, ""),
    ("h200", "llama3-70b:Q4_0", 2, "tg", 64, 3488, ""),
    ("h200", "llama3-70b:Q4_0", 2, "tg", 128, 4929, ""),
    ("zen4-2c", "tinyllama-1.1b:Q4_0", 1, "tg", 1, 54.3, ""),
    ("zen4-2c", "tinyllama-1.1b:Q4_0", 1, "pp128", 1, 312.2, "fitted"),
    ("zen4-2c", "tinyllama-1.1b:Q4_0", 1, "tg", 4, 142, "form"),
    ("zen4-2c", "tinyllama-1.1b:Q4_0", 1, "tg", 8, 167, "form"),
    ("zen4-2c", "tinyllama-1.1b:Q8_0", 1, "tg", 1, 29.9, ""),
    ("zen4-2c", "tinyllama-1.1b:Q8_0", 1, "pp128", 1, 295.4, ""),
    ("zen4-2c", "tinyllama-1.1b:Q4_K_M", 1, "tg", 1, 45.2, ""),
    ("zen4-2c", "tinyllama-1.1b:Q4_K_M", 1, "pp128", 1, 271.5, ""),
    ("zen4-2c", "tinyllama-1.1b:F16", 1, "tg", 1, 14.9, ""),
    ("zen4-2c", "tinyllama-1.1b:F16", 1, "pp128", 1, 99.3, "fitted"),
]


def forecasts(name: str, shape: str, cards: int, rows: list[Row]) -> dict[tuple[str, int], float]:
    """Tokens a second by test and sequences. Depths are the middle of what was measured."""
    found = {}
    gpu = name == "h200"
    for depth in sorted({_depth(test, n, gpu) for *_, test, n, _, _ in rows}):
        mine = [r for r in rows if _depth(r[3], r[4], gpu) == depth]
        prompt = max((int(r[3][2:]) for r in mine if r[3].startswith("pp")), default=0)
        question = Question(
            cards=(cards,), sequences=sorted({r[4] for r in mine}), n_prompt=prompt, n_depth=depth
        )
        for r in forecast(random_model(shape), PRESETS[name], question)[0]:
            found[r.test, r.sequences, depth] = r.speed
    return {(r[3], r[4]): found[r[3].split("@")[0], r[4], _depth(r[3], r[4], gpu)] for r in rows}


def _depth(test: str, n: int, gpu: bool) -> int:
    """Tokens in the context: 128 tokens are generated after none, or after prompts of 128 with
    several sequences; on the CPU 24 after none, 32 after 32."""
    if "@" in test:
        return int(test.partition("@")[2]) + 16
    if gpu:
        return 64 if n == 1 else 192
    return 12 if n == 1 else 48


def _round(speed: float) -> float:
    return round(speed) if speed >= 100 else round(speed, 1)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    print("| machine | model | cards | test | sequences | measured | model says | error | |")
    print("|---|---|---|---|---|---|---|---|---|")
    groups = dict.fromkeys(row[:3] for row in MEASURED)
    errors = []
    for group in groups:
        rows = [r for r in MEASURED if r[:3] == group]
        said = forecasts(*group, rows)
        for name, shape, cards, test, n, measured, used in rows:
            speed = said[test, n]
            error = speed / measured - 1
            errors += [] if used else [abs(error)]
            cells = [name, shape, cards, test, n, f"{measured:,}", f"{_round(speed):,}"]
            print(f"| {' | '.join(map(str, cells))} | {error:+.0%} | {used} |")
    print(f"\nof {len(errors)} forecasts: {sum(errors) / len(errors):.0%} on average, "
          f"{max(errors):.0%} at most")  # fmt: skip


if __name__ == "__main__":
    main()
