"""The table of SentencePiece: which characters are written as which others.

A ``tokenizer.json`` holds it as the normalizer ``Precompiled``: a search tree in an array of 32-bit
numbers (a double array, as Darts makes it), and behind it the texts that stand at its ends.
"""

import base64
import binascii
import struct
from collections.abc import Callable

from transformer_lib.text.tokenizer_json.fields import Part, read_field

_MOST_BYTES = 6  # a character of fewer bytes, with what is combined with it, is looked up as one


class CharacterTable:
    """Writes characters as others, such as full-width letters as plain ones.

    Args:
        content: the table, as SentencePiece stores it.

    Raises:
        ValueError: if it is damaged.

    Example:
        >>> CharacterTable(struct.pack("<I", 0)).look_up("a") is None
        True
    """

    def __init__(self, content: bytes) -> None:
        size = int.from_bytes(content[:4], "little")
        if len(content) < 4 or size % 4 or 4 + size > len(content):
            raise ValueError(
                f"Precompiled has a table of {len(content)} bytes that says {size}; it is damaged"
            )
        self._tree: tuple[int, ...] = struct.unpack(f"<{size // 4}I", content[4 : 4 + size])
        self._texts = content[4 + size :]
        self._known: dict[str, str | None] = {}

    def look_up(self, characters: str) -> str | None:
        """Return what characters are written as.

        Args:
            characters: one or several.

        Returns:
            Their other form, or that of those they begin with; ``None`` if there is none.

        Raises:
            ValueError: if the table leads out of itself.
        """
        if characters not in self._known:
            try:
                place = self._first_end(characters.encode())
                self._known[characters] = None if place is None else self._text_at(place)
            except (IndexError, ValueError) as error:
                raise ValueError(f"Precompiled has a damaged table: {error}") from None
        return self._known[characters]

    def _first_end(self, key: bytes) -> int | None:
        """Walk down the tree, to the first end on the way: a few bits of a number say where on."""
        if not self._tree:
            return None
        place = _offset(self._tree[0])
        for byte in key:
            place ^= byte
            unit = self._tree[place]
            if byte == 0 or unit & 0x8000_00FF != byte:  # no such branch
                return None
            place ^= _offset(unit)
            if unit >> 8 & 1:
                return self._tree[place] & 0x7FFF_FFFF
        return None

    def _text_at(self, place: int) -> str:
        end = self._texts.find(b"\0", place)
        return self._texts[place : end if end >= 0 else None].decode()


def _offset(unit: int) -> int:
    return unit >> 10 << (unit >> 6 & 8)


def read_precompiled(part: Part) -> Callable[[str], str]:
    """Read a normalizer of the type ``Precompiled``.

    Args:
        part: the part.

    Returns:
        A function that writes the characters of a text as the table says.

    Raises:
        ImportError: if the package ``regex`` is not installed.
        ValueError: if the table is damaged.

    Example:
        >>> table = base64.b64encode(struct.pack("<I", 0)).decode()
        >>> read_precompiled({"precompiled_charsmap": table})("to be")
        'to be'
    """
    try:
        import regex  # noqa: PLC0415  (an optional extra)
    except ImportError:
        raise ImportError("the normalizer 'Precompiled' needs regex: pip install regex") from None
    text = read_field(part, "precompiled_charsmap", str)
    try:
        table = CharacterTable(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(f"Precompiled has a table that is no base64: {error}") from None
    find = regex.compile(r"\X").findall  # what a reader takes for one character

    def write(text: str) -> str:
        pieces: list[str] = []
        for cluster in find(text):
            whole = table.look_up(cluster) if len(cluster.encode()) < _MOST_BYTES else None
            if whole is not None:
                pieces.append(whole)
                continue
            for character in cluster:
                one = table.look_up(character)
                pieces.append(character if one is None else one)
        return "".join(pieces)

    return write
