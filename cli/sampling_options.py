"""Arguments of samplers: llama.cpp's names and meaning."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from .options_values import real, whole

if TYPE_CHECKING:
    from gguflow.engine.sampling import SamplerSettings

# --sampler-seq's letters.
LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
    "m": "min_p", "x": "xtc", "t": "temperature",
}  # fmt: skip
DEFAULT_BREAKERS = ("\n", ":", '"', "*")


def sampler_names(text: str) -> tuple[str, ...]:
    """Converter for names joined by semicolons; the settings check them."""
    return tuple(name.strip().lower() for name in text.split(";") if name.strip())


def sampler_letters(text: str) -> tuple[str, ...]:
    """Converter for a letter a sampler."""
    for letter in text:
        if letter not in LETTERS:
            known = ", ".join(f"{k} ({v})" for k, v in LETTERS.items())
            raise ArgumentTypeError(f"{text}: no sampler is called {letter!r}; there are {known}")
    return tuple(LETTERS[letter] for letter in text)


def bias(text: str) -> tuple[int, float]:
    """Converter for TOKEN_ID+BIAS or TOKEN_ID-BIAS; `-inf` bans the token."""
    for sign in "+-":
        token, found, value = text.partition(sign)
        if found and token.isdigit():
            try:
                amount = float(value)
            except ValueError:
                break
            if amount == amount and (sign == "-" or amount < float("inf")):
                return int(token), amount if sign == "+" else -amount
            break
    raise ArgumentTypeError(f"{text}: expected TOKEN_ID+BIAS or TOKEN_ID-BIAS")


def add_sampling(p: ArgumentParser) -> None:
    """Sampler settings; their ranges are checked by `sampler_settings`."""
    g = p.add_argument_group("sampling")

    def number(flags: str, default: float, text: str, what: type | None = None) -> None:
        convert = real if what is None else whole(-1)
        g.add_argument(
            *flags.split(), type=convert, default=default, metavar="N",
            help=f"{text} (default {default:g})",
        )  # fmt: skip

    g.add_argument(
        "-s",
        "--seed",
        type=whole(-1, (1 << 63) - 1),
        default=-1,
        metavar="N",
        help="-1 for a random one (default)",
    )
    g.add_argument(
        "--samplers",
        type=sampler_names,
        metavar="LIST",
        help="which run and in which order, joined by ';' (default: penalties;dry;top_n_sigma;"
        "top_k;typ_p;top_p;min_p;xtc;temperature)",
    )
    g.add_argument(
        "--sampler-seq",
        "--sampling-seq",
        dest="samplers",
        type=sampler_letters,
        metavar="LETTERS",
        help="the same, a letter each (default edskypmxt)",
    )
    number("--temp --temperature", 0.8, "temperature; 0 takes the most likely token")
    g.add_argument(
        "--top-k",
        type=whole(-1, (1 << 24) - 1),
        default=40,
        metavar="N",
        help="0 to turn off (default 40)",
    )
    number("--top-p", 0.95, "1 to turn off")
    number("--min-p", 0.05, "0 to turn off")
    number("--top-n-sigma --top-nsigma", -1.0, "deviations from the largest logit; -1 to turn off")
    number("--xtc-probability", 0.0, "0 to turn off")
    number("--xtc-threshold", 0.1, "above 0.5 to turn off")
    number("--typical --typical-p", 1.0, "1 to turn off")
    number("--repeat-last-n", 64, "tokens the penalties look back at; 0 to turn off, -1: all", int)
    number("--repeat-penalty", 1.0, "1 to turn off")
    number("--presence-penalty", 0.0, "0 to turn off")
    number("--frequency-penalty", 0.0, "0 to turn off")
    number("--dry-multiplier", 0.0, "0 to turn off")
    number("--dry-base", 1.75, "of the penalty, by the length of what is repeated")
    number("--dry-allowed-length", 2, "tokens that may be repeated", int)
    number("--dry-penalty-last-n", -1, "tokens looked back at; 0 to turn off, -1: all", int)
    g.add_argument(
        "--dry-sequence-breaker",
        action="append",
        metavar="TEXT",
        help="ends what counts as repeated, instead of the usual ones; 'none' for none "
        r"(default \n : \" *)",
    )
    number("--dynatemp-range", 0.0, "the temperature by entropy, so far around --temp")
    number("--dynatemp-exp", 1.0, "exponent of the entropy for it")
    g.add_argument(
        "--mirostat",
        type=whole(0, 2),
        default=0,
        metavar="N",
        help="1 or 2: mirostat and temperature in place of the other samplers (default 0)",
    )
    number("--mirostat-lr", 0.1, "its learning rate, eta")
    number("--mirostat-ent", 5.0, "the entropy it aims at, tau")
    g.add_argument(
        "-l",
        "--logit-bias",
        type=bias,
        action="append",
        default=[],
        metavar="TOKEN_ID(+/-)BIAS",
        help="makes a token more or less likely: 15043+1, 15043-1; 15043-inf bans it",
    )
    g.add_argument("--ignore-eos", action="store_true", help="go on after end-of-text tokens")


def sampler_settings(args: Namespace) -> SamplerSettings:
    """`SamplerSettings` from add_sampling's arguments. Raises SamplerError naming the field."""
    from gguflow.engine.sampling import SAMPLERS, SamplerSettings

    breakers = args.dry_sequence_breaker
    if breakers is None:
        breakers = DEFAULT_BREAKERS
    elif "none" in breakers:
        breakers = ()
    return SamplerSettings(
        temperature=args.temp,
        top_k=max(0, args.top_k),
        top_p=args.top_p,
        min_p=args.min_p,
        repeat_penalty=args.repeat_penalty,
        repeat_last_n=args.repeat_last_n,
        seed=None if args.seed == -1 else args.seed,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        typical_p=args.typical,
        top_n_sigma=args.top_n_sigma,
        xtc_probability=args.xtc_probability,
        xtc_threshold=args.xtc_threshold,
        dry_multiplier=args.dry_multiplier,
        dry_base=args.dry_base,
        dry_allowed_length=max(0, args.dry_allowed_length),
        dry_penalty_last_n=args.dry_penalty_last_n,
        dry_sequence_breakers=breakers,
        dynatemp_range=args.dynatemp_range,
        dynatemp_exponent=args.dynatemp_exp,
        mirostat=args.mirostat,
        mirostat_tau=args.mirostat_ent,
        mirostat_eta=args.mirostat_lr,
        samplers=SAMPLERS if args.samplers is None else args.samplers,
    )
