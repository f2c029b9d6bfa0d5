"""Small drawings of feed-forward networks: tokens on their way to experts."""

from collections.abc import Sequence

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import INK, MUTED, PANEL, ROLES, Picture
from transformer_book.figures.plot_data import check_filled
from transformer_lib import check_whole

CELL, GAP = 26.0, 8.0  # height of a token, and between two tokens
COLUMN = 148.0  # from the left edge of an expert to the next one's


def routing(
    words: Sequence[str], chosen: Sequence[int], *, n_experts: int, capacity: int, title: str
) -> Picture:
    """Draw tokens on their way to experts that have room for a few; who comes late is dropped.

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
    canvas, said = Canvas(), []
    middle = COLUMN * n_experts / 2
    width = max(54.0, 2 * middle / len(words) - GAP)
    left = middle - len(words) * (width + GAP) / 2
    tops = [(left + i * (width + GAP) + width / 2, 4 + CELL) for i in range(len(words))]
    for (x, _), word in zip(tops, words, strict=True):
        _box(canvas, x - width / 2, 4, width, word, "query")
    under = 4 + CELL + 74
    for expert in range(n_experts):
        x = COLUMN * expert + 12
        sent = [i for i, number in enumerate(chosen) if number == expert]
        canvas.text(x + (COLUMN - 24) / 2, under - 8, f"expert {expert}", bold=True)
        for place in range(max(capacity, len(sent))):
            y = under + place * (CELL + 4)
            word = words[sent[place]] if place < len(sent) else ""
            late = place >= capacity
            role = "dropped" if late else "value" if word else "empty"
            _box(canvas, x, y, COLUMN - 24, f"{word}: dropped" if late else word, role)
        for i in sent:
            late = sent.index(i) >= capacity
            dash = ' stroke-dasharray="4 3"' if late else ""
            color = ROLES["query"][0] if late else MUTED
            way = f"M{tops[i][0]:.1f} {tops[i][1]}L{x + (COLUMN - 24) / 2:.1f} {under - 22}"
            canvas.elements.insert(
                0, f'<path d="{way}" stroke="{color}" stroke-width="1.6"{dash}/>'
            )
        kept, lost = (
            " ".join(words[i] for i in some) for some in (sent[:capacity], sent[capacity:])
        )
        said.append(f"expert {expert} {kept or 'nothing'}" + (f"; dropped {lost}" if lost else ""))
    return canvas.picture(title, f"{title}: {'; '.join(said)}.")


def _box(canvas: Canvas, x: float, y: float, width: float, words: str, role: str) -> None:
    stroke, fill = ROLES.get(role, (MUTED, PANEL))
    dash = "" if role in ROLES else ' stroke-dasharray="4 3"'
    canvas.elements.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{CELL}" rx="5" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.2"{dash}/>'
    )
    if words:
        canvas.text(x + width / 2, y + 18, words, size=13, color=INK)
    canvas.width, canvas.height = max(canvas.width, x + width), max(canvas.height, y + CELL)
