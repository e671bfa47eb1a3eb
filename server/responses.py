"""/v1/responses: the same conversations under OpenAI's newer names, streamed as typed events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from .answer import Answers
from .asks import unused
from .chat import Reader, Turn
from .errors import ApiError, refused
from .exchange import Exchange
from .schema.base import parse, unknown_fields
from .schema.chat import ChatBody
from .schema.responses import (
    FlatSchemaFormat,
    FlatToolChoice,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    ResponsesBody,
)
from .schema.sampling import SamplingFields

# Where a field of the conversation stands in this endpoint's body.
_NAMES = (("max_completion_tokens", "max_output_tokens"), ("messages", "input"),
          ("response_format.json_schema.schema", "text.format.schema"),
          ("response_format", "text.format"), ("reasoning_effort", "reasoning.effort"))  # fmt: skip


async def responses(exchange: Exchange) -> None:
    """Answer a conversation."""
    body = parse(ResponsesBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    _check(body, exchange)
    chat = to_chat(body)
    async with exchange.service.using(exchange, body.model, "response") as (loaded, line):
        try:
            turn = await Turn.of(loaded, chat, exchange)
        except ApiError as error:
            raise _renamed(error) from None
        answers = Answers(exchange, loaded, [turn.ask], line)
        reply = Reply(exchange, body, loaded.spec.name, turn.reader(loaded), answers)
        if body.stream:
            await reply.stream()
        else:
            async for _, piece in answers.pieces():
                reply.reader.keep(piece)
            await exchange.json(reply.document())
        line.finish = reply.reader.finish


def _check(body: ResponsesBody, exchange: Exchange) -> None:
    """Refuses what this server does not do."""
    unused(body.store, (None, False), "store", "this server keeps no conversations")
    unused(body.previous_response_id, (None,), "previous_response_id", "nothing is kept")
    unused(body.conversation, (None,), "conversation", "nothing is kept")
    unused(body.background, (None, False), "background", "answers are given at once")
    unused(body.truncation, (None, "disabled"), "truncation", "prompts are not cut")
    unused(body.include or None, (None,), "include", "there is nothing else to include")
    unused(body.top_logprobs, (None, 0), "top_logprobs", "given by /v1/chat/completions alone")
    unused(body.max_tool_calls, (None,), "max_tool_calls", "calls are the client's to make")
    if body.reasoning is not None and body.reasoning.summary is not None:
        exchange.warnings.append("reasoning.summary")
    if body.text is not None and body.text.verbosity is not None:
        exchange.warnings.append("text.verbosity")
    exchange.warnings += [n for n in ("user", "service_tier") if getattr(body, n) is not None]


def _renamed(error: ApiError) -> ApiError:
    """A refusal with this endpoint's name of the field."""
    param = error.param or ""
    for chat, here in _NAMES:
        if param == chat or param.startswith(chat + "."):
            message = error.message.replace(param, here + param[len(chat) :], 1)
            return ApiError(error.status, message, param=here + param[len(chat) :],
                            code=error.code, kind=error.kind, headers=error.headers)  # fmt: skip
    return error


def to_chat(body: ResponsesBody) -> ChatBody:
    """The body as /v1/chat/completions takes it. Raises ApiError."""
    fields: dict[str, Any] = {
        name: getattr(body, name)
        for name in [*SamplingFields.model_fields, "parallel_tool_calls"]
        if getattr(body, name) is not None
    }
    fields["messages"] = [*_messages(body)]
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.reasoning is not None and body.reasoning.effort is not None:
        fields["reasoning_effort"] = body.reasoning.effort
    if body.tools:
        fields["tools"] = [
            {"type": "function", "function": t.model_dump(exclude_none=True, exclude={"type"})}
            for t in body.tools
        ]
    if isinstance(body.tool_choice, FlatToolChoice):
        name = {"name": body.tool_choice.name}
        fields["tool_choice"] = {"type": "function", "function": name}
    elif body.tool_choice is not None and (body.tools or body.tool_choice == "required"):
        fields["tool_choice"] = body.tool_choice
    form = body.text.format if body.text is not None else None
    if isinstance(form, FlatSchemaFormat):
        wrapped = {"name": form.name, "schema": form.schema_, "strict": form.strict}
        fields["response_format"] = {"type": "json_schema", "json_schema": wrapped}
    elif form is not None:
        fields["response_format"] = form.model_dump()
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise refused("input", first["msg"]) from None


def _messages(body: ResponsesBody) -> Iterator[dict[str, Any]]:
    if body.instructions is not None:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    calls: list[dict[str, Any]] = []
    for item in body.input:
        if isinstance(item, FunctionCall):
            function = {"name": item.name, "arguments": item.arguments}
            calls.append({"id": item.call_id, "type": "function", "function": function})
            continue
        if calls:  # calls of one turn are one message
            yield {"role": "assistant", "content": None, "tool_calls": calls}
            calls = []
        if isinstance(item, FunctionCallOutput):
            text = item.output
            if not isinstance(text, str):
                text = "".join(p.text for p in text)
            yield {"role": "tool", "tool_call_id": item.call_id, "content": text}
        elif isinstance(item, InputMessage):
            content = item.content
            if not isinstance(content, str):
                content = "".join(p.text for p in content)
            yield {"role": item.role, "content": content}
    if calls:
        yield {"role": "assistant", "content": None, "tool_calls": calls}


class Reply:
    """The answer as this endpoint writes it."""

    def __init__(
        self, exchange: Exchange, body: ResponsesBody, model: str, reader: Reader, answers: Answers
    ) -> None:
        self.exchange, self.body, self.model = exchange, body, model
        self.reader, self.answers = reader, answers
        self._n = 0  # events sent
        self._text_at: int | None = None  # number of the message among the items
        self._items: list[dict[str, Any]] = []

    def document(self, status: str | None = None) -> dict[str, Any]:
        """The response object."""
        body, reader = self.body, self.reader
        cut = reader.finish == "length"
        status = status or ("incomplete" if cut else "completed")
        done = status in ("completed", "incomplete")
        usage = self.answers.usage
        given = body.model_dump(exclude_none=True, by_alias=True)
        return {
            "id": f"resp_{self.exchange.id}", "object": "response",
            "created_at": int(self.exchange.began), "model": self.model, "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if done and cut else None,
            "instructions": body.instructions, "metadata": body.metadata or {},
            "max_output_tokens": body.max_output_tokens,
            "output": self._output() if done else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None, "store": False,
            "temperature": body.temperature, "top_p": body.top_p,
            "text": given.get("text", {"format": {"type": "text"}}),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": [{"strict": None, "parameters": None, **t} for t in given.get("tools", [])],
            "truncation": "disabled",
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            } if done else None,
        }  # fmt: skip

    def _output(self) -> list[dict[str, Any]]:
        items = []
        text = "".join(self.reader.text)
        if text or not self.reader.calls:
            items.append(self._message(text))
        whole = len(self.reader.calls) if self.reader.finish != "length" else 0
        items += [self._call(i, i < whole) for i in range(len(self.reader.calls))]
        return items

    def _message(self, text: str, status: str = "") -> dict[str, Any]:
        cut = self.reader.finish == "length" and not self.reader.calls
        return {
            "id": f"msg_{self.exchange.id}", "type": "message", "role": "assistant",
            "status": status or ("incomplete" if cut else "completed"),
            "content": [] if status == "in_progress" else [_part(text)],
        }  # fmt: skip

    def _call(self, i: int, whole: bool) -> dict[str, Any]:
        call = self.reader.calls[i]
        return {
            "id": f"fc_{self.exchange.id}_{i}", "type": "function_call", "call_id": call.id,
            "name": call.name, "arguments": call.arguments,
            "status": "completed" if whole else "incomplete",
        }  # fmt: skip

    # -- streamed --------------------------------------------------------------------------------

    async def stream(self) -> None:
        """All events of the answer."""
        async for _, piece in self.answers.pieces():
            if not self.exchange.streams:
                await self.exchange.begin_events()
                for name in ("created", "in_progress"):
                    await self._send(f"response.{name}", response=self.document("in_progress"))
            n_calls = len(self.reader.calls)
            before = [c.arguments for c in self.reader.calls]
            n_text = len(self.reader.text)
            self.reader.keep(piece)
            text = "".join(self.reader.text[n_text:])
            if text:
                await self._text(text)
            for i, call in enumerate(self.reader.calls):
                if i >= n_calls:
                    await self._begin_call(i)
                part = call.arguments[len(before[i]) if i < n_calls else 0 :]
                if part:
                    await self._send(
                        "response.function_call_arguments.delta", item_id=self._id(i),
                        output_index=self._at(i), delta=part,
                    )  # fmt: skip
        await self._end()

    async def _text(self, text: str) -> None:
        if self._text_at is None:
            self._text_at = len(self.reader.calls)
            item = self._message("", "in_progress")
            await self._send("response.output_item.added", output_index=self._text_at, item=item)
            await self._send("response.content_part.added", **self._where(), part=_part(""))
        await self._send("response.output_text.delta", **self._where(), delta=text, logprobs=[])

    def _where(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.exchange.id}", "output_index": self._text_at,
                "content_index": 0}  # fmt: skip

    def _id(self, i: int) -> str:
        return f"fc_{self.exchange.id}_{i}"

    def _at(self, i: int) -> int:
        return i + (self._text_at is not None)

    async def _begin_call(self, i: int) -> None:
        item = {**self._call(i, False), "arguments": "", "status": "in_progress"}
        await self._send("response.output_item.added", output_index=self._at(i), item=item)

    async def _end(self) -> None:
        text = "".join(self.reader.text)
        if self._text_at is None and not self.reader.calls:
            await self._text("")
        if self._text_at is not None:
            where = self._where()
            await self._send("response.output_text.done", **where, text=text, logprobs=[])
            await self._send("response.content_part.done", **where, part=_part(text))
            item = self._message(text)
            await self._send("response.output_item.done", output_index=self._text_at, item=item)
        whole = self.reader.finish != "length"
        for i, call in enumerate(self.reader.calls):
            await self._send(
                "response.function_call_arguments.done", item_id=self._id(i),
                output_index=self._at(i), name=call.name, arguments=call.arguments,
            )  # fmt: skip
            item = self._call(i, whole)
            await self._send("response.output_item.done", output_index=self._at(i), item=item)
        document = self.document()
        await self._send(f"response.{document['status']}", response=document)
        await self.exchange.end_events()

    async def _send(self, kind: str, **fields: Any) -> None:
        value = {"type": kind, "sequence_number": self._n, **fields}
        self._n += 1
        data = json.dumps(value, separators=(",", ":"), allow_nan=False)
        await self.exchange.event(f"event: {kind}\ndata: {data}\n\n".encode())


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
