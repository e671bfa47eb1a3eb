"""gguflow: a compute-graph inference engine for GGUF language models."""

from __future__ import annotations

from importlib import import_module

# Importing the name takes longer than everything else here.
TYPE_CHECKING = False
__version__ = "0.1.0"

if TYPE_CHECKING:
    from gguflow.engine.constraints.error import ConstraintError as ConstraintError
    from gguflow.engine.constraints.error import ConstraintRefused as ConstraintRefused
    from gguflow.engine.generate import GenerateOptions as GenerateOptions
    from gguflow.engine.gguf.errors import GgufError as GgufError
    from gguflow.engine.message import ChatMessage as ChatMessage
    from gguflow.engine.message import ToolCall as ToolCall
    from gguflow.engine.model import Model as Model
    from gguflow.engine.options import OptionError as OptionError
    from gguflow.engine.options import Options as Options
    from gguflow.engine.piece import Piece as Piece
    from gguflow.engine.piece import Timings as Timings
    from gguflow.engine.prompt import ContextError as ContextError
    from gguflow.engine.sampling import SamplerError as SamplerError
    from gguflow.engine.sampling import SamplerSettings as SamplerSettings
    from gguflow.engine.serving.aio import AsyncEngine as AsyncEngine
    from gguflow.engine.serving.aio import EngineBusyError as EngineBusyError
    from gguflow.engine.serving.aio import EngineClosedError as EngineClosedError
    from gguflow.engine.serving.engine import Engine as Engine
    from gguflow.engine.serving.request import EmbedRequest as EmbedRequest
    from gguflow.engine.serving.request import LogitsError as LogitsError
    from gguflow.engine.serving.request import LogitsProcessor as LogitsProcessor
    from gguflow.engine.serving.request import Request as Request
    from gguflow.engine.serving.request import Token as Token
    from gguflow.engine.serving.speculation import Speculation as Speculation
    from gguflow.engine.serving.speculation import SpeculationError as SpeculationError
    from gguflow.engine.session import Session as Session
    from gguflow.engine.session_file import SessionFileError as SessionFileError
    from gguflow.models.base import ModelError as ModelError
    from gguflow.models.chat import ChatTemplate as ChatTemplate
    from gguflow.models.chat import ChatTemplateError as ChatTemplateError
    from gguflow.models.tokenizer import Tokenizer as Tokenizer

_MODULES = {
    "AsyncEngine": "engine.serving.aio",
    "ChatMessage": "engine.message",
    "ChatTemplate": "models.chat",
    "ChatTemplateError": "models.chat",
    "ConstraintError": "engine.constraints.error",
    "ConstraintRefused": "engine.constraints.error",
    "ContextError": "engine.prompt",
    "EmbedRequest": "engine.serving.request",
    "Engine": "engine.serving.engine",
    "EngineBusyError": "engine.serving.aio",
    "EngineClosedError": "engine.serving.aio",
    "GenerateOptions": "engine.generate",
    "GgufError": "engine.gguf.errors",
    "LogitsError": "engine.serving.request",
    "LogitsProcessor": "engine.serving.request",
    "Model": "engine.model",
    "ModelError": "models.base",
    "OptionError": "engine.options",
    "Options": "engine.options",
    "Piece": "engine.piece",
    "Request": "engine.serving.request",
    "SamplerError": "engine.sampling",
    "SamplerSettings": "engine.sampling",
    "Session": "engine.session",
    "SessionFileError": "engine.session_file",
    "Speculation": "engine.serving.speculation",
    "SpeculationError": "engine.serving.speculation",
    "Timings": "engine.piece",
    "Token": "engine.serving.request",
    "Tokenizer": "models.tokenizer",
    "ToolCall": "engine.message",
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    # Imported on first use, so that `gguflow --help` does not pay for the engine.
    if name in _MODULES:
        return getattr(import_module(f"gguflow.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'gguflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
