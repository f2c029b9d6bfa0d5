"""Last touches to Chromium's PDF: what a viewer shows first, and no traces of the machine.

Each edit keeps the length of what it replaces, so that the table of offsets at the file's end stays
true. Then its objects are packed.
"""

from __future__ import annotations

import re
from io import BytesIO

import pikepdf

_TRACES = re.compile(rb"/(?:CreationDate|ModDate|Creator) \((?:\\.|[^\\)])*\)", re.DOTALL)
_OUTLINE = re.compile(rb"\n(\d+) 0 obj\n<</Type /Outlines\n")
_OUTLINE_ITEM = re.compile(
    rb"(<</Title (?:(?!endobj).)*?/Parent (\d+) 0 R(?:(?!endobj).)*?)\n/Count (\d+)", re.DOTALL
)
_PREFERENCES = b"/ViewerPreferences <</Type /ViewerPreferences\n/DisplayDocTitle true>>"
_WITH_OUTLINE = b"/PageMode/UseOutlines/ViewerPreferences<</DisplayDocTitle true>>"


def polish(data: bytes) -> bytes:
    """Return a PDF as Chromium wrote it with its outline shown, and folded below its chapters."""
    data = without_traces(data)
    data = data.replace(_PREFERENCES, _WITH_OUTLINE.ljust(len(_PREFERENCES)))
    root = _OUTLINE.search(data)
    return pack(fold_outline(data, root[1]) if root else data)


def pack(data: bytes) -> bytes:
    """Return a PDF with its objects compressed: tags are two thirds of what Chromium writes."""
    packed = BytesIO()
    with pikepdf.open(BytesIO(data)) as pdf:
        pdf.save(
            packed,
            object_stream_mode=pikepdf.ObjectStreamMode.generate,
            deterministic_id=True,
        )
    return packed.getvalue()


def without_traces(data: bytes) -> bytes:
    r"""Blank out when and with what a PDF was made: it shall depend on its sources alone.

    >>> without_traces(rb"<</Creator (A \(1\))/ModDate (D:2026)>>")
    b'<<                                   >>'
    """
    return _TRACES.sub(lambda trace: b" " * len(trace[0]), data)


def fold_outline(data: bytes, root: bytes) -> bytes:
    r"""Fold what lies below the chapters: a negative count says that an item is closed.

    Args:
        data: a PDF.
        root: the number of its outline. What stands directly below it, the parts, stays open.

    >>> fold_outline(
    ...     b"<</Title (1)\n/Parent 7 0 R\n/Count 2\n/Next 8 0 R>>", b"6"
    ... )
    b'<</Title (1)\n/Parent 7 0 R/Count -2\n/Next 8 0 R>>'
    """

    def fold(item: re.Match[bytes]) -> bytes:
        return item[0] if item[2] == root else item[1] + b"/Count -" + item[3]

    return _OUTLINE_ITEM.sub(fold, data)
