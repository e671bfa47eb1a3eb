"""Rows for cards and machines, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguflow.cli.main import main
from gguflow.engine.load.random import random_model
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.scaling import PRESETS, Forecast, Question, forecast
from gguflow.engine.scaling.plans import Plans

SHAPE = "tinyllama-1.1b:F16"


def rows(shape: str = SHAPE, **question) -> list[Forecast]:
    return forecast(random_model(shape), PRESETS["h200"], Question(**question))[0]


def test_layers_are_cut_as_the_engine_cuts_them() -> None:
    """The bytes of the fullest of n cards are those of the engine's own plan of a layer split."""
    from gguflow.engine.compile.shares import shares

    source = random_model(SHAPE)
    for n in (2, 3, 4):
        names = tuple(f"null:{k}" for k in range(n))
        options = Options(n_ctx=256, backends=names[:1], devices=names)
        plan = Model(source, options).plan(PlanKey(1, 0, 1, 1, True))
        most = max(b.weights + b.states for b in plan.bytes_by_space().values())
        found = Plans(source, 1, 256, 1).bytes_needed(shares(23, (1.0,) * n), 1)
        assert most <= found < most + (2 << 20)


def test_stages_in_turn_make_room_and_not_speed() -> None:
    one, two = (rows(cards=(n,), split="layer", n_prompt=2048) for n in (1, 2))
    of = {(r.how, r.test): r for r in two}
    for r in one:
        turn, over = of["layer, in turn", r.test], of["layer, overlapped", r.test]
        assert 0.95 * r.speed < turn.speed < r.speed and turn.bubbles >= 0.5
        assert turn.gib < 0.6 * r.gib
        assert over.speed >= turn.speed
    pp = of["layer, overlapped", "pp2048"]
    assert pp.speed > 1.4 * one[0].speed  # four pieces over two stages: 8/5 but for attention
    assert 0.15 < pp.bubbles < 0.3


def test_machines() -> None:
    found = rows(machines=(1, 4), sequences=(1, 8), n_prompt=128)
    of = {(r.machines, r.how, r.test, r.sequences): r.speed for r in found}
    assert of[4, "replicas", "tg", 8] == pytest.approx(4 * of[1, "one card", "tg", 8])
    # A token crosses the wire four times, 570 us each.
    took = 1 / of[4, "pipeline, in turn", "tg", 1] - 1 / of[1, "one card", "tg", 1]
    assert took == pytest.approx(4 * 570e-6, rel=0.01)
    assert of[4, "pipeline, overlapped", "tg", 8] > of[4, "pipeline, in turn", "tg", 8]
    served = next(r for r in found if r.test == "served")
    assert served.first is not None and 0 < served.first[0] <= served.first[1]
    assert 0 < served.speed < of[4, "replicas", "tg", 8]


def test_more_stages_than_layers_are_no_row() -> None:
    assert all("pipeline" not in r.how for r in rows(machines=(64,), n_prompt=0))
    with pytest.raises(OptionError, match="cards 24: 22 layers and the output"):
        rows(cards=(24,), split="layer")
    with pytest.raises(OptionError, match="cards 9: `split_mode=tensor` is for 8 devices"):
        rows(cards=(9,))


def test_what_does_not_fit_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--random", "llama3-70b-10l:F16", "--cards", "1,2", "-p", "0",
                 "--sequences", "2048", "-d", "2048"]) == 0  # fmt: skip
    out = capsys.readouterr().out.splitlines()
    assert "does not fit" in out[2] and "does not fit" not in out[3]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--random", SHAPE, "--json", "--cards", "2", "--wire-us", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["wire_us"] == 3 and "2 cards" in found["notes"][0]
    assert {r["test"] for r in found["rows"]} == {"pp512", "tg"}


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--cards", "16"], 2, "--cards 16: -sm tensor is for 8 devices at most"),
        (["--cards", "0"], 2, "--cards: 0: expected whole numbers from 1 to 64"),
        (["--machines", "x"], 2, "--machines: x: expected whole numbers"),
        (["--machine", "nope"], 2, "--machine nope: no such file, and no machine of that name"),
        (["--wire-us", "-1"], 2, "--wire-us -1: expected a number from 0 on"),
        (["--wire-gbs", "0"], 2, "--wire-gbs 0: expected a number above 0"),
        (["--random", "nope:F16"], 2, "--random nope:F16: "),
    ],
)
def test_bad_arguments(
    args: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", "-p", "0", *args]) == code
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_bad_file_of_constants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.json"
    path.write_text("{}")
    assert main(["scale", "--machine", str(path)]) == 3
    assert capsys.readouterr().err == f"gguflow: error: {path}: name: expected a text\n"
