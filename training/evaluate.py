"""Loss and perplexity of a checkpoint or of a GGUF file's weights, computed by torch in float32.

    python -m training.evaluate --model run/model.pt --corpus fairy-tales.txt.xz
    python -m training.evaluate --model tales-8m.gguf --text models/bundled/heldout.txt

The text figure is llama.cpp's: chunks of 512 tokens, `<s>` in place of each chunk's first token,
and only the second half of each chunk is scored, so that every scored token has a context of at
least 256. Bits per byte divides by the bytes of the scored tokens, so that models of different
vocabularies compare.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import sentencepiece as spm
import torch
import torch.nn.functional as F

from training.checkpoint import load_model
from training.corpus import read_stories, split, token_stream
from training.model import Llama


@torch.no_grad()
def token_losses(model: Llama, windows: np.ndarray, device: str, batch: int = 16) -> np.ndarray:
    """Windows int32 [n, m + 1] -> nats f32 [n, m]: the loss of each token but the first."""
    losses = []
    for part in torch.from_numpy(windows).long().split(batch):
        ids = part.to(device)
        logits = model(ids[:, :-1]).float()
        losses.append(F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").cpu())
    return torch.cat(losses).numpy()


def mean_loss(model: Llama, stream: np.ndarray, device: str) -> float:
    """Mean nats a token over a stream cut in windows of n_ctx, each after a `<s>`."""
    n = model.config.n_ctx
    windows = stream[: len(stream) // n * n].reshape(-1, n)
    bos = np.full((len(windows), 1), stream[0], np.int32)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        return float(token_losses(model, np.hstack([bos, windows]), device).mean())


@torch.no_grad()
def mean_firing(model: Llama, stream: np.ndarray, device: str) -> np.ndarray:
    """Share of each layer's neurons that fire, over up to 32 windows of the stream: [n_layer]."""
    n = model.config.n_ctx
    windows = stream[: len(stream) // n * n].reshape(-1, n)[:32]
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        parts = torch.from_numpy(windows).long().to(device).split(16)
        rows = [model(ids, firing=True)[1][:, 1] * len(ids) for ids in parts]
    return (torch.stack(rows).sum(0) / len(windows)).cpu().numpy()


def chunk_losses(model: Llama, ids: np.ndarray, bos: int, n_ctx: int) -> np.ndarray:
    """llama.cpp's perplexity scheme: f32 [n_chunk, n_ctx / 2 - 1] nats of the scored tokens."""
    chunks = ids[: len(ids) // n_ctx * n_ctx].reshape(-1, n_ctx).copy()
    chunks[:, 0] = bos
    return token_losses(model, chunks, "cpu")[:, n_ctx // 2 :]


def report(name: str, losses: np.ndarray, n_bytes: float) -> None:
    """Prints loss, perplexity and bits per byte; n_bytes is the text bytes the losses cover."""
    nats = float(losses.mean(dtype=np.float64))
    bits = losses.size * nats / math.log(2) / n_bytes
    print(
        f"{name}: {nats:.4f} nats/token, perplexity {math.exp(nats):.4f}, {bits:.4f} bits/byte"
        f" ({losses.size} tokens)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a .pt checkpoint or a .gguf")
    parser.add_argument("--tokenizer", default="training/tales.model")
    parser.add_argument("--corpus", help="score the whole validation split")
    parser.add_argument("--text", type=Path, help="score a text file, llama.cpp's way")
    parser.add_argument("--chunk", type=int, default=512, help="--text's chunk, in tokens")
    args = parser.parse_args()
    model = load_model(args.model)
    sp = spm.SentencePieceProcessor(model_file=args.tokenizer)
    if args.corpus:
        stories = split(read_stories(args.corpus))[1]
        stream, _ = token_stream(stories, sp)
        n = model.config.n_ctx
        windows = stream[: len(stream) // n * n].reshape(-1, n)
        bos = np.full((len(windows), 1), sp.bos_id(), np.int32)
        losses = token_losses(model, np.hstack([bos, windows]), "cpu")
        n_bytes = sum(len(s.encode()) for s in stories) * windows.size / len(stream)
        report("validation stories", losses, n_bytes)
    if args.text:
        text = args.text.read_text(encoding="utf-8")
        ids = np.array([sp.bos_id(), *sp.encode(text)], np.int32)
        losses = chunk_losses(model, ids, sp.bos_id(), args.chunk)
        report(str(args.text), losses, len(text.encode()) * losses.size / len(ids))


if __name__ == "__main__":
    main()
