"""What is fuzzed: for each target a corpus made by code, a mutator, and what must hold.

A run passes when it ends with a result or with an error that has a documented exit code; anything
else is a finding, and so are 10 seconds and memory beyond twice the input and 64 MB, until weights
are loaded.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz_mutators import (
    F32,
    I32,
    STR,
    Gguf,
    mutate_bytes,
    mutate_gguf,
    mutate_json,
    mutate_text,
    parse,
)
from tiny_model import write_tiny

from gguflow.cli.errors import INTERNAL, NO_RESOURCES, exit_code
from gguflow.cli.main import main
from gguflow.engine.gguf import GgufFile
from gguflow.engine.gguf.strings import StringArray
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options


class Finding(Exception):
    """Something that must not be: says what."""


@dataclass(frozen=True)
class Target:
    """corpus: inputs to start from. mutate: another input. run: raises what the code does, or
    Finding. bounded: whether its memory is held to the input's size."""

    corpus: Callable[[], list[bytes]]
    mutate: Callable[[bytes, Random], bytes]
    run: Callable[[bytes], None]
    bounded: bool = False


@cache
def folder() -> Path:
    """Where files are written, in memory where the system has such a place."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return Path(tempfile.mkdtemp(prefix="gguflow-fuzz-", dir=base))


def placed(data: bytes, name: str = "x.gguf") -> Path:
    """The input as a file: a new one, for the last may be mapped still."""
    path = folder() / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def is_allowed(error: BaseException) -> bool:
    """Whether an error is one that users are told of in a line, for what it is."""
    if isinstance(error, MemoryError):
        return False
    return exit_code(error) not in (INTERNAL, NO_RESOURCES) or type(error).__name__ in (
        "ContextError", "LogitsError")  # fmt: skip


# -- corpus ----------------------------------------------------------------------------------------

FAMILIES = ("llama", "gemma2", "qwen3moe", "mamba2", "gpt2", "deepseek2", "relullama", "bloom")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEMPLATE_PIECES = (
    "{% for i in range(9999) %}", "{% endfor %}", "{{ ", " }}", "{% if ", "{% endif %}",
    "|join('x')", "messages", "range(1000000)", "loop.index", "namespace(a=1)", "{% set x = ",
    " %}", "|tojson", "m['content'][0]", ".split(',')", "|length", "~ x", " * 999999", "|list",
    "raise_exception('no')", "strftime_now('%Y')", "{% macro f(x) %}", "{% endmacro %}", "f(1)",
    ".format(1)", "|replace('a','b')", "|map(attribute='x')", "''.join", ".__class__",
    "['__init__']", "1/0", "{% set ns.a = ns.a + ns.a %}",
)  # fmt: skip


@cache
def models() -> list[bytes]:
    """Whole tiny models of families that differ, with keys of every kind."""
    out = []
    for i, arch in enumerate(FAMILIES):
        keys: dict[str, Any] = {"tokenizer.chat_template": TEMPLATE}
        if i % 2 == 0:
            keys |= {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0,
                     ".rope.scaling.original_context_length": 16,
                     ".attention.sliding_window": 8}  # fmt: skip
        try:
            path = write_tiny(folder() / "seed.gguf", arch, keys=keys, dtype="f16")
            open_model(path)
        except ValueError:  # keys that this family refuses
            path = write_tiny(folder() / "seed.gguf", arch, dtype="f16")
        out.append(path.read_bytes())
    return out


def _strings(items: list[str]) -> tuple[int, list[bytes]]:
    return STR, [i.encode() for i in items]


@cache
def vocabularies() -> list[bytes]:
    """Files without weights: SPM, byte-level BPE, WordPiece and unigram."""

    def key(name: str, kind: int, value: Any) -> tuple[bytes, int, Any]:
        return f"tokenizer.ggml.{name}".encode(), kind, value

    def u32(n: int) -> bytes:
        return struct.pack("<I", n)

    letters = [chr(c) for c in range(33, 127)]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    spm = ["<unk>", "<s>", "</s>", *byte_tokens, "\u2581", *letters, "\u2581the", "he", "the"]
    bpe = [*letters, "Ġ", "Ċ", "th", "he", "the", "Ġthe", "<|end|>"]
    wpm = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, "##he", "\u2581the"]
    out = []
    for model, tokens, more in (
        ("llama", spm, [key("pre", STR, b"default")]),
        ("gpt2", bpe, [key("pre", STR, b"llama-bpe"),
                       key("merges", 9, _strings(["t h", "h e", "th e", "Ġ the"]))]),
        ("gpt2", bpe, [key("pre", STR, b"qwen2"), key("merges", 9, _strings(["t h", "h e"]))]),
        ("bert", wpm, []),
        ("t5", spm, [key("add_space_prefix", 7, b"\1")]),
    ):  # fmt: skip
        n = len(tokens)
        keys = [
            (b"general.architecture", STR, b"llama"), key("model", STR, model.encode()),
            key("tokens", 9, _strings(tokens)),
            key("scores", 9, (F32, [struct.pack("<f", -i) for i in range(n)])),
            key("token_type", 9, (I32, [u32(6 if t.startswith("<0x") else 1) for t in tokens])),
            key("bos_token_id", 4, u32(1)), key("eos_token_id", 4, u32(2)),
            key("unknown_token_id", 4, u32(0)), key("add_bos_token", 7, b"\1"), *more,
        ]  # fmt: skip
        out.append(Gguf(keys=keys).build())
    return out


def mutate_file(raw: bytes, r: Random) -> bytes:
    """By structure where the file has one, by bytes where it has none, and sometimes all the
    same."""
    g = parse(raw) if r.random() < 0.9 else None
    return mutate_bytes(raw, r) if g is None else mutate_gguf(g, r).build()


# -- GGUF ------------------------------------------------------------------------------------------


def run_reader(data: bytes) -> None:
    path = placed(data)
    with GgufFile.open(path) as f:
        for value in f.metadata.values():
            if isinstance(value, StringArray) and len(value.tolist()) != len(value):
                raise Finding("strings were lost")
        for name, t in f.tensors.items():
            if not 0 < t.offset <= t.offset + t.nbytes <= len(data):
                raise Finding(f"{name} lies outside the file")
            if not (f.big_endian and t.dtype.is_quantized):
                f.data(name).sum()


SMALL = Options(n_ctx=64, n_threads=1, n_ubatch=16)


def run_consumers(data: bytes) -> None:
    source = open_model(placed(data))
    model = Model(source, SMALL)
    model.largest_plans()
    model.forecast()
    model.tokenizer.encode("The the !\n")
    model.chat_template.render([{"role": "user", "content": "hi"}])


def run_inspect(data: bytes) -> None:
    path = str(placed(data))
    for words in (["inspect", path], ["inspect", path, "--json"],
                  ["inspect", path, "--plan", "--memory", "-c", "64"]):  # fmt: skip
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        if code not in (0, 2, 3):
            raise Finding(f"{words[0]} {words[2:]}: exit code {code}: {err.getvalue()[:300]}")
        if code == 0 and "--json" in words:
            json.loads(out.getvalue(), parse_constant=_no_number)
        bad = [
            c for c in out.getvalue() + err.getvalue() if c != "\n" and ord(c) < 32 or c == "\x9b"
        ]
        if bad and "--json" not in words:
            raise Finding(f"{words}: a control character {bad[0]!r} for the terminal")


def _no_number(text: str) -> None:
    raise Finding(f"{text} is no JSON")


def run_whole(data: bytes) -> None:
    model = Model.load(placed(data), SMALL)
    pieces = list(model.generate("!!", max_tokens=3, temperature=0.8, seed=1))
    if len(pieces) > 4:
        raise Finding(f"{len(pieces)} pieces of three tokens")


def run_tokenizer(data: bytes) -> None:
    from gguflow.models.tokenizer import Tokenizer

    t = Tokenizer.load(placed(data))
    for text in ("The the <s> <|end|>\n\t 12345  x", "\u202e\0\ud800é👩‍👧", "he" * 200):
        ids = t.encode(text, parse_special=True)
        if not all(0 <= i < t.n_vocab for i in ids):
            raise Finding(f"ids {ids[:9]} of {t.n_vocab}")
        t.decode(ids)
    for i in range(min(t.n_vocab, 300)):
        t.piece(i)


# -- text ------------------------------------------------------------------------------------------


def run_template(data: bytes) -> None:
    from gguflow.models.chat import ChatTemplate

    template = ChatTemplate(data.decode("utf-8", "replace"), "<s>", "</s>")
    messages = [{"role": "user", "content": "a, b"}, {"role": "assistant", "content": "c"}]
    if len(template.render(messages, tools=[{"name": "f", "parameters": {"x": [1]}}])) > 1 << 24:
        raise Finding("a prompt of more than 16 MB")


def mutate_template(raw: bytes, r: Random) -> bytes:
    return mutate_text(raw.decode("utf-8", "replace"), TEMPLATE_PIECES, r).encode(
        "utf-8", "replace"
    )


@cache
def templates() -> list[bytes]:
    from gguflow.models.chat_templates import NAMED

    return [TEMPLATE.encode(), *(t.encode() for t in NAMED.values())]


# -- files beside models ---------------------------------------------------------------------------


@cache
def side_files() -> list[bytes]:
    """A split, statistics, an importance matrix and an adapter, as the program writes them."""
    from gguflow.engine.gguf import write_gguf
    from gguflow.engine.graph import F32 as FLOAT
    from gguflow.engine.variants.relu.split import NeuronSplit, write_split
    from gguflow.engine.variants.relu.stats import Activations, write_stats

    path = folder() / "side"
    out = []
    write_split(path, NeuronSplit(8, (np.array([1, 3]), np.array([], int))), "0" * 16, 4096)
    out.append(path.read_bytes())
    write_stats(path, Activations((np.arange(8), np.arange(8)), 9, "0" * 16))
    out.append(path.read_bytes())
    counts = np.ones((2, 1), np.float32)
    write_gguf(path, {"general.type": "imatrix", "imatrix.datasets": ["a"],
                      "imatrix.chunk_count": 2, "imatrix.chunk_size": 4},
               {"blk.0.attn_q.weight.in_sum2": (FLOAT, (2, 4), np.ones((2, 4), np.float32)),
                "blk.0.attn_q.weight.counts": (FLOAT, (2, 1), counts)})  # fmt: skip
    out.append(path.read_bytes())
    a, b = np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)
    write_gguf(path, {"general.type": "adapter", "adapter.type": "lora",
                      "general.architecture": "llama", "adapter.lora.alpha": 2.0},
               {"blk.0.attn_q.weight.lora_a": (FLOAT, a.shape, a),
                "blk.0.attn_q.weight.lora_b": (FLOAT, b.shape, b)})  # fmt: skip
    out.append(path.read_bytes())
    return out


def run_side_file(data: bytes) -> None:
    from gguflow.engine.imatrix import read_imatrix
    from gguflow.engine.variants.lora.source import read_adapter
    from gguflow.engine.variants.relu.split import open_split
    from gguflow.engine.variants.relu.stats import read_stats

    path = str(placed(data))
    source = tiny_source()
    readers: tuple[Callable[[], Any], ...] = (
        lambda: open_split(path), lambda: read_stats(path), lambda: read_imatrix(path),
        lambda: read_adapter(path, 0, source),
    )  # fmt: skip
    for read in readers:
        try:
            read()
        except Exception as e:
            if not is_allowed(e):
                raise


@cache
def tiny_source() -> Any:
    return open_model(write_tiny(folder() / "tiny.gguf"))


@cache
def tiny() -> Model:
    model = Model(tiny_source(), SMALL)
    model.load_weights()
    return model


@cache
def sessions() -> list[bytes]:
    session = tiny().new_session()
    path = folder() / "session"
    out = []
    for n in (3, 40):
        session.rewind(0)
        session.step(list(range(5, 5 + n)), "none", prompt=True)
        session.save(path)
        out.append(path.read_bytes())
    return out


def mutate_session(raw: bytes, r: Random) -> bytes:
    """Mostly with a digest that is right, or nothing behind it is ever looked at."""
    if r.random() < 0.1:
        return mutate_bytes(raw, r)
    from gguflow.engine.session_file import DIGEST, MAGIC

    n = int.from_bytes(raw[len(MAGIC) : len(MAGIC) + 8], "little")
    at = len(MAGIC) + 8
    try:
        header, rest = json.loads(raw[at : at + n]), raw[at + n : -DIGEST]
    except ValueError:
        return mutate_bytes(raw, r)
    header = mutate_json(header, r, tuple(header) if isinstance(header, dict) else ())
    text = json.dumps(header).encode()
    if r.random() < 0.3:
        rest = mutate_bytes(rest, r)
    length = len(text) if r.random() < 0.95 else r.choice((0, 1 << 63, len(text) + 9))
    body = MAGIC + length.to_bytes(8, "little") + text + rest
    return body + blake2b(body, digest_size=DIGEST).digest()


def run_session(data: bytes) -> None:
    session = tiny().new_session()
    session.load(placed(data, "session.load"))
    if session.n_tokens < tiny().options.n_ctx:
        session.step([5], "last")


@cache
def checkpoints() -> list[bytes]:
    header = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "v": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
              "__metadata__": {"format": "pt"}}  # fmt: skip
    text = json.dumps(header).encode()
    return [len(text).to_bytes(8, "little") + text + bytes(32)]


def mutate_checkpoint(raw: bytes, r: Random) -> bytes:
    n = int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8 : 8 + n])
    except (ValueError, RecursionError):
        return mutate_bytes(raw, r)
    fields = ("dtype", "shape", "data_offsets", "x")
    text = json.dumps(mutate_json(header, r, fields)).encode()
    length = len(text) if r.random() < 0.9 else r.choice((0, 7, 1 << 62, len(raw)))
    return length.to_bytes(8, "little") + text + raw[8 + n :]


def run_checkpoint(data: bytes) -> None:
    from gguflow.engine.convert.safetensors import read_header

    for stored in read_header(placed(data, "x.safetensors")).values():
        stored.values().astype(np.float32).sum()


@cache
def logit_files() -> list[bytes]:
    rows = np.zeros((3, 2 * 4 + 4), "<u2")
    return [b"_logits_" + struct.pack("<3i", 8, 8, 1) + bytes(4 * 8) + rows.tobytes()]


def run_logits(data: bytes) -> None:
    from gguflow.engine.verify import LogitsError, read_logits

    try:
        read_logits(str(placed(data, "logits")), 8, 1, 4)
    except LogitsError:
        return


TARGETS: dict[str, Target] = {
    "reader": Target(models, mutate_file, run_reader, bounded=True),
    "consumers": Target(models, mutate_file, run_consumers, bounded=True),
    "inspect": Target(models, mutate_file, run_inspect, bounded=True),
    "whole": Target(models, mutate_file, run_whole),
    "tokenizers": Target(vocabularies, mutate_file, run_tokenizer),
    "templates": Target(templates, mutate_template, run_template),
    "side-files": Target(side_files, mutate_file, run_side_file, bounded=True),
    "sessions": Target(sessions, mutate_session, run_session),
    "checkpoints": Target(checkpoints, mutate_checkpoint, run_checkpoint, bounded=True),
    "logits": Target(logit_files, mutate_bytes, run_logits, bounded=True),
}


def every_input(name: str) -> Iterator[bytes]:
    """The corpus of a target."""
    yield from TARGETS[name].corpus()
