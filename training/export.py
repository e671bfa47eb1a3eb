"""Writes a checkpoint as GGUF: a `llama` model with its SentencePiece vocabulary inside.

python -m training.export --model run/model.pt --out models/bundled/tales-8m.gguf
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import sentencepiece as spm
from gguf.quants import quantize

from training.checkpoint import load_checkpoint
from training.model import Llama

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
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


def export(model: Llama, sp: spm.SentencePieceProcessor, out: Path, kind: str) -> None:
    """Writes the file; matrices take the given type, norms stay F32 as everywhere in GGUF.

    GGUF says nothing about the feed-forward activation, and "llama" means silu, so a model with
    another one would load and write nonsense: it is refused.
    """
    if model.config.activation != "silu":
        raise SystemExit(f"a llama GGUF file means silu, the model has {model.config.activation}")
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name("Tales 8M")
    writer.add_description("English fairy tales, trained from scratch for gguflow")
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_hyperparameters(writer, model)
    add_vocabulary(writer, sp)
    for name, weight in model.state_dict().items():
        qtype = TYPES[kind] if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(weight.numpy(), qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {out.stat().st_size:,} bytes, {kind}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokenizer", default="training/tales.model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    args = parser.parse_args()
    sp = spm.SentencePieceProcessor(model_file=args.tokenizer)
    export(load_checkpoint(args.model), sp, args.out, args.type)


if __name__ == "__main__":
    main()
