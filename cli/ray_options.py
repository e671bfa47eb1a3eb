"""Flags that put a model on the nodes of a Ray cluster."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from gguflow.engine.limits import MAX_DEVICES

from .errors import PackageError, UsageError
from .options import ratios, real, whole

if TYPE_CHECKING:
    from gguflow.engine.options import Options
    from gguflow.server.cluster.serve import RayCluster

MOST = 1024  # replicas


def add_ray(p: ArgumentParser) -> None:
    """--ray and what goes with it, for a server."""
    g = p.add_argument_group("several machines")
    g.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the model on a Ray cluster: HOST:PORT, auto for the one this machine is a node "
        "of, or local for a new one here (pip install 'gguflow[ray]')",
    )
    g.add_argument(
        "--replicas",
        type=whole(1, MOST),
        default=1,
        metavar="N",
        help="with --ray: copies of the model, on different nodes where there are enough (default "
        "1); each has -np sequences",
    )
    g.add_argument(
        "--stages",
        type=whole(1, MAX_DEVICES),
        default=1,
        metavar="N",
        help="with --ray: processes that hold each copy together, some layers each (default 1)",
    )
    g.add_argument(
        "--stage-shares",
        type=ratios,
        default=(),
        metavar="LIST",
        help="with --stages: their shares of the layers, such as 3,1 (default equal)",
    )
    g.add_argument(
        "--ray-wait",
        type=real,
        default=30.0,
        metavar="S",
        help="with --ray: seconds to wait for the cluster's room, and for a replica when all are "
        "lost (default 30)",
    )
    g.add_argument(
        "--ray-silence",
        type=real,
        default=30.0,
        metavar="S",
        help="with --ray: a replica that says nothing for so long is lost (default 30)",
    )


def check_ray(args: Namespace) -> None:
    """Raises UsageError for flags that do not go together, PackageError without Ray."""
    if args.ray is None:
        for flag, given in (
            ("--replicas", args.replicas != 1),
            ("--stages", args.stages != 1),
            ("--stage-shares", args.stage_shares),
            ("--ray-wait", args.ray_wait != 30.0),
            ("--ray-silence", args.ray_silence != 30.0),
        ):
            if given:
                raise UsageError(f"{flag}: only with --ray")
        return
    for flag, given in (
        ("-m", len(args.model) > 1 and "-m again"),
        ("-md", args.model_draft is not None),
        ("--lookup", args.lookup or args.lookup_cache is not None),
    ):
        if given:
            raise UsageError(f"{flag if given is True else given}: not with --ray, as yet")
    if args.stage_shares and len(args.stage_shares) != args.stages:
        raise UsageError(f"--stage-shares: {len(args.stage_shares)} for {args.stages} stages")
    if args.stages > 1 and args.devices:
        raise UsageError("--stages: each is on one device, and --devices names several")
    for flag in ("ray_wait", "ray_silence"):
        if getattr(args, flag) <= 0:
            raise UsageError(f"--{flag.replace('_', '-')}: expected more than 0")
    from gguflow.engine.cluster.connect import use_ray
    from gguflow.engine.cluster.errors import ClusterError

    try:
        use_ray(args.ray)
    except ClusterError as e:
        raise PackageError(str(e)) from None


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

    config = FleetConfig(
        args.replicas, needs_of(options), args.ray_wait, args.ray_silence, args.stages,
        args.stage_shares,
    )  # fmt: skip
    ray: Any = connect(args.ray)
    return RayCluster(ray, config)


def disconnect() -> None:
    """Leave the cluster that `ray_cluster` joined."""
    from gguflow.engine.cluster import connect

    connect.disconnect()
