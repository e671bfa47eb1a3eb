"""`gguflow serve`: models over HTTP, by the OpenAI API, with a page that shows what runs."""

from __future__ import annotations

import logging
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguflow.engine.dataclass import replace
from gguflow.engine.limits import MAX_SEQS, MAX_TOKENS

from .errors import NO_RESOURCES, OK, PackageError, UsageError, with_flags
from .llama_options import add_others
from .llama_server import FOR_SERVER, TAKEN_FOR_SERVER
from .load import (
    bundled_model,
    check_context,
    file_of,
    hub_model,
    note,
    url_model,
    warn_of_context,
)
from .log_options import add_log
from .options import (
    add_engine,
    add_hub,
    add_sampling,
    engine_options,
    gib,
    real,
    sampler_settings,
    whole,
)
from .prompt import read_file
from .ray_options import add_ray, check_ray, disconnect, needs_device, ray_cluster
from .serve_options import add_answers, add_http
from .speculation_options import add_speculation, set_speculation, speculation_settings

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.serving.speculation import Speculation
    from gguflow.server.config import ModelSpec, ServerConfig
    from gguflow.server.manager import Cluster

SUMMARY = "serve models over HTTP, by the OpenAI API"
OWN_SIGNALS = True  # its event loop answers Ctrl-C
EPILOG = """\
The page is at http://HOST:PORT/, the API below /v1; docs/server.md has all of it.

examples:
  gguflow serve
  gguflow serve -m model.gguf -c 8192 --parallel 16
  gguflow serve -m a.gguf -m b.gguf --alias small --alias large --models-memory 24
  gguflow serve -m model.gguf -ngl all --host 0.0.0.0 --api-key keys.txt
  gguflow serve -m model.gguf --ray 10.0.0.1:6379 --replicas 4"""
CACHE_TOKENS = 32768  # of the KV cache, unless a sequence needs more or the sequences together less


def add_arguments(p: ArgumentParser) -> None:
    g = p.add_argument_group("models")
    g.add_argument(
        "-m",
        "--model",
        action="append",
        default=[],
        metavar="FILE",
        help="GGUF model, or ollama:NAME; again for more, of which the first is the default and "
        "the others are loaded when asked for; default: the bundled model",
    )
    g.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        action="append",
        default=[],
        metavar="USER/REPO[:QUANT]",
        help="a model of the Hugging Face hub, fetched if it is not there; again for more, after "
        "those of -m",
    )
    g.add_argument("-hff", "--hf-file", metavar="FILE", help="which file of -hf's repository")
    g.add_argument(
        "-mu",
        "--model-url",
        action="append",
        default=[],
        metavar="URL",
        help="a model of any server, fetched if it is not there; again for more, after those of "
        "-hf",
    )
    add_hub(g)
    g.add_argument(
        "-a",
        "--alias",
        action="append",
        default=[],
        metavar="NAME",
        help="what requests call the model, in the order of -m (default: the file's name)",
    )
    g.add_argument(
        "-np",
        "--parallel",
        type=whole(1, MAX_SEQS),
        default=8,
        metavar="N",
        help="sequences in a batch (default 8)",
    )
    g.add_argument(
        "--engine-process",
        choices=("auto", "on", "off"),
        default="auto",
        help="run each model in a process of its own, so that writing answers never holds up its "
        "steps (default auto: where a GPU computes)",
    )
    g.add_argument(
        "--cache-tokens",
        type=whole(0, MAX_TOKENS),
        default=0,
        metavar="N",
        help=f"tokens the KV cache holds for all sequences together (default: -c for "
        f"each, up to {CACHE_TOKENS})",
    )
    g.add_argument(
        "--models-memory",
        type=gib,
        default=0,
        metavar="GiB",
        help="memory for models together; the longest unused one makes room",
    )
    g.add_argument(
        "--sleep-idle-seconds",
        type=real,
        default=0.0,
        metavar="S",
        help="put a model away that nobody has asked for so long (default: never)",
    )
    g.add_argument(
        "--chat-template",
        metavar="NAME|TEXT|FILE",
        help="of conversations; default: the model's own",
    )
    g.add_argument("--chat-template-file", metavar="FILE", help="the same, of a file")
    add_answers(p)
    add_http(p)
    add_engine(p)
    add_sampling(p)
    add_speculation(p)
    add_ray(p)
    add_log(p)
    add_others(p, FOR_SERVER, TAKEN_FOR_SERVER)


def run(args: Namespace) -> int:
    _check_packages(args)
    for text in args.notes:
        note(text)
    settings = server_config(args)
    guessing = speculation_settings(args)
    n_models = len(args.model) + len(args.hf_repo) + len(args.model_url)
    for flag, given in (("-md", args.model_draft), ("--lookup-cache", args.lookup_cache)):
        if given is not None and n_models > 1:
            raise UsageError(f"{flag}: for one model, and there are {n_models}")
    check_ray(args)
    specs = model_specs(args)
    from gguflow.server.garbage import put_aside
    from gguflow.server.manager import ModelManager
    from gguflow.server.run import listen, quiet_start, serve
    from gguflow.server.service import Service

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(quiet_start)
    began = time.perf_counter()
    sock = listen(settings)
    address = sock.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]

    def ready() -> None:
        put_aside()
        seconds = time.perf_counter() - began
        note(f"ready after {seconds:.2f} s: http://{host}:{address[1]}/")

    finish = partial(_finish, args, guessing)
    try:
        cluster = ray_cluster(args, specs[0].options) or _own_process(args, specs, finish)
        open_ = _open if cluster is None else _open_remote
        manager = ModelManager(specs, settings, open_, finish, cluster)
        service = Service(manager, settings)
        if args.traces:
            from gguflow.server.traces import Traces

            service.traces = Traces()
        started = serve(service, sock, ready)
    finally:
        sock.close()
        if args.ray is not None:
            disconnect()
    return OK if started else NO_RESOURCES


def _check_packages(args: Namespace) -> None:
    try:
        import llguidance  # noqa: F401
        import prometheus_client  # noqa: F401
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn.protocols.http.httptools_impl  # noqa: F401
    except ImportError as e:
        raise PackageError(f"{e.name} is missing: pip install 'gguflow[serve]'") from None
    try:
        if args.traces:
            import opentelemetry.exporter.otlp.proto.http
            import opentelemetry.sdk  # noqa: F401
    except ImportError as e:
        raise PackageError(f"{e.name} is missing: pip install 'gguflow[otel]'") from None


def server_config(args: Namespace) -> ServerConfig:
    """Limits and defaults from the arguments. Raises UsageError."""
    from gguflow.engine import env
    from gguflow.server.config import ServerConfig
    from gguflow.server.guard import local_hosts, read_keys

    for flag in ("timeout", "max_body", "header_timeout", "body_timeout", "drain"):
        if getattr(args, flag) <= 0:
            raise UsageError(f"--{flag.replace('_', '-')}: expected more than 0")
    for origin in args.cors_origin:
        if origin in ("*", "localhost"):
            raise UsageError(f"--cors-origins {origin}: expected origins as http://localhost:3000")
    keys = frozenset[str]()
    for path in args.api_key:
        found = read_keys(read_file(path, "--api-key"))
        if not found:
            raise UsageError(f"--api-key {path}: no keys in it")
        keys |= found
    if given := env.api_key():
        keys |= {given}
    hosts = tuple(h.lower() for h in args.allowed_host)
    if not hosts and not keys:
        hosts = local_hosts(args.host)
    return ServerConfig(
        host=args.host,
        port=args.port,
        keys=keys,
        hosts=hosts,
        origins=tuple(args.cors_origin),
        n_queue=args.queue,
        max_body=int(args.max_body * 2**20),
        max_output=args.n_predict,
        timeout=args.timeout,
        header_timeout=args.header_timeout,
        body_timeout=args.body_timeout,
        max_connections=args.max_connections,
        memory=args.models_memory,
        idle=max(0.0, args.sleep_idle_seconds),
        drain=args.drain,
        reasoning_format=args.reasoning_format,
        reasoning_budget=args.reasoning_budget,
        template_kwargs=_template_kwargs(args),
        access_log=not (args.no_access_log or args.quiet),
        page=not args.no_webui,
        defaults=sampler_settings(args),
    )


def _template_kwargs(args: Namespace) -> dict[str, Any]:
    from gguflow.server.prompting import OWN

    for name in OWN:
        if name in args.chat_template_kwargs:
            raise UsageError(f"--chat-template-kwargs: {name} is what requests say")
    found: dict[str, Any] = args.chat_template_kwargs
    return found


def model_specs(args: Namespace) -> list[ModelSpec]:
    """The models of -m. Each file is opened, so that one that is no model shows at the start."""
    from gguflow.engine.load import open_model
    from gguflow.server.config import ModelSpec
    from gguflow.server.manager import unique_names

    if args.hf_file is not None and len(args.hf_repo) != 1:
        raise UsageError(f"-hff/--hf-file: for one -hf, and there are {len(args.hf_repo)}")
    paths = [file_of(m) for m in args.model] + [hub_model(m, args) for m in args.hf_repo]
    paths += [url_model(url, None, args) for url in args.model_url]
    paths = paths or [bundled_model()]
    if len(args.alias) > len(paths):
        raise UsageError(f"--alias: {len(args.alias)} names for {len(paths)} models")
    try:
        names = unique_names(paths, args.alias)
    except ValueError as e:
        raise UsageError(f"--alias: {e}") from None
    adapters = _adapters(args, names)
    template = args.chat_template
    if args.chat_template_file is not None:
        if template is not None:
            raise UsageError("--chat-template and --chat-template-file exclude each other")
        template = read_file(args.chat_template_file, "--chat-template-file")
    elif template is not None and "{" not in template and Path(template).is_file():
        template = read_file(template, "--chat-template")
    specs = []
    for path, name in zip(paths, names, strict=True):
        source = open_model(path)
        options = engine_options(args)
        if args.lora_init_without_apply:
            options = replace(options, lora=tuple((file, 0.0) for file, _ in options.lora))
        n_ctx = options.n_ctx or source.arch.hp.n_ctx_train
        tokens = args.cache_tokens or min(n_ctx * args.parallel, max(n_ctx, CACHE_TOKENS))
        options = replace(options, n_seqs=args.parallel, n_cache=tokens)
        check_context(source, options)
        specs.append(ModelSpec(name, path, options, template, adapters))
    return specs


def _adapters(args: Namespace, names: list[str]) -> tuple[tuple[str, float], ...]:
    """What requests call the adapters, and the factors they get. Raises UsageError."""
    from gguflow.server.manager import unique_names

    if not args.lora:
        for flag, given in (
            ("--lora-alias", args.lora_alias),
            ("--lora-init-without-apply", args.lora_init_without_apply),
        ):
            if given:
                raise UsageError(f"{flag}: there is no --lora")
        return ()
    if len(names) > 1:
        raise UsageError(f"--lora: for one model, and there are {len(names)}")
    if len(args.lora_alias) > len(args.lora):
        raise UsageError(f"--lora-alias: {len(args.lora_alias)} names for {len(args.lora)}")
    try:
        found = unique_names([Path(file) for file, _ in args.lora], args.lora_alias)
        unique_names([], [*names, "default", *found])
    except ValueError as e:
        raise UsageError(f"--lora-alias: {e}") from None
    return tuple(zip(found, (factor for _, factor in args.lora), strict=True))


def _open(spec: ModelSpec) -> Model:
    """A model without its weights; says what runs where."""
    from gguflow.engine.load import open_model
    from gguflow.engine.model import Model

    from .auto_devices import with_devices

    source = open_model(spec.path)
    model = Model(source, with_devices(source, spec.options, note))
    note(
        f"{spec.name}: {spec.options.n_seqs} sequences of {model.options.n_ctx} tokens, "
        f"{spec.options.n_cache} together"
    )
    for line in model.forecast():
        note(line)
    warn_of_context(model.source, model.options.n_ctx)
    return model


def _finish(args: Namespace, guessing: Speculation | None, model: Model) -> None:
    """A model has its weights."""
    for text in model.weights.notes:
        note(with_flags(text))
    set_speculation(model, args, guessing)


def _own_process(
    args: Namespace, specs: Sequence[ModelSpec], finish: Callable[[Model], None]
) -> Cluster | None:
    """Engines beside this process, where --engine-process asks for that."""
    on = any(needs_device(spec.options) for spec in specs)
    if args.engine_process == "off" or (args.engine_process == "auto" and not on):
        return None
    from gguflow.server.cluster.serve import OwnProcess

    return OwnProcess(_open, finish)


def _open_remote(spec: ModelSpec) -> Model:
    """The same for a model that runs in other processes: what answers need to know of it."""
    from gguflow.engine.load import open_model
    from gguflow.engine.model import Model
    from gguflow.server.cluster.serve import here

    return Model(open_model(spec.path), here(spec.options))
