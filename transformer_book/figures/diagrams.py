"""Block diagrams drawn from the configuration.

Rounded boxes compute, square boxes are tensors; a dashed border marks what is optional. Colours
follow roles (query, key, value, weight) and never carry a meaning that the words do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from transformer_book.figures.pictures import INK, MUTED, ROLES, Picture, finish_svg
from transformer_lib import TransformerConfig, check_choice, check_whole

BOX_WIDTH = 200.0
LINE = 17.0  # height of a line of text
GAP = 26.0  # room for an arrow between two boxes
LANE = 144.0  # from the middle of a box to the bypass beside it
ADD = "add"  # the residual sum
POSITION_WORDS = {
    "sinusoidal": "+ sinusoidal positions",
    "learned": "+ learned positions",
    "rope": "positions: RoPE, in attention",
    "alibi": "positions: ALiBi, in attention",
    "t5": "positions: T5 bias, in attention",
    "none": "no positions",
}


@dataclass
class Canvas:
    """Collects boxes, arrows and labels; knows how large the drawing became.

    Args:
        elements: what has been drawn so far, as SVG.
        width: of what has been drawn so far.
        height: of what has been drawn so far.

    Example:
        >>> canvas = Canvas()
        >>> canvas.box(0, 0, ["softmax", "B H T S"], role="weight").bottom
        (100.0, 48.0)
        >>> canvas.picture("Softmax", "One box: softmax.")
        Picture(title='Softmax', summary='One box: softmax.')
    """

    elements: list[str] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def box(
        self,
        x: float,
        y: float,
        lines: Sequence[str],
        *,
        role: str = "plain",
        width: float = BOX_WIDTH,
        tensor: bool = False,
        dashed: bool = False,
    ) -> "Box":
        """Draw a box with its top-left corner at ``(x, y)``; the first line is its name."""
        check_choice("role", role, list(ROLES))
        height = LINE * len(lines) + 14
        stroke, fill = ROLES[role]
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{0 if tensor else 8}" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="1.4"{dash}/>'
        )
        for number, line in enumerate(lines):
            self.text(
                x + width / 2,
                y + 7 + LINE * (number + 0.76),
                line,
                size=13.5 if number == 0 else 12.5,
                bold=number == 0,
                color=stroke if number == 0 else INK,
            )
        self._grow(x + width, y + height)
        return Box(x, y, width, height)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 12.5,
        bold: bool = False,
        color: str = INK,
        anchor: str = "middle",
    ) -> None:
        """Write words at ``(x, y)``."""
        weight = ' font-weight="600"' if bold else ""
        self.elements.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}>{escape(words, quote=False)}</text>'
        )

    def arrow(self, *points: tuple[float, float], color: str = MUTED) -> None:
        """Draw a line through the points with a head at the last one."""
        if len(points) < 2:
            raise ValueError(f"points={points} must hold two points or more")
        (x0, y0), (x1, y1) = points[-2:]
        path = "L".join(f"{x} {y}" for x, y in points)
        self.elements.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        left, right = (
            (x1 - 8 * dx - 4 * dy, y1 - 8 * dy - 4 * dx),
            (
                x1 - 8 * dx + 4 * dy,
                y1 - 8 * dy + 4 * dx,
            ),
        )
        self.elements.append(
            f'<path d="M{x1} {y1}L{left[0]} {left[1]}L{right[0]} {right[1]}Z" fill="{color}"/>'
        )

    def shape(self, box: "Box", letters: str) -> None:
        """Write the shape that leaves a box beside its arrow."""
        x, y = box.bottom
        self.text(x + 8, y + 17, letters, color=ROLES["query"][0], anchor="start")

    def frame(self, box: "Box", label: str, *, anchor: str = "end") -> None:
        """Draw a dashed frame behind a group of boxes, with a label at its top right or left."""
        self.elements.insert(
            0,
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="14" '
            f'fill="none" stroke="{MUTED}" stroke-width="1.2" stroke-dasharray="2 3"/>',
        )
        x = box.x + (box.width - 12 if anchor == "end" else 12)
        self.text(x, box.y + 20, label, bold=True, color=MUTED, anchor=anchor)
        self._grow(box.x + box.width, box.y + box.height)

    def picture(self, title: str, summary: str) -> Picture:
        """Finish the drawing."""
        return finish_svg(
            title, summary, "\n".join(self.elements), self.width + 14, self.height + 14
        )

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


@dataclass(frozen=True)
class Box:
    """Where a box stands.

    Args:
        x: of its left edge.
        y: of its upper edge.
        width: of the box.
        height: of the box.

    Example:
        >>> Box(0, 0, 100, 40).bottom
        (50.0, 40)
    """

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> tuple[float, float]:
        """The middle of the upper edge."""
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        """The middle of the lower edge."""
        return self.x + self.width / 2, self.y + self.height


def attention_diagram(
    *, n_queries: int, n_keys: int, d_head: int, d_value: int, masked: bool = False
) -> Picture:
    """Draw scaled dot-product attention, box by box, with the shapes of one head.

    Args:
        n_queries: T.
        n_keys: S.
        d_head: Dk, the width of queries and keys.
        d_value: the width of the values.
        masked: whether a mask is applied; otherwise its box is dashed.

    Returns:
        The picture.

    Raises:
        ValueError: if a size is no whole number of at least 1.

    Example:
        >>> attention_diagram(
        ...     n_queries=3, n_keys=3, d_head=4, d_value=4
        ... ).summary[:56]
        'Scaled dot-product attention, step by step: queries Q 3×'
    """
    sizes = {"n_queries": n_queries, "n_keys": n_keys, "d_head": d_head, "d_value": d_value}
    for name, size in sizes.items():
        check_whole(name, size)
    shapes = {
        "queries Q": f"{n_queries}×{d_head}",
        "keys K": f"{n_keys}×{d_head}",
        "values V": f"{n_keys}×{d_value}",
    }
    steps = [
        ("scores Q Kᵀ", f"every query · every key: {n_queries}×{n_keys}", "plain"),
        (f"divide by √{d_head}", f"scaled scores: {n_queries}×{n_keys}", "plain"),
        ("mask" if masked else "mask (optional)", "forbidden pairs become −∞", "plain"),
        ("softmax over each row", f"weights, rows sum to 1: {n_queries}×{n_keys}", "weight"),
        ("weights times V", f"output: {n_queries}×{d_value}", "value"),
    ]
    canvas = Canvas()
    inputs = [
        canvas.box(14 + i * 136, 14, [name, shape], role=role, width=122, tensor=True)
        for i, ((name, shape), role) in enumerate(
            zip(shapes.items(), ("query", "key", "value"), strict=True)
        )
    ]
    last = _draw_steps(canvas, inputs[:2], steps)
    value_x, middle = inputs[2].bottom[0], last.y + last.height / 2
    canvas.arrow(
        inputs[2].bottom,
        (value_x, middle),
        (last.x + last.width, middle),
        color=ROLES["value"][0],
    )
    title = "Scaled dot-product attention, step by step"
    parts = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    chain = "; then ".join(f"{name} ({does})" for name, does, _ in steps)
    return canvas.picture(title, f"{title}: {parts}. {chain}.")


def _draw_steps(
    canvas: Canvas, sources: Sequence[Box], steps: Sequence[tuple[str, str, str]]
) -> Box:
    """Draw steps below each other, the first one fed by all sources; return the last box."""
    last, y = sources[0], sources[0].y + sources[0].height + GAP
    for name, does, role in steps:
        box = canvas.box(14.0, y, [name, does], role=role, width=258, dashed="optional" in name)
        if last is sources[0]:
            for source in sources:
                canvas.arrow(source.bottom, (source.bottom[0], box.y))
        else:
            canvas.arrow(last.bottom, box.top)
        last, y = box, y + box.height + GAP
    return last


def tensor_path(steps: Sequence[tuple[str, str, Sequence[int]]], *, title: str) -> Picture:
    """Draw the way of a tensor: what each step does, and the shape that comes out of it.

    Args:
        steps: for each step what it does, the letters of the resulting shape, and its sizes.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no step, or letters and sizes differ in number.

    Example:
        >>> tensor_path([("ids", "B T", (2, 6))], title="Start").summary
        'Start: ids gives B T = 2×6.'
    """
    if not steps:
        raise ValueError("steps is empty: a path has at least one step")
    canvas = Canvas()
    y, sentences = 14.0, []
    previous: Box | None = None
    for does, letters, sizes in steps:
        if len(letters.split()) != len(sizes):
            raise ValueError(f"step {does!r} names {letters!r} but has the sizes {tuple(sizes)}")
        shape = "×".join(str(size) for size in sizes)
        box = canvas.box(14, y, [does], width=250)
        canvas.text(282, y + 16, letters, bold=True, anchor="start", color=ROLES["query"][0])
        canvas.text(282, y + 33, shape, anchor="start", color=MUTED)
        if previous is not None:
            canvas.arrow(previous.bottom, box.top)
        sentences.append(f"{does} gives {letters} = {shape}")
        previous, y = box, y + box.height + GAP
    canvas.width = 282 + 8 * max(max(len(s[1]), 2 + len("×".join(map(str, s[2])))) for s in steps)
    canvas.height += 6
    return canvas.picture(title, f"{title}: " + "; then ".join(sentences) + ".")


def block_diagram(config: TransformerConfig, *, decoder: bool = False) -> Picture:
    """Draw one block of the model that the configuration describes.

    Args:
        config: the sizes and choices.
        decoder: whether to draw a decoder block with masked self-attention and cross-attention.

    Returns:
        The picture.

    Example:
        >>> block_diagram(TransformerConfig()).title
        'An encoder block'
    """
    canvas = Canvas()
    title = "A decoder block" if decoder else "An encoder block"
    entry = canvas.box(84, 14, ["residual stream in", f"B T D, D={config.d_model}"], tensor=True)
    last, sentences = entry, []
    for sublayer in _sublayers(config, decoder):
        steps = _steps(config, sublayer.name)
        last, core = _draw_sublayer(canvas, last, sublayer, steps, lane=last.bottom[0] - LANE)
        if sublayer.name == "cross-attention":
            _draw_memory_beside(canvas, core)
        sentences.append(", ".join(steps))
    y = last.y + last.height + GAP
    exit_box = canvas.box(84, y, ["residual stream out", f"B T D, D={config.d_model}"], tensor=True)
    canvas.arrow(last.bottom, exit_box.top)
    summary = (
        f"{title}, {config.norm_position}-norm, width {config.d_model}: "
        + "; then ".join(sentences)
        + ". Each sublayer is bypassed by a residual connection."
        + (" The memory, B S D, enters at the cross-attention." if decoder else "")
    )
    return canvas.picture(title, summary)


def _draw_memory_beside(canvas: Canvas, cross: Box) -> None:
    """Draw the memory to the right of the cross-attention that reads it."""
    right, middle = cross.x + cross.width, cross.y + cross.height / 2
    lines = ["memory, B S D", "keys and values"]
    memory = canvas.box(right + 40, middle - 24, lines, role="key", width=124, tensor=True)
    canvas.arrow((memory.x, middle), (right, middle), color=ROLES["key"][0])


def architecture_diagram(config: TransformerConfig) -> Picture:
    """Draw the whole encoder-decoder that the configuration describes, with nothing left out.

    Args:
        config: the sizes and choices.

    Returns:
        The picture.

    Example:
        >>> architecture_diagram(TransformerConfig(n_layers=2)).summary[:44]
        'Encoder-decoder Transformer: source ids, B S'
    """
    canvas = Canvas()
    encoder_end, _, encoder_words = _draw_tower(canvas, config, 172.0, decoder=False)
    decoder_end, cross, decoder_words = _draw_tower(canvas, config, 462.0, decoder=True)
    assert cross is not None
    _connect_memory(canvas, encoder_end, cross)
    canvas.shape(decoder_end, "B T D")
    x, y = decoder_end.x + decoder_end.width / 2, decoder_end.y + decoder_end.height + GAP
    table = "the same table" if config.tie_embeddings else "a table of its own"
    output = [f"output: × {table}", f"{config.d_model} → {config.vocab_size:,}"]
    head = canvas.box(x - BOX_WIDTH / 2, y, output, role="weight")
    canvas.arrow(decoder_end.bottom, head.top)
    canvas.shape(head, "B T V")
    y = head.y + head.height + GAP
    last = canvas.box(x - BOX_WIDTH / 2, y, ["softmax", "probabilities of the next token"])
    canvas.arrow(head.bottom, last.top)
    title = "Encoder-decoder Transformer"
    return canvas.picture(
        title,
        f"{title}: {encoder_words}; the result is the memory, B S D, which the cross-attention of "
        f"every decoder block reads. {decoder_words}, then the output layer (× {table}), B T V, "
        "and the softmax. Each sublayer is bypassed by a residual connection.",
    )


def _draw_tower(
    canvas: Canvas, config: TransformerConfig, middle: float, *, decoder: bool
) -> tuple[Box, Box | None, str]:
    """Draw one of the two stacks; return its last box, its cross-attention, and it in words."""
    ids, letters = ("target ids", "B T") if decoder else ("source ids", "B S")
    left, lane = middle - BOX_WIDTH / 2, middle + (LANE if decoder else -LANE)
    first = canvas.box(left, 14, [ids, letters], tensor=True)
    scale = " × √D" if config.scale_embeddings else ""
    embed = f"embed: {config.vocab_size:,} → {config.d_model}{scale}"
    y = first.y + first.height + GAP
    last = canvas.box(left, y, [embed, POSITION_WORDS[config.position]])
    canvas.arrow(first.bottom, last.top)
    canvas.shape(last, f"{letters} D")
    top = last.y + last.height + GAP
    cross: Box | None = None
    said: list[str] = []
    for sublayer in _sublayers(config, decoder):
        steps = _steps(config, sublayer.name)
        room = 0 if said else 38  # for the name of the frame
        last, core = _draw_sublayer(canvas, last, sublayer, steps, lane=lane, room=room)
        cross = core if sublayer.name == "cross-attention" else cross
        said.append(", ".join(steps))
    edge = min(left, lane) - 14
    frame = Box(edge, top, LANE + 128, last.bottom[1] + 16 - top)
    canvas.frame(frame, f"× {config.n_layers}", anchor="start" if decoder else "end")
    blocks = "block" if config.n_layers == 1 else "blocks"
    words = f"{ids}, {letters}; {embed}; {config.n_layers} {blocks} of " + "; ".join(said)
    if config.norm_position in ("pre", "both"):
        y = last.bottom[1] + GAP + 16
        final = canvas.box(middle - 60, y, [_norm_name(config)], width=120)
        canvas.arrow(last.bottom, final.top)
        last, words = final, f"{words}; a final norm"
    return last, cross, words


def _connect_memory(canvas: Canvas, encoder_end: Box, cross: Box) -> None:
    """Lead the encoder's result to the decoder's cross-attention."""
    x, y = encoder_end.bottom
    lane = (encoder_end.x + encoder_end.width / 2 + cross.x + cross.width / 2) / 2
    middle = cross.y + cross.height / 2
    canvas.arrow(
        (x, y),
        (x, y + 34),
        (lane, y + 34),
        (lane, middle),
        (cross.x, middle),
        color=ROLES["key"][0],
    )
    canvas.text(x - 8, y + 52, "memory, B S D: keys and values", color=ROLES["key"][0], bold=True)


class _Sublayer(NamedTuple):
    """What a block has: attention, or the feed-forward network."""

    name: str
    role: str
    details: list[str]


def _sublayers(config: TransformerConfig, decoder: bool) -> list[_Sublayer]:
    """The sublayers of a block, in order."""
    heads = f"H={config.n_heads} heads of Dk={config.d_head}"
    if config.kv_heads != config.n_heads:
        heads += f", {config.kv_heads} for keys"
    inside = f"{config.activation}: {config.d_model} → {config.ffn_width} → {config.d_model}"
    feed_forward = _Sublayer("feed-forward", "value", [inside])
    if not decoder:
        seen = [heads, "mask: padding", "scores B H S S"]
        return [_Sublayer("self-attention", "query", seen), feed_forward]
    return [
        _Sublayer("masked self-attention", "query", [heads, "mask: causal", "scores B H T T"]),
        _Sublayer("cross-attention", "key", [heads, "mask: source padding", "scores B H T S"]),
        feed_forward,
    ]


def _norm_name(config: TransformerConfig) -> str:
    return "LayerNorm" if config.norm == "layer" else "RMSNorm"


def _steps(config: TransformerConfig, sublayer: str) -> list[str]:
    """Norm, sublayer and sum in the configured order."""
    norm = _norm_name(config)
    orders = {
        "pre": [norm, sublayer, ADD],
        "post": [sublayer, ADD, norm],
        "update": [sublayer, norm, ADD],
        "both": [norm, sublayer, norm, ADD],
    }
    return orders[config.norm_position]


def _draw_sublayer(
    canvas: Canvas,
    before: Box,
    sublayer: _Sublayer,
    steps: Sequence[str],
    *,
    lane: float,
    room: float = 0.0,
) -> tuple[Box, Box]:
    """Draw the steps of one sublayer below a box, with the bypass in a lane at its side.

    Returns its last box and the one in which it computes.
    """
    middle, start = before.bottom
    last, y = before, start + GAP + room
    sum_box = core = before
    for step in steps:
        is_core = step == sublayer.name
        lines = [step, *sublayer.details] if is_core else [step]
        width = BOX_WIDTH if is_core else 120.0
        role = sublayer.role if is_core else "plain"
        box = canvas.box(middle - width / 2, y, lines, role=role, width=width)
        canvas.arrow(last.bottom, box.top)
        core = box if is_core else core
        sum_box = box if step == ADD else sum_box
        last, y = box, box.y + box.height + GAP - 8
    start += 9 + room
    height = sum_box.y + sum_box.height / 2
    side = sum_box.x + (sum_box.width if lane > middle else 0)
    canvas.arrow((middle, start), (lane, start), (lane, height), (side, height), color=INK)
    return last, core
