"""Writes a checkpoint as GGUF, with its SentencePiece vocabulary inside.

    python -m training.export --model run/model.pt --out models/bundled/tales-8m.gguf

A silu model becomes `llama`. GGUF says nothing about the feed-forward activation, and "llama"
means silu, so a relu model becomes `relullama`, which other programs refuse instead of writing
nonsense: its down projections are stored transposed, a row a neuron, and activity predictors go in
beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import sentencepiece as spm
from gguf.quants import quantize

from gguflow.engine.variants.relu.tools.train import Predictor
from training.checkpoint import load_model
from training.model import Llama

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
ARCHITECTURES = {"silu": "llama", "relu": "relullama"}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


def add_hyperparameters(writer: gguf.GGUFWriter, model: Llama) -> None:
    """The `llama.*` keys."""
    c = model.config
    writer.add_vocab_size(c.n_vocab)
    writer.add_context_length(c.n_ctx)
    writer.add_embedding_length(c.dim)
    writer.add_block_count(c.n_layer)
    writer.add_feed_forward_length(c.n_ff)
    writer.add_head_count(c.n_head)
    writer.add_head_count_kv(c.n_head_kv)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_base)


def add_vocabulary(writer: gguf.GGUFWriter, sp: spm.SentencePieceProcessor) -> None:
    """The `tokenizer.ggml.*` keys: pieces, scores (minus the merge rank) and kinds."""
    kinds = []
    for i in range(len(sp)):
        if sp.is_unknown(i):
            kinds.append(gguf.TokenType.UNKNOWN)
        elif sp.is_control(i):
            kinds.append(gguf.TokenType.CONTROL)
        elif sp.is_byte(i):
            kinds.append(gguf.TokenType.BYTE)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([sp.id_to_piece(i) for i in range(len(sp))])
    writer.add_token_scores([sp.get_score(i) for i in range(len(sp))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(sp.bos_id())
    writer.add_eos_token_id(sp.eos_id())
    writer.add_unk_token_id(sp.unk_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: str) -> None:
    """Matrices take the type, norms stay F32 as everywhere in GGUF."""
    qtype = TYPES[kind] if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, quantize(weight, qtype), raw_dtype=qtype)


def add_predictors(writer: gguf.GGUFWriter, predictors: Sequence[Predictor], kind: str) -> None:
    """fc1 and fc2 of every layer, and the thresholds under which a neuron is skipped."""
    writer.add_array("relullama.sparse_threshold", [p.threshold for p in predictors])
    for i, p in enumerate(predictors):
        add_tensor(writer, f"blk.{i}.fc1.weight", p.fc1.numpy(), kind)
        add_tensor(writer, f"blk.{i}.fc2.weight", p.fc2.numpy(), kind)


def export(
    model: Llama,
    sp: spm.SentencePieceProcessor,
    out: Path,
    kind: str,
    predictors: Sequence[Predictor] = (),
    name: str = "",
) -> None:
    """Writes the file. predictors: of a relu model, one a layer or none. name: the model's."""
    arch = ARCHITECTURES[model.config.activation]
    writer = gguf.GGUFWriter(out, arch)
    writer.add_name(name or ("Tales 8M" if arch == "llama" else "Tales 8M ReLU"))
    writer.add_description("English fairy tales, trained from scratch for gguflow")
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_hyperparameters(writer, model)
    add_vocabulary(writer, sp)
    for tensor, weight in model.state_dict().items():
        array = weight.numpy()
        if arch == "relullama" and tensor.endswith("ffn_down.weight"):
            tensor, array = (
                tensor.replace("ffn_down.", "ffn_down_t."),
                np.ascontiguousarray(array.T),
            )
        add_tensor(writer, tensor, array, kind)
    if predictors:
        add_predictors(writer, predictors, kind)
    finish(writer)
    print(f"{out}: {out.stat().st_size:,} bytes, {kind}")


def finish(writer: gguf.GGUFWriter) -> None:
    """Puts everything on disk."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokenizer", default="training/tales.model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--name", default="", help="the model's, in the file")
    args = parser.parse_args()
    sp = spm.SentencePieceProcessor(model_file=args.tokenizer)
    export(load_model(args.model), sp, args.out, args.type, name=args.name)


if __name__ == "__main__":
    main()
