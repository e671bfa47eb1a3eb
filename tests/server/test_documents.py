"""What the documents say of the server is what it has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from argparse import ArgumentParser
from pathlib import Path

import pytest
from serving import Running

from gguflow.cli.serve import add_arguments
from gguflow.server.app import GET, POST
from gguflow.server.openapi import openapi

DOCS = Path(__file__).parents[2] / "docs"


def test_metrics_of_the_dashboard_and_the_document_exist(server: Running) -> None:
    server.post("/v1/completions", {"prompt": "Once", "max_tokens": 3})
    text = server.get("/metrics")[2].decode()
    exported = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    exported |= {f"{name}_bucket" for name in exported}
    dashboard = (DOCS / "grafana.json").read_text(encoding="utf-8")
    json.loads(dashboard)
    document = (DOCS / "server.md").read_text(encoding="utf-8")
    for where in (dashboard, document):
        named = set(re.findall(r"\b((?:vllm|gguflow):[a-z0-9_]+)", where))
        assert len(named) > 10 and named <= exported, named - exported


def test_the_numbers_add_up(server: Running) -> None:
    def value(name: str) -> float:
        text = server.get("/metrics")[2].decode()
        found = re.search(rf'^{re.escape(name)}{{model_name="tales-8m"}} (\S+)$', text, re.M)
        assert found, name
        return float(found[1])

    server.wait_idle()
    names = [f"vllm:{name}" for name in (
        "generation_tokens_total", "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count", "request_prompt_tokens_sum",
    )]  # fmt: skip
    before = [value(n) for n in names]
    usage = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 9, "ignore_eos": True})
    server.wait_idle()
    after = [value(n) for n in names]
    n_prompt = usage[2]["usage"]["prompt_tokens"]
    assert [b - a for a, b in zip(before, after, strict=True)] == [9, 1, 8, n_prompt]
    assert value("vllm:kv_cache_usage_perc") == 0 and value("vllm:num_requests_running") == 0


def test_paths_of_the_document_exist() -> None:
    listed = openapi()["paths"]
    assert set(POST) == {p for p, methods in listed.items() if "post" in methods}
    assert {p for p, m in listed.items() if "get" in m} <= {p.replace(":path", "") for p in GET}
    document = (DOCS / "server.md").read_text(encoding="utf-8")
    for path in [*POST, "/health", "/metrics", "/openapi.json"]:
        assert f"{path.removeprefix('/v1') if path not in document else path}" in document, path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_one(tmp_path: Path) -> None:
    text = (DOCS / "gguflow.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(\S+) serve (.*)$", text, re.M)
    assert command
    unit = tmp_path / "gguflow.service"
    unit.write_text(text.replace(command[1], "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert done.returncode == 0 and "gguflow.service" not in done.stderr, done.stderr
    # Its flags are the command's.
    parser = ArgumentParser()
    add_arguments(parser)
    parser.parse_args(command[2].split())
