"""A picture of a comparison: perplexity and missed neurons against neurons skipped, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .evaluate import Result, total

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 70, 50, 60
PERPLEXITY, MISSED = "#1f5fa8", "#b3541e"
MOST = 3.0  # per cent; a point above it is outside the picture


def curve_svg(results: Sequence[Result], title: str) -> str:
    """The thresholds of a comparison (`evaluate.compare`) as one SVG document.

    Left scale, blue: perplexity above the dense run's, in per cent. Right scale, orange: share of
    the firing neurons that were skipped. The ringed point is the file's own threshold.
    """
    base = results[0].score.perplexity.value
    points = []
    for r in results:
        if r.counts:
            t = total(r.counts)
            rise = 100 * (r.score.perplexity.value / base - 1)
            points.append((100 * t.skipped_share, rise, 100 * (1 - t.recall), r.threshold is None))
    points.sort()
    quiet = [p for p in points if p[1] <= MOST]
    top = _nice(max([1.5, *(p[1] for p in quiet)]))
    low = min([0.0, *(p[1] for p in points)])
    most_missed = _nice(max([1.0, *(p[2] for p in quiet)]))
    first = 10 * math.floor(min([90.0, *(p[0] for p in points)]) / 10)

    def x(skipped: float) -> float:
        return LEFT + (skipped - first) / (100 - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float, least: float, most: float) -> float:
        return TOP + (most - value) / (most - least) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 24, title, "middle", "#222", 15),
        _text(WIDTH / 2, HEIGHT - 14, "neurons skipped, %", "middle"),
        _text(12, TOP - 14, "perplexity above dense, %", "start", PERPLEXITY),
        _text(WIDTH - 12, TOP - 14, "firing neurons missed, %", "end", MISSED),
    ]
    for value in range(first, 101, 10):
        out.append(_line(x(value), TOP, x(value), HEIGHT - BOTTOM))
        out.append(_text(x(value), HEIGHT - BOTTOM + 18, f"{value}", "middle"))
    for k in range(6):
        rise, missed = top * k / 5, most_missed * k / 5
        at = y(rise, low, top)
        out.append(_line(LEFT, at, WIDTH - RIGHT, at))
        out.append(_text(LEFT - 8, at + 4, f"{rise:.3g}", "end", PERPLEXITY))
        at = y(missed, low * most_missed / top, most_missed)
        out.append(_text(WIDTH - RIGHT + 8, at + 4, f"{missed:.3g}", "start", MISSED))
    limit = y(1.0, low, top)
    out.append(_line(LEFT, limit, WIDTH - RIGHT, limit, "#888", "6 4"))
    out.append(_text(LEFT + 6, limit - 5, "1 % above dense", "start", "#666"))
    for column, colour, least, most in (
        (2, MISSED, low * most_missed / top, most_missed),
        (1, PERPLEXITY, low, top),
    ):
        drawn = [(x(p[0]), y(p[column], least, most), p[3]) for p in quiet]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b, _ in drawn)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for a, b, own in drawn:
            out.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>')
            if own:
                out.append(
                    f'<circle cx="{a:.1f}" cy="{b:.1f}" r="8" fill="none" stroke="{colour}"/>'
                )
    return "\n".join([*out, "</svg>", ""])


def _nice(value: float) -> float:
    """The next round number at or above: 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10 times a power of ten."""
    unit = 10 ** math.floor(math.log10(value))
    steps = (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10)
    return unit * next(s for s in steps if value <= s * unit * (1 + 1e-9))


def _text(
    x: float, y: float, text: str, anchor: str, fill: str = "#444", size: int | None = None
) -> str:
    large = f' font-size="{size}"' if size else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}"{large}>'
        f"{escape(text)}</text>"
    )


def _line(
    x1: float, y1: float, x2: float, y2: float, stroke: str = "#e4e4e4", dash: str = ""
) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{dashes}/>'
    )
