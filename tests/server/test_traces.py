"""OpenTelemetry spans of requests."""

from __future__ import annotations

import pytest
from serving import Running

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry is missing: 'gguflow[otel]'")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

from gguflow.server.traces import Traces  # noqa: E402


def test_a_span_a_request() -> None:
    memory = InMemorySpanExporter()
    server = Running()
    server.service.traces = Traces(SimpleSpanProcessor(memory))
    try:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        body = {"prompt": "Once", "max_tokens": 5, "ignore_eos": True}
        status, headers, _ = server.post("/v1/completions", body, {"traceparent": parent})
        assert status == 200
        assert server.post("/v1/completions", {"prompt": [9999]})[0] == 400
    finally:
        server.stop()
    good, bad = memory.get_finished_spans()
    assert good.name == "text_completion tales-8m" and good.parent
    assert f"{good.context.trace_id:032x}" == parent.split("-")[1]
    found = dict(good.attributes or {})
    assert found["gen_ai.usage.output_tokens"] == 5
    assert found["gen_ai.response.id"] == headers["x-request-id"]
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert [e.name for e in good.events] == ["admitted", "first token"]
    assert good.start_time <= good.events[0].timestamp <= good.events[1].timestamp <= good.end_time
    assert not bad.status.is_ok
