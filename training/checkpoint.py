"""Saving a training run's model, and reading it back from a checkpoint or from a GGUF file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from training.model import Config, Llama


def save_checkpoint(path: Path, model: Llama, info: dict) -> None:
    """Writes the configuration, the weights as float16, and what is known about the run."""
    weights = {name: p.half().cpu() for name, p in model.state_dict().items()}
    torch.save({"config": asdict(model.config), "weights": weights, "info": info}, path)


def load_checkpoint(path: Path) -> Llama:
    """The model of a checkpoint, in float32 on the CPU and in evaluation mode."""
    data = torch.load(path, map_location="cpu", weights_only=True)
    model = Llama(Config(**data["config"]))
    model.load_state_dict({name: w.float() for name, w in data["weights"].items()})
    return model.eval()


def load_gguf(path: Path) -> Llama:
    """The model of a GGUF file that export.py wrote, its weights dequantized to float32.

    Of a `relullama` file that is the dense model: predictors are left out.
    """
    reader = GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()

    def value(key: str):
        return reader.fields[f"{arch}.{key}"].contents()

    weights = {}
    for t in reader.tensors:
        weight = torch.tensor(dequantize(t.data, t.tensor_type))
        if t.name.endswith("ffn_down_t.weight"):
            weights[t.name.replace("_t.", ".")] = weight.T.contiguous()
        elif ".fc1." not in t.name and ".fc2." not in t.name:
            weights[t.name] = weight
    config = Config(
        n_vocab=weights["token_embd.weight"].shape[0],
        n_ctx=value("context_length"),
        dim=value("embedding_length"),
        n_layer=value("block_count"),
        n_head=value("attention.head_count"),
        n_head_kv=value("attention.head_count_kv"),
        n_ff=value("feed_forward_length"),
        rope_base=value("rope.freq_base"),
        norm_eps=value("attention.layer_norm_rms_epsilon"),
        activation="relu" if arch == "relullama" else "silu",
    )
    model = Llama(config)
    model.load_state_dict(weights)
    return model.eval()


def load_model(path: Path) -> Llama:
    """A .gguf file's model or a checkpoint's, by the file's ending."""
    return load_gguf(path) if path.suffix == ".gguf" else load_checkpoint(path)
