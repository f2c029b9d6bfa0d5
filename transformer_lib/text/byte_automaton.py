r"""A regular expression as an automaton (DFA) over bytes: which byte may come next in a text.

A model writes tokens, and a token may end in the middle of a letter. So what a text must look like
is asked byte by byte. Three steps: the expression is parsed; its parts are laid out as a graph, in
which a byte may lead to several places; the sets of places become the states of the automaton, in
which each byte leads to one state at most.

The expression has to match the whole text. It may hold characters, ``.`` (any but a line break),
classes such as ``[a-z_]`` and ``[^"]``, ``\d \w \s`` and their opposites (of ASCII), groups
``(...)`` and ``(?:...)``, ``|``, and how often: ``? * + {3} {2,} {2,5} {,5}``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

MOST_PLACES = 100_000  # of the graph: repetitions within repetitions multiply
MOST_STATES = 20_000  # of the automaton: for some expressions they double with every character

Span = tuple[int, int]  # the first and the last of some neighbours: characters, or bytes

_LAST = 0x10FFFF  # the highest character
_DIGIT, _SPACE = [(0x30, 0x39)], [(0x09, 0x0D), (0x20, 0x20)]
_WORD = [*_DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SETS = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_HEX = {"x": 2, "u": 4}  # how many digits follow
# First and last character of each length in UTF-8. There are none from D800 to DFFF.
_LENGTHS = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, _LAST)]


@dataclass(frozen=True)
class ByteAutomaton:
    r"""Which bytes may follow in each state, and where a text may end. State 0 is the first.

    Args:
        steps: for each state, the state after each byte that is possible there: after it, an end
            can still be reached.
        ends: the states in which a text may end.

    Example:
        >>> numbers = read_pattern(r"-?\d+")
        >>> numbers.accepts("-12"), numbers.accepts("-")
        (True, False)
    """

    steps: list[dict[int, int]]
    ends: frozenset[int]

    def accepts(self, text: str) -> bool:
        """Say whether a whole text is one of those that may be written.

        Args:
            text: any text.

        Returns:
            Whether it ends where a text may end.
        """
        state: int | None = 0
        for byte in text.encode():
            state = None if state is None else self.steps[state].get(byte)
        return state in self.ends


def read_pattern(pattern: str) -> ByteAutomaton:
    r"""Make an automaton that accepts the texts that a regular expression matches as a whole.

    Args:
        pattern: the expression; what it may hold is said at the top of this module.

    Returns:
        The automaton.

    Raises:
        TypeError: if the pattern is no text.
        ValueError: if it is malformed, holds something else, matches nothing, or needs more than
            ``MOST_STATES`` states.

    Example:
        >>> read_pattern("(ja|nein)!{1,2}").accepts("nein!!")
        True
        >>> read_pattern(r"\bno")
        Traceback (most recent call last):
        ValueError: pattern '\\bno' at place 1: '\b' is not supported
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern has type {type(pattern).__name__}; expected a text")
    return _automaton(_Parser(pattern).whole(), f"pattern {pattern!r}")


def read_texts(texts: Iterable[str]) -> ByteAutomaton:
    """Make an automaton that accepts these texts and no others.

    Args:
        texts: one or more.

    Returns:
        The automaton.

    Raises:
        TypeError: if it is a single text, or holds something that is none.
        ValueError: if there are none, or they need more than ``MOST_STATES`` states.

    Example:
        >>> answers = read_texts(["yes", "yes, but"])
        >>> answers.accepts("yes"), answers.accepts("yes,")
        (True, False)
    """
    if isinstance(texts, str):
        raise TypeError("answers has type str; expected several texts, such as [text]")
    texts = list(texts)
    if not texts:
        raise ValueError("answers is empty; expected one text at least")
    for n, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"answers[{n}] has type {type(text).__name__}; expected a text")
    parts = [_sequence([_characters([(ord(c), ord(c))]) for c in text]) for text in texts]
    return _automaton(_either(parts), f"answers ({len(texts)})")


class _Graph:
    """Places, joined by bytes, or by nothing at all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.edges: list[list[tuple[Span, int]]] = []
        self.skips: list[list[int]] = []

    def new(self) -> int:
        """Add a place."""
        if len(self.edges) == MOST_PLACES:
            raise ValueError(f"{self.name} has more than {MOST_PLACES} parts: repeat less")
        self.edges.append([])
        self.skips.append([])
        return len(self.edges) - 1

    def reached(self, places: Iterable[int]) -> frozenset[int]:
        """The places that are reached from some without a byte, and these."""
        found, waiting = set(places), list(places)
        while waiting:
            for place in self.skips[waiting.pop()]:
                if place not in found:
                    found.add(place)
                    waiting.append(place)
        return frozenset(found)


# A part of an expression lays itself out behind a place, and returns the place where it ends.
_Part = Callable[[_Graph, int], int]


def _characters(spans: list[Span]) -> _Part:
    """One character of these."""

    def lay(graph: _Graph, start: int) -> int:
        end = graph.new()
        for path in _byte_paths(spans):
            place = start
            for span in path[:-1]:
                graph.edges[place].append((span, graph.new()))
                place = len(graph.edges) - 1
            graph.edges[place].append((path[-1], end))
        return end

    return lay


def _sequence(parts: list[_Part]) -> _Part:
    """Parts one after the other."""

    def lay(graph: _Graph, start: int) -> int:
        for part in parts:
            start = part(graph, start)
        return start

    return lay


def _either(parts: list[_Part]) -> _Part:
    """One of several parts."""

    def lay(graph: _Graph, start: int) -> int:
        end = graph.new()
        for part in parts:
            graph.skips[part(graph, start)].append(end)
        return end

    return lay


def _repeated(part: _Part, least: int, most: int | None) -> _Part:
    """A part so many times."""

    def lay(graph: _Graph, start: int) -> int:
        for _ in range(least):
            start = part(graph, start)
        end = graph.new()  # a place of its own: others that begin at the start must not loop
        graph.skips[start].append(end)
        if most is None:
            graph.skips[part(graph, end)].append(end)
        for _ in range((most or 0) - least):
            start = part(graph, start)
            graph.skips[start].append(end)
        return end

    return lay


def _byte_paths(spans: list[Span]) -> Iterator[list[Span]]:
    """The characters of some spans in UTF-8: rows of spans of bytes, each of one length."""
    for first, last in spans:
        for shortest, longest in _LENGTHS:
            low, high = max(first, shortest), min(last, longest)
            if low <= high:
                yield from _paths_between(chr(low).encode(), chr(high).encode())


def _paths_between(low: bytes, high: bytes) -> Iterator[list[Span]]:
    """All rows of bytes from one to another of the same length, as rows of spans."""
    if len(low) == 1:
        yield [(low[0], high[0])]
        return
    least, most = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)  # bytes that go on
    if low[0] == high[0]:
        for path in _paths_between(low[1:], high[1:]):
            yield [(low[0], low[0]), *path]
        return
    first, last = low[0], high[0]
    if low[1:] != least:  # the first one is not whole
        yield from _paths_between(low, bytes([first]) + most)
        first += 1
    if high[1:] != most:  # nor the last one
        yield from _paths_between(bytes([last]) + least, high)
        last -= 1
    if first <= last:
        yield [(first, last), *[(0x80, 0xBF)] * len(least)]


def _opposite(spans: list[Span]) -> list[Span]:
    """All other characters."""
    found, first = [], 0
    for low, high in sorted(spans):
        if low > first:
            found.append((first, low - 1))
        first = max(first, high + 1)
    return [*found, (first, _LAST)] if first <= _LAST else found


def _automaton(part: _Part, name: str) -> ByteAutomaton:
    """Turn sets of places into states (the subset construction), and leave dead ends out."""
    graph = _Graph(name)
    start = graph.new()
    end = part(graph, start)
    numbers = {graph.reached([start]): 0}
    steps: list[dict[int, int]] = []
    for places in _growing(numbers):
        after: defaultdict[int, set[int]] = defaultdict(set)
        for (low, high), place in (edge for n in places for edge in graph.edges[n]):
            for byte in range(low, high + 1):
                after[byte].add(place)
        closed = {key: graph.reached(key) for key in map(frozenset, after.values())}
        row = {}
        for byte, reached in after.items():
            row[byte] = numbers.setdefault(closed[frozenset(reached)], len(numbers))
        if len(numbers) > MOST_STATES:
            raise ValueError(f"{name} needs more than {MOST_STATES} states: make it simpler")
        steps.append(row)
    ends = frozenset(n for places, n in numbers.items() if end in places)
    alive = _leading_to(ends, steps)
    if 0 not in alive:
        raise ValueError(f"{name} matches no text")
    return ByteAutomaton(
        [{byte: n for byte, n in row.items() if n in alive} for row in steps], ends
    )


def _growing(numbers: dict[frozenset[int], int]) -> Iterator[frozenset[int]]:
    """The keys of a dictionary, those too that are added meanwhile."""
    seen = 0
    while seen < len(numbers):
        for key in list(numbers)[seen:]:
            seen += 1
            yield key


def _leading_to(ends: frozenset[int], steps: list[dict[int, int]]) -> set[int]:
    """The states from which an end can be reached."""
    before: defaultdict[int, set[int]] = defaultdict(set)
    for state, row in enumerate(steps):
        for target in row.values():
            before[target].add(state)
    found, waiting = set(ends), list(ends)
    while waiting:
        new = before[waiting.pop()] - found
        found |= new
        waiting += new
    return found


class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at = pattern, 0

    def whole(self) -> _Part:
        """Read all of it."""
        part = self.choice()
        if self.at < len(self.text):  # nothing else ends a choice
            raise self.error("this ')' closes no group")
        return part

    def choice(self) -> _Part:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else _either(parts)

    def sequence(self) -> _Part:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.times(self.one()))
        return _sequence(parts)

    def times(self, part: _Part) -> _Part:
        """Read how often a part comes."""
        limits = self.limits()
        if limits is None:
            return part
        if self.at < len(self.text) and self.text[self.at] in "?*+{":
            raise self.error("lazy, possessive and doubled repetition is not supported")
        return _repeated(part, *limits)

    def limits(self) -> tuple[int, int | None] | None:
        for sign, limits in {"?": (0, 1), "*": (0, None), "+": (1, None)}.items():
            if self.take(sign):
                return limits
        start = self.at
        if not self.take("{"):
            return None
        inside, closed, _ = self.text[self.at :].partition("}")
        first, comma, last = inside.partition(",")
        is_number = all(x.isascii() and x.isdigit() for x in (first, last) if x)
        if not (closed and is_number and inside.strip(",")):
            raise self.error(r"expected {3}, {2,}, {2,5} or {,5}; write \{ for a brace", start)
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        if most is not None and most < least:
            raise self.error(f"{{{inside}}} asks for at least {least} and at most {most}", start)
        self.at += len(inside) + 1
        return least, most

    def one(self) -> _Part:
        """Read a character, a class or a group."""
        start = self.at
        sign = self.next()
        if sign == "(":
            return self.group(start)
        if sign == "[":
            return _characters(self.members(start))
        if sign == ".":
            return _characters(_opposite([(0x0A, 0x0A)]))
        if sign == "\\":
            return _characters(self.escaped(start))
        if sign in "?*+{":
            raise self.error("there is nothing to repeat", start)
        if sign in "^$":
            why = f"'{sign}' is not needed, because the whole text must match"
            raise self.error(f"{why}; write \\{sign} for the sign", start)
        return _characters([(ord(sign), ord(sign))])

    def group(self, start: int) -> _Part:
        if self.take("?") and not self.take(":"):
            raise self.error("groups with (? other than (?: are not supported", start)
        part = self.choice()
        if not self.take(")"):
            raise self.error("this '(' is never closed", start)
        return part

    def members(self, start: int) -> list[Span]:
        """Read a class, behind its bracket."""
        negated, spans = self.take("^"), list[Span]()
        first = True
        while first or not self.take("]"):  # a bracket that comes first is a member
            low = self.member(start)
            if not self.text.startswith("-]", self.at) and self.take("-"):
                high = self.member(start)
                if any(len(x) > 1 or x[0][0] != x[0][1] for x in (low, high)) or low > high:
                    raise self.error("the range in this class has no first and last", start)
                low = [(low[0][0], high[0][1])]
            spans += low
            first = False
        return _opposite(spans) if negated else spans

    def member(self, start: int) -> list[Span]:
        at = self.at
        if at == len(self.text):
            raise self.error("this '[' is never closed", start)
        sign = self.next()
        return self.escaped(at) if sign == "\\" else [(ord(sign), ord(sign))]

    def escaped(self, start: int) -> list[Span]:
        """Read what follows a backslash."""
        if self.at == len(self.text):
            raise self.error("a backslash ends the pattern", start)
        sign = self.next()
        if sign.lower() in _SETS:
            spans = _SETS[sign.lower()]
            return spans if sign.islower() else _opposite(spans)
        if sign in _HEX:
            digits = self.text[self.at : self.at + _HEX[sign]]
            if len(digits) < _HEX[sign] or not all(c in "0123456789abcdefABCDEF" for c in digits):
                raise self.error(f"expected {_HEX[sign]} hexadecimal digits", start)
            self.at += len(digits)
            sign = chr(int(digits, 16))
        elif sign.isalnum():
            if sign not in _SIGNS:
                raise self.error(f"'\\{sign}' is not supported", start)
            sign = _SIGNS[sign]
        return [(ord(sign), ord(sign))]

    def take(self, sign: str) -> bool:
        """Read a sign if it comes next, and say whether it did."""
        found = self.text.startswith(sign, self.at)
        self.at += found
        return found

    def next(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def error(self, why: str, at: int | None = None) -> ValueError:
        place = (self.at if at is None else at) + 1
        return ValueError(f"pattern {self.text!r} at place {place}: {why}")
