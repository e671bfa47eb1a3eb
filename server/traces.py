"""OpenTelemetry: a span a request, with what happened to it as events.

Where spans go is as the OTEL_ environment variables say, by default to localhost:4318. A caller's
`traceparent` is the span's parent. Attributes are those of the conventions for generative models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .monitor import Timeline

_OPERATIONS = {"chat": "chat", "response": "chat", "completion": "text_completion",
               "embedding": "embeddings"}  # fmt: skip


class Traces:
    """processor: where spans go, for tests."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        provider = TracerProvider(resource=Resource.create({"service.name": "gguflow"}))
        provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._provider = provider
        self._tracer = provider.get_tracer("gguflow.server")
        self._parents = TraceContextTextMapPropagator()

    def record(self, line: Timeline, headers: Mapping[str, str]) -> None:
        """A request that has ended."""
        operation = _OPERATIONS.get(line.kind, line.kind)
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation, "gen_ai.system": "gguflow",
            "gen_ai.request.model": line.model, "gen_ai.response.id": line.id,
            "gen_ai.usage.input_tokens": line.n_prompt,
            "gen_ai.usage.output_tokens": line.n_generated,
            "gen_ai.response.finish_reasons": [line.finish or ""],
        }  # fmt: skip
        span = self._tracer.start_span(
            f"{operation} {line.model}", context=self._parents.extract(headers),
            kind=trace.SpanKind.SERVER, attributes=attributes, start_time=_ns(line.queued),
        )  # fmt: skip
        if line.admitted:
            span.add_event("admitted", timestamp=_ns(line.admitted))
        if line.times:
            span.add_event("first token", timestamp=_ns(line.times[0]))
        if line.finish == "error":
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=_ns(line.ended))

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
