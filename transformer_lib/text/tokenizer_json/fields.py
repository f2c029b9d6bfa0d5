"""Reading the parts of a tokenizer.json, with clear errors."""

from collections.abc import Mapping
from typing import TypeVar

Part = Mapping[str, object]  # one part of the file, as JSON has it
Value = TypeVar("Value")


def read_field(part: Part, name: str, kind: type[Value], default: Value | None = None) -> Value:
    """Read a value from a part of the file.

    Args:
        part: the part.
        name: the name of the value.
        kind: the type that it must have.
        default: what it is if it is missing; with ``None`` it may not be.

    Returns:
        The value.

    Raises:
        ValueError: if it is missing or of another type.

    Example:
        >>> read_field(
        ...     {"type": "Digits", "individual_digits": 1},
        ...     "individual_digits",
        ...     bool,
        ... )
        Traceback (most recent call last):
        ValueError: Digits has individual_digits=1; expected a bool
    """
    value = part.get(name, default)
    if not isinstance(value, kind):
        owner = part.get("type", "tokenizer.json")
        raise ValueError(f"{owner} has {name}={value!r}; expected a {kind.__name__}")
    return value


def read_parts(part: Part, name: str) -> list[Part]:
    """Read a list of parts.

    Args:
        part: the part that holds the list.
        name: the name of the list.

    Returns:
        The parts.

    Raises:
        ValueError: if it is no list of objects.

    Example:
        >>> read_parts({"decoders": [{"type": "Fuse"}]}, "decoders")
        [{'type': 'Fuse'}]
    """
    parts: list[object] = read_field(part, name, list)
    if not all(isinstance(item, dict) for item in parts):
        raise ValueError(f"{name} holds something else than objects: {parts!r:.200}")
    return [item for item in parts if isinstance(item, dict)]


def unknown(place: str, part: Part) -> ValueError:
    """Make the error for a part that is not supported.

    Args:
        place: what the part is for.
        part: the part.

    Returns:
        The error; it names the type.

    Example:
        >>> unknown("normalizer", {"type": "Precompiled"})
        ValueError("the normalizer 'Precompiled' is not supported")
    """
    return ValueError(f"the {place} {part.get('type')!r} is not supported")
