"""What an engine counts."""

from __future__ import annotations

from gguflow.engine.dataclass import dataclass

from .speculation import Drafting


@dataclass
class EngineStats:
    """Since the engine was made. n_prompt: tokens of prompts computed, those of requests that gave
    their pages back again included; n_found: those that were in the cache already. n_pages,
    n_available: of the KV cache by group, those available being free or wanted by nobody now.
    drafting: what came of guesses."""

    n_steps: int
    n_prompt: int
    n_found: int
    n_generated: int
    n_preempted: int
    n_running: int
    n_waiting: int
    n_pages: dict[str, int]
    n_available: dict[str, int]
    drafting: Drafting
