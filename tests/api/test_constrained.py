"""Texts of a form from the Python API: every answer has it, and what cannot be had is refused by
name."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gguflow import ConstraintError, ConstraintRefused, GenerateOptions, Model, Piece
from gguflow.engine.constraints.patterns import parts

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is missing")
pytest.importorskip("llguidance", reason="llguidance is missing: pip install 'gguflow[dev]'")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "likes": {"type": "array", "items": {"enum": ["tea", "cake"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= ("cat" | "dog") " " [0-9] [0-9]'
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
CLOSED = "{% for m in messages %}{{ m.content }}{% endfor %}{# <think></think> #}"
HI = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(n_ctx=1024, n_threads=1)


def has_the_form(form: GenerateOptions, text: str) -> bool:
    if "json_schema" in form:
        jsonschema.validate(json.loads(text), form["json_schema"])
        return True
    if "choices" in form:
        assert form["choices"] is not None
        return text in form["choices"]
    pattern = form.get("regex") or "(cat|dog) [0-9][0-9]"
    return re.fullmatch(pattern, text) is not None


FORMS: list[GenerateOptions] = [
    {"json_schema": SCHEMA},
    {"grammar": GRAMMAR},
    {"regex": "[a-c]{2,5}-(x|y)"},
    {"choices": ["yes", "no", "I do not know", "ü\n🙂"]},
]
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda f: next(iter(f)))


def end(pieces: Sequence[Piece]) -> str | None:
    return pieces[-1].finish_reason


@each_form
def test_every_text_has_its_form(model: Model, form: GenerateOptions) -> None:
    for seed in range(6):
        pieces = list(model.generate("Once", 400, temperature=1.5, seed=seed, **form))
        assert has_the_form(form, "".join(pieces)) and end(pieces) == "stop"


@each_form
def test_many_and_streams_have_it_too(model: Model, form: GenerateOptions) -> None:
    texts = [""] * 3
    for i, piece in model.generate_many(["A", "The king", "A"], 400, seed=2, n_seqs=2, **form):
        texts[i] += piece
    assert all(has_the_form(form, t) for t in texts) and texts[0] == texts[2]

    async def read(prompt: str) -> str:
        return "".join([p async for p in model.astream(prompt, 400, seed=2, **form)])

    async def both() -> list[str]:
        return await asyncio.gather(read("A"), read("The king"))

    assert asyncio.run(both()) == texts[:2]
    assert "".join(model.generate("A", 400, seed=2, **form)) == texts[0]


class Begins:
    """Makes a model begin with a text, in whatever tokens: a `LogitsProcessor`."""

    def __init__(self, model: Model, text: str) -> None:
        self._tokens, self._text, self._n_prompt = model.vocabulary.tokens, text.encode(), -1

    def __call__(self, ids: Sequence[int], logits: NDArray[np.float32]) -> None:
        if self._n_prompt < 0:
            self._n_prompt = len(ids)
        said = b"".join(self._tokens[i] for i in ids[self._n_prompt :])
        if rest := self._text[len(said) :]:
            logits[[not t or not rest.startswith(t) for t in self._tokens]] = -np.inf


@each_form
@pytest.mark.parametrize(
    ("template", "thoughts"),
    [(OPENED, "Hm.</think>\n"), (CLOSED, "<think>Hm.</think>"), (CLOSED, ""), ("chatml", "")],
    ids=["opened", "begun", "unthought", "none"],
)
def test_the_content_of_an_answer_has_it(
    model: Model, form: GenerateOptions, template: str, thoughts: str
) -> None:
    for seed in range(3):
        begins = Begins(model, thoughts)
        pieces = list(
            model.chat(HI, 400, template=template, seed=seed, logits_processor=begins, **form)
        )
        message = pieces[-1].message
        assert message is not None and end(pieces) == "stop"
        assert has_the_form(form, message.content), message
        assert message.reasoning == ("Hm." if thoughts else "")


def test_tokens_that_run_out_say_length(model: Model) -> None:
    pieces = list(model.generate("Once", 3, json_schema=SCHEMA))
    assert end(pieces) == "length" and "".join(pieces).startswith("{")


def test_a_stop_string_within_the_form_says_length(model: Model) -> None:
    pieces = list(model.generate("Once", 50, regex="ab+c", stop="b"))
    assert ("".join(pieces), end(pieces)) == ("a", "length")
    pieces = list(model.generate("Once", 50, regex="(ab)?(cd)?x?ab", stop="ab"))
    assert end(pieces) == "length"
    pieces = list(model.generate("Once", 50, regex="abc?", stop="c", logit_bias={}))
    assert "".join(pieces) == "ab" and end(pieces) == "stop"


def test_own_processor_first_then_the_mask(model: Model) -> None:
    seen = []

    def likes_no(_: Sequence[int], logits: NDArray[np.float32]) -> None:
        seen.append(int(np.isneginf(logits).sum()))
        logits[:] = 0
        logits[model.tokenizer.encode("no", add_special=False)] = 9

    text = "".join(
        model.generate("A", 9, temperature=0, choices=["yes", "nn"], logits_processor=likes_no)
    )
    assert text in ("yes", "nn") and seen[0] == 0  # the mask comes after it

    def nothing(_: Sequence[int], logits: NDArray[np.float32]) -> None:
        logits[1:] = -np.inf

    with pytest.raises(ConstraintError, match=r"^choices: logits_processor forbids every token"):
        list(model.generate("A", 9, choices=["yes"], logits_processor=nothing))


class Person:
    """As pydantic's models have it."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                "additionalProperties": False}  # fmt: skip


def test_a_class_for_its_schema(model: Model) -> None:
    assert json.loads("".join(model.generate("A", 99, json_schema=Person)))["a"] in (1, 2)
    pydantic = pytest.importorskip("pydantic")
    config = pydantic.ConfigDict(extra="forbid")
    made = pydantic.create_model("Made", age=(pydantic.conint(ge=1, le=9), ...), __config__=config)
    text = "".join(model.generate("A", 99, json_schema=made))
    assert 1 <= made.model_validate_json(text).age <= 9


def test_any_json(model: Model) -> None:
    for seed in range(3):
        pieces = list(model.generate("A", 60, json_schema=True, seed=seed, temperature=1.5))
        if end(pieces) == "stop":
            json.loads("".join(pieces))


@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        ({"json_schema": {}, "regex": "a"}, ValueError, "regex: json_schema asks for a form"),
        ({"grammar": GRAMMAR, "choices": ["a"]}, ValueError, "choices: grammar asks for a form"),
        ({"json_schema": 5}, TypeError, "json_schema 5: expected a mapping"),
        ({"json_schema": "{}"}, TypeError, "json_schema '{}': expected a mapping"),
        ({"json_schema": {"enum": [object]}}, ConstraintRefused, "json_schema: no JSON"),
        ({"json_schema": {"type": "odd"}}, ConstraintRefused, "json_schema: "),
        ({"json_schema": False}, ConstraintRefused, "json_schema: .*false"),
        ({"json_schema": {"format": "odd"}}, ConstraintRefused, "json_schema: .*odd"),
        ({"grammar": 5}, TypeError, "grammar 5: expected a string"),
        ({"grammar": "root ::= ("}, ConstraintRefused, "grammar: no GBNF grammar"),
        ({"regex": b"a"}, TypeError, "regex b'a': expected a string"),
        ({"regex": "("}, ConstraintRefused, "regex: "),
        ({"choices": "yes"}, TypeError, "choices 'yes': expected a list of strings"),
        ({"choices": [1]}, TypeError, r"choices \[1\]: expected a list of strings"),
        ({"choices": []}, ValueError, "choices: an empty list"),
        ({"regex": "a", "stop_at_eog": False}, ValueError, "stop_at_eog: with regex a text ends"),
    ],
)
def test_what_cannot_be_had_is_refused(
    model: Model, form: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        model.generate("A", 5, **form)
    with pytest.raises(error, match=f"^{message}"):
        model.generate_many(["A"], 5, **form)

    async def first() -> None:
        async for _ in model.astream("A", 5, **form):
            break

    with pytest.raises(error, match=f"^{message}"):
        asyncio.run(first())
    if "stop_at_eog" not in form:
        with pytest.raises(error, match=f"^{message}"):
            model.chat(HI, 5, **form)


def test_None_asks_for_nothing(model: Model) -> None:
    plain = "".join(model.generate("A", 5, seed=1))
    none: GenerateOptions = {"json_schema": None, "grammar": None, "regex": None, "choices": None}
    assert "".join(model.generate("A", 5, seed=1, **none)) == plain


def test_the_package_is_named_and_not_looked_for_before() -> None:
    code = """
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llguidance":
            raise ModuleNotFoundError("No module named 'llguidance'", name="llguidance")
sys.meta_path.insert(0, No())
import gguflow
model = gguflow.Model.load(n_ctx=256, n_threads=1)
say = [{"role": "user", "content": "Hi"}]
tool = {"type": "function", "function": {"name": "f"}}
list(model.generate("A", 2))
list(model.chat(say, 2, tools=[tool]))
list(model.chat(say, 2, tools=[tool], tool_choice="none"))
for ask in (lambda: model.generate("A", 2, regex="a"),
            lambda: model.chat(say, 2, json_schema=True),
            lambda: model.chat(say, 2, tools=[tool], tool_choice="auto")):
    try:
        ask()
    except ImportError as e:
        print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        f"{name} needs llguidance: pip install 'gguflow[constraints]'"
        for name in ("regex", "json_schema", "tool_choice")
    ], done.stderr


def test_starting_does_not_import_it() -> None:
    code = "import sys, gguflow.engine.model; print('llguidance' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("pattern, n", [
    ("", 0), ("abc", 3), ("a{3}b", 4), ("(ab){10}", 20), ("^(a{1000}){1000}$", 10**6), ("a{2,}", 2),
    (r"[a-z\]]{5}x", 6), ("[]a]{2}", 2), (r"\({3}", 3), ("(a|b)*c?", 3), ("((a{1,9}){1,9})", 81),
    ("a{x}", 4), (")", 0), ("(", 0), ("[", 1), ("\\", 1),
])  # fmt: skip
def test_parts_of_a_pattern(pattern: str, n: int) -> None:
    assert parts(pattern) == n


def test_patterns_that_become_very_large_are_refused(model: Model) -> None:
    huge = "^(a{1000}){1000}$"
    for form in (
        {"regex": "(?ix)( a{1000} ) # twice\n { 1000 }"},
        {"json_schema": {"type": "string", "pattern": huge}},
        {"json_schema": {"type": "object", "properties": {"x": {"pattern": huge}}}},
        {"json_schema": {"type": "object", "patternProperties": {huge: {"type": "integer"}}}},
        {"regex": huge},
    ):
        with pytest.raises(ConstraintError, match="a pattern of more than 5000 parts"):
            model.generate("A", max_tokens=2, **form)
