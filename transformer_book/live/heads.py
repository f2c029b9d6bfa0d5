"""The live figure of chapter 6: where each head of a trained model looks."""

import math
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from typing import Any

import torch
from torch import Tensor

from transformer_book.figures.pictures import INK, MUTED, PANEL, PAPER, ROLES
from transformer_book.live.trained import browser_model, strongest
from transformer_book.live.wording import number
from transformer_lib import Seq2SeqLM, Tokenizer, attention_maps, generate

MAX = 40  # tokens; what comes after them is cut off
WHAT = {
    "before": "weight on the letter before",
    "itself": "weight on itself",
    "same": "weight on copies of itself",
    "space": "weight on spaces",
    "first": "weight on the first position",
    "distance": "distance in letters",
    "entropy": "entropy in nats",
}
ACROSS = ("space", "first", "entropy")  # what can be asked of two different texts
Table = tuple[list[str], list[str], Tensor]  # queries, keys, weights (L, H, T, S)


@lru_cache(maxsize=32)
@torch.no_grad()
def _run(name: str, text: str) -> dict[str, Table]:
    """For each attention of the model its tokens and its weights; nothing for no text."""
    model, tokenizer = browser_model(name)
    ids = tokenizer.encode(text)[:MAX]
    if not ids:
        return {}
    given = [ids]
    if isinstance(model, Seq2SeqLM):
        given.append(_translate(model, tokenizer, ids))
    maps = attention_maps(model, *(torch.tensor([one]) for one in given))
    source, target = ([tokenizer.tokens[one] for one in part] for part in (given[0], given[-1]))
    tables = {}
    for part, (rows, columns) in {
        "encoder": (source, source),
        "decoder": (target, target),
        "cross": (target, source),
    }.items():
        own = [weights[0] for path, weights in maps.items() if _part(path) == part]
        if own:
            tables[part] = (rows, columns, torch.stack(own))
    return tables


def _translate(model: Seq2SeqLM, tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """What the decoder has read when it writes the last letter of its translation."""
    found: list[int] = generate(
        model,
        torch.tensor([[tokenizer.bos_id]]),
        source=torch.tensor([ids]),
        max_new_tokens=MAX - 1,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
    )[0].tolist()
    return found[: found.index(tokenizer.eos_id)] if tokenizer.eos_id in found else found


def _part(path: str) -> str:
    if path.endswith("cross_attention"):
        return "cross"
    return "encoder" if "encoder." in path else "decoder"


def _measure(what: str, part: str, table: Table) -> Tensor:
    """The mean over all queries that can see what is asked for, ``(L, H)``; NaN if none can."""
    queries, keys, weights = table
    i, j = torch.arange(len(queries))[:, None], torch.arange(len(keys))
    if part == "cross" and what not in ACROSS:
        return torch.full(weights.shape[:2], math.nan)
    if what == "distance":
        return (weights * (i - j).abs()).sum(dim=-1).mean(dim=-1)
    if what == "entropy":
        return -torch.xlogy(weights, weights).sum(dim=-1).mean(dim=-1)
    asked = {
        "before": j == i - 1,
        "itself": j == i,
        "same": torch.tensor([[key == query for key in keys] for query in queries]) & (j != i),
        "space": torch.tensor([key == " " for key in keys]).expand(len(queries), -1),
        "first": (j == 0).expand(len(queries), -1),
    }[what]
    asked = asked & (j <= i) if part == "decoder" else asked  # (T, S)
    sums = (weights * asked).sum(dim=-1)  # (L, H, T)
    return sums[..., asked.any(dim=-1)].mean(dim=-1)


def _even(part: str, table: Table) -> Table:
    """The same with even weights, for one head."""
    queries, keys, _ = table
    allowed = torch.ones(1, 1, len(queries), len(keys), dtype=torch.float64)
    allowed = allowed.tril() if part == "decoder" else allowed
    return queries, keys, allowed / allowed.sum(dim=-1, keepdim=True)


def _plain(tensor: Tensor) -> Any:
    """Nested lists; what is not a number becomes ``None``."""
    if tensor.ndim:
        return [_plain(each) for each in tensor]
    return None if tensor.isnan() else tensor.item()


def values(**state: Any) -> dict[str, Any]:
    """Compute what the figure shows, with the library's models and the browser's weights.

    Args:
        state: the settings of the figure.

    Returns:
        The tokens, the head's weights, the strongest links of one position, and means over the
        line of this head, of even weights, and of all heads.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> found = values(
        ...     **complete(FIGURES["heads"], {"text": "the", "at": 2})
        ... )
        >>> (
        ...     found["queries"],
        ...     [round(weight, 2) for weight in found["weights"][2]],
        ... )
        (['t', 'h', 'e'], [0.0, 1.0, 0.0])
    """
    letters = state["model"] == "shakespeare"
    tables = _run(state["model"], state["text" if letters else "number"])
    if not tables:
        lists = ("queries", "keys", "weights", "links", "means", "even", "heads")
        return {name: [] for name in lists}
    part = "decoder" if letters else state["part"]
    queries, keys, weights = table = tables[part]
    n_layers, n_heads, length = weights.shape[:3]
    layer, head = min(state["layer"], n_layers - 1), min(state["head"], n_heads - 1)
    at = min(state["at"], length - 1)
    askable = part != "cross" or state["measure"] in ACROSS
    measure = state["measure"] if askable else "entropy"
    own = (queries, keys, weights[layer, head][None, None])
    even = _even(part, table)
    return {
        "part": part,
        "queries": list(queries),
        "keys": list(keys),
        "layer": layer,
        "head": head,
        "at": at,
        "measure": measure,
        "weights": weights[layer, head].tolist(),
        "links": strongest(weights[layer, head, at].tolist()),
        "means": [_plain(_measure(what, part, own)[0, 0]) for what in WHAT],
        "even": [_plain(_measure(what, part, even)[0, 0]) for what in WHAT],
        "heads": _plain(_measure(measure, part, table)),
    }


def _quoted(token: str | None) -> str:
    return "the end" if token is None else "a space" if token == " " else f"“{token}”"


def _placed(keys: list[str], j: int, at: int, part: str | None) -> str:
    """Where a key stands, as seen from the letter that looks."""
    if part == "cross":
        return f"{_quoted(keys[j])} ({j})"
    if j == at:
        return "itself"
    far = abs(at - j)
    letters = "letter" if far == 1 else "letters"
    return f"{_quoted(keys[j])}, {far} {letters} {'before' if j < at else 'after'}"


def say(state: dict[str, Any], values: dict[str, Any]) -> str:
    """Say the result in words.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        The words of the live figure.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["heads"], {"text": "the", "at": 2})
        >>> say(start, values(**start)).removeprefix("Head 8 of layer 1: ")
        '“e” gives 1.00 of its weight to “h”, 1 letter before.'
    """
    queries, at, part = values["queries"], values.get("at", 0), values.get("part")
    if not queries:
        return "There is no letter yet: type some."
    written = ""
    if state["model"] == "numbers" and part != "encoder":
        written = f"It writes {''.join(queries[1:])}. "
    who = _quoted(queries[at])
    if part == "cross":
        following = queries[at + 1] if at + 1 < len(queries) else None
        who = f"about to write {_quoted(following)}, the decoder"
    links = [
        f"{number(w)} {'' if n else 'of its weight '}to {_placed(values['keys'], j, at, part)}"
        for n, (j, w) in enumerate(values["links"])
    ]
    return (
        f"{written}Head {values['head'] + 1} of layer {values['layer'] + 1}: {who} gives "
        f"{'; '.join(links)}."
    )


WIDTH = 380.0  # of the picture, in px: a phone shows all of it
KEYS_Y, QUERIES_Y, GRID_Y = 40.0, 122.0, 184.0  # the text, the text again, all heads


def drawing(state: dict[str, Any], values: dict[str, Any]) -> tuple[str, float, float]:
    """Draw the static picture: links between the letters, and all heads in numbers.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["heads"], {"text": "the"})
        >>> drawing(start, values(**start))[1]
        380.0
    """
    if not values["queries"]:
        return _text(10, 30, say(state, values)), WIDTH, 50.0
    height = GRID_Y + 18 + 22 * len(values["heads"])
    return "\n".join([*_strip(values), *_grid(values)]), WIDTH, height + 10


def _text(
    x: float, y: float, words: str, color: str = MUTED, anchor: str = "start", size: float = 14
) -> str:
    words = escape(words, quote=False)
    look = f'font-size="{size}" text-anchor="{anchor}" fill="{color}"'
    return f'<text x="{x}" y="{y}" {look}>{words}</text>'


def _letter(x: float, y: float, token: str) -> str:
    shown = token if len(token) == 1 else "▫"  # a byte of a letter that has no token
    sign = {" ": "␣", "<bos>": "▷"}.get(token, escape(shown, quote=False))
    return (
        f'<text x="{x}" y="{y - 3 if token == " " else y}" font-size="13" text-anchor="middle" '
        f'font-family="ui-monospace, monospace" fill="{INK}">{sign}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}/>'


def _strip(values: dict[str, Any]) -> Iterator[str]:
    """The text twice, and a line for each weight from 0.05 on: the thicker, the larger."""
    queries, keys, at = values["queries"], values["keys"], values["at"]
    step = min(22.0, (WIDTH - 20) / max(len(queries), len(keys)))
    color = ROLES["weight"][0]
    title = f"layer {values['layer'] + 1}, head {values['head'] + 1}"
    yield _text(10, 20, f"{title}: what is looked at (keys)")
    yield _text(10, QUERIES_Y + 24, "the letters that look (queries)")
    for i, row in enumerate(values["weights"]):
        for j, weight in enumerate(row):
            if weight >= 0.05:
                start, end = 10 + (i + 0.5) * step, 10 + (j + 0.5) * step
                yield (
                    f'<path d="M{start} {QUERIES_Y - 14}L{end} {KEYS_Y + 6}" stroke="{color}" '
                    f'stroke-width="{0.5 + 3 * weight}" opacity="{0.25 + 0.75 * weight}"/>'
                )
    for n, token in enumerate(keys):
        yield _letter(10 + (n + 0.5) * step, KEYS_Y, token)
    frame = f'fill="none" stroke="{INK}" stroke-width="2"'
    yield _rect(10 + at * step, QUERIES_Y - 14, step, 20, frame)
    for n, token in enumerate(queries):
        yield _letter(10 + (n + 0.5) * step, QUERIES_Y, token)


def _grid(values: dict[str, Any]) -> Iterator[str]:
    """One measure for all heads."""
    color, left, wide, tall = ROLES["weight"][0], 70.0, 36.0, 22.0
    heads = values["heads"]
    largest = max((value or 0.0 for row in heads for value in row), default=0.0) or 1.0
    yield _text(10, GRID_Y - 4, f"every head: {WHAT[values['measure']]}")
    for layer, row in enumerate(heads):
        y = GRID_Y + 18 + layer * tall
        yield _text(left - 6, y + 16, f"layer {layer + 1}", INK, "end", 12.5)
        for head, value in enumerate(row):
            if layer == 0:
                x = left + (head + 0.5) * wide
                yield _text(x, GRID_Y + 13, str(head + 1), INK, "middle", 12.5)
            own = (layer, head) == (values["layer"], values["head"])
            x = left + head * wide
            yield _rect(x, y, wide, tall, f'fill="{PAPER}" stroke="{PANEL}"')
            if value is not None:
                look = f'fill="{color}" fill-opacity="{0.5 * value / largest}"'
                yield _rect(x, y, wide, tall, look)
                yield _text(x + wide / 2, y + 16, number(value), INK, "middle", 12.5)
            if own:
                yield _rect(x, y, wide, tall, f'fill="none" stroke="{INK}" stroke-width="2"')
