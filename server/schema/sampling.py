"""How tokens are chosen: OpenAI's fields, and llama-server's and vLLM's under their names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from gguflow.engine.dataclass import replace
from gguflow.engine.sampling import SamplerError, SamplerSettings
from gguflow.server.errors import refused

from .base import Body

Temperature = Annotated[float, Field(ge=0, le=1000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]
Stop = Annotated[str, Field(max_length=4096)]

# The field of a request -> the field of `SamplerSettings`.
SETTINGS = {
    "temperature": "temperature", "top_p": "top_p", "seed": "seed",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "top_k": "top_k", "min_p": "min_p", "typical_p": "typical_p", "top_n_sigma": "top_n_sigma",
    "repeat_penalty": "repeat_penalty", "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n", "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold", "dry_multiplier": "dry_multiplier", "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length", "dry_penalty_last_n": "dry_penalty_last_n",
    "mirostat": "mirostat", "mirostat_tau": "mirostat_tau", "mirostat_eta": "mirostat_eta",
    "samplers": "samplers", "dry_sequence_breakers": "dry_sequence_breakers",
    "dynatemp_range": "dynatemp_range", "dynatemp_exponent": "dynatemp_exponent",
}  # fmt: skip


class Adapter(Body):
    """llama-server's way to ask for an adapter. id: its number, or its name."""

    id: Annotated[int, Field(ge=0, lt=1 << 31)] | Annotated[str, Field(max_length=1024)]
    scale: Annotated[float, Field(gt=-1e6, lt=1e6)]


class SamplingFields(Body):
    """Fields that all bodies with generation have."""

    temperature: Temperature | None = None
    top_p: Fraction | None = None
    seed: Seed | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 24)] | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    top_n_sigma: Annotated[float, Field(ge=-1, le=1000)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=1000)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1000)] | None = None
    repeat_last_n: Count | None = None
    xtc_probability: Fraction | None = None
    xtc_threshold: Fraction | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=1000)] | None = None
    dry_base: Annotated[float, Field(ge=0, le=1000)] | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    mirostat: Annotated[int, Field(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Field(ge=0, le=1000)] | None = None
    mirostat_eta: Annotated[float, Field(ge=0, le=1000)] | None = None
    dynatemp_range: Annotated[float, Field(ge=0, le=1000)] | None = None
    dynatemp_exponent: Annotated[float, Field(ge=0, le=1000)] | None = None
    samplers: Annotated[list[str], Field(max_length=32)] | None = None
    dry_sequence_breakers: (
        Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=64)] | None
    ) = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    lora: Annotated[list[Adapter], Field(max_length=1024)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024)] | None = None

    @model_validator(mode="after")
    def _one_name(self) -> SamplingFields:
        if self.repeat_penalty is not None and self.repetition_penalty is not None:
            raise ValueError("repeat_penalty and repetition_penalty are one setting: give one")
        return self

    def settings(self, defaults: SamplerSettings) -> SamplerSettings:
        """The sampler's settings. Raises ApiError 400 naming the field."""
        given: dict[str, Any] = {}
        for field, name in SETTINGS.items():
            value = getattr(self, field, None)
            if value is not None:
                given[name] = value
        if given.get("top_k") == -1:  # vLLM's way to turn it off
            given["top_k"] = 0
        try:
            return replace(defaults, **given)
        except SamplerError as error:
            name = str(error).split("`")[1] if "`" in str(error) else "sampling"
            raise refused(name, str(error).partition(": ")[2] or str(error)) from None
