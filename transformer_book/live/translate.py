"""The live figure "translate": a number goes letter by letter from English to German."""

from collections.abc import Iterator
from functools import lru_cache
from html import escape
from typing import Any

import torch
from torch import Tensor

from transformer_book.figures.pictures import GRID, INK, MUTED, PANEL, ROLES
from transformer_book.live.trained import browser_model, strongest
from transformer_book.live.wording import named, number, percent, sign
from transformer_lib import Seq2SeqLM, attention_maps

MAX = 40  # letters of each language; what comes after them is cut off
BEST = 5  # candidates that are shown
END = "<eos>"


@lru_cache(maxsize=256)
@torch.no_grad()
def _run(
    source: tuple[int, ...], written: tuple[int, ...], hidden: tuple[bool, ...]
) -> tuple[Tensor, Tensor]:
    """Weights of cross-attention, ``(L, H, T, S)``, and chances of the next letter, ``(V,)``."""
    model, tokenizer = browser_model("numbers")
    assert isinstance(model, Seq2SeqLM)
    assert tokenizer.bos_id is not None
    memory = model.body.encoder(torch.tensor([source]))
    target = torch.tensor([[tokenizer.bos_id, *written]])
    mask = ~torch.tensor(hidden)[None, None, None]  # (1, 1, 1, S)
    given = (target, memory, None, mask)
    maps = attention_maps(model.body.decoder, *given)
    cross = [weights[0] for path, weights in maps.items() if path.endswith("cross_attention")]
    logits = model.output(model.body.decoder(*given))[0, -1]
    return torch.stack(cross), logits.softmax(dim=-1)


def values(text: str, german: str, layer: str, head: str, hidden: str) -> dict[str, Any]:
    """Compute what the figure shows, with the library's model and the browser's weights.

    Args:
        text: the number in English.
        german: what is written so far.
        layer: of which cross-attention, from 1.
        head: which head of it, from 1, or ``"mean"``.
        hidden: a 1 for each letter of the source that cross-attention must not see.

    Returns:
        The letters, the weights from each position to the source, the likeliest next letters, and
        what the cache holds; under the names of ``translate.js``.

    Example:
        >>> found = values("forty-two", "zwei", "3", "2", "")
        >>> found["candidates"][0][0], round(found["weights"][4][5], 2)
        ('u', 1.0)
    """
    model, tokenizer = browser_model("numbers")
    assert isinstance(model, Seq2SeqLM)
    source, written = (tuple(tokenizer.encode(one)[:MAX]) for one in (text, german))
    tokens = tokenizer.tokens
    if not source:
        return {"source": [], "written": [], "candidates": []}
    veiled = tuple(s < len(hidden) and hidden[s] == "1" for s in range(len(source)))
    weights, chances = _run(source, written, veiled)
    own = weights[int(layer) - 1]  # (H, T, S)
    shown = own.mean(dim=0) if head == "mean" else own[int(head) - 1]
    best = chances.topk(BEST)
    config = model.config
    return {
        "source": [tokens[id] for id in source],
        "written": [tokens[id] for id in written],
        "hidden": list(veiled),
        "weights": shown.tolist(),  # row n: what was looked at before letter n was written
        "links": strongest(shown[-1].tolist()),
        "candidates": [
            [tokens[id], chance]
            for id, chance in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        "room": 2 * config.n_layers * config.d_model,  # numbers in the cache for one place
    }


def say(state: dict[str, Any], values: dict[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        The words of the live figure.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["translate"], {})
        >>> say(start, values(**start)).partition(", then")[0]
        'It has written “zwei”; the likeliest next letter is “u” (92%)'
    """
    source, written = values["source"], values["written"]
    if not source:
        return "There is no letter yet: type a number."
    room: int = values["room"]
    (first, chance), (second, less) = values["candidates"][:2]
    text = f"“{''.join(written)}”" if written else "nothing"
    follows = f"the likeliest next letter is {named(first)} ({_odds(chance)})"
    if first == END:
        follows = f"now the end is likeliest ({_odds(chance)})"
    layer, head = state["layer"], state["head"]
    who = "the mean of its heads"
    if head != "mean":
        who = f"head {head} (in code: {int(layer) - 1}, {int(head) - 1})"
    seen = [f"{named(source[s])} ({s}) {number(w)}" for s, w in values["links"]]
    veiled = [named(source[s]) for s, is_hidden in enumerate(values["hidden"]) if is_hidden]
    where = f"looks at: {', '.join(seen)}."
    if len(veiled) == len(source):
        where = "finds nothing to look at: every letter is hidden."
    elif veiled:
        where += f" Hidden: {', '.join(veiled)}."
    places = len(written) + 1
    return (
        f"It has written {text}; {follows}, then {named(second)} ({_odds(less)}). "
        f"Layer {layer}, {who}, {where} "
        f"The cache holds {places} {'place' if places == 1 else 'places'} of its own "
        f"({room * places:,} numbers; the next letter adds {room}), and {len(source)} of the "
        f"source ({room * len(source):,} numbers, computed once)."
    )


def _odds(share: float) -> str:
    return "<1%" if share < 0.005 else percent(share)


# The static picture -------------------------------------------------------------------------------

WIDTH = 340.0  # px: a phone shows all of it
SIDE = 26.0  # of a letter's box, at most
TOP, LOW = 52.0, 168.0  # of the boxes of both languages
KINDS = ("key", "value")


def drawing(state: dict[str, Any], values: dict[str, Any]) -> tuple[str, float, float]:
    """Draw the static picture: both languages, the lines between them, the cache, the candidates.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["translate"], {})
        >>> drawing(start, values(**start))[1]
        340.0
    """
    if not values["source"]:
        return _text(10, 30, say(state, values)), WIDTH, 50.0
    height = LOW + SIDE + 60 + 22 * BEST
    return "\n".join([*_letters(state, values), *_bars(values)]), WIDTH, height + 4


def _text(x: float, y: float, words: str, color: str = INK, **more: Any) -> str:
    look = {"font-size": 13, "fill": color, **{k.replace("_", "-"): v for k, v in more.items()}}
    attributes = " ".join(f'{name}="{value}"' for name, value in look.items())
    return f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(words, quote=False)}</text>'


def _box(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" {look}/>'


def _curve(start: float, end: float, look: str) -> str:
    """From a German letter up to an English one."""
    low, high = LOW - 2, TOP + SIDE + 2
    middle = (low + high) / 2
    path = f"M{start:.1f} {low:g}C{start:.1f} {middle:g} {end:.1f} {middle:g} {end:.1f} {high:g}"
    return f'<path d="{path}" fill="none" {look}/>'


def _letters(state: dict[str, Any], values: dict[str, Any]) -> Iterator[str]:
    """English above, German below; keys and values of the cache stand at their letters."""
    source, written, weights = values["source"], ["<bos>", *values["written"]], values["weights"]
    wide = min(SIDE, (WIDTH - 2) / max(len(source), len(written) + 1))
    color, last = ROLES["weight"][0], weights[-1]
    middles = [1 + (n + 0.5) * wide for n in range(MAX + 2)]
    head = "mean of its heads" if state["head"] == "mean" else f"head {state['head']}"
    yield _text(1, 14, f"Cross-attention, layer {state['layer']}, {head}", MUTED)
    for n, row in enumerate(weights[:-1]):  # where it looked for what is written
        at = max(range(len(row)), key=row.__getitem__)
        if row[at] >= 0.3:
            yield _curve(middles[n + 1], middles[at], f'stroke="{MUTED}" opacity="0.5"')
    for s, weight in enumerate(last):
        if weight >= 0.02:
            look = f'stroke="{color}" stroke-width="{0.5 + 8 * weight:.1f}" opacity="0.75"'
            yield _curve(middles[len(written)], middles[s], look)
    letter: dict[str, Any] = {"text_anchor": "middle", "font_family": "ui-monospace, monospace"}
    for s, token in enumerate(source):
        x = middles[s] - wide / 2
        yield from _cache(x, TOP - 19, wide)
        yield _box(x, TOP, wide - 1, SIDE, f'fill="{PANEL}" stroke="{GRID}"')
        shade = f'fill="{color}" fill-opacity="{0.55 * last[s]:.2f}"'
        yield _box(x, TOP, wide - 1, SIDE, shade)
        faint: dict[str, Any] = {"opacity": 0.4, "text_decoration": "line-through"}
        yield _text(
            middles[s], TOP + 18, sign(token), **letter, **(faint if values["hidden"][s] else {})
        )
    for n, token in enumerate(written):
        x = middles[n] - wide / 2
        yield _box(x, LOW, wide - 1, SIDE, f'fill="{PANEL}" stroke="{GRID}"')
        yield _text(middles[n], LOW + 18, sign(token), **letter)
        yield from _cache(x, LOW + SIDE + 3, wide)
    x, (token, _) = middles[len(written)], values["candidates"][0]
    frame = f'fill="none" stroke="{INK}" stroke-width="2"'
    yield _box(x - wide / 2, LOW, wide - 1, SIDE, frame)
    yield _text(x, LOW + 18, sign(token), color, font_weight=700, **letter)
    words = f"keys and values: {len(source)} places above, once; {len(written)} below, and growing"
    yield _text(1, LOW + SIDE + 36, words, MUTED, font_size=12)


def _cache(x: float, y: float, wide: float) -> Iterator[str]:
    """The keys and the values of one place."""
    for n, kind in enumerate(KINDS):
        yield _box(x + 1, y + 8 * n, wide - 3, 7, f'fill="{ROLES[kind][0]}"')


def _bars(values: dict[str, Any]) -> Iterator[str]:
    """The likeliest next letters."""
    top = LOW + SIDE + 60
    for n, (token, chance) in enumerate(values["candidates"]):
        y = top + 22 * n
        name = "end" if token == END else sign(token)
        yield _text(40, y + 12, name, text_anchor="end")
        yield _box(50, y, 230 * chance, 15, f'fill="{ROLES["weight"][0]}"')
        yield _text(WIDTH - 4, y + 12, _odds(chance), text_anchor="end")
