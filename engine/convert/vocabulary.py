"""Tokenizers of checkpoints as `tokenizer.*` keys: tokenizer.model (sentencepiece) where there is
one, else tokenizer.json: BPE over bytes, or over characters with byte fallback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .checkpoint import Checkpoint, ConvertError
from .pretokenizer import pre_tokenizer_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}


def vocabulary(source: Checkpoint, pre: str | None = None) -> dict[str, Any]:
    """The keys of a checkpoint's tokenizer and chat template. Raises ConvertError."""
    n = int(source.config.number("vocab_size", default=0))
    if (source.path / "tokenizer.model").is_file():
        keys = _sentencepiece(source, n)
    else:
        keys = _json(source, n, pre)
    tokens = keys["tokenizer.ggml.tokens"]
    keys |= _special(source, {text: i for i, text in enumerate(tokens)})
    template = _chat_template(source)
    return keys | ({"tokenizer.chat_template": template} if template else {})


class _Tokens:
    """Texts, types and scores of n tokens, by id; those that nothing names are unused."""

    def __init__(self, n: int, score: float) -> None:
        self.texts = [f"[PAD{i}]" for i in range(n)]
        self.types = [UNUSED] * n
        self.scores = [score] * n

    def put(self, i: int, text: str, kind: int, score: float = 0.0) -> None:
        if i < 0 or i > 1 << 24:
            raise ConvertError(f"token {text!r} has the id {i}")
        while len(self.texts) <= i:
            self.texts.append(f"[PAD{len(self.texts)}]")
            self.types.append(UNUSED)
            self.scores.append(0.0)
        self.texts[i], self.types[i], self.scores[i] = text, kind, score

    def keys(self, model: str, pre: str, scored: bool) -> dict[str, Any]:
        scores = {"tokenizer.ggml.scores": np.array(self.scores, np.float32)} if scored else {}
        return {
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": self.texts,
            **scores,
            "tokenizer.ggml.token_type": np.array(self.types, np.int32),
        }


def _sentencepiece(source: Checkpoint, n: int) -> dict[str, Any]:
    import sentencepiece

    path = source.path / "tokenizer.model"
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as e:
        raise ConvertError(f"{path}: {e}") from None
    size = model.vocab_size()
    found = _Tokens(max(n, size), -10000.0)
    for i in range(size):
        asked = ((model.IsUnknown, UNKNOWN), (model.IsControl, CONTROL), (model.IsUnused, UNUSED),
                 (model.IsByte, BYTE))  # fmt: skip
        kind = next((kind for ask, kind in asked if ask(i)), NORMAL)
        found.put(i, model.IdToPiece(i), kind, model.GetScore(i))
    for text, i in source.json("added_tokens.json", needed=False).items():
        found.put(_id(source, text, i), text, USER_DEFINED, -1000.0)
    for i, token in _added(source):
        if i >= size or found.types[i] in (UNUSED, NORMAL):
            found.put(i, token["content"], _kind(token), -1000.0)
    prefix = source.json("tokenizer_config.json", needed=False).get("add_prefix_space")
    if prefix is None and source.config.get("model_type", default="").startswith("gemma"):
        prefix = False
    keys = found.keys("llama", "default", True)
    return keys | ({} if prefix is None else {"tokenizer.ggml.add_space_prefix": bool(prefix)})


def _json(source: Checkpoint, n: int, pre: str | None) -> dict[str, Any]:
    path, values = source.path / "tokenizer.json", source.json("tokenizer.json")
    model = values.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise ConvertError(f"{path}: model is no vocabulary of BPE")
    if model.get("type", "BPE") != "BPE":
        raise ConvertError(f"{path}: a tokenizer of type {model['type']!r} is not supported")
    merges = [" ".join(m) if isinstance(m, list) else m for m in model.get("merges") or []]
    if not all(isinstance(m, str) for m in merges):
        raise ConvertError(f"{path}: merges are no pairs of tokens")
    characters = bool(model.get("byte_fallback"))
    found = _Tokens(n, 0.0)
    for text, i in model["vocab"].items():
        is_byte = characters and len(text) == 6 and text.startswith("<0x")
        # In a vocabulary over characters, the order of ids is that of merges.
        found.put(_id(source, text, i), text, BYTE if is_byte else NORMAL, -float(i))
    for i, token in _added(source):
        found.put(i, token["content"], _kind(token))
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


def _id(source: Checkpoint, text: Any, i: Any) -> int:
    if type(i) is not int or not isinstance(text, str):
        raise ConvertError(f"{source.path}: token {text!r} has the id {i!r}")
    return i


def _added(source: Checkpoint) -> list[tuple[int, Mapping[str, Any]]]:
    """Tokens beside those of the model, by id: of tokenizer.json, else of tokenizer_config.json."""
    listed = source.json("tokenizer.json", needed=False).get("added_tokens")
    if not isinstance(listed, list) or not listed:
        by_id = source.json("tokenizer_config.json", needed=False).get("added_tokens_decoder", {})
        listed = [{"id": int(i), **t} for i, t in by_id.items() if i.isdigit()]
    return [(_id(source, t.get("content"), t.get("id")), t) for t in listed]


# Tokens that some checkpoints forget to call special, though nobody means their text.
_MARKUP = ("<|", "<｜", "<s>", "</s>", "<pad>", "<mask>", "<bos>", "<eos>", "<start_of_turn>",
           "<end_of_turn>")  # fmt: skip


def _kind(token: Mapping[str, Any]) -> int:
    text = token["content"]
    marks = text.startswith(_MARKUP) and text.endswith(">")
    return CONTROL if token.get("special") or marks else USER_DEFINED


def _special(source: Checkpoint, ids: Mapping[str, int]) -> dict[str, Any]:
    """Ids of special tokens, and whether texts get them."""
    said = source.json("tokenizer_config.json", needed=False)
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
    for kind in ("bos", "eos"):
        adds = said.get(f"add_{kind}_token")
        if adds is None and kind == "bos":
            adds = _template_adds(source, keys.get("tokenizer.ggml.bos_token_id"), ids)
        if isinstance(adds, bool) and (not adds or f"tokenizer.ggml.{kind}_token_id" in keys):
            keys[f"tokenizer.ggml.add_{kind}_token"] = adds
    return keys


def _template_adds(source: Checkpoint, bos: int | None, ids: Mapping[str, int]) -> bool | None:
    """Whether tokenizer.json's post-processor puts BOS before a text."""
    post = source.json("tokenizer.json", needed=False).get("post_processor")
    if not isinstance(post, dict) or bos is None:
        return None
    steps = post.get("processors", [post])
    for step in steps:
        single = step.get("single") if isinstance(step, dict) else None
        if isinstance(single, list) and single and isinstance(single[0], dict):
            first = single[0].get("SpecialToken", {}).get("id")
            return ids.get(first) == bos
    return None


def _chat_template(source: Checkpoint) -> str | None:
    path = source.path / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = source.json(name, needed=False).get("chat_template")
        if isinstance(template, list):
            named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
            template = named.get("default")
        if isinstance(template, str):
            return template
    return None
