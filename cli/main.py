"""`gguflow COMMAND ...`: finds the command, runs it, turns errors into one line and an exit code.

A command is a module of this directory with SUMMARY (one line), add_arguments(parser) and
run(args) -> exit code; with OWN_SIGNALS it answers Ctrl-C itself. It is found by being there; only
the one asked for is imported. A package with SUMMARY is a family of commands, its modules:
`gguflow sparse solve ...`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from gguflow import __version__
from gguflow.engine import env
from gguflow.engine.found import modules_in

from . import console
from .common import add_common
from .errors import EXIT_CODES, OK, UsageError, exit_code, message
from .limit import set_limit
from .load import be_quiet
from .log_options import end_log, log_to
from .parser import Parser, nearest

_EPILOG = "exit codes:\n" + "\n".join(f"  {code:>3}  {what}" for code, what in EXIT_CODES.items())


def main(argv: Sequence[str] | None = None, begin: Callable[[], object] | None = None) -> int:
    """Run the command line; returns the exit code. begin: called once a command is found, before it
    does anything."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    try:
        console.prepare()
        try:
            code = _dispatch(words, begin or (lambda: None))
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
    finally:
        end_log()
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
    try:
        return env.debug()
    except env.EnvError:
        return False


GLOBAL = ("--debug", "-q", "--quiet", "-v", "--verbose")  # which may stand before the command


def _command_at(words: Sequence[str]) -> int:
    """Where the command stands: after options that may come before it, one of them with a value."""
    i = 0
    while i < len(words):
        name, equals, _ = words[i].partition("=")
        if name == "--max-memory":
            i += 1 if equals else 2
        elif words[i] in GLOBAL:
            i += 1
        else:
            break
    return min(i, len(words))


def _dispatch(words: list[str], begin: Callable[[], object]) -> int:
    first = _command_at(words)
    if first and first < len(words):
        words = [words[first], *words[:first], *words[first + 1 :]]
    if words and first == len(words):
        raise UsageError(f"{' '.join(words)}: and no command; `gguflow --help` lists them")
    if words[:1] == ["help"] and len(words) > 1 and not words[1].startswith("-"):
        words = [*words[1:], "--help"]
    if words and words[0] in ("-V", "--version", "version"):
        print(f"gguflow {__version__}")
        return OK
    return _run_command(words, _root(), "gguflow", begin)


def _run_command(
    words: list[str], package: ModuleType, prog: str, begin: Callable[[], object]
) -> int:
    """Run `words[0]` of a package of commands; prog: the words before it."""
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        print(_overview(package, prog))
        return OK
    module = _command(package, name) if name in _modules(package) else None
    if module is None:
        hint = nearest(name, list(commands(package)))
        raise UsageError(f"unknown command {name!r}{hint}; `{prog} --help` lists them")
    if _is_family(module):
        return _run_command(words[1:], module, f"{prog} {name}", begin)
    elsewhere: dict[str, str] = getattr(module, "ELSEWHERE", {})
    if flag := next((w for w in words[1:] if w in elsewhere), None):
        other = elsewhere[flag]
        theirs: dict[str, str] = getattr(_command(package, other), "ELSEWHERE", {})
        if back := next((w for w in words[1:] if w in theirs), None):
            raise UsageError(f"{flag}: not with {back}")
        if not {"-q", "--quiet"}.intersection(words):
            print(f"gguflow: {flag}: as `{prog} {other}`", file=sys.stderr)
        return _run_command([other, *words[1:]], package, prog, begin)
    parser = Parser(f"{prog} {name}", module.SUMMARY, getattr(module, "EPILOG", None))
    module.add_arguments(parser)
    add_common(parser)
    args = parser.parse_args(words[1:])
    env.check()
    begin()
    if (log := getattr(args, "log_file", None)) is not None:
        log_to(log)
    set_limit(args)
    be_quiet(args.quiet)
    if getattr(module, "OWN_SIGNALS", False):
        return int(module.run(args))
    from gguflow.engine import interrupt

    with interrupt.heeded():  # or Ctrl-C would wait for native code: a long prompt takes seconds
        return int(module.run(args))


def _root() -> ModuleType:
    return import_module(__package__ or "gguflow.cli")


def _is_family(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


def _modules(package: ModuleType) -> list[str]:
    return sorted(m.name for m in modules_in(package.__path__))


def _command(package: ModuleType, name: str) -> ModuleType | None:
    module = import_module(f"{package.__name__}.{name}")
    return module if hasattr(module, "SUMMARY") else None


def commands(package: ModuleType | None = None) -> dict[str, str]:
    """Every command (of a family) and what it does in a line."""
    package = package or _root()
    found = ((name, _command(package, name)) for name in _modules(package) if name != "main")
    return {name: module.SUMMARY for name, module in found if module is not None}


def _overview(package: ModuleType, prog: str) -> str:
    listed = commands(package)
    width = max(map(len, listed))
    lines = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in listed.items())
    about = getattr(package, "ABOUT", "Runs GGUF language models. Without -m, the bundled model.")
    return (
        f"usage: {prog} COMMAND [options]\n\n{about}\n\n"
        f"commands:\n{lines}\n\n"
        f"`{prog} help COMMAND` lists a command's options; --debug, --max-memory and -q are\n"
        "every command's, and may stand before its name;\n"
        "`gguflow --version` says the version.\n\n"
        f"{_EPILOG}"
    )
