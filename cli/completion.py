"""`gguflow completion`: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from .common import add_common
from .errors import OK
from .parser import Parser
from .stream import write

SUMMARY = "print completions for bash, zsh or fish"
EPILOG = """add one of these to the shell's start file:
  bash: source <(gguflow completion bash)
  zsh:  source <(gguflow completion zsh)
  fish: gguflow completion fish | source"""

BASH = """_gguflow() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" key="" word
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
    case "$key $word" in
{steps}
    esac
  done
  local words=""
  case "$key" in
{cases}
  esac
  case "$prev" in
{choices}
  esac
  if [[ "$cur" == -* || ( -z "$key" && "$cur" != */* ) || "$words" == *"__only"* ]]; then
    COMPREPLY=($(compgen -W "${{words//__only/}}" -- "$cur"))
  else
    local IFS=$'\n'
    COMPREPLY=($(compgen -f -- "$cur"))
    compopt -o filenames 2>/dev/null
  fi
}}
complete -F _gguflow gguflow
"""


def add_arguments(p: ArgumentParser) -> None:
    p.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: Namespace) -> int:
    write(script(args.shell))
    return OK


def script(shell: str) -> str:
    """The completions for a shell."""
    known = parsers()
    if shell == "fish":
        return _fish(known)
    bash = _bash(known)
    return bash if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{bash}"


def parsers() -> Mapping[tuple[str, ...], Parser | None]:
    """Every command by its words, and its parser; None for a family of commands."""
    found: dict[tuple[str, ...], Parser | None] = {}

    def visit(package: ModuleType, words: tuple[str, ...]) -> None:
        from .main import commands

        for name, summary in commands(package).items():
            module = import_module(f"{package.__name__}.{name}")
            at = (*words, name)
            if hasattr(module, "__path__"):
                found[at] = None
                visit(module, at)
                continue
            parser = found[at] = Parser(" ".join(("gguflow", *at)), summary)
            module.add_arguments(parser)
            add_common(parser)

    visit(import_module(__package__ or "gguflow.cli"), ())
    return found


def _options(parser: Parser) -> list[argparse.Action]:
    return [a for a in parser._actions if a.option_strings and a.help is not argparse.SUPPRESS]


def _chosen(parser: Parser) -> list[str]:
    """What there is to choose from where a command takes a word and no file."""
    words = [a for a in parser._actions if not a.option_strings]
    return [str(x) for a in words for x in a.choices or ()] if all(a.choices for a in words) else []


def _below(known: Mapping[tuple[str, ...], Parser | None], words: tuple[str, ...]) -> list[str]:
    n = len(words)
    return [key[n] for key in known if len(key) == n + 1 and key[:n] == words]


def _bash(known: Mapping[tuple[str, ...], Parser | None]) -> str:
    steps, cases = (
        [],
        ['    "") words="{} help --help --version" ;;'.format(" ".join(_below(known, ())))],
    )
    choices = {}
    for words, parser in known.items():
        before, key = "/".join(words[:-1]), "/".join(words)
        steps.append(f'      "{before} {words[-1]}") key="{key}" ;;')
        if parser is None:
            cases.append(f'    "{key}") words="__only {" ".join(_below(known, words))}" ;;')
            continue
        options = [flag for a in _options(parser) for flag in a.option_strings]
        if chosen := _chosen(parser):
            options = ["__only", *chosen, *options]
        cases.append(f'    "{key}") words="{" ".join(options)}" ;;')
        for a in _options(parser):
            if a.choices:
                for flag in a.option_strings:
                    choices[flag] = " ".join(map(str, a.choices))
    listed = [f'    {flag}) words="__only {values}" ;;' for flag, values in choices.items()]
    return BASH.format(
        steps="\n".join(steps), cases="\n".join(cases), choices="\n".join(listed) or "    -) ;;"
    )


def _fish(known: Mapping[tuple[str, ...], Parser | None]) -> str:
    names = " ".join(_below(known, ()))
    lines = [
        "complete -c gguflow -f -n __fish_use_subcommand",
        "complete -c gguflow -f -n __fish_use_subcommand -a help -d 'options of a command'",
        f"complete -c gguflow -f -n '__fish_seen_subcommand_from help' -a '{names}'",
    ]
    for words, parser in known.items():
        seen = [f"__fish_seen_subcommand_from {word}" for word in words]
        above = "__fish_use_subcommand" if len(words) == 1 else "; and ".join(seen[:-1])
        summary = parser.description if parser is not None else "commands"
        lines.append(f"complete -c gguflow -f -n {_q(above)} -a {words[-1]} -d {_q(summary or '')}")
        if parser is not None and (chosen := _chosen(parser)):
            lines.append(
                f"complete -c gguflow -f -n {_q('; and '.join(seen))} -a {_q(' '.join(chosen))}"
            )
        for a in _options(parser) if parser is not None else ():
            line = f"complete -c gguflow -n {_q('; and '.join(seen))}"
            for flag in a.option_strings:
                kind = "-l" if flag.startswith("--") else "-s" if len(flag) == 2 else "-o"
                line += f" {kind} {flag.lstrip('-')}"
            if a.nargs != 0:
                line += f" -x -a {_q(' '.join(map(str, a.choices)))}" if a.choices else " -r -F"
            lines.append(f"{line} -d {_q(' '.join((a.help or '').replace('%%', '%').split()))}")
    return "\n".join(lines) + "\n"


def _q(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
