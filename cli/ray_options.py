"""Flags that put a model on the nodes of a Ray cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from typing import TYPE_CHECKING, Any

from gguflow.engine.limits import MAX_DEVICES

from .auto_devices import AUTO
from .errors import PackageError, UsageError
from .options import ratios, real, whole

if TYPE_CHECKING:
    from gguflow.engine.load import ModelSource
    from gguflow.engine.model import Model
    from gguflow.engine.options import Options
    from gguflow.server.cluster.serve import RayCluster

MOST = 1024  # replicas
WAIT = 30.0  # seconds


def add_stages(p: ArgumentParser) -> _ArgumentGroup:
    """--ray, --stages and --stage-shares."""
    g = p.add_argument_group("several machines")
    g.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the model on a Ray cluster: HOST:PORT, auto for the one this machine is a node "
        "of, or local for a new one here (pip install 'gguflow[ray]')",
    )
    g.add_argument(
        "--stages",
        type=whole(1, MAX_DEVICES),
        default=1,
        metavar="N",
        help="with --ray: processes that hold the model together, some layers each (default 1)",
    )
    g.add_argument(
        "--stage-shares",
        type=ratios,
        default=(),
        metavar="LIST",
        help="with --stages: their shares of the layers, such as 3,1 (default equal)",
    )
    return g


def add_ray(p: ArgumentParser) -> None:
    """The same and what else a server has."""
    g = add_stages(p)
    g.add_argument(
        "--replicas",
        type=whole(1, MOST),
        default=1,
        metavar="N",
        help="with --ray: copies of the model, on different nodes where there are enough (default "
        "1); each has -np sequences",
    )
    g.add_argument(
        "--ray-wait",
        type=real,
        default=WAIT,
        metavar="S",
        help="with --ray: seconds to wait for the cluster's room, and for a replica when all are "
        "lost (default 30)",
    )
    g.add_argument(
        "--ray-silence",
        type=real,
        default=WAIT,
        metavar="S",
        help="with --ray: a replica that says nothing for so long is lost (default 30)",
    )


def check_stages(args: Namespace) -> None:
    """Raises UsageError for flags that do not go together, PackageError without Ray."""
    if args.ray is None:
        for flag, given in (("--stages", args.stages != 1), ("--stage-shares", args.stage_shares)):
            if given:
                raise UsageError(f"{flag}: only with --ray")
        return
    if args.stage_shares and len(args.stage_shares) != args.stages:
        raise UsageError(f"--stage-shares: {len(args.stage_shares)} for {args.stages} stages")
    if args.stages > 1 and args.devices:
        raise UsageError("--stages: each is on one device, and --devices names several")
    from gguflow.engine.cluster.connect import use_ray
    from gguflow.engine.cluster.errors import ClusterError

    try:
        use_ray(args.ray)
    except ClusterError as e:
        raise PackageError(str(e)) from None


def check_ray(args: Namespace) -> None:
    """The same for a server."""
    waits = [("--ray-wait", args.ray_wait), ("--ray-silence", args.ray_silence)]
    if args.ray is None:
        given = [("--replicas", args.replicas != 1), *((f, s != WAIT) for f, s in waits)]
        for flag, is_given in given:
            if is_given:
                raise UsageError(f"{flag}: only with --ray")
        return check_stages(args)
    for flag, is_given in (
        ("-m again", len(args.model) + len(args.hf_repo) > 1),
        ("-md", args.model_draft is not None),
        ("--lookup", args.lookup or args.lookup_cache is not None),
        ("--devices auto", args.devices == AUTO),
    ):
        if is_given:
            raise UsageError(f"{flag}: not with --ray, as yet")
    for flag, seconds in waits:
        if seconds <= 0:
            raise UsageError(f"{flag}: expected more than 0")
    check_stages(args)


def needs_device(options: Options) -> bool:
    """Whether a model that is run so is on a device, as far as the options say."""
    given = options.n_gpu_layers or options.vram_budget or options.split or options.devices
    return bool(given) or any(name != "cpu" for _, name in options.overrides)


def needs_of(options: Options) -> dict[str, float]:
    """Resources of a process that runs a model so, by Ray's names."""
    needs = {"CPU": float(max(1, options.n_threads))}
    on_gpu = bool(options.n_gpu_layers or options.vram_budget or options.split)
    cards = sum(name.partition(":")[0] == "cuda" for name in options.devices)
    if on_gpu or cards:
        needs["GPU"] = float(max(1, cards))
    return needs


def ray_cluster(args: Namespace, options: Options) -> RayCluster | None:
    """Join the cluster of --ray; None without it. Raises ClusterError."""
    if args.ray is None:
        return None
    from gguflow.engine.cluster.connect import connect
    from gguflow.server.cluster.fleet import FleetConfig
    from gguflow.server.cluster.serve import RayCluster

    config = FleetConfig(args.replicas, args.ray_wait, args.ray_silence)
    ray: Any = connect(args.ray)
    return RayCluster(ray, config, needs_of(options), args.stages, args.stage_shares)


def staged_model(args: Namespace, source: ModelSource, options: Options) -> Model | None:
    """The model over --stages, of which this process is the first; None for a whole one. Raises
    ClusterError."""
    if getattr(args, "ray", None) is None:
        if hasattr(args, "ray"):
            check_stages(args)
        return None
    check_stages(args)
    if args.stages < 2:
        raise UsageError("--ray: give --stages 2 or more")
    from gguflow.engine.cluster.connect import connect
    from gguflow.engine.cluster.launch import staged

    needs = needs_of(options)
    ray: Any = connect(args.ray, own_gpu=_own_gpu(options) if "GPU" in needs else None)
    return staged(ray, source, options, args.stages, args.stage_shares, needs, WAIT, 10 * WAIT)


def _own_gpu(options: Options) -> tuple[int, int]:
    """Which GPU the first stage computes with, and how many this machine has."""
    from gguflow.engine.backends.base import DeviceId, find_backend
    from gguflow.engine.cluster.holder import own_device

    own = own_device(options)
    return DeviceId.parse(own).index, find_backend(own, options.of_backends()).n_alike


def disconnect() -> None:
    """Leave the cluster that `ray_cluster` joined."""
    from gguflow.engine.cluster import connect

    connect.disconnect()
