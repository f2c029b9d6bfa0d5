"""The models of the reader's file: encoder, decoder block, Transformer, and what it writes.

The references are the cells of the pages themselves, as `transformer_book.file` has them. The
layers that they are made of are in `your_file`.
"""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from transformer_book.exercises.grading.checking import Answer, Exercise, UnfitError, random_inputs
from transformer_book.file import (
    Block,
    DecoderBlock,
    Encoder,
    Transformer,
    causal_mask,
    padding_mask,
    sinusoids,
    translate,
)

EQUAL = 1e-10  # in float64: another order of the same steps is far nearer, a mistake far off
_NO_GRADIENT = "Leave out detach(), .data and torch.no_grad()."
_CPU = "cpu"  # whatever device a reader has made the default


# --- what all of them share ---------------------------------------------------------------------


def _as_model(found: object) -> nn.Module:
    """What an answer made, if it is a model."""
    if not isinstance(found, nn.Module):
        raise UnfitError("It must be a class that inherits from nn.Module.")
    if "_parameters" not in vars(found):  # an __init__ that is still empty
        raise NotImplementedError
    return found


def _fill(model: nn.Module, like: Callable[[Mapping[str, Tensor]], nn.Module]) -> None:
    """Give a model weights by the names of the book's, of the same sizes."""
    own = model.state_dict()
    try:
        wanted = like(own).state_dict()
    except KeyError as error:
        raise UnfitError(f"There is no {error} in its state_dict(), but {[*own]}.") from None
    if missing := [name for name in wanted if name not in own]:
        raise UnfitError(f"There is no {missing[0]!r} in its state_dict(), but {[*own]}.")
    if extra := [name for name in own if name not in wanted]:
        raise UnfitError(f"It has parameters or buffers that the book's has not: {extra}.")
    for name, value in wanted.items():
        if own[name].shape != value.shape:
            shapes = f"{tuple(own[name].shape)}; expected {tuple(value.shape)}"
            raise UnfitError(f"{name} has the shape {shapes}.")
    numbers = random_inputs(*(tuple(value.shape) for value in wanted.values()))
    small = {name: 0.4 * x for name, x in zip(wanted, numbers, strict=True)}
    model.to(_CPU, torch.float64).load_state_dict(small)


def _n_blocks(own: Mapping[str, Tensor], prefix: str) -> int:
    rest = (name.removeprefix(prefix) for name in own if name.startswith(prefix))
    return len({name.split(".")[0] for name in rest})


def _output(model: Callable[..., object], *given: Tensor | None, shape: str) -> Tensor:
    output = model(*given)
    if not isinstance(output, Tensor):
        what = "nothing" if output is None or output is ... else f"a {type(output).__name__}"
        raise UnfitError(f"Its forward returns {what}; expected one tensor, {shape}.")
    return output


def _gradients(output: Tensor, model: nn.Module, *inputs: Tensor) -> Tensor:
    """Those of the inputs and of all parameters, in the order of their names."""
    reached = [*inputs, *(value for _, value in sorted(model.named_parameters()))]
    upstream = torch.arange(output.numel(), dtype=output.dtype, device=_CPU) / output.numel()
    found: tuple[Tensor | None, ...] = (None,) * len(reached)
    if output.requires_grad:
        found = torch.autograd.grad(
            output, reached, upstream.view_as(output), allow_unused=True, retain_graph=True
        )
    pairs = zip(found, reached, strict=True)
    return torch.cat([(torch.zeros_like(x) if g is None else g).flatten() for g, x in pairs])


def _triangle(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=_CPU).tril()


# --- the encoder --------------------------------------------------------------------------------


class _Stack(Encoder):
    """The encoder in steps, so that each of them can go wrong."""

    def blocks_in_order(self) -> list[nn.Module]:
        return list(self.blocks)

    def step(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        stepped: Tensor = block(x, mask)
        return stepped

    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        for block in self.blocks_in_order():
            x = self.step(block, x, mask)
        return self.final_norm(x)


class _NoFinalNorm(_Stack):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        for block in self.blocks:
            x = block(x, mask)
        return x


class _NormFirst(_Stack):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        x = self.final_norm(x)
        for block in self.blocks:
            x = block(x, mask)
        return x


class _NormEachTime(_Stack):
    def step(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return cast("Tensor", self.final_norm(super().step(block, x, mask)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        for block in self.blocks:
            x = self.step(block, x, mask)
        return x


class _Added(_Stack):
    def step(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return x + super().step(block, x, mask)


class _Unmasked(_Stack):
    def step(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return super().step(block, x, None)


class _MaskedOnce(_Stack):
    def step(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return super().step(block, x, mask if block is self.blocks[0] else None)


class _Backwards(_Stack):
    def blocks_in_order(self) -> list[nn.Module]:
        return list(self.blocks)[::-1]


class _OneAgain(_Stack):
    def blocks_in_order(self) -> list[nn.Module]:
        return [self.blocks[0]] * len(self.blocks)


class _AllButLast(_Stack):
    def blocks_in_order(self) -> list[nn.Module]:
        return list(self.blocks)[: max(len(self.blocks) - 1, 1)]


class _EachFromTheStart(_Stack):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> object:
        last = x
        for block in self.blocks:
            last = block(x, mask)
        return self.final_norm(last)


class _LosingGradients(_Stack):
    def step(self, block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return super().step(block, x.detach(), mask)


def _one_object(d_model: int, n_heads: int, n_layers: int, dropout: float = 0.0) -> Encoder:
    made = Encoder(d_model, n_heads, n_layers, dropout)
    made.blocks = nn.ModuleList([Block(d_model, n_heads, dropout=dropout)] * n_layers)
    return made


def _try_encoder(found: object) -> dict[str, Tensor]:
    """What an encoder returns in all cases, with the gradients of its input and parameters."""
    encoder = _as_model(found)

    def like(own: Mapping[str, Tensor]) -> nn.Module:
        return Encoder(len(own["final_norm.weight"]), 1, _n_blocks(own, "blocks."))

    _fill(encoder, like)
    width = len(encoder.state_dict()["final_norm.weight"])
    n_parameters = sum(value.numel() for value in encoder.parameters())
    measured = {"the number of parameters": torch.tensor(float(n_parameters))}
    x = 1.0 * random_inputs((2, 5, width))[0].requires_grad_()
    real = padding_mask(torch.tensor([[3, 4, 5, 6, 7], [3, 4, 5, 0, 0]], device=_CPU))
    for training in (True, False):
        encoder.train(training)
        for case, mask in {"without a mask": None, "with padding": real}.items():
            name = f"{case}, {'in training' if training else 'after training'}"
            given = (x,) if mask is None else (x, mask)
            measured[name] = _output(encoder, *given, shape="(B, T, D)")
    for name in [name for name in measured if name.startswith("with")]:
        measured[f"gradients {name}"] = _gradients(measured[name], encoder, x)
    return measured


ENCODER = Exercise(
    reference=Encoder,
    inputs=[(8, 2, 3), (12, 3, 1), (8, 4, 2, 1.0)],  # a dropout of 1 leaves nothing to chance
    measure=_try_encoder,
    tolerance=EQUAL,
    mistakes={
        "There is no norm at the end: nothing has normalised the stream so far.": _NoFinalNorm,
        "The last norm stands before the blocks; it belongs behind them.": _NormFirst,
        "The last norm acts after every block; it belongs at the end, once.": _NormEachTime,
        "The stream is added to what a block returns: a block has done that already.": _Added,
        "The mask is not used: hand it on to every block.": _Unmasked,
        "Only the first block gets the mask: hand it on to every block.": _MaskedOnce,
        "The blocks run from the last to the first.": _Backwards,
        "One block is used again and again: call each of them in turn.": _OneAgain,
        "The last block is left out.": _AllButLast,
        "Every block reads the input; it must read what the block before it returned.": (
            _EachFromTheStart
        ),
        "All blocks are one object, [block] * n_layers: make a new one for each.": _one_object,
        "`dropout` is not handed on to the blocks.": lambda d_model, n_heads, n_layers, *_: Encoder(
            d_model, n_heads, n_layers
        ),
        f"The numbers are right, but no gradient comes through the blocks. {_NO_GRADIENT}": (
            _LosingGradients
        ),
    },
    hints=(
        "A list of blocks, each of which reads what the one before it returned, and one norm.",
        "PyTorch sees the parameters of a list only if it is an `nn.ModuleList`. Call it `blocks`, "
        "and the norm `final_norm`.",
        "`for block in self.blocks: x = block(x, mask)`, and then `self.final_norm(x)`.",
    ),
)


# --- the decoder's block ------------------------------------------------------------------------


class _Crossing(DecoderBlock):
    """The block in steps, so that each of them can go wrong."""

    def own(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return cast("Tensor", x + self.dropout(self.attention(self.attention_norm(x), mask=mask)))

    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        read = self.cross_attention_norm(x)
        return cast("Tensor", x + self.dropout(self.cross_attention(read, memory, mask)))

    def work(self, x: Tensor) -> Tensor:
        return cast("Tensor", x + self.dropout(self.feed_forward(self.feed_forward_norm(x))))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> object:
        return self.work(self.cross(self.own(x, mask), memory, memory_mask))


class _SwappedMasks(_Crossing):
    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> object:
        return super().forward(x, memory, None, memory_mask)


class _NoMemoryMask(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().cross(x, memory, None)


class _OwnInsteadOfMemory(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        read = self.cross_attention_norm(x)
        return cast("Tensor", x + self.dropout(self.cross_attention(read)))


class _NormedMemory(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().cross(x, self.cross_attention_norm(memory), mask)


class _CrossFirst(_Crossing):
    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> object:
        return self.work(self.own(self.cross(x, memory, memory_mask), mask))


class _WorkBeforeCross(_Crossing):
    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> object:
        return self.cross(self.work(self.own(x, mask)), memory, memory_mask)


class _NoCross(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return x


class _CrossReplaces(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return cast("Tensor", self.cross_attention(self.cross_attention_norm(x), memory, mask))


class _OwnReplaces(_Crossing):
    def own(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return cast("Tensor", self.attention(self.attention_norm(x), mask=mask))


class _WorkReplaces(_Crossing):
    def work(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.feed_forward(self.feed_forward_norm(x)))


class _UnnormedQuery(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return cast("Tensor", x + self.dropout(self.cross_attention(x, memory, mask)))


class _PostNorm(_Crossing):
    def own(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return cast("Tensor", self.attention_norm(x + self.attention(x, mask=mask)))

    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        found = x + self.cross_attention(x, memory, mask)
        return cast("Tensor", self.cross_attention_norm(found))

    def work(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.feed_forward_norm(x + self.feed_forward(x)))


class _LosingMemory(_Crossing):
    def cross(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().cross(x, memory.detach(), mask)


def _try_decoder_block(found: object) -> dict[str, Tensor]:
    """What a block returns in all cases, with the gradients of its inputs and parameters."""
    block = _as_model(found)
    _fill(block, lambda own: DecoderBlock(len(own["attention_norm.weight"]), 1))
    width = len(block.state_dict()["attention_norm.weight"])
    x, memory = (1.0 * y.requires_grad_() for y in random_inputs((2, 5, width), (2, 4, width)))
    real = padding_mask(torch.tensor([[3, 4, 5, 6], [3, 4, 0, 0]], device=_CPU))
    cases = {
        "without masks": (x, memory),
        "with a causal mask": (x, memory, _triangle(5)),
        "with both masks": (x, memory, _triangle(5), real),
    }
    measured: dict[str, Tensor] = {}
    for training in (True, False):
        block.train(training)
        for case, given in cases.items():
            name = f"{case}, {'in training' if training else 'after training'}"
            measured[name] = _output(block, *given, shape="(B, T, D)")
    for name in [*measured]:
        measured[f"gradients {name}"] = _gradients(measured[name], block, x, memory)
    return measured


DECODER_BLOCK = Exercise(
    reference=DecoderBlock,
    inputs=[(8, 2), (12, 3), (8, 4, 1.0)],
    measure=_try_decoder_block,
    tolerance=EQUAL,
    mistakes={
        "The mask of self-attention is not used.": _SwappedMasks,
        "The mask of the memory is not used: it hides the source's padding.": _NoMemoryMask,
        "The cross-attention reads its own stream: keys and values must come from the memory.": (
            _OwnInsteadOfMemory
        ),
        "The memory is normalised by the block; only what the query is made of is.": _NormedMemory,
        "The cross-attention comes first; self-attention comes first.": _CrossFirst,
        "The feed-forward network comes before the cross-attention; it comes last.": (
            _WorkBeforeCross
        ),
        "There is no cross-attention: the memory changes nothing.": _NoCross,
        "There is no plus around the cross-attention.": _CrossReplaces,
        "There is no plus around self-attention.": _OwnReplaces,
        "There is no plus around the feed-forward network.": _WorkReplaces,
        "The cross-attention's query is not normalised.": _UnnormedQuery,
        "That is post-norm: here each norm stands before its sublayer.": _PostNorm,
        "Dropout is missing: it stands between each sublayer and its plus.": (
            lambda d_model, n_heads, *_: DecoderBlock(d_model, n_heads)
        ),
        f"The numbers are right, but no gradient comes to the memory. {_NO_GRADIENT}": (
            _LosingMemory
        ),
    },
    hints=(
        "It is the block of page 10 with a second attention between the two sublayers, which reads "
        "the memory.",
        "The parts are `attention`, `cross_attention` and `feed_forward`, each with its `_norm`, "
        "and `dropout`.",
        "`x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, "
        "memory_mask))` between the two lines that you know.",
    ),
)


# --- the whole Transformer ----------------------------------------------------------------------


class _Whole(Transformer):
    """The model in steps, so that each of them can go wrong."""

    scale = staticmethod(lambda width: width**0.5)

    def embed(self, ids: Tensor) -> Tensor:
        width = self.tokens.embedding_dim
        x = self.tokens(ids) * self.scale(width)
        return cast("Tensor", x + self.places(ids.shape[1], width).to(x))

    def places(self, length: int, width: int) -> Tensor:
        return cast("Tensor", sinusoids(length, width))

    def masks(self, target: Tensor, source: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return causal_mask(target.shape[1]), padding_mask(source)

    def end(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.final_norm(x) @ self.tokens.weight.T)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> object:
        x, (causal, real) = self.embed(target), self.masks(target, source)
        for block in self.decoder:
            x = block(x, memory, causal, real)
        return self.end(x)


def _whole(**changes: object) -> Answer:
    """The model with some of its steps replaced."""
    return type("_Changed", (_Whole,), changes)


class _SourceUnmasked(_Whole):
    def encode(self, source: Tensor) -> object:
        return self.encoder(self.embed(source))


class _RungByRung(_Whole):
    def forward(self, source: Tensor, target: Tensor) -> object:
        y, x, real = self.embed(source), self.embed(target), padding_mask(source)
        for rung, block in zip(self.encoder.blocks, self.decoder, strict=True):
            y = rung(y, real)
            x = block(x, self.encoder.final_norm(y), causal_mask(target.shape[1]), real)
        return self.end(x)


def _not_tied(vocab_size: int, d_model: int, n_heads: int, n_layers: int) -> nn.Module:
    """The model with a table of its own at the output."""
    made = Transformer(vocab_size, d_model, n_heads, n_layers)
    made.output = nn.Linear(d_model, vocab_size, bias=False)
    return cast("nn.Module", made)


def _drawn(std: float | None) -> Answer:
    """The model whose table is drawn with another spread."""

    def build(vocab_size: int, d_model: int, n_heads: int, n_layers: int) -> nn.Module:
        made = Transformer(vocab_size, d_model, n_heads, n_layers)
        nn.init.normal_(made.tokens.weight, std=std or d_model**0.5)
        return made

    return build


def _try_transformer(found: object) -> dict[str, Tensor]:
    """The spread of a new model's table, and what it returns, with all gradients."""
    model = _as_model(found)
    table = model.state_dict().get("tokens.weight")
    if table is None:
        raise UnfitError(
            f"There is no 'tokens.weight' in its state_dict(): {[*model.state_dict()]}."
        )
    spread = table.double().std() * table.shape[-1] ** 0.5  # 1, if it is as on the page

    def like(own: Mapping[str, Tensor]) -> nn.Module:
        vocab_size, d_model = own["tokens.weight"].shape
        return Transformer(vocab_size, d_model, 1, _n_blocks(own, "decoder."))

    _fill(model, like)
    source = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]], device=_CPU)
    target = torch.tensor([[1, 4, 3], [1, 2, 6]], device=_CPU)
    measured = {"the table's spread, in units of one over the root of D": spread.round()}
    logits = _output(model, source, target, shape="(B, T, V)")
    return measured | {"logits": logits, "gradients": _gradients(logits, model)}


TRANSFORMER = Exercise(
    reference=Transformer,
    inputs=[(200, 8, 2, 1), (200, 8, 2, 3)],
    measure=_try_transformer,
    tolerance=EQUAL,
    mistakes={
        "The rows of the table are not multiplied by the root of D.": _whole(
            scale=staticmethod(lambda _: 1.0)
        ),
        "The rows are divided by the root of D; multiply them.": _whole(
            scale=staticmethod(lambda width: width**-0.5)
        ),
        "The rows are multiplied by D; it must be the root of D.": _whole(
            scale=staticmethod(lambda width: float(width))
        ),
        "There are no positions: add the sinusoids.": _whole(
            places=lambda self, length, width: torch.zeros(length, width)
        ),
        "The positions are multiplied by the root of D as well; multiply the rows alone.": _whole(
            places=lambda self, length, width: sinusoids(length, width) * width**0.5
        ),
        "The decoder has no causal mask: it reads the answer.": _whole(
            masks=lambda self, target, source: (None, padding_mask(source))
        ),
        "The cross-attention sees the source's padding.": _whole(
            masks=lambda self, target, source: (causal_mask(target.shape[1]), None)
        ),
        "The encoder sees the source's padding.": _SourceUnmasked,
        "Decoder block i reads encoder block i; all read the encoder's output.": _RungByRung,
        "The last norm is missing: the logits come from `final_norm(x)`.": _whole(
            end=lambda self, x: x @ self.tokens.weight.T
        ),
        "The logits are scaled by the root of D; only what enters is.": _whole(
            end=lambda self, x: self.final_norm(x) @ self.tokens.weight.T * x.shape[-1] ** 0.5
        ),
        "It returns probabilities; return the logits.": _whole(
            end=lambda self, x: (self.final_norm(x) @ self.tokens.weight.T).softmax(dim=-1)
        ),
        "The output has a table of its own: one table does all three jobs.": _not_tied,
        "The table is drawn as PyTorch does it, with a standard deviation of 1; it must be one "
        "over the root of D.": _drawn(1.0),
        "The table is drawn with a standard deviation of the root of D; it must be one over "
        "that.": _drawn(None),
        f"The numbers are right, but the output's gradient is lost. {_NO_GRADIENT}": _whole(
            end=lambda self, x: self.final_norm(x) @ self.tokens.weight.detach().T
        ),
    },
    hints=(
        "One table, an `Encoder`, a list of `DecoderBlock`s and one norm at the end.",
        "`embed` looks up, scales and adds positions; `encode` is the left tower with its padding "
        "mask; `decode` is the right one with both masks.",
        "`self.final_norm(x) @ self.tokens.weight.T` are the logits.",
    ),
)


# --- writing ------------------------------------------------------------------------------------


_LONGEST = 51  # with the start token


class _Scripted:
    """A model for tests: its logits are a fixed table of what was written last and where."""

    def __init__(self, answers: list[list[int]], vocab_size: int = 9) -> None:
        self.answers, self.vocab_size = answers, vocab_size

    def encode(self, source: Tensor) -> Tensor:
        return source.double()  # the memory knows the source

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Logits that want the answer of a row at each place, if all before it was written."""
        B, T = target.shape
        # One that doubles at each step, in length or in rows, would fill the memory.
        if T > _LONGEST or len(self.answers) != B:
            sizes = f"{B} rows of {T} tokens"
            raise UnfitError(f"It hands {sizes} to the model; a row is at most {_LONGEST} long.")
        logits = torch.zeros(B, T, self.vocab_size, dtype=torch.float64, device=_CPU)
        for row, answer in enumerate(self.answers):
            for place in range(T):
                wanted = answer[place] if place < len(answer) else 3 + place % 2
                follows = target[row, 1 : place + 1].tolist() == answer[:place]
                knows = memory[row].sum() == source[row].sum() > 0
                logits[row, place, wanted if follows and knows else 8] = 1.0
        return logits


Writer = Callable[..., Tensor]


def _writing(
    *,
    best: Callable[[Tensor], Tensor] = lambda logits: logits[:, -1].argmax(dim=-1, keepdim=True),
    done: Callable[[Tensor, int], bool] = lambda target, end: bool(
        (target == end).any(dim=1).all()
    ),
    cut: Callable[[Tensor, int], Tensor] = lambda target, end: target[:, 1:],
    limit: Callable[[int], int] = lambda longest: longest,
) -> Writer:
    """Greedy decoding with one of its steps replaced."""

    def write(model: _Scripted, source: Tensor, start: int, end: int, longest: int = 50) -> Tensor:
        memory = model.encode(source)
        target = torch.full((len(source), 1), start, device=_CPU)
        for _ in range(limit(longest)):
            target = torch.cat([target, best(model.decode(target, memory, source))], dim=1)
            if done(target, end):
                break
        return cut(target, end)

    return write


_SOURCE = torch.tensor([[5.0, 6.0], [7.0, 4.0]], dtype=torch.float64).long()

TRANSLATE = Exercise(
    reference=translate,
    inputs=[
        lambda: (_Scripted([[5, 4, 2], [6, 2]]), _SOURCE.clone(), 1, 2),
        lambda: (_Scripted([[5, 2], [6, 7, 3, 2]]), _SOURCE.clone(), 1, 2, 20),
        lambda: (_Scripted([[5, 4, 6, 7], [6, 3, 5, 5]]), _SOURCE.clone(), 1, 2, 3),
        lambda: (_Scripted([[2], [2]]), _SOURCE.clone(), 1, 2, 5),
    ],
    tolerance=EQUAL,
    mistakes={
        "The start token is returned with the rest: leave it out.": _writing(
            cut=lambda target, end: target
        ),
        "The last token is cut off: it is the end token, or a token like others.": _writing(
            cut=lambda target, end: target[:, 1:-1]
        ),
        "It stops when one row has ended; wait for all of them.": _writing(
            done=lambda target, end: bool((target == end).any())
        ),
        "It stops when the first row has ended; wait for all of them.": _writing(
            done=lambda target, end: bool((target[0] == end).any())
        ),
        "It stops only if all rows end at the same step; a row that has ended stays ended.": (
            _writing(done=lambda target, end: bool((target[:, -1] == end).all()))
        ),
        "It never stops before the limit.": _writing(done=lambda target, end: False),
        "It stops after one token.": _writing(done=lambda target, end: True),
        "It writes one token more than `longest`.": _writing(limit=lambda longest: longest + 1),
        "It writes one token less than `longest`.": _writing(limit=lambda longest: longest - 1),
        "The next token is taken from the first position; the last one predicts it.": _writing(
            best=lambda logits: logits[:, 0].argmax(dim=-1, keepdim=True)
        ),
        "The least probable token is taken.": _writing(
            best=lambda logits: logits[:, -1].argmin(dim=-1, keepdim=True)
        ),
        "All rows get the token of the first one.": _writing(
            best=lambda logits: logits[:1, -1].argmax(dim=-1, keepdim=True).expand(len(logits), 1)
        ),
    },
    hints=(
        "Encode once. Then decode what is written so far, take the best token of the last "
        "position, append it, and look whether every row has ended.",
        "Begin with a column of start tokens, and leave it out at the end.",
        "`model.decode(target, memory, source)[:, -1].argmax(dim=-1, keepdim=True)` is the next "
        "column.",
    ),
)
