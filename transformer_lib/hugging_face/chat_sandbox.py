"""The sandbox in which chat templates run; needs jinja2."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from importlib.metadata import version
from typing import NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

if tuple(map(int, version("jinja2").split(".")[:3])) < (3, 1, 6):
    raise ImportError("the sandbox of older versions has known holes")

MAX_STEPS = 1_000_000  # passes through loops, and calls, in one conversation
MAX_SIZE = 20_000_000  # characters in all, and items or characters of what + * ~ make on the way
MAX_BITS = 10_000  # of a whole number


class _Budget:
    """What a template may still use up."""

    def __init__(self) -> None:
        self.steps, self.characters = MAX_STEPS, MAX_SIZE

    def step(self, n: int = 1) -> None:
        self.steps -= n
        if self.steps < 0:
            raise OverflowError(f"more than {MAX_STEPS} passes through loops and calls")

    def write(self, value: object) -> object:
        self.characters -= len(value) if isinstance(value, str) else 0
        _check_size(MAX_SIZE - self.characters)
        return value


_BUDGET: ContextVar[_Budget] = ContextVar("budget")


def render(template: str, values: Mapping[str, object]) -> str:
    """Run a template.

    Args:
        template: the template.
        values: what it knows: copies, of plain data.

    Returns:
        The text.

    Raises:
        OverflowError: if the template runs too long or makes too much.
        jinja2.TemplateError: if it is damaged, fails, or does what it may not do.

    Example:
        >>> render("{{ name | upper }}", {"name": "eva"})
        'EVA'
    """
    compiled = _compile(template)
    reset = _BUDGET.set(_Budget())
    pieces, size = [], 0
    try:
        for piece in compiled.generate(**values):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
    finally:
        _BUDGET.reset(reset)
    return "".join(pieces)


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    sandbox = _Sandbox()
    tree = _Counting().visit(sandbox.parse(template))
    return sandbox.from_string(tree)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with limits."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.filters = {name: _limited(change) for name, change in self.filters.items()}
        self.filters |= {
            "tojson": _to_json,
            "counted_items": _counted_items,
            "counted_text": lambda value: _BUDGET.get().write(value),
            "sized": _sized,
        }
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "range": _range,
            "dict": lambda *pairs, **items: dict(*pairs, **items),
            "namespace": _Namespace,
        }

    def call(self, context: Context, called: object, *args: object, **named: object) -> object:
        """Call a function, method or macro for the template."""
        _BUDGET.get().step()
        _check_numbers(*args, *named.values())
        return super().call(context, called, *args, **named)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute ``left operator right`` unless the result is too large."""
        sizes = _size(left), _size(right)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length()
            if bits + right.bit_length() > MAX_BITS:
                raise OverflowError(f"a number of more than {MAX_BITS} bits")
        elif operator == "*":
            times = [value for value in (left, right) if isinstance(value, int)]
            _check_size(sum(sizes) * max(times, default=1))
        else:
            _check_size(sum(sizes))
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuse an attribute at once: Jinja would wait until the template does more with it."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not for templates")


class _Namespace(Namespace):
    """What ``{% set ns.found = true %}`` writes to; private names are refused."""

    def __init__(self, *pairs: Mapping[str, object], **items: object) -> None:
        names = dict(*pairs, **items)
        for name in names:
            _check_name(name)
        super().__init__(names)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _Generation(Extension):
    """The tag around what the model wrote; here its content is written as it is."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        """Read up to the end of the tag."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_write")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _write(self, caller: Macro) -> str:
        return str(caller())


class _Counting(NodeTransformer):
    """Adds to a template that it counts what it goes through and what it writes."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (Jinja's name)
        """Count the passes through a loop."""
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), "counted_items")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Limit what ``~`` joins."""
        self.generic_visit(node)
        return _filtered(node, "sized")

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        """Count what is written, also into variables."""
        self.generic_visit(node)
        node.nodes = [
            one if isinstance(one, nodes.TemplateData) else _filtered(one, "counted_text")
            for one in node.nodes
        ]
        return node


def _filtered(node: nodes.Expr, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _counted_items(items: Iterable[object]) -> list[object]:
    found: list[object] = []
    for item in items:
        _BUDGET.get().step()
        found.append(item)
    return found


def _range(*limits: int) -> range:
    numbers = range(*limits)
    _BUDGET.get().step(len(numbers[: MAX_STEPS + 1]))
    return numbers


def _limited(change: Callable[..., object]) -> Callable[..., object]:
    """Refuse large numbers as arguments of a filter: some make that many characters."""

    @wraps(change)
    def limited(*args: object, **named: object) -> object:
        _check_numbers(*args[1:], *named.values())
        return change(*args, **named)

    return limited


def _size(value: object) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _sized(value: object) -> object:
    _check_size(_size(value))
    return value


def _check_size(size: float) -> None:
    if size > MAX_SIZE:
        raise OverflowError(f"more than {MAX_SIZE} characters or items")


def _check_numbers(*values: object) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_SIZE:
            raise OverflowError(f"the number {value!r:.50} is above {MAX_SIZE}")


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace may not have the private name {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the escapes for HTML that Jinja's own filter has."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
