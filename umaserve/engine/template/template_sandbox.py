"""The jinja2 sandbox for chat templates: the filters, functions and tags that they expect, and what bounds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS = "steps left"
"""The variable for a list of one number: how many loop iterations and calls a rendering may still take."""
MAX_FACTOR = 65536
"""The largest factor or power: ``"a" * 10 ** 10`` would take the host's memory."""
MAX_JOINED = 1 << 26
"""The longest text that is concatenated: ``s ~ s`` in a loop would take the host's memory."""

FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError, AttributeError)
"""Exceptions that a rendering raises: templates raise on purpose, and Python's errors on turns that their author didn't
expect."""


class Absent(jinja2.ChainableUndefined):
    """An undefined value: its attributes are undefined too, and it adds nothing to a text."""

    def __add__(self, other: Any) -> Any:
        return other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return other if isinstance(other, str) else super().__radd__(other)


class NoTools(Absent):
    """The tools where there are none. Templates test for that in two ways: they aren't defined, or are none."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates. ``now`` is the clock of ``strftime_now``."""

    intercepted_binops = frozenset(["+", "*", "**"])

    def __init__(self, now: Callable[[], datetime]) -> None:
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, undefined=Absent, extensions=extensions)
        self.filters["tojson"] = _to_json
        self.filters["counted"] = _counted
        self.filters["concatenated"] = _concatenated
        # Nothing is escaped, so everything is safe; jinja2's own filter would have what is added to it escaped.
        self.filters["safe"] = str
        self.tests["none"] = lambda value: value is None or isinstance(value, NoTools)
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: now().strftime(form)

    def template(self, source: str) -> jinja2.Template:
        """Compile ``source``; raises ``jinja2.TemplateSyntaxError``, and ``RecursionError`` where it nests too deep."""
        tree = self.parse(source)
        _Bounded().visit(tree)
        return self.from_string(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                _check_length(len(left) + len(right))
        elif operator == "**" or not (_is_number(left) and _is_number(right)):
            _check_factor(left)
            _check_factor(right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Each rendering has data of its own, so changing a list is no danger.
        return (type(obj) is list and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _step(context)
        return super().call(context, function, *args, **kwargs)


class _Generation(Extension):
    """Tag ``{% generation %}``, which marks the text to train on, and changes nothing when rendered."""

    tags = {"generation"}  # noqa: RUF012 -- declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounded(NodeTransformer):
    """Counts the iterations of loops, and checks the length of concatenated text."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "concatenated", [], [], None, None)


@jinja2.pass_context
def _counted(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _step(context)
        yield value


def _step(context: Context) -> None:
    steps = context.parent[STEPS]
    steps[0] -= 1
    if steps[0] < 0:
        raise jinja2.TemplateError("it takes too many steps")


def _concatenated(values: Sequence[Any]) -> str:
    texts = [str(value) for value in values]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _check_factor(value: Any) -> None:
    if _is_number(value) and abs(value) > MAX_FACTOR:
        raise jinja2.TemplateError(f"it multiplies by more than {MAX_FACTOR}")


def _check_length(length: int) -> None:
    if length > MAX_JOINED:
        raise jinja2.TemplateError(f"it makes a text of more than {MAX_JOINED} characters")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters, which models were not trained on.
    between = None if separators is None else (separators[0], separators[1])
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=between, sort_keys=sort_keys, default=_plain
    )


def _plain(value: Any) -> Any:
    """JSON equivalent of ``value``: null for what is undefined, an array for what a filter such as ``map`` makes."""
    if isinstance(value, jinja2.Undefined):
        return None
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")
