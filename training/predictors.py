"""Trains activity predictors for a relu model with torch, and writes the model with them inside.

    python -m training.predictors --model run/relu.pt --corpus fairy-tales.txt.xz --out relu.gguf

`gguflow sparse train` does the same for any file through the engine; this one keeps everything on
the GPU that trained the model. The matrices are rounded to the file's type before the activity
is recorded, so predictors learn the model that ships.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import sentencepiece as spm
import torch
from gguf.quants import dequantize, quantize
from torch import Tensor

from gguflow.engine.variants.relu.tools.train import (
    Predictor,
    Settings,
    predict,
    table,
    train_layer,
)
from training.checkpoint import load_model
from training.corpus import read_stories, split, token_stream
from training.evaluate import mean_loss
from training.export import TYPES, add_predictors, export, finish
from training.model import Block, Llama


def rounded(model: Llama, kind: str) -> Llama:
    """The model with its matrices as they are after quantizing to the type, in place."""
    for p in model.parameters():
        if p.ndim == 2:
            array = dequantize(quantize(p.detach().numpy(), TYPES[kind]), TYPES[kind])
            p.data.copy_(torch.from_numpy(array))
    return model


class Recorder:
    """Keeps every block's feed-forward input before its norm, and its neurons' contributions."""

    def __init__(self, model: Llama) -> None:
        self.inputs: list[list[Tensor]] = [[] for _ in model.blk]
        self.shares: list[list[Tensor]] = [[] for _ in model.blk]
        self._hooks = []
        for i, block in enumerate(model.blk):
            self._hooks.append(block.ffn_norm.register_forward_pre_hook(self._input(i)))
            self._hooks.append(block.ffn_down.register_forward_pre_hook(self._hidden(i, block)))

    def _input(self, i: int):
        return lambda module, args: self.inputs[i].append(args[0].flatten(0, 1).float())

    def _hidden(self, i: int, block: Block):
        def keep(module, args) -> None:
            reach = block.ffn_down.weight.norm(dim=0)
            hidden = args[0].flatten(0, 1)
            fires = hidden != 0
            share = hidden.float().abs() * reach
            mean = share.sum(-1, keepdim=True) / fires.sum(-1, keepdim=True).clamp_min(1)
            share = (share / mean.clamp_min(1e-30)).clamp(1e-4, 1e4)
            self.shares[i].append(torch.where(fires, share, 0.0).half())

        return keep

    def layer(self, i: int) -> tuple[Tensor, Tensor]:
        """A layer's inputs f32 [n, dim] and contributions f16 [n, n_ff]."""
        self.inputs[i] = [torch.cat(self.inputs[i])]
        self.shares[i] = [torch.cat(self.shares[i])]
        return self.inputs[i][0], self.shares[i][0]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def record(model: Llama, stream: np.ndarray, n_tokens: int, device: str, seed: int) -> Recorder:
    """Runs random windows of the stream, n_tokens in all."""
    n = model.config.n_ctx
    windows = stream[: len(stream) // n * n].reshape(-1, n)
    picked = np.random.default_rng(seed).permutation(len(windows))[: max(2, n_tokens // n)]
    recorder = Recorder(model)
    for ids in torch.from_numpy(windows[picked]).long().split(16):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            model(ids.to(device))
    recorder.stop()
    return recorder


def masked_loss(
    model: Llama, predictors: Sequence[Predictor], stream: np.ndarray, device: str
) -> float:
    """`mean_loss` of the model when neurons whose idx is below their threshold are skipped."""
    inputs: dict[int, Tensor] = {}
    hooks = []

    def keep(i: int):
        return lambda module, args: inputs.__setitem__(i, args[0].float())

    def skip(i: int, fc1: Tensor, fc2: Tensor, threshold: float):
        return lambda module, args: args[0] * (predict(inputs[i], fc1, fc2) >= threshold)

    for i, (block, p) in enumerate(zip(model.blk, predictors, strict=True)):
        hooks.append(block.ffn_norm.register_forward_pre_hook(keep(i)))
        run = skip(i, p.fc1.to(device), p.fc2.to(device), p.threshold)
        hooks.append(block.ffn_down.register_forward_pre_hook(run))
    loss = mean_loss(model, stream, device)
    for hook in hooks:
        hook.remove()
    return loss


def write_sidecar(path: Path, predictors: Sequence[Predictor], kind: str) -> None:
    """Predictors alone, for another model file's `--predictor`."""
    writer = gguf.GGUFWriter(path, "relullama")
    add_predictors(writer, predictors, kind)
    finish(writer)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", default="training/tales.model")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--tokens", type=int, default=1 << 20, help="to record")
    parser.add_argument("--rank", type=int, nargs="+", default=[96])
    parser.add_argument("--recall", type=float, nargs="+", default=[0.95],
                        help="the first is written into the model, others beside it")  # fmt: skip
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4096, help="tokens a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    sp = spm.SentencePieceProcessor(model_file=args.tokenizer)
    torch.set_float32_matmul_precision("high")
    train_stories, valid_stories = split(read_stories(args.corpus))
    valid, _ = token_stream(valid_stories, sp)
    model = rounded(load_model(args.model), args.type)
    begin = time.time()
    stream, _ = token_stream(train_stories, sp)
    model = model.to(args.device)
    recorder = record(model, stream, args.tokens, args.device, args.seed)
    print(f"{time.time() - begin:6.1f} s  recorded", flush=True)
    dense = mean_loss(model, valid, args.device)
    print(f"validation, dense: {dense:.4f} nats", flush=True)
    for rank, recall in itertools.product(args.rank, args.recall):
        predictors = []
        for i in range(model.config.n_layer):
            settings = Settings(rank, recall, args.steps, args.batch, seed=args.seed)
            predictors.append(train_layer(*recorder.layer(i), settings))
        loss = masked_loss(model, predictors, valid, args.device)
        print(
            f"{time.time() - begin:6.1f} s  rank {rank}, recall {recall}: validation {loss:.4f}"
            f" nats, perplexity {np.expm1(loss - dense):+.2%} of dense\n"
            f"{table([p.quality for p in predictors])}",
            flush=True,
        )
        if (rank, recall) == (args.rank[0], args.recall[0]):
            export(model.cpu(), sp, args.out, args.type, predictors)
            model.to(args.device)
        else:
            write_sidecar(args.out.with_suffix(f".{rank}-{recall}.gguf"), predictors, args.type)


if __name__ == "__main__":
    main()
