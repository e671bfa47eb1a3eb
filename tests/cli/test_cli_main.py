"""Finding commands, help, exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from importlib import import_module

import pytest
from cli_helpers import one_line_error

from gguflow import __version__
from gguflow.cli import errors, generate
from gguflow.cli.main import commands, main
from gguflow.cli.parser import Parser


def test_help_lists_every_command_and_exit_code(call) -> None:
    code, out, err = call()
    assert code == 0 and err == ""
    assert call("--help") == (0, out, "")
    for name in ("generate", "chat", "bench", "inspect", "profile", "tokenize", "quantize"):
        assert re.search(rf"^  {name} +\S", out, re.M), name
    for number, meaning in errors.EXIT_CODES.items():
        assert re.search(rf"^ +{number}  {re.escape(meaning)}$", out, re.M)


def test_helpers_are_no_commands(call) -> None:
    code, _, err = call("options")
    assert code == 2 and "unknown command 'options'" in one_line_error(err)


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_help(call, name: str) -> None:
    code, out, err = call(name, "--help")
    assert code == 0 and err == ""
    assert out.startswith(f"usage: gguflow {name}") and "--debug" in out


def test_a_family_lists_its_commands(call) -> None:
    code, out, err = call("sparse")
    assert code == 0 and err == "" and out.startswith("usage: gguflow sparse COMMAND")
    assert re.search(r"^  stats +\S", out, re.M) and "common" not in out
    code, out, _ = call("sparse", "stats", "--help")
    assert code == 0 and out.startswith("usage: gguflow sparse stats")
    code, _, err = call("sparse", "stast")
    assert code == 2 and "did you mean stats?; `gguflow sparse --help`" in one_line_error(err)


def test_version(call) -> None:
    assert call("--version") == (0, f"gguflow {__version__}\n", "")


def test_unknown_command_suggests_the_nearest(call) -> None:
    code, out, err = call("generat")
    assert (code, out) == (2, "")
    assert "did you mean generate?" in one_line_error(err)


def test_unknown_option_suggests_the_nearest(call) -> None:
    code, out, err = call("generate", "--ctx-sise", "5")
    assert (code, out) == (2, "")
    assert one_line_error(err).startswith("unknown option --ctx-sise, did you mean --ctx-size?")


@pytest.mark.parametrize(("module", "name", "code"), errors._CODES)
def test_exit_codes_name_classes_that_exist(module: str, name: str, code: int) -> None:
    error = getattr(import_module(module), name)
    assert issubclass(error, Exception)
    assert code in errors.EXIT_CODES and code != errors.INTERNAL
    assert errors.exit_code(error.__new__(error)) == code


def test_resources_and_interruption() -> None:
    assert errors.exit_code(MemoryError("cannot allocate")) == 4
    assert errors.exit_code(OSError(28, "No space left on device")) == 4
    assert errors.exit_code(KeyboardInterrupt()) == 130
    assert errors.exit_code(ZeroDivisionError()) == 1


def test_unforeseen_error_is_one_line_and_a_traceback_only_on_request(call, monkeypatch) -> None:
    def broken(args: object) -> int:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(generate, "run", broken)
    code, _, err = call("generate")
    assert code == 1
    assert one_line_error(err).startswith("RuntimeError: first line second line")
    code, _, err = call("generate", "--debug")
    assert code == 1 and "Traceback" in err and 'raise RuntimeError("first line' in err
    monkeypatch.setenv("GGUFLOW_DEBUG", "1")
    assert "Traceback" in call("generate")[2]


def test_interruption_anywhere_ends_with_130(call, monkeypatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "run", interrupted)
    assert call("generate") == (130, "", "gguflow: interrupted\n")


@pytest.mark.parametrize(("command", "watched"), [("tokenize", True), ("serve", False)])
def test_ctrl_c_reaches_native_code_in_every_command(
    call, monkeypatch: pytest.MonkeyPatch, command: str, watched: bool
) -> None:
    """A thread waits for it, whatever the command runs; a server's event loop sees to it itself."""
    module = import_module(f"gguflow.cli.{command}")
    seen: list[bool] = []

    def run(args: object) -> int:
        seen.append("interrupts" in {t.name for t in threading.enumerate()})
        return 0

    monkeypatch.setattr(module, "run", run)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        assert call(command, *(["A"] if command == "tokenize" else []))[0] == 0
        assert seen == [watched]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_word_after_an_option_is_its_value() -> None:
    p = Parser("x", "y")
    p.add_argument("-p", "--prompt")
    p.add_argument("-n", "--number", type=int)
    p.add_argument("--flag", action="store_true")
    p.add_argument("rest", nargs="*")
    words = ["-p", "--flag", "--number", "-1", "--prompt=a=b", "7", "--", "-z"]
    args = p.parse_args(words)
    assert (args.prompt, args.number, args.flag, args.rest) == ("a=b", -1, False, ["7", "-z"])
    assert p.parse_args(["-p", "", "--flag"]).prompt == ""
    assert p.parse_args(["-p", "- hello"]).prompt == "- hello"
    with pytest.raises(errors.UsageError, match="unknown option -nope"):
        p.parse_args(["-nope"])
    with pytest.raises(errors.UsageError, match="-p/--prompt: expected one argument"):
        p.parse_args(["-p"])


def test_help_and_bad_arguments_do_not_import_the_engine() -> None:
    code = (
        "import sys; from gguflow.cli.main import main;"
        "main(['--help']); main(['bench', '-r', 'x']); main(['generate', '-t', '0']);"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'rich', 'gguf', 'jinja2')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0


def test_generating_imports_only_what_it_uses(tiny_model: str) -> None:
    code = (
        "import sys; from gguflow.cli.main import main;"
        "assert main(['generate', '-m', sys.argv[1], '-p', 'A', '-n', '2']) == 0;"
        "unused = 'rich', 'tokenizers', 'jinja2', 'gguf', 'gguflow.models.shapes';"
        "print([m for m in unused if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny_model], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "[]"


def test_main_takes_the_process_arguments(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gguflow", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"gguflow {__version__}\n"
