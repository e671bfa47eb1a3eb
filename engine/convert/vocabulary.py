"""Tokenizers of checkpoints as `tokenizer.*` keys: tokenizer.model (sentencepiece) where there is
one, else tokenizer.json: BPE over bytes, or over characters with byte fallback; unigram models;
WordPiece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguflow.engine.files import read_file

from .checkpoint import Checkpoint, ConvertError
from .frame import Frame, frame_of
from .pretokenizer import pre_tokenizer_of
from .sentencepiece_file import sentencepiece_file, sentencepiece_keys
from .token_list import BYTE, NORMAL, UNKNOWN, Tokens, added, id_of, kind_of
from .unigram import unigram
from .wordpiece import wordpiece

MAX_TEMPLATE = 1 << 20  # bytes
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator",
            "mask": "mask"}  # fmt: skip
# Vocabularies of models that read whole texts, in files of which both flags have a default.
_FRAMED = ("t5", "bert")


def vocabulary(source: Checkpoint, pre: str | None = None) -> dict[str, Any]:
    """The keys of a checkpoint's tokenizer and chat template. Raises ConvertError."""
    n = int(source.config.number("vocab_size", default=0))
    path = sentencepiece_file(source)
    keys = _json(source, n, pre) if path is None else sentencepiece_keys(source, path, n)
    ids = {text: i for i, text in enumerate(keys["tokenizer.ggml.tokens"])}
    keys |= _special(source, ids, keys["tokenizer.ggml.model"] in _FRAMED)
    template = _chat_template(source)
    return keys | ({"tokenizer.chat_template": template} if template else {})


_OTHERS = {"Unigram": unigram, "WordPiece": wordpiece}


def _json(source: Checkpoint, n: int, pre: str | None) -> dict[str, Any]:
    path, values = source.path / "tokenizer.json", source.json("tokenizer.json")
    model = values.get("model")
    if isinstance(model, dict) and (other := _OTHERS.get(str(model.get("type")))):
        return other(source, values, n)
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise ConvertError(f"{path}: model is no vocabulary of BPE")
    if model.get("type", "BPE") != "BPE":
        raise ConvertError(f"{path}: a tokenizer of type {model['type']!r} is not supported")
    listed: Any = model.get("merges") or []
    if not isinstance(listed, list):
        raise ConvertError(f"{path}: merges are no list")
    pairs: list[list[Any]] = [m if isinstance(m, list) else [m] for m in listed]
    if not all(isinstance(t, str) for m in pairs for t in m):
        raise ConvertError(f"{path}: merges are no pairs of tokens")
    merges = [" ".join(m) for m in pairs]
    characters = bool(model.get("byte_fallback"))
    found = Tokens(n, 0.0)
    for text, i in model["vocab"].items():
        is_byte = characters and len(text) == 6 and text.startswith("<0x")
        # In a vocabulary over characters, the order of ids is that of merges.
        found.put(id_of(source, text, i), text, BYTE if is_byte else NORMAL, -float(i))
    for i, token in added(source):
        found.put(i, token["content"], kind_of(token))
    if not characters:
        name = pre or pre_tokenizer_of(path, values)
        return found.keys("gpt2", name, False) | {"tokenizer.ggml.merges": merges}
    if pre == "gemma4" or "gemma4" in source.config.get("model_type", default=""):
        return found.keys("gemma4", "gemma4", False) | {"tokenizer.ggml.merges": merges}
    unknown = model.get("unk_token")
    if unknown in model["vocab"]:
        found.types[model["vocab"][unknown]] = UNKNOWN
    prefix = "prepend" in str(values.get("normalizer", "")).lower() or (
        "'prepend_scheme': 'first'" in str(values.get("pre_tokenizer", ""))
    )
    return found.keys("llama", "default", True) | {"tokenizer.ggml.add_space_prefix": prefix}


def _special(source: Checkpoint, ids: Mapping[str, int], framed: bool) -> dict[str, Any]:
    """Ids of special tokens, and whether texts get them. framed: [CLS] and [SEP] are what texts
    begin and end with, and both flags are wanted."""
    said = source.json("tokenizer_config.json", needed=False)
    if framed:
        for theirs, other in (("bos_token", "cls_token"), ("eos_token", "sep_token")):
            said = said | {theirs: said.get(theirs) or said.get(other)}
    generation = source.json("generation_config.json", needed=False)
    keys: dict[str, Any] = {}
    for theirs, ours in _SPECIAL.items():
        token = said.get(f"{theirs}_token")
        text = token.get("content") if isinstance(token, dict) else token
        i = ids.get(text) if isinstance(text, str) else None
        if i is None:
            i = source.config.get(
                f"{theirs}_token_id", default=generation.get(f"{theirs}_token_id")
            )
            i = i[0] if isinstance(i, list) and i else i
        if type(i) is int and 0 <= i < len(ids):
            keys[f"tokenizer.ggml.{ours}_token_id"] = i
    frame = frame_of(source)
    for kind in ("bos", "eos"):
        adds, i = said.get(f"add_{kind}_token"), keys.get(f"tokenizer.ggml.{kind}_token_id")
        if framed:
            if adds is None:
                adds = _framed(source, frame, kind, i, ids)
        elif adds is None and frame is not None and i is not None:
            text = frame.first if kind == "bos" else frame.last
            puts = text is not None and ids.get(text) == i
            adds = puts if puts or kind == "bos" else None
        if isinstance(adds, bool) and (not adds or i is not None):
            keys[f"tokenizer.ggml.add_{kind}_token"] = adds
    return keys


def _framed(
    source: Checkpoint, frame: Frame | None, kind: str, i: int | None, ids: Mapping[str, int]
) -> bool:
    """Whether texts begin (kind "bos") or end ("eos") with token i. Raises ConvertError where it is
    another one."""
    if frame is None:
        if (source.path / "tokenizer.json").is_file():
            return False
        name = str(source.json("tokenizer_config.json", needed=False).get("tokenizer_class", ""))
        return name.startswith("T5") == (kind == "eos")
    text = frame.first if kind == "bos" else frame.last
    if text is not None and ids.get(text) != i:
        path = source.path / "tokenizer.json"
        raise ConvertError(f"{path}: post_processor puts {text!r} where the {kind} token belongs")
    return text is not None


def _chat_template(source: Checkpoint) -> str | None:
    path = source.path / "chat_template.jinja"
    if path.is_file():
        try:
            return read_file(path, MAX_TEMPLATE).decode("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ConvertError(f"{path}: {e}") from None
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = source.json(name, needed=False).get("chat_template")
        if isinstance(template, list):
            named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None
