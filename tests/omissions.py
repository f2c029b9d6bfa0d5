"""What a list lacks, has too much or has in the wrong place, said so that it can be mended.

A thing of this book stands in several files: a term in two, a public name in five. Whoever forgets
one of them is told which file lacks it and what to write there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

Words = Callable[[str], str]


def differences(
    found: Iterable[str], wanted: Iterable[str], *, lacks: Words, extra: Words
) -> list[str]:
    """Say of each name that a list lacks, or has too much, what to do about it.

    Args:
        found: the names in the list.
        wanted: those that should be there.
        lacks: writes the sentence for a name that is not there.
        extra: writes the sentence for a name that should not be there.
    """
    there, asked_for = set(found), set(wanted)
    missing = [lacks(name) for name in sorted(asked_for - there)]
    return missing + [extra(name) for name in sorted(there - asked_for)]


def told(problems: Callable[[set[str], set[str]], list[str]]) -> list[str]:
    """Return what a check says of a name that its list lacks, and of one that it has too much.

    Args:
        problems: the check; it is given the names that should be there, and those in the list.
    """
    (lacks,) = problems({"a", "b"}, {"a"})
    (extra,) = problems({"a", "b"}, {"a", "b", "c"})
    return [lacks, extra]


def place_in(name: str, order: Sequence[str]) -> str:
    """Say between which two of its neighbours a name belongs.

    >>> place_in("b", "abc"), place_in("a", "abc"), place_in("c", "abc")
    ("between 'a' and 'c'", "before 'b'", "behind 'b'")
    """
    i = order.index(name)
    before = repr(order[i - 1]) if i > 0 else ""
    after = repr(order[i + 1]) if i + 1 < len(order) else ""
    if before and after:
        return f"between {before} and {after}"
    return f"behind {before}" if before else f"before {after}"


def misplaced(names: Sequence[str], order: Sequence[str]) -> str:
    """Say which name stands in the wrong place, and where it belongs; nothing if none does.

    >>> (
    ...     misplaced("acb", "abc"),
    ...     misplaced("bcad", "abcd"),
    ...     misplaced("abc", "abc"),
    ... )
    ("'c' belongs behind 'b'", "'a' belongs before 'b'", '')
    """
    wrong = next((pair for pair in zip(names, order, strict=True) if pair[0] != pair[1]), None)
    if wrong is None:
        return ""
    here, expected = wrong  # one of the two was moved: the one without which all else is in order
    alone = [n for n in names if n != here] == [n for n in order if n != here]
    name = here if alone else expected
    return f"{name!r} belongs {place_in(name, order)}"


def fail_on(problems: Iterable[str]) -> None:
    """Fail with every problem on a line of its own, and without a comparison of long lists."""
    __tracebackhide__ = True
    if found := list(problems):
        pytest.fail("\n".join(found), pytrace=False)
