"""What chat templates see besides messages: JSON, and llama.cpp's names for some of it."""

from __future__ import annotations

from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from typing import Any

from .options_values import json_object


class _Variables(Action):
    """Adds to what is there; the last one given counts."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        there = getattr(namespace, self.dest)
        setattr(namespace, self.dest, {**there, **(values if self.const is None else self.const)})


def _effort(text: str) -> dict[str, Any]:
    return {} if text == "default" else {"reasoning_effort": text}


def add_template_variables(p: ArgumentParser | _ArgumentGroup, more: str = "") -> None:
    """--chat-template-kwargs and those that set one of them. more: to say of them."""
    to: dict[str, Any] = {
        "dest": "chat_template_kwargs", "action": _Variables, "default": {},
    }  # fmt: skip
    p.add_argument("--chat-template-kwargs", type=json_object, metavar="JSON", **to,
                   help="more for chat templates to see, e.g. '{\"enable_thinking\": false}'"
                   + more)  # fmt: skip
    p.add_argument("--reasoning-effort", type=_effort, metavar="LEVEL", **to,
                   help="what templates see as reasoning_effort: low, medium, high or what the "
                   "model knows; default: as they do by themselves")  # fmt: skip
    for flag, value in (("--reasoning-preserve", True), ("--no-reasoning-preserve", False)):
        p.add_argument(flag, nargs=0, const={"preserve_reasoning": value}, **to,
                       help=f"what templates see as preserve_reasoning: {str(value).lower()}"
                       )  # fmt: skip


def add_thinking(p: ArgumentParser | _ArgumentGroup) -> None:
    """-rea, as what templates see."""

    def seen(text: str) -> dict[str, Any]:
        if text not in ("on", "off", "auto"):
            raise ArgumentTypeError(f"{text}: expected on, off or auto")
        return {} if text == "auto" else {"enable_thinking": text == "on"}

    p.add_argument("-rea", "--reasoning", dest="chat_template_kwargs", action=_Variables,
                   type=seen, default={}, metavar="{on,off,auto}",
                   help="what templates see as enable_thinking; auto: as they do by themselves"
                   )  # fmt: skip
