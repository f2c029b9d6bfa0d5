"""Exercises of chapter 16, Generation."""

import torch
from torch import Tensor

from transformer_book.exercises.grading.checking import Exercise


def _top_p(probabilities: Tensor, share: float) -> Tensor:
    ordered, order = probabilities.sort(descending=True)
    kept = ordered * (ordered.cumsum(dim=0) - ordered < share)
    return torch.zeros_like(kept).scatter(0, order, kept / kept.sum())


def _without_the_last(probabilities: Tensor, share: float) -> Tensor:
    ordered, order = probabilities.sort(descending=True)
    kept = ordered * (ordered.cumsum(dim=0) <= share)
    return torch.zeros_like(kept).scatter(0, order, kept / kept.sum())


def _not_shared_out(probabilities: Tensor, share: float) -> Tensor:
    return probabilities * (_top_p(probabilities, share) > 0)


def _unsorted(probabilities: Tensor, share: float) -> Tensor:
    kept = probabilities * (probabilities.cumsum(dim=0) - probabilities < share)
    return kept / kept.sum()


def _left_sorted(probabilities: Tensor, share: float) -> Tensor:
    return _top_p(probabilities, share).sort(descending=True).values


def _from_below(probabilities: Tensor, share: float) -> Tensor:
    kept = probabilities * (probabilities >= share * probabilities.max())
    return kept / kept.sum()


def _one_too_many(probabilities: Tensor, share: float) -> Tensor:
    """Go on until the sum exceeds the threshold, where reaching it is enough."""
    ordered, order = probabilities.sort(descending=True)
    kept = ordered * (ordered.cumsum(dim=0) - ordered <= share)
    return torch.zeros_like(kept).scatter(0, order, kept / kept.sum())


def _wrongly_put_back(probabilities: Tensor, share: float) -> Tensor:
    """Sort back by the order itself, where its inverse is needed."""
    return _left_sorted(probabilities, share)[probabilities.argsort(descending=True)]


TOP_P = Exercise(
    reference=_top_p,
    inputs=[
        (torch.tensor([0.1, 0.4, 0.06, 0.25, 0.04, 0.15], device="cpu"), 0.7),
        (torch.tensor([0.05, 0.05, 0.9], device="cpu"), 0.5),
        (torch.tensor([0.2, 0.5, 0.3], device="cpu"), 0.75),
        (torch.tensor([0.25, 0.125, 0.5, 0.125], device="cpu"), 0.75),  # two reach it exactly
    ],
    mistakes={
        "The token with which the sum reaches `share` is dropped. It stays: the kept ones must add "
        "up to at least that.": _without_the_last,
        "Where the sum is exactly `share`, it is enough: at least, not more than.": _one_too_many,
        "The kept probabilities do not add up to 1: divide them by their sum.": _not_shared_out,
        "The sum runs over the tokens as they stand. Sort them first, the best one first.": (
            _unsorted
        ),
        "The result is still sorted. Put each probability back in the place of its token.": (
            _left_sorted
        ),
        "That is min-p, which compares each token with the best one.": _from_below,
        "That is the distribution as it was: nothing is dropped.": lambda probabilities, share: (
            probabilities
        ),
        "Some probabilities went back to the wrong tokens: scatter them to the places that sort "
        "gave, or index with order.argsort().": _wrongly_put_back,
        "That is the softmax of what is kept: these are probabilities already, divide by their "
        "sum.": lambda probabilities, share: _not_shared_out(probabilities, share).softmax(dim=0),
    },
    hints=(
        "Sort the tokens, the best one first, and add up. A token is kept if those *before* it "
        "have not reached `share` yet.",
        "`probabilities.sort(descending=True)` also gives the `order`. What comes before each "
        "token is the cumulative sum less the token's own. Then make the kept ones sum to 1 and "
        "put each back in its place.",
        "Keep where `ordered.cumsum(dim=0) - ordered < share`; `torch.zeros_like(kept).scatter(0, "
        "order, kept)` puts them back.",
    ),
)


def _beam_step(totals: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    n = len(totals)
    values, places = (totals[:, None] + gains).flatten().topk(n)
    return values, places // gains.shape[1]


def _best_of_each(totals: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    return totals + gains.max(dim=1).values, torch.arange(len(totals), device="cpu")


def _from_gains_alone(totals: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    return _beam_step(torch.zeros_like(totals), gains)


def _columns(totals: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    values, places = (totals[:, None] + gains).flatten().topk(len(totals))
    return values, places % gains.shape[1]


def _multiplied(totals: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    values, places = (totals[:, None] * gains).flatten().topk(len(totals))
    return values, places // gains.shape[1]


BEAM_STEP = Exercise(
    reference=_beam_step,
    inputs=[
        (
            torch.tensor([0.6, 0.4], device="cpu").log(),
            torch.tensor([[0.3, 0.36, 0.34], [0.9, 0.02, 0.08]], device="cpu").log(),
        ),
        (
            torch.tensor([0.5, 0.3, 0.2], device="cpu").log(),
            torch.tensor([[0.55, 0.45], [0.1, 0.9], [0.6, 0.4]], device="cpu").log(),
        ),
        (
            torch.tensor([0.55, 0.45], device="cpu").log(),
            torch.tensor([[0.1, 0.2, 0.4, 0.25, 0.05], [0.08, 0.02, 0.1, 0.2, 0.6]]).log(),
        ),
    ],
    mistakes={
        "Each beam keeps its own best continuation. They compete: take the best of all beams "
        "together.": _best_of_each,
        "The totals so far are missing: add each beam's to what its next token gains.": (
            _from_gains_alone
        ),
        "The second row tells which token was added; it must tell which beam each goes on from.": (
            _columns
        ),
        "Logarithms of probabilities are added, not multiplied.": _multiplied,
        "A row of `gains` has V entries: divide the places by V, not by the number of beams.": (
            lambda totals, gains: (
                _beam_step(totals, gains)[0],
                (totals[:, None] + gains).flatten().topk(len(totals)).indices // len(totals),
            )
        ),
        "The second result is the place among all N · V; it must tell which beam that is.": (
            lambda totals, gains: (totals[:, None] + gains).flatten().topk(len(totals))
        ),
        "Only the totals are returned; return which beam each goes on from, too.": (
            lambda totals, gains: _beam_step(totals, gains)[0]
        ),
        "These are all continuations; only the N best go on.": lambda totals, gains: (
            (totals[:, None] + gains).flatten().sort(descending=True).values,
            (totals[:, None] + gains).flatten().argsort(descending=True) // gains.shape[1],
        ),
    },
    hints=(
        "Every beam can go on with every token: N · V candidates. They all compete, whichever "
        "beam they come from.",
        "The candidates' totals are `(N, V)`: each row of `gains` plus its beam's total. Flatten "
        "them and take the N best. Which beam does a place of the flat list belong to?",
        "`(totals[:, None] + gains).flatten().topk(len(totals))` gives values and places; a place "
        "belongs to the beam `place // V`.",
    ),
    returns=("new totals", "beams"),
)


def _length_score(log_p: float, n_tokens: int, alpha: float) -> float:
    return float(log_p / ((5 + n_tokens) / 6) ** alpha)


LENGTH_SCORE = Exercise(
    reference=_length_score,
    inputs=[(-4.0, 7, 0.6), (-3.0, 1, 0.6), (-9.0, 19, 1.0), (-2.0, 4, 0.0)],
    mistakes={
        "The sum is multiplied by the penalty. It is divided: a longer answer has lost more.": (
            lambda log_p, n, alpha: log_p * ((5 + n) / 6) ** alpha
        ),
        "That is the mean over tokens to the power α; the rule has (5 + n) / 6 in place of n.": (
            lambda log_p, n, alpha: log_p / n**alpha
        ),
        "The penalty has no exponent α.": lambda log_p, n, alpha: log_p / ((5 + n) / 6),
        "The exponent stands at the 5 + n alone: divide by 6 first.": (
            lambda log_p, n, alpha: log_p / ((5 + n) ** alpha / 6)
        ),
        "The penalty is missing: that is the logarithm of the probability.": (
            lambda log_p, n, alpha: log_p
        ),
        "That is the penalty itself; divide the sum of logarithms by it.": (
            lambda log_p, n, alpha: ((5 + n) / 6) ** alpha
        ),
    },
    hints=(
        "The rule divides the sum of logarithms by a penalty that grows with the length.",
        "The penalty is 5 plus the number of tokens, divided by 6, to the power of `alpha`: 1 for "
        "one token.",
        "Divide `log_p` by `((5 + n_tokens) / 6) ** alpha`.",
    ),
)


def _cache_bytes(
    n_layers: int, n_kv_heads: int, d_head: int, length: int, batch: int, n_bytes: int
) -> int:
    return 2 * n_layers * n_kv_heads * d_head * length * batch * n_bytes


CACHE_BYTES = Exercise(
    reference=_cache_bytes,
    inputs=[(80, 8, 128, 4096, 1, 2), (4, 8, 32, 256, 3, 4), (12, 6, 64, 1024, 5, 2)],
    mistakes={
        "There are keys and values: twice as many numbers.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, d, n, b, size) // 2
        ),
        "That is the number of values; each takes several bytes.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, d, n, b, 1)
        ),
        "Each text of the batch has a cache of its own.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, d, n, 1, size)
        ),
        "Each layer has keys and values of its own.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(1, heads, d, n, b, size)
        ),
        "The heads are missing: each key-value head has vectors of width d_head.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, 1, d, n, b, size)
        ),
        "The length is squared. Scores are length times length, but nobody keeps them.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, d, n * n, b, size)
        ),
        "The width is missing: a key is a vector of d_head numbers.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, 1, n, b, size)
        ),
        "The length is missing: every token has a key and a value.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, d, 1, b, size)
        ),
        "Keys and values are kept, queries are not: twice, not three times.": (
            lambda layers, heads, d, n, b, size: _cache_bytes(layers, heads, d, n, b, size) * 3 // 2
        ),
    },
    hints=(
        "What is kept of one token, in one layer, in one key-value head?",
        "A key and a value of `d_head` numbers each. Now for all heads, layers, tokens and texts, "
        "and the bytes of each number.",
        "`2 * n_kv_heads * d_head` numbers for a token and a layer; multiply by the four that are "
        "left: `n_layers`, `length`, `batch` and `n_bytes`.",
    ),
)


def _instead(p: Tensor, q: Tensor) -> Tensor:
    missing = (p - q).clamp(min=0)
    return missing / missing.sum()


INSTEAD = Exercise(
    reference=_instead,
    inputs=[
        (
            torch.tensor([0.5, 0.3, 0.2], device="cpu"),
            torch.tensor([0.2, 0.2, 0.6], device="cpu"),
        ),
        (
            torch.tensor([0.1, 0.2, 0.3, 0.4], device="cpu"),
            torch.tensor([0.3, 0.3, 0.3, 0.1], device="cpu"),
        ),
    ],
    mistakes={
        "Drawing from p again is not exact: what the draft proposes often would come too often.": (
            lambda p, q: p
        ),
        "The probabilities do not add up to 1: divide by their sum.": (
            lambda p, q: (p - q).clamp(min=0)
        ),
        "That is what the draft has too much of. Give what it has too little of: p - q.": (
            lambda p, q: _instead(q, p)
        ),
        "Negative differences count as zero; they have lost their sign instead.": (
            lambda p, q: (p - q).abs() / (p - q).abs().sum()
        ),
        "That is what both agree on, min(p, q). It was kept already.": (
            lambda p, q: torch.minimum(p, q) / torch.minimum(p, q).sum()
        ),
        "That is how probable it is that a guess is kept, min(1, p / q).": (
            lambda p, q: (p / q).clamp(max=1)
        ),
        "Negative differences count as zero, and there is no softmax: divide by the sum.": (
            lambda p, q: (p - q).softmax(dim=-1)
        ),
        "Negative differences are left in; a probability cannot be negative.": lambda p, q: p - q,
    },
    hints=(
        "Kept guesses already give each token min(p, q). What is missing so that it gets p in all?",
        "What is missing is p - q where that is positive, and nothing elsewhere. A distribution "
        "must sum to 1.",
        "Divide `(p - q).clamp(min=0)` by its sum.",
    ),
)


def _tokens_per_pass(share: float, n_guesses: int) -> float:
    return float(sum(share**i for i in range(n_guesses + 1)))


TOKENS_PER_PASS = Exercise(
    reference=_tokens_per_pass,
    inputs=[(0.5, 1), (0.8, 4), (0.6, 3), (0.0, 5), (1.0, 3)],
    mistakes={
        "The token that the large model writes itself is missing: every pass yields one.": (
            lambda share, n: _tokens_per_pass(share, n) - 1
        ),
        "A guess counts only if all before it were kept: the i-th is kept with probability "
        "share to the power i.": lambda share, n: 1 + n * share,
        "That is the chance that all guesses are kept. Add up the chances of each.": (
            lambda share, n: share**n
        ),
        "One term is missing: the last guess counts too.": (
            lambda share, n: _tokens_per_pass(share, n - 1)
        ),
        "One too many: share to the power of 0 is the large model's own token already.": (
            lambda share, n: _tokens_per_pass(share, n) + 1
        ),
        "A guess counts only if all before it were kept, and every pass yields one token more.": (
            lambda share, n: n * share
        ),
    },
    hints=(
        "Add up, guess by guess, how probable it is that it is kept. The large model's own token "
        "always comes.",
        "The i-th guess is kept if it and all before it are: share · share · ..., i times. So the "
        "mean is 1 + share + share² + ..., up to the last guess.",
        "Sum `share**i` over `range(n_guesses + 1)`.",
    ),
)
