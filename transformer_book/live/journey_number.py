"""A real number on its way through the number translator: what each box did, in words and drawn.

The translator has read *forty-two* and written *zwei*. In the encoder the letter *w* is followed,
which the decoder looks at first; in the decoder the last letter, which writes the next one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.live.journey_sums import (
    Sums,
    add,
    attended,
    bent,
    looked_up,
    normed,
)
from transformer_book.live.trained import browser_model
from transformer_book.live.wording import named, number, percent
from transformer_lib import Block, MultiHeadAttention, Seq2SeqLM, attention_maps
from transformer_lib.layers.norms import LayerNorm

SOURCE, WRITTEN = "forty-two", "zwei"
FOLLOWED = SOURCE.index("w")
FIRST, BEST = 8, 4  # numbers of a vector, and letters that may come next, that are drawn
Told = dict[str, list[str]]  # of each box: a sentence, or one for each layer
# Of each box what is drawn, once or for each layer: vectors in tenths, the heads' weights in
# percent, the hidden units that are open as bits, the likeliest letters with their chances in
# percent.
Drawn = dict[str, list[list[Any]]]


class _Walk:
    """The sentences, as the vectors come along."""

    def __init__(self, tower: str, letters: list[str], at: int) -> None:
        self.tower, self.letters, self.at = tower, letters, at
        self.who = named(letters[at])
        self.told: Told = {}
        self.drawn: Drawn = {}
        self.sums: dict[str, list[Sums]] = {}
        self.x = torch.zeros(0)  # the stream, (T, D)
        self.write = torch.zeros(0)

    def say(self, name: str, words: str) -> None:
        self.told.setdefault(f"{self.tower}.{name}", []).append(words)

    def draw(self, name: str, rows: list[Any]) -> None:
        self.drawn.setdefault(f"{self.tower}.{name}", []).append(rows)

    def count(self, name: str, sums: Sums) -> None:
        self.sums.setdefault(f"{self.tower}.{name}", []).append(sums)

    def vectors(self, name: str, *rows: Tensor) -> None:
        """Draw the first numbers of some vectors of the letter that is followed."""
        self.draw(name, [_scaled(row[self.at, :FIRST], 10) for row in rows])

    def size(self, x: Tensor) -> str:
        return number(x[self.at].norm().item(), 1)

    def look(self, name: str, weights: Tensor, keys: list[str], asked: str) -> None:
        """Where each head looks most: weights ``(H, T, S)``."""
        seen = []
        for row in weights[:, self.at].tolist():
            key = max(range(len(row)), key=row.__getitem__)
            seen.append(f"{named(keys[key])} {number(row[key])}")
        self.draw(name, [_scaled(row, 100) for row in weights[:, self.at]])
        self.say(name, f"{self.who} asks {asked}; its heads look most at {', '.join(seen)}.")

    def score(self, name: str, found: dict[str, Tensor], keys: list[str], heads: int) -> None:
        """What one head computes from its part of the queries and keys."""
        q = found[f"{name}.query"][self.at].unflatten(-1, (heads, -1))
        k = found[f"{name}.key"].unflatten(-1, (heads, -1)).transpose(0, 1)
        self.count(name, attended(q, k, self.letters[self.at], keys))

    def add(self, name: str, update: Tensor) -> None:
        total = self.x + update
        rows = (row[self.at] for row in (self.x, update, total))
        self.vectors(f"{name}_add", self.x, update, total)
        self.count(f"{name}_add", add("add to the stream", *rows))
        words = f"A write of length {self.size(update)} joins the stream of {self.who}, "
        self.say(f"{name}_add", f"{words}{self.size(self.x)} long: {self.size(total)} in all.")
        self.x = total

    def norm(self, name: str, after: Tensor, layer: nn.Module | None) -> None:
        assert isinstance(layer, LayerNorm)
        assert layer.bias is not None
        self.vectors(f"{name}_norm", self.x, after)
        self.count(
            f"{name}_norm", normed(self.x[self.at], after[self.at], layer.weight, layer.bias)
        )
        words = f"{self.who} gets mean 0 and spread 1, then gains: its length goes from "
        self.say(f"{name}_norm", f"{words}{self.size(self.x)} to {self.size(after)}.")
        self.x = after


def _scaled(row: Tensor, scale: int) -> list[int]:
    """Whole numbers, which take little room: tenths, or percent."""
    return (row * scale).round().int().tolist()


def _bits(is_open: Tensor) -> str:
    """Four units in each hexadecimal digit, the first one in its highest bit."""
    fours = is_open.int().reshape(-1, 4) @ torch.tensor([8, 4, 2, 1], dtype=torch.int32)
    return "".join(f"{four:x}" for four in fours.tolist())


def _kept(parts: dict[str, nn.Module], run: Callable[[], Any]) -> dict[str, Tensor]:
    """What these modules give while something runs, without the batch."""
    found: dict[str, Tensor] = {}
    hooks = [
        part.register_forward_hook(lambda _m, _i, out, name=name: found.update({name: out[0]}))
        for name, part in parts.items()
    ]
    run()
    for hook in hooks:
        hook.remove()
    return found


def _embed(walk: _Walk, model: Seq2SeqLM, ids: Tensor, x: Tensor, text: str) -> None:
    width = model.config.d_model
    rows = model.body.encoder.embedding.tokens.weight[ids[0]] * width**0.5
    row = int(ids[0, walk.at])
    walk.say("tokens", f"{text} {walk.who} gets row {row}, times √{width}: length "
             f"{walk.size(rows)}.")  # fmt: skip
    walk.vectors("tokens", rows)
    here = rows[walk.at]
    walk.count("tokens", looked_up(row, here / width**0.5, here))
    walk.count("positions", add("add positions", here, (x - rows)[walk.at], x[walk.at]))
    walk.vectors("positions", rows, x - rows, x)
    place = walk.size(x - rows)
    walk.say("positions", f"{walk.who} stands at place {walk.at}: sines and cosines of length "
             f"{place} join it, {walk.size(x)} in all.")  # fmt: skip
    walk.x = x


def _tower(walk: _Walk, stack: nn.Module, run: Callable[[], Any], maps: dict[str, Tensor]) -> None:
    """All blocks of a stack; ``maps`` are its attention weights, ``(H, T, S)`` each."""
    for n, block in enumerate(stack.blocks):  # type: ignore[arg-type]
        assert isinstance(block, Block)
        up = block.feed_forward.up
        assert isinstance(up, nn.Module)
        found = _kept({**dict(block.named_modules()), "hidden": up}, run)
        path = f"stack.blocks.{n}."
        asked = "all letters" if walk.tower == "encoder" else "what is written"
        walk.look("attention", maps[f"{path}attention"], walk.letters, asked)
        assert isinstance(block.attention, MultiHeadAttention)
        heads = block.attention.n_heads
        walk.score("attention", found, walk.letters, heads)
        walk.add("attention", found["attention"])
        walk.norm("attention", found["attention_norm"], block.attention_norm)
        if "cross_attention" in found:
            cross = maps[f"{path}cross_attention"]
            walk.look("cross_attention", cross, list(SOURCE), "the source")
            walk.score("cross_attention", found, list(SOURCE), heads)
            walk.add("cross_attention", found["cross_attention"])
            walk.norm("cross_attention", found["cross_attention_norm"], block.cross_attention_norm)
        units = found["hidden"][walk.at]
        walk.draw("feed_forward", [_bits(units > 0)])
        walk.say("feed_forward", f"{int((units > 0).sum())} of {len(units)} hidden units are open "
                 f"for {walk.who}, and each writes.")  # fmt: skip
        walk.count("feed_forward", bent(walk.x[walk.at], units, found["feed_forward"][walk.at]))
        walk.add("feed_forward", found["feed_forward"])
        walk.norm("feed_forward", found["feed_forward_norm"], block.feed_forward_norm)


def told() -> Told:
    """Say what each box does to *forty-two*, from the library's run of the translator.

    Returns:
        For each box a list: one sentence, or one for each layer.

    Example:
        >>> told()["decoder.output"][0][44:]
        'The next letter is “u”: it joins the decoder’s input.'
    """
    return _walked()[0]


def drawn() -> Drawn:
    """Give what is drawn of each box, from the same run.

    Returns:
        For each box a list: what is drawn of it, or that for each layer.

    Example:
        >>> drawn()["decoder.cross_attention"][2][
        ...     1
        ... ]  # head 2 looks at the hyphen alone
        [0, 0, 0, 0, 0, 100, 0, 0, 0]
    """
    return _walked()[1]


def sums() -> dict[str, list[Sums]]:
    """Give the sums inside each box, from the same run.

    Returns:
        For each box a list: the sums of its steps, or those for each layer.

    Example:
        >>> sums()["decoder.attention_add"][0]
        {'add to the stream': 'feature 0: −1.66 + 0.58 = −1.08'}
    """
    return _walked()[2]


@cache
@torch.no_grad()
def _walked() -> tuple[Told, Drawn, dict[str, list[Sums]]]:
    """Walk through the encoder, then through the decoder."""
    model, tokenizer = browser_model("numbers")
    assert isinstance(model, Seq2SeqLM)
    assert tokenizer.bos_id is not None
    source = torch.tensor([tokenizer.encode(SOURCE)])
    target = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(WRITTEN)]])
    encoder, decoder = model.body.encoder, model.body.decoder
    memory = encoder(source)

    walk = _Walk("encoder", list(SOURCE), FOLLOWED)
    start = encoder.embedding(source, torch.arange(len(SOURCE))[None])[0]
    _embed(walk, model, source, start, f"{SOURCE}: {len(SOURCE)} letters, {len(SOURCE)} ids.")
    maps = {path: one[0] for path, one in attention_maps(encoder, source).items()}
    _tower(walk, encoder.stack, lambda: encoder(source), maps)
    torch.testing.assert_close(walk.x, memory[0])
    encoded = walk

    walk = _Walk("decoder", ["<bos>", *WRITTEN], len(WRITTEN))
    start = decoder.embedding(target, torch.arange(target.shape[1])[None])[0]
    begin = f"From here {named(WRITTEN[-1])} is followed, the last letter: it finds the next one."
    _embed(walk, model, target, start, begin)
    maps = {path: one[0] for path, one in attention_maps(decoder, target, memory).items()}
    _tower(walk, decoder.stack, lambda: decoder(target, memory), maps)
    scores = model(source, target)[0, -1]
    chances = scores.softmax(dim=-1)
    torch.testing.assert_close(model.output(walk.x)[-1].softmax(dim=-1), chances)
    best = chances.topk(BEST)
    tokens = [tokenizer.tokens[id] for id in best.indices.tolist()]
    walk.draw(
        "output", [list(pair) for pair in zip(tokens, _scaled(best.values, 100), strict=True)]
    )
    first, second = (named(token) for token in tokens[:2])
    high, low = (number(score) for score in scores[best.indices[:2]].tolist())
    walk.count("output", {"logits": f"{first} {high}, {second} {low}, {len(scores) - 2} others"})
    share, less = best.values.tolist()[:2]
    assert less < 0.005
    walk.say("output", f"{len(chances)} scores: {first} gets {percent(share)}, {second} less than "
             f"1%. The next letter is {first}: it joins the decoder’s input.")  # fmt: skip
    return (
        {**encoded.told, **walk.told},
        {**encoded.drawn, **walk.drawn},
        {**encoded.sums, **walk.sums},
    )
