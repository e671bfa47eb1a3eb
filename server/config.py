"""What a server is told when it is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.options import Options
from gguflow.engine.sampling import SamplerSettings

# The thread that steps waits at most so long for one that writes answers; Python's own 5 ms are as
# long as a step.
SWITCH = 5e-4  # seconds

# llama-server's names: thoughts in `reasoning_content`, or left in the text with their marks.
ReasoningFormat = Literal["auto", "deepseek", "none"]


@dataclass(frozen=True)
class ModelSpec:
    """A model that may be asked for.

    name: as requests call it. path: its file. options: how it is run, its sequences and cache rows
    among them. template: a chat template's name or text, None for the model's own. adapters: what
    requests call those of the options, and the factor of one that is called so.
    """

    name: str
    path: Path
    options: Options
    template: str | None = None
    adapters: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ServerConfig:
    """Limits and defaults of all requests.

    n_queue: requests a model lets wait; more are answered 429. max_body: bytes of a request.
    max_output: tokens of an answer, -1 for what the context holds. max_choices: `n` times prompts
    of one request. timeout: seconds a request may take, the queue included, and that its reader may
    be behind. header_timeout, body_timeout: seconds to send them in. max_connections: at once, 0
    for no limit. keys: what may stand in `Authorization`; none for an open server. hosts: names the
    server may be called by, none for any. origins: pages of other hosts that may call it. memory:
    bytes for models together, 0 for no limit. idle: seconds after which a model nobody asks for is
    put away, 0 for never. drain: seconds that requests in work get when the server is told to end.
    reasoning_format: where a model's thoughts go; reasoning_budget: tokens of them, -1 for no
    limit; both where a request does not say. template_kwargs: more for chat templates to see, which
    requests may change. access_log: a JSON line a request. page: whether there is one at `/`.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    n_queue: int = 512
    max_body: int = 8 << 20
    max_output: int = -1
    max_choices: int = 128
    timeout: float = 600.0
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    max_connections: int = 0
    memory: int = 0
    idle: float = 0.0
    drain: float = 30.0
    reasoning_format: ReasoningFormat = "auto"
    reasoning_budget: int = -1
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    access_log: bool = True
    page: bool = True
    defaults: SamplerSettings = field(default_factory=SamplerSettings)
