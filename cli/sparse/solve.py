"""`gguflow sparse solve`: which neurons a GPU keeps."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from gguflow.engine.dataclass import dataclass, replace

from ..columns import columns
from ..errors import OK, UsageError
from ..load import note
from ..options import add_engine, engine_options, gib, real
from .common import add_relu_model, check_output, open_relu

if TYPE_CHECKING:
    from gguflow.engine.backends.base import Backend
    from gguflow.engine.load import ModelSource
    from gguflow.engine.variants.relu.costs import NeuronBytes, Speeds
    from gguflow.engine.variants.relu.expect import LayerExpectation
    from gguflow.engine.variants.relu.split import NeuronSplit
    from gguflow.engine.variants.relu.stats import Activations

SUMMARY = "choose the neurons that a GPU keeps within a budget"
EPILOG = """\
The neurons are placed by how often each fires (`gguflow sparse stats`), by the bytes they take and
by the speed of both processors, so that a token takes the least time expected: an integer program,
solved by HiGHS (pip install 'gguflow[sparse]') or, without it, greedily.

--vram-budget is for all that the model needs on the GPU at hand. --ffn-budget is for the rows of
neurons alone; with --gpu-gbs and --sync-us it needs no GPU. The split that --vram-budget finds is
kept in GGUFLOW_CACHE_DIR and used by every later run with that budget; -o writes it to a file.

example: gguflow sparse solve -m relu-7b.gguf --vram-budget 5"""


def add_arguments(p: ArgumentParser) -> None:
    add_relu_model(p)
    p.add_argument("--ffn-budget", type=gib, metavar="GiB",
                   help="GPU memory for the rows of neurons alone")  # fmt: skip
    p.add_argument("--stats", metavar="FILE", help="activation counts; default: those kept")
    for side, name in (("gpu", "GPU"), ("host", "host")):
        p.add_argument(f"--{side}-gbs", type=_above_zero, metavar="X",
                       help=f"GB/s at which the {name} reads rows (default: measured)")  # fmt: skip
    p.add_argument("--sync-us", type=_above_zero, metavar="X",
                   help="microseconds a layer takes to meet (default: measured)")  # fmt: skip
    p.add_argument("-o", "--output", metavar="FILE", help="write the split here (.gpuidx)")
    add_engine(p)


def _above_zero(text: str) -> float:
    value = real(text)
    if value <= 0:
        raise ArgumentTypeError(f"{text}: expected a number above 0")
    return value


@dataclass(frozen=True)
class Solved:
    """A split, and what it was solved from."""

    split: NeuronSplit
    stats: Activations
    neurons: list[NeuronBytes]
    speeds: Speeds
    exact: bool


def run(args: Namespace) -> int:
    from gguflow.engine.variants.relu.split import write_split

    if bool(args.vram_budget) == bool(args.ffn_budget):
        raise UsageError("one of --vram-budget and --ffn-budget is needed")
    if args.vram_budget and (args.stats or args.gpu_gbs or args.host_gbs or args.sync_us):
        raise UsageError("--stats, --gpu-gbs, --host-gbs and --sync-us go with --ffn-budget")
    if args.split:
        raise UsageError("--split says which neurons go where; `gguflow sparse show` shows it")
    check_output("-o", args.output)
    solved = solve_whole(args) if args.vram_budget else solve_rows(args)
    print(report(solved))
    if args.output:
        budget = args.vram_budget or args.ffn_budget
        write_split(args.output, solved.split, solved.stats.model_hash, budget)
        note(f"split: {args.output}")
    return OK


def solve_whole(args: Namespace) -> Solved:
    """--vram-budget: as a run with it does."""
    from gguflow.engine.model import Model
    from gguflow.engine.variants.relu.place import layer_shapes, neuron_bytes
    from gguflow.engine.variants.relu.run import sparse_run
    from gguflow.engine.variants.relu.speeds import measure
    from gguflow.engine.variants.relu.store import model_stats

    source = open_relu(args)
    stats = model_stats(source)
    model = Model(source, engine_options(args))
    how = sparse_run(model.setup)
    assert how is not None and how.split is not None
    for line in model.notes:
        note(line)
    device = model.backends[model.device]
    host = next(b for b in model.backends.values() if b is not device)
    speeds = measure(device, host, layer_shapes(model.source)[0], model.options.n_threads or None)
    exact = how.mode == "exact"
    return Solved(how.split, stats, neuron_bytes(model.source), speeds, exact)


def solve_rows(args: Namespace) -> Solved:
    """--ffn-budget: the rows of neurons alone."""
    from gguflow.engine.planning import Setup
    from gguflow.engine.variants.relu.place import neuron_bytes
    from gguflow.engine.variants.relu.run import sparse_run
    from gguflow.engine.variants.relu.solve import choose_split
    from gguflow.engine.variants.relu.stats import read_stats
    from gguflow.engine.variants.relu.store import check_stats, model_stats
    from gguflow.engine.variants.relu.variant import ReluVariant

    model, options = open_relu(args), engine_options(args)
    setup = ReluVariant().prepare(Setup(model, options))
    source, how = setup.source, sparse_run(setup)
    if how is not None and how.mode == "off" and options.sparse == "auto":
        # A model that would run densely: a split is what makes it run otherwise.
        setup = ReluVariant().prepare(Setup(model, replace(options, sparse="exact")))
        source, how = setup.source, sparse_run(setup)
    if how is None or how.mode == "off":
        raise UsageError("--sparse off: a dense run has no neurons to place")
    if args.stats:
        stats = check_stats(read_stats(args.stats), source, args.stats)
    else:
        stats = model_stats(source)
    neurons, speeds, exact = neuron_bytes(source), row_speeds(args, source), how.mode == "exact"
    choice = choose_split(stats.probabilities, neurons, args.ffn_budget, speeds, exact=exact)
    if choice.method == "greedy":
        note(f"placed greedily: {choice.reason}")
    return Solved(choice.split, stats, neurons, speeds, exact)


def row_speeds(args: Namespace, source: ModelSource) -> Speeds:
    """The speeds given, and measured ones for those that are not."""
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.variants.relu.costs import Side, Speeds
    from gguflow.engine.variants.relu.place import layer_shapes
    from gguflow.engine.variants.relu.speeds import measure_side, measure_sync

    shape = layer_shapes(source)[0]
    host = find_backend("cpu", {"n_threads": args.threads})
    wants_gpu = args.gpu_gbs is None or args.sync_us is None
    gpu = find_backend(f"cuda:{args.device}") if wants_gpu else None

    def side(gbs: float | None, backend: Backend | None) -> Side:
        if gbs is not None:
            return Side(1e9 * gbs)
        assert backend is not None
        return measure_side(backend, shape, args.threads)

    if args.sync_us is not None:
        sync_s = args.sync_us / 1e6
    else:
        assert gpu is not None
        sync_s = measure_sync(gpu, host, shape.n_embd, args.threads)
    return Speeds(side(args.host_gbs, host), side(args.gpu_gbs, gpu), sync_s)


def report(s: Solved) -> str:
    """A table by layer, the whole, and the speeds behind it."""
    from gguflow.engine.compile import human_bytes
    from gguflow.engine.variants.relu.budget import no_neurons
    from gguflow.engine.variants.relu.expect import expect

    def of(split: NeuronSplit) -> list[LayerExpectation]:
        return expect(split, s.stats.probabilities, s.neurons, s.speeds, s.exact)

    layers, n_ff = of(s.split), s.split.n_ff
    rows = [["layer", "active %", "on GPU", "%", "of activity %", "host us", "GPU us", "both us"]]
    for i, x in enumerate(layers):
        shares = (f"{100 * y:.1f}" for y in (x.n_gpu / n_ff, x.hot))
        times = (f"{1e6 * y:.1f}" for y in (x.host_s, x.device_s, x.seconds))
        rows.append([str(i), f"{100 * x.active:.1f}", str(x.n_gpu), *shares, *times])
    without = sum(x.seconds for x in of(no_neurons(s.split.n_layer, n_ff)))
    seconds = sum(x.seconds for x in layers)
    n_gpu = sum(x.n_gpu for x in layers)
    return "\n".join(
        (
            columns(rows, right=range(8)),
            f"{n_gpu} of {n_ff * s.split.n_layer} neurons on the GPU, "
            f"{human_bytes(sum(x.n_bytes for x in layers))}; expected of a token's sparse layers: "
            f"{1e3 * seconds:.3f} ms, {1e3 * without:.3f} ms with none there",
            f"host {s.speeds.host.bytes_per_s / 1e9:.1f} GB/s + "
            f"{1e6 * s.speeds.host.layer_s:.1f} us a layer, "
            f"GPU {s.speeds.device.bytes_per_s / 1e9:.1f} GB/s + "
            f"{1e6 * s.speeds.device.layer_s:.1f} us, meeting {1e6 * s.speeds.sync_s:.1f} us",
        )
    )
