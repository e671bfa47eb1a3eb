"""A template's tree before it is compiled: no larger than templates are, and with calls put in that
take what an expression, a loop or a macro's body costs from the budget (`chat_bounds`)."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.exceptions import SecurityError

from .chat_bounds import WRITTEN_PER_STEP

# Of a template. The longest ones known have a tenth of these; compiling takes 10 KB a node.
MAX_SOURCE = 200_000  # characters
MAX_NODES = 8000
MAX_PARTS = 500  # loops, macros, blocks: compiling takes time in proportion to their square
_NODES_PER_STEP = 8
_PARTS = (
    nodes.AssignBlock, nodes.Block, nodes.CallBlock, nodes.FilterBlock, nodes.For, nodes.Macro,
    nodes.With,
)  # fmt: skip

# Filters that templates cannot name, put in here.
LOOP, BODY, MADE, LOOKED, SLICE, WRITTEN = (
    f"bounded {what}" for what in ("loop", "body", "value", "operand", "slice", "output")
)


def check_source(source: str) -> None:
    """Raises SecurityError for a text that is too long for a template."""
    if len(source) > MAX_SOURCE:
        raise SecurityError(f"{len(source)} characters, and {MAX_SOURCE} are allowed")


def add_bounds(tree: nodes.Template) -> None:
    """Puts the calls in; SecurityError for a tree that is too large, or that recurses in a loop."""
    if (n := _n_nodes(tree)) > MAX_NODES:
        raise SecurityError(f"{n} parts of expressions, and {MAX_NODES} are allowed")
    if (n := sum(1 for _ in tree.find_all(_PARTS))) > MAX_PARTS:
        raise SecurityError(f"{n} loops, macros and blocks, and {MAX_PARTS} are allowed")
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise SecurityError("recursive loops are not allowed")
        loop.iter = _filtered(LOOP, loop.iter, nodes.Const(_steps(loop)))
    bodies: tuple[type[nodes.Macro | nodes.CallBlock | nodes.Block], ...] = (
        nodes.Macro, nodes.CallBlock, nodes.Block)  # fmt: skip
    for part in tree.find_all(bodies):
        spent = nodes.ExprStmt(_filtered(BODY, nodes.Const(_steps(part))), lineno=part.lineno)
        part.body = [spent, *part.body]
    for block in tree.find_all(nodes.AssignBlock):
        block.filter = _filtered(MADE, block.filter)
    for written in tree.find_all(nodes.FilterBlock):
        written.filter = _filtered(WRITTEN, written.filter)
    _add_to_expressions(tree)


def _add_to_expressions(tree: nodes.Template) -> None:
    for concat in list(tree.find_all(nodes.Concat)):
        # A copy inside a filter: the node itself cannot be replaced from here.
        concat.nodes = [_filtered(MADE, nodes.Concat(concat.nodes))]
    for item in tree.find_all(nodes.Getitem):
        if isinstance(item.arg, nodes.Slice):  # which would not pass by the environment's `getitem`
            ends = (item.arg.start, item.arg.stop, item.arg.step)
            given = nodes.List([end or nodes.Const(None) for end in ends])
            item.arg = _filtered(SLICE, given)
    for compare in tree.find_all(nodes.Compare):
        _add_to_comparison(compare)
    for pair in tree.find_all(nodes.Pair):
        if not isinstance(pair.key, nodes.Const):
            pair.key = _filtered(LOOKED, pair.key)


def _add_to_comparison(compare: nodes.Compare) -> None:
    """`in` becomes the test of that name, whose cost depends on both sides."""
    if any(op.op in ("in", "notin") for op in compare.ops):
        if len(compare.ops) > 1:
            raise SecurityError("`in` within a chain of comparisons is not allowed")
        (op,) = compare.ops
        found: nodes.Expr = nodes.Test(compare.expr, "in", [op.expr], [], None, None)
        compare.expr = nodes.Not(found) if op.op == "notin" else found
        compare.ops = []
        return
    sides: list[nodes.Compare | nodes.Operand] = [compare, *compare.ops]
    for side in sides:
        if not isinstance(side.expr, nodes.Const):
            side.expr = _filtered(LOOKED, side.expr)


def _filtered(name: str, value: nodes.Node | None, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None)


def _n_nodes(tree: nodes.Node) -> int:
    """Nodes of a tree, however deep."""
    n, pending = 0, [tree]
    while pending:
        n += 1
        pending += pending.pop().iter_child_nodes()
    return n


def _steps(part: nodes.Node) -> int:
    """What a body costs each time it runs: its expressions and its plain text."""
    text = sum(len(data.data) for data in part.find_all(nodes.TemplateData))
    return 1 + _n_nodes(part) // _NODES_PER_STEP + text // WRITTEN_PER_STEP
