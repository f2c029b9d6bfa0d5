"""The sandbox in which chat templates run; needs jinja2.

Whatever a template does is paid for in advance, out of a :class:`~.sandbox_budget.Budget`. The
tree of the template is changed so that it pays for its statements, loops, comparisons and joined
texts. The environment pays for look-ups, operators, calls, filters and tests; nothing is computed
while a template is compiled.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from importlib.metadata import version
from types import BuiltinFunctionType, MethodType
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from transformer_lib.text.chat.sandbox_budget import ITEM, Budget
from transformer_lib.text.chat.sandbox_costs import (
    charge_filter,
    charge_format_spec,
    charge_method,
    charge_operator,
    charge_search,
    charge_test,
    check_bits,
)

if tuple(map(int, re.findall(r"\d+", version("jinja2"))[:3])) < (3, 1, 6):
    raise ImportError("the sandbox of older versions has known holes")

MAX_TEMPLATE = 100_000  # characters
MAX_NODES = 8_000  # names, constants, operators...; to compile so many takes a second
_OF_JINJA = ("_loop_vars", "_block_vars")  # what a call is given without the template's doing

_BUDGET: ContextVar[Budget] = ContextVar("budget")


def render(template: str, values: Mapping[str, object]) -> str:
    """Run a template.

    Args:
        template: the template.
        values: what it knows: copies, of plain data.

    Returns:
        The text.

    Raises:
        OverflowError: if the template is too long, does too much or makes too much.
        RecursionError: if it calls itself, or nests lists, too deep.
        jinja2.TemplateError: if it is damaged, fails, or does what it may not do.

    Example:
        >>> render("{{ name | upper }}", {"name": "eva"})
        'EVA'
    """
    if len(template) > MAX_TEMPLATE:
        raise OverflowError(f"it has {len(template)} characters; expected {MAX_TEMPLATE} at most")
    compiled = _compile(template)
    reset = _BUDGET.set(Budget(values))
    try:
        return "".join(compiled.generate(**values))
    finally:
        _BUDGET.reset(reset)


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    sandbox = _Sandbox()
    tree = sandbox.parse(template)
    n_nodes = sum(1 for _ in tree.find_all(nodes.Node))
    if n_nodes > MAX_NODES:
        raise OverflowError(f"it has {n_nodes} parts; expected {MAX_NODES} at most")
    return sandbox.from_string(_Paying().visit(tree))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with limits."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # else constants are computed before anybody pays
            finalize=_paid_text,
            extensions=[_Generation, loopcontrols],
        )
        self.filters = {name: _paid(name, do) for name, do in self.filters.items()}
        self.filters |= _OWN_FILTERS | {"tojson": _paid("tojson", _to_json)}
        tests = cast(dict[str, Callable[..., object]], self.tests)
        self.tests = {name: _paid_test(name, ask) for name, ask in tests.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "range": _range,
            "dict": _dict,
            "namespace": _Namespace,
        }

    def getattr(self, obj: object, attribute: str) -> object:
        """Look up ``obj.attribute`` for the template."""
        _BUDGET.get().use(ITEM)
        return super().getattr(obj, attribute)

    def getitem(self, obj: object, argument: object) -> object:
        """Look up ``obj[argument]`` for the template."""
        _BUDGET.get().weigh(argument)
        return super().getitem(obj, argument)

    def call(self, context: Context, called: object, /, *args: object, **named: object) -> object:
        """Call a function, method or macro for the template; macros pay for themselves."""
        budget = _BUDGET.get()
        budget.use(5 * ITEM)
        if isinstance(called, BuiltinFunctionType | MethodType):
            args = tuple(map(_listed, args))
            given = {name: value for name, value in named.items() if name not in _OF_JINJA}
            owner = called.__self__
            if isinstance(owner, LoopContext | Cycler | Extension):
                _weighed(args)
            else:
                charge_method(budget, owner, called.__name__, *args, **given)
        return _made(super().call(context, called, *args, **named))

    def call_filter(self, name: str, *args: Any, **named: Any) -> object:
        """Call a filter that the template names in a text, as with ``map``."""
        _check_filter(name)
        return super().call_filter(name, *args, **named)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute ``left operator right`` unless that is too much."""
        charge_operator(_BUDGET.get(), operator, left, right)
        result: object = super().call_binop(context, operator, left, right)
        check_bits(result)
        return result

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Return what does the work of ``str.format`` and ``str.format_map``, and pays for it."""
        if super().wrap_str_format(value) is None:
            return None
        method = cast(MethodType, value)
        text, formatter = str(method.__self__), _Formatter(self)
        if isinstance(method.__self__, Markup):
            raise SecurityError("'format' of escaped text is not for templates")
        _BUDGET.get().use(5 * ITEM + len(text))
        if method.__name__ == "format_map":
            return lambda values: formatter.vformat(text, (), values)
        return lambda *args, **named: formatter.vformat(text, args, named)

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuse an attribute at once: Jinja would wait until the template does more with it."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not for templates")


class _Formatter(SandboxedFormatter):
    """Formats text as ``str.format`` does; each field is paid for."""

    def convert_field(self, value: object, conversion: str | None) -> object:
        if conversion is not None:
            _spelled([value])
        return super().convert_field(value, conversion)

    def format_field(self, value: object, spec: str) -> str:
        charge_format_spec(_BUDGET.get(), spec)
        _spelled(value)
        return str(super().format_field(value, spec))


class _Namespace(Namespace):
    """What ``{% set ns.found = true %}`` writes to; private names are refused."""

    def __init__(self, *pairs: Mapping[str, object], **items: object) -> None:
        _BUDGET.get().use(5 * ITEM)
        names = dict(*pairs, **items)
        for name in names:
            _check_name(name)
        super().__init__(names)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> NoReturn:
        """Refuse to be written: it may hold itself."""
        raise SecurityError("a namespace is not to be written")


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


_WithBody = nodes.Template | nodes.Macro | nodes.CallBlock | nodes.Block | nodes.For


class _Paying(NodeTransformer):
    """Adds to a template that it pays for what it goes through."""

    def _visit_body(self, node: _WithBody) -> nodes.Node:
        """Let a body that can be run again and again pay each time, before it does anything."""
        self.generic_visit(node)
        paying = nodes.ExprStmt(_filtered(nodes.Const(_weight(node.body)), "charged"))
        node.body.insert(0, paying.set_lineno(node.lineno))
        return node

    visit_Template = visit_Macro = visit_CallBlock = visit_Block = _visit_body  # noqa: N815  (Jinja's names)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Let each item pay for the condition on it, and each pass for the body."""
        self._visit_body(node)
        of_item = nodes.Const(2 * ITEM + _weight([node.test] if node.test else []))
        node.iter = _filtered(cast(nodes.Expr, node.iter), "counted", of_item)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        """Keep the template from filters with which others pay."""
        _check_filter(node.name)
        self.generic_visit(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """Let ``~`` pay for what it joins."""
        self.generic_visit(node)
        node.nodes = [_filtered(one, "spelled") for one in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Let comparisons pay, unless one side is a constant: they look at no more than that."""
        self.generic_visit(node)
        constant = isinstance(node.expr, nodes.Const) and len(node.ops) == 1
        if any(operand.op in ("in", "notin") for operand in node.ops):
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, "searched", nodes.Const(constant))
        elif constant or any(isinstance(operand.expr, nodes.Const) for operand in node.ops):
            return node
        else:
            for operand in node.ops:
                operand.expr = _filtered(operand.expr, "weighed")
        node.expr = _filtered(node.expr, "weighed")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """Let slices pay, which Jinja does not show to the environment."""
        self.generic_visit(node)
        return _filtered(node, "made") if isinstance(node.arg, nodes.Slice) else node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        """Look at the keys of a dict."""
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, "usable_key")
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> NoReturn:  # noqa: N802
        """Refuse to switch on escaping for HTML, which no chat needs."""
        raise SecurityError("'autoescape' is not for chat templates")


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _weight(body: Iterable[nodes.Node]) -> int:
    """What it costs to go through statements once: their number, and the texts that they hold."""
    units = 0
    for top in body:
        for node in (top, *top.find_all(nodes.Node)):
            made = isinstance(node, nodes.List | nodes.Dict | nodes.Tuple | nodes.Macro)
            units += ITEM if made else 1
            text = node.data if isinstance(node, nodes.TemplateData) else None
            text = node.value if isinstance(node, nodes.Const) else text
            units += len(text) if isinstance(text, str) else 0
    return units


def _paid(name: str, change: Callable[..., object]) -> Callable[..., object]:
    """Let a filter pay before it begins, and for what comes out of it."""
    cost, n_of_jinja = charge_filter(name), int(hasattr(change, "jinja_pass_arg"))

    @wraps(change)
    def paid(*args: object, **named: object) -> object:
        given = [*args[:n_of_jinja], *map(_listed, args[n_of_jinja:])]
        _BUDGET.get().use(2 * ITEM)
        cost(_BUDGET.get(), *given[n_of_jinja:], **named)
        return _made(change(*given, **named))

    return paid


def _paid_test(name: str, ask: Callable[..., object]) -> Callable[..., object]:
    cost, n_of_jinja = charge_test(name), int(hasattr(ask, "jinja_pass_arg"))

    @wraps(ask)
    def paid(*args: object, **named: object) -> object:
        _BUDGET.get().use(ITEM)
        cost(_BUDGET.get(), *args[n_of_jinja:], **named)
        return ask(*args, **named)

    return paid


@pass_context  # so Jinja does not call it while it compiles
def _paid_text(_: Context, value: object) -> object:
    """Let what is written pay."""
    return _spelled(value)


def _listed(value: object) -> object:
    """Make a list of what can be gone through only once: its length is not known."""
    if isinstance(value, Iterator) and not isinstance(value, LoopContext):
        return list(_paid_items(value, ITEM))
    return value


def _paid_items(items: Iterable[object], units: int) -> Iterator[object]:
    for item in items:
        _BUDGET.get().use(units)
        yield item


def _counted(items: Iterable[object], units: int) -> list[object]:
    return list(_paid_items(items, units))


def _made(value: object) -> object:
    """Pay for what was made, the items of a generator one by one."""
    if isinstance(value, str | bytes | list | tuple | dict):
        _BUDGET.get().use(len(value))
    elif isinstance(value, Iterator) and not isinstance(value, LoopContext):
        _BUDGET.get().use(5 * ITEM)
        return _paid_items(value, ITEM)
    return value


def _weighed(value: object) -> object:
    _BUDGET.get().weigh(value)
    return value


def _spelled(value: object) -> object:
    _BUDGET.get().spell(value)
    return value


def _searched(value: object, for_constant: bool) -> object:
    charge_search(_BUDGET.get(), value, for_constant=for_constant)
    return value


def _usable_key(key: object) -> object:
    """Refuse tuples: many of them have the same hash, and such a dict is slow."""
    if not isinstance(key, str | int | float | None):
        raise TypeError(f"the key of a dict is a {type(key).__name__}; expected text or a number")
    return key


def _dict(pairs: Iterable[object] = (), /, **items: object) -> dict[object, object]:
    entries = pairs.items() if isinstance(pairs, Mapping) else pairs
    found: dict[object, object] = {}
    for key, value in cast(Iterable[tuple[object, object]], _paid_items(entries, 3 * ITEM)):
        found[_usable_key(key)] = value
    return found | items


def _range(*limits: int) -> range:
    numbers = range(*limits)
    _BUDGET.get().use(ITEM * len(numbers))
    return numbers


def _strftime_now(form: str) -> str:
    _BUDGET.get().use(300 * len(form))  # C makes room for 256 characters for each
    return datetime.now().strftime(form)


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


def _charged(units: int) -> None:
    _BUDGET.get().use(units)


# With these a template pays, which `_Paying` has changed. It may not call them itself.
_OWN_FILTERS: dict[str, Callable[..., object]] = {
    "charged": _charged,
    "counted": _counted,
    "made": _made,
    "searched": _searched,
    "spelled": _spelled,
    "usable_key": _usable_key,
    "weighed": _weighed,
}


def _check_filter(name: str) -> None:
    if name in _OWN_FILTERS:
        raise SecurityError(f"the filter {name!r} is not for templates")
