"""The live figure "stream": the residual stream of a trained model as a bus, and the logit lens.

Stops: 0 the embedding, 2n - 1 the attention and 2n the feed-forward network of block n.
"""

from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

import torch
from torch import Tensor

from transformer_book import datasets
from transformer_book.figures.pictures import GRID, INK, MUTED, ROLES
from transformer_book.live.trained import Line, browser_model, read_line
from transformer_book.live.wording import named, number, percent, sign
from transformer_lib import CausalLM, RMSNorm

MAX = 24  # letters of the line
BLOCKS = 4
STOPS = 2 * BLOCKS + 1
MOST = 3  # letters that a write lifts or lowers most
Named = list[Any]  # a letter, and a number that belongs to it


@cache
def letters() -> str:
    """Return all letters of the plays that the model has read, in order.

    Example:
        >>> len(letters())
        66
    """
    return "".join(sorted(set(datasets.shakespeare().train)))


@torch.no_grad()
def effects_of(parts: Tensor, line: Line, at: int) -> Tensor:
    """Say what parts of the stream do to each logit by themselves, at one position.

    Args:
        parts: of the stream at that position, ``(N, D)``.
        line: what the model makes of a line.
        at: the position.

    Returns:
        Their effects on the logit of each token, above the mean effect on the letters, ``(N, V)``.

    Example:
        >>> line = read_line((3, 4, 5))
        >>> effects_of(line.writes[:, 2], line, 2).shape
        torch.Size([8, 259])
    """
    model, tokenizer = browser_model("shakespeare")
    assert isinstance(model, CausalLM)
    norm = model.decoder.stack.final_norm
    assert isinstance(norm, RMSNorm)
    ids = tokenizer.encode(letters())
    size = (line.stream[-1, at].square().mean() + norm.eps).sqrt()  # of the whole stream
    logits: Tensor = model.output(parts / size * norm.weight)  # (N, V)
    return logits - logits[:, ids].mean(dim=-1, keepdim=True)


@torch.no_grad()
def direct_effects(line: Line, at: int) -> tuple[Tensor, Tensor]:
    """Say what each part of the stream does to each logit by itself, at one position.

    Args:
        line: what the model makes of a line.
        at: the position.

    Returns:
        The effects of the embedding and of each write on the logit of each token, above the mean
        effect on the letters, ``(2L + 1, V)``; and what they add up to, ``(V,)``: each logit
        minus the mean logit of the letters.

    Example:
        >>> effects, total = direct_effects(read_line((3, 4, 5)), 2)
        >>> torch.testing.assert_close(effects.sum(dim=0), total)
    """
    _, tokenizer = browser_model("shakespeare")
    ids = tokenizer.encode(letters())
    parts = torch.cat([line.stream[:1], line.writes])[:, at]  # (2L + 1, D)
    return effects_of(parts, line, at), line.logits[-1, at] - line.logits[-1, at, ids].mean()


def values(text: str, letter: str, at: int, stop: int) -> dict[str, Any]:
    """Compute everything that the figure shows.

    Args:
        text: the reader's line; what comes after ``MAX`` tokens is cut off.
        letter: whose logit is explained; the likeliest if it is no token of the model.
        at: the position, or the last one if the line is shorter.
        stop: the part of the stream that is looked at.

    Returns:
        Letters, lengths, effects and answers; under the names of ``stream.js``.

    Example:
        >>> found = values("The king and the q", "", 17, 2)
        >>> found["letter"], round(found["effects"][2], 2)
        ('u', 3.16)
    """
    _, tokenizer = browser_model("shakespeare")
    tokens = tokenizer.tokens
    ids = tokenizer.encode(text)[:MAX]
    if not ids:
        return {"tokens": []}
    line = read_line(tuple(ids))
    at = min(at, len(ids) - 1)
    typed = tokenizer.encode(letter)
    id = typed[0] if len(typed) == 1 else int(line.logits[-1, at].argmax())
    effects, total = direct_effects(line, at)
    chances = line.logits.softmax(dim=-1)  # (2L + 1, T, V)
    own = tokenizer.encode(letters())
    order = effects[stop, own].argsort(descending=True, stable=True).tolist()
    moved = [[tokens[own[n]], effects[stop, own[n]].item()] for n in order]

    def answer(chances: Tensor) -> Named:
        best = int(chances.argmax())
        return [tokens[best], chances[best].item()]

    return {
        "tokens": [tokens[each] for each in ids],
        "at": at,
        "stop": stop,
        "letter": tokens[id],
        "strange": letter != "" and len(typed) != 1,
        "effects": effects[:, id].tolist(),
        "total": total[id].item(),
        "written": torch.cat([line.stream[:1], line.writes])[:, at].norm(dim=-1).tolist(),
        "lengths": line.stream[:, at].norm(dim=-1).tolist(),
        "answers": [answer(each) for each in chances[:, at]],
        "chances": chances[:, at, id].tolist(),
        "lens": [[answer(each) for each in row] for row in chances[::2]],
        "lifted": moved[:MOST],
        "lowered": moved[: -MOST - 1 : -1],
    }


# Words --------------------------------------------------------------------------------------------


def _name(stop: int) -> str:
    if not stop:
        return "embedding"
    return f"block {(stop + 1) // 2}, {'attention' if stop % 2 else 'feed-forward'}"


def say(state: dict[str, Any], values: dict[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        The words of the live figure.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["stream"], {})
        >>> say(start, values(**start))[:50]
        'Position 23, “e”: the model’s answer is “a” (>99%)'
    """
    if not values["tokens"]:
        return "There is no letter yet: type some."
    at, stop, letter, effects = (values[name] for name in ("at", "stop", "letter", "effects"))
    last, chance = values["answers"][-1]
    strange = " (The letter that was asked for is none of the model’s tokens.)"
    most, second = sorted(range(STOPS), key=lambda n: -effects[n])[:2]
    length = number(values["lengths"][stop], 1)
    written = number(values["written"][stop], 1)
    size = f"a write of length {written}; with it the stream has {length}"
    size = size if stop else f"the stream begins with length {length}"
    name = _name(stop)
    token, share = values["answers"][stop]
    other = f", and {named(letter)} would have {percent(values['chances'][stop])}"
    return (
        f"Position {at}, {named(values['tokens'][at])}: the model’s answer is "
        f"{named(last)} ({percent(chance)}).{strange if values['strange'] else ''} "
        f"The logit of {named(letter)} is {number(values['total'])} above the mean letter’s. "
        f"Of the nine direct effects that add up to it, the largest are "
        f"{number(effects[most])} ({_name(most)}) and {number(effects[second])} "
        f"({_name(second)}). "
        f"{name[0].upper()}{name[1:]}: {size}. Stopped there, the model would answer "
        f"{named(token)} ({percent(share)}){'' if token == letter else other}."
    )


# The static picture -------------------------------------------------------------------------------

WIDTH = 330.0  # px: a phone shows all of it
TOP, TALL = 40.0, 24.0  # of the rows
NAME, BUS, BAND, SIZES, MIDDLE, END = 6.0, 106.0, 22.0, 170.0, 186.0, 272.0


def drawing(state: dict[str, Any], values: dict[str, Any]) -> tuple[str, float, float]:
    """Draw the static picture: the bus, and below it the lens.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["stream"], {})
        >>> drawing(start, values(**start))[1]
        330.0
    """
    if not values["tokens"]:
        return _text(10, 30, say(state, values)), WIDTH, 50.0
    lens_top = TOP + STOPS * TALL + 60
    return (
        "\n".join([*_bus(values), *_lens(values, lens_top)]),
        WIDTH,
        lens_top + 20 * (BLOCKS + 2) + 4,
    )


def _text(x: float, y: float, words: str, color: str = INK, **more: Any) -> str:
    look = {"font-size": 13, "fill": color, **{k.replace("_", "-"): v for k, v in more.items()}}
    attributes = " ".join(f'{name}="{value}"' for name, value in look.items())
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(words, quote=False)}</text>'


def _frame(x: float, y: float, width: float, height: float) -> str:
    look = f'fill="none" stroke="{INK}" stroke-width="2"'
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}/>'


def _bus(values: dict[str, Any]) -> Iterator[str]:
    """A row for each stop: the write, the stream, the direct effect, the answer."""
    effects, lengths, written = values["effects"], values["lengths"], values["written"]
    unit = (END - MIDDLE - 36) / max(1e-9, *effects)
    unit = min(unit, (MIDDLE - SIZES) / max(1e-9, -min(effects)))
    widths = [3 + (BAND - 3) * length / max(lengths) for length in lengths]
    bottom = TOP + STOPS * TALL
    rows = [TOP + (n + 0.5) * TALL for n in range(STOPS)]
    for x, words in ((BUS - 14, "write"), (SIZES, "stream"), (WIDTH - 4, "stopped")):
        yield _text(x, TOP - 12, words, MUTED, text_anchor="end")
    title = f"effect on {sign(values['letter'])}"
    yield _text(MIDDLE + 34, TOP - 12, title, MUTED, text_anchor="middle")
    yield f'<path d="M{MIDDLE} {TOP}V{bottom}" stroke="{GRID}"/>'
    edge = "L".join(f"{BUS + w:.1f} {y:g}" for w, y in zip(widths, rows, strict=True))
    yield (
        f'<path d="M{BUS} {rows[0]}L{edge}V{bottom}H{BUS}Z" fill="{ROLES["query"][0]}" '
        'fill-opacity="0.55"/>'
    )
    for n, y in enumerate(rows):
        name = f"{(n + 1) // 2} {'attn' if n % 2 else 'ffwd'}" if n else "embed"
        thick = 1 + 7 * written[n] / max(written)
        yield _text(NAME, y + 4.5, name)
        yield _text(BUS - 14, y + 4.5, number(written[n], 1), text_anchor="end")
        yield (
            f'<path d="M{BUS - 10} {y:g}H{BUS}" stroke="{ROLES["value"][0]}" '
            f'stroke-width="{thick:.1f}"/>'
        )
        yield _text(SIZES, y + 4.5, number(lengths[n], 1), text_anchor="end")
        left, wide = MIDDLE + min(0.0, effects[n] * unit), abs(effects[n] * unit)
        yield (
            f'<rect x="{left:.1f}" y="{y - 7:g}" width="{wide:.1f}" height="14" '
            f'fill="{ROLES["weight"][0]}"/>'
        )
        beside = MIDDLE + max(0.0, effects[n] * unit) + 4
        yield _text(round(beside, 1), y + 4.5, number(effects[n]))
        token, chance = values["answers"][n]
        look: dict[str, Any] = {"font_family": "ui-monospace, monospace", "font_weight": 700}
        yield _text(END + 4, y + 4.5, sign(token), **look)
        yield _text(WIDTH - 4, y + 4.5, percent(chance), text_anchor="end")
    yield f'<path d="M{SIZES + 4} {bottom}H{END}" stroke="{INK}" stroke-width="1.5"/>'
    total = f"logit minus mean logit: {number(values['total'])}"
    yield _text(END, bottom + 18, total, text_anchor="end", font_weight=700)
    yield _frame(1, TOP + values["stop"] * TALL, WIDTH - 2, TALL)


def _lens(values: dict[str, Any], top: float) -> Iterator[str]:
    """A column for each letter, a row for the embedding and for each block."""
    left, tall = 72.0, 20.0
    wide = (WIDTH - left - 2) / MAX
    tokens, color = values["tokens"], ROLES["weight"][0]
    mono: dict[str, Any] = {
        "font_family": "ui-monospace, monospace",
        "text_anchor": "middle",
        "font_size": 13,
    }
    yield _text(NAME, top - 8, "what it would answer after each block", MUTED)
    for t, token in enumerate(tokens):
        yield _text(left + (t + 0.5) * wide, top + 14, sign(token), font_weight=700, **mono)
    for n, row in enumerate(values["lens"]):
        y = top + (n + 1) * tall
        yield _text(left - 6, y + 14, f"block {n}" if n else "embed", MUTED, text_anchor="end")
        for t, (token, chance) in enumerate(row):
            x = left + t * wide
            yield (
                f'<rect x="{x:.1f}" y="{y:g}" width="{wide:.1f}" height="{tall:g}" fill="{color}" '
                f'fill-opacity="{0.55 * chance:.2f}" stroke="{GRID}"/>'
            )
            yield _text(round(x + wide / 2, 1), y + 14, sign(token), **mono)
    yield _frame(round(left + values["at"] * wide, 1), top, round(wide, 1), (BLOCKS + 2) * tall)
