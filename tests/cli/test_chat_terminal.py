"""`gguflow chat` on a terminal: commands, editing, paste, interrupts, markdown."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import ENV

pexpect = pytest.importorskip("pexpect")

ARGS = ("--temp", "0", "-n", "8", "--ignore-eos", "-c", "600", "-t", "1", "--no-perf")
CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>]|\].*?\x07)")


class Talk:
    """A chat on a terminal of its own."""

    def __init__(self, model: str, home: Path, *flags: str) -> None:
        env = ENV | {"GGUFLOW_CACHE_DIR": str(home), "TERM": "xterm-256color",
                     "PROMPT_TOOLKIT_NO_CPR": "1"}  # fmt: skip
        self.p = pexpect.spawn(
            sys.executable, ["-m", "gguflow", "chat", "-m", model, *flags], env=env, timeout=60,
            encoding="utf-8", dimensions=(50, 100),
            # Whoever runs the tests in the background has Ctrl-C ignored in all they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.seen = ""
        self.wait()

    def wait(self) -> str:
        """Until it asks for the next message; what it wrote, without control sequences."""
        self.p.expect_exact("\x1b[?2004h")  # pastes are bracketed while a line is read
        text = CONTROL.sub("", self.p.before).replace("\r", "")
        self.seen += text
        return text

    def say(self, text: str) -> str:
        self.p.send(text + "\r")
        return self.wait()


@pytest.fixture
def talk(tiny_model: str, tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tiny_model, tmp_path, *ARGS)
    yield talk
    talk.p.close(force=True)


def test_every_command(talk: Talk, tmp_path: Path) -> None:
    assert "no chat format" in talk.seen and "/help lists" in talk.seen
    text = talk.say("/help")
    for name in ("regen", "undo", "set", "show", "save", "load", "system", "file", "think", "clear",
                 "bye"):  # fmt: skip
        assert f"/{name}" in text
    talk.say("Hello")
    shown = talk.say("/show")
    assert "user: Hello" in shown and "assistant:" in shown and "of 600 tokens" in shown
    talk.say("/regen")
    assert talk.say("/show").count("user: Hello") == 1
    assert "taken back: Hello" in talk.say("/undo")
    assert "nothing to take back" in talk.say("/undo")
    assert "temperature is 0.5" in talk.say("/set temperature 0.5")
    assert "expected a number" in talk.say("/set temperature x")
    assert "top_p 3.0: out of range" in talk.say("/set top_p 3")
    assert "did you mean top_k" in talk.say("/set topk 3")
    assert "temperature 0.5" in talk.say("/set")
    assert talk.say("/set temperature").split("\n")[1:2] == ["  temperature 0.5"]
    assert "n_predict -7: expected -1" in talk.say("/set n_predict -7")
    talk.say("/set temperature 0")
    assert "system message is set" in talk.say("/system Be brief")
    note = tmp_path / "note.txt"
    note.write_text("a note")
    assert "6 characters" in talk.say(f"/file {note}")
    assert "No such file" in talk.say("/file none.txt")
    assert "/save /none/c.json: No such file or directory" in talk.say("/save /none/c.json")
    assert "/load none: No such file or directory" in talk.say("/load none")
    talk.say("Read it")
    saved = tmp_path / "c.json"
    assert "saved" in talk.say(f"/save {saved}")
    found = json.loads(saved.read_text())
    assert found["system"] == "Be brief" and "a note" in found["messages"][0]["content"]
    assert "forgotten" in talk.say("/clear")
    assert "user:" not in talk.say("/show")
    assert "2 messages" in talk.say(f"/load {saved}")
    assert "thoughts: off" in talk.say("/think off") and "hide" in talk.say("/think hide")
    assert "there is no /shwo, did you mean show" in talk.say("/shwo")
    talk.p.send("/bye\r")
    talk.p.expect(pexpect.EOF)
    talk.p.wait()
    assert talk.p.exitstatus == 0


def messages(talk: Talk, tmp_path: Path) -> list[str]:
    """What the user has said so far."""
    talk.say(f"/save {tmp_path / 'c.json'}")
    found = json.loads((tmp_path / "c.json").read_text())["messages"]
    return [m["content"] for m in found if m["role"] == "user"]


def test_editing_and_history(talk: Talk, tmp_path: Path, tiny_model: str) -> None:
    talk.p.send("half a line")
    talk.p.send("\x03")  # Ctrl-C clears it
    talk.say("one")
    talk.say('"""first\rsecond"""')
    talk.p.send("\x1b[200~pasted\r\nlines\x1b[201~")
    talk.say("")
    talk.say("three\x1b\rmore")  # Alt-Enter
    talk.say("//slash")
    assert messages(talk, tmp_path) == [
        "one", "first\nsecond", "pasted\nlines", "three\nmore", "/slash",
    ]  # fmt: skip
    talk.p.send("\x04")  # Ctrl-D
    talk.p.expect(pexpect.EOF)
    again = Talk(tiny_model, tmp_path, *ARGS)
    again.say("\x1b[A\x1b[A")  # two up: the command before was /save
    assert messages(again, tmp_path) == ["/slash"] or messages(again, tmp_path) == []
    again.p.close(force=True)


def test_an_answer_is_interrupted(tiny_model: str, tmp_path: Path) -> None:
    talk = Talk(tiny_model, tmp_path, "--temp", "0", "--ignore-eos", "-c", "100000", "-t", "1")
    talk.p.send("go on for ever\r")
    talk.p.expect_exact("\x1b[?2004l")  # the line is read: from here on Ctrl-C is a signal
    time.sleep(2)
    talk.p.send("\x03")
    talk.wait()
    shown = talk.say("/show")
    assert "assistant: " in shown
    talk.p.send("\x03")  # on an empty line
    talk.p.expect("interrupted")
    talk.p.expect(pexpect.EOF)
    talk.p.wait()
    assert talk.p.exitstatus == 130


def test_a_full_context_rolls(tiny_model: str, tmp_path: Path) -> None:
    talk = Talk(tiny_model, tmp_path, "--temp", "0", "-n", "30", "--ignore-eos", "-c", "120",
                "-t", "1")  # fmt: skip
    text = "".join(talk.say(f"message {i}") for i in range(5))
    assert re.search(r"the context is full: its oldest \d+ messages were left out", text)
    talk.p.close(force=True)
