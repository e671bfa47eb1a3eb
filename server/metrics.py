"""Prometheus metrics: vLLM's names where they mean the same, `gguflow:` for the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .manager import Loaded

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
          40, 80, 160)  # fmt: skip
_BETWEEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
            0.75, 1, 2.5)  # fmt: skip
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 600)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_NAME = ("model_name",)


class Metrics:
    """loaded: the models in memory, whose engines say how they are when somebody looks."""

    def __init__(self, loaded: Callable[[], Iterable[Loaded]]) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(_Engines(loaded))
        r = self.registry
        self.first = Histogram(
            "vllm:time_to_first_token_seconds", "From the request to its first token.",
            _NAME, buckets=_FIRST, registry=r,
        )  # fmt: skip
        self.between = Gaps("vllm:inter_token_latency_seconds", "Between two tokens of a request.")
        r.register(self.between)
        self.whole = Histogram(
            "vllm:e2e_request_latency_seconds", "From the request to its last token.",
            _NAME, buckets=_WHOLE, registry=r,
        )  # fmt: skip
        self.queued = Histogram(
            "vllm:request_queue_time_seconds", "Waiting for a place.",
            _NAME, buckets=_WHOLE, registry=r,
        )  # fmt: skip
        self.n_prompt = Histogram(
            "vllm:request_prompt_tokens", "Tokens of a prompt.", _NAME, buckets=_TOKENS, registry=r
        )
        self.n_generated = Histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request.", _NAME,
            buckets=_TOKENS, registry=r,
        )  # fmt: skip
        self.success = Counter(
            "vllm:request_success", "Requests that ended, by why.",
            (*_NAME, "finished_reason"), registry=r,
        )  # fmt: skip
        self.errors = Counter(
            "gguflow:request_errors", "Requests that an error ended, by kind.",
            (*_NAME, "kind"), registry=r,
        )  # fmt: skip
        self.rejected = Counter(
            "gguflow:requests_rejected", "Requests answered 429.", _NAME, registry=r
        )
        self.responses = Counter(
            "gguflow:http_responses", "HTTP responses.", ("method", "path", "status"), registry=r
        )

    def http(self, scope: Any, status: int) -> None:
        """A response was sent. Paths that are none are one."""
        path = scope.get("gguflow.route", "other")
        method = scope["method"] if scope["method"] in ("GET", "POST") else "other"
        self.responses.labels(method, path, str(status)).inc()

    def text(self) -> bytes:
        """All of them in Prometheus' text form."""
        return generate_latest(self.registry)


class Gaps(Collector):
    """A histogram by model for what happens with every token: a list to add to and no locks, since
    all of it happens in the event loop."""

    def __init__(self, name: str, what: str) -> None:
        self._name, self._what = name, what
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, model: str, seconds: float, n: int) -> None:
        """n times so many seconds."""
        counts = self._counts.get(model)
        if counts is None:
            counts = self._counts[model] = [0] * (len(_BETWEEN) + 1)
            self._sums[model] = 0.0
        counts[bisect_left(_BETWEEN, seconds)] += n
        self._sums[model] += seconds * n

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._what, labels=_NAME)
        for model, counts in self._counts.items():
            tops = [*map(str, map(float, _BETWEEN)), "+Inf"]
            buckets = [*zip(tops, accumulate(counts), strict=True)]
            family.add_metric([model], buckets, self._sums[model])
        yield family


class _Engines(Collector):
    """What the engines count themselves."""

    def __init__(self, loaded: Callable[[], Iterable[Loaded]]) -> None:
        self._loaded = loaded

    def collect(self) -> Iterable[Metric]:
        gauges = {
            name: GaugeMetricFamily(name, what, labels=_NAME)
            for name, what in (
                ("vllm:num_requests_running", "Requests in the batch."),
                ("vllm:num_requests_waiting", "Requests that wait for a place."),
                ("vllm:kv_cache_usage_perc", "Share of the KV cache's pages in use, 0 to 1."),
                ("gguflow:kv_pages", "Pages of the KV cache."),
                ("gguflow:kv_pages_available", "Pages nobody needs now."),
                ("gguflow:model_bytes", "Memory a model takes."),
            )
        }
        counts = {
            name: CounterMetricFamily(name, what, labels=_NAME)
            for name, what in (
                ("vllm:prompt_tokens", "Tokens of prompts, computed or found."),
                ("vllm:generation_tokens", "Tokens generated."),
                ("vllm:prefix_cache_queries", "Tokens of prompts looked for in the cache."),
                ("vllm:prefix_cache_hits", "Tokens of prompts found in the cache."),
                ("vllm:num_preemptions", "Requests that gave their pages back."),
                ("vllm:spec_decode_num_draft_tokens", "Tokens drafted."),
                ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted."),
                ("gguflow:engine_steps", "Runs of the model."),
            )
        }
        for m in self._loaded():
            s, name = m.watched.stats, [m.spec.name]
            total, free = sum(s.n_pages.values()), sum(s.n_available.values())
            gauges["vllm:num_requests_running"].add_metric(name, s.n_running)
            waiting = s.n_waiting + m.gate.n_waiting
            gauges["vllm:num_requests_waiting"].add_metric(name, waiting)
            used = 1 - free / total if total else 0.0
            gauges["vllm:kv_cache_usage_perc"].add_metric(name, used)
            gauges["gguflow:kv_pages"].add_metric(name, total)
            gauges["gguflow:kv_pages_available"].add_metric(name, free)
            gauges["gguflow:model_bytes"].add_metric(name, m.nbytes)
            prompt = s.n_prompt + s.n_found
            counts["vllm:prompt_tokens"].add_metric(name, prompt)
            counts["vllm:generation_tokens"].add_metric(name, s.n_generated)
            counts["vllm:prefix_cache_queries"].add_metric(name, prompt)
            counts["vllm:prefix_cache_hits"].add_metric(name, s.n_found)
            counts["vllm:num_preemptions"].add_metric(name, s.n_preempted)
            counts["gguflow:engine_steps"].add_metric(name, s.n_steps)
            drafted, accepted = s.drafting.drafted, s.drafting.accepted
            counts["vllm:spec_decode_num_draft_tokens"].add_metric(name, drafted)
            counts["vllm:spec_decode_num_accepted_tokens"].add_metric(name, accepted)
        yield from gauges.values()
        yield from counts.values()
