"""What models are forecast to take of a GPU, beside what the device then shows as taken.

    python bench/forecast.py [--only 0,3] [--cards 2]

Configurations differ in shape, context, sequences, guesses, layers on the host and cards. Each runs
in a process of its own on cards that nobody else uses: prompts of 300 tokens and 32 generated ones
of every sequence. MiB: `driver`, what `nvidia-smi` shows of a card before anything is loaded;
`forecast`, that with `model.memory_needed`; `taken`, what it shows at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import gguflow
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.limits import ALL_LAYERS
from gguflow.engine.load.random import random_model
from gguflow.engine.sampling import GREEDY

N_PROMPT, N_GENERATED = 300, 32
MIB = 1 << 20


@dataclass
class Case:
    shape: str
    n_ctx: int
    n_seqs: int = 1
    kv: str = "f16"
    options: dict[str, Any] = field(default_factory=dict)
    lookup: bool = False
    draft: str = ""
    cards: int = 1

    def title(self) -> str:
        parts = [f"{self.shape} -c {self.n_ctx}"]
        parts += [f"-np {self.n_seqs}"] if self.n_seqs > 1 else []
        parts += [f"-ctk {self.kv} -ctv {self.kv}"] if self.kv != "f16" else []
        parts += [f"{k}={v}" for k, v in self.options.items()]
        parts += ["--lookup"] if self.lookup else []
        parts += [f"-md {self.draft}"] if self.draft else []
        return ", ".join([*parts, *([f"-sm tensor over {self.cards}"] if self.cards > 1 else [])])


CASES = (
    Case("llama3.2-1b:Q4_0", 2048),
    Case("llama3-8b:Q4_0", 8192),
    Case("llama3-8b:F16", 8192),
    Case("llama3-8b:Q4_K_M", 32768),
    Case("llama3-8b:Q8_0", 65536, kv="q8_0"),
    Case("llama3-8b:Q4_0", 2048, 16),
    Case("llama3-8b:F16", 512, 128),
    Case("gemma3-4b:Q4_0", 8192, 4),
    Case("qwen3.5-9b:Q4_0", 4096, 8),
    Case("llama3-8b:Q4_0", 2048, 8, lookup=True),
    Case("llama3-8b:Q4_0", 4096, draft="llama3.2-1b:Q4_0"),
    Case("llama3-8b:Q4_0", 4096, options={"n_gpu_layers": 16}),
    Case("llama3-8b:F16", 8192, cards=2),
    Case("llama3-8b:Q4_0", 2048, 64, cards=2),
)


def taken() -> list[int]:
    """MiB in use of every card that this process may use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if which := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query += ["-i", which]
    shown = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in shown.split()]


def run(case: Case) -> list[tuple[int, int, int]]:
    """(driver, forecast, taken) of each card, MiB."""
    kv = dtype_by_name(case.kv)
    options = {
        "n_ctx": case.n_ctx, "n_seqs": case.n_seqs, "k_type": kv, "v_type": kv,
        "n_gpu_layers": ALL_LAYERS, **case.options,
    }  # fmt: skip
    if case.cards > 1:
        options |= {
            "devices": tuple(f"cuda:{i}" for i in range(case.cards)),
            "split_mode": "tensor",
        }
    source = random_model(case.shape)
    model = gguflow.Model(source, gguflow.Options().with_fields(options))
    if case.lookup:
        model.speculate(gguflow.Speculation(lookup=True))
    before, forecast = taken(), model.memory_needed()
    model.load_weights()
    if case.draft:
        draft = model.load_draft(random_model(case.draft))
        model.speculate(gguflow.Speculation(draft=draft))
        for space, nbytes in draft.memory_needed().items():
            forecast[space] += nbytes
    engine = gguflow.Engine(model)
    for i in range(case.n_seqs):
        ids = [(7 * i + 3 * j) % model.hp.n_vocab for j in range(N_PROMPT)]
        engine.add(gguflow.Request(ids, N_GENERATED, GREEDY))
    while engine.has_work:
        engine.step()
    shown = zip(sorted(forecast), before, taken(), strict=False)
    return [(before, before + forecast[space] // MIB, after) for space, before, after in shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--cards", type=int, default=1, help="how many there are")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run(Case(**json.loads(args.case)))))
        return
    chosen = [int(i) for i in args.only.split(",") if i] or range(len(CASES))
    print("| configuration | driver | forecast | taken | taken - forecast |")
    print("|---|---|---|---|---|")
    for case in (CASES[i] for i in chosen if CASES[i].cards <= args.cards):
        command = [sys.executable, __file__, "--case", json.dumps(asdict(case))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"| {case.title()} | {done.stderr.strip().splitlines()[-1]} | | | |")
            continue
        for driver, forecast, used in json.loads(done.stdout.splitlines()[-1]):
            cells = case.title(), driver, forecast, used, f"{used - forecast:+}"
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
