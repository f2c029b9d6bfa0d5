"""Drawings of recurrent networks: unrolled in time, an LSTM's cell, an encoder and a decoder."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from transformer_book.figures.diagrams import Box, Canvas
from transformer_book.figures.pictures import INK, MUTED, PAPER, ROLES, Picture
from transformer_book.figures.plot_data import check_filled

Point = tuple[float, float]
STEP = 92.0  # from one word to the next
STATE = ROLES["query"][0]


def word_chains(
    words: Sequence[str], rows: Mapping[str, tuple[bool, bool]], *, title: str
) -> Picture:
    r"""Draw one sentence in several networks: which states are handed on, and who looks back.

    Args:
        words: of the sentence; the last one is the reader.
        rows: for each network its name, whether each state goes into the next one, and whether the
            last word looks at all of them.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no word or no row.

    Example:
        >>> rnn = {"RNN": (True, False)}
        >>> chain = word_chains(["it", "was"], rnn, title="Two words")
        >>> print(chain.summary.replace("; ", ";\n"))
        Two words. RNN: each state goes into the next;
        from it to was through all states between.
    """
    check_filled("words", words, "at least one word")
    check_filled("rows", rows, "at least one network")
    canvas, y, sentences = Canvas(), 8.0, []
    for name, (chain, looks) in rows.items():
        canvas.text(14, y + 18, name, size=15, bold=True, anchor="start")
        y += 38 + (40 if looks else 0)
        boxes = _states(canvas, y, words, "h" if chain else "x", chain=chain)
        if looks:
            for box in boxes[:-1]:
                lift = 22 + 0.14 * (boxes[-1].x - box.x)
                _join(canvas, boxes[-1].top, box.top, ROLES["value"][0], lift=lift)
        handed = "each state goes into the next" if chain else "no state is handed on"
        way = "in one step" if looks else "through all states between"
        sentences.append(f"{name}: {handed}; from {words[0]} to {words[-1]} {way}.")
        y += 92
    canvas.width, canvas.height = 14 + STEP * len(words), y - 16
    return canvas.picture(title, f"{title}. " + " ".join(sentences))


def encoder_decoder(
    source: Sequence[str], target: Sequence[str], *, attention: bool, title: str
) -> Picture:
    r"""Draw a recurrent translator: what the decoder gets from the encoder at its second step.

    Args:
        source: the words that are read.
        target: the words that are written, two or more.
        attention: whether the context is a mean of all states, or the last one at every step.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no word to read, or fewer than two to write.

    Example:
        >>> swap = encoder_decoder("ab", "BA", attention=False, title="Swap")
        >>> print(swap.summary.replace("; ", ";\n"))
        Swap: the encoder reads a b;
        the context is its last state;
        the decoder writes B A.
    """
    check_filled("source", source, "at least one word")
    if len(target) < 2:
        raise ValueError(f"target={list(target)} must have two words or more")
    canvas = Canvas()
    read = _states(canvas, 262, source, "h", chain=True)
    written = _states(canvas, 64, target, "s", chain=True, above=True)
    color, asks = ROLES["value"][0], ROLES["key"][0]
    how = "c₂ = Σ aⱼ hⱼ" if attention else f"c = h{_low(len(source))}"
    context = canvas.box(written[1].x + 34, 158, [how], role="value", width=108)
    for box in read if attention else read[-1:]:
        _join(canvas, box.top, context.bottom, color)
    for box in written[1:2] if attention else written:
        _join(canvas, context.top, box.bottom, color)
    if attention:
        _join(canvas, written[0].bottom, (context.x, context.y + 16), asks)
        canvas.text(22, 150, "s₁ asks", size=14, bold=True, anchor="start", color=asks)
    for box, after in pairwise(written):  # what is written is read at the next step
        _join(canvas, (box.top[0] + 6, 52), (after.x + 6, after.y + 2), MUTED)
    for y, words in ((20, "decoder writes"), (352, "encoder reads")):
        canvas.text(14, y, words, size=14, bold=True, anchor="start", color=STATE)
    canvas.width, canvas.height = 14 + STEP * max(len(source), len(target)), 356.0
    means = "a new mean of its states at each step" if attention else "its last state"
    reads = f"the encoder reads {' '.join(source)}; the context is {means}"
    return canvas.picture(title, f"{title}: {reads}; the decoder writes {' '.join(target)}.")


def lstm_cell() -> Picture:
    """Draw one step of an LSTM: the cell state passes along the top, three gates act on it.

    Returns:
        The picture.

    Example:
        >>> lstm_cell().title
        'One step of an LSTM'
    """
    canvas, belt = Canvas(), 48.0
    canvas.arrow((14, belt), (446, belt), color=STATE)
    for x, name, does in (
        (92, "forget", "f = σ"), (172, "input", "i = σ"), (252, "content", "g = tanh"),
        (332, "output", "o = σ"),
    ):  # fmt: skip
        role = "value" if name == "content" else "key"
        box = canvas.box(x - 36, 190, [name, does], role=role, width=72)
        canvas.arrow((14, 284), (x, 284), box.bottom)
    for way in (
        [(92, 190), (92, belt + 14)], [(172, 190), (172, 134)],
        [(252, 190), (252, 120), (186, 120)],
        [(172, 106), (172, belt + 14)], [(390, belt), (390, 134)],
        [(332, 190), (332, 148), (376, 148)], [(404, 148), (446, 148)],
    ):  # fmt: skip
        canvas.arrow(*way)
    for x, y, sign in ((92, belt, "×"), (172, belt, "+"), (172, 120, "×"), (390, 148, "×")):
        circle = f'<circle cx="{x}" cy="{y}" r="14" fill="{PAPER}" stroke="{INK}"/>'
        canvas.elements.append(circle)
        canvas.text(x, y + 6, sign, size=18, bold=True)
    for x, y, words in ((34, 36, "old c"), (424, 36, "new c"), (424, 172, "new h")):
        canvas.text(x, y, words, size=14, bold=True, color=STATE)
    canvas.text(396, 96, "tanh", size=14, anchor="start")
    canvas.text(14, 308, "the word x and the old h go into all four", size=14, anchor="start")
    canvas.width, canvas.height = 446, 306
    title = "One step of an LSTM"
    return canvas.picture(
        title,
        f"{title}: the cell state c is multiplied by the forget gate f, then input gate i times "
        "content g is added. The new hidden state h is the output gate o times tanh of c. All four "
        "are computed from the word x and the old h.",
    )


def _states(
    canvas: Canvas, y: float, words: Sequence[str], letter: str, *, chain: bool, above: bool = False
) -> list[Box]:
    """Draw a row of states with their words below or above them; return the boxes."""
    role = "query" if chain else "plain"
    boxes: list[Box] = []
    for i, word in enumerate(words):
        box = canvas.box(14 + STEP * i, y, [f"{letter}{_low(i + 1)}"], role=role, width=58)
        middle, edge = box.top[0], y - 14 if above else y + 50
        canvas.text(middle, edge - 4 if above else edge + 16, word, size=15)
        canvas.arrow(*((box.top, (middle, edge + 1)) if above else ((middle, edge), box.bottom)))
        if boxes and chain:
            before = boxes[-1]
            canvas.arrow((before.x + before.width, y + 16), (box.x, y + 16), color=STATE)
        boxes.append(box)
    return boxes


def _low(number: int) -> str:
    """Write a number below the line."""
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _join(canvas: Canvas, start: Point, end: Point, color: str, *, lift: float = 0.0) -> None:
    """Draw a line, or an arc that rises, with a dot at its end: it looks right at any angle."""
    (x0, y0), (x1, y1) = start, end
    middle = f"{(x0 + x1) / 2} {(y0 + y1) / 2 - lift}"
    canvas.elements.append(
        f'<path d="M{x0} {y0}Q{middle} {x1} {y1}" fill="none" stroke="{color}" stroke-width="1.8"/>'
        f'<circle cx="{x1}" cy="{y1}" r="4" fill="{color}"/>'
    )
