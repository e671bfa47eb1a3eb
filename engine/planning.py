"""From a model as it could run to its graphs and plans; nothing is loaded for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import PlacementRules, Plan, PlanOptions, compile_graph
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import Graph, ParamRangeError, Role
from gguflow.engine.limits import MAX_TOKENS
from gguflow.engine.load import ModelSource, weight_users
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PAGE, STATES, PlanKey, step_key
from gguflow.engine.sampling import N_HISTORY
from gguflow.engine.serving.buckets import SPARE, Buckets
from gguflow.engine.serving.kv import window_pages
from gguflow.models.base import ModelError
from gguflow.models.batch import Batch, CacheLayer, CacheSize, append_sampler

KEPT = 32  # plans
STATE_COPIES, STATE_COPIES_OF_SEQ = 2, 1  # of recurrent states, beside those in use


class Rewrite(Protocol):
    """A change to a model's graphs, made after the architecture has recorded them."""

    def rewrite(self, g: Graph) -> None:
        """Change a graph in place. Weights that no op reads afterwards are dropped."""


@dataclass(frozen=True, eq=False)
class Setup:
    """A model as it could run.

    source: with the weights that this takes. options: complete, with the placement rules settled
    so far. rewrites: of its graphs, in the order they are made; n_own_rewrites: how many of them
    follow from the model and its options. most_ubatch: tokens of a piece of a prompt that memory
    has room for.
    """

    source: ModelSource
    options: Options
    rewrites: tuple[Rewrite, ...] = ()
    most_ubatch: int = MAX_TOKENS
    n_own_rewrites: int = 0

    def under(self, options: Options) -> Setup:
        """The same under other options, completed: n_ctx and n_ubatch are this model's."""
        n_ctx = options.n_ctx or self.source.arch.hp.n_ctx_train
        if options.n_cache:
            n_ctx = min(n_ctx, options.n_cache)
        n_ubatch = max(1, min(options.n_ubatch, options.n_batch, n_ctx, self.most_ubatch))
        return replace(self, options=replace(options, n_ctx=n_ctx, n_ubatch=n_ubatch))


def cache_size(setup: Setup) -> CacheSize:
    """Pages of the KV cache by group of layers."""
    o, arch = setup.options, setup.source.arch
    n_entries = -(-o.n_ctx // PAGE)
    n_full = -(-o.n_cache // PAGE) if o.n_cache else o.n_seqs * n_entries
    layers = [layer for i in range(arch.hp.n_layer) if (layer := arch.cache(i))]
    windows = {layer.group: layer.window for layer in layers if isinstance(layer, CacheLayer)}
    n_chunk = o.n_ubatch * o.n_pieces
    n_pages = {
        group: min(n_full, o.n_seqs * window_pages(window, n_chunk)) if window else n_full
        for group, window in windows.items()
    }
    if any(layer.group == STATES for layer in layers):
        n_pages[STATES] = o.n_seqs + STATE_COPIES + o.n_seqs * STATE_COPIES_OF_SEQ
    return CacheSize(n_pages, n_entries)


def buckets(options: Options, live: bool = False) -> Buckets:
    """The sizes that plans are compiled for. live: see `Buckets`."""
    return Buckets(
        options.n_seqs, options.n_ubatch, live, equal=bool(options.equal_bits) and not live
    )


def record(setup: Setup, key: PlanKey) -> Graph:
    """The forward pass over a run's rows as an uncompiled graph. Raises ModelError where the file's
    keys, each within its own bounds, make a number that is not."""
    g = Graph()
    source, o = setup.source, setup.options
    leaves = {s.name: g.weight(s.name, s.dtype, s.shape) for s in source.weights.values()}
    batch = Batch(key, cache_size(setup), o.k_type, o.v_type, bool(o.equal_bits))
    try:
        logits = source.arch.build(g, leaves, batch)
    except ParamRangeError as e:
        raise ModelError(f"{source.path}: its keys together are out of bounds: {e}") from None
    if key.n_out:
        g.output(logits)
    if key.sample:
        g.output(append_sampler(g, logits, N_HISTORY))
    for change in setup.rewrites:
        change.rewrite(g)
    g.drop_unused_weights()
    return g


def repacked_bytes(plan: Plan, backends: Mapping[str, Backend]) -> dict[str, int]:
    """By memory space, the bytes of weights that loading copies into a backend's own layout."""
    users = weight_users(plan)
    out: dict[str, int] = {}
    for t in plan.leaves(Role.WEIGHT):
        backend = backends[plan.placement.of[t]]
        n = backend.packed_bytes(t, users.get(t, []))
        out[backend.space] = out.get(backend.space, 0) + n
    return out


def token_key() -> PlanKey:
    """The plan of a single token and the choice of the next."""
    return step_key(1, "last", True)


def prompt_key(options: Options) -> PlanKey:
    """The plan of full pieces of prompts beside other sequences' single tokens."""
    return buckets(options).largest


class Planner:
    """Compiles plans over a model's backends. Those of the last few setups are kept."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self.backends = backends
        self._kept: OrderedDict[tuple[Setup, PlanKey], Plan] = OrderedDict()

    def plan(self, setup: Setup, key: PlanKey) -> Plan:
        """Compile a graph; needs no weights in memory. Raises PlacementError."""
        at = setup, key
        if at not in self._kept:
            rules = PlacementRules(tuple(self.backends.values()), setup.options.overrides)
            options = PlanOptions(rules, setup.options.fuse)
            self._kept[at] = compile_graph(record(setup, key), options)
            self._kept[at].made_for = at
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[at]

    def buckets(self, setup: Setup) -> Buckets:
        """The sizes that plans are compiled for. Hosts leave out rows that are not there."""
        live = all(b.space == HOST_SPACE or b.on_host for b in self.backends.values())
        return buckets(setup.options, live)

    def largest(self, setup: Setup, n_verify: int = 0) -> list[Plan]:
        """What generations run: full pieces of prompts, then single tokens; and pieces as often as
        there are some on their way. n_verify: rows that check guesses, where there are any."""
        o, sizes = setup.options, replace(self.buckets(setup), n_verify=n_verify)
        n = o.n_seqs
        keys = [*dict.fromkeys((sizes.largest, sizes.key(n, 0, n, n, False, True)))]
        if o.n_pieces > 1:
            keys += [sizes.piece(o.n_ubatch)] * (o.n_stages + SPARE)
        if n_verify:
            keys.append(sizes.verifying)
        return [self.plan(setup, key) for key in keys]
