"""An answer as /v1/responses writes it: items, and the typed events they come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gguflow.engine.dataclass import dataclass, field

from .answer import Answers
from .events import typed_event
from .reading import Reader, Taken

if TYPE_CHECKING:
    from .errors import ApiError
    from .exchange import Exchange
    from .schema.responses import ResponsesBody

# The event that has more of an item, and the one that has all of it.
_EVENTS = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


@dataclass
class Item:
    """An item of the output. call: the number of a call among the answer's."""

    kind: Literal["reasoning", "message", "function_call"]
    id: str
    call: int = -1
    text: list[str] = field(default_factory=list)
    over: bool = False  # whether something stands behind it


class Reply:
    """The answer as this endpoint writes it."""

    def __init__(
        self, exchange: Exchange, body: ResponsesBody, model: str, reader: Reader, answers: Answers
    ) -> None:
        self.exchange, self.body, self.model = exchange, body, model
        self.reader, self.answers = reader, answers
        self._n = 0  # events sent
        self._items: list[Item] = []

    # -- what there is ---------------------------------------------------------------------------

    def _take(self, taken: Taken) -> list[tuple[int, str]]:
        """Adds what is new to the items; which got how much."""
        found = []
        if taken.reasoning:
            found.append((self._at("reasoning"), taken.reasoning))
        if taken.text:
            found.append((self._at("message"), taken.text))
        for d in taken.calls:
            found.append((self._at("function_call", d.index), d.arguments))
        for at, text in found:
            self._items[at].text.append(text)
        return found

    def _at(self, kind: Literal["reasoning", "message", "function_call"], call: int = -1) -> int:
        """The item that takes more of a kind: the last one, or a new one behind it."""
        items = self._items
        if items and (items[-1].kind, items[-1].call) == (kind, call):
            return len(items) - 1
        name = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        if items:
            items[-1].over = True
        items.append(Item(kind, f"{name}_{self.exchange.id}_{len(items)}", call))
        return len(items) - 1

    def document(self, status: str | None = None) -> dict[str, Any]:
        """The response object."""
        body, reader = self.body, self.reader
        cut = reader.finish == "length"
        status = status or ("incomplete" if cut else "completed")
        done = status in ("completed", "incomplete")
        usage = self.answers.usage(reader.n_reasoning)
        given = body.model_dump(exclude_none=True, by_alias=True)
        return {
            "id": f"resp_{self.exchange.id}", "object": "response",
            "created_at": int(self.exchange.began), "model": self.model, "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if done and cut else None,
            "instructions": body.instructions, "metadata": body.metadata or {},
            "max_output_tokens": body.max_output_tokens,
            "output": [self._written(item) for item in self._items] if done else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None, "store": False,
            "reasoning": {"effort": None, "summary": None, **given.get("reasoning", {})},
            "temperature": body.temperature, "top_p": body.top_p,
            "text": given.get("text", {"format": {"type": "text"}}),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": [{"strict": None, "parameters": None, **t} for t in given.get("tools", [])],
            "truncation": "disabled",
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {
                    **usage["prompt_tokens_details"], "cache_write_tokens": 0,
                },
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": usage["completion_tokens_details"],
                "total_tokens": usage["total_tokens"],
            } if done else None,
        }  # fmt: skip

    def _written(self, item: Item, begun: bool = False) -> dict[str, Any]:
        """An item; begun: as it is when it begins."""
        status = "completed" if item.over or self.reader.finish != "length" else "incomplete"
        text = "" if begun else "".join(item.text)
        out: dict[str, Any] = {
            "id": item.id, "type": item.kind, "status": "in_progress" if begun else status
        }  # fmt: skip
        if item.kind == "function_call":
            call = self.reader.calls[item.call]
            return out | {"call_id": call.id, "name": call.name, "arguments": text}
        parts = [] if begun else [_part(item, text)]
        if item.kind == "reasoning":
            return out | {"summary": [], "content": parts, "encrypted_content": None}
        return out | {"role": "assistant", "content": parts}

    # -- sent ------------------------------------------------------------------------------------

    async def whole(self) -> None:
        """The answer in one document."""
        async for _, piece in self.answers.pieces():
            self._take(self.reader.take(piece))
        self._ensure()
        await self.exchange.json(self.document())

    async def stream(self) -> None:
        """All events of the answer."""
        n_begun = 0
        async for _, piece in self.answers.pieces():
            if not self.exchange.streams:
                self.exchange.error_event = self._error
                await self.exchange.begin_events()
                for name in ("created", "in_progress"):
                    await self._send(f"response.{name}", response=self.document("in_progress"))
            for at, text in self._take(self.reader.take(piece)):
                if at >= n_begun:
                    if at:
                        await self._end(at - 1)
                    await self._begin(at)
                    n_begun = at + 1
                if text:
                    await self._more(at, text)
        if self._ensure():
            await self._begin(0)
        await self._end(len(self._items) - 1)
        document = self.document()
        await self._send(f"response.{document['status']}", response=document)
        await self.exchange.end_events()

    def _ensure(self) -> bool:
        """An answer of nothing is an empty message."""
        if self._items:
            return False
        self._at("message")
        return True

    async def _begin(self, at: int) -> None:
        item = self._items[at]
        await self._send(
            "response.output_item.added", output_index=at, item=self._written(item, begun=True)
        )
        if item.kind != "function_call":
            await self._send("response.content_part.added", **self._where(at), part=_part(item, ""))

    async def _more(self, at: int, text: str) -> None:
        item = self._items[at]
        logprobs: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        await self._send(f"{_EVENTS[item.kind]}.delta", **self._where(at), delta=text, **logprobs)

    async def _end(self, at: int) -> None:
        item = self._items[at]
        text, kind = "".join(item.text), _EVENTS[item.kind]
        if item.kind == "function_call":
            call = self.reader.calls[item.call]
            await self._send(f"{kind}.done", **self._where(at), name=call.name, arguments=text)
        else:
            logprobs: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
            await self._send(f"{kind}.done", **self._where(at), text=text, **logprobs)
            part = _part(item, text)
            await self._send("response.content_part.done", **self._where(at), part=part)
        await self._send("response.output_item.done", output_index=at, item=self._written(item))

    def _where(self, at: int) -> dict[str, Any]:
        item = self._items[at]
        part = {} if item.kind == "function_call" else {"content_index": 0}
        return {"item_id": item.id, "output_index": at, **part}

    async def _send(self, kind: str, **fields: Any) -> None:
        await self.exchange.event(typed_event(kind, self._n, fields))
        self._n += 1  # not before: an event that was cancelled while it waited was never sent

    def _error(self, error: ApiError) -> bytes:
        """What ends the stream when something goes wrong in its middle."""
        told = error.body()["error"]
        fields = {name: told[name] for name in ("code", "message", "param")}
        return typed_event("error", self._n, fields)


def _part(item: Item, text: str) -> dict[str, Any]:
    if item.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
