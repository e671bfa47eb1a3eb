"""Requests of a stranger to a server in this process: every answer is below 500, nothing stays."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

from fuzz_mutators import mutate_bytes, mutate_json
from fuzz_targets import SMALL, Finding, Target, folder
from tiny_model import write_tiny

if TYPE_CHECKING:
    from serving import Running

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings",
         "/tokenize", "/detokenize", "/v1/models")  # fmt: skip
ASK = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}  # fmt: skip
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (PATHS[0], {"messages": ASK, "max_tokens": 2, "temperature": 0.5, "seed": 1, "stop": ["!"],
                "logprobs": True, "top_logprobs": 2, "n": 2, "logit_bias": {"5": 1.0}}),
    (PATHS[0], {"messages": ASK, "max_tokens": 4, "tools": [TOOL], "tool_choice": "auto"}),
    (PATHS[0], {"messages": ASK, "max_tokens": 4, "response_format": SCHEMA, "stream": True}),
    (PATHS[1], {"prompt": "!!", "max_tokens": 2, "logprobs": 2, "echo": True, "suffix": None}),
    (PATHS[1], {"prompt": [[5, 6], [7]], "max_tokens": 1, "stream": True,
                "stream_options": {"include_usage": True}}),
    (PATHS[2], {"input": "hi", "max_output_tokens": 2, "instructions": "x"}),
    (PATHS[3], {"input": ["a", "b"], "encoding_format": "base64"}),
)  # fmt: skip
FIELDS = tuple(sorted({k for _, body in BODIES for k in body} | {
    "top_p", "top_k", "min_p", "presence_penalty", "grammar", "json_schema", "ignore_eos", "user",
    "repeat_penalty", "structured_outputs", "stop_token_ids", "model", "store", "best_of", "tools",
    "chat_template_kwargs", "add_generation_prompt", "min_tokens", "text",
    "reasoning"}))  # fmt: skip


def bodies() -> list[bytes]:
    return [f"{path}\n{json.dumps(body)}".encode() for path, body in BODIES]


def mutate_request(raw: bytes, r: Random) -> bytes:
    path, _, text = raw.partition(b"\n")
    if r.random() < 0.05:
        path = r.choice(PATHS).encode()
    if r.random() < 0.1:
        return path + b"\n" + mutate_bytes(text, r)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return path + b"\n" + mutate_bytes(text, r)
    tree = mutate_json(tree, r, FIELDS)
    if isinstance(tree, dict) and isinstance(tree.get("max_tokens"), int):
        tree["max_tokens"] = min(tree["max_tokens"], 4)  # what takes long is not what is looked for
    return path + b"\n" + json.dumps(tree).encode()


@cache
def server() -> Running:
    from dataclasses import replace

    from serving import Running

    from gguflow.server.config import ModelSpec

    path = write_tiny(folder() / "served.gguf")
    spec = ModelSpec("tiny", path, replace(SMALL, n_seqs=4, n_cache=256))
    return Running([spec], timeout=8.0)


def run_request(data: bytes) -> None:
    path, _, body = data.partition(b"\n")
    status, _, answer = server().post(path.decode("latin-1"), body)
    if status >= 500 or not status:
        raise Finding(f"{path!r}: status {status}: {str(answer)[:300]}")


REQUESTS = Target(bodies, mutate_request, run_request)
