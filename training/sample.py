"""Draws text from a torch checkpoint, to see what a training run learned.

python -m training.sample --model run/model.pt --prompt "Once upon a time"
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sentencepiece as spm
import torch

from training.checkpoint import load_model
from training.model import Llama


@torch.no_grad()
def generate(
    model: Llama,
    sp: spm.SentencePieceProcessor,
    prompt: str,
    n: int,
    temp: float = 0.7,
    top_p: float = 0.9,
    seed: int = 1,
) -> str:
    """Prompt and up to n sampled tokens (temperature, then the smallest set of mass top_p).

    There is no key/value cache: each token costs a pass over the whole text.
    """
    device = model.token_embd.weight.device
    rng = torch.Generator(device).manual_seed(seed)
    ids = [sp.bos_id(), *sp.encode(prompt)]
    for _ in range(n):
        window = torch.tensor([ids[-model.config.n_ctx :]], device=device)
        probs = (model(window)[0, -1].float() / temp).softmax(-1)
        values, order = probs.sort(descending=True)
        values[values.cumsum(0) - values > top_p] = 0
        next_id = int(order[torch.multinomial(values, 1, generator=rng)])
        if next_id == sp.eos_id():
            break
        ids.append(next_id)
    return sp.decode(ids[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokenizer", default="training/tales.model")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--temp", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = load_model(args.model)
    sp = spm.SentencePieceProcessor(model_file=args.tokenizer)
    print(generate(model, sp, args.prompt, args.n, temp=args.temp, seed=args.seed))


if __name__ == "__main__":
    main()
