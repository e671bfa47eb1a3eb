"""What a line that begins with a slash does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gguflow.engine.dataclass import dataclass, fields, replace
from gguflow.engine.sampling import SamplerError, SamplerSettings

from ..errors import UsageError
from ..load import note
from ..parser import nearest
from ..prompt import read_file
from .conversation import Conversation


@dataclass
class Talk:
    """What commands work on. attached: files that go with the next message. again: whether the last
    message is to be answered now."""

    conversation: Conversation
    shows_thoughts: bool = True
    attached: str = ""
    again: bool = False
    is_over: bool = False


def take(talk: Talk, line: str) -> bool:
    """Do what a line asks; False for one that is a message. Two slashes begin a message with
    one."""
    if not line.startswith("/") or line.startswith("//"):
        return False
    name, _, rest = line[1:].partition(" ")
    if not name.isalpha():
        return False
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        hint = nearest(name, [*COMMANDS])
        note(f"there is no /{name}{hint}; /help lists what there is")
        return True
    try:
        command(talk, rest.strip())
    except OSError as e:
        note(f"/{name} {rest.strip()}: {e.strerror or e}")
    except (UsageError, SamplerError) as e:
        note(" ".join(str(e).replace("`", "").split()))
    return True


def _help(talk: Talk, rest: str) -> None:
    """what there is"""
    for name, command in COMMANDS.items():
        note(f"  /{name:<8}{' '.join((command.__doc__ or '').split())}")
    note('  """     begins and ends a message of several lines; so does Alt-Enter, and a paste')
    note("  Ctrl-C  clears the line or stops an answer; on an empty line it ends the program")


def _regen(talk: Talk, rest: str) -> None:
    """another answer to the last message"""
    messages = talk.conversation.messages
    if not messages:
        note("there is nothing to answer again")
        return
    if messages[-1]["role"] == "assistant":
        messages.pop()
    o = talk.conversation.options
    if o.settings.seed is not None:  # or it would be the same again
        o.settings = replace(o.settings, seed=o.settings.seed + 1)
    talk.again = True


def _undo(talk: Talk, rest: str) -> None:
    """takes back the last message and its answer"""
    text = talk.conversation.undo()
    note("there is nothing to take back" if text is None else f"taken back: {_short(text)}")


def _set(talk: Talk, rest: str) -> None:
    """NAME VALUE: a sampler setting (temperature, top_k, ...) or n_predict; without, shows them"""
    o = talk.conversation.options
    name, _, text = rest.partition(" ")
    if not text:
        known = {f.name: getattr(o.settings, f.name) for f in fields(SamplerSettings)}
        known["n_predict"] = o.n_predict
        if name and name not in known:
            raise UsageError(f"there is no setting {name}{nearest(name, [*known])}")
        for field in [name] if name else known:
            note(f"  {field} {known[field]!r}")
        return
    if name == "n_predict":
        n = int(_number(name, text, whole=True))
        if n < -1:
            raise UsageError(f"n_predict {n}: expected -1, for no limit, or more")
        o.n_predict = n
    else:
        o.settings = replace(o.settings, **{name: _value(name, text)})
    note(f"{name} is {text.strip()}")


def _value(name: str, text: str) -> Any:
    kinds = {f.name: type(f.default) for f in fields(SamplerSettings)}
    if name not in kinds:
        raise UsageError(f"there is no setting {name}{nearest(name, [*kinds, 'n_predict'])}")
    if kinds[name] is tuple:
        return tuple(x for x in text.replace(";", ",").split(",") if x)
    if name == "seed" and text.strip() == "-1":
        return None
    return _number(name, text, whole=kinds[name] is int or name == "seed")


def _number(name: str, text: str, whole: bool) -> float | int:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "whole number" if whole else "number"
        raise UsageError(f"{name} {text}: expected a {kind}") from None


def _show(talk: Talk, rest: str) -> None:
    """the model, how full the context is, the system message, the conversation"""
    c = talk.conversation
    note(f"model: {c.model.source.path}")
    note(f"context: {c.n_tokens()} of {c.model.options.n_ctx} tokens")
    note(f"format: {c.template.name}")
    note(f"system: {c.system or '(none)'}")
    for message in c.messages:
        note(f"{message['role']}: {_short(message['content'])}")


def _save(talk: Talk, rest: str) -> None:
    """FILE: keeps the conversation"""
    talk.conversation.save(_needed(rest, "/save FILE"))
    note(f"saved {rest}")


def _load(talk: Talk, rest: str) -> None:
    """FILE: goes on with one that was kept"""
    talk.conversation.load(_needed(rest, "/load FILE"))
    note(f"{len(talk.conversation.messages)} messages of {rest}")


def _system(talk: Talk, rest: str) -> None:
    """TEXT: the system message from now on; alone, none"""
    talk.conversation.system = rest
    note("the system message is set" if rest else "there is no system message")


def _file(talk: Talk, rest: str) -> None:
    """PATH: sends a text file with the next message"""
    path = _needed(rest, "/file PATH")
    text = read_file(path, "/file")
    talk.attached += f"{path}:\n```\n{text}\n```\n\n"
    note(f"{path}: {len(text)} characters go with the next message")


def _think(talk: Talk, rest: str) -> None:
    """on or off: asks the model to think first, or not; show or hide: its thoughts"""
    if rest in ("show", "hide"):
        talk.shows_thoughts = rest == "show"
    elif rest in ("on", "off"):
        talk.conversation.options.thinks = rest == "on"
        if rest == "on" and talk.conversation.options.budget == 0:
            talk.conversation.options.budget = -1
    else:
        raise UsageError("/think on, off, show or hide")
    note(f"thoughts: {rest}")


def _clear(talk: Talk, rest: str) -> None:
    """forgets the conversation"""
    talk.conversation.clear()
    talk.attached = ""
    note("the conversation is forgotten")


def _bye(talk: Talk, rest: str) -> None:
    """ends the program"""
    talk.is_over = True


def _needed(rest: str, usage: str) -> str:
    if not rest:
        raise UsageError(usage)
    return rest


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:67] + "..."


COMMANDS: Mapping[str, Callable[[Talk, str], None]] = {
    "help": _help, "regen": _regen, "undo": _undo, "set": _set, "show": _show, "save": _save,
    "load": _load, "system": _system, "file": _file, "think": _think, "clear": _clear, "bye": _bye,
}  # fmt: skip
ALIASES = {"reset": "clear", "exit": "bye", "quit": "bye"}
