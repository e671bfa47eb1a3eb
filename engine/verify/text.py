"""A model's text: whether its tokenizer gives back what it was given, and its chat template asks
the questions it was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .checks import Check

if TYPE_CHECKING:
    from gguflow.models.chat import ChatTemplate
    from gguflow.models.tokenizer import Tokenizer

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    " two  spaces,\ttabs\tand\n\nlines\r\n  indented",
    '3.14159 + 1234567890 = 0x7fff; f(x) -> {"key": [1, 2.5e-3]}',
    "Zażółć gęślą jaźń; Ünïcödé; naïve façade",
    "你好，世界。 こんにちは 안녕하세요 Здравствуйте مرحبا שלום नमस्ते",
    "👩‍👩‍👧‍👦 🇵🇱 e\u0301 \u200b\ufeff \u00a0",
    "def f(self, *args):\n    return [x ** 2 for x in args if x]\n",
    "<|im_start|> </s> [INST] are text unless they are asked to be tokens",
)
MARK = "a question nobody asked before: 4711"


def text_checks(
    metadata: Mapping[str, Any],
    tokenizer: Callable[[], Tokenizer],
    template: Callable[[Tokenizer], ChatTemplate],
) -> Iterator[Check]:
    """The tokenizer, then the template. Errors that they raise are failed checks."""
    try:
        t = tokenizer()
    except ValueError as e:
        yield Check("tokenizer", False, _line(e))
        return
    yield from _tokenizer(t)
    try:
        yield from _template(metadata, t, template(t))
    except ValueError as e:
        yield Check("template", False, _line(e))


def _line(e: Exception) -> str:
    return " ".join(str(e).split())


def _tokenizer(t: Tokenizer) -> Iterator[Check]:
    yield Check("tokenizer", None, f"{t.model}, {t.n_vocab:,} tokens")
    lost = []
    for text in TEXTS:
        ids = t.encode(text, add_special=False)
        if not all(0 <= i < t.n_vocab for i in ids):
            yield Check("token ids", False, f"{text!r} has ids beyond the vocabulary")
        if t.decode(ids, skip_special=False) != text:
            lost.append(repr(text[:24]))
    found = f"{len(TEXTS) - len(lost)} of {len(TEXTS)} texts come back as they were"
    if lost and _has_all_bytes(t):
        yield Check("round trips", False, f"{found}; not {', '.join(lost)}")
    else:
        why = ", the vocabulary does not spell every byte" if lost else ""
        yield Check("round trips", None if lost else True, found + why)
    broken = [i for i in range(t.n_vocab) if not _has_piece(t, i)]
    said = f"token {broken[0]} has no text" if broken else "every token has a text"
    yield Check("pieces", not broken, said)
    names = {"bos": t.bos, "eos": t.eos, "eot": t.eot}
    said = ", ".join(f"{k} {v}" for k, v in names.items() if v is not None) or "none"
    ends = bool(t.eog_ids)
    yield Check("special tokens", ends or None, said if ends else f"{said}; nothing ends a text")


def _has_piece(t: Tokenizer, token: int) -> bool:
    try:
        t.piece(token)
    except ValueError:
        return False
    return True


def _has_all_bytes(t: Tokenizer) -> bool:
    """Whether any text can be spelled: every byte is a token's text."""
    singles = {t.piece(i) for i in range(t.n_vocab)}
    return all(bytes([b]) in singles for b in range(256))


def _template(metadata: Mapping[str, Any], t: Tokenizer, template: ChatTemplate) -> Iterator[Check]:
    own = "tokenizer.chat_template" in metadata
    yield Check("template", None, "the file's own" if own else f"none; {template.name} is used")
    asked = [{"role": "user", "content": MARK}]
    text = template.render(asked)
    yield Check("template asks", text.count(MARK) == 1,
                f"a question stands {text.count(MARK)} times in its prompt")  # fmt: skip
    if template.render(asked) != text:
        yield Check("template repeats", False, "the same conversation gives another prompt")
    answered = [*asked, {"role": "assistant", "content": "An answer."},
                {"role": "user", "content": MARK[::-1]}]  # fmt: skip
    longer = template.render(answered)
    ok = MARK in longer and MARK[::-1] in longer and longer.index(MARK) < longer.index(MARK[::-1])
    yield Check("template turns", ok, "a second question follows the first one and its answer"
                if ok else "of two questions one is lost")  # fmt: skip
    opened = template.render(asked, add_generation_prompt=False)
    yield Check("template opens", None if text == opened else True,
                "does not open the answer" if text == opened else "opens the answer")  # fmt: skip
    ids = template.encode(t, asked)
    n_bos = sum(i == t.bos for i in ids) if t.bos is not None else 0
    yield Check("template begins", n_bos <= 1, f"{n_bos} tokens begin the text")
