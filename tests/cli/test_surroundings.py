"""--in-prefix and --in-suffix: conversations without a chat template."""

from __future__ import annotations

from argparse import Namespace

import pytest
from test_llama_options import parsed

from gguflow.cli import chat
from gguflow.cli.errors import UsageError
from gguflow.cli.surroundings import surroundings
from gguflow.cli.talk.conversation import Conversation, TalkOptions
from gguflow.engine.model import Model
from gguflow.engine.sampling import SamplerSettings
from gguflow.models.chat import ChatTemplate

MESSAGES = [
    {"role": "user", "content": "a {{ b }}\n"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]


def rendered(*words: str) -> str:
    source = surroundings(Namespace(**parsed(chat, list(words))))
    assert source is not None
    return ChatTemplate(source, "<s>", "</s>").render(MESSAGES)


def test_messages_stand_between_them() -> None:
    assert rendered("--in-prefix", " ", "--in-suffix", r"\nBot:") == " a {{ b }}\n\nBot:c d\nBot:"
    assert rendered("--in-suffix", '"{%é😀', "--no-escape") == 'a {{ b }}\n"{%é😀cd"{%é😀'
    assert rendered("--in-prefix", r"\n", "--no-escape") == r"\na {{ b }}" + "\n" + r"c\nd"
    assert rendered("--in-prefix-bos") == "<s>a {{ b }}\nc<s>d"
    assert surroundings(Namespace(**parsed(chat, []))) is None


def test_not_beside_a_template() -> None:
    with pytest.raises(UsageError, match="--in-suffix: not with a chat template"):
        surroundings(Namespace(**parsed(chat, ["--in-suffix", "x", "--chat-template", "chatml"])))


def test_what_ends_an_answer_stays(tiny_model: str) -> None:
    model = Model.load(tiny_model, n_threads=1)
    template = ChatTemplate(surroundings(Namespace(**parsed(chat, ["--in-prefix", " "]))) or "")
    settings = SamplerSettings(temperature=0)

    def answer(stops: list[str], keeps: bool) -> tuple[str, str]:
        """What is shown, and what the next turn sees."""
        options = TalkOptions(settings, 12, True, stops=stops, keeps_stops=keeps)
        conversation = Conversation(model, template, options, model.new_session())
        conversation.say("Hello")
        shown = "".join(part.text for part in conversation.reply())
        conversation.commit()
        return shown, conversation.messages[-1]["content"]

    whole, _ = answer([], True)
    stop = whole[3]
    shown = whole[: whole.index(stop)]
    assert answer([stop], True) == (shown, shown + stop)
    assert answer([stop], False) == (shown, shown)


def test_a_chat_with_them(call, tiny_model: str) -> None:
    words = ("chat", "-m", tiny_model, "-p", "Hi", "-st", "-n", "3", "--temp", "0", "-t", "1", "-q")
    plain = call(*words)
    code, out, err = call(*words, "--in-prefix", "", "--in-suffix", "")
    assert code == 0 and out and err == ""
    assert call("generate", "-m", tiny_model, "-p", "Hi", "-n", "3", "--temp", "0", "-t", "1", "-q",
                "--no-display-prompt")[1] == out != plain[1]  # fmt: skip
