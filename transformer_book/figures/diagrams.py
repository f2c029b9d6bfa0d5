"""Block diagrams drawn from the configuration.

Rounded boxes compute, square boxes are tensors; a dashed border marks what is optional. Colours
follow roles (query, key, value, weight) and never carry a meaning that the words do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from transformer_book.figures.pictures import INK, MUTED, ROLES, Picture, finish_svg
from transformer_lib import TransformerConfig, check_choice, check_whole

BOX_WIDTH = 200.0
LINE = 17.0  # height of a line of text
GAP = 26.0  # room for an arrow between two boxes
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

    def frame(self, box: "Box", label: str) -> None:
        """Draw a dashed frame behind a group of boxes, with a label at its top right."""
        self.elements.insert(
            0,
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="14" '
            f'fill="none" stroke="{MUTED}" stroke-width="1.2" stroke-dasharray="2 3"/>',
        )
        self.text(box.x + box.width - 12, box.y + 20, label, bold=True, color=MUTED, anchor="end")
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
        steps = _steps(config, sublayer[0])
        last = _draw_sublayer(canvas, last, sublayer, steps)
        sentences.append(", ".join(steps))
    y = last.y + last.height + GAP
    exit_box = canvas.box(84, y, ["residual stream out", f"B T D, D={config.d_model}"], tensor=True)
    canvas.arrow(last.bottom, exit_box.top)
    summary = (
        f"{title}, {config.norm_position}-norm, width {config.d_model}: "
        + "; then ".join(sentences)
        + ". Each sublayer is bypassed by a residual connection."
    )
    return canvas.picture(title, summary)


def architecture_diagram(config: TransformerConfig) -> Picture:
    """Draw the whole encoder-decoder that the configuration describes.

    Args:
        config: the sizes and choices.

    Returns:
        The picture.

    Example:
        >>> architecture_diagram(TransformerConfig(n_layers=2)).summary[:46]
        'Encoder-decoder Transformer: source ids, embed'
    """
    canvas = Canvas()
    columns = {"encoder": 28.0, "decoder": 288.0}
    ends: dict[str, Box] = {}
    chains = {}
    cross: Box | None = None
    for name, x in columns.items():
        ids = "source ids" if name == "encoder" else "target ids, shifted right"
        shape = "B S" if name == "encoder" else "B T"
        embed = f"embed V={config.vocab_size:,} → D={config.d_model}"
        first = canvas.box(x, 14, [ids, shape], tensor=True)
        places = POSITION_WORDS[config.position]
        second = canvas.box(x, first.y + first.height + GAP, [embed, places])
        canvas.arrow(first.bottom, second.top)
        last, top = second, second.y + second.height + GAP - 4
        boxes: list[Box] = []
        for sublayer, role, detail in _sublayers(config, name == "decoder"):
            offset = 54 if not boxes else GAP - 6
            box = canvas.box(x, last.y + last.height + offset, [sublayer, detail], role=role)
            canvas.arrow(last.bottom, box.top)
            boxes.append(box)
            last = box
        if name == "decoder":
            cross = boxes[1]
        frame = Box(x - 14, top, BOX_WIDTH + 28, last.y + last.height + 14 - top)
        canvas.frame(frame, f"× {config.n_layers}")
        ends[name] = last
        chains[name] = f"{ids}, {embed}, {config.n_layers} blocks of " + ", ".join(
            sublayer for sublayer, _, _ in _sublayers(config, name == "decoder")
        )
    assert cross is not None
    _connect_memory(canvas, ends["encoder"], cross)
    head = canvas.box(
        columns["decoder"],
        ends["decoder"].y + ends["decoder"].height + 40,
        ["linear and softmax", f"B T V, V={config.vocab_size:,}"],
        role="weight",
    )
    canvas.arrow(ends["decoder"].bottom, head.top)
    title = "Encoder-decoder Transformer"
    return canvas.picture(
        title,
        f"{title}: {chains['encoder']}; their result is the memory for the decoder's "
        f"cross-attention. {chains['decoder']}, then linear and softmax over the vocabulary.",
    )


def _connect_memory(canvas: Canvas, encoder_end: Box, cross: Box) -> None:
    """Lead the encoder's result to the decoder's cross-attention."""
    x, y = encoder_end.bottom
    lane = encoder_end.x + encoder_end.width + 30
    middle = cross.y + cross.height / 2
    canvas.arrow(
        (x, y),
        (x, y + 30),
        (lane, y + 30),
        (lane, middle),
        (cross.x, middle),
        color=ROLES["key"][0],
    )
    canvas.text(x - 8, y + 48, "memory: keys and values", color=ROLES["key"][0], bold=True)


def _sublayers(config: TransformerConfig, decoder: bool) -> list[tuple[str, str, str]]:
    """Name, role and detail of each sublayer of a block."""
    heads = f"H={config.n_heads} heads of Dk={config.d_head}"
    if config.kv_heads != config.n_heads:
        heads += f", {config.kv_heads} for keys"
    feed_forward = (
        "feed-forward",
        "value",
        f"{config.activation}: {config.d_model} → {config.ffn_width} → {config.d_model}",
    )
    if not decoder:
        return [("self-attention", "query", heads), feed_forward]
    return [
        ("masked self-attention", "query", heads),
        ("cross-attention", "key", heads),
        feed_forward,
    ]


def _steps(config: TransformerConfig, sublayer: str) -> list[str]:
    """Norm, sublayer and sum in the configured order."""
    norm = "LayerNorm" if config.norm == "layer" else "RMSNorm"
    orders = {
        "pre": [norm, sublayer, ADD],
        "post": [sublayer, ADD, norm],
        "update": [sublayer, norm, ADD],
        "both": [norm, sublayer, norm, ADD],
    }
    return orders[config.norm_position]


def _draw_sublayer(
    canvas: Canvas, before: Box, sublayer: tuple[str, str, str], steps: Sequence[str]
) -> Box:
    """Draw the steps of one sublayer below a box, with the bypass at the left."""
    name, role, detail = sublayer
    last, y = before, before.y + before.height + GAP
    sum_box = before
    for step in steps:
        lines = [step, detail] if step == name else [step]
        width = BOX_WIDTH if step == name else 120.0
        box = canvas.box(
            184 - width / 2, y, lines, role=role if step == name else "plain", width=width
        )
        canvas.arrow(last.bottom, box.top)
        sum_box = box if step == ADD else sum_box
        last, y = box, box.y + box.height + GAP - 8
    start = before.y + before.height + 9
    middle = sum_box.y + sum_box.height / 2
    canvas.arrow((184, start), (40, start), (40, middle), (sum_box.x, middle), color=INK)
    return last
