"""Trains the bundled model (or a teacher for it) from scratch.

    python -m training.train --corpus fairy-tales.txt.xz --out run/model.pt

The weights kept are the exponential moving average's at its best validation loss. With
`--teacher`, the loss is a mix of the next token's cross-entropy and the cross-entropy with the
teachers' averaged prediction, which regularizes a small corpus better than dropout alone.

With `--active` the neurons of a relu model are pressed to fire less, see sparsity.py.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from pathlib import Path

import numpy as np
import sentencepiece as spm
import torch
import torch.nn.functional as F
from torch import Tensor

from training.checkpoint import load_checkpoint, load_model, save_checkpoint
from training.corpus import read_stories, split, token_stream
from training.evaluate import mean_firing, mean_loss
from training.model import ACTIVATIONS, Config, Llama
from training.muon import Muon
from training.sample import generate
from training.sparsity import Pressure

PROMPTS = ("", "Once upon a time", "The princess opened the door and")


class Windows:
    """Random windows of n_ctx + 1 tokens, each with `<s>` put at its first position.

    One window in eight starts where a story does; the others start anywhere. So the model knows
    both what begins a story and how to continue a text that was cut.
    """

    def __init__(self, stream: np.ndarray, starts: np.ndarray, config: Config, device: str):
        self.stream = torch.from_numpy(stream).long().to(device)
        self.last = len(stream) - config.n_ctx - 1
        self.starts = torch.from_numpy(starts[starts <= self.last]).to(device)
        self.offsets = torch.arange(config.n_ctx + 1, device=device)
        self.bos, self.device = int(stream[0]), device

    def batch(self, n: int) -> Tensor:
        """int64 [n, n_ctx + 1]."""
        first = torch.randint(self.last + 1, (n,), device=self.device)
        n_starts = max(1, n // 8)
        pick = torch.randint(len(self.starts), (n_starts,), device=self.device)
        first[:n_starts] = self.starts[pick]
        ids = self.stream[first[:, None] + self.offsets]
        ids[:, 0] = self.bos
        return ids


def optimizers(model: Llama, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for the embedding and the norms."""
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    decay, plain = {"weight_decay": args.adam_decay}, {"weight_decay": 0.0}
    groups = [{"params": [model.token_embd.weight], **decay}, {"params": gains, **plain}]
    fused = args.device == "cuda"
    adam = torch.optim.AdamW(groups, lr=args.adam_lr, betas=(0.9, 0.95), fused=fused)
    return [Muon(matrices, lr=args.lr, weight_decay=args.weight_decay), adam]


def rate(progress: float, warmup: float = 0.02) -> float:
    """Learning-rate factor at progress 0..1: a short warm-up, flat, then linearly down to 0."""
    return min(progress / warmup, 1.0, (1 - progress) / 0.7)


def loss_fn(logits: Tensor, ids: Tensor, target: Tensor | None, weight: float) -> Tensor:
    """Mean cross-entropy in nats with the next tokens, mixed with the teachers' prediction."""
    logp = F.log_softmax(logits.float(), -1)
    hard = F.nll_loss(logp.flatten(0, 1), ids[:, 1:].flatten())
    if target is None:
        return hard
    return (1 - weight) * hard - weight * (target * logp).sum(-1).mean()


@torch.no_grad()
def average_prediction(teachers: list, ids: Tensor) -> Tensor | None:
    """The teachers' mean probabilities of the next token, f32 [batch, n_tok, n_vocab]."""
    if not teachers:
        return None
    return torch.stack([teacher(ids).float().softmax(-1) for teacher in teachers]).mean(0)


def train(args: argparse.Namespace, config: Config, sp: spm.SentencePieceProcessor) -> None:
    """Runs the whole training and writes the best checkpoint to args.out as it goes."""
    device = args.device
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    train_stories, valid_stories = split(read_stories(args.corpus))
    windows = Windows(*token_stream(train_stories, sp, bodies=True), config, device)
    valid, _ = token_stream(valid_stories, sp)

    model = Llama(config, args.dropout)
    if args.init:
        model.load_state_dict(load_model(args.init).state_dict())
    model = model.to(device)
    ema = copy.deepcopy(model).eval()
    teachers = [load_model(path).to(device) for path in args.teacher]
    run, run_teachers = model, list(teachers)
    loss_of = loss_fn
    if args.compile:
        run, loss_of = torch.compile(model, dynamic=False), torch.compile(loss_fn)
        run_teachers = [torch.compile(teacher, dynamic=False) for teacher in teachers]
    opts = optimizers(model, args)
    pressure = Pressure(args.active) if args.active else None
    groups = [group for opt in opts for group in opt.param_groups]
    peaks = [group["lr"] for group in groups]
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params:,} parameters, {len(windows.stream):,} tokens, {vars(args)}", flush=True)

    best, begin, clock = float("inf"), time.time(), time.time()
    step, progress = 0, 0.0
    while progress < 1:
        # With --seconds the schedule runs on whichever of steps and time is further.
        progress = max((step + 1) / args.steps, (time.time() - begin) / args.seconds)
        factor = rate(min(progress, 1.0))
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * factor
        ids = windows.batch(args.batch)
        taught = progress >= args.teacher_from
        with torch.autocast(device, torch.bfloat16):
            target = average_prediction(run_teachers if taught else [], ids[:, :-1])
        # Small products are slower in bfloat16 on a CPU, where only the teachers use it.
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            if pressure:
                logits, firing = run(ids[:, :-1], firing=True)
            else:
                logits = run(ids[:, :-1])
            loss = loss_of(logits, ids, target, args.teacher_weight)
        (loss + pressure(firing, progress) if pressure else loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            keep = min(args.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - keep)
        if step == 0:
            begin = clock = time.time()  # compiling is not counted
        step += 1
        if step % args.eval_every == 0 or progress >= 1:
            valid_loss = mean_loss(ema, valid, device)
            speed = args.eval_every * args.batch * config.n_ctx / (time.time() - clock)
            print(
                f"{time.time() - begin:6.1f} s  step {step:5d}  {progress:6.1%}  train {loss:.4f}"
                f"  valid {valid_loss:.4f}  best {min(best, valid_loss):.4f}  {speed:,.0f} tok/s",
                flush=True,
            )
            if pressure:
                fires = mean_firing(ema, valid, device)
                layers = " ".join(f"{f:.1%}" for f in fires)
                print(f"    {pressure}, validation {fires.mean():.1%}: {layers}", flush=True)
            # Before the pressure has done its work a model is better, and not what is wanted.
            if valid_loss < best and (not pressure or progress > 0.9):
                best = valid_loss
                settings = {name: str(value) for name, value in vars(args).items()}
                result = {"step": step, "valid_loss": best, "seconds": time.time() - begin}
                save_checkpoint(args.out, ema, {"args": settings, **result})
            clock = time.time()

    model = load_checkpoint(args.out).to(device)
    for prompt in PROMPTS:
        print(f"--- {prompt!r}\n{generate(model, sp, prompt, 200)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", default="training/tales.model")
    parser.add_argument("--out", type=Path, default=Path("model.pt"))
    for field in dataclasses.fields(Config):
        choices = list(ACTIVATIONS) if field.name == "activation" else None
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default, choices=choices)
    parser.add_argument("--init", type=Path, help="start from this .pt or .gguf file's weights")
    parser.add_argument("--active", type=float, help="press neurons until this share fires")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--teacher", type=Path, nargs="*", default=[], help=".pt or .gguf files")
    parser.add_argument("--teacher-weight", type=float, default=0.7)
    parser.add_argument("--teacher-from", type=float, default=0.0, help="share of the run before")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end by then")
    parser.add_argument("--batch", type=int, default=32, help="windows a step")
    parser.add_argument("--lr", type=float, default=0.02, help="Muon's")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="Muon's")
    parser.add_argument("--adam-lr", type=float, default=0.003)
    parser.add_argument("--adam-decay", type=float, default=0.1)
    parser.add_argument("--ema", type=float, default=0.995)
    parser.add_argument("--eval-every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    config = Config(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Config)})
    sp = spm.SentencePieceProcessor(model_file=args.tokenizer)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    train(args, config, sp)


if __name__ == "__main__":
    main()
