"""ERNIE 4.5, the dense models: LLaMA.

Source: Baidu 2025, "ERNIE 4.5 Technical Report".
"""

from __future__ import annotations

from .llama import Llama


class Ernie45(Llama):
    name = "ernie4_5"
