"""The residual stream, drawn as a bus that every sublayer reads from and writes to."""

from transformer_book.figures.diagrams import Canvas
from transformer_book.figures.pictures import INK, MUTED, PANEL, ROLES, Picture
from transformer_lib import check_whole

LANE, APART = 15.0, 3.0  # width of what one sublayer wrote, and the room between two
LEFT, BOX = 16.0, 206.0  # where the stream begins, and the sublayers
FIRST, STEP = 70.0, 106.0  # height of the first sublayer, and from one to the next


def residual_bus(n_blocks: int = 2) -> Picture:
    """Draw a pre-norm stack: what each sublayer writes becomes one more lane of the stream.

    Args:
        n_blocks: how many blocks, 1 or 2.

    Returns:
        The picture.

    Raises:
        ValueError: if there are none, or more than 2: a phone has no room for them.

    Example:
        >>> residual_bus(1).summary[:56]
        'The residual stream: the embedding enters and stays to t'
    """
    check_whole("n_blocks", n_blocks, 1)
    if n_blocks > 2:
        raise ValueError(f"n_blocks={n_blocks} must be 1 or 2: a phone has no room for more")
    canvas, names = Canvas(), []
    end = FIRST + 2 * n_blocks * STEP + 24
    canvas.text(LEFT, 16, "embedding", size=14, bold=True, anchor="start")
    _lane(canvas, 0, [(LEFT + LANE / 2, 26.0), (LEFT + LANE / 2, end)], "plain")
    for number in range(2 * n_blocks):
        kind, role = (("attention", "query"), ("feed-forward", "value"))[number % 2]
        block, top = number // 2 + 1, FIRST + number * STEP
        names.append(f"{kind} {block}")
        middle = LEFT + (number + 1) * (LANE + APART) + LANE / 2
        box = canvas.box(BOX, top - 16, [kind, f"block {block}"], role=role, width=118)
        joins, start = box.y + box.height + 24, box.x + box.width / 2
        points = [(start, box.y + box.height), (start, joins), (middle, joins), (middle, end)]
        _lane(canvas, number + 1, points, role)
        canvas.text(box.x - 49, joins - 12, "write", size=13, bold=True, color=ROLES[role][0])
        _reads(canvas, number, top, box.x)
    _ends(canvas, 2 * n_blocks, end)
    return canvas.picture(
        "The residual stream",
        "The residual stream: the embedding enters and stays to the end. "
        + " ".join(
            f"{name} reads the sum of all lanes through a norm and adds a lane." for name in names
        )
        + f" The final norm and the output layer read the sum of {2 * n_blocks + 1} lanes.",
    )


def _lane(canvas: Canvas, number: int, points: list[tuple[float, float]], role: str) -> None:
    """Draw one lane: a broad line with an edge, from where it is written to the end."""
    stroke, fill = ROLES[role]
    path = "L".join(f"{x} {y}" for x, y in points)
    for width, color in ((LANE, stroke), (LANE - 2.4, fill)):
        canvas.elements.append(
            f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="{width}" '
            'stroke-linejoin="round"/>'
        )
    x, y = points[-1]
    canvas.text(x, y - 7, str(number), size=12, bold=True, color=stroke)


def _reads(canvas: Canvas, number: int, y: float, to: float) -> None:
    """Draw how a sublayer reads: all lanes so far, through a norm."""
    for lane in range(number + 1):
        x = LEFT + lane * (LANE + APART) + LANE / 2
        canvas.elements.append(f'<circle cx="{x}" cy="{y}" r="3.6" fill="{INK}"/>')
    norm = to - 72
    canvas.elements.append(
        f'<path d="M{LEFT + LANE / 2} {y}L{norm} {y}" stroke="{INK}" stroke-width="1.6"/>'
    )
    canvas.elements.append(
        f'<rect x="{norm}" y="{y - 11}" width="46" height="22" rx="6" fill="{PANEL}" '
        f'stroke="{MUTED}" stroke-width="1.2"/>'
    )
    canvas.text(norm + 23, y + 4.5, "norm", size=13)
    if number == 0:
        canvas.text(LEFT + LANE + 44, y - 8, "read", size=13, bold=True)
    canvas.arrow((norm + 46, y), (to, y), color=INK)


def _ends(canvas: Canvas, n_writes: int, y: float) -> None:
    """Draw what reads the sum at the end."""
    _reads(canvas, n_writes, y - 30, BOX)
    canvas.box(BOX, y - 54, ["output layer", "logits"], width=118)
    canvas.width, canvas.height = BOX + 118, y
