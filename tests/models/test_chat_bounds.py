"""Hostile chat templates: no way out of the sandbox, bounded time and memory."""

from __future__ import annotations

import resource
import time

import pytest

from gguflow.models import chat_bounds
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
        "{{ (1).to_bytes(4000000000, 'big') }}",
        "{{ 'a'.encode().ljust(4000000000) }}",
        "{{ ('a' * 100000).encode('punycode') }}",
        "{{ '{a:99999}'.format_map({'a': 1}) }}",
        "{{ 'a'.translate({97: 'b'}) }}",
        "{{ (1.5).as_integer_ratio() }}",
        "{{ {}.fromkeys([1]) }}",
        "{{ messages[0].items().isdisjoint([]) }}",
        "{{ messages[0].keys() - ('ab' * 99999) }}",
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
        *(
            "{% for i in range(99999) %}{{ " + expression + " }}{% endfor %}"
            for expression in (
                "range(99999) | sum",
                "range(99999) | max",
                "range(99999) | list | sort | first",
                "range(99999) | unique | first",
                "-1 in range(99999) | list",
                "(range(99999) | list).count(5)",
                "(range(99999) | list).index(99998)",
                "range(99999) | map('string') | join | length",
                "('ab' * 99999).find('c')",
                "('a' * 29999).find('a' * 49 ~ 'b' ~ 'a' * 49)",
                "('a' * 49 ~ 'b' ~ 'a' * 49) in 'a' * 29999",
                "('a' * 20 * 90000)[1:] | length",
                "('{0}' * 30000).format(1) | length",
                "([[1]] * 60000) | sum(start=[]) | length",
                "strftime_now('%c' * 490)",
                "('a ' * 60000) | title | length",
            )
        ),
        # Backwards, and characters to cut, each of which is looked for: a million times a million.
        *(
            "{% set s = 'a' * 10 * 99999 %}{% set p = 'ab' ~ 'a' * 5 * 99999 %}{{ " + call + " }}"
            for call in (
                "s.rfind(p)",
                "s.rsplit(p)",
                "s.rpartition(p)",
                "s.strip('c' ~ p[1:])",
                "s | trim('c' ~ p[1:])",
            )
        ),
        # Bodies that cost much each time they run.
        "{% for i in range(99999) %}"
        + "{% if messages[0].role %}{% endif %}" * 900
        + "{% endfor %}",
        "{% macro f() %}"
        + "{% if messages[0].role %}{% endif %}" * 900
        + "{% endmacro %}{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
        "{% for i in range(99999) %}{% filter upper %}"
        + "x" * 50000
        + "{% endfilter %}{% endfor %}",
    ],
)
@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_time_is_bounded(source: str, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change waits for a quarter of the steps: what is not counted has no end with any number."""
    monkeypatch.setattr(chat_bounds, "MAX_STEPS", chat_bounds.MAX_STEPS // share)
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
        "{{ '{:{}}'.format(1, 99999) }}",
        "{{ ('{0:9999}' * 9999).format(1) }}",
        "{{ ('%(a)9999d' * 9999) % {'a': 1} }}",
        "{{ range(99999) | join('x' * 1999999) }}",
        "{{ [] | slice(31999999) | list }}",
        "{{ range(9000) | list | tojson(indent=6000) }}",
        "{% set ns = namespace(v=[]) %}"
        "{% for i in range(200) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson(indent=9) }}",
        "{{ strftime_now('%999999999Y') }}",
        "{{ strftime_now('%_9999d') }}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{% set ns.b = ns %}{{ ns }}",
        "{% set ns = namespace(v='a') %}{% for i in range(60) %}"
        "{% set m = namespace(a=ns.v, b=ns.v) %}{% set ns.v = m %}{% endfor %}{{ ns.v }}",
        "{{ (messages[0].keys() | list) * 10 ** 7 }}",
        "{{ [1, 2] | batch(10 ** 9, 0) | list }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
        "{{ 5 | round(-99999) }}",
        "{% set x = ('f' * 99999) | int(base=16) %}{{ x // 3 }}",
        "{{ ('\u4f60' * 20 * 99999) | list }}",
        "{{ ('\u4f60 ' * 10 * 99999).split() }}",
        "{{ ('\u4f60,' * 10 * 99999).split(',') }}",
        "{{ ('\n' * 10 * 99999).splitlines() }}",
        "{{ ('\U0001f600' * 5600) | join('\U0001f600' * 5600) }}",
        "{{ ('ab ' * 60000) | title }}",
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


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 }}" * 40_000,
        "x" * 200_001,
        "{% if a %}" + "{% elif a %}" * 12_000 + "{% endif %}",
        "".join(f"{{% macro m{i}() %}}{{% endmacro %}}" for i in range(6000)),
        "{% filter upper %}" * 501,
    ],
    ids=["expressions", "text", "branches", "macros", "deep"],
)
def test_templates_have_a_size(source: str) -> None:
    refusal(source)


@pytest.mark.parametrize(
    "kept",
    ["ns.l = [ns.l, s[1:]]", "ns.l = [ns.l, s ~ i]", "ns.l = [ns.l, s | replace('b', 'c')]",
     "ns.l = [ns.l, s + '!']"],
)  # fmt: skip
def test_what_is_kept_is_bounded(kept: str) -> None:
    """Values of which each is within the bounds, and all of which a template holds on to."""
    source = (
        "{% set s = '\U0001f600' * 20 * 50000 ~ 'b' %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(600) %}{% set " + kept + " %}{% endfor %}"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "steps" in refusal(source)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 << 10  # KiB; 600 such values take 2.4 GB


def test_each_rendering_has_its_own_budget() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{{ i }}{% endfor %}")
    lengths = {len(template.render(TURNS)) for _ in range(8)}
    assert lengths == {438890}  # 10 + 2*90 + 3*900 + 4*9000 + 5*80000


def test_a_long_conversation_is_well_within_bounds() -> None:
    turns = [{"role": "user", "content": "word " * 100}] * 1000
    for name in ("chatml", "llama2", "llama3", "mistral-v3", "gemma"):
        assert len(ChatTemplate.named(name).render(turns)) > 450_000


def test_nothing_runs_before_it_is_rendered() -> None:
    # jinja2 folds constants while it compiles, which nothing would count.
    start = time.thread_time()
    ChatTemplate("{{ ('a' * 1999999) | upper | lower | reverse | list | length }}" * 200)
    assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    "source, text",
    [
        ("{{ 0.5 * 4000000 }} {{ 123456.78 | round(1) }} {{ '%05.1f' % 2.25 }}",
         "2000000.0 123456.8 002.2"),
        ("{{ '{:>4}|{{}}|{}'.format(7, 'x') }} {{ 'a-b'.split('-') | join('+') }}",
         "   7|{}|x a+b"),
        ("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
         "role=user;content=hi;"),
        ("{{ messages | map(attribute='role') | unique | list | tojson(indent=2) }}",
         '[\n  "user"\n]'),
        ("{% set ns = namespace(n=0) %}{% for c in 'abc' %}{% set ns.n = ns.n + loop.index %}"
         "{{ loop.cycle('x', 'y') }}{% endfor %}{{ ns.n }}", "xyx6"),
        ("{{ [3, 1] | sort | first }}{{ messages[0].get('none', 'd') }}{{ 'A'.lower() | safe }}",
         "1da"),
        ("{{ range(5) | select('odd') | list }}{{ [1, 2, 3] | batch(2) | list }}",
         "[1, 3][[1, 2], [3]]"),
        ("{{ 'abcdef'[1:4] }}{{ 'abc'[::-1] }}{{ [1, 2, 3][:-1] }}{{ 'a' in 'abc' }}"
         "{{ 'a' not in ['b'] and 1 < 2 <= 2 }}{{ 7 // 2 - 1 }}{{ 7 / 2 }}{{ -7 % 3 }}",
         "bcdcba[1, 2]TrueTrue23.52"),
        ("{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}c{% endcall %}"
         "{% filter upper %}a{% endfilter %}{% set x %}b{{ 1 }}{% endset %}{{ x }}"
         "{{ [[1], [2]] | sum(start=[]) }}{{ ' a '.strip() }}{{ 'x-y-z'.rsplit('-', 1)[0] }}",
         "<1c>Ab1[1, 2]ax-y"),
    ],
)  # fmt: skip
def test_what_templates_do_goes_on(source: str, text: str) -> None:
    assert ChatTemplate(source).render(TURNS) == text
