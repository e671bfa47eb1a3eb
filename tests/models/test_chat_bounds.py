"""Hostile chat templates: no way out of the sandbox, bounded time and memory."""

from __future__ import annotations

import time

import pytest

from gguflow.models.chat import ChatTemplate, ChatTemplateError

TURNS = [{"role": "user", "content": "hi"}]

# Sixty rounds that double a value held in ns.v.
DOUBLE = "{%% set ns = namespace(v=%s) %%}{%% for i in range(60) %%}%s{%% endfor %%}%s"


def refusal(source: str) -> str:
    start = time.monotonic()
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source).render(TURNS)
    # Unbounded, each of these takes hours or all memory; seconds leave room for a busy machine.
    assert time.monotonic() - start < 20
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{x.__class__}'.format_map({'x': 1}) }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{% macro m() %}{% endmacro %}{{ m._func }}",
        "{{ messages.append(1) }}",
        "{{ dict(a=1).update(b=2) }}",
    ],
)
def test_no_way_out(source: str) -> None:
    assert "is not allowed" in refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 12) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.count('b') }}{% endfor %}",
        "{% set s = 'a' * 100000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
        "{% for i in range(99999) %}" + "x" * 200_000 + "{% endfor %}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 18
        + "{% endcall %}" * 18,
    ],
)
def test_time_is_bounded(source: str) -> None:
    refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ [[1] * 4000] * 4000 }}",
        "{{ 10 ** 100 ** 100 }}",
        "{{ 2 ** (10 ** 10) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x\nx' | indent(10 ** 10) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=999999999) }}",
        "{{ [1, 2] | batch(10 ** 9, 0) | list }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
        "{{ range(100000) | list | tojson(indent=100000) }}",
        "{{ range(100000) | map('center', 70000) | join }}",
        DOUBLE % ("3", "{% set ns.v = ns.v * ns.v %}", ""),
        DOUBLE % ("'aaaa'", "{% set ns.v = ns.v + ns.v %}", ""),
        DOUBLE % ("'aaaa'", "{% set ns.v = ns.v ~ ns.v %}", ""),
        DOUBLE % ("'aaaa'", "{% set ns.v = ns.v | replace('a', ns.v) %}", ""),
        DOUBLE % ("'aaaa'", "{% set ns.v = ns.v.replace('a', ns.v) %}", ""),
        DOUBLE % ("'aaaa'", "{% set ns.v = [ns.v, ns.v] | join %}", ""),
        DOUBLE % ("'aaaa'", "{% set x %}{{ ns.v }}{{ ns.v }}{% endset %}{% set ns.v = x %}", ""),
        DOUBLE % ("'aaaa'", "{% set ns.v = [ns.v, ns.v] %}", "{{ ns.v }}"),
        DOUBLE % ("'aaaa'", "{% set ns.v = [ns.v, ns.v] %}", "{{ ns.v | tojson }}"),
        DOUBLE % ("'aaaa'", "{% set ns.v = [ns.v, ns.v] %}", "{{ ns.v == ns.v[0] }}"),
        DOUBLE % ("'aaaa'", "{% set ns.v = (ns.v, ns.v) %}", "{{ {ns.v: 1} }}"),
        DOUBLE % ("'aaaa'", "{% set ns.v = (ns.v, ns.v) %}", "{{ messages[0][ns.v] }}"),
    ],
)
def test_memory_is_bounded(source: str) -> None:
    assert "too large" in refusal(source)


@pytest.mark.parametrize("source", ["{{ " + "(" * 5000 + ")" * 5000 + " }}", "{{ lipsum(n=9) }}"])
def test_other_refusals(source: str) -> None:
    refusal(source)


def test_each_rendering_has_its_own_budget() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{{ i }}{% endfor %}")
    lengths = {len(template.render(TURNS)) for _ in range(8)}
    assert lengths == {438890}  # 10 + 2*90 + 3*900 + 4*9000 + 5*80000


def test_a_long_conversation_is_well_within_bounds() -> None:
    turns = [{"role": "user", "content": "word " * 100}] * 1000
    for name in ("chatml", "llama2", "llama3", "mistral-v3", "gemma"):
        assert len(ChatTemplate.named(name).render(turns)) > 450_000
