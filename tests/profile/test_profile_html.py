"""The page: self-contained, safe with any name, small however long the run, and it runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from known_plan import HOST_US, NATIVE_US, clock_reads, plan

from gguflow.engine.profile import PlanRow, Profile, write_profile
from gguflow.engine.profile.html import embed_json
from gguflow.engine.profile.page_data import MAX_BARS, op_class, page_data

HOSTILE = "</script><script>alert(1)</script><!-- data --><img src=x onerror=f()> & \" ' \u2028"


class _Page(HTMLParser):
    """What matters of a page: its elements, its title and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.title = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = ""

    def handle_data(self, data):
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in == "title":
            self.title += data


def _write(profile: Profile, tmp_path) -> tuple[str, _Page]:
    text = write_profile(profile, tmp_path / "p.html").read_text(encoding="utf-8")
    return text, _Page(text)


def test_the_page_fetches_nothing(make_profile, tmp_path):
    text, page = _write(make_profile(3), tmp_path)
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not [a for a in page.attributes if a[0] in ("src", "href")]
    assert "@import" not in text and "url(" not in text
    urls = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert urls == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert "default-src 'none'" in text


def test_hostile_names_stay_text(tmp_path):
    profile = Profile(HOSTILE, facts={HOSTILE: HOSTILE}, machine=HOSTILE)
    row = PlanRow(HOSTILE, HOSTILE, HOSTILE, HOSTILE, ((1,),), (HOSTILE,), 8, 8)
    profile.add_step("decode", 1, (row,), clock_reads([3.0]), 5_000)
    _, page = _write(profile, tmp_path)
    assert page.tags.count("script") == 2 and "img" not in page.tags
    assert page.title == f"{HOSTILE} · gguflow profile"
    data = json.loads(page.scripts[0])
    assert data["header"]["model"] == HOSTILE
    assert data["phases"][0]["timelines"][0]["ops"][1][0] == HOSTILE


def test_scripts_never_make_markup(make_profile, tmp_path):
    _, page = _write(make_profile(1), tmp_path)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in page.scripts[1]


def test_embedded_json_is_the_same_data():
    data = {"a<b": ["</script>", "&amp;", "é\u2029", 1.5, None]}
    assert json.loads(embed_json(data)) == data
    assert not set("<>&") & set(embed_json(data))


def test_data_of_a_phase(make_profile):
    data = page_data(make_profile(10, n_prefill=2))
    assert [p["name"] for p in data["phases"]] == ["prefill", "decode"]
    decode = data["phases"][1]
    assert (decode["steps"], decode["tokens"]) == (10, 10)
    assert decode["wall_us"] == 10 * (NATIVE_US + HOST_US)
    assert decode["host_us"] == 10 * HOST_US
    for rows in decode["groups"].values():
        assert sum(r[2] for r in rows) == pytest.approx(decode["wall_us"])
    assert {d["name"] for d in decode["dots"]} == {
        "attn.norm", "attn.q", "attn.out", "ffn.down", "output",
    }  # fmt: skip
    dot = next(d for d in decode["dots"] if d["name"] == "attn.q")
    assert dot["total"] == [30, 300, 30 * 50_000, 30 * 80_000, 0.5]
    ops = decode["timelines"][0]["ops"]
    assert [o[0] for o in ops] == ["host", *(r.name for r in plan())]
    assert ops[1][3] == HOST_US and ops[2][3:5] == [HOST_US + 1, 10]


def test_the_steps_worth_looking_at():
    profile = Profile()
    for us in (5, 9, 1, 3, 4):
        profile.add_step("decode", 1, plan()[:1], clock_reads([us]), us * 1000)
    lines = page_data(profile)["phases"][0]["timelines"]
    assert [(t["title"], t["wall_us"]) for t in lines] == [
        ("median", 4), ("slowest", 9), ("first", 5),
    ]  # fmt: skip


def test_a_long_run_makes_a_small_page(make_profile, tmp_path):
    text, page = _write(make_profile(5_000), tmp_path)
    assert len(text) < 200_000
    decode = json.loads(page.scripts[0])["phases"][1]
    bars = decode["bars"]
    assert len(bars) <= MAX_BARS
    assert bars[0][0] == 1 and bars[-1][1] == 5_000
    assert all(b[0] == a[1] + 1 for a, b in zip(bars, bars[1:], strict=False))


def test_a_deep_model_makes_a_page_under_two_megabytes(tmp_path):
    profile = Profile("deep")
    rows = tuple(
        PlanRow(f"blk.{i}.ffn.some_long_name_{j}", "mul_mat", "cpu", "k", ((1, 9),), ("f32",), 9, 9)
        for i in range(200)
        for j in range(25)
    )
    for us in (2.0, 1.0, 3.0, 2.5):
        profile.add_step("prefill", 9, rows, clock_reads([us] * len(rows)), 10**8)
    for us in (1.0, 2.0, 3.0):
        profile.add_step("decode", 1, rows, clock_reads([us] * len(rows)), 10**8)
    text, page = _write(profile, tmp_path)
    assert len(text) < 2_000_000
    data = json.loads(page.scripts[0])
    assert all(p["timelines"][0]["title"] == "median" for p in data["phases"])


def test_colours():
    ops = ["mul_mat", "mul_mat_swiglu", "attention", "rope", "host"]
    assert [op_class(op) for op in ops] == ["matmul", "matmul", "attention", "other", "host"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_a_browser_draws_it(make_profile, tmp_path, steps):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to open the page with")
    path = write_profile(make_profile(steps, n_prefill=min(steps, 1)), tmp_path / "p.html")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    done = subprocess.run(
        [browser, *flags.split(), f"--user-data-dir={tmp_path / 'home'}", "--dump-dom", str(path)],
        capture_output=True,
        timeout=120,
        text=True,
    )
    dom = done.stdout
    assert 'data-ready="true"' in dom, done.stderr[-2000:]
    assert dom.count('class="dot"') == (5 if steps else 0)
    assert ("<td>ffn.down</td>" in dom) == bool(steps)
