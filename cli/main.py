"""`gguflow COMMAND ...`: finds the command, runs it, turns errors into one line and an exit code.

A command is a module of this directory with SUMMARY (one line), add_arguments(parser) and
run(args) -> exit code. It is found by being there; only the one asked for is imported.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from gguflow import __version__

from .errors import EXIT_CODES, OK, UsageError, exit_code, message
from .parser import Parser, nearest

_EPILOG = "exit codes:\n" + "\n".join(f"  {code:>3}  {what}" for code, what in EXIT_CODES.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    try:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                # Text a terminal's encoding lacks must not end a generation.
                stream.reconfigure(errors="replace")
        try:
            code = _dispatch(words)
        except SystemExit:  # argparse, after printing --help
            code = OK
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has all it wanted (`| head`). Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    except (Exception, KeyboardInterrupt) as e:
        code = exit_code(e)
        _report(e, words)
    return code


def _open_closed_streams() -> None:
    """Python has None for a stream its caller closed (`2>&-`), and print() then takes stdout."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _report(error: BaseException, words: list[str]) -> None:
    if "--debug" in words or _debug_asked():
        import traceback

        traceback.print_exception(error)
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else f"error: {message(error)}"
    with suppress(OSError):  # stderr is full or gone: the exit code has to do
        print(f"gguflow: {text}", file=sys.stderr)


def _debug_asked() -> bool:
    from gguflow.engine import env

    try:
        return env.debug()
    except env.EnvError:
        return False


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(_overview())
        return OK
    if name in ("-V", "--version", "version"):
        print(f"gguflow {__version__}")
        return OK
    module = _command(name) if name in _modules() else None
    if module is None:
        hint = nearest(name, list(commands()))
        raise UsageError(f"unknown command {name!r}{hint}; `gguflow --help` lists them")
    parser = Parser(f"gguflow {name}", module.SUMMARY, getattr(module, "EPILOG", None))
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    return int(module.run(parser.parse_args(words[1:])))


def _modules() -> list[str]:
    package = import_module(__package__ or "gguflow.cli")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__))


def _command(name: str) -> ModuleType | None:
    module = import_module(f"{__package__}.{name}")
    return module if hasattr(module, "SUMMARY") else None


def commands() -> dict[str, str]:
    """Every command and what it does in a line."""
    found = ((name, _command(name)) for name in _modules() if name != "main")
    return {name: module.SUMMARY for name, module in found if module is not None}


def _overview() -> str:
    listed = commands()
    width = max(map(len, listed))
    lines = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in listed.items())
    return (
        "usage: gguflow COMMAND [options]\n\n"
        "Runs GGUF language models. Without -m, the bundled model.\n\n"
        f"commands:\n{lines}\n\n"
        "`gguflow COMMAND --help` lists a command's options; `gguflow --version` the version.\n\n"
        f"{_EPILOG}"
    )
