"""Small drawings of feed-forward networks: tokens on their way to experts."""

from collections.abc import Sequence

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import INK, MUTED, PANEL, ROLES, Picture
from transformer_book.figures.plot_data import check_filled
from transformer_lib import check_whole

BOX, CELL, GAP = 44.0, 26.0, 8.0  # width and height of a token, and between two tokens
EDGE = 1.0  # around the drawing, so that no line is cut
LABEL, ROW, RIGHT = 20.0, 64.0, 112.0  # above an expert, to the next one, left of all experts


def routing(
    words: Sequence[str], chosen: Sequence[int], *, n_experts: int, capacity: int, title: str
) -> Picture:
    """Draw tokens on their way to experts that have room for a few; who comes late is dropped.

    Tokens stand below each other and experts beside them, so that a phone shows all of it.

    Args:
        words: the tokens, in order.
        chosen: the number of the expert that each token is sent to.
        n_experts: how many experts there are.
        capacity: how many tokens an expert has room for.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if a size is not positive, or tokens and experts do not fit.

    Example:
        >>> routing(
        ...     ["a", "b"], [0, 0], n_experts=2, capacity=1, title="Two"
        ... ).summary
        'Two: expert 0 a; dropped b; expert 1 nothing.'
    """
    check_filled("words", words, "at least one token")
    check_whole("n_experts", n_experts)
    check_whole("capacity", capacity)
    if len(chosen) != len(words) or not all(0 <= expert < n_experts for expert in chosen):
        raise ValueError(
            f"chosen={list(chosen)} must hold an expert from 0 to {n_experts - 1} for each of "
            f"{len(words)} tokens"
        )
    canvas, said, lines = Canvas(), [], []
    for i, word in enumerate(words):
        _box(canvas, EDGE, EDGE + i * (CELL + GAP), word, "query")
    row = max(ROW, (CELL + GAP) * len(words) / n_experts)
    for expert in range(n_experts):
        top = row * expert + LABEL
        sent = [i for i, number in enumerate(chosen) if number == expert]
        canvas.text(RIGHT, top - 6, f"expert {expert}", bold=True, anchor="start")
        for place in range(max(capacity, len(sent))):
            late = place >= capacity
            x = RIGHT + place * (BOX + 5) + (8 if late else 0)
            if place == capacity:
                color = ROLES["query"][0]
                canvas.text(x, top - 6, "dropped", bold=True, color=color, anchor="start")
            role = "dropped" if late else "value" if place < len(sent) else "empty"
            _box(canvas, x, top, words[sent[place]] if place < len(sent) else "", role)
        for place, i in enumerate(sent):
            late = place >= capacity
            dash = ' stroke-dasharray="4 3"' if late else ""
            color = ROLES["query"][0] if late else MUTED
            start, end = EDGE + i * (CELL + GAP) + CELL / 2, top + CELL / 2
            way = f"M{EDGE + BOX} {start:.1f}L{RIGHT - 4} {end:.1f}"
            lines.append(f'<path d="{way}" stroke="{color}" stroke-width="1.6"{dash}/>')
        kept, lost = (
            " ".join(words[i] for i in some) for some in (sent[:capacity], sent[capacity:])
        )
        said.append(f"expert {expert} {kept or 'nothing'}" + (f"; dropped {lost}" if lost else ""))
    canvas.elements[:0] = lines
    return canvas.picture(title, f"{title}: {'; '.join(said)}.")


def _box(canvas: Canvas, x: float, y: float, words: str, role: str) -> None:
    stroke, fill = ROLES.get(role, (MUTED, PANEL))
    dash = "" if role in ROLES else ' stroke-dasharray="4 3"'
    canvas.elements.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX}" height="{CELL}" rx="5" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.2"{dash}/>'
    )
    if words:
        canvas.text(x + BOX / 2, y + 18, words, size=13, color=INK)
    canvas.width, canvas.height = max(canvas.width, x + BOX), max(canvas.height, y + CELL)
