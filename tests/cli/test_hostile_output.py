"""A stranger's file and a stranger's text on their way to a terminal, a browser, a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import hostile_text
import numpy as np
import pytest
from hostile_text import ALL, commands
from tiny_model import vocabulary, write_tiny

from gguflow.cli.bench_output import OUTPUTS, Csv, Sql
from gguflow.engine.harmless import json_text, many_lines, one_line
from gguflow.engine.profile import load_jsonl
from gguflow.engine.profile.export import write_profile

ESC = 40  # the token that is the text below
ESC_TEXT = "\x1b]52;c;cm0gLXJmIH4=\x07\x9b2J\u202e"
NAME = "x\x1b[31m\n\u202ey\x9b.weight"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that runs, in whose file every name and text that may be hostile is."""
    words = vocabulary(96)
    words["tokenizer.ggml.tokens"][ESC] = ESC_TEXT
    keys = words | {
        "general.name": ALL,
        f"key{ALL}": ALL,
        "list\x1b": [ALL, ALL],
        "tokenizer.chat_template": "{{ raise_exception('" + ALL.replace("'", "") + "') }}",
    }
    weights = {NAME: np.zeros((2, 32), np.float32)}
    return str(write_tiny(tmp_path_factory.mktemp("hostile") / "m.gguf", keys=keys,
                          weights=weights, gain=3.0))  # fmt: skip


def test_inspect(call, hostile: str) -> None:
    code, out, err = call("inspect", "-m", hostile)
    assert (code, commands(out), err) == (0, [], "")
    assert "forged" in out and not any(line.startswith("a forged") for line in out.splitlines())
    assert r"x\x1b[31m\n\u202ey\x9b.weight" in out  # nothing is left out
    code, out, _ = call("inspect", "-m", hostile, "--json")
    assert (code, commands(out)) == (0, [])
    assert json.loads(out)["metadata"]["general.name"] == ALL


def test_notes_and_errors(call, hostile: str, tmp_path: Path) -> None:
    code, out, err = call("generate", "-m", hostile, "-p", "A", "-n", "1", "--no-perf", "-s", "1")
    assert (code, commands(err)) == (0, []) and r"not used by llama: x\x1b[31m\n\u202ey" in err
    code, out, err = call("chat", "-m", hostile, "-p", "A", "-st")
    assert (code, out, commands(err)) == (3, "", [])
    assert r"\x1b]52" in err.splitlines()[-1] and "gguflow: error:" in err.splitlines()[-1]
    out_file = str(tmp_path / "q.gguf")
    code, out, err = call("quantize", "-v", hostile, out_file, "Q8_0")
    assert (code, commands(err)) == (0, []) and r"x\x1b[31m\n\u202ey\x9b.weight" in err
    path = write_tiny(tmp_path / "a.gguf", keys={"general.architecture": ALL})
    code, out, err = call("generate", "-m", str(path))
    assert (code, commands(err), len(err.splitlines())) == (3, [], 1)


def test_generated_text(call, hostile: str) -> None:
    flags = ("-m", hostile, "-p", "A", "-n", "3", "--no-perf", "--temp", "0", "-l", f"{ESC}+1000")
    code, out, _ = call("generate", *flags)
    assert (code, commands(out)) == (0, []) and out.count(r"\x1b]52;c;") == 3
    code, out, _ = call("generate", *flags, "--raw")
    assert code == 0 and out.count(ESC_TEXT) == 3
    chat = ("chat", *flags, "-st", "--chat-template", "chatml")
    code, out, _ = call(*chat)
    assert (code, commands(out)) == (0, []) and r"\x1b]52;c;" in out
    assert ESC_TEXT in call(*chat, "--raw")[1]


def test_decoded_tokens(call, hostile: str) -> None:
    code, out, _ = call("tokenize", "-m", hostile, "--decode", f"{ESC}")
    assert (code, commands(out)) == (0, []) and r"\x1b]52" in out
    assert call("tokenize", "-m", hostile, "--decode", f"{ESC}", "--raw")[1] == ESC_TEXT + "\n"
    assert commands(call("tokenize", "-m", hostile, ESC_TEXT, "--parse-special")[1]) == []


def test_profiles_of_strangers(call, tmp_path: Path) -> None:
    """A dump that was handed over: read, shown, written again."""
    path = tmp_path / "p.jsonl"
    head = {"kind": "header", "format": 1, "model": ALL, "machine": ALL, "threads": 1,
            "created": ALL, "peaks": {}, "facts": {ALL: [ALL]}}  # fmt: skip
    step = {"kind": "step", "step": 0, "phase": f"[red]{ALL}", "n_tokens": 1, "n_past": 0,
            "start_us": 0.0, "wall_us": 2.0, "host_us": 1.0}  # fmt: skip
    layer = {"kind": "activity", "layer": ALL, "n_tokens": 1, "active": 0.5, "computed": 0.5,
             "recall": None}  # fmt: skip
    path.write_text("\n".join(map(json.dumps, (head, layer, step))), "utf-8")
    code, out, err = call("profile", "--diff", str(path), str(path))
    assert (code, commands(out + err)) == (0, [])
    dump = load_jsonl(path)
    for ending in (".jsonl", ".json", ".html"):
        out_path = tmp_path / f"again{ending}"
        write_profile(dump, out_path)
        text = out_path.read_text("utf-8")
        assert commands(text) == [], ending
        assert ending != ".html" or "<img src=x" not in text


@pytest.mark.parametrize("name", ["csv", "sql", "json", "jsonl"])
def test_bench_outputs(capsys: pytest.CaptureFixture[str], name: str) -> None:
    result = {"model_filename": ALL, "model_type": "=cmd()", "test_time": "'; DROP TABLE x; --"}
    output = OUTPUTS[name]()
    output.begin([])
    output.add(result)
    output.end()
    out = capsys.readouterr().out
    assert commands(out) == []
    if isinstance(output, Csv):
        rows = list(csv.reader(io.StringIO(out)))
        assert len(rows) == 2 and rows[1][1] == "'=cmd()"
    if isinstance(output, Sql):
        assert "'''; DROP TABLE x; --'" in out


def test_what_is_text_stays() -> None:
    text = "tab\tline\r\n日本 עברית\u200f 👩\u200d🚀 e\u0301\n"
    assert many_lines(text) == text and one_line("日本 עברית") == "日本 עברית"
    assert many_lines("a\rb") == r"a\rb"
    assert commands(many_lines(ALL) + one_line(ALL)) == []
    assert json.loads(json_text(json.dumps(ALL, ensure_ascii=False))) == ALL
    assert commands(hostile_text.BIDI)
