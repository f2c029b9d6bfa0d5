"""Exercises of lab 1, Look inside the heads."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from transformer_book.exercises.grading.checking import Answer, Exercise, UnfitError, random_inputs
from transformer_lib import MultiHeadAttention

Run = Callable[[], object]


def _attend(*, fails: bool = False) -> tuple[MultiHeadAttention, Run]:
    """A layer with seeded weights, and a function that runs it on seeded inputs, or fails."""
    with torch.device("meta"):  # draws nothing: other random numbers stay as they are
        empty = MultiHeadAttention(6, 2)
    attend = empty.double().to_empty(device="cpu")
    drawn = random_inputs((3, 4, 6), *(tuple(part.shape) for part in attend.parameters()))
    for part, values in zip(attend.parameters(), drawn[1:], strict=True):
        part.data.copy_(values)

    def run() -> object:
        if fails:
            raise InterruptedError("the run was interrupted")
        return attend(drawn[0])

    return attend, run


def _listen(attend: nn.Module, run: Run, *, names: tuple[str, ...] = ("query", "key")) -> Tensor:
    """What the named projections of a layer return while it runs, ``(n, B, T, D)``."""
    heard: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        heard.append(output.detach())

    handles = [getattr(attend, name).register_forward_hook(keep) for name in names]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(heard, dim=0)


def _listen_to_inputs(attend: nn.Module, run: Run) -> Tensor:
    heard: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        heard.append(inputs[0])

    handles = [getattr(attend, name).register_forward_hook(keep) for name in ("query", "key")]
    run()
    for handle in handles:
        handle.remove()
    return torch.stack(heard)


def _hooks_left(attend: nn.Module, run: Run) -> str:
    """What to say if a call left a hook behind, also one that was interrupted."""
    if not any(part._forward_hooks or part._forward_pre_hooks for part in attend.modules()):
        return ""
    try:
        run()
    except InterruptedError:
        return "A hook is still there when the run raises an error: remove() it in a finally."
    return "A hook is still there after the run: remove() each handle."


def _one_tensor(heard: object) -> object:
    """Refuse queries and keys that come apart."""
    if isinstance(heard, tuple | list):
        raise UnfitError(f"It returned {len(heard)} things; torch.stack makes one tensor of them.")
    return heard


LISTEN = Exercise(
    reference=_listen,
    inputs=[_attend, partial(_attend, fails=True)],
    measure=_one_tensor,
    inspect=_hooks_left,
    raises=InterruptedError,
    mistakes={
        "That is what goes into the projections; a forward hook gets what comes out as its third "
        "argument.": _listen_to_inputs,
        "The keys come first; return the queries, then the keys.": (
            lambda attend, run: _listen(attend, run).flip(0)
        ),
        "Those are queries and values; weights are made from queries and keys.": (
            lambda attend, run: _listen(attend, run, names=("query", "value"))
        ),
    },
    hints=(
        "A hook is a function that PyTorch calls after a part has run. Let it keep what came out, "
        "in a list that your function owns.",
        "Register one hook on `attend.query` and one on `attend.key`, keep both handles, call "
        "`run()`, and remove the handles in a `finally`, so that they go even if the run fails.",
        "In the hook `f(part, inputs, output)` write `heard.append(output.detach())`; at the end "
        "return `torch.stack(heard)`.",
    ),
)


def _split(x: Tensor, n_heads: int) -> Tensor:
    heads: Tensor = x.unflatten(-1, (n_heads, -1))
    return heads.transpose(1, 2)


def _scores(q: Tensor, k: Tensor, n_heads: int) -> Tensor:
    q, k = _split(q, n_heads), _split(k, n_heads)
    return q @ k.mT / math.sqrt(q.shape[-1])


def _hidden(scores: Tensor) -> Tensor:
    future = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf)


def _weights(q: Tensor, k: Tensor, n_heads: int) -> Tensor:
    return _hidden(_scores(q, k, n_heads)).softmax(dim=-1)


def _weights_scaled_by(scale: Callable[[Tensor, int], float]) -> Answer:
    """Weights whose scores are divided by something else; it gets the queries and H."""

    def weights(q: Tensor, k: Tensor, n_heads: int) -> Tensor:
        products = _split(q, n_heads) @ _split(k, n_heads).mT
        return _hidden(products / scale(q, n_heads)).softmax(dim=-1)

    return weights


def _weights_seeing(allowed: Callable[[Tensor], Tensor]) -> Answer:
    """Weights under another mask; it is cut out of a table of ones."""

    def weights(q: Tensor, k: Tensor, n_heads: int) -> Tensor:
        scores = _scores(q, k, n_heads)
        seen = allowed(torch.ones_like(scores)).bool()
        return scores.masked_fill(~seen, -math.inf).softmax(dim=-1)

    return weights


def _weights_within_places(q: Tensor, k: Tensor, n_heads: int) -> Tensor:
    """Heads and places are not swapped: the heads of one place meet."""
    q, k = (x.unflatten(-1, (n_heads, -1)) for x in (q, k))
    return _hidden(q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)


def _weights_reshaped(q: Tensor, k: Tensor, n_heads: int) -> Tensor:
    q, k = (x.reshape(x.shape[0], n_heads, x.shape[1], -1) for x in (q, k))
    return _hidden(q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)


WEIGHTS = Exercise(
    reference=_weights,
    inputs=[
        (*random_inputs((2, 4, 8), (2, 4, 8)), 4),
        (*random_inputs((3, 5, 8), (3, 5, 8)), 2),
    ],
    mistakes={
        "The future is not hidden: every query sees every key.": (
            lambda q, k, h: _scores(q, k, h).softmax(dim=-1)
        ),
        "Mask before the softmax: rows must sum to 1.": (
            lambda q, k, h: _scores(q, k, h).softmax(dim=-1).tril()
        ),
        "The future's scores are set to 0, but exp(0) is 1: hide them with -inf.": (
            lambda q, k, h: _scores(q, k, h).tril().softmax(dim=-1)
        ),
        "The softmax runs over the queries; each query divides its weight among keys.": (
            lambda q, k, h: _hidden(_scores(q, k, h)).softmax(dim=-2)
        ),
        "The mask is one place too generous: a query sees the place after its own. Hide the "
        "future from one above the diagonal on, triu(1).": (
            _weights_seeing(lambda ones: ones.tril(1))
        ),
        "The mask is one place too strict: a query sees itself, too. The first one is left with "
        "nothing, and a row of -inf alone becomes NaN.": (
            _weights_seeing(lambda ones: ones.tril(-1))
        ),
        "The mask is the wrong way round: it hides the past and shows the future.": (
            _weights_seeing(lambda ones: ones.triu())
        ),
        "The scale counts D, the width of all heads; it must be Dk, the width of one.": (
            _weights_scaled_by(lambda q, n_heads: math.sqrt(q.shape[-1]))
        ),
        "The scale counts T, the number of keys; it must be Dk, the width of a head.": (
            _weights_scaled_by(lambda q, n_heads: math.sqrt(q.shape[1]))
        ),
        "The scores are divided by Dk itself; take its square root.": (
            _weights_scaled_by(lambda q, n_heads: q.shape[-1] / n_heads)
        ),
        "The scores are not divided by the square root of Dk.": (
            _weights_scaled_by(lambda q, n_heads: 1.0)
        ),
        "Heads meet heads of the same place; places must meet: after the cut, transpose(1, 2) "
        "puts the heads before the places.": _weights_within_places,
        "The heads are cut by a reshape alone: cut the features, then swap positions and heads.": (
            _weights_reshaped
        ),
    },
    hints=(
        "A head owns Dk = D / H neighbouring features. Give each head its own queries and keys, "
        "then do what one head does.",
        "Shapes: cut `(B, T, D)` into `(B, T, H, Dk)`, swap to `(B, H, T, Dk)`; the scores are "
        "`(B, H, T, T)`, divided by the square root of Dk. Above the diagonal is the future: it "
        "gets -inf before the softmax over keys.",
        "Cut with `x.unflatten(-1, (n_heads, -1)).transpose(1, 2)`; the future is "
        "`torch.ones_like(scores).triu(1).bool()`, to be used with `masked_fill`.",
    ),
)


def _entropy(weights: Tensor) -> Tensor:
    return -torch.xlogy(weights, weights).sum(dim=-1)


def _distance(weights: Tensor, *, signed: bool = False) -> Tensor:
    n_sequences, _, n_places, _ = weights.shape
    places = torch.arange(n_places, device=weights.device)
    gaps = (places - places[:, None]).to(weights)
    total = torch.einsum("bhqk,qk->h", weights, gaps if signed else gaps.abs())
    return total / (n_sequences * n_places)


def _previous(weights: Tensor, offset: int = -1) -> Tensor:
    return weights.diagonal(offset, dim1=-2, dim2=-1).mean(dim=(0, 2))


def _head_scores(weights: Tensor) -> Tensor:
    places = _entropy(weights).exp().mean(dim=(0, 2))
    return torch.stack([places, _distance(weights), _previous(weights)])


def _with_row(weights: Tensor, row: int, values: Tensor) -> Tensor:
    """The right scores but for one row."""
    found = _head_scores(weights)
    found[row] = values
    return found


SCORES = Exercise(
    reference=_head_scores,
    inputs=[
        (_hidden(*random_inputs((2, 5, 4, 4))).softmax(dim=-1),),
        (_hidden(*random_inputs((3, 2, 6, 6))).softmax(dim=-1),),
        (random_inputs((2, 4, 5, 5))[0].softmax(dim=-1),),  # a head may look both ways
    ],
    mistakes={
        "Zero times the logarithm of zero became NaN: torch.xlogy(w, w) gives 0 there.": (
            lambda w: _with_row(w, 0, (-(w * w.log()).sum(dim=-1)).exp().mean(dim=(0, 2)))
        ),
        "The first row is the entropy itself; take its exponential.": (
            lambda w: _with_row(w, 0, _entropy(w).mean(dim=(0, 2)))
        ),
        "Exponential and mean are in the wrong order: count the places of each query, then take "
        "the mean.": lambda w: _with_row(w, 0, _entropy(w).mean(dim=(0, 2)).exp()),
        "The distances have a sign; take their size.": (
            lambda w: _with_row(w, 1, _distance(w, signed=True))
        ),
        "The distances have a sign, so that those of a head that looks both ways cancel; take "
        "their size.": lambda w: _with_row(w, 1, -_distance(w, signed=True)),
        "The first query has nothing before it and does not count: divide by T - 1, not by T.": (
            lambda w: _with_row(w, 2, _previous(w) * (w.shape[-1] - 1) / w.shape[-1])
        ),
        "That is the diagonal above the main one: the place after, which a causal mask hides.": (
            lambda w: _with_row(w, 2, _previous(w, 1))
        ),
        "That is the main diagonal, each place itself; the place before is one below it.": (
            lambda w: _with_row(w, 2, _previous(w, 0))
        ),
    },
    hints=(
        "Make one number for each query of each head first, and average at the very end.",
        "Entropy is minus the sum of w log w over keys, with 0 for w = 0. The distance of query i "
        "and key j is |i - j|. The weights on the place before stand one below the diagonal.",
        "`torch.xlogy(weights, weights)` is w log w without NaN, and "
        "`weights.diagonal(-1, dim1=-2, dim2=-1)` is `(B, H, T - 1)`. Average each over "
        "`dim=(0, 2)` and stack the three.",
    ),
)


def _pattern(weights: Tensor, wanted: Tensor) -> Tensor:
    has_one = wanted.any(dim=-1)  # (B, T)
    hits = (weights * wanted[:, None]).sum(dim=(0, 2, 3))  # (H,)
    return hits / has_one.sum()


def _wanted(*shape: int) -> Tensor:
    """Keys that are wanted, none in the future; the first queries have none, the last one does."""
    (drawn,) = random_inputs(shape)
    chosen = (drawn > 0).tril()
    chosen[:, :2] = False
    chosen[-1, :4] = False  # another number of queries than in the other sequences
    chosen[:, -1, 1:3] = True
    return chosen


PATTERN = Exercise(
    reference=_pattern,
    inputs=[
        (_hidden(*random_inputs((2, 3, 5, 5))).softmax(dim=-1), _wanted(2, 5, 5)),
        (random_inputs((3, 2, 5, 7))[0].softmax(dim=-1), _wanted(3, 5, 7)),
    ],
    mistakes={
        "Queries without a wanted key count as misses: leave them out of the mean.": (
            lambda w, wanted: (w * wanted[:, None]).sum(dim=-1).mean(dim=(0, 2))
        ),
        "That is the mean over wanted pairs: add up the weight of each query first.": (
            lambda w, wanted: (w * wanted[:, None]).sum(dim=(0, 2, 3)) / wanted.sum()
        ),
        "That is the largest wanted weight of each query; add them up.": (
            lambda w, wanted: (
                (w * wanted[:, None]).amax(dim=-1).sum(dim=(0, 2)) / wanted.any(dim=-1).sum()
            )
        ),
        "Each sequence counts the same; let each query that has a wanted key count the same.": (
            lambda w, wanted: (
                (w * wanted[:, None]).sum(dim=(2, 3)) / wanted.any(dim=-1).sum(dim=-1)[:, None]
            ).mean(dim=0)
        ),
        "The heads are averaged, too; return one number for each, `(H,)`.": (
            lambda w, wanted: _pattern(w, wanted).mean()
        ),
    },
    hints=(
        "First a number for each query: how much of its weight lies on wanted keys. Then the mean, "
        "over the queries that have such a key.",
        "`wanted` has no axis for heads: give it one, `(B, 1, T, S)`. Count the queries in all "
        "sequences together.",
        "`(weights * wanted[:, None]).sum(dim=-1)` is `(B, H, T)`; add it up over batch and "
        "queries and divide by `wanted.any(dim=-1).sum()`.",
    ),
)


def _silence(x: Tensor, n_heads: int, head: int, *, over: tuple[int, ...] = (0, 1)) -> Tensor:
    changed = x.clone()
    width = x.shape[-1] // n_heads
    part = changed[..., head * width : (head + 1) * width]
    part.copy_(part.mean(dim=over, keepdim=True).expand_as(part))
    return changed


def _others_silenced(x: Tensor, n_heads: int, head: int) -> Tensor:
    changed = x.mean(dim=(0, 1)).expand_as(x).clone()
    own = slice(head * x.shape[-1] // n_heads, (head + 1) * x.shape[-1] // n_heads)
    changed[..., own] = x[..., own]
    return changed


def _zeroed(x: Tensor, n_heads: int, head: int) -> Tensor:
    changed = x.clone()
    width = x.shape[-1] // n_heads
    changed[..., head * width : (head + 1) * width] = 0
    return changed


def _every_nth(x: Tensor, n_heads: int, head: int) -> Tensor:
    changed = x.clone()
    changed[..., head::n_heads] = x[..., head::n_heads].mean(dim=(0, 1))
    return changed


SILENCE = Exercise(
    reference=_silence,
    inputs=[(*random_inputs((2, 5, 12)), 4, 2), (*random_inputs((3, 4, 10)), 2, 1)],
    leaves_arguments=True,
    mistakes={
        "That is zero in place of what the head says; here its mean is wanted.": _zeroed,
        "The mean is taken over positions alone: each sequence still has a value of its own. "
        "Take it over the batch, too.": partial(_silence, over=(1,)),
        "The mean is taken over the batch alone: each position still has a value of its own. "
        "Take it over positions, too.": partial(_silence, over=(0,)),
        "The mean is taken over features, too: each feature has a mean of its own.": (
            partial(_silence, over=(0, 1, 2))
        ),
        "A head has Dk neighbouring features, not every H-th one.": _every_nth,
        "That is x as it was: nothing is silenced.": lambda x, n_heads, head: x.clone(),
        "That silences the head before: the first head is number 0.": (
            lambda x, n_heads, head: _silence(x, n_heads, head - 1)
        ),
        "All other heads are silenced; silence this one and leave them as they are.": (
            _others_silenced
        ),
    },
    hints=(
        "Work on a copy. Which of the H * Dk features belong to this head, and what is each of "
        "them on average?",
        "With `width = x.shape[-1] // n_heads`, head number `head` owns the features from "
        "`head * width` up to `(head + 1) * width`. Their mean over batch and positions has shape "
        "`(width,)` and broadcasts.",
        "`changed = x.clone()`, then assign `x[..., part].mean(dim=(0, 1))` to "
        "`changed[..., part]`.",
    ),
)


def _chance(effects: Tensor, layer: int, head: int) -> float:
    return (effects >= effects[layer, head]).double().mean().item()


_EFFECTS = torch.tensor([[0.4, 0.1, 0.1], [-0.5, 0.0, 0.2]], dtype=torch.float64, device="cpu")

CHANCE = Exercise(
    reference=_chance,
    inputs=[(_EFFECTS, 0, 0), (_EFFECTS, 0, 1), (_EFFECTS, 1, 2), (_EFFECTS, 1, 0)],
    mistakes={
        "The head itself is left out, so that the best one gets 0. It is one of those that a "
        "blind choice could have hit: count it, and ties.": (
            lambda e, i, j: (e > e[i, j]).double().mean()
        ),
        "That counts the heads with at most this effect; count those with at least as much.": (
            lambda e, i, j: (e <= e[i, j]).double().mean()
        ),
        "That is a number of heads; divide by how many there are.": (
            lambda e, i, j: (e >= e[i, j]).sum()
        ),
        "The size of the effect is compared, without its sign: a head that harms is no rival.": (
            lambda e, i, j: (e.abs() >= e[i, j].abs()).double().mean()
        ),
        "The head is compared with its own layer alone; compare it with all heads.": (
            lambda e, i, j: (e[i] >= e[i, j]).double().mean()
        ),
    },
    hints=(
        "Compare the effect of the claimed head with all effects at once. It is as large as "
        "itself, so it counts itself.",
        "`effects >= effects[layer, head]` is a table of True and False, and the share of True is "
        "its mean: `(...).double().mean()`.",
    ),
)
