"""The live figure of the front page: a line goes through a trained model, and a letter comes out.

Stages: 0 tokens, 1 embedding, then attention and feed-forward of each layer, the answer, the
next letter. Attention opens (`zoom`): 1 query, key and value, 2 scores, 3 scale, 4 mask, 5 softmax,
6 mixture of one head, 7 what all heads write, 8 why that lifts the answer. Feed-forward opens: 1
its units, 2 what they write, 3 why that lifts the answer.
"""

import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer_book.figures.pictures import GRID, INK, MUTED, ROLES
from transformer_book.live.numbers import uniforms
from transformer_book.live.stream import effects_of, letters
from transformer_book.live.trained import Line, browser_model, read_line
from transformer_book.live.wording import number, round_half_up
from transformer_lib import (
    Block,
    CausalLM,
    FeedForward,
    MultiHeadAttention,
    RMSNorm,
    attention,
)

TYPED, ROWS = 40, 18  # tokens of the reader's line; lanes in the picture
LAYERS = 4
ANSWER = 2 * LAYERS + 2
WRITE = ANSWER + 1
BEST, FIRST = 6, 12  # candidates, and numbers of a vector, that are shown
FIRST_SEED = 1000
MOST = 60  # letters that are written
HEADS = 8
ZOOMS, DEEPS = 8, 3  # steps of an open attention, and of an open feed-forward
BUSY, TOPS = 6, 5  # units, and products, that are named
TEMPERATURES = {"cool": 0.5, "drawn": 1.0, "warm": 1.5}


def _inner() -> int:
    """How many units a feed-forward has."""
    model, _ = browser_model("shakespeare")
    assert isinstance(model, CausalLM)
    assert model.config.d_ff is not None
    return model.config.d_ff


def _block(layer: int) -> Block:
    model, _ = browser_model("shakespeare")
    assert isinstance(model, CausalLM)
    block = model.decoder.stack.blocks[layer]
    assert isinstance(block, Block)
    return block


@torch.no_grad()
def _made(run: Line, layer: int, head: int, at: int) -> dict[str, Any]:
    """How a letter's lane becomes the query, the key and the value of one head."""
    block = _block(layer)
    part = block.attention
    assert isinstance(part, MultiHeadAttention)
    x = block.attention_norm(run.stream[2 * layer, at])  # (D,)
    own = slice(head * x.numel() // part.n_heads, (head + 1) * x.numel() // part.n_heads)
    tables = [table.weight[own] for table in (part.query, part.key, part.value)]  # (Dk, D) each
    torch.testing.assert_close(tables[2] @ x, run.heads[layer][2][head, at])
    return {
        "x": x[:FIRST].tolist(),
        "tables": [table[:FIRST, :FIRST].tolist() for table in tables],
        "made": [(table @ x)[:FIRST].tolist() for table in tables],  # not turned yet
    }


@torch.no_grad()
def _units(run: Line, layer: int, at: int, rivals: list[int]) -> dict[str, Any]:
    """What each unit of a feed-forward does to two letters, and which do most to the first."""
    block = _block(layer)
    part = block.feed_forward
    assert isinstance(part, FeedForward)
    assert part.gate is not None
    x = block.feed_forward_norm(run.stream[2 * layer + 1, at])  # (D,)
    g, u = part.gate(x), part.up(x)  # (F,) each
    answers = torch.nn.functional.silu(g) * u
    vectors = part.down.weight * answers  # (D, F): a column for what each unit writes
    torch.testing.assert_close(vectors.sum(dim=1), run.writes[2 * layer + 1, at])
    effects = _scores(vectors.T, run, 2 * layer + 2, at, rivals)  # (F, 2)
    busy = effects[:, 0].abs().argsort(descending=True)[:BUSY].tolist()
    return {
        "x": x[:FIRST].tolist(),
        "effects": effects.T.tolist(),
        "shut": int((g < 0).sum()),
        "busy": [[n + 1, *(each[n].item() for each in (g, u, answers))] for n in busy],
        "writes": [vectors[:FIRST, n].tolist() for n in busy],
    }


def _look(run: Line, layer: int, head: int, first: int, at: int) -> dict[str, Any]:
    """How one head comes from scores to weights to a mixture."""
    q, k, v = (each[head] for each in run.heads[layer])
    _, weights = attention(q, k, v, causal=True)
    torch.testing.assert_close(weights, run.weights[layer, head])  # what the model itself used
    raw = k @ q[at]  # (T,): also of what the mask will hide
    return {
        **_made(run, layer, head, at),
        "width": q.shape[-1],
        "query": q[at, :FIRST].tolist(),
        "keys": k[first:, :FIRST].tolist(),
        "raw": raw.tolist(),
        "scores": (raw / q.shape[-1] ** 0.5).tolist(),
        "values": v[first:, :FIRST].tolist(),
    }


@torch.no_grad()
def _head_writes(run: Line, layer: int, at: int, rivals: list[int]) -> dict[str, Any]:
    """What each head writes onto a lane, and what that does by itself to two letters."""
    part = _block(layer).attention
    assert isinstance(part, MultiHeadAttention)
    mixtures = attention(*run.heads[layer], causal=True)[0][:, at]  # (H, Dk)
    alone = torch.block_diag(*mixtures.split(1))  # (H, D): one head, and zeros for all others
    writes = part.output(alone)
    torch.testing.assert_close(writes.sum(dim=0), run.writes[2 * layer, at])
    effects = _scores(writes, run, 2 * layer + 1, at, rivals)  # (H, 2)
    return {"mixtures": mixtures, "writes": writes, "effects": effects.T}


def _rivals(run: Line, at: int) -> list[int]:
    """The answer, and the letter that is second in the end."""
    found: list[int] = run.logits[-1, at].topk(2).indices.tolist()
    return found


def _final_norm() -> RMSNorm:
    model, _ = browser_model("shakespeare")
    assert isinstance(model, CausalLM)
    final = model.decoder.stack.final_norm
    assert isinstance(final, RMSNorm)
    return final


def _sizes(vectors: Tensor) -> Tensor:
    """By what the final norm would divide each vector; ``(..., D)`` to ``(...)``."""
    return (vectors.square().mean(dim=-1) + _final_norm().eps).sqrt()


def _size(run: Line, place: int, at: int) -> Tensor:
    """By what the final norm divides a lane that is read at this place of the stream."""
    return _sizes(run.stream[place, at])


@torch.no_grad()
def _scores(parts: Tensor, run: Line, place: int, at: int, ids: list[int]) -> Tensor:
    """What parts of a lane that is read at this place do to the scores of some letters.

    Above the mean of the letters; ``(N, D)`` to ``(N, len(ids))``.
    """
    grown = _size(run, len(run.stream) - 1, at) / _size(run, place, at)
    return effects_of(parts, run, at)[:, ids] * grown


@torch.no_grad()
def _held(run: Line, place: int, at: int, rivals: list[int]) -> Tensor:
    """What the lane brought to the scores of two letters, by the norm of the lane as it is now."""
    _, tokenizer = browser_model("shakespeare")
    parts = torch.stack([run.stream[place - 1, at], run.writes[place - 1, at]])
    scores = _scores(parts, run, place, at, rivals)  # (2, 2)
    logits = run.logits[place, at]
    mean = logits[tokenizer.encode(letters())].mean()
    torch.testing.assert_close(scores.sum(dim=0), logits[rivals] - mean)  # nothing else is in them
    return scores[0]


@torch.no_grad()
def _before(run: Line, place: int, at: int, rivals: list[int]) -> list[float]:
    """The scores of two letters before a write, above the mean: as the stage before left them."""
    _, tokenizer = browser_model("shakespeare")
    logits = run.logits[place - 1, at]
    found: list[float] = (logits[rivals] - logits[tokenizer.encode(letters())].mean()).tolist()
    return found


@torch.no_grad()
def _lift(write: Tensor, run: Line, place: int, at: int, rivals: list[int]) -> dict[str, Any]:
    """Why a write lifts two letters: its numbers times those of each letter's vector.

    A letter's vector is its row of the output table above the mean of the letters, times the
    weights of the final norm. ``size`` is what that norm divides by.
    """
    model, tokenizer = browser_model("shakespeare")
    assert isinstance(model, CausalLM)
    table = model.output(torch.eye(len(write), dtype=write.dtype)).T  # (V, D)
    mean = table[tokenizer.encode(letters())].mean(dim=0)
    vectors = (table[rivals] - mean) * _final_norm().weight  # (2, D)
    products, size = write * vectors, _size(run, place, at)
    effects = _scores(write[None], run, place, at, rivals)[0]
    torch.testing.assert_close(products.sum(dim=1) / size, effects)
    return {
        "write": write.tolist(),
        "vectors": vectors.tolist(),
        "size": size.item(),
        "sums": products.sum(dim=1).tolist(),
        "tops": [
            [
                [n + 1, write[n].item(), vector[n].item(), product[n].item()]
                for n in product.abs().argsort(descending=True)[:TOPS].tolist()
            ]
            for vector, product in zip(vectors, products, strict=True)
        ],
    }


def _opens(run: Line, at: int) -> int:
    """The stage of the attention that raises the probability of a lane's answer most."""
    chances = run.logits[:, at].softmax(dim=-1)[:, run.logits[-1, at].argmax()]
    return 2 + 2 * int((chances[1::2] - chances[:-1:2]).argmax())


def _chances(logits: Tensor, pick: str) -> Tensor:
    """Scores as probabilities; a temperature divides the scores first."""
    return (logits / TEMPERATURES.get(pick, 1.0)).softmax(dim=-1)


def _choose(logits: Tensor, pick: str, n: int, draw: int) -> int:
    chances = _chances(logits, pick)
    if pick == "likeliest":
        return int(chances.argmax())
    passed = (chances.cumsum(dim=-1) > uniforms(FIRST_SEED + n + (MOST + 1) * draw, 1)[0]).nonzero()
    return int(passed[0]) if len(passed) else len(chances) - 1


def _read(text: str) -> str:
    """As many letters as fit: one that the model never saw takes several tokens, its bytes."""
    _, tokenizer = browser_model("shakespeare")
    return next(
        text[:n] for n in range(len(text), -1, -1) if len(tokenizer.encode(text[:n])) <= TYPED
    )


def _fixed(text: str) -> list[int]:
    """The letters that were written before the way of choosing was set anew."""
    _, tokenizer = browser_model("shakespeare")
    return [id for id in map(int, re.findall(r"\d+", text)) if id < len(tokenizer.tokens)]


def _guesses(
    run: Line, at: int, stage: int, pick: str = "", must: Sequence[int] = ()
) -> list[list[Any]]:
    """The likeliest tokens: name, logit, probability, and the probability one stage before.

    Where a letter is chosen: with the temperature, and before it. Those of ``must`` are among
    them in any case.
    """
    place = min(stage, ANSWER - 1) - 1
    if place < 0:
        return []
    _, tokenizer = browser_model("shakespeare")
    logits = run.logits[place, at]
    chances, before = logits.softmax(-1), run.logits[max(0, place - 1), at].softmax(-1)
    if stage == WRITE:
        chances, before = _chances(logits, pick), chances
    order = chances.argsort(descending=True, stable=True).tolist()
    shown = {*must, *[id for id in order if id not in must][: BEST - len(must)]}
    return [
        [tokenizer.tokens[id], logits[id].item(), chances[id].item(), before[id].item()]
        for id in order
        if id in shown
    ]


def values(
    text: str,
    pick: str,
    written: int,
    stage: int,
    back: int,
    zoom: int,
    head: int,
    draw: int,
    fixed: str,
) -> dict[str, Any]:
    """Compute everything that the figure shows.

    Args:
        text: the reader's line; what does not fit into ``TYPED`` tokens is cut off.
        pick: how the next letter is chosen, ``"likeliest"`` or drawn at one of ``TEMPERATURES``.
        written: how many letters the model has written behind the line.
        stage: how far the line has come.
        back: which letter is watched: so many before the last one. The next letter is written
            from the last one.
        zoom: how much of a part is shown; 0 if it is not opened.
        head: which head is shown there; ``HEADS`` for the one that lifts the answer most
            above its rival.
        draw: how often the next letter was drawn anew.
        fixed: ids of the letters that had been written then, with commas between them.

    Returns:
        Letters, sizes of vectors, attention weights, guesses; under the names of ``front.js``.

    Example:
        >>> found = values(
        ...     "To be, or not to b", "likeliest", 0, 10, 0, 0, HEADS, 0, ""
        ... )
        >>> found["next"][0], round(found["next"][1], 2)
        ('e', 0.76)
    """
    _, tokenizer = browser_model("shakespeare")
    read = _read(text)
    ids = tokenizer.encode(read)
    typed = len(ids)
    if not typed:
        return {"tokens": []}
    stay = _fixed(fixed)

    def next_of(logits: Tensor, n: int) -> int:
        return stay[n] if n < len(stay) else _choose(logits, pick, n, draw)

    for n in range(written):
        ids.append(next_of(read_line(tuple(ids)).logits[-1, -1], n))
    run = read_line(tuple(ids))
    first = max(0, len(ids) - ROWS)
    at = len(ids) - 1 if stage == WRITE else max(first, len(ids) - 1 - back)
    is_layer = 1 < stage < ANSWER
    layer = stage // 2 - 1 if is_layer else -1
    looks = is_layer and stage % 2 == 0
    rivals = _rivals(run, at) if is_layer else []
    wrote = _head_writes(run, layer, at, rivals) if looks else {}
    if looks and head == HEADS:
        answers, rest = wrote["effects"]
        head = int((answers - rest).argmax())  # only differences of scores count
    write = wrote["writes"][head] if looks else run.writes[stage - 2, at] if is_layer else None
    chosen = next_of(run.logits[-1, -1], written)
    found = 0 if stage < 2 else min(stage, ANSWER) - 2  # the place in the stream
    return {
        "tokens": [tokenizer.tokens[id] for id in ids],
        "ids": ids,
        "typed": typed,
        "read": read,
        "stage": stage,
        "layer": layer,
        "first": first,
        "at": at,
        "width": run.stream.shape[-1],
        "inner": _inner(),
        "embedded": run.stream[0, first:, :FIRST].tolist(),
        "sizes": _sizes(run.stream[:, first:]).T.tolist(),
        "added": _sizes(run.writes[:, first:]).T.tolist(),
        "attention": run.weights.mean(dim=1)[:, first:].tolist(),
        "heads": run.weights[layer, :, at].tolist() if looks else [],
        "zoom": min(zoom, ZOOMS if looks else DEEPS) if is_layer else 0,
        "head": head,
        "opens": _opens(run, at),
        "look": _look(run, layer, head, first, at)
        | {"effects": wrote["effects"].tolist()}
        | {name: wrote[name][:, :FIRST].tolist() for name in ("mixtures", "writes")}
        if looks
        else None,
        "units": _units(run, layer, at, rivals) if is_layer and not looks else None,
        "rivals": [tokenizer.tokens[id] for id in rivals],
        "lift": _lift(write, run, stage - 1, at, rivals) if write is not None else None,
        "held": _held(run, stage - 1, at, rivals).tolist() if is_layer else [],
        "before": _before(run, stage - 1, at, rivals) if is_layer else [],
        "stream": run.stream[found, at, :FIRST].tolist(),
        "write": run.writes[stage - 2, at, :FIRST].tolist() if is_layer else [],
        "best": [_guesses(run, at, n + 1)[0] for n in range(2 * LAYERS + 1)],
        "guesses": _guesses(run, at, stage, pick, [chosen] if stage == WRITE else rivals),
        "isFixed": written < len(stay),
        "next": [
            tokenizer.tokens[chosen],
            *(_chances(run.logits[-1, -1], each)[chosen].item() for each in (pick, "drawn")),
        ],
    }


# Words --------------------------------------------------------------------------------------------


def _sign(token: str) -> str:
    return {" ": "␣", "\n": "⏎"}.get(token, token if len(token) == 1 else "▫")  # ▫ is a byte


def _named(token: str) -> str:
    byte = "a byte" if len(token) > 1 else f"“{token}”"
    return {" ": "the space", "\n": "the line break"}.get(token, byte)


def _percent(share: float) -> str:
    text = number(100 * share, 0)
    return "<1%" if share > 0 and text == "0" else f"{text}%"


def _signed(value: float) -> str:
    text = number(value)
    return text if text[0] == "−" else f"+{text}"


def _counted(n: int) -> str:
    return f"{n} token{'s' * (n > 1)}"


def _ordinal(n: int) -> str:
    teens = 10 < n % 100 < 14
    return f"{n}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _strongest(weights: list[float]) -> list[tuple[int, str]]:
    """The two letters that get most weight, and how much."""
    shares = sorted((-round_half_up(100 * weight, 0), at) for at, weight in enumerate(weights))
    return [(at, f"{-share:.0f}%") for share, at in shares[:2] if share]


def _seen_as(values: dict[str, Any], place: int) -> str:
    """Name a letter for the one that looks at it."""
    tokens, at = values["tokens"], values["at"]
    token = tokens[place]
    if place == at:
        return "itself"
    if tokens[: at + 1].count(token) == 1:
        return _named(token)
    nth = _ordinal(tokens[: place + 1].count(token))
    return f"the {nth} {re.sub('^(the|a) ', '', _named(token))}"


def _looks(values: dict[str, Any], weights: list[float]) -> str:
    return " and ".join(
        f"{_seen_as(values, place)} ({share})" for place, share in _strongest(weights)
    )


def _bracketed(value: float) -> str:
    text = number(value)
    return f"({text})" if text[0] == "−" else text


def _sum(pairs: Sequence[tuple[float, ...]]) -> str:
    """Write products that are added: what is negative, and not the first, in brackets."""
    products = [
        "·".join(_bracketed(one) if n or m else number(one) for m, one in enumerate(each))
        for n, each in enumerate(pairs)
    ]
    return " + ".join(products) + " + …"


def _ledger(values: dict[str, Any]) -> tuple[str, str]:
    """From the answer's lead over its rival before a write to the one after it.

    In words, and as a sum.
    """
    answer, rival = map(_named, values["rivals"])
    effects = (values["look"] or values["units"])["effects"]
    stage, sizes = values["stage"], values["sizes"][values["at"] - values["first"]]
    old, write, held = (
        one - other for one, other in (values["before"], map(sum, effects), values["held"])
    )
    now = held + write
    far, times = number(abs(now)), math.exp(abs(now))
    second, over = f"{rival}, second in the end,", f"is {far} above"
    lead = f"{second} {over} {answer}," if now < 0 else f"{answer} {over} {second}"
    more = number(times, 1 if times < 10 else 0)
    words = f"Only the lead counts: {lead} and so {more} times as likely."
    if sum(effects[0]) > 0:
        words += _fallen(values, sizes[stage - 2], sizes[stage - 1])
    return words, (
        f"{' − '.join(map(_sign, values['rivals']))}: {number(old)} · {number(sizes[stage - 2])} / "
        f"{number(sizes[stage - 1])} + {_bracketed(write)} = {number(now)}; "
        f"exp({far}) = {number(times, 1)}"
    )


def _fallen(values: dict[str, Any], was: float, size: float) -> str:
    """Why the answer became less likely though a write lifts it.

    The letter that gains most is lifted by more, or the final norm, which divides by ``size`` now,
    leaves less of what the answer had ahead of that letter.
    """
    guesses, answer = values["guesses"], values["rivals"][0]
    _, _, now, before = next(each for each in guesses if each[0] == answer)
    other, _, gained, had = max(guesses, key=lambda each: each[2] - each[3])
    if now > before or _percent(now) == _percent(before) or gained < had:
        return ""
    by_norm = math.log(before / had) * (was / size - 1)
    by_write = math.log(now / gained) - math.log(before / had) - by_norm
    why = f"the final norm divides by {number(size)}, not {number(was)}; {_named(other)} gains"
    if by_write < 0:
        why = f"{_named(other)} is lifted by more"
    return f" Yet {_named(answer)} falls ({_percent(before)} to {_percent(now)}): {why}."


def _lifted(values: dict[str, Any]) -> str:
    """Why a write lifts the answer: in words, and in numbers."""
    lift, token = values["lift"], values["rivals"][0]
    size, total = number(lift["size"]), number(lift["sums"][0])
    return (
        f"what it does to {_named(token)}: {len(lift['write'])} products, added up: its numbers "
        "times those of the letter’s vector. Equal signs lift the score, different ones lower it. "
        f"The final norm divides by {size}.\n"
        f"{_sum([(one[3],) for one in lift['tops'][0][:3]])} = {total}; {total} / {size} = "
        f"{_signed(lift['sums'][0] / lift['size'])}"
    )


def _zoomed(values: dict[str, Any]) -> str:
    """What one head does, a step at a time; behind a line break the same in numbers."""
    tokens, at, head, zoom = values["tokens"], values["at"], values["head"], values["zoom"]
    look, weights, who = values["look"], values["heads"][head], _named(tokens[at])
    best = _strongest(weights)
    most = best[0][0]
    other = f"{who} itself" if most == at else _seen_as(values, most)
    width, root = look["width"], number(look["width"] ** 0.5)
    raw, score = number(look["raw"][most]), number(look["scores"][most])
    later = len(tokens) - 1 - at
    title = f"Layer {values['layer'] + 1}, head {head + 1}, "
    if zoom == 1:
        pairs = list(zip(look["x"], look["tables"][0][0], strict=True))[:2]
        return (
            f"{title}query, key and value: three learned tables turn the lane of {who}, after a "
            f"norm, into three vectors of {width} numbers: what it asks for, what it offers, "
            "what it passes on. So with every letter.\nfirst number of the query: "
            f"{_sum(pairs)} = {number(look['made'][0][0])}"
        )
    if zoom == 2:
        key = look["keys"][most - values["first"]] if most >= values["first"] else None
        parts = f"{_sum(list(zip(look['query'], key, strict=True))[:2])} = " if key else ""
        return (
            f"{title}scores: {who} asks with a query, and each letter offers a key: {width} "
            "numbers each, turned by its place in the line. Multiplied pair by pair and added up, "
            f"they say how well the two fit.\nscore of {other}: {parts}{raw}"
        )
    if zoom == 3:
        unscaled = torch.tensor(look["raw"][: at + 1]).softmax(dim=0)[most].item()
        return (
            f"{title}scale: a sum of {width} products can be large, so every score is divided by "
            f"the root of {width}. Unscaled, softmax would give {other} {_percent(unscaled)}; "
            f"scaled, {best[0][1]}.\n"
            f"score of {other}: {raw} / √{width} = {raw} / {root} = {score}"
        )
    if zoom == 4:
        if later:
            rest = "are" if later > 1 else "is"
            hidden = f"The {_counted(later)} after it {rest}"
            after = _named(tokens[at + 1])
            sums = f"score of {after}: {number(look['scores'][at + 1])} → −∞"
        else:
            hidden = "After the last letter that is only the place of the next one; it is"
            sums = f"score of what comes after {who}: −∞"
        return (
            f"{title}mask: a letter may look back, never ahead, or in training it would copy what "
            f"it has to guess. {hidden} crossed out.\n{sums}"
        )
    if zoom == 5:
        second = f" + e^{number(look['scores'][best[1][0]])}" if len(best) > 1 else ""
        return (
            f"{title}softmax: e to the power of each score, divided by the sum of all. Now they "
            f"are shares of a whole: {who} looks at {_looks(values, weights)}.\n"
            f"share of {other}: e^{score} / (e^{score}{second} + …) = {best[0][1]}"
        )
    if zoom == 8:
        return title + _lifted(values)
    if zoom == 7:
        parted, ledger = _ledger(values)
        return (
            f"{title}write: a fourth table makes each mixture a write onto the lane. It lifts "
            f"letters whose vectors point its way. {parted}\n{ledger}"
        )
    pairs = [
        (weights[s], look["values"][s - values["first"]][0])
        for s, _ in best
        if s >= values["first"]
    ]
    result = number(look["mixtures"][head][0])
    return (
        f"{title}mixture: each letter offers a value, too. Each value times its share, added up, "
        "is what this head copies.\nits first number: "
        f"{f'{_sum(pairs)} = ' if pairs else ''}{result}"
    )


def _deepened(values: dict[str, Any]) -> str:
    """What the units of a feed-forward do, in three steps."""
    units, who = values["units"], _named(values["tokens"][values["at"]])
    n, g, u, answer = units["busy"][0]
    title = f"Layer {values['layer'] + 1}, feed-forward, "
    if values["zoom"] == 3:
        return title + _lifted(values)
    if values["zoom"] == 1:
        return (
            f"{title}units: each compares the lane of {who} with a learned pattern. Its gate "
            f"(SiLU) is how much it answers: nearly 0 for {units['shut']} units here. Gate "
            "times a second number: what the unit says.\n"
            f"unit {n}: SiLU({number(g)}) · {_bracketed(u)} = {number(answer)}"
        )
    parted, ledger = _ledger(values)
    return (
        f"{title}write: each unit adds its own vector, times what it says, and so changes "
        f"the scores. {parted}\n{ledger}"
    )


def say(state: dict[str, Any], values: dict[str, Any]) -> str:
    """Say in words what happens at this stage.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        The words of the live figure.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["front"], {"stage": 1})
        >>> say(start, values(**start))[:52]
        'Embedding: each number picks its row of a learned ta'
    """
    tokens = values["tokens"]
    if not tokens:
        return "There is no letter yet: type a line."
    heat = TEMPERATURES.get(state["pick"])
    stage, best, who = values["stage"], values["guesses"], _named(tokens[values["at"]])
    upper = who[0].upper() + who[1:]
    if stage == 0:
        each = "one for each letter"
        if any(len(token) > 1 for token in tokens):
            each += ", or several, its bytes, for one that the model never saw"
        return (
            f"Tokens: the line has {_counted(len(tokens))}, {each}. A model can only calculate, "
            f"so each token becomes its number in a list: {who} is "
            f"{values['ids'][values['at']]}."
            + (f" The next letter will be drawn, at temperature {heat:g}." if heat else "")
        )
    if stage == 1:
        size = number(values["sizes"][values["at"] - values["first"]][0])
        return (
            f"Embedding: each number picks its row of a learned table. {upper} becomes a vector "
            f"of {values['width']} numbers, typically {size} away from zero: room for all that "
            "the layers will find out. Its place in the line is not in it; attention sees to that."
        )
    if stage == ANSWER:
        lane = f"The lane of {who} is" if state["back"] else "The last lane is"
        least = (
            " In training every lane has to guess the letter after it; "
            "here only the last lane is used."
        )
        return (
            f"Answer: {lane} compared with the vector of every token. Each gets a score, and "
            f"softmax turns scores into probabilities: {_named(best[0][0])} "
            f"{_percent(best[0][2])}, {_named(best[1][0])} {_percent(best[1][2])}."
            f"{least if state['back'] else ''}"
        )
    if stage == WRITE:
        letter, chance, plain = values["next"]
        drawn = f"{_percent(chance)}, as every score is divided by {heat} first; at temperature 1: "
        drawn = f"its probability: {_percent(chance)}" if heat == 1 else drawn + _percent(plain)
        why = f"has the highest probability ({_percent(chance)})"
        draw = f"draw {state['draw']}: " if state["draw"] else ""
        if heat:
            why = f"was drawn ({draw}{drawn}); "
            why += "another press draws anew, from the same probabilities"
        if values["isFixed"]:
            why = "is written already"
        return (
            f"Next letter: {_named(letter)} {why}. "
            f"It joins the line, and everything begins again, with {len(tokens) + 1} tokens: "
            "this is how a model writes."
        )
    now = f"If it answered now: {_named(best[0][0])} ({_percent(best[0][2])})."
    layer = f"Layer {values['layer'] + 1}"
    if values["zoom"]:
        return _deepened(values) if stage % 2 else _zoomed(values)
    if stage % 2:
        return (
            f"{layer}, feed-forward: every letter by itself. {values['inner']} units look for "
            f"patterns in what the lane of {who} holds now, and add what they find. {now}"
        )
    answer, why = _named(values["rivals"][0]), ""
    if stage == values["opens"]:
        why = f" No other attention makes {answer} so much likelier: the tour looks inside."
    looks = _looks(values, values["attention"][values["layer"]][values["at"] - values["first"]])
    return (
        f"{layer}, attention: the only way from lane to lane. {upper} looks mostly at {looks}, on "
        f"average over {len(values['heads'])} heads, and adds what they copy there. {now}{why}"
    )


# The picture --------------------------------------------------------------------------------------

SIZES = (684, 316)  # px: widths of the still picture, on a wide page and on a phone
LEAST = 0.03  # weights that are drawn
SECRET = '<g class="front-secret">'  # where the figure runs, the reader guesses first
MONO = "ui-monospace, monospace"


class _Plan(NamedTuple):
    """Where everything stands in a picture of this width, as in ``front.js``."""

    width: float
    narrow: bool
    pitch: float
    top: float
    left: float
    cell: float
    panel: float
    end: float
    x: list[float]  # where each stage has done its work
    gap: int  # rows above a short line

    @property
    def bottom(self) -> float:
        return self.top + (ROWS + 1) * self.pitch

    def y(self, row: int) -> float:
        return self.top + (self.gap + row + 0.5) * self.pitch


def _plan(width: float, rows: int) -> _Plan:
    narrow = width < 480
    pitch, top, left, cell, panel = (16, 48, 22, 2.5, 94) if narrow else (19, 52, 32, 3.5, 160)
    end = width - panel - (12 if narrow else 26)
    start = left + 6 + (8 if narrow else FIRST) * cell
    step = (end - 6 - start) / (2 * LAYERS)
    x = [left, start, *(start + (n + 1) * step for n in range(2 * LAYERS)), end]
    return _Plan(width, narrow, pitch, top, left, cell, panel, end, x, ROWS - rows)


def _thick(size: float) -> float:
    return min(14.0, 1.2 + 0.94 * size)


def still(state: dict[str, Any], values: dict[str, Any], width: float) -> tuple[str, float, float]:
    """Draw the line when its answer stands, as the live figure does at its start.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.
        width: of the picture, in px.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["front"], {})
        >>> still(start, values(**start), 316)[1:]
        (316, 378)
    """
    plan = _plan(width, len(values.get("sizes", ())))
    height = plan.bottom + 26
    if not values["tokens"]:
        return _text(10, 30, say(state, values)), width, height
    parts = (_headings, _letters, _lanes, _writes, _hints, _answer)
    return "\n".join(mark for part in parts for mark in part(plan, values)), width, height


def drawing(state: dict[str, Any], values: dict[str, Any]) -> tuple[str, float, float]:
    """Draw the static picture for a wide page.

    Args:
        state: the settings of the figure.
        values: what :func:`values` gave for them.

    Returns:
        SVG elements, their width and their height.

    Example:
        >>> from transformer_book.live import FIGURES, complete
        >>> start = complete(FIGURES["front"], {})
        >>> drawing(start, values(**start))[1:]
        (684, 439)
    """
    return still(state, values, SIZES[0])


def _text(x: float, y: float, words: str, look: str = f'fill="{MUTED}" font-size="13"') -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}" {look}>{escape(words, quote=False)}</text>'


def _letter(x: float, y: float, token: str, fill: str = INK) -> str:
    look = f'font-size="14" font-family="{MONO}" text-anchor="middle" fill="{fill}"'
    return _text(x, y - 3 if token == " " else y, _sign(token), look)


def _path(d: str, color: str, width: float, opacity: float = 1.0) -> str:
    return (
        f'<path d="{d}" fill="none" stroke="{color}" stroke-width="{width:.2f}" '
        f'opacity="{opacity:.2f}" stroke-linecap="round"/>'
    )


def _samples(x: float, y: float) -> dict[str, str]:
    """The signs of attention, of feed-forward, and of a lane."""
    look = f"C{x + 2} {y - 5} {x - 2} {y + 5} {x + 8} {y + 5}"
    alone = f"C{x - 5} {y - 9} {x + 5} {y - 9} {x + 6} {y + 6}"
    lane = f"M{x - 8} {y}L{x + 8} {y - 4}V{y + 4}Z"
    return {
        "query": _path(f"M{x - 8} {y - 5}{look}", ROLES["query"][0], 2.2),
        "value": _path(f"M{x - 6} {y + 6}{alone}", ROLES["value"][0], 2.2),
        "plain": f'<path d="{lane}" fill="{MUTED}"/>',
    }


def _headings(plan: _Plan, values: dict[str, Any]) -> Iterator[str]:
    """The layers, what their two parts are, and what the signs mean."""
    for stage in range(2, ANSWER):
        middle = (plan.x[stage - 1] + plan.x[stage]) / 2 + 4
        yield _samples(middle, 34)["value" if stage % 2 else "query"]
        if stage % 2 == 0:
            look = f'fill="{MUTED}" font-size="13" text-anchor="middle"'
            name = "" if plan.narrow else "layer "
            yield _text(plan.x[stage] + 4, 13, f"{name}{stage // 2}", look)
            yield _path(f"M{plan.x[stage - 1] + 7} 19H{plan.x[stage + 1] + 1}", GRID, 1)
    if plan.narrow:
        yield _text(0, 13, "layer")
    else:
        middle = (plan.left + 6 + plan.x[1]) / 2
        yield _text(middle, 38, "vector", f'fill="{MUTED}" font-size="13" text-anchor="middle"')
    names = ("attention: looks back", "feed-forward: alone", "thicker: larger vector")
    short = ("attention", "feed-forward", "size")
    side = plan.width - plan.panel
    for n, role in enumerate(("query", "value", "plain")):
        yield _samples(side + 8, plan.top + 8 + 20 * n)[role]
        yield _text(side + 22, plan.top + 12 + 20 * n, (short if plan.narrow else names)[n])
    if values["first"]:
        yield _text(0, plan.top - 4, f"+ {values['first']}")


def _letters(plan: _Plan, values: dict[str, Any]) -> Iterator[str]:
    """The letters, the one that is watched in a frame, and the numbers that they become."""
    box = plan.left - 3
    for row, numbers in enumerate(values["embedded"]):
        y, at = plan.y(row), values["first"] + row
        if at == values["at"]:
            soft, color = ROLES["weight"][1], ROLES["weight"][0]
            yield (
                f'<rect x="0" y="{y - plan.pitch / 2}" width="{box}" height="{plan.pitch}" '
                f'rx="3" fill="{soft}" stroke="{color}"/>'
            )
        fill = INK if at < values["typed"] else ROLES["weight"][0]
        yield _letter(box / 2, y + 5, values["tokens"][at], fill)
        yield _path(f"M{plan.left + 4} {y}H{plan.end}", GRID, 1)
        for n, value in enumerate(numbers[: 8 if plan.narrow else FIRST]):
            color = ROLES["key" if value < 0 else "query"][0]
            yield (
                f'<rect x="{plan.left + 6 + n * plan.cell}" y="{y - 5}" width="{plan.cell - 0.5}" '
                f'height="10" fill="{color}" opacity="{min(1, max(0.12, abs(value) * 5)):.2f}"/>'
            )


def _lanes(plan: _Plan, values: dict[str, Any]) -> Iterator[str]:
    """A lane for each letter: as thick as its vector is large, after each stage."""
    slope = min(10, (plan.x[3] - plan.x[2]) / 2)
    for row, sizes in enumerate(values["sizes"]):
        half = [_thick(size) / 2 for size in sizes]
        knots = [(plan.x[1], half[0])]
        for n in range(1, len(half)):
            knots += [(plan.x[n + 1] - slope, half[n - 1]), (plan.x[n + 1], half[n])]
        knots.append((plan.end, half[-1]))
        y = plan.y(row)
        edge = [f"{x:.1f} {y - h:.2f}" for x, h in knots]
        edge += [f"{x:.1f} {y + h:.2f}" for x, h in reversed(knots)]
        own = row == values["at"] - values["first"]
        yield f'<path d="M{"L".join(edge)}Z" fill="{INK}" opacity="{0.8 if own else 0.22}"/>'


def _writes(plan: _Plan, values: dict[str, Any]) -> Iterator[str]:
    """What each stage adds to the lanes, and for the watched letter where it comes from."""
    first, own = values["first"], values["at"] - values["first"]
    y = plan.y(own)
    for stage in range(2, ANSWER):
        before, to = plan.x[stage - 1], plan.x[stage]
        if stage % 2:
            start, over = to - 0.75 * (to - before), y - 1.1 * plan.pitch
            arch = f"M{start:.1f} {y}C{start:.1f} {over} {to:.1f} {over} {to:.1f} {y}"
            yield _path(arch, ROLES["value"][0], 2.2, 0.31)
        else:
            weights = values["attention"][stage // 2 - 1][own]
            sources = [(plan.top - 6, sum(weights[:first]))]
            sources += [(plan.y(row), weight) for row, weight in enumerate(weights[first:])]
            start = to - 0.8 * (to - before)
            bend = 0.55 * (to - start)
            for high, weight in sources:
                if weight >= LEAST:
                    curve = f"C{start + bend:.1f} {high} {to - bend:.1f} {y} {to:.1f} {y}"
                    opacity = (0.35 + 0.6 * weight) * 0.7
                    color = ROLES["query"][0]
                    yield _path(f"M{start:.1f} {high}{curve}", color, 1 + 8 * weight, opacity)
        color = ROLES["value" if stage % 2 else "query"][0]
        for row, added in enumerate(values["added"]):
            radius = 1.2 + _thick(added[stage - 2]) / 2
            opacity = 1 if row == own else 0.45
            place = f'cx="{to:.2f}" cy="{plan.y(row)}" r="{radius:.2f}"'
            yield f'<circle {place} fill="{color}" opacity="{opacity}"/>'


def _hints(plan: _Plan, values: dict[str, Any]) -> Iterator[str]:
    """The best guess after each stage."""
    yield _text(0, plan.bottom + 17, "guess")
    yield SECRET
    for n, (token, _, chance, _) in enumerate(values["best"]):
        hint = _letter(plan.x[n + 1], plan.bottom + 17, token, ROLES["weight"][0])
        yield f'<g opacity="{0.4 + 0.6 * chance:.2f}">{hint}</g>'
    yield "</g>"


def _answer(plan: _Plan, values: dict[str, Any]) -> Iterator[str]:
    """The way from the watched lane to the list of guesses, and the list."""
    color = ROLES["weight"][0]
    step = 21 if plan.narrow else 24
    height, own = 48 + BEST * step, values["at"] - values["first"]
    y, side = plan.y(own), plan.width - plan.panel
    top = min(plan.bottom - height, max(plan.top + 62, y - height / 2))
    bend = f"C{plan.end + 14} {y} {side - 18} {top + 48} {side - 4} {top + 48}"
    yield _path(f"M{plan.end} {y}{bend}", color, 2)
    yield _text(side, top + 12, "the answer:")
    yield _text(side, top + 28, "the next letter")
    bar = plan.panel - (52 if plan.narrow else 68)
    yield SECRET
    for n, (token, _, chance, _) in enumerate(values["guesses"]):
        middle = top + 48 + n * step
        yield _letter(side + 8, middle + 5, token)
        yield (
            f'<rect x="{side + (18 if plan.narrow else 22)}" y="{middle - 7}" height="14" rx="2" '
            f'width="{bar * chance:.2f}" fill="{color}"/>'
        )
        look = f'fill="{INK}" font-size="14" text-anchor="end"'
        yield _text(plan.width, middle + 5, _percent(chance), look)
    yield "</g>"
