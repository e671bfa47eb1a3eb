"""How many cards a model should run on, by what is forecast for each number of them."""

from __future__ import annotations

from gguflow.engine.dataclass import replace
from gguflow.engine.load import ModelSource
from gguflow.engine.options import Options

from .forecast import Forecast, Question, forecast
from .machine import Machine

GAIN = 1.05  # that another card has to bring: forecasts are not better than that


def choose_cards(source: ModelSource, options: Options, most: int, m: Machine) -> tuple[int, str]:
    """Of up to `most` cards the number to use, and a line that says why. m: its memory_gib is a
    card's here.

    split_mode "tensor": the fewest with which `options.n_seqs` sequences are written fastest, each
    with half of its context. Any other: the fewest that have room, since layers that take turns get
    no faster. All of them where the model fits in none of these ways; what loads it has the figures
    then. Raises OptionError for a split that the engine refuses.
    """
    tensor = options.split_mode == "tensor"
    n_ctx = options.n_ctx or source.arch.hp.n_ctx_train
    q = Question(
        split="tensor" if tensor else "layer", sequences=(options.n_seqs,), n_prompt=0,
        n_depth=max(1, n_ctx // 2),
    )  # fmt: skip
    best: Forecast | None = None
    halves = {most, *(1 << i for i in range(most.bit_length()))}  # heads divide by those
    for cards in sorted(halves) if tensor else range(1, most + 1):
        row = forecast(source, m, replace(q, cards=(cards,)))[0][0]
        if row.fits and (best is None or (tensor and row.speed > GAIN * best.speed)):
            best = row
    if best is None:
        return most, f"{most} of {most} cards: the forecast has room on none of fewer"
    why = f"{best.speed:.0f} tokens/s forecast" if tensor else "the fewest with room"
    return best.cards, f"{best.cards} of {most} cards: {why}"
