"""What operators, filters and methods of a chat template cost.

Each cost is a function of what is about to be called with, which it takes from the budget first.
Filters and methods that are not listed may be slow in ways that were not measured here: they cost
the square of what they are given, so they are for short texts only.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from markupsafe import Markup

from transformer_lib.text.chat.sandbox_budget import ITEM, SPELLED, Budget

MAX_BITS = 64  # of a whole number that a template computes
_COMPARISONS = 20  # of each item, to sort a million of them
_ESCAPED = 6  # characters that one may become in HTML, such as &quot;
_CONVERSION = re.compile(r"%(\([^()]*\))?[-#0 +]*(\d+|\*)?(?:\.(\d+|\*)?)?[hlL]?(.?)", re.DOTALL)

Cost = Callable[..., None]


def charge_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """Take what ``left operator right`` costs.

    Args:
        budget: what is left.
        operator: one of ``+ - * / // % **``.
        left: the left operand.
        right: the right operand.

    Raises:
        OverflowError: if that is too much, or would be too large a number.

    Example:
        >>> charge_operator(Budget(None), "*", "ab", 10**9)
        Traceback (most recent call last):
        OverflowError: it does or makes more than 5,002,000 units of work allow
    """
    budget.use(ITEM)
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left, right)
        if operator == "**" and left.bit_length() * right > 100 * MAX_BITS:
            raise OverflowError(f"{left} ** {right} is a number of more than {MAX_BITS} bits")
    elif isinstance(left, int | float) and isinstance(right, int | float):
        return
    elif operator == "%" and isinstance(left, str):
        charge_printf(budget, left, right)
    elif operator == "*":
        times = max([0, *(one for one in (left, right) if isinstance(one, int))])
        budget.use((_length(left) + _length(right)) * times)
    elif operator == "+":
        budget.use((_length(left) + _length(right)) * _growth(left, right))
    else:
        _squared(budget, left, right)


def check_bits(*values: object) -> None:
    """Refuse whole numbers that are too large.

    Args:
        values: any values.

    Raises:
        OverflowError: if one is.

    Example:
        >>> check_bits(2**64)
        Traceback (most recent call last):
        OverflowError: it computes with a number of more than 64 bits
    """
    if any(isinstance(one, int) and one.bit_length() > MAX_BITS for one in values):
        raise OverflowError(f"it computes with a number of more than {MAX_BITS} bits")


def charge_printf(budget: Budget, form: str, values: object) -> None:
    """Take what ``form % values`` costs: widths such as that of ``%9d`` are read first.

    Args:
        budget: what is left.
        form: text with conversions.
        values: one value, a tuple of them, or a dict.

    Raises:
        OverflowError: if that is too much.
        ValueError: if the name of a value has brackets, so that its end cannot be found.

    Example:
        >>> charge_printf(Budget(None), "%2000000000d", 1)
        Traceback (most recent call last):
        OverflowError: it does or makes more than 5,002,000 units of work allow
    """
    budget.use(len(form))
    several = list(values) if isinstance(values, tuple) else [values]
    stars = max([0, *(abs(one) for one in several if isinstance(one, int))])
    units = sum(budget.spell(one) for one in several)
    units *= _growth(form, *several)
    for found in _CONVERSION.finditer(form):
        _, width, precision, kind = found.groups()
        if kind == "(":
            raise ValueError(f"{form[found.start() :][:30]!r} has brackets in the name of a value")
        budget.use(ITEM + sum(stars if n == "*" else _number(n) for n in (width, precision) if n))
        if kind in ("r", "a"):
            budget.use(SPELLED * units)
        elif isinstance(values, Mapping):  # each conversion may take the same value
            budget.use(units)
    budget.use(units)


def charge_format_spec(budget: Budget, spec: str) -> None:
    """Take what a width or precision costs, such as that of ``{:>9}``.

    Args:
        budget: what is left.
        spec: what stands after the colon.

    Raises:
        OverflowError: if that is too much.

    Example:
        >>> charge_format_spec(Budget(None), ">9")
    """
    budget.use(5 * ITEM + sum(map(_number, re.findall(r"\d+", spec))))


def charge_filter(name: str) -> Cost:
    """Find what a filter costs.

    Args:
        name: of the filter.

    Returns:
        A function of the budget and of all that the filter is called with.

    Example:
        >>> charge_filter("upper")(Budget(None), "a" * 10**7)
        Traceback (most recent call last):
        OverflowError: it does or makes more than 5,002,000 units of work allow
    """
    return _FILTERS.get(name, _squared)


def charge_test(name: str) -> Cost:
    """Find what a test costs, such as that of ``x is odd``.

    Args:
        name: of the test.

    Returns:
        A function of the budget and of all that the test is called with.

    Example:
        >>> charge_test("odd")(Budget(None), "%2000000000d")
        Traceback (most recent call last):
        TypeError: 'odd' is a question to numbers; got a str
    """
    if name in ("odd", "even", "divisibleby"):
        return lambda budget, value, *_, **__: _check_number(name, value)
    if name in ("lower", "upper"):
        return _linear
    return _search if name == "in" else _nothing if name in _FREE_TESTS else _weigh


def charge_method(budget: Budget, owner: object, name: str, *args: object, **named: object) -> None:
    """Take what a method of Python costs.

    Args:
        budget: what is left.
        owner: whose method it is.
        name: its name.
        args: what it is called with.
        named: what else it is called with.

    Raises:
        OverflowError: if that is too much.

    Example:
        >>> charge_method(Budget(None), "a" * 10**6, "rfind", "b" * 10**5)
        Traceback (most recent call last):
        OverflowError: it does or makes more than 5,002,000 units of work allow
    """
    cost = _squared
    if isinstance(owner, str | bytes):
        cost = _STRING_METHODS.get(name, _squared)
    elif isinstance(owner, Mapping) and name in ("get", "keys", "values", "items"):
        cost, owner = _weigh, args[0] if args else None  # only the key is looked at
        args, named = (), {}
    elif name == "copy":
        cost = _places
    elif isinstance(owner, list | tuple) and name in ("index", "count"):
        cost = _weigh
    for _ in range(_growth(owner, *args)):
        cost(budget, owner, *args, **named)


def charge_search(budget: Budget, value: object, *, for_constant: bool) -> None:
    """Take what it costs to look for something in a value, as ``x in value`` does.

    Args:
        budget: what is left.
        value: where it is looked for.
        for_constant: whether what is looked for stands in the template: it is short and flat.

    Raises:
        OverflowError: if that is too much.

    Example:
        >>> charge_search(Budget(None), "a" * 10**6, for_constant=True)
    """
    if isinstance(value, Mapping):
        budget.use(ITEM)
    elif for_constant and not isinstance(value, str | bytes):
        budget.use(ITEM * (1 + _length(value)))
    else:
        budget.weigh(value)


def _nothing(budget: Budget, *_: object, **__: object) -> None:
    """What takes an item or a look: filters that are lazy, or return what is there."""


def _weigh(budget: Budget, *values: object, **named: object) -> None:
    """What goes through all that it is given."""
    for one in (*values, *named.values()):
        budget.weigh(one)


def _linear(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What reads a text once; numbers may be widths."""
    budget.spell(value)
    for one in (*args, *named.values()):
        budget.spell(one)
        budget.use(_width(one))


def _slow(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What reads a text once, with ten times as much work."""
    for _ in range(10):
        _linear(budget, value, *args, **named)


def _product(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What may compare each character with each one of the arguments."""
    _weigh(budget, *args, **named)
    n_signs = sum(map(_length, (*args, *named.values())))
    budget.use(budget.spell(value) * n_signs)


def _translate(budget: Budget, owner: object, table: object) -> None:
    """What may write any text for each character."""
    budget.use(budget.spell(owner) * budget.weigh(table))


def _escape(budget: Budget, value: object) -> None:
    """What may write several characters for one."""
    budget.use(_ESCAPED * budget.spell(value))


def _squared(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What was not measured."""
    units = budget.weigh(value)
    units += sum(budget.weigh(one) + _width(one) for one in (*args, *named.values()))
    budget.use(units * units // 50)


def _places(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What puts items into new lists, without a look into them."""
    budget.use(ITEM * _length(value))
    _weigh(budget, *args, **named)
    budget.use(sum(map(_width, (*args, *named.values()))))


def _each_item(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What does something with each item."""
    units = sum(budget.weigh(one) for one in (*args, *named.values()))
    budget.use((ITEM + units) * _length(value))


def _sort(budget: Budget, value: object, *args: object, **named: object) -> None:
    """What compares items."""
    budget.use(_COMPARISONS * budget.weigh(value))
    _each_item(budget, value, *args, **named)


def _search(budget: Budget, value: object, container: object) -> None:
    budget.weigh(value)
    charge_search(budget, container, for_constant=False)


def _join(budget: Budget, value: object, d: object = "", attribute: object = None) -> None:
    budget.use(ITEM * _length(value))
    if isinstance(value, Iterable) and not isinstance(value, str):
        for one in value:
            budget.spell(one)
    budget.use((budget.spell(d) + budget.weigh(attribute)) * _length(value))


def _join_method(budget: Budget, owner: object, value: object = None) -> None:
    _join(budget, value, owner)


def _replace(budget: Budget, value: object, old: object, new: object, count: object = None) -> None:
    budget.spell(value)
    budget.spell(old)
    text, searched = (one if isinstance(one, str | bytes) else str(one) for one in (value, old))
    if isinstance(text, str) and isinstance(searched, str):
        n_found = text.count(searched)
    else:
        n_found = len(text)
    budget.use(budget.spell(new) * n_found)


def _indent(
    budget: Budget, value: object, width: object = 4, first: object = False, blank: object = False
) -> None:
    lines = 1 + (len(value.splitlines()) if isinstance(value, str) else 0)
    budget.spell(value)
    budget.use(ITEM * lines + (_width(width) + _length(width)) * lines)


def _printf(budget: Budget, form: object, *args: object, **named: object) -> None:
    budget.spell(form)
    charge_printf(budget, form if isinstance(form, str) else str(form), named or args)


def _json(
    budget: Budget,
    value: object,
    ensure_ascii: object = False,
    indent: object = None,
    separators: object = None,
    sort_keys: object = False,
) -> None:
    units, depth = budget.measure(value)
    breadth = depth * (_width(indent) + _length(indent)) + budget.weigh(separators)
    budget.use(units * SPELLED + (units // ITEM + 1) * breadth)


def _tabs(budget: Budget, owner: str | bytes, tabsize: object = 8) -> None:
    n_tabs = owner.count("\t") if isinstance(owner, str) else owner.count(b"\t")
    budget.use(len(owner) + n_tabs * _width(tabsize))


def _split(budget: Budget, owner: str | bytes, *args: object, **named: object) -> None:
    _linear(budget, owner, *args, **named)
    budget.use(ITEM * (1 + len(owner) // 2))  # an object for each piece


def _split_at(budget: Budget, owner: str | bytes, *args: object, **named: object) -> None:
    sign = args[0] if args else named.get("sep")
    if isinstance(owner, str) and isinstance(sign, str) and sign:
        _linear(budget, owner, *args, **named)
        budget.use(ITEM * (1 + owner.count(sign)))
    else:
        _split(budget, owner, *args, **named)


def _split_from_right(budget: Budget, owner: str | bytes, *args: object, **named: object) -> None:
    _product(budget, owner, *args, **named)
    _split_at(budget, owner, *args, **named)


def _length(value: object) -> int:
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        return 0


def _width(value: object) -> int:
    return abs(value) if isinstance(value, int) else 0


def _number(digits: str) -> int:
    return int(digits[:12])  # longer ones are too large anyhow


def _growth(*values: object) -> int:
    """How many characters one may become: what meets escaped text is escaped, too."""
    return _ESCAPED if any(isinstance(one, Markup) for one in values) else 1


def _check_number(name: str, value: object) -> None:
    if isinstance(value, str | bytes):  # for which Python's % is something else
        raise TypeError(f"{name!r} is a question to numbers; got a {type(value).__name__}")


def _table(**costs: tuple[str, Cost]) -> dict[str, Cost]:
    return {name: cost for names, cost in costs.values() for name in names.split()}


_FREE_TESTS = frozenset(
    ("defined", "undefined", "filter", "test", "none", "boolean", "false", "true", "integer",
     "float", "string", "mapping", "number", "sequence", "iterable", "callable", "sameas",
     "escaped")
)  # fmt: skip
_FILTERS = _table(
    lazy=("abs attr count d default first items last length random", _nothing),
    each=("map reject rejectattr select selectattr", _each_item),
    text=("capitalize center float int lower safe string truncate upper",
          _linear),
    html=("e escape forceescape", _escape),
    slow=("title", _slow),
    ends=("trim", _product),
    places=("batch list reverse slice", _places),
    sort=("dictsort groupby max min sort", _sort),
    replace=("replace", _replace),
    join=("join", _join),
    indent=("indent", _indent),
    printf=("format", _printf),
    json=("tojson", _json),
)  # fmt: skip
_STRING_METHODS = _table(
    text=("capitalize casefold center count decode encode endswith find index isalnum isalpha "
          "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
          "isupper ljust lower partition removeprefix removesuffix rjust startswith swapcase title "
          "upper zfill", _linear),
    ends=("lstrip rfind rindex rpartition rstrip strip", _product),
    table=("translate", _translate),
    split=("splitlines", _split),
    split_at=("split", _split_at),
    split_from_right=("rsplit", _split_from_right),
    replace=("replace", _replace),
    join=("join", _join_method),
    tabs=("expandtabs", _tabs),
)  # fmt: skip
