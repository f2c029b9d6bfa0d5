"""The live figure "tokenizer": one text, cut with more or fewer merges of chapter 2's BPE."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from transformer_book.datasets import shakespeare
from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import MUTED, ROLES
from transformer_book.live.wording import number
from transformer_lib import BPETokenizer

CHARACTERS, VOCABULARY = 60_000, 1_536  # as in chapter 2
COLOURS = tuple(ROLES[role] for role in ("query", "key", "value", "weight"))
_PAGE, _LETTER, _SIDE = 652.0, 7.5, 150.0  # px: of a row, of a letter, of the larger square


@cache
def learned() -> tuple[tuple[int, int], ...]:
    """Train byte-pair encoding as chapter 2 does, on the beginning of eight plays.

    Returns:
        The merges, in the order in which they were learned.

    Example:
        >>> tokenizer = BPETokenizer(learned()[:3])
        >>> tokenizer.tokens[-3:]
        ['th', ' th', ' a']
    """
    trained = BPETokenizer.train([shakespeare().train[:CHARACTERS]], VOCABULARY)
    return tuple(pair for pair in trained.learned if isinstance(pair, tuple))


@cache
def _tokenizer(merges: int) -> BPETokenizer:
    return BPETokenizer(learned()[:merges])


def values(*, text: str, merges: int) -> dict[str, Any]:
    """Cut a text with the first merges only.

    Args:
        text: any text.
        merges: how many of the merges to use.

    Returns:
        The ``ids``, the ``tokens`` as text, their number ``length`` T and its square ``scores``,
        the same for characters, ``each`` (characters a token; None without a text), the size of the
        ``vocabulary``, and the two parts of the ``last`` merge.

    Example:
        >>> found = values(text="The the The", merges=1277)
        >>> found["ids"], found["tokens"]
        ([422, 270, 903], ['The', ' the', ' The'])
        >>> (
        ...     found["length"],
        ...     found["scores"],
        ...     found["letters"],
        ...     found["letterScores"],
        ... )
        (3, 9, 11, 121)
    """
    tokenizer = _tokenizer(merges)
    ids = tokenizer.encode(text)
    first = len(tokenizer.special)  # the id of merge number 0
    pair = learned()[merges - 1] if merges else ()
    return {
        "ids": ids,
        "tokens": [tokenizer.tokens[i] for i in ids],
        "pieces": sum(map(_is_piece, (tokenizer.tokens[i] for i in ids))),
        "length": len(ids),
        "scores": len(ids) ** 2,
        "letters": len(text),
        "letterScores": len(text) ** 2,
        "each": len(text) / len(ids) if ids else None,
        "vocabulary": tokenizer.vocab_size,
        "last": [tokenizer.tokens[first + part] for part in pair],
    }


def say(state: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        Two sentences.

    Example:
        >>> state = {"text": "to be", "merges": 1277}
        >>> print(say(state, values(**state)).partition(". ")[0])
        5 characters, 2 tokens: 2.50 characters a token
    """
    if not values["length"]:
        return "There is no text to cut."
    letters, length = values["letters"], values["length"]
    cut = f"{_many(letters, 'character')}, {_many(length, 'token')}"
    pieces = values["pieces"]
    why = ""
    if pieces:
        are = "1 token is a piece" if pieces == 1 else f"{pieces} tokens are pieces"
        why = (
            f" {are} of a character (dashed): outside of English letters a character has two to "
            "four bytes, and the plays taught no merge that makes it whole."
        )
    return (
        f"{cut}: {number(values['each'])} characters a token. Attention makes "
        f"{length}² = {_many(values['scores'], 'score')}; character by character it would make "
        f"{letters}² = {values['letterScores']:,}.{why}"
    )


def _is_piece(token: str) -> bool:
    """Whether it is a part of a character: such bytes are written with a backslash and an x."""
    return "\\x" in token


def drawing(state: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, float, float]:
    """Draw the figure for paper: the tokens with their ids, the two squares, the numbers.

    Args:
        state: the settings.
        values: what :func:`values` gives for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> state = {"text": "to be", "merges": 1277}
        >>> drawing(state, values(**state))[1:]
        (680.0, 286.0)
    """
    canvas = Canvas()
    title = f"{_many(state['merges'], 'merge')}: the tokens and their ids"
    canvas.text(14, 24, title, anchor="start", color=MUTED)
    bottom = _draw_tokens(canvas, values) + 30
    title = "attention’s scores: T² (filled) against characters² (dashed)"
    canvas.text(14, bottom, title, anchor="start", color=MUTED)
    _draw_squares(canvas, values, bottom + 12)
    each = number(values["each"]) if values["length"] else "–"
    rows = (
        f"characters: {values['letters']:,}",
        f"tokens T: {values['length']:,}",
        f"characters a token: {each}",
        f"attention’s scores T²: {values['scores']:,}",
        f"the same with characters: {values['letterScores']:,}",
        f"vocabulary V: {values['vocabulary']:,}",
    )
    for place, row in enumerate(rows):
        canvas.text(14 + _SIDE + 40, bottom + 26 + 25.0 * place, row, size=14, anchor="start")
    return "\n".join(canvas.elements), 680.0, bottom + _SIDE + 26


def _many(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count:,} {word}s"


def _draw_tokens(canvas: Canvas, values: Mapping[str, Any]) -> float:
    """Draw a box for each token, in rows; return where the last row ends."""
    x, y = 14.0, 36.0
    for place, (token, i) in enumerate(zip(values["tokens"], values["ids"], strict=True)):
        words = token.replace(" ", "␣")
        width = _LETTER * max(len(words), len(str(i))) + 10
        if x + width > 14 + _PAGE:
            x, y = 14.0, y + 50
        stroke, fill = COLOURS[place % len(COLOURS)]
        canvas.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="44" rx="3" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )
        canvas.text(x + width / 2, y + 18, words, size=14)
        canvas.text(x + width / 2, y + 36, str(i), size=12)
        x += width + 3
    return y + 44


def _draw_squares(canvas: Canvas, values: Mapping[str, Any], top: float) -> None:
    """Draw T × T, filled, and letters × letters, dashed, on one corner."""
    unit = _SIDE / max(values["length"], values["letters"], 1)
    stroke, fill = ROLES["weight"]
    looks = {
        "length": f'fill="{fill}" stroke="{stroke}" stroke-width="1.6"',
        "letters": f'fill="none" stroke="{MUTED}" stroke-dasharray="4 3"',
    }
    for name, look in looks.items():
        side = unit * values[name]
        canvas.elements.append(
            f'<rect x="14" y="{top + _SIDE - side}" width="{side}" height="{side}" {look}/>'
        )
