"""Exercises of lab 4, A GPT from an empty page."""

import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.exercises.grading.checking import Answer, Exercise, UnfitError, random_inputs
from transformer_lib import CausalLM, TransformerConfig


def _batch(ids: Tensor, starts: Tensor, length: int, *, shift: int = 1) -> tuple[Tensor, Tensor]:
    places = starts[:, None] + torch.arange(length, device=starts.device)
    return ids[places], ids[places + shift]


def _rolled(ids: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    reads, _ = _batch(ids, starts, length)
    return reads, reads.roll(-1, dims=1)


_SQUARES = torch.arange(40, device="cpu").square()
BATCH = Exercise(
    reference=_batch,
    inputs=[
        (_SQUARES, torch.tensor([3, 20, 11], device="cpu"), 6),
        (_SQUARES, torch.tensor([30, 1], device="cpu"), 4),
    ],
    returns=("reads", "targets"),
    mistakes={
        "The targets are what is read: each must be the letter that follows.": partial(
            _batch, shift=0
        ),
        "The targets come from one place before; they must come from one place after.": partial(
            _batch, shift=-1
        ),
        "The targets are two places ahead: the next letter is one.": partial(_batch, shift=2),
        "The last target is the first letter of its own window. It must be the letter after the "
        "window: read the targets from `ids`, one place later.": _rolled,
    },
    hints=(
        "A window begins at its start and has `length` letters. Its targets are the same letters "
        "one place later in the text.",
        "A column of starts `(B, 1)` plus a row of offsets `(length,)` is a table of places "
        "`(B, length)`, and a tensor can be indexed with a table.",
        "`places = starts[:, None] + torch.arange(length, device=ids.device)`, then `ids[places]` "
        "and the same with `places + 1`.",
    ),
)


def _head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(dim=-1) @ v


def _other_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Callable[[Tensor, Tensor], float] = lambda q, v: math.sqrt(q.shape[-1]),
    hidden: Callable[[Tensor], Tensor] = lambda ones: ones.triu(1),
    fill: float = -math.inf,
    axis: int = -1,
) -> Tensor:
    """A head with another scale, mask or axis; the mask is cut out of a table of ones."""
    scores = q @ k.mT / scale(q, v)
    return scores.masked_fill(hidden(torch.ones_like(scores)).bool(), fill).softmax(dim=axis) @ v


def _masked_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1).tril() @ v


def _zero_times_infinity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores + torch.ones_like(scores).triu(1) * -math.inf).softmax(dim=-1) @ v


def _with_gradients(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Inputs that come out of something else, as queries come out of a layer."""
    return tuple(1.0 * x.requires_grad_() for x in random_inputs(*shapes))


def _reached(found: Tensor) -> int:
    """How many tensors a backward pass would reach."""
    waiting, seen = [found.grad_fn], set()
    while waiting:
        step = waiting.pop()
        if step is not None and step not in seen:
            seen.add(step)
            waiting.extend(before for before, _ in step.next_functions)
    return sum(hasattr(step, "variable") for step in seen)


def _measure_head(found: Tensor) -> dict[str, object]:
    return {"output": found, "gradients": _reached(found)}


HEAD = Exercise(
    reference=_head,
    inputs=[
        random_inputs((5, 4), (5, 4), (5, 4)),
        random_inputs((2, 3, 6, 2), (2, 3, 6, 2), (2, 3, 6, 5)),
        lambda: _with_gradients((2, 3, 4), (2, 3, 4), (2, 3, 5)),
    ],
    measure=_measure_head,
    mistakes={
        "Nothing is hidden: every place sees the places after it.": partial(
            _other_head, hidden=torch.zeros_like
        ),
        "The mask is a place too generous: answers are seen.": partial(
            _other_head, hidden=lambda ones: ones.triu(2)
        ),
        "The mask is a place too strict: a place sees itself, too. The first one is left with "
        "nothing, and a row of -inf alone becomes NaN.": partial(
            _other_head, hidden=lambda ones: ones.triu(0)
        ),
        "The mask is the wrong way round: it hides the past.": partial(
            _other_head, hidden=lambda ones: ones.tril(-1)
        ),
        "The mask is the wrong way round: it hides the past and the place itself. The last one is "
        "left with nothing, and a row of -inf alone becomes NaN.": partial(
            _other_head, hidden=lambda ones: ones.tril(0)
        ),
        "The future's scores are set to 0, but exp(0) is 1: hide them with -inf.": partial(
            _other_head, fill=0.0
        ),
        "All is NaN, because 0 * -inf is NaN: a mask of zeros and ones must not be multiplied by "
        "-inf. Use masked_fill, or torch.full((T, T), -math.inf).triu(1).": _zero_times_infinity,
        "The future is hidden after the softmax, so the rows no longer sum to 1. Put -inf into "
        "the scores before it.": _masked_late,
        "The scores are not scaled: divide them by the root of Dk.": partial(
            _other_head, scale=lambda q, v: 1.0
        ),
        "The scores are divided by Dk itself; take its square root.": partial(
            _other_head, scale=lambda q, v: q.shape[-1]
        ),
        "The scale counts the features of a value, which may have any width; Dk, the width of a "
        "query, is what matters.": partial(_other_head, scale=lambda q, v: math.sqrt(v.shape[-1])),
        "The scale counts T, the number of keys; it must be Dk, the width of a query.": partial(
            _other_head, scale=lambda q, v: math.sqrt(q.shape[-2])
        ),
        "The columns are normalised: the softmax goes along the keys, the last axis.": partial(
            _other_head, axis=-2
        ),
        "The numbers are right, but no gradient comes through, so nothing before it could learn: "
        "leave out detach(), .data and torch.no_grad().": lambda q, k, v: _head(q, k, v).detach(),
        "The numbers are right, but no gradient comes through the weights, so queries and keys "
        "could not learn: leave out detach(), .data and torch.no_grad().": (
            lambda q, k, v: _head(q.detach(), k.detach(), v)
        ),
    },
    hints=(
        "Place t may look at places 0 to t. What must the scores of the others be, so that the "
        "softmax gives them 0?",
        "The scores are `(..., T, T)`, divided by the square root of Dk: rows look, columns are "
        "looked at. The future stands above the diagonal and gets -inf before the softmax.",
        "`future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)`, to be used with "
        "`scores.masked_fill(future, -math.inf)`.",
    ),
)


class _Attention(nn.Module):
    head = staticmethod(_head)  # a lab may put another part here, and in the two classes below

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output: nn.Module = nn.Linear(d_model, d_model)

    def split(self, x: Tensor) -> Tensor:
        cut: Tensor = x.unflatten(-1, (self.n_heads, -1))
        return cut.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.head(q, k, v)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(start_dim=2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        new: Tensor = self.output(self.merge(self.attend(q, k, v)))
        return new


class _Reshaped(_Attention):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.n_heads, x.shape[1], -1)


class _MergedByReshape(_Attention):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


class _ReshapedTwice(_Reshaped, _MergedByReshape):
    pass


class _StripedButMerged(_Attention):
    def split(self, x: Tensor) -> Tensor:
        cut: Tensor = x.unflatten(-1, (-1, self.n_heads))
        return cut.permute(0, 3, 1, 2)


class _Striped(_StripedButMerged):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.permute(0, 2, 3, 1).flatten(start_dim=2)


class _OneHead(_Attention):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, 1)


class _NoOutput(_Attention):
    def forward(self, x: Tensor) -> Tensor:
        self.output = nn.Identity()
        return super().forward(x)


class _SeesAll(_Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _other_head(q, k, v, hidden=torch.zeros_like)


class _ScaledByModel(_Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _other_head(q, k, v, scale=lambda q, v: math.sqrt(self.n_heads * q.shape[-1]))


class _Detached(_Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _head(q, k, v).detach()


_TABLES = ("tokens.weight", "positions.weight")


def _fill(module: nn.Module) -> None:
    """Give each parameter numbers that depend on its name."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            draw = torch.Generator("cpu").manual_seed(zlib.crc32(name.encode()))
            numbers = torch.randn(parameter.shape, generator=draw, device="cpu")
            if name in _TABLES:
                numbers[0] *= 0.004  # so small that the constant in a norm shows
            parameter.copy_(0.5 * numbers)


def _check_names(module: nn.Module, wanted: list[str], extra: str) -> None:
    """Refuse a module whose weights could not be found by name, or that has some of its own."""
    found: dict[str, str] = {}
    for name in module.state_dict():
        found.setdefault(re.sub(r"^blocks\.\d+", "blocks.0", name), name)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise UnfitError(f"There is no {missing[0]!r} in its state_dict(), but {[*found]}.")
    more = [found[name] for name in found if name not in wanted]
    if not more:
        return
    parameters = dict(module.named_parameters())
    if more[0] in dict(module.named_buffers()):
        raise UnfitError(
            f"The buffer {more[0]!r} is saved with the weights, and step 7 could not load it: "
            "register it with persistent=False, or make the tensor in forward."
        )
    if more[0] not in parameters:
        raise UnfitError(
            f"{more[0]!r} is a second name for weights that have one. state_dict() lists both, "
            f"and step 7 could not load it{extra}."
        )
    n = sum(parameters[name].numel() for name in more)
    raise UnfitError(f"{', '.join(more)}: {n:,} parameters that the task does not name{extra}.")


def _measure(
    module: nn.Module, names: list[str], inputs: Tensor, *, extra: str = ""
) -> dict[str, object]:
    """The number of parameters, and what comes out with weights that the names decide."""
    _check_names(module, names, extra)
    _fill(module)
    n_parameters = sum(parameter.numel() for parameter in module.parameters())
    outputs = module.to("cpu", torch.float64).eval()(inputs)
    return {"parameters": n_parameters, "outputs": outputs, "gradients": _reached(outputs)}


def _linear(*names: str) -> list[str]:
    return [f"{name}.{part}" for name in names for part in ("weight", "bias")]


_ATTENTION = _linear("query", "key", "value", "output")
(_STREAM,) = random_inputs((2, 5, 12))
_STREAM[0, 0] *= 0.002  # so small that the constant in a norm shows
ATTENTION = Exercise(
    reference=_Attention,
    inputs=[(12, 3), (12, 4)],
    measure=lambda module: _measure(module, _ATTENTION, _STREAM),
    mistakes={
        "The heads are split by a reshape alone. Cut the features first, then swap places and "
        "heads.": _Reshaped,
        "The heads are merged by a reshape alone: swap heads and places back first.": (
            _MergedByReshape
        ),
        "The heads are split and merged by a reshape alone. Cut the features first, then swap "
        "places and heads; afterwards swap them back.": _ReshapedTwice,
        "The heads are cut in stripes: one of them owns every H-th feature. That is a GPT, too, "
        "but not the one of step 7: a head owns Dk neighbouring features.": _Striped,
        "The heads are cut in stripes and joined one behind the other. A head owns Dk neighbouring "
        "features: unflatten(-1, (n_heads, -1)).": _StripedButMerged,
        "That is one head of full width: split queries, keys and values.": _OneHead,
        "The output layer is there and not used.": _NoOutput,
        "The heads see the future: use the head of step 2.": _SeesAll,
        "The scale counts D, the width of all heads; it must be Dk, the width of one.": (
            _ScaledByModel
        ),
        "The numbers are right, but no gradient comes through the heads, so the layers before "
        "them could not learn: leave out detach(), .data and torch.no_grad().": _Detached,
    },
    hints=(
        "Each head owns Dk = D / H neighbouring features of queries, keys and values. `head` of "
        "step 2 takes any dimensions in front, so all heads can go through it at once.",
        "`(B, T, D)` is cut into `(B, T, H, Dk)` and swapped to `(B, H, T, Dk)`. After the heads "
        "swap back, join to `(B, T, D)` and apply `output`.",
        "Cut with `x.unflatten(-1, (n_heads, -1)).transpose(1, 2)`; join with "
        "`mixed.transpose(1, 2).flatten(start_dim=2)`.",
    ),
)


class _Norm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=-1, keepdim=True)
        size = (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return self.weight * x / size + self.bias


class _Block(nn.Module):
    Attention: Callable[[int, int], nn.Module] = _Attention

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.attention_norm: nn.Module = _Norm(d_model)
        self.attention = self.Attention(d_model, n_heads)
        self.feed_forward_norm: nn.Module = _Norm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def activate(self, x: Tensor) -> Tensor:
        return x.relu()

    def network(self, x: Tensor) -> Tensor:
        new: Tensor = self.down(self.activate(self.up(x)))
        return new

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.feed_forward_norm(x))


class _PostNorm(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        new: Tensor = self.feed_forward_norm(x + self.network(x))
        return new


class _NoFirstSkip(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(self.attention_norm(x))
        return x + self.network(self.feed_forward_norm(x))


class _NoSecondSkip(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return self.network(self.feed_forward_norm(x))


class _NoSkips(_Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.feed_forward_norm(self.attention(self.attention_norm(x))))


class _NormedStream(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x)
        x = self.feed_forward_norm(x + self.attention(x))
        return x + self.network(x)


class _NoNorms(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.network(x)


class _NoFirstNorm(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.network(self.feed_forward_norm(x))


class _NoSecondNorm(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(x)


class _FirstNormTwice(_Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.attention_norm(x))


class _OneNorm(_Block):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__(d_model, n_heads)
        self.feed_forward_norm = self.attention_norm


class _SideBySide(_Block):
    def forward(self, x: Tensor) -> Tensor:
        told: Tensor = self.attention(self.attention_norm(x))
        return x + told + self.network(self.feed_forward_norm(x))


class _NoActivation(_Block):
    def activate(self, x: Tensor) -> Tensor:
        return x


class _Gelu(_Block):
    def activate(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x)


class _LateRelu(_Block):
    def network(self, x: Tensor) -> Tensor:
        return super().network(x).relu()

    def activate(self, x: Tensor) -> Tensor:
        return x


_NORM = ("weight", "bias")
_BLOCK = [
    *(f"attention.{name}" for name in _ATTENTION),
    *_linear("up", "down"),
    *(
        f"{name}_norm.{part}"
        for name in ("attention", "feed_forward")
        for part in ("weight", "bias")
    ),
]
BLOCK = Exercise(
    reference=_Block,
    inputs=[(12, 3), (12, 4)],
    measure=lambda module: _measure(module, _BLOCK, _STREAM),
    mistakes={
        "The norms come after the sums (post-norm, as in 2017). Here they stand before each "
        "sublayer, inside the branch.": _PostNorm,
        "Attention replaces the stream: add what it returns to x.": _NoFirstSkip,
        "The network replaces the stream: add what it returns, as you did after attention.": (
            _NoSecondSkip
        ),
        "Each sublayer replaces the stream: add what it returns, twice.": _NoSkips,
        "The stream itself is normalised: only what a sublayer reads may be.": _NormedStream,
        "The norms are there and not used: each sublayer reads the normalised stream.": _NoNorms,
        "Attention reads the stream without its norm.": _NoFirstNorm,
        "The network reads the stream without its norm.": _NoSecondNorm,
        "One norm is used twice: the network reads through feed_forward_norm.": _FirstNormTwice,
        "One norm stands in both places: build a second one for the network.": _OneNorm,
        "The network reads the stream as it was before attention added to it.": _SideBySide,
        "The ReLU is missing: two linear layers in a row are one.": _NoActivation,
        "That is GELU, as in GPT-2. It would learn, but the model of step 7 has ReLU.": _Gelu,
        "The ReLU comes after `down`; it belongs between the two layers.": _LateRelu,
    },
    hints=(
        "The stream x goes straight through. Twice something is added to it, and only what a "
        "sublayer reads is normalised.",
        "First x plus attention of the normalised x. Then the same with the new x, the second "
        "norm and the network: `up` to 4 D, ReLU, `down` to D.",
        "`x = x + self.attention(self.attention_norm(x))`, and a second line like it with "
        "`self.down(self.up(...).relu())`.",
    ),
)


class _GPT(nn.Module):
    Block: Callable[[int, int], nn.Module] = _Block

    def __init__(
        self, vocab_size: int, max_len: int, d_model: int, n_heads: int, n_layers: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList(self.Block(d_model, n_heads) for _ in range(n_layers))
        self.final_norm: nn.Module = _Norm(d_model)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.1)

    def embed(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x: Tensor = self.tokens(ids) + self.positions(places)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.final_norm(x) @ self.tokens.weight.mT
        return logits


class _NoPositions(_GPT):
    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        return x


class _PositionsFromOne(_GPT):
    def embed(self, ids: Tensor) -> Tensor:
        places = 1 + torch.arange(ids.shape[1], device=ids.device)
        x: Tensor = self.tokens(ids) + self.positions(places)
        return x


class _LouderTokens(_GPT):
    def embed(self, ids: Tensor) -> Tensor:
        louder = math.sqrt(self.tokens.embedding_dim) - 1
        x: Tensor = super().embed(ids) + louder * self.tokens(ids)
        return x


class _NoFinalNorm(_GPT):
    def forward(self, ids: Tensor) -> Tensor:
        self.final_norm = nn.Identity()
        return super().forward(ids)


class _OneBlock(_GPT):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.blocks = nn.ModuleList([self.blocks[0]] * len(self.blocks))


class _OnlyOneLayer(_GPT):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.blocks = self.blocks[:1]


class _Probabilities(_GPT):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).softmax(dim=-1)


_MODEL = [
    *(*_TABLES, "final_norm.weight", "final_norm.bias"),
    *(f"blocks.0.{name}" for name in _BLOCK),
]
_READS = torch.tensor([[0, 1, 4, 1, 5], [6, 2, 6, 5, 3]], device="cpu")


def _measure_model(model: nn.Module) -> dict[str, object]:
    tables = {name: p for name, p in model.named_parameters() if name in _TABLES}
    for name, table in tables.items():
        std = table.std().item()
        if not 0.05 < std < 0.2:  # six standard errors from 0.1
            raise UnfitError(
                f"{name} is drawn too {'loud' if std > 0.1 else 'quiet'}, with a standard "
                f"deviation of {std:.2f}: draw both tables with 0.1. (With 1, as nn.Embedding "
                "draws them, the tied head shouts from the first step.)"
            )
    tied = ": the head is the table of tokens itself, x @ self.tokens.weight.mT"
    return _measure(model, _MODEL, _READS, extra=tied)


GPT = Exercise(
    reference=_GPT,
    inputs=[(7, 6, 12, 3, 2), (7, 6, 12, 3, 1)],
    measure=_measure_model,
    mistakes={
        "The positions are there and not added.": _NoPositions,
        "The positions are counted from 1: the first place is number 0.": _PositionsFromOne,
        "The tokens are multiplied by the root of D, as in 2017; here they are not.": _LouderTokens,
        "The final norm is missing: pre-norm blocks leave a bare sum.": _NoFinalNorm,
        "One block stands in all places: build a new one for each layer.": _OneBlock,
        "There is one block; there must be n_layers of them.": _OnlyOneLayer,
        "These are probabilities; return the logits.": _Probabilities,
    },
    hints=(
        "Ids become vectors, positions are added, the blocks read one after the other, a norm "
        "ends it, and every place is compared with all rows of the table of tokens.",
        "Shapes: `tokens(ids)` is `(B, T, D)`, `positions` of 0 to T - 1 is `(T, D)`. The logits "
        "are `(B, T, D)` times `(D, V)`, the table of tokens transposed.",
        "`nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))`, "
        "`self.positions(torch.arange(ids.shape[1], device=ids.device))`, and at the end "
        "`self.final_norm(x) @ self.tokens.weight.mT`.",
    ),
)


def _toy(ids: Tensor, *, sees: Tensor, rows: Tensor) -> Tensor:
    """A model that adds up letters: each place those so far, and some that it should not see.

    Args:
        ids: ``(B, T)``.
        sees: how loudly each place hears each other one, too, ``(T, T)``.
        rows: how much each sequence leaks, ``(B,)``.

    Returns:
        Logits ``(B, T, 5)``.
    """
    letters = (1.0 + torch.arange(5, device=ids.device)) * nn.functional.one_hot(ids, 5).double()
    louder = 1.0 + torch.arange(len(sees), device=ids.device)[:, None]  # later places are
    past = louder * torch.ones_like(sees).tril()
    return (past + rows[:, None, None] * sees) @ letters


def _leaky(rows: list[float], *leaks: tuple[int, int, float]) -> Callable[[Tensor], Tensor]:
    """A toy model; each leak says which place hears which one, and how loudly."""
    sees = torch.zeros(6, 6, dtype=torch.float64, device="cpu")
    for place, heard, loudness in leaks:
        sees[place, heard] = loudness
    return partial(_toy, sees=sees, rows=torch.tensor(rows, dtype=torch.float64, device="cpu"))


def _leak(model: Callable[[Tensor], Tensor], ids: Tensor, place: int, new: int) -> float:
    other = ids.clone()
    other[:, place] = new
    with torch.no_grad():
        change = model(other) - model(ids)
    return change[:, :place].abs().max().item()


def _looks(look: Callable[[Tensor, int], Tensor]) -> Answer:
    """A leak test that looks elsewhere."""

    def leak(model: Callable[[Tensor], Tensor], ids: Tensor, place: int, new: int) -> float:
        other = ids.clone()
        other[:, place] = new
        with torch.no_grad():
            return look(model(other) - model(ids), place).item()

    return leak


_LETTERS = torch.tensor([[0, 1, 2, 3, 1, 0], [3, 0, 1, 1, 2, 4]], device="cpu")
LEAK = Exercise(
    reference=_leak,
    inputs=[
        (_leaky([1.0, 1.0]), _LETTERS, 3, 4),
        (_leaky([1.0, 0.5], (2, 3, 9.0)), _LETTERS, 3, 4),
        (_leaky([1.0, 0.5], (2, 3, 0.5)), _LETTERS, 3, 0),
        (_leaky([0.0, 1.0], (0, 4, 0.25), (1, 2, 9.0)), _LETTERS, 4, 1),
        (_leaky([0.5, 1.0], (0, 2, -0.5), (1, 2, 0.3)), _LETTERS, 2, 3),
    ],
    leaves_arguments=True,
    mistakes={
        "The two runs read the same ids: without clone() both names mean one tensor.": (
            _looks(lambda change, place: 0 * change.max())
        ),
        "The place itself counts too: it may change, and does. Look only at those before it.": (
            _looks(lambda change, place: change[:, : place + 1].abs().max())
        ),
        "These are the places after the change, which may change. Look at those before it.": (
            _looks(lambda change, place: change[:, place:].abs().max())
        ),
        "All places count, also those that may change. Look only at those before it.": (
            _looks(lambda change, place: change.abs().max())
        ),
        "A change downwards is a change, too: take absolute values.": (
            _looks(lambda change, place: change[:, :place].max())
        ),
        "That is the mean; one changed number is a leak, so take the largest.": (
            _looks(lambda change, place: change[:, :place].abs().mean())
        ),
        "That is the sum; take the largest.": (
            _looks(lambda change, place: change[:, :place].abs().sum())
        ),
        "Only the first row counts: put `new` into every row, other[:, place], and look at all of "
        "them.": _looks(lambda change, place: change[0, :place].abs().max()),
        "Only the place just before is looked at; a leak may reach any earlier one.": (
            _looks(lambda change, place: change[:, place - 1].abs().max())
        ),
        "Only the first place is looked at; a leak may reach any earlier one.": (
            _looks(lambda change, place: change[:, 0].abs().max())
        ),
    },
    hints=(
        "Run the model twice, on `ids` and on a copy with one letter changed in every row. Where "
        "may the logits differ?",
        "The change of the logits is `(B, T, V)`. Keep the places before `place`, all rows and all "
        "letters, and take the largest absolute value.",
        "`other = ids.clone()`, `other[:, place] = new`; of the difference take "
        "`[:, :place].abs().max()`.",
    ),
)


def _choose(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    scores = logits / temperature
    least = scores.topk(top_k).values[-1]
    p = scores.masked_fill(scores < least, -math.inf).softmax(dim=-1)
    ends = p.cumsum(dim=-1)
    return int((ends <= u * ends[-1]).sum())


def _all_can_be_drawn(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    return _choose(logits, temperature, len(logits), u)


def _from_the_best_down(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    best = (logits / temperature).topk(top_k)
    return int(best.indices[_choose(best.values, 1.0, top_k, u)])


def _evenly(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    best = logits.topk(top_k).indices.sort().values
    return int(best[int(u * top_k)])


def _not_normalised(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    p = (logits / temperature).softmax(dim=-1)
    ends = p.where(p >= p.topk(top_k).values[-1], 0.0).cumsum(dim=-1)
    return int((ends <= u).sum())


def _not_normalised_argmax(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    """The same for who looks for the first end beyond u: where there is none, that is id 0."""
    return _not_normalised(logits, temperature, top_k, u) % len(logits)


def _ends_at_u(logits: Tensor, temperature: float, top_k: int, u: float) -> int:
    """As right as the rest, unless u is exactly an end, as 0 is of pieces without a length."""
    return _choose(logits, temperature, top_k, u) if u else 0


(_LOGITS,) = random_inputs((9,))
_DRAWS = [
    (2 * _LOGITS, temperature, top_k, u)
    for temperature, top_k in ((1.0, 9), (0.4, 9), (2.5, 9), (1.0, 3), (2.5, 4))
    for u in (0.02, 0.23, 0.41, 0.58, 0.77, 0.97)
]
_DRAWS += [(-_LOGITS, 1.0, 3, u) for u in (0.0, 0.5)]  # id 0 is not among the best three
CHOOSE = Exercise(
    reference=_choose,
    inputs=_DRAWS,
    mistakes={
        "The logits are multiplied by the temperature; divide by it.": (
            lambda logits, temperature, top_k, u: _choose(logits, 1 / temperature, top_k, u)
        ),
        "The temperature is not used: divide the logits by it.": (
            lambda logits, temperature, top_k, u: _choose(logits, 1.0, top_k, u)
        ),
        "All tokens can be drawn: those outside the best k must get probability 0.": (
            _all_can_be_drawn
        ),
        "The best token is taken always: let u decide.": (
            lambda logits, temperature, top_k, u: int(logits.argmax())
        ),
        "The best k are drawn evenly; lay their probabilities end to end.": _evenly,
        "The tokens are lined up from the best down. That draws fairly, too, but here they keep "
        "the order of their ids, so that a given u means a given token.": _from_the_best_down,
        "The best k no longer sum to 1, so that u can fall behind the last of them: put -inf into "
        "the logits before the softmax, or divide by the sum.": _not_normalised,
        "The best k no longer sum to 1, so that u can fall behind the last of them, and then id 0 "
        "is taken: put -inf into the logits before the softmax, or divide by the sum.": (
            _not_normalised_argmax
        ),
        "With u = 0 an id is taken that has probability 0. A piece begins where the one before it "
        "ends: count the ends with ends <= u, or take the first with ends > u.": _ends_at_u,
    },
    hints=(
        "Think of a ruler from 0 to 1 with a piece for each id, as long as its probability. On "
        "which piece does u lie?",
        "Divide by the temperature, put -inf into the scores below the k-th best, take the "
        "softmax. The pieces end at the running sums, and the id is the number of pieces that end "
        "at or before u.",
        "The k-th best score is `scores.topk(top_k).values[-1]`, the ends are "
        "`p.cumsum(dim=-1)`, and `(ends <= u).sum()` counts.",
    ),
)


def _counter(ids: Tensor, *, max_len: int) -> Tensor:
    """A toy model of 11 letters: the best next id is a weighted sum of what it reads."""
    if ids.ndim != 2:
        raise ValueError(f"the model got ids of shape {tuple(ids.shape)}; expected (1, T)")
    if ids.shape[1] > max_len:
        raise ValueError(f"the model got {ids.shape[1]} ids; it has {max_len} places")
    weights = 1 + torch.arange(ids.shape[1], device=ids.device)
    best = 3 + (ids * weights).cumsum(dim=1)
    return -((best[..., None] - torch.arange(11, device=ids.device)) % 11).double()


Model = Callable[[Tensor], Tensor]
Choose = Callable[[Tensor], int]


def _write(model: Model, ids: Tensor, n: int, max_len: int, choose: Choose) -> Tensor:
    for _ in range(n):
        logits = model(ids[None, -max_len:])[0, -1]
        new = torch.tensor([choose(logits)], device=ids.device)
        ids = torch.cat([ids, new])
    return ids


def _write_otherwise(
    read: Callable[[Tensor, int], Tensor] = lambda ids, max_len: ids[-max_len:],
    take: Callable[[Tensor], Tensor] = lambda logits: logits[-1],
) -> Answer:
    """Writing that lets the model read something else, or takes other logits of it."""

    def write(model: Model, ids: Tensor, n: int, max_len: int, choose: Choose) -> Tensor:
        for _ in range(n):
            new = choose(take(model(read(ids, max_len)[None])[0]))
            ids = torch.cat([ids, torch.tensor([new], device=ids.device)])
        return ids

    return write


def _write_from_one_run(model: Model, ids: Tensor, n: int, max_len: int, choose: Choose) -> Tensor:
    logits = model(ids[None, -max_len:])[0, -1]
    return torch.cat([ids, torch.tensor([choose(logits) for _ in range(n)], device=ids.device)])


def _write_and_forget(model: Model, ids: Tensor, n: int, max_len: int, choose: Choose) -> Tensor:
    for _ in range(n):
        ids = _write(model, ids[-max_len:], 1, max_len, choose)
    return ids


class _Alternating:
    """Chooses the best id and the second best in turn, as a draw gives another one each time."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls

    def __call__(self, logits: Tensor) -> int:
        if logits.ndim != 1:
            shape = tuple(logits.shape)
            raise ValueError(f"choose got logits of shape {shape}; expected (V,), one place's")
        self.calls += 1
        return int(logits.topk(2).indices[self.calls % 2])


_START = torch.tensor([2, 5, 3], device="cpu")
WRITE = Exercise(
    reference=_write,
    inputs=[
        (partial(_counter, max_len=8), _START, 5, 8, _Alternating()),
        (partial(_counter, max_len=4), _START, 9, 4, _Alternating()),
        (partial(_counter, max_len=2), _START, 4, 2, _Alternating(1)),
    ],
    mistakes={
        "The first places are kept and the newest cut off: read the last max_len ids.": (
            _write_otherwise(lambda ids, max_len: ids[:max_len])
        ),
        "The logits of the first place decide; take those of the last.": (
            _write_otherwise(take=lambda logits: logits[0])
        ),
        "One place less than the model has is read: it may read max_len ids.": (
            _write_otherwise(lambda ids, max_len: ids[1 - max_len :])
        ),
        "The model reads one id at a time; it has max_len places, and needs what came before.": (
            _write_otherwise(lambda ids, max_len: ids[-1:])
        ),
        "The model runs once, before the loop: it must read again after every new id.": (
            _write_from_one_run
        ),
        "The best id is taken always: let choose decide.": (
            lambda model, ids, n, max_len, choose: _write(
                model, ids, n, max_len, lambda logits: int(logits.argmax())
            )
        ),
        "The prompt is missing from what is returned.": (
            lambda model, ids, n, max_len, choose: _write(model, ids, n, max_len, choose)[
                len(ids) :
            ]
        ),
        "What the model can no longer read is thrown away: cut only what it reads, and keep all "
        "ids.": _write_and_forget,
        "There are n ids in all; n new ones were asked for.": (
            lambda model, ids, n, max_len, choose: _write(
                model, ids, max(0, n - len(ids)), max_len, choose
            )
        ),
    },
    hints=(
        "One letter at a time: the model reads, `choose` picks, the new id is appended, and the "
        "model reads again. It can read `max_len` ids at most: which ones?",
        "The model wants `(1, T)` and gives `(1, T, V)`; the last place answers what comes next, "
        "and `choose` wants its `(V,)`. Keep all ids; cut only what is read.",
        "`logits = model(ids[None, -max_len:])[0, -1]`, then append "
        "`torch.tensor([choose(logits)])` with `torch.cat`.",
    ),
)

_SHAPE: dict[str, Any] = {"vocab_size": 7, "max_len": 6, "d_model": 12, "n_heads": 3, "n_layers": 2}
_STEMS = {
    "tokens": "decoder.embedding.tokens",
    "positions": "decoder.embedding.positions.table",
    "blocks": "decoder.stack.blocks",
    "final_norm": "decoder.stack.final_norm",
}
State = Mapping[str, Tensor]


def _renamed(state: State) -> dict[str, Tensor]:
    new = {"output.projection.weight": state["tokens.weight"]}
    for name, tensor in state.items():
        first, rest = name.split(".", maxsplit=1)
        for layer in ("up", "down"):
            rest = rest.replace(f"{layer}.", f"feed_forward.{layer}.")
        new[f"{_STEMS[first]}.{rest}"] = tensor
    return new


def _state() -> dict[str, Tensor]:
    model = _GPT(**_SHAPE)
    _fill(model)
    return {name: tensor.cpu().double() for name, tensor in model.state_dict().items()}


def _measure_state(state: State) -> Tensor:
    config = TransformerConfig(
        **_SHAPE,
        dropout=0.0,
        position="learned",
        norm_position="pre",
        scale_embeddings=False,
    )
    model = CausalLM(config).to("cpu", torch.float64).eval()
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    if missing or unknown:
        said = [f"{missing[0]!r} is missing"] if missing else []
        said += [f"{unknown[0]!r} is not one of the library's names"] if unknown else []
        n = max(len(missing), len(unknown))
        raise UnfitError(f"{'; '.join(said)}." + (f" {n} names do not fit." if n > 1 else ""))
    model.load_state_dict(dict(state))
    with torch.no_grad():
        logits: Tensor = model(_READS)
    return logits


def _changed(state: State, change: Callable[[str, Tensor, State], Tensor]) -> dict[str, Tensor]:
    new = _renamed(state)
    return {name: change(name, tensor, new) for name, tensor in new.items()}


def _transposed(name: str, tensor: Tensor, _: State) -> Tensor:
    return tensor.mT if tensor.ndim == 2 and ".attention." in name else tensor


def _swapped(name: str, tensor: Tensor, state: State) -> Tensor:
    return state.get(
        name.replace(".query.", ".value.")
        if ".query." in name
        else name.replace(".value.", ".query."),
        tensor,
    )


def _first_block(name: str, tensor: Tensor, state: State) -> Tensor:
    return state[name.replace("blocks.1.", "blocks.0.")]


def _one_norm(name: str, tensor: Tensor, state: State) -> Tensor:
    return state[name.replace("feed_forward_norm", "attention_norm")]


RENAMED = Exercise(
    reference=_renamed,
    inputs=[lambda: (_state(),)],
    measure=_measure_state,
    mistakes={
        "The matrices of attention are transposed. They are square, so nothing complains, but "
        "both sides use nn.Linear and store (out, in).": partial(_changed, change=_transposed),
        "Queries and values have changed places.": partial(_changed, change=_swapped),
        "Every block got the weights of the first.": partial(_changed, change=_first_block),
        "Both norms of a block are the first one's.": partial(_changed, change=_one_norm),
    },
    hints=(
        "Print `library.state_dict()` beside your own names. Which beginnings differ, which two "
        "layers have something in the middle, and which name has no partner?",
        "Four beginnings: `tokens` becomes `decoder.embedding.tokens`, `positions` becomes "
        "`decoder.embedding.positions.table`, and `blocks` and `final_norm` get "
        "`decoder.stack.` in front. `up` and `down` lie in `feed_forward`.",
        "`first, rest = name.split('.', maxsplit=1)` cuts a beginning off; look the new one up in "
        "a dictionary. The tied table goes in twice: "
        "`new['output.projection.weight'] = state['tokens.weight']`.",
    ),
)
