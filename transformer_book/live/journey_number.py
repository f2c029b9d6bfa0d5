"""A real number on its way through the number translator: what each box did to it, in a sentence.

The translator has read *forty-two* and written *zwei*. In the encoder the letter *w* is followed,
which the decoder looks at first; in the decoder the last letter, which writes the next one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.live.trained import browser_model
from transformer_book.live.wording import named, number, percent
from transformer_lib import Block, Seq2SeqLM, attention_maps

SOURCE, WRITTEN = "forty-two", "zwei"
FOLLOWED = SOURCE.index("w")
Told = dict[str, list[str]]  # of each box: a sentence, or one for each layer


class _Walk:
    """The sentences, as the vectors come along."""

    def __init__(self, tower: str, letters: list[str], at: int) -> None:
        self.tower, self.letters, self.at = tower, letters, at
        self.who = named(letters[at])
        self.told: Told = {}
        self.x = torch.zeros(0)  # the stream, (T, D)
        self.write = torch.zeros(0)

    def say(self, name: str, words: str) -> None:
        self.told.setdefault(f"{self.tower}.{name}", []).append(words)

    def size(self, x: Tensor) -> str:
        return number(x[self.at].norm().item(), 1)

    def look(self, name: str, weights: Tensor, keys: list[str], asked: str) -> None:
        """Where each head looks most: weights ``(H, T, S)``."""
        seen = []
        for row in weights[:, self.at].tolist():
            key = max(range(len(row)), key=row.__getitem__)
            seen.append(f"{named(keys[key])} {number(row[key])}")
        self.say(name, f"{self.who} asks {asked}; its heads look most at {', '.join(seen)}.")

    def add(self, name: str, update: Tensor) -> None:
        total = self.x + update
        words = f"A write of length {self.size(update)} joins the stream of {self.who}, "
        self.say(f"{name}_add", f"{words}{self.size(self.x)} long: {self.size(total)} in all.")
        self.x = total

    def norm(self, name: str, after: Tensor) -> None:
        words = f"{self.who} gets mean 0 and spread 1, then gains: its length goes from "
        self.say(f"{name}_norm", f"{words}{self.size(self.x)} to {self.size(after)}.")
        self.x = after


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
    added = walk.size(x - rows)
    walk.say("positions", f"{walk.who} stands at place {walk.at}: sines and cosines of length "
             f"{added} join it, {walk.size(x)} in all.")  # fmt: skip
    walk.x = x


def _tower(walk: _Walk, stack: nn.Module, run: Callable[[], Any], maps: dict[str, Tensor]) -> None:
    """All blocks of a stack; ``maps`` are its attention weights, ``(H, T, S)`` each."""
    for n, block in enumerate(stack.blocks):  # type: ignore[arg-type]
        assert isinstance(block, Block)
        up = block.feed_forward.up
        assert isinstance(up, nn.Module)
        found = _kept({**dict(block.named_children()), "hidden": up}, run)
        path = f"stack.blocks.{n}."
        asked = "all letters" if walk.tower == "encoder" else "what is written"
        walk.look("attention", maps[f"{path}attention"], walk.letters, asked)
        walk.add("attention", found["attention"])
        walk.norm("attention", found["attention_norm"])
        if "cross_attention" in found:
            cross = maps[f"{path}cross_attention"]
            walk.look("cross_attention", cross, list(SOURCE), "the source")
            walk.add("cross_attention", found["cross_attention"])
            walk.norm("cross_attention", found["cross_attention_norm"])
        units = found["hidden"][walk.at]
        walk.say("feed_forward", f"{int((units > 0).sum())} of {len(units)} hidden units are open "
                 f"for {walk.who}, and each writes.")  # fmt: skip
        walk.add("feed_forward", found["feed_forward"])
        walk.norm("feed_forward", found["feed_forward_norm"])


@cache
@torch.no_grad()
def told() -> Told:
    """Say what each box does to *forty-two*, from the library's run of the translator.

    Returns:
        For each box a list: one sentence, or one for each layer.

    Example:
        >>> told()["decoder.output"]
        ['262 scores: “u” gets 92%, “s” less than 1%. The next letter is “u”.']
    """
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
    found = walk.told

    walk = _Walk("decoder", ["<bos>", *WRITTEN], len(WRITTEN))
    start = decoder.embedding(target, torch.arange(target.shape[1])[None])[0]
    begin = f"The start and {WRITTEN}: {target.shape[1]} ids."
    _embed(walk, model, target, start, begin)
    maps = {path: one[0] for path, one in attention_maps(decoder, target, memory).items()}
    _tower(walk, decoder.stack, lambda: decoder(target, memory), maps)
    chances = model(source, target)[0, -1].softmax(dim=-1)
    torch.testing.assert_close(model.output(walk.x)[-1].softmax(dim=-1), chances)
    best = chances.topk(2)
    first, second = (named(tokenizer.tokens[id]) for id in best.indices.tolist())
    share, less = best.values.tolist()
    assert less < 0.005
    walk.say("output", f"{len(chances)} scores: {first} gets {percent(share)}, {second} less than "
             f"1%. The next letter is {first}.")  # fmt: skip
    return {**found, **walk.told}
