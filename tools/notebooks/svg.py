"""Comparing two SVG pictures: same structure, same text, same numbers up to the last digit.

Another processor may round a coordinate or a shade differently in its last digit. So numbers in
attributes may differ by 0.02 (pictures are a few hundred units wide) and the channels of a colour
by 3 of 255 (about one step of a colour map). Text, which readers read, must be the same.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

NUMBER_TOLERANCE = 0.02
COLOUR_TOLERANCE = 3

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TOKEN = re.compile(rf"(#[0-9a-fA-F]{{6}}\b|{_NUMBER})")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_REFERENCE = re.compile(r"#([\w.:-]+)")


class SvgError(Exception):
    """A picture that is not well-formed SVG."""


def parse(picture: str) -> ElementTree.Element:
    """Read an SVG picture."""
    try:
        return ElementTree.fromstring(picture.encode())
    except ElementTree.ParseError as error:
        raise SvgError(f"the SVG is not well-formed XML: {error}") from None


def description(picture: str) -> str | None:
    """The text of the picture's own `<desc>`, if it has one."""
    for child in parse(picture):
        if _local(child.tag) == "desc":
            return "".join(child.itertext())
    return None


def difference(stored: str, computed: str) -> str | None:
    """The first difference that a reader could see, in words; None where there is none."""
    try:
        old, new = parse(stored), parse(computed)
    except SvgError as error:
        return str(error)
    _rename_ids(old)
    _rename_ids(new)
    return next(_differences(old, new, _local(old.tag)), None)


def _differences(old: ElementTree.Element, new: ElementTree.Element, where: str) -> Iterator[str]:
    if old.tag != new.tag:
        yield f"{where}: stored element <{_local(old.tag)}>, computed <{_local(new.tag)}>"
        return
    for name in sorted({*old.attrib, *new.attrib}):
        before, after = old.get(name), new.get(name)
        if before is None or after is None or not _nearly_same(before, after):
            yield f"{where}: attribute {_local(name)}: stored {before!r}, computed {after!r}"
    for before, after in ((old.text, new.text), (old.tail, new.tail)):
        if (before or "").strip() != (after or "").strip():
            yield f"{where}: stored text {before!r}, computed {after!r}"
    if len(old) != len(new):
        yield f"{where}: {len(old)} stored elements, {len(new)} computed"
    for number, (before_child, after_child) in enumerate(zip(old, new, strict=False), start=1):
        yield from _differences(
            before_child, after_child, f"{where}/{_local(before_child.tag)}[{number}]"
        )


def _nearly_same(before: str, after: str) -> bool:
    """Whether two attribute values agree: words exactly, numbers and colours nearly."""
    if before == after:
        return True
    old, new = _TOKEN.split(before), _TOKEN.split(after)
    # re.split with one group alternates: words at even places, tokens at odd ones.
    return (
        len(old) == len(new)
        and old[::2] == new[::2]
        and all(_tokens_agree(a, b) for a, b in zip(old[1::2], new[1::2], strict=True))
    )


def _tokens_agree(before: str, after: str) -> bool:
    if before == after:
        return True
    if _COLOUR.fullmatch(before) and _COLOUR.fullmatch(after):
        pairs = zip(bytes.fromhex(before[1:]), bytes.fromhex(after[1:]), strict=True)
        return all(abs(a - b) <= COLOUR_TOLERANCE for a, b in pairs)
    if before.startswith("#") or after.startswith("#"):
        return False
    # The small allowance keeps 0.02 itself inside the tolerance in binary arithmetic.
    return abs(float(before) - float(after)) <= NUMBER_TOLERANCE + 1e-9


def _rename_ids(root: ElementTree.Element) -> None:
    """Number the ids in order of appearance: drawing libraries hash coordinates into them."""
    names: dict[str, str] = {}
    for element in root.iter():
        if "id" in element.attrib:
            names.setdefault(element.attrib["id"], f"id-{len(names)}")
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, names[value])
            elif "#" in value:
                element.set(
                    name,
                    _REFERENCE.sub(lambda m: "#" + names.get(m.group(1), m.group(1)), value),
                )


def _local(name: str) -> str:
    """A tag or attribute name without its namespace."""
    return name.rpartition("}")[2]
