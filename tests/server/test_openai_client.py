"""The official client: what it sends is understood, what comes back it understands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field
from serving import Running

openai = pytest.importorskip("openai", reason="openai is missing: pip install 'gguflow[dev]'")

MODEL = "tales-8m"
HI = [{"role": "user", "content": "Tell me of the king."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "visit",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"enum": ["castle", "forest"]},
                "days": {"type": "integer", "minimum": 0, "maximum": 30},
            },  # fmt: skip
            "required": ["place", "days"],
            "additionalProperties": False,
        },
    },
}


class Hero(BaseModel):
    """What structured answers are parsed into."""

    name: str = Field(max_length=12)
    kind: Literal["fox", "king"]
    age: int = Field(ge=0, le=99)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as c:
        yield c


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=12, seed=1)
    choice = answer.choices[0]
    assert choice.finish_reason == "length" and choice.message.content
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    again = client.chat.completions.create(
        model=MODEL, messages=HI, max_completion_tokens=12, seed=1
    )
    assert again.choices[0].message.content == choice.message.content


def test_chat_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=24, seed=3)
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=24, seed=3, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices


def test_several_answers_and_their_seeds(client: openai.OpenAI) -> None:
    many = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=10, seed=7, n=3)
    alone = [
        client.chat.completions.create(model=MODEL, messages=HI, max_tokens=10, seed=7 + i)
        for i in range(3)
    ]
    texts = [c.message.content for c in many.choices]
    assert texts == [a.choices[0].message.content for a in alone]
    assert [c.index for c in many.choices] == [0, 1, 2]


def test_stop_strings(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}
    whole = client.completions.create(**ask).choices[0].text
    mark = whole[20:24]
    cut = client.completions.create(**ask, stop=["never this", mark]).choices[0]
    assert cut.text == whole[: whole.index(mark)] and cut.finish_reason == "stop"


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 5
    for e in entries:
        assert e.logprob == e.top_logprobs[0].logprob and e.token == e.top_logprobs[0].token
        assert len(e.top_logprobs) == 3 and e.logprob <= 0
        assert bytes(e.bytes).decode("utf-8", "replace") == e.token
    assert "".join(e.token for e in entries) == answer.choices[0].message.content


def test_echo_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Once upon a", max_tokens=2, temperature=0, logprobs=2, echo=True
    )
    choice = answer.choices[0]
    assert choice.text.startswith("Once upon a") and len(choice.text) > len("Once upon a")
    found = choice.logprobs
    assert found.token_logprobs[0] is None and all(p <= 0 for p in found.token_logprobs[1:])
    assert len(found.tokens) == len(found.text_offset) == answer.usage.total_tokens
    assert found.tokens[2] == " upon" and len(found.top_logprobs[2]) == 2


def test_completions_of_several_prompts_and_of_token_ids(
    client: openai.OpenAI, server: Running
) -> None:
    texts = ["Once upon a time", "The king said", "In the forest"]
    ids = [server.loaded.tokenizer.encode(t) for t in texts]
    ask = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    alone = [client.completions.create(prompt=t, **ask).choices[0].text for t in texts]
    for prompt in (texts, ids):
        together = client.completions.create(prompt=prompt, **ask)
        assert [c.text for c in together.choices] == alone
    assert client.completions.create(prompt=ids[0], **ask).choices[0].text == alone[0]


def test_structured_output(client: openai.OpenAI) -> None:
    for seed in range(4):
        answer = client.chat.completions.parse(
            model=MODEL, messages=HI, response_format=Hero, max_tokens=200, seed=seed
        )
        assert isinstance(answer.choices[0].message.parsed, Hero)
        assert answer.choices[0].finish_reason == "stop"


def test_an_answer_cut_inside_its_form_says_so(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=3, response_format={"type": "json_object"}
    )
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "visit"}}]
)
def test_tools(client: openai.OpenAI, choice: object) -> None:
    ask = {"model": MODEL, "messages": HI, "tools": [TOOL], "tool_choice": choice, "seed": 5,
           "max_tokens": 200, "parallel_tool_calls": False}  # fmt: skip
    answer = client.chat.completions.create(**ask).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls
    assert call.function.name == "visit"
    arguments = json.loads(call.function.arguments)
    assert arguments["place"] in ("castle", "forest") and isinstance(arguments["days"], int)
    parts, finish = [], None
    for chunk in client.chat.completions.create(**ask, stream=True):
        parts += chunk.choices[0].delta.tool_calls or []
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "tool_calls"
    assert parts[0].id and parts[0].function.name == "visit"
    assert "".join(p.function.arguments for p in parts) == call.function.arguments
    # The conversation goes on with the result.
    said = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "It rained."}
    more = client.chat.completions.create(
        model=MODEL, messages=[*HI, said, result], tools=[TOOL], max_tokens=5
    )
    assert more.choices[0].message.content


def test_tools_that_may_not_be_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, tools=[TOOL], tool_choice="none", max_tokens=5
    )
    assert answer.choices[0].message.tool_calls is None


def test_embeddings(client: openai.OpenAI, server: Running) -> None:
    texts = ["the king", "the old king", "a frog in the well"]
    floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    coded = client.embeddings.create(model=MODEL, input=texts)  # base64, by the client's default
    for a, b in zip(floats.data, coded.data, strict=True):
        assert np.allclose(a.embedding, b.embedding)
        assert np.isclose(np.linalg.norm(a.embedding), 1, atol=1e-5)
    v = np.array([d.embedding for d in floats.data])
    assert v.shape == (3, server.loaded.model.hp.n_embd)
    assert v[0] @ v[1] > v[0] @ v[2]
    last = client.embeddings.create(model=MODEL, input=texts[0], extra_body={"pooling": "last"})
    assert not np.allclose(last.data[0].embedding, v[0], atol=1e-3)


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL, input="Tell me of the king.", instructions="Be short.", max_output_tokens=9
    )
    assert answer.status == "incomplete" and answer.output_text
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 9


def test_responses_streamed(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input=HI, max_output_tokens=15, temperature=0
    ) as stream:
        kinds, text = [], ""
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = event.response
    assert text == final.output_text
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    chat = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=15, temperature=0)
    assert chat.choices[0].message.content == text


def test_responses_with_tools_and_forms(client: openai.OpenAI) -> None:
    flat = {"type": "function", **TOOL["function"]}
    answer = client.responses.create(
        model=MODEL, input=HI, tools=[flat], tool_choice="required", max_output_tokens=200,
        parallel_tool_calls=False, extra_body={"seed": 5},
    )  # fmt: skip
    (call,) = answer.output
    assert call.type == "function_call" and json.loads(call.arguments)["place"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rained."}
    more = client.responses.create(
        model=MODEL, input=[*HI, call.to_dict(), result], max_output_tokens=5
    )
    assert more.output_text
    parsed = client.responses.parse(
        model=MODEL, input=HI, text_format=Hero, max_output_tokens=200, extra_body={"seed": 2}
    )
    assert isinstance(parsed.output_parsed, Hero)


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "gguflow"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
