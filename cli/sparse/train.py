"""`gguflow sparse train`: predictors that say which neurons will fire."""

from __future__ import annotations

import random
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gguflow.engine.limits import MAX_THREADS

from ..errors import OK, PackageError, UsageError
from ..load import note
from ..options import whole
from .common import add_relu_model, check_output, open_relu

if TYPE_CHECKING:
    from torch import Tensor

    from gguflow.engine.graph import DType
    from gguflow.engine.load import ModelSource
    from gguflow.engine.variants.relu.tools.train import Predictor, Settings

SUMMARY = "train activity predictors on a text"
EPILOG = """\
The model is run densely over the text; each layer's two small matrices (rank R) then learn from
its inputs which neurons fire. A tenth of its windows only measures. A layer's threshold is the
one at which the share --recall of the firing neurons is found there. The text must not be the one
that the result is judged by. Needs torch: pip install 'gguflow[train]'.

-o writes the predictors alone, for --predictor; --embed writes a copy of the model with them in it.

example: gguflow sparse train -m relu.gguf -f text.txt --embed relu-predicted.gguf"""


def add_arguments(p: ArgumentParser) -> None:
    add_relu_model(p)
    p.add_argument("-f", "--file", metavar="FILE", required=True, help="the text to learn from")
    p.add_argument("-c", "--ctx-size", type=whole(4), default=512, metavar="N",
                   help="tokens a window (default 512)")  # fmt: skip
    p.add_argument("--chunks", type=whole(1), default=256, metavar="N",
                   help="windows to use, spread over the text (default 256)")  # fmt: skip
    p.add_argument("-r", "--rank", type=whole(1), default=128, metavar="R",
                   help="rank of the predictors (default 128)")  # fmt: skip
    p.add_argument("--resume", metavar="FILE",
                   help="go on from this file's predictors, whose rank counts")  # fmt: skip
    p.add_argument("--recall", type=_share, default=0.95, metavar="SHARE",
                   help="of the firing neurons, the share to find (default 0.95)")  # fmt: skip
    p.add_argument("--steps", type=whole(1), default=1500, metavar="N",
                   help="training steps a layer (default 1500)")  # fmt: skip
    p.add_argument("--batch", type=whole(1), default=2048, metavar="N",
                   help="tokens a step (default 2048)")  # fmt: skip
    p.add_argument("--type", default="f16", metavar="TYPE",
                   help="element type to write: f16 (default), q8_0, q4_0, ...")  # fmt: skip
    p.add_argument("--device", default="auto", metavar="NAME",
                   help="torch's: cpu, cuda, cuda:1; default: a GPU if there is one")  # fmt: skip
    p.add_argument("-t", "--threads", type=whole(1, MAX_THREADS), metavar="N",
                   help="threads; default: all processors")  # fmt: skip
    p.add_argument("-s", "--seed", type=whole(0), default=1, metavar="N", help="(default 1)")
    p.add_argument("-o", "--output", metavar="FILE", help="write the predictors here")
    p.add_argument("--embed", metavar="FILE", help="write the model with the predictors here")


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ArgumentTypeError(f"{text}: expected a number between 0 and 1")
    return value


def run(args: Namespace) -> int:
    if not (args.output or args.embed):
        raise UsageError("give -o FILE or --embed FILE, or nothing is kept")
    if args.embed and args.random is not None:
        raise UsageError("--embed puts predictors into a file; --random has none")
    check_output("-o", args.output)
    check_output("--embed", args.embed)
    if find_spec("torch") is None:
        raise PackageError("training needs torch: pip install 'gguflow[train]'")
    from gguflow.engine.quantize import writable_type
    from gguflow.engine.variants.relu.tools.train import Settings, table

    try:
        dtype = writable_type(args.type)
    except ValueError as e:
        raise UsageError(f"--type {e}") from None
    source = open_relu(args)
    settings = Settings(args.rank, args.recall, args.steps, args.batch, seed=args.seed)
    found = train(args, source, settings)
    print(table([p.quality for p in found]))
    write(args, source, found, dtype)
    return OK


def train(args: Namespace, source: ModelSource, settings: Settings) -> list[Predictor]:
    """Record the text's activity and learn it, layer by layer."""
    import torch

    from gguflow.engine.model import Model
    from gguflow.engine.options import Options
    from gguflow.engine.variants.relu.tools.collect import record
    from gguflow.engine.variants.relu.tools.train import train_layer

    from .stats import progress

    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as e:
        raise UsageError(f"--device {device}: {str(e).splitlines()[0]}") from None
    if args.threads:
        torch.set_num_threads(args.threads)
    starts = resumed(args, source)
    chunks = spread(args, source)
    n_layer = source.arch.hp.n_layer
    note(f"{sum(map(len, chunks))} tokens, {n_layer} layers, on {device}")
    options = Options(n_ctx=args.ctx_size, n_ubatch=64, n_threads=args.threads or 0, sparse="off")
    model = Model(source, options)
    model.load_weights()
    found: list[Predictor] = []
    for x, share in record(model, chunks, progress(sum(map(len, chunks)))):
        found.append(
            train_layer(
                torch.from_numpy(x).to(device),
                torch.from_numpy(share).to(device),
                settings,
                start=starts[len(found)] if starts else None,
            )
        )
        q = found[-1].quality
        note(f"layer {len(found) - 1}: {q.active:.1%} active, {q.predicted:.1%} computed")
    return found


def resumed(args: Namespace, source: ModelSource) -> list[tuple[Tensor, Tensor]]:
    """--resume's matrices by layer; none without the flag."""
    import torch

    from gguflow.engine.quants import decode
    from gguflow.engine.variants.relu.identity import model_hash
    from gguflow.engine.variants.relu.predictor import with_predictor

    if not args.resume:
        return []
    weights = with_predictor(source, args.resume, model_hash(source))[0].weights

    def matrix(name: str) -> Tensor:
        w = weights[name]
        return torch.from_numpy(decode(w.dtype, w.read(), w.shape))

    layers = range(source.arch.hp.n_layer)
    return [(matrix(f"blk.{i}.fc1.weight"), matrix(f"blk.{i}.fc2.weight")) for i in layers]


def spread(args: Namespace, source: ModelSource) -> list[list[int]]:
    """At most --chunks windows at equal distances, so that all of a text has a say; in a random
    order, so that it has one in the tenth that measures."""
    from .stats import token_windows

    most, args.chunks = args.chunks, None
    chunks = token_windows(args, source)
    if len(chunks) > most:
        chunks = [chunks[i * len(chunks) // most] for i in range(most)]
    random.Random(args.seed).shuffle(chunks)
    return chunks


def write(args: Namespace, source: ModelSource, found: list[Predictor], dtype: DType) -> None:
    """The files that were asked for."""
    from gguflow.engine.variants.relu.identity import model_hash
    from gguflow.engine.variants.relu.predictor import write_predictor
    from gguflow.engine.variants.relu.tools.embed import embed_predictor

    layers = [(p.fc1.numpy(), p.fc2.numpy()) for p in found]
    thresholds = [p.threshold for p in found]
    if args.output:
        arch = source.arch
        owner = model_hash(source)
        write_predictor(args.output, arch.hp, layers, thresholds, owner, dtype, arch.name)
        note(f"wrote {args.output}")
    if args.embed:
        embed_predictor(source.path, args.embed, layers, thresholds, dtype)
        note(f"wrote {args.embed}, {Path(args.embed).stat().st_size:,} bytes")
