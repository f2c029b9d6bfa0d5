"""Small drawings of feed-forward networks: points in planes, and tokens on their way to experts."""

from collections.abc import Mapping, Sequence

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import INK, MUTED, PANEL, ROLES, Picture
from transformer_book.figures.plot_data import as_finite, check_filled, written
from transformer_book.figures.plot_style import picture_of, styled_axes
from transformer_lib import check_whole

CELL, GAP = 26.0, 8.0  # height of a token, and between two tokens
COLUMN = 148.0  # from the left edge of an expert to the next one's

Place = tuple[float, float]
Point = tuple[float, float, bool]


def two_classes(
    planes: Mapping[str, Mapping[str, Point]],
    *,
    title: str,
    axes: Mapping[str, tuple[str, str]],
    lines: Mapping[str, tuple[Place, Place]] | None = None,
    moves: Mapping[str, Sequence[tuple[Place, Place]]] | None = None,
) -> Picture:
    """Draw named points of two classes in planes below each other: filled circles, empty squares.

    Args:
        planes: for each plane its name and its points: name, x, y and whether it is a circle.
        title: a short name for the picture.
        axes: for each plane what its two axes are.
        lines: for some planes both ends of a line, such as a border between the classes.
        moves: for some planes where points came from, and where they went, in the order of a grey
            line that is drawn through where they came from.

    Returns:
        The picture.

    Raises:
        ValueError: if there is nothing to draw, or a number is not finite.

    Example:
        >>> two_classes(
        ...     {"one": {"a": (0, 1, True)}},
        ...     title="One",
        ...     axes={"one": ("x", "y")},
        ... ).summary
        'One. one (x, y): a (0.0, 1.0) circle.'
    """
    check_filled("planes", planes, "at least one plane")
    lines, moves, sentences = lines or {}, moves or {}, []
    with styled_axes(3.7, 2.7 * len(planes), n_rows=len(planes)) as (figure, drawn):
        for axis, (plane, points) in zip(drawn, planes.items(), strict=True):
            check_filled(f"planes[{plane!r}]", points, "at least one point")
            for name, (x, y, circle) in points.items():
                as_finite(name, [x, y])
                color = ROLES["value"][0] if circle else ROLES["query"][0]
                axis.plot(
                    [x], [y], "o" if circle else "s", color=color, markersize=10,
                    markerfacecolor=color if circle else "none", markeredgewidth=2,
                )  # fmt: skip
                axis.annotate(
                    name, (x, y), xytext=(0, 11 if circle else -11), textcoords="offset points",
                    color=color, ha="center", va="bottom" if circle else "top", fontweight="bold",
                )  # fmt: skip
            if plane in lines:
                (x0, y0), (x1, y1) = lines[plane]
                axis.plot([x0, x1], [y0, y1], "--", color=MUTED, linewidth=1.5)
            before = moves.get(plane, ())
            axis.plot([a[0] for a, _ in before], [a[1] for a, _ in before], "o-", color=MUTED, ms=4)
            for start, end in before:
                if start != end:
                    arrow = {"arrowstyle": "->", "color": MUTED, "shrinkB": 7}
                    axis.annotate("", end, xytext=start, arrowprops=arrow)
            axis.margins(0.35)
            axis.set(xlabel=axes[plane][0], ylabel=axes[plane][1])
            axis.set_title(plane, fontsize=11)
            listed = ", ".join(
                f"{name} ({written(x, 1)}, {written(y, 1)}) {'circle' if circle else 'square'}"
                for name, (x, y, circle) in points.items()
            )
            border = ", a line between the classes" if plane in lines else ""
            went = "".join(
                f", grey ({written(a, 1)}, {written(b, 1)}) to ({written(x, 1)}, {written(y, 1)})"
                for (a, b), (x, y) in before
            )
            sentences.append(f"{plane} ({', '.join(axes[plane])}): {listed}{border}{went}.")
        return picture_of(figure, title, f"{title}. " + " ".join(sentences))


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
