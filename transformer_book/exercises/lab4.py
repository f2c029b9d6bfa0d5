"""Checks of lab 4, A GPT from an empty page."""

import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.exercises.checking import Exercise, random_inputs
from transformer_lib.config import TransformerConfig
from transformer_lib.heads import CausalLM


def _batch(ids: Tensor, starts: Tensor, length: int, *, shift: int = 1) -> tuple[Tensor, Tensor]:
    places = starts[:, None] + torch.arange(length, device=starts.device)
    return ids[places], ids[places + shift]


_SQUARES = torch.arange(40, device="cpu").square()
BATCH = Exercise(
    reference=_batch,
    inputs=[
        (_SQUARES, torch.tensor([3, 20, 11], device="cpu"), 6),
        (_SQUARES, torch.tensor([30, 1], device="cpu"), 4),
    ],
    mistakes={
        "The targets are what is read: each must be the letter that follows.": partial(
            _batch, shift=0
        ),
        "The targets come from one place before; they must come from one place after.": partial(
            _batch, shift=-1
        ),
        "The targets are two places ahead: the next letter is one.": partial(_batch, shift=2),
        "Reads and targets have changed places.": (
            lambda ids, starts, length: _batch(ids, starts, length)[::-1]
        ),
    },
)


def _head(
    q: Tensor, k: Tensor, v: Tensor, *, scale: bool = True, dim: int = -1, first_hidden: int = 1
) -> Tensor:
    scores = q @ k.mT / (math.sqrt(q.shape[-1]) if scale else 1)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(first_hidden)
    return scores.masked_fill(hidden, -math.inf).softmax(dim=dim) @ v


def _backwards(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that sees the present and the future."""
    return _head(q.flip(-2), k.flip(-2), v.flip(-2)).flip(-2)


def _masked_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1).tril() @ v


_NO_MASK = 10**6  # so far to the right nothing is hidden
HEAD = Exercise(
    reference=_head,
    inputs=[
        random_inputs((5, 4), (5, 4), (5, 4)),
        random_inputs((2, 3, 6, 2), (2, 3, 6, 2), (6, 2)),
    ],
    mistakes={
        "Nothing is hidden: every place sees the places after it.": partial(
            _head, first_hidden=_NO_MASK
        ),
        "The mask is a place too generous: answers are seen.": partial(_head, first_hidden=2),
        "The mask is the wrong way round: it hides the past.": _backwards,
        "The scores are not scaled: divide them by the root of K.": partial(_head, scale=False),
        "The future is hidden after the softmax, so the rows no longer sum to 1. Put -inf into "
        "the scores before it.": _masked_late,
        "The columns are normalised: the softmax goes along the keys, the last axis.": partial(
            _head, dim=-2
        ),
    },
)


class _Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, wrong: str = "") -> None:
        super().__init__()
        self.n_heads, self.wrong = n_heads, wrong
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            n = 1 if self.wrong == "one head" else self.n_heads
            if self.wrong == "reshaped":
                return y.reshape(y.shape[0], n, y.shape[1], -1)
            cut: Tensor = y.unflatten(-1, (n, -1))
            return cut.transpose(1, 2)

        first_hidden = _NO_MASK if self.wrong == "no mask" else 1
        q, k, v = (split(layer(x)) for layer in (self.query, self.key, self.value))
        y = _head(q, k, v, first_hidden=first_hidden)
        merged = y.reshape(x.shape) if self.wrong == "merged" else y.transpose(1, 2).flatten(2)
        return merged if self.wrong == "no output" else self.output(merged)


def _fill(module: nn.Module, names: list[str]) -> float:
    """Give each parameter numbers that depend on its name, and count them."""
    found = dict(module.named_parameters())
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"no parameter is named {missing[0]!r}; there are {sorted(found)}")
    with torch.no_grad():
        for name, parameter in found.items():
            draw = torch.Generator("cpu").manual_seed(zlib.crc32(name.encode()))
            numbers = torch.randn(parameter.shape, generator=draw, device="cpu")
            parameter.copy_(0.5 * numbers)
    return float(sum(parameter.numel() for parameter in found.values()))


def _measure(module: nn.Module, names: list[str], inputs: Tensor) -> Tensor:
    """The number of parameters, then the outputs with weights that the names decide."""
    n_parameters = _fill(module, names)
    with torch.no_grad():
        outputs = module.to("cpu", torch.float64).eval()(inputs)
    return torch.cat([torch.tensor([n_parameters], device="cpu"), outputs.flatten()])


def _linear(*names: str) -> list[str]:
    return [f"{name}.{part}" for name in names for part in ("weight", "bias")]


_ATTENTION = _linear("query", "key", "value", "output")
(_STREAM,) = random_inputs((2, 5, 12))
ATTENTION = Exercise(
    reference=_Attention,
    inputs=[(12, 3), (12, 4)],
    measure=lambda module: _measure(module, _ATTENTION, _STREAM),
    mistakes={
        "The heads are split by a reshape alone. Cut the features first, then swap places and "
        "heads.": partial(_Attention, wrong="reshaped"),
        "The heads are merged by a reshape alone: swap heads and places back first.": partial(
            _Attention, wrong="merged"
        ),
        "That is one head of full width: split queries, keys and values.": partial(
            _Attention, wrong="one head"
        ),
        "The output layer is there and not used.": partial(_Attention, wrong="no output"),
        "The heads see the future: use the head of step 2.": partial(_Attention, wrong="no mask"),
    },
)


class _Norm(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=-1, keepdim=True)
        size = (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return self.gain * x / size + self.bias


class _Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.attention_norm = _Norm(d_model)
        self.attention = _Attention(d_model, n_heads)
        self.feed_forward_norm = _Norm(d_model)
        self.expand = nn.Linear(d_model, 4 * d_model)
        self.contract = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        if self.wrong == "post":
            x = self.attention_norm(x + self.attention(x))
            post: Tensor = self.feed_forward_norm(x + self._network(x))
            return post
        read = x if self.wrong == "no first norm" else self.attention_norm(x)
        told: Tensor = self.attention(read)
        if self.wrong == "normed stream":
            told = self.feed_forward_norm(read + told)
            return told + self._network(told)
        middle = told if self.wrong == "no skip" else x + told
        source = x if self.wrong == "side by side" else middle
        return middle + self._network(self.feed_forward_norm(source))

    def _network(self, x: Tensor) -> Tensor:
        inner = self.expand(x)
        new: Tensor = self.contract(inner if self.wrong == "linear" else inner.relu())
        return new


_BLOCK = [
    *(f"attention.{name}" for name in _ATTENTION),
    *_linear("expand", "contract"),
    *(f"{name}_norm.{part}" for name in ("attention", "feed_forward") for part in ("gain", "bias")),
]
BLOCK = Exercise(
    reference=_Block,
    inputs=[(12, 3), (12, 4)],
    measure=lambda module: _measure(module, _BLOCK, _STREAM),
    mistakes={
        "The norms come after the sums (post-norm, as in 2017). Here they stand before each "
        "sublayer, inside the branch.": partial(_Block, wrong="post"),
        "Attention replaces the stream: add what it returns to x.": partial(
            _Block, wrong="no skip"
        ),
        "The stream itself is normalised: only what a sublayer reads may be.": partial(
            _Block, wrong="normed stream"
        ),
        "Attention reads the stream without its norm.": partial(_Block, wrong="no first norm"),
        "The network reads the stream as it was before attention added to it.": partial(
            _Block, wrong="side by side"
        ),
        "The ReLU is missing: two linear layers in a row are one.": partial(_Block, wrong="linear"),
    },
)


class _GPT(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        d_model: int,
        n_heads: int,
        n_layers: int,
        wrong: str = "",
    ) -> None:
        super().__init__()
        self.wrong = wrong
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList(_Block(d_model, n_heads) for _ in range(n_layers))
        if wrong == "one block":
            self.blocks = nn.ModuleList([_Block(d_model, n_heads)] * n_layers)
        self.final_norm = _Norm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False) if wrong == "untied" else None
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=1.0 if wrong == "loud" else 0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        if self.wrong != "no positions":
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        x = x if self.wrong == "no final norm" else self.final_norm(x)
        logits: Tensor = x @ self.tokens.weight.mT if self.head is None else self.head(x)
        return logits.softmax(dim=-1) if self.wrong == "softmax" else logits


_MODEL = [
    *("tokens.weight", "positions.weight", "final_norm.gain", "final_norm.bias"),
    *(f"blocks.0.{name}" for name in _BLOCK),
]
_READS = torch.tensor([[3, 1, 4, 1, 5], [6, 2, 6, 5, 3]], device="cpu")


def _measure_model(model: nn.Module) -> Tensor:
    quiet = all(p.std() < 0.3 for p in model.parameters() if p.ndim == 2 and len(p) < 10)
    numbers = _measure(model, _MODEL, _READS)
    return torch.cat([torch.tensor([float(quiet)], device="cpu"), numbers])


GPT = Exercise(
    reference=_GPT,
    inputs=[(7, 6, 12, 3, 1), (7, 6, 12, 3, 2)],
    measure=_measure_model,
    mistakes={
        "The tables start with standard deviation 1, as nn.Embedding draws them. The tied head "
        "then shouts from the first step: draw both with 0.1.": partial(_GPT, wrong="loud"),
        "There are more parameters than there should be: the head is the table of tokens itself "
        "(tied), no layer of its own.": partial(_GPT, wrong="untied"),
        "The positions are there and not added.": partial(_GPT, wrong="no positions"),
        "The final norm is missing: pre-norm blocks leave a bare sum.": partial(
            _GPT, wrong="no final norm"
        ),
        "One block stands in all places: build a new one for each layer.": partial(
            _GPT, wrong="one block"
        ),
        "These are probabilities; return the logits.": partial(_GPT, wrong="softmax"),
    },
)


def _sums(ids: Tensor, *, ahead: int) -> Tensor:
    """A toy model: at each place the letters so far, counted, and those of some places ahead."""
    seen = torch.nn.functional.one_hot(ids, 5).double().cumsum(dim=1)
    places = torch.arange(ids.shape[1], device=ids.device)
    louder = 1.0 + torch.arange(5, device=ids.device)  # than smaller ids; so are later places
    return (1.0 + places)[:, None] * louder * seen[:, (places + ahead).clamp(max=ids.shape[1] - 1)]


def _changes(model: Callable[[Tensor], Tensor], ids: Tensor, place: int, new: int) -> Tensor:
    other = ids.clone()
    other[:, place] = new
    with torch.no_grad():
        return model(other) - model(ids)


def _leak(model: Callable[[Tensor], Tensor], ids: Tensor, place: int, new: int) -> float:
    return _changes(model, ids, place, new)[:, :place].abs().max().item()


_TOY = torch.tensor([[0, 1, 2, 3, 1, 0]], device="cpu")
LEAK = Exercise(
    reference=_leak,
    inputs=[
        (partial(_sums, ahead=0), _TOY, 3, 4),
        (partial(_sums, ahead=1), _TOY, 3, 4),
        (partial(_sums, ahead=1), _TOY, 3, 0),
    ],
    mistakes={
        "The place itself counts too: it may change, and does. Look only at those before it.": (
            lambda model, ids, place, new: (
                _changes(model, ids, place, new)[:, : place + 1].abs().max().item()
            )
        ),
        "These are the places after the change, which may change. Look at those before it.": (
            lambda model, ids, place, new: (
                _changes(model, ids, place, new)[:, place:].abs().max().item()
            )
        ),
        "A change downwards is a change, too: take absolute values.": (
            lambda model, ids, place, new: _changes(model, ids, place, new)[:, :place].max().item()
        ),
        "That is the mean; one changed number is a leak, so take the largest.": (
            lambda model, ids, place, new: (
                _changes(model, ids, place, new)[:, :place].abs().mean().item()
            )
        ),
    },
)


def _choose(logits: Tensor, temperature: float, top_k: int, u: float, *, wrong: str = "") -> int:
    hot = wrong == "multiplied"
    scores = logits * temperature if hot else logits / temperature
    best = scores.topk(len(scores) if wrong == "all" else top_k)
    p = scores.masked_fill(scores < best.values[-1], -math.inf).softmax(dim=-1)
    if wrong == "sorted":
        sums = best.values.softmax(dim=-1).cumsum(dim=-1)
        return int(best.indices[int((sums <= u * sums[-1]).sum())])
    sums = p.cumsum(dim=-1)
    return int((sums <= u * sums[-1]).sum())


(_LOGITS,) = random_inputs((9,))
_DRAWS = [
    (2 * _LOGITS, temperature, top_k, u)
    for temperature, top_k in ((1.0, 9), (0.4, 9), (2.5, 9), (1.0, 3), (2.5, 4))
    for u in (0.02, 0.23, 0.41, 0.58, 0.77, 0.97)
]
CHOOSE = Exercise(
    reference=_choose,
    inputs=_DRAWS,
    mistakes={
        "The logits are multiplied by the temperature; divide by it.": partial(
            _choose, wrong="multiplied"
        ),
        "All tokens can be drawn: those outside the best k must get probability 0.": partial(
            _choose, wrong="all"
        ),
        "The best token is taken always: let u decide.": (
            lambda logits, temperature, top_k, u: int(logits.argmax())
        ),
        "The tokens are lined up from the best down. That draws fairly, too, but here they keep "
        "the order of their ids, so that a given u means a given token.": partial(
            _choose, wrong="sorted"
        ),
    },
)


def _counter(ids: Tensor, *, max_len: int) -> Tensor:
    """A toy model: the next id is the weighted sum of what it reads, modulo 7."""
    if ids.shape[1] > max_len:
        raise RuntimeError(f"{ids.shape[1]} ids for a model with {max_len} places")
    weights = 1 + torch.arange(ids.shape[1], device=ids.device)
    return torch.nn.functional.one_hot((ids * weights).cumsum(dim=1) % 7, 7).double()


Choose = Callable[[Tensor], int]


def _write(
    model: Callable[[Tensor], Tensor],
    ids: Tensor,
    n: int,
    max_len: int,
    choose: Choose,
    *,
    wrong: str = "",
) -> Tensor:
    for _ in range(n):
        read = {"front": ids[:max_len], "short": ids[1 - max_len :]}.get(wrong, ids[-max_len:])
        logits = model(read[None])[0]
        new = choose(logits[0 if wrong == "first" else -1])
        ids = torch.cat([ids, torch.tensor([new], device=ids.device)])
    return ids


def _best(logits: Tensor) -> int:
    return int(logits.argmax())


_START = torch.tensor([2, 5, 3], device="cpu")
WRITE = Exercise(
    reference=_write,
    inputs=[
        (partial(_counter, max_len=8), _START, 4, 8, _best),
        (partial(_counter, max_len=4), _START, 9, 4, _best),
    ],
    mistakes={
        "The first places are kept and the newest cut off: read the last max_len ids.": partial(
            _write, wrong="front"
        ),
        "The logits of the first place decide; take those of the last.": partial(
            _write, wrong="first"
        ),
        "One place less than the model has is read: it may read max_len ids.": partial(
            _write, wrong="short"
        ),
        "The prompt is missing from what is returned.": (
            lambda model, ids, n, max_len, choose: _write(model, ids, n, max_len, choose)[
                len(ids) :
            ]
        ),
    },
)

_SHAPE: dict[str, Any] = {"vocab_size": 7, "max_len": 6, "d_model": 12, "n_heads": 3, "n_layers": 2}
_RENAMED = {
    "tokens": "decoder.embedding.tokens",
    "positions": "decoder.embedding.positions.table",
    "blocks": "decoder.stack.blocks",
    "final_norm": "decoder.stack.final_norm",
}
State = Mapping[str, Tensor]


def _renamed(state: State) -> dict[str, Tensor]:
    new = {"output.projection.weight": state["tokens.weight"]}
    for name, tensor in state.items():
        first, _, rest = name.partition(".")
        for layer in ("expand", "contract"):
            rest = rest.replace(f"{layer}.", f"feed_forward.{layer}.")
        new[f"{_RENAMED[first]}.{rest}"] = tensor
    return new


def _state() -> dict[str, Tensor]:
    model = _GPT(**_SHAPE)
    _fill(model, _MODEL)
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
    wanted = set(model.state_dict())
    wrong: list[Any] = sorted(wanted ^ set(state))
    if wrong:
        what = "is missing" if wrong[0] in wanted else "is not one of the library's names"
        raise ValueError(f"{wrong[0]!r} {what} ({len(wrong)} names do not fit)")
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


RENAMED = Exercise(
    reference=_renamed,
    inputs=[(_state(),)],
    measure=_measure_state,
    mistakes={
        "The matrices of attention are transposed. They are square, so nothing complains, but "
        "both sides use nn.Linear and store (out, in).": partial(_changed, change=_transposed),
        "Queries and values have changed places.": partial(_changed, change=_swapped),
        "Every block got the weights of the first.": partial(_changed, change=_first_block),
    },
)
