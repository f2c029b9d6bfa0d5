"""Small drawings: time lines, tokens, stacks, steps, units."""

from collections.abc import Mapping, Sequence

from transformer_book.figures.diagrams import Box, Canvas
from transformer_book.figures.pictures import INK, MUTED, PANEL, PAPER, ROLES, Picture
from transformer_book.figures.plot_data import check_filled
from transformer_lib import check_whole

LETTER = 8.2  # width of a letter of 13 px, about
CELL = 30.0  # height of a token
PAGE = 680.0  # what a page has room for, in px
BLOCK = (19.0, 16.0)  # width and height of what one token has for one head


def timeline(events: Sequence[tuple[int, str]], *, title: str) -> Picture:
    """Draw events below each other on a line of time, with room in proportion to the years.

    Args:
        events: year and words of each, in order.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no event, or the years go backwards.

    Example:
        >>> timeline(
        ...     [(1997, "LSTM"), (2017, "Transformer")], title="Twenty years"
        ... ).summary
        'Twenty years: 1997 LSTM; 2017 Transformer.'
    """
    check_filled("events", events, "at least one event")
    years = [year for year, _ in events]
    if years != sorted(years):
        raise ValueError(f"events must be in order of time; the years are {years}")
    canvas = Canvas()
    y, previous = 22.0, years[0]
    places: list[float] = []
    for year, words in events:
        y += 0 if not places else 26 + min(2.2 * (year - previous), 40)
        places.append(y)
        canvas.text(58, y + 5, str(year), bold=True, anchor="end", color=ROLES["query"][0])
        canvas.text(98, y + 5, words, size=13.5, anchor="start")
        previous = year
    canvas.elements.insert(0, _line(78, places[0], 78, places[-1]))
    for y in places:
        canvas.elements.append(
            f'<circle cx="78" cy="{y}" r="6" fill="{ROLES["query"][0]}" '
            f'stroke="{PAPER}" stroke-width="2"/>'
        )
    canvas.width = 98 + LETTER * max(len(words) for _, words in events)
    canvas.height = places[-1] + 10
    listed = "; ".join(f"{year} {words}" for year, words in events)
    return canvas.picture(title, f"{title}: {listed}.")


def token_rows(
    rows: Mapping[str, Sequence[str]],
    *,
    title: str,
    muted: Sequence[str] = ("<pad>",),
    unit: str = "tokens",
) -> Picture:
    """Draw rows of tokens as boxes, such as one text cut in several ways or a padded batch.

    A space within a token is drawn as an open box, so that it can be seen.

    Args:
        rows: for each row its name and its tokens.
        title: a short name for the picture.
        muted: tokens that are drawn pale, with a dashed border.
        unit: what the summary counts.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no row, or a row has no tokens.

    Example:
        >>> token_rows({"ids": ["I", "am", "<pad>"]}, title="Batch").summary
        'Batch: ids: I | am | <pad> (3 tokens).'
    """
    check_filled("rows", rows, "at least one row")
    for name, tokens in rows.items():
        check_filled(f"rows[{name!r}]", tokens, "at least one token")
    canvas = Canvas()
    left = 22 + LETTER * max(len(name) for name in rows)
    y = 14.0
    for name, tokens in rows.items():
        canvas.text(left - 10, y + 20, name, bold=True, anchor="end")
        x = left
        for token in tokens:
            words = token.replace(" ", "␣").replace("\n", "⏎")
            width = LETTER * len(words) + 12
            if x > left and x + width > PAGE:
                x, y = left, y + CELL + 6
            _token(canvas, x, y, width, words, pale=token in muted)
            x += width + 3
        y += CELL + 14
    sentences = [
        f"{name}: {' | '.join(tokens)} ({len(tokens)} {unit})." for name, tokens in rows.items()
    ]
    return canvas.picture(title, f"{title}: " + " ".join(sentences))


def two_stacks(reads: Sequence[int], *, writes: bool = False) -> Picture:
    """Draw an encoder and a decoder in full, with the lines that join them.

    Args:
        reads: for each decoder layer the number of the encoder layer whose output it reads.
        writes: whether to draw the loop that writes: each next token goes back to the decoder's
            input, while the encoder runs once.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no layer, or one reads an encoder layer that is not there.

    Example:
        >>> two_stacks([1, 1]).summary[:55]
        'Two stacks, unrolled: decoder layer 0 reads encoder lay'
    """
    check_filled("reads", reads, "at least one layer")
    if not all(0 <= layer < len(reads) for layer in reads):
        raise ValueError(f"reads must name encoder layers 0 to {len(reads) - 1}; it is {reads}")
    canvas = Canvas()
    top = 88.0 if writes else 36.0
    bottom = top + 52.0 * len(reads)  # both stacks are read upwards
    boxes: dict[tuple[str, int], Box] = {}
    for name, x, role in (("encoder", 14.0, "query"), ("decoder", 330.0, "value")):
        ids = "source ids" if name == "encoder" else "target ids so far"
        below = canvas.box(x, bottom, [ids], tensor=True)
        boxes[name, -1] = below
        for layer in range(len(reads)):
            box = canvas.box(x, bottom - (layer + 1) * 52, [f"{name} layer {layer}"], role=role)
            canvas.arrow(below.top, box.bottom)
            boxes[name, layer] = below = box
    lane, color = 262.0, ROLES["key"][0]
    for layer, made_by in enumerate(reads):
        start, end = boxes["encoder", made_by], boxes["decoder", layer]
        y0, y1 = start.y + start.height / 2, end.y + end.height / 2
        canvas.arrow((start.x + start.width, y0), (lane, y0), (lane, y1), (end.x, y1), color=color)
    canvas.text(lane - 4, top - 12, "memory", bold=True, color=color)
    title = "Two stacks, unrolled"
    lines = "; ".join(f"decoder layer {i} reads encoder layer {j}" for i, j in enumerate(reads))
    if not writes:
        canvas.text(430, 24, "to the output layer ↑")
        return canvas.picture(title, f"{title}: {lines}.")
    _draw_loop(canvas, boxes["decoder", len(reads) - 1], boxes["decoder", -1])
    canvas.text(114, top - 12, "once for each source")
    canvas.text(430, 24, "again for each token")
    title = "Encode once, write again and again"
    loop = "the encoder runs once; each next token goes back to the decoder's input"
    return canvas.picture(title, f"{title}: {loop}; {lines}.")


def _draw_loop(canvas: Canvas, last: Box, first: Box) -> None:
    """Draw the next token above the last layer, and its way back to the ids below the first."""
    token = canvas.box(last.x, last.y - 52, ["likeliest next token"], role="plain")
    canvas.arrow(last.top, token.bottom)
    right, lane = token.x + token.width, token.x + token.width + 24
    start, end = token.y + token.height / 2, first.y + first.height / 2
    canvas.arrow((right, start), (lane, start), (lane, end), (right, end))
    canvas.width = lane + 14


def storyboard(
    columns: Sequence[str], steps: Sequence[tuple[str, str, Sequence[float]]], *, title: str
) -> Picture:
    r"""Draw a text as it is written: a row for each step, the source shaded by weights.

    Args:
        columns: the tokens of the source.
        steps: for each step what is written so far, what is added, and a weight for each column.
        title: a short name for the picture.

    Returns:
        The picture; weights of 0.20 or more are written into their cells.

    Raises:
        ValueError: if there is no column or no step, or a step has not one weight from 0 to 1 for
            each column.

    Example:
        >>> steps = [("", "B", [0.1, 0.9]), ("B", "A", [0.8, 0.2])]
        >>> swap = storyboard("ab", steps, title="Swap")
        >>> print(swap.summary.replace(": ", ":\n", 1))
        Swap, most weight at each step:
        nothing + B: b (1) 0.90; B + A: a (0) 0.80.
    """
    check_filled("columns", columns, "at least one token")
    check_filled("steps", steps, "at least one step")
    for number, (_, _, weights) in enumerate(steps):
        _check_weights(f"steps[{number}]", weights, len(columns))
    canvas = Canvas()
    left, cell = 150.0, 36.0
    end = left + cell * len(columns) + 12
    for i, token in enumerate(columns):
        canvas.text(left + cell * (i + 0.5), 24, token, size=14, bold=True)
    sentences = []
    for row, (so_far, added, weights) in enumerate(steps):
        y = 36 + row * CELL
        canvas.text(left - 10, y + 19, so_far or "(nothing)", anchor="end")
        for i, weight in enumerate(weights):
            canvas.elements.append(
                f'<rect x="{left + cell * i}" y="{y}" width="{cell - 2}" height="{CELL - 3}" '
                f'fill="{ROLES["key"][0]}" fill-opacity="{0.03 + 0.75 * weight:.2f}"/>'
            )
            if weight >= 0.2:
                canvas.text(left + cell * (i + 0.5) - 1, y + 19, f"{weight:.2f}", size=11.5)
        canvas.text(end, y + 19, f"+ {added}", bold=True, anchor="start")
        best = max(range(len(columns)), key=lambda i: weights[i])
        place = f"{columns[best]} ({best}) {weights[best]:.2f}"
        sentences.append(f"{so_far or 'nothing'} + {added}: {place}")
    canvas.width = end + LETTER * max(len(added) + 2 for _, added, _ in steps)
    canvas.height = 36 + len(steps) * CELL
    return canvas.picture(title, f"{title}, most weight at each step: {'; '.join(sentences)}.")


def attention_arcs(
    words: Sequence[str], weights: Sequence[float], *, start: int, title: str
) -> Picture:
    """Draw where one word of a sentence looks: an arc to each word, the thicker the more weight.

    Args:
        words: the sentence.
        weights: how much of the attention each word gets, from 0 to 1.
        start: the number of the word that looks.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no word, not one weight from 0 to 1 for each, or no such start.

    Example:
        >>> attention_arcs(
        ...     ["red", "fox"], [0.9, 0.1], start=1, title="Fox"
        ... ).summary
        'Fox: fox looks at red 0.90, fox 0.10.'
    """
    check_filled("words", words, "at least one word")
    _check_weights("weights", weights, len(words))
    if not 0 <= start < len(words):
        raise ValueError(f"start={start} must be the number of a word, 0 to {len(words) - 1}")
    canvas, gap = Canvas(), 26.0
    widths = [LETTER * len(word) + 22 for word in words]
    lefts = [14 + sum(widths[:i]) + gap * i for i in range(len(words))]
    middles = [left + width / 2 for left, width in zip(lefts, widths, strict=True)]
    top = 24 + 0.3 * max(abs(middle - middles[start]) for middle in middles)
    for i, (word, weight) in enumerate(zip(words, weights, strict=True)):
        if i != start:
            peak = top - 0.6 * abs(middles[i] - middles[start])  # twice as high as the arc gets
            canvas.elements.insert(
                0,
                f'<path d="M{middles[start]:.1f} {top}Q{(middles[i] + middles[start]) / 2:.1f} '
                f'{peak:.1f} {middles[i]:.1f} {top}" fill="none" stroke="{ROLES["query"][0]}" '
                f'stroke-width="{1 + 14 * weight:.1f}" stroke-opacity="{0.25 + weight:.2f}"/>',
            )
        role = "query" if i == start else "key"
        _token(canvas, lefts[i], top, widths[i], word, pale=False, role=role)
        canvas.text(middles[i], top + CELL + 20, f"{weight:.2f}", bold=weight == max(weights))
    canvas.height = top + CELL + 24
    shares = ", ".join(f"{word} {weight:.2f}" for word, weight in zip(words, weights, strict=True))
    return canvas.picture(title, f"{title}: {words[start]} looks at {shares}.")


def looking_across(
    asking: Sequence[str],
    asked: Sequence[str],
    weights: Sequence[Sequence[float]],
    *,
    title: str,
) -> Picture:
    """Draw where the tokens of one row look in another, and the same weights as a heat map.

    Args:
        asking: the tokens that look, drawn above.
        asked: the tokens that are looked at, drawn below.
        weights: a row for each token that looks, from 0 to 1.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if a row of tokens is empty, or a pair has no weight from 0 to 1.

    Example:
        >>> looking_across(["zwei"], ["2", "0"], [[1, 0]], title="One").summary
        'One: zwei looks at 2 1.00, 0 0.00.'
    """
    check_filled("asking", asking, "at least one token")
    check_filled("asked", asked, "at least one token")
    if len(weights) != len(asking):
        raise ValueError(f"weights has {len(weights)} rows; expected {len(asking)}, one each")
    for name, row in zip(asking, weights, strict=True):
        _check_weights(name, row, len(asked))
    canvas, step, top, below = Canvas(), 104.0, 16.0, 170.0
    width = step * max(len(asking), len(asked))
    xs, ys = (
        [width * (i + 0.5) / len(row) + 8 for i in range(len(row))] for row in (asking, asked)
    )
    for x, row in zip(xs, weights, strict=True):
        for y, weight in zip(ys, row, strict=True):
            canvas.elements.append(
                f'<path d="M{x:.1f} {top + CELL}L{y:.1f} {below}" stroke="{ROLES["query"][0]}" '
                f'stroke-width="{0.5 + 13 * weight:.1f}" '
                f'stroke-opacity="{0.3 + 0.6 * weight:.2f}"/>'
            )
    for places, tokens, height, role in ((xs, asking, top, "query"), (ys, asked, below, "key")):
        for place, token in zip(places, tokens, strict=True):
            wide = LETTER * len(token) + 22
            _token(canvas, place - wide / 2, height, wide, token, pale=False, role=role)
    _draw_weights(canvas, width + 60, top, asking, asked, weights)
    listed = "; ".join(
        f"{name} looks at " + ", ".join(f"{a} {w:.2f}" for a, w in zip(asked, row, strict=True))
        for name, row in zip(asking, weights, strict=True)
    )
    return canvas.picture(title, f"{title}: {listed}.")


def _draw_weights(
    canvas: Canvas,
    x: float,
    y: float,
    rows: Sequence[str],
    columns: Sequence[str],
    weights: Sequence[Sequence[float]],
) -> None:
    """Draw a small heat map with a number in each cell."""
    left, wide, high = x + LETTER * max(map(len, rows)) + 10, 74.0, 42.0
    for j, name in enumerate(columns):
        canvas.text(left + wide * (j + 0.5), y + 14, name, bold=True)
    for i, (name, row) in enumerate(zip(rows, weights, strict=True)):
        line = y + 24 + high * i
        canvas.text(left - 10, line + high / 2 + 5, name, bold=True, anchor="end")
        for j, weight in enumerate(row):
            canvas.elements.append(
                f'<rect x="{left + wide * j:.1f}" y="{line:.1f}" width="{wide - 3}" '
                f'height="{high - 3}" rx="4" fill="{ROLES["query"][0]}" '
                f'fill-opacity="{0.04 + 0.4 * weight:.2f}" stroke="{MUTED}" stroke-width="0.8"/>'
            )
            canvas.text(left + wide * (j + 0.5) - 1.5, line + high / 2 + 4, f"{weight:.2f}")
    canvas.width = max(canvas.width, left + wide * len(columns))
    canvas.height = max(canvas.height, y + 24 + high * len(rows))


def box_of_words(words: Sequence[str], *, changed: int, box: str, title: str) -> Picture:
    """Draw words as vectors that go through a box, one of them changed; what moves is the question.

    Args:
        words: the sentence.
        changed: the number of the word that is changed.
        box: what is written on the box.
        title: a short name for the picture.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no word, or no word has the number.

    Example:
        >>> box_of_words(
        ...     ["I", "do"], changed=1, box="a block", title="One box"
        ... ).summary[-28:]
        'The vector of do is changed.'
    """
    check_filled("words", words, "at least one word")
    if not 0 <= changed < len(words):
        raise ValueError(f"changed={changed} must be the number of a word, 0 to {len(words) - 1}")
    canvas, n_cells, cell, column = Canvas(), 4, 13.0, 68.0
    high = n_cells * cell
    top = CELL + 8  # of the vectors that go in
    inside = top + high + 26
    name = canvas.box(8, inside, [box, "where do the words meet?"], width=column * len(words))
    below = name.bottom[1] + 26  # of the vectors that come out
    for i, word in enumerate(words):
        middle = 8 + column * (i + 0.5)
        role = "query" if i == changed else "key"
        _token(canvas, middle - 28, 0, 56, word, pale=False, role=role)
        _vector(canvas, middle, top, n_cells, cell, role)
        canvas.arrow((middle, top + high + 3), (middle, inside - 3))
        canvas.arrow((middle, name.bottom[1] + 3), (middle, below - 3))
        _vector(canvas, middle, below, n_cells, cell, "plain")
        canvas.text(middle, below + high + 18, "moves?")
    canvas.height = below + high + 24
    canvas.width = name.x + name.width + 8
    listed = ", ".join(words)
    return canvas.picture(
        title,
        f"{title}: {len(words)} vectors ({listed}) go into {box}, {len(words)} come out. "
        f"The vector of {words[changed]} is changed.",
    )


def one_word_two_vectors(
    word: str,
    *,
    before: Sequence[float],
    after: Mapping[str, Sequence[float]],
    names: Sequence[str],
) -> Picture:
    """Draw how a word's one vector leaves an encoder as another one in each text.

    Args:
        word: the word.
        before: the numbers of its vector in the table.
        after: for each text the numbers that come out at the word.
        names: of the numbers.

    Returns:
        The picture.

    Raises:
        ValueError: if there is no text, or there are not as many numbers as names.

    Example:
        >>> one_word_two_vectors(
        ...     "bank", before=[2], after={"a bank": [1]}, names=["x"]
        ... ).summary[:39]
        'The word bank goes in as 2 in each text'
    """
    check_filled("after", after, "at least one text")
    if any(len(numbers) != len(names) for numbers in (before, *after.values())):
        raise ValueError(f"each vector must have a number for each of names={list(names)}")
    canvas, cell, first = Canvas(), 48.0, 108.0
    second = first + cell * len(names) + 142
    for start in (first, second):
        for n, name in enumerate(names):
            canvas.text(start + cell * (n + 0.5), 16, name)
    for row, (text, numbers) in enumerate(after.items()):
        y = 28.0 + 62 * row
        canvas.text(first - 10, y + 25, text, bold=True, anchor="end")
        for start, values, role in ((first, before, "key"), (second, numbers, "value")):
            for n, value in enumerate(values):
                _number(canvas, start + cell * n, y, cell, f"{value:g}", role if value else "plain")
        box = canvas.box(first + cell * len(names) + 26, y + 3, ["encoder"], width=90)
        canvas.arrow((box.x - 24, y + 20), (box.x - 2, y + 20))
        canvas.arrow((box.x + 92, y + 20), (second - 2, y + 20))
    canvas.width, canvas.height = second + cell * len(names) + 8, 12.0 + 62 * len(after)
    out = "; ".join(f"in {text} as {_listed(numbers)}" for text, numbers in after.items())
    return canvas.picture(
        "One word, two vectors",
        f"The word {word} goes in as {_listed(before)} in each text, and comes out {out} "
        f"({', '.join(names)}).",
    )


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _number(canvas: Canvas, x: float, y: float, size: float, words: str, role: str) -> None:
    stroke, fill = ROLES[role]
    canvas.elements.append(
        f'<rect x="{x}" y="{y}" width="{size}" height="40" fill="{fill}" stroke="{stroke}"/>'
    )
    canvas.text(x + size / 2, y + 25, words, size=14)


def _vector(
    canvas: Canvas, middle: float, top: float, n_cells: int, cell: float, role: str
) -> None:
    stroke, fill = ROLES[role]
    for k in range(n_cells):
        canvas.elements.append(
            f'<rect x="{middle - cell}" y="{top + k * cell}" width="{2 * cell}" height="{cell}" '
            f'fill="{fill}" stroke="{stroke}"/>'
        )


def thinned_network(
    sizes: Sequence[int], kept: Sequence[Sequence[bool]], *, title: str, full: str = "every unit"
) -> Picture:
    r"""Draw a network of layers, and beside it the same one with some units dropped.

    Args:
        sizes: the number of units of each layer.
        kept: for each layer which units are kept.
        title: a short name for the picture.
        full: what is written below the network with all its units.

    Returns:
        The picture; a dropped unit is crossed out, and nothing leads to or from it.

    Raises:
        ValueError: if there is no layer, a layer has no unit, or sizes and masks do not fit.

    Example:
        >>> thin = thinned_network(
        ...     [2, 1], [[True, False], [True]], title="Thin"
        ... )
        >>> print(thin.summary.replace(". ", ".\n"))
        Thin: 2-1 units, 2 connections.
        Dropped: unit 1 of layer 0.
        1 connection is left.
    """
    check_filled("sizes", sizes, "at least one layer")
    if min(sizes) < 1:
        raise ValueError(f"sizes={list(sizes)} must be 1 or more in each layer")
    if [len(layer) for layer in kept] != list(sizes):
        raise ValueError(f"kept has layers of {[len(k) for k in kept]}; expected {list(sizes)}")
    everything = [[True] * size for size in sizes]
    canvas = Canvas()
    counts = [
        _draw_network(canvas, x, max(sizes), layers)
        for x, layers in ((20.0, everything), (40.0 + 110 * len(sizes), kept))
    ]
    for x, words in ((20.0, full), (40.0 + 110 * len(sizes), "one mask")):
        middle = x + 55 * (len(sizes) - 1) + 14
        canvas.text(middle, 52 * max(sizes) + 26, words, size=17)
    canvas.width, canvas.height = 40.0 + 220 * len(sizes) - 60, 52.0 * max(sizes) + 30
    dropped = [
        f"unit {unit} of layer {layer}"
        for layer, units in enumerate(kept)
        for unit, stays in enumerate(units)
        if not stays
    ]
    left = f"{counts[1]} connection{' is' if counts[1] == 1 else 's are'} left"
    shape = "-".join(map(str, sizes))
    names = ", ".join(dropped) or "nothing"
    summary = f"{title}: {shape} units, {counts[0]} connections. Dropped: {names}. {left}."
    return canvas.picture(title, summary)


def heads_in_colour(*, n_tokens: int, d_model: int, n_heads: int) -> Picture:
    """Draw a sentence on its way through multi-head attention, with a colour for each head.

    Args:
        n_tokens: T.
        d_model: D.
        n_heads: H; it must divide D.

    Returns:
        The picture.

    Raises:
        ValueError: if a size is no whole number of at least 1, or heads do not divide the width.

    Example:
        >>> heads_in_colour(n_tokens=6, d_model=512, n_heads=8).summary[:65]
        'Project, split, attend, merge: tokens 6×512; project: Q, K and V '
    """
    for name, size in {"n_tokens": n_tokens, "d_model": d_model, "n_heads": n_heads}.items():
        check_whole(name, size)
    if d_model % n_heads:
        raise ValueError(f"n_heads={n_heads} must divide d_model={d_model}")
    whole, part = f"{n_tokens}×{d_model}", f"{n_heads} of {n_tokens}×{d_model // n_heads}"
    table = f"{n_heads} of {n_tokens}×{n_tokens}"
    plain = [[-1] * n_heads] * n_tokens
    cut = [list(range(n_heads))] * n_tokens
    stages = [  # what happens, what comes out, its shape, how it looks, the gap between heads
        [("", "tokens", whole, plain, 0.0), ("project", "Q, K and V", f"{whole} each", cut, 0.0)],
        [
            ("split, transpose", "each head", part, cut, 5.0),
            ("attend", "weights", table, [], 9.0),
        ],
        [
            ("times V", "found", part, cut, 5.0),
            ("merge", "side by side", whole, cut, 0.0),
        ],
        [("times W_O", "output", whole, plain, 0.0)],
    ]
    canvas, y = Canvas(), 34.0
    for row in stages:
        x = 14.0
        for does, name, shape, blocks, gap in row:
            canvas.text(x + 62, y + 44, does, size=12.5, bold=True, color=MUTED)
            if does:
                canvas.arrow((x + 8, y + 56), (x + 116, y + 56))
            if blocks:
                width = _blocks(canvas, x + 124, y, blocks, gap)
            else:  # one square behind the other, head 0 in front
                for head in reversed(range(n_heads)):
                    left, top = x + 124 + gap * head, y + gap * head / 3
                    square = [[head] * n_tokens] * n_tokens
                    width = _blocks(canvas, left, top, square, 0.0, BLOCK[1])
                width += gap * (n_heads - 1)
            canvas.text(x + 124 + width / 2, y - 8, f"{name}: {shape}", bold=True)
            x += 124 + 8 * (BLOCK[0] + 5) + 20
        y += n_tokens * BLOCK[1] + 46
    title = "Project, split, attend, merge"
    steps = [stage for row in stages for stage in row]
    parts = [f"{does}: {name} {shape}".removeprefix(": ") for does, name, shape, *_ in steps]
    return canvas.picture(title, f"{title}: " + "; ".join(parts) + ".")


def split_right_and_wrong(*, n_tokens: int, n_heads: int) -> Picture:
    """Draw which blocks of a (T, D) table each head gets: with a transpose, and by a view alone.

    Args:
        n_tokens: T, the rows.
        n_heads: H, the blocks of each row.

    Returns:
        The picture.

    Raises:
        ValueError: if a size is no whole number of at least 1.

    Example:
        >>> split_right_and_wrong(n_tokens=2, n_heads=2).summary
        'Which head gets which block: right: 01/01; wrong: 00/11.'
    """
    check_whole("n_tokens", n_tokens)
    check_whole("n_heads", n_heads)
    tables = {
        "right": [list(range(n_heads))] * n_tokens,
        "wrong": [
            [(token * n_heads + block) // n_tokens for block in range(n_heads)]
            for token in range(n_tokens)
        ],
    }
    code = {"right": "view, then transpose", "wrong": "view alone"}
    canvas, x = Canvas(), 84.0
    for name, rows in tables.items():
        width = _blocks(canvas, x, 34, rows, 0.0)
        canvas.text(x + width / 2, 24, f"{name}: {code[name]}", bold=True)
        x += width + 40
    for token in range(n_tokens):
        canvas.text(76, 46 + BLOCK[1] * token, f"token {token}", anchor="end")
    title = "Which head gets which block"
    said = [
        f"{name}: " + "/".join("".join(map(str, row)) for row in rows)
        for name, rows in tables.items()
    ]
    return canvas.picture(title, f"{title}: " + "; ".join(said) + ".")


def inside_a_block() -> Picture:
    """Draw the two parts of a block, the norm before each, and the way around both.

    Returns:
        The picture.

    Example:
        >>> inside_a_block().title
        'Inside a block'
    """
    canvas, y, x = Canvas(), 62.0, 44.0
    canvas.text(22, y + 5, "x", size=15, bold=True)
    for number in (1, 2):
        role = "value" if number == 1 else "weight"
        norm = canvas.box(x + 34, y - 15.5, [f"norm_{number}"], width=72)
        part = canvas.box(x + 134, y - 15.5, [f"part_{number}"], width=72, role=role)
        plus = x + 246
        canvas.arrow((x - 8, y), (norm.x, y))
        canvas.arrow((norm.x + norm.width, y), (part.x, y))
        canvas.arrow((part.x + part.width, y), (plus - 14, y))
        canvas.arrow((x + 12, y), (x + 12, 14), (plus, 14), (plus, y - 14))
        canvas.elements.append(
            f'<circle cx="{plus}" cy="{y}" r="14" fill="{PAPER}" stroke="{INK}"/>'
        )
        canvas.text(plus, y + 6, "+", size=18, bold=True)
        x = plus + 22
    canvas.arrow((x - 8, y), (x + 20, y))
    canvas.text(x + 42, y + 5, "out", size=15, bold=True)
    canvas.width, canvas.height = x + 60, y + 20
    return canvas.picture(
        "Inside a block",
        "Inside a block: x goes through norm_1 and part_1, and the result is added to x. The sum "
        "goes through norm_2 and part_2, and the result is added to the sum.",
    )


def where_positions_enter() -> Picture:
    """Draw a block from the embedding to the values, and where six kinds of positions enter it.

    Returns:
        The picture.

    Example:
        >>> where_positions_enter().title
        'Where a position can enter'
    """
    canvas, left, right = Canvas(), 40.0, 290.0
    embedding, project, softmax, mean = (
        canvas.box(left, y, [words], width=160, role=role)
        for y, words, role in (
            (8, "embedding", "plain"), (160, "project", "plain"), (338, "softmax", "weight"),
            (396, "weighted mean", "plain"),
        )
    )  # fmt: skip
    v = canvas.box(left, 218, ["v"], width=48, role="value")
    q_and_k = canvas.box(left + 60, 218, ["q and k"], width=100, role="query")
    middle, scores = embedding.bottom[0], q_and_k.bottom[0]
    for start, end in (
        (embedding.bottom, (middle, 70)), ((middle, 98), project.top),
        ((v.top[0], 191), v.top), ((scores, 191), q_and_k.top),
        (q_and_k.bottom, (scores, 276)), ((scores, 304), (scores, softmax.y)),
        (softmax.bottom, mean.top),
    ):  # fmt: skip
        canvas.arrow(start, end)
    canvas.arrow(v.bottom, (v.bottom[0], 264), (26, 264), (26, mean.y + 15), (left, mean.y + 15))
    for x, y in ((middle, 84.0), (scores, 290.0)):
        circle = f'<circle cx="{x}" cy="{y}" r="14" fill="{PAPER}" stroke="{INK}"/>'
        canvas.elements.append(circle)
        canvas.text(x, y + 6, "+", size=18, bold=True)
    canvas.text(scores + 20, 308, "scores", anchor="start")
    for y, words, how, role, target in (
        (60, "learned table, sinusoids", "added once", "key", (middle + 15, 84)),
        (209, "RoPE", "turns q and k, not v", "query", (left + 160, 233)),
        (266, "ALiBi, T5", "a bias on the scores", "weight", (scores + 15, 290)),
    ):
        box = canvas.box(right, y, [words, how], role=role, width=210)
        canvas.arrow((right, box.y + box.height / 2), target, color=ROLES[role][0])
    canvas.frame(Box(12, 120, 502, 322), "in every layer")
    return canvas.picture(
        "Where a position can enter",
        "Where a position can enter: a learned table and sinusoids are added once, to the "
        "embedding. In every layer, RoPE turns q and k, but not v, and ALiBi and T5 add a bias to "
        "the scores, before the softmax.",
    )


def _blocks(
    canvas: Canvas, x: float, y: float, rows: list[list[int]], gap: float, wide: float = BLOCK[0]
) -> float:
    """Draw rows of blocks, a colour for each number, and return how wide they are.

    Square blocks do not show their number.
    """
    roles = [ROLES[role] for role in ("query", "key", "value", "weight")]
    high = BLOCK[1]
    for i, row in enumerate(rows):
        for j, head in enumerate(row):
            stroke, fill = roles[head % 4] if head >= 0 else (MUTED, PANEL)
            left, top = x + j * (wide + gap), y + i * high
            canvas.elements.append(
                f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" '
                f'fill="{fill}" stroke="{stroke}" stroke-width="0.9"/>'
            )
            if head >= 0 and wide != high:
                canvas.text(left + wide / 2, top + 12, str(head), size=11, color=stroke)
    width = len(rows[0]) * (wide + gap) - gap
    canvas.width = max(canvas.width, x + width)
    canvas.height = max(canvas.height, y + len(rows) * high)
    return width


def _check_weights(name: str, weights: Sequence[float], n: int) -> None:
    if len(weights) != n:
        raise ValueError(f"{name} has {len(weights)} weights; expected one for each of {n} columns")
    for weight in weights:
        if not 0 <= weight <= 1 + 1e-6:  # a sum of float32 numbers may be a little more than 1
            raise ValueError(f"{name} has the weight {weight:g}; expected numbers from 0 to 1")


def _token(
    canvas: Canvas, x: float, y: float, width: float, words: str, *, pale: bool, role: str = "query"
) -> None:
    stroke, fill = (MUTED, PANEL) if pale else ROLES[role]
    dash = ' stroke-dasharray="4 3"' if pale else ""
    canvas.elements.append(
        f'<rect x="{x}" y="{y}" width="{width}" height="{CELL}" rx="5" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.2"{dash}/>'
    )
    canvas.text(x + width / 2, y + 20, words, size=13, color=MUTED if pale else INK)
    canvas.width, canvas.height = max(canvas.width, x + width), max(canvas.height, y + CELL)


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<path d="M{x0} {y0}L{x1} {y1}" stroke="{MUTED}" stroke-width="2"/>'


def _draw_network(canvas: Canvas, x: float, tallest: int, kept: Sequence[Sequence[bool]]) -> int:
    """Draw one network from its left edge on; return how many connections it has."""
    places = [
        [(x + 14 + 110 * layer, 52 * (unit + 0.5 + (tallest - len(units)) / 2))
         for unit in range(len(units))]
        for layer, units in enumerate(kept)
    ]  # fmt: skip
    n_lines = 0
    for here, there in zip(range(len(kept)), range(1, len(kept)), strict=False):
        for a, (x0, y0) in enumerate(places[here]):
            for b, (x1, y1) in enumerate(places[there]):
                if kept[here][a] and kept[there][b]:
                    n_lines += 1
                    canvas.elements.append(
                        f'<path d="M{x0} {y0}L{x1} {y1}" stroke="{MUTED}" stroke-width="1.1"/>'
                    )
    for units, row in zip(kept, places, strict=True):
        for stays, (cx, cy) in zip(units, row, strict=True):
            canvas.elements.append(_unit(cx, cy, stays))
    return n_lines


def _unit(x: float, y: float, stays: bool) -> str:
    if stays:
        return f'<circle cx="{x}" cy="{y}" r="13" fill="{ROLES["weight"][0]}" stroke="{INK}"/>'
    circle = f'<circle cx="{x}" cy="{y}" r="13" fill="none" stroke="{MUTED}"/>'
    cross = f"M{x - 7} {y - 7}L{x + 7} {y + 7}M{x - 7} {y + 7}L{x + 7} {y - 7}"
    return circle + f'<path d="{cross}" stroke="{MUTED}" stroke-width="1.6"/>'
