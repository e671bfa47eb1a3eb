"""python tests/fuzz/fault_serve.py: allocations are refused, one after the other, while a server of
the bundled model answers requests. Each is answered with the text it has alone, or with an error,
or its connection is closed; nobody waits in vain, and whoever comes afterwards is answered. A
server that has no memory for a connection may end.

The server is a process of its own into which fault_shim.c is preloaded, and which is told by its
standard input what to refuse: the n-th allocation of --least bytes or more, 0 for none.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "server")]

from fault_sweep import build  # noqa: E402

from gguflow.cli.errors import NO_RESOURCES, exit_code  # noqa: E402

LATE = 30.0  # seconds that an answer may take
MEMORY = 1
LONG = " ".join(["The little dog saw a big red ball in the garden."] * 12)
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12}),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 8, "logprobs": 2}),
    ("/v1/completions", {"prompt": "Tom and Sue", "max_tokens": 12, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}),
    ("/v1/completions", {"prompt": "Say", "max_tokens": 12, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": {
            "type": "object", "properties": {"a": {"type": "integer"}}}}}}),
]  # fmt: skip


def serve() -> None:
    """The server's process: a line of what to refuse, a line of how many calls there were."""
    from serving import Running

    server = Running(timeout=LATE / 2)
    shim = ctypes.CDLL(None)

    def end() -> None:
        """With the server, should it end by itself: as the command does."""
        server._thread.join()
        if server.service.failure is not None:
            os._exit(exit_code(server.service.failure))

    threading.Thread(target=end, daemon=True).start()
    print(server.port, flush=True)
    while line := os.read(0, 64):  # with no buffers, whose allocation might be the one refused
        n, least = map(int, line.split())
        calls = shim.fault_calls()
        shim.fault_arm(MEMORY if n else 0, ctypes.c_long(n), errno.ENOMEM, ctypes.c_size_t(least))
        os.write(1, b"%d\n" % (0 if n else calls))
    server.stop()


class Ended(Exception):
    """The server is no more."""


class Served:
    """That process."""

    def __init__(self, shim: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--server"], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "LD_PRELOAD": str(shim)},
        )  # fmt: skip
        self.port = int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended
        return line

    def refuse(self, n: int, least: int) -> int:
        """Refuse the n-th call from here on, none if 0; how many there were since the last time."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{n} {least}\n")
        self.process.stdin.flush()
        return int(self._line())

    def ask(self, path: str, body: dict[str, Any]) -> tuple[str, str]:
        """(how it ended, its text): `text`, `error` or `closed`. Raises TimeoutError."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LATE)
        try:
            data = json.dumps({**body, "temperature": 0})
            connection.request("POST", path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            raw = response.read().decode()
        except TimeoutError:
            raise AssertionError(f"{path} {body}: no answer in {LATE} s") from None
        except (OSError, HTTPException):
            return "closed", ""
        finally:
            connection.close()
        if response.status == 200:
            return read_text(raw, bool(body.get("stream")))
        assert response.status >= 500, f"{path} {body}: {response.status} {raw}"
        # uvicorn's own text where there was no memory to make an error of the API.
        assert raw == "Internal Server Error" or json.loads(raw)["error"]["message"]
        return "error", ""

    def settle(self) -> None:
        """Until nobody is in work and all pages are free again."""
        end = time.monotonic() + LATE
        while True:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=LATE)
            connection.request("GET", "/metrics")
            found = connection.getresponse().read().decode()
            connection.close()
            values = [line.rsplit(" ", 1) for line in found.splitlines() if line[0] != "#"]
            busy = [v for v in values if "num_requests_" in v[0] or "cache_usage" in v[0]]
            assert busy, found
            if not any(float(value) for _, value in busy):
                return
            assert time.monotonic() < end, f"still in work: {busy}"
            time.sleep(0.02)


def read_text(raw: str, streams: bool) -> tuple[str, str]:
    """Of an answer that began well; a stream may end with an error."""
    if not streams:
        choice = json.loads(raw)["choices"][0]
        return "text", choice["text"] if "text" in choice else choice["message"]["content"]
    events = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    whole = bool(events) and events[-1] == "[DONE]"
    pieces = [json.loads(e) for e in events if e != "[DONE]"]
    if any("error" in p for p in pieces) or not whole:
        return "error", ""
    return "text", "".join(p["choices"][0]["text"] for p in pieces if p["choices"])


def run(most: int, least: int) -> Counter[str]:
    """Faults at up to so many calls, evenly spread. How requests ended."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(len(REQUESTS)) as pool:
        shim = build(Path(name))
        served = Served(shim)
        try:
            alone = [served.ask(*r) for r in REQUESTS]
            assert all(kind == "text" for kind, _ in alone), alone
            served.refuse(1 << 40, least)
            [*pool.map(lambda r: served.ask(*r), REQUESTS)]
            n_calls = served.refuse(0, least)
            for n in range(1, n_calls + 1, max(1, -(-n_calls // most))):
                served.refuse(n, least)
                found = [*pool.map(lambda r, s=served: s.ask(*r), REQUESTS)]
                after = []
                try:
                    counts["refused"] += served.refuse(0, least) >= n
                    # An engine whose step failed is replaced when the next one asks.
                    after = [served.ask(*r) for r in REQUESTS]
                except (OSError, Ended):
                    counts["refused"] += 1  # it is what ended the server
                if not after or any(kind == "closed" for kind, _ in after):
                    code = served.process.wait(60)
                    # Libraries in Rust end a process whose allocation is refused.
                    assert code in (NO_RESOURCES, -signal.SIGABRT), f"call {n}: exit code {code}"
                    # It may have ended between two of those that came afterwards.
                    pairs = zip(after, alone, strict=False)
                    assert all(x == y for x, y in pairs if x[0] == "text"), f"call {n}: {after}"
                    counts["ended"] += 1
                    served = Served(shim)
                else:
                    assert after == alone, f"after call {n}: {after}"
                    served.settle()
                for request, (kind, text), (_, expected) in zip(
                    REQUESTS, found, alone, strict=True
                ):
                    counts[kind] += 1
                    assert kind != "text" or text == expected, f"call {n}: {request}: {text!r}"
            assert served.process.stdin is not None
            served.process.stdin.close()
            assert served.process.wait(60) == 0
        finally:
            served.process.kill()
            served.process.wait()
    return counts


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--most", type=int, default=400, metavar="N", help="faults")
    p.add_argument("--least", type=int, default=2048, metavar="BYTES", help="of allocations")
    args = p.parse_args()
    if args.server:
        serve()
    else:
        print(dict(run(args.most, args.least)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
