r"""Patterns of tokenizers, found as their own engines do.

A pattern such as ``\p{L}+`` is written for Oniguruma (in a ``tokenizer.json``) or for Rust (in
tiktoken). The Python package ``regex`` reads nearly the same language; here are the differences.
Letters and numbers are those of the Unicode version that ``regex`` knows.
"""

import re
from collections.abc import Callable, Iterator
from typing import Literal

from transformer_lib.text.tokenizers import WHITE_SPACE

Span = tuple[int, int]
Finder = Callable[[str], list[Span]]
Dialect = Literal["oniguruma", "rust"]

# Outside of brackets Oniguruma counts six numbers of Latin-1 as parts of words; Rust counts the two
# joiners.
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"
_WORDS = {"oniguruma": _WORD + "²³¹¼½¾", "rust": _WORD + r"\u200c\u200d"}
_SAME = frozenset("dDpPrntfvaxu0")  # letters that mean the same after a backslash
# For Oniguruma, ^ and $ are the ends of lines; for Rust, those of the text.
_ENDS = {"oniguruma": {"^": r"(?m:^)", "$": r"(?m:$)"}, "rust": {"^": r"\A", "$": r"\Z"}}
_ITEM = re.compile(r"\\[pP]\{[^}]*\}|\\.|\{\d*,?\d*\}\+?|\[\^?\]?|.", re.DOTALL)
_FOREIGN = re.compile(r"\[:\^?\w+:\]|\(\?-?i*-?[a-hj-zA-Z]|\\x\{")


def find_spans(pattern: str, dialect: Dialect = "oniguruma") -> Finder:
    r"""Make a function that finds a pattern in a text.

    Args:
        pattern: the pattern, as the engine reads it for which it was written.
        dialect: that engine: ``"oniguruma"`` or ``"rust"``.

    Returns:
        A function from a text to the start and end of each match, from left to right.

    Raises:
        ImportError: if the package ``regex`` is not installed.
        ValueError: if the pattern is damaged, or means something else in ``regex``.

    Example:
        >>> find_spans(r"\p{N}{1,3}")("in 2024")
        [(3, 6), (6, 7)]
    """
    try:
        import regex  # noqa: PLC0415  (an optional extra)
    except ImportError:
        raise ImportError(f"{pattern=} needs the package regex: pip install regex") from None
    try:
        compiled = regex.compile(_translate(pattern, dialect), regex.VERSION1)
    except regex.error as error:
        raise ValueError(f"{pattern=} cannot be read: {error}") from None

    def find(text: str) -> list[Span]:
        spans: list[Span] = []
        for match in compiled.finditer(text):
            start, end = match.span()
            if end > start or not spans or end > spans[-1][1]:  # both engines skip such empty ones
                spans.append((start, end))
        return spans

    return find


def find_text(wanted: str) -> Finder:
    """Make a function that finds a string in a text.

    Args:
        wanted: the string; the empty one is found nowhere.

    Returns:
        A function from a text to the start and end of each match, from left to right.

    Example:
        >>> find_text("--")("a--b---")
        [(1, 3), (4, 6)]
    """
    compiled = re.compile(re.escape(wanted) or r"(?!)")
    return lambda text: [match.span() for match in compiled.finditer(text)]


def cut(text: str, spans: list[Span], behavior: str, invert: bool = False) -> list[str]:
    """Cut a text at what was found in it.

    Args:
        text: the text.
        spans: the matches.
        behavior: what becomes of a match: ``"Isolated"``, ``"Removed"`` (it becomes empty),
            ``"MergedWithPrevious"``, ``"MergedWithNext"``, or ``"Contiguous"`` (matches in a row
            become one).
        invert: whether to treat as matches what lies between them.

    Returns:
        The pieces; some may be empty.

    Raises:
        ValueError: if there is no such behavior.

    Example:
        >>> cut("a,b,,c", find_text(",")("a,b,,c"), "MergedWithPrevious")
        ['a,', 'b,', ',', 'c']
    """
    parts = list(_parts(text, spans, invert))
    if behavior == "Isolated":
        return [part for part, _ in parts]
    if behavior == "Removed":
        return ["" if found else part for part, found in parts]
    if behavior == "MergedWithPrevious":
        return _joined(parts, lambda found, before: found and not before)
    if behavior == "Contiguous":
        return _joined(parts, lambda found, before: found == before)
    if behavior == "MergedWithNext":
        mirrored = [(part[::-1], found) for part, found in reversed(parts)]
        pieces = _joined(mirrored, lambda found, before: found and not before)
        return [piece[::-1] for piece in reversed(pieces)]
    raise ValueError(f"{behavior=} of a split is not known")


def _parts(text: str, spans: list[Span], invert: bool) -> Iterator[tuple[str, bool]]:
    """Yield the matches and what lies between them, and whether each counts as a match."""
    end = 0
    for start, stop in spans:
        if start > end:
            yield text[end:start], invert
        yield text[start:stop], not invert
        end = stop
    if end < len(text):
        yield text[end:], invert


def _joined(parts: list[tuple[str, bool]], joins: Callable[[bool, bool], bool]) -> list[str]:
    """Join each part to the one before it where both being matches or not says so."""
    pieces: list[list[str]] = []
    before = False
    for part, found in parts:
        if pieces and joins(found, before):
            pieces[-1].append(part)
        else:
            pieces.append([part])
        before = found
    return ["".join(piece) for piece in pieces]


def _translate(pattern: str, dialect: Dialect) -> str:
    """Write a pattern as ``regex`` reads it."""
    if foreign := _FOREIGN.search(pattern):
        raise ValueError(f"{pattern=} has {foreign[0]!r}, which is not supported")
    translated: list[str] = []
    depth = 0  # of the brackets: inside them other signs are special
    for item in _ITEM.findall(pattern):
        new = item
        if item[0] == "\\" and len(item) > 1:
            new = _translate_escape(pattern, item, dialect, inside=depth > 0)
        elif item[0] == "[":
            depth += 1
            new = item.replace("]", r"\]")
        elif depth:
            depth -= item == "]"
            doubled = item == "-" and translated[-1] == "-"  # a difference of sets for `regex`
            new = "\\" + item if doubled or item in "|~" else item
        elif item in _ENDS[dialect]:
            new = _ENDS[dialect][item]
        elif item.endswith("}+") and dialect == "oniguruma":
            # There {1,3}+ is not possessive but a repetition of repetitions.
            raise ValueError(f"{pattern=} has {item!r}, which is not supported")
        translated.append(new)
    return "".join(translated)


def _translate_escape(pattern: str, item: str, dialect: Dialect, inside: bool) -> str:
    """Translate a backslash and what follows it, inside or outside of brackets."""
    letter = item[1]
    word = _WORD if inside and dialect == "oniguruma" else _WORDS[dialect]
    sets = {"s": WHITE_SPACE, "w": word}
    if letter.lower() in sets:
        content = sets[letter.lower()]
        return content if inside and letter in sets else f"[{'^' * letter.isupper()}{content}]"
    if dialect == "oniguruma" and letter in "zZ" and not inside:
        return r"\Z" if letter == "z" else r"(?=\n?\Z)"
    if letter.isascii() and letter.isalpha() and letter not in _SAME:
        raise ValueError(f"{pattern=} has {item!r}, which is not supported")
    return item
