"""What all endpoints share: the models, the limits, the metrics, who is being answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .config import ServerConfig
from .manager import Loaded, ModelManager
from .metrics import Metrics
from .monitor import Requests, Timeline

if TYPE_CHECKING:
    from .exchange import Exchange
    from .traces import Traces


class Service:
    """ending: whether the server was told to end, which nothing endless may hold up. failure: what
    kept it from starting. traces: where spans of requests go, None for nowhere."""

    def __init__(self, manager: ModelManager, config: ServerConfig) -> None:
        self.manager, self.config = manager, config
        self.metrics = Metrics(manager.loaded)
        self.requests = Requests()
        self.ending: Callable[[], bool] = lambda: False
        self.failure: Exception | None = None
        self.traces: Traces | None = None

    @asynccontextmanager
    async def using(
        self, exchange: Exchange, model: str | None, kind: str
    ) -> AsyncIterator[tuple[Loaded, Timeline]]:
        """A model for a request, and the request's timeline. The client's leaving cancels what is
        done inside."""
        async with exchange.watch(), self.manager.use(model) as loaded:
            line = Timeline(exchange.id, loaded.spec.name, kind, exchange.key)
            self.requests.begin(line)
            finish = "cancel"
            try:
                yield loaded, line
                finish = "done"
            except Exception:
                finish = "error"
                raise
            finally:
                self.requests.end(line, finish)
                if self.traces is not None:
                    self.traces.record(line, exchange.headers)
                exchange.scope["gguflow.facts"] = {
                    "model": line.model, "prompt_tokens": line.n_prompt,
                    "completion_tokens": line.n_generated, "finish": line.finish,
                }  # fmt: skip

    def retry_after(self, loaded: Loaded) -> int:
        """Seconds until the queue may have room: what it takes to work it off at today's pace."""
        steps = loaded.watched.steps
        recent = [*steps][-50:]
        rate = sum(s.n_generated for s in recent) / max(1e-3, sum(s.ms for s in recent) / 1e3)
        waiting = loaded.gate.n_waiting + loaded.gate.n_inside
        return max(1, min(60, round(waiting * 64 / rate / 4))) if rate else 1
