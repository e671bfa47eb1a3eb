"""Grammars that are small and become very large are refused, by the names of their rules, before
llguidance takes minutes and gigabytes for them."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest

pytest.importorskip("llguidance", reason="llguidance is missing: pip install 'gguflow[dev]'")

from gguflow.cli.load import bundled_model
from gguflow.engine.constraints import forms
from gguflow.engine.constraints.error import ConstraintRefused
from gguflow.engine.constraints.vocabulary import Vocabulary
from gguflow.models.tokenizer import Tokenizer

HUGE = "(a{1000}){1000}"
PARTS, CHARACTERS = "a pattern of more than 5000 parts", "more than 50000 characters, written out"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    tokenizer = Tokenizer.load(bundled_model())
    return Vocabulary(tokenizer, tokenizer.n_vocab)


def schema(**fields: object) -> str:
    return "start: b\nb: %json " + json.dumps(fields, indent=1)


@pytest.mark.parametrize(("text", "said"), [
    (f"start: /{HUGE}/", f"start: {PARTS}"),
    (f"start: A\nA: /x/ | /\\/{HUGE}/i", f"A: {PARTS}"),
    (f"start: A\n%ignore /{HUGE}/\nA: /x/", f"%ignore: {PARTS}"),
    ("start: A\nA: /( a{1000} ) {1000}/x", f"A: {PARTS}"),
    (f"start: b\nb[stop=/{HUGE}/]: /x/", f"b: {PARTS}"),
    (f"start: %lark {{\n c: d\n d: /{HUGE}/\n}}", f"d: {PARTS}"),
    (schema(type="string", pattern=HUGE), f"b: {PARTS}"),
    (schema(patternProperties={HUGE: {"items": {}}}), f"b: {PARTS}"),
    (schema(**{"x-guidance": {"whitespace_pattern": HUGE}}), f"b: {PARTS}"),
    ('start: A\nA: ("x" "y"){1,100000}', f"A: {CHARACTERS}"),
    ('start: A~100000\nA: ("x" "y") ~ 300 .. 100000', f"A: {CHARACTERS}"),
    ('start: A\nA: B{ 300 } "x"\nB: (("x"){300,} | ["y"])', f"A: {CHARACTERS}"),
    ("start: A\nA: B B\n" + "".join(f"{b}: {c} {c} {c} {c}\n" for b, c in zip(
        "BCDEFGHIJK", "CDEFGHIJKL", strict=True)) + 'L: "x"', f"D: {CHARACTERS}"),
    ('start: b\nb[lazy]: ("x"{99999} "y")', f"b: {CHARACTERS}"),
    ('start: %lark # { \n { c: A\nA: ("x" "y"){99999}\n }', f"A: {CHARACTERS}"),
    ('start: "a"\n%ignore ("x" "y"){99999}', f"%ignore: {CHARACTERS}"),
    ("start: %json {", "line 1: no JSON after %json"),
    ("start: %json " + "[" * 100_000, "line 1: no JSON after %json"),
    ("start: %json " + "[" * 100 + "]" * 100, "start: more than 64 levels"),
    ("start: a\n$", "no Lark grammar: line 2: '$'"),
    ("#" * 500_001, "the grammar is larger than 500000 characters"),
])  # fmt: skip
def test_lark_that_becomes_very_large_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConstraintRefused) as error:
        forms.lark(text, "grammar")
    assert str(error.value) == f"grammar: {said}"
    with pytest.raises(ConstraintRefused):
        forms.gbnf("start: zzz\n" + text if "start:" not in text else text, "grammar")


@pytest.mark.parametrize(("text", "said"), [
    ('root ::= a a\na ::= b{1,1000}\nb ::= "xyz"{1,1000}', f"A: {CHARACTERS}"),
    ("root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(20_000)),
     "more than 1000 rules"),
    ("root", "no GBNF grammar: Expected ::= at line 1, 'root' ^ ''"),
])  # fmt: skip
def test_gbnf_that_becomes_very_large_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConstraintRefused) as error:
        forms.gbnf(text, "grammar")
    assert str(error.value) == f"grammar: {said}"


@pytest.mark.parametrize("text", [
    f'start: A // "/{HUGE}/\nA: "/{HUGE}/" | "\\"" # ("x"{{99999}})',
    'start: A\nA: "%json {" "x"{3} | /[\\/"]\\/#x/ B?\nB: (A2 | "\\x41")~2\nA2: "y" .. "z"',
    'start: b{1,100000}\nb: "x" "y"',  # rules are not written out
    'start: A\nA: "x"{49999}',
    'start: A | B\nA: "' + "x" * 200_000 + '" B\nB: "y"{2}',  # only large
    'start: b <[3-4]> %json {"type": "string", "pattern": "a/#x{2}"} c\nb[max_tokens=3]: /x+/\n'
    'c: A{,3}\nA: B{2,}\nB: "y"',
    '%llguidance {"no_forcing": true}\nstart: %lark { start: A\n A: "x"\n } A\nA: "y"{,}\n',
    '%import common.INT\nstart: INT %regex { "substring_chars": "a[b(" } | "ü\\n"i\n\n| "x"',
])  # fmt: skip
def test_what_does_not_is_followed(vocabulary: Vocabulary, text: str) -> None:
    vocabulary.check(forms.lark(text, "grammar"))


def test_large_choices_are_followed(vocabulary: Vocabulary) -> None:
    vocabulary.check(forms.choice(["/(a{9999}){9999}/", "\x7f" * 100_000], "choices"))


@pytest.mark.parametrize("text", [
    "\n" * 200_000, "root ::= " + "#\n" * 100_000, "start: " + "( " * 200_000,
    'start: A\nA: "' + '\\"' * 200_000, "start: /" + "\\/" * 200_000, "start: " + "A " * 200_000,
    "start: A\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(20_000)),
])  # fmt: skip
def test_it_takes_no_longer_than_a_grammar_is_long(text: str) -> None:
    """Each of these has a hundred thousand places from which a search could go to its end."""
    began = time.process_time()
    with suppress(ConstraintRefused):
        forms.gbnf(text, "grammar")
    assert time.process_time() - began < 10
