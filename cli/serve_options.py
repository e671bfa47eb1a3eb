"""Arguments of a server: its answers, and who may ask for how many of them."""

from __future__ import annotations

from argparse import ArgumentParser

from .options_values import names, real, whole
from .template_options import add_template_variables, add_thinking


def add_answers(p: ArgumentParser) -> None:
    """What is so of answers where a request does not say."""
    g = p.add_argument_group("answers")
    g.add_argument(
        "--reasoning-format",
        choices=("auto", "deepseek", "none"),
        default="auto",
        help="where a model's thoughts go: to reasoning_content (auto, deepseek), or none: they "
        "stay in the text; a request may say",
    )
    g.add_argument(
        "--reasoning-budget",
        type=whole(-1),
        default=-1,
        metavar="N",
        help="most tokens of thoughts; 0: none, -1: no limit (default); a request may say",
    )
    add_template_variables(g, "; a request may change it")
    add_thinking(g)
    g.add_argument(
        "--lora-alias",
        action="append",
        default=[],
        metavar="NAME",
        help="what requests call the adapter, as their model, in the order of --lora (default: "
        "the file's name)",
    )
    g.add_argument(
        "--lora-init-without-apply",
        action="store_true",
        help="adapters only change the answers to requests that ask for them",
    )


def add_http(p: ArgumentParser) -> None:
    """Where the server listens, who may ask, and how much."""
    g = p.add_argument_group("requests")
    g.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen; 0.0.0.0 for everywhere (default 127.0.0.1)",
    )
    g.add_argument(
        "--port",
        type=whole(0, 65535),
        default=8080,
        metavar="N",
        help="0 for a free one (default 8080)",
    )
    g.add_argument(
        "--api-key",
        "--api-key-file",
        dest="api_key",
        action="append",
        default=[],
        metavar="FILE",
        help="a file of keys, one a line, one of which every request must have; or "
        "GGUFLOW_API_KEY in the environment",
    )
    g.add_argument(
        "--queue",
        type=whole(0),
        default=512,
        metavar="N",
        help="requests a model lets wait; more are answered 429 (default 512)",
    )
    g.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        dest="n_predict",
        type=whole(-1),
        default=-1,
        metavar="N",
        help="most tokens of an answer (default: the context)",
    )
    g.add_argument(
        "-to",
        "--timeout",
        type=real,
        default=600.0,
        metavar="S",
        help="seconds a request may take, and its reader may be behind (default 600)",
    )
    g.add_argument(
        "--max-body", type=real, default=8.0, metavar="MiB", help="size of a request (default 8)"
    )
    g.add_argument(
        "--header-timeout",
        type=real,
        default=10.0,
        metavar="S",
        help="to send a request's head (default 10)",
    )
    g.add_argument(
        "--body-timeout", type=real, default=30.0, metavar="S", help="to send its body (default 30)"
    )
    g.add_argument(
        "--max-connections",
        type=whole(0),
        default=0,
        metavar="N",
        help="at once, 0 for no limit (default 0)",
    )
    g.add_argument(
        "--drain",
        type=real,
        default=30.0,
        metavar="S",
        help="for requests in work when the server is told to end (default 30)",
    )
    g.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="names the server may be called by; on 127.0.0.1, its own alone",
    )
    g.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="pages of other hosts that may call the server",
    )
    g.add_argument(
        "--cors-origins",
        dest="cors_origin",
        type=names,
        action="extend",
        metavar="ORIGIN,...",
        help="the same as llama.cpp has it; * and localhost are no origins",
    )
    g.add_argument("--no-webui", "--no-ui", action="store_true", help="no page at /")
    g.add_argument("--no-access-log", action="store_true", help="no JSON line a request on stderr")
    g.add_argument(
        "--traces",
        action="store_true",
        help="send an OpenTelemetry span a request, as the OTEL_ environment variables say",
    )
