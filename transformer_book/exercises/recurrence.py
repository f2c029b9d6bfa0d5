"""Exercises of chapter 01, Why not recurrence."""

import math

import torch
from torch import Tensor

from transformer_book.exercises.checking import Exercise, random_inputs


def _steps_until(w: float, fraction: float) -> int:
    return math.ceil(math.log(fraction) / math.log(w))


STEPS_UNTIL = Exercise(
    reference=_steps_until,
    inputs=[(0.5, 0.01), (0.9, 0.01), (0.99, 0.5), (0.5, 0.25)],  # the last: exactly there
    mistakes={
        "After this many steps a little more than the fraction is left: round up.": (
            lambda w, fraction: math.floor(math.log(fraction) / math.log(w))
        ),
        "Where a step ends exactly at the fraction, it is reached: at most, not less than.": (
            lambda w, fraction: math.floor(math.log(fraction) / math.log(w)) + 1
        ),
        "The quotient is upside down: it is w that is multiplied again and again.": (
            lambda w, fraction: math.ceil(math.log(w) / math.log(fraction))
        ),
        "This takes the same amount away at each step; each step multiplies by w.": (
            lambda w, fraction: math.ceil((1 - fraction) / (1 - w))
        ),
        "A number of steps is whole: round up.": (
            lambda w, fraction: math.log(fraction) / math.log(w)
        ),
        "The fraction is what is left; this is how long until it is lost.": (
            lambda w, fraction: math.ceil(math.log(1 - fraction) / math.log(w))
        ),
        "Divide the logarithms; this is the logarithm of the quotient.": (
            lambda w, fraction: math.ceil(abs(math.log(fraction / w)))
        ),
    },
    hints=(
        "What is left of h after t steps, as a formula in w and t?",
        "After t steps it is w^t. You want the smallest whole t with w^t ≤ fraction. Take "
        "logarithms; both are negative, so the sign turns round when you divide.",
        "Solve for t, `math.log(fraction) / math.log(w)`, and round up with `math.ceil`.",
    ),
)


def _last_state(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    state = torch.zeros_like(bias)
    for row in x:
        state = torch.tanh(w_ih @ row + w_hh @ state + bias)
    return state


def _without_tanh(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    state = torch.zeros_like(bias)
    for row in x:
        state = w_ih @ row + w_hh @ state + bias
    return state


def _tanh_of_the_past(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    state = torch.zeros_like(bias)
    for row in x:
        state = w_ih @ row + torch.tanh(w_hh @ state + bias)
    return state


def _sigmoid(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    state = torch.zeros_like(bias)
    for row in x:
        state = torch.sigmoid(w_ih @ row + w_hh @ state + bias)
    return state


def _from_ones(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    state = torch.ones_like(bias)
    for row in x:
        state = torch.tanh(w_ih @ row + w_hh @ state + bias)
    return state


def _all_states(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    return torch.stack([_last_state(x[: t + 1], w_ih, w_hh, bias) for t in range(len(x))])


LAST_STATE = Exercise(
    reference=_last_state,
    inputs=[  # square first: there a transposed matrix runs, and is found
        random_inputs((4, 3), (3, 3), (3, 3), (3,)),
        random_inputs((6, 2), (5, 2), (5, 5), (5,)),
    ],
    mistakes={
        "The tanh is missing.": _without_tanh,
        "The recurrent matrix is transposed: row i of it makes number i of the new state.": (
            lambda x, w_ih, w_hh, bias: _last_state(x, w_ih, w_hh.mT, bias)
        ),
        "The input's matrix is transposed: it is stored as (out, in).": (
            lambda x, w_ih, w_hh, bias: _last_state(x, w_ih.mT, w_hh, bias)
        ),
        "The state before is forgotten: this is the last input alone.": (
            lambda x, w_ih, w_hh, bias: torch.tanh(w_ih @ x[-1] + bias)
        ),
        "The sequence is read from its end.": (
            lambda x, w_ih, w_hh, bias: _last_state(x.flip(0), w_ih, w_hh, bias)
        ),
        "The bias is missing.": (
            lambda x, w_ih, w_hh, bias: _last_state(x, w_ih, w_hh, torch.zeros_like(bias))
        ),
        "The tanh acts at the end only; it belongs into every step.": (
            lambda x, w_ih, w_hh, bias: torch.tanh(_without_tanh(x, w_ih, w_hh, bias))
        ),
        "The new input is added after the tanh; add everything first.": _tanh_of_the_past,
        "That is a sigmoid; this network has a tanh.": _sigmoid,
        "The state starts with ones; it starts with zeros.": _from_ones,
        "The last token is not read.": (
            lambda x, w_ih, w_hh, bias: _last_state(x[:-1], w_ih, w_hh, bias)
        ),
        "The first token is not read.": (
            lambda x, w_ih, w_hh, bias: _last_state(x[1:], w_ih, w_hh, bias)
        ),
        "These are the states of all steps; return the last one.": _all_states,
    },
    hints=(
        "The state starts with zeros, of the same shape as `bias`. Each row of `x` makes a new "
        "state from the old one.",
        "The new state is the tanh of three terms: the input through `w_ih`, the old state through "
        "`w_hh`, and the bias. Both matrices stand on the left of their vector.",
        "In the loop: `state = torch.tanh(w_ih @ token + w_hh @ state + bias)`.",
    ),
)


def _spectral_radius(matrix: Tensor) -> Tensor:
    radius: Tensor = torch.linalg.eigvals(matrix).abs().max()
    return radius


SPECTRAL_RADIUS = Exercise(
    reference=_spectral_radius,
    inputs=[
        (torch.tensor([[0.5, 3.0], [0.0, 0.5]], dtype=torch.float64),),
        (torch.tensor([[0.0, -0.9], [0.9, 0.0]], dtype=torch.float64),),  # a turn: no real value
        (torch.tensor([[-0.8, 1.0], [0.0, 0.3]], dtype=torch.float64),),  # the largest is negative
        random_inputs((5, 5)),
    ],
    mistakes={
        "This is the largest entry; entries are not the criterion.": lambda m: m.max(),
        "This is the largest entry's size; entries are not the criterion.": (
            lambda m: m.abs().max()
        ),
        "This is the largest singular value: how much one product can stretch a vector, not how "
        "fast powers grow.": lambda m: torch.linalg.matrix_norm(m, 2),
        "Eigenvalues may be complex: take the largest absolute value, not the real part.": (
            lambda m: torch.linalg.eigvals(m).real.max()
        ),
        "Eigenvalues may be complex: take the absolute value of the whole number, not of its real "
        "part.": lambda m: torch.linalg.eigvals(m).real.abs().max(),
        "eigvalsh is for symmetric matrices; this one need not be symmetric: use eigvals.": (
            lambda m: torch.linalg.eigvalsh(m).abs().max()
        ),
        "That is the smallest eigenvalue in size; powers follow the largest.": (
            lambda m: torch.linalg.eigvals(m).abs().min()
        ),
        "This is the determinant, the product of all eigenvalues.": lambda m: torch.linalg.det(m),
        "This is the length of the whole matrix (Frobenius).": lambda m: m.norm(),
    },
    hints=(
        "Which vectors does a matrix only stretch? The factor of the one it stretches most decides "
        "how fast powers of the matrix grow.",
        "Those factors are the eigenvalues. They may be complex, as for a rotation, so compare "
        "their absolute values.",
        "Write `torch.linalg.eigvals(matrix)`, then `.abs()`, and take the largest.",
    ),
)


def _forget_bias(steps: float) -> float:
    return _logit(0.5 ** (1 / steps))


def _logit(gate: float) -> float:
    return math.log(gate / (1 - gate))


FORGET_BIAS = Exercise(
    reference=_forget_bias,
    inputs=[(1.0,), (10.0,), (100.0,)],
    mistakes={
        "This is the gate itself; ask for the number whose sigmoid it is.": (
            lambda steps: 0.5 ** (1 / steps)
        ),
        "The sign is turned round: a gate that keeps more needs a larger bias.": (
            lambda steps: -_forget_bias(steps)
        ),
        "This is the logarithm of the steps: close for many steps, but solve it exactly.": (
            lambda steps: math.log(steps)
        ),
        "This is the logarithm of the gate; the gate is a sigmoid, so log(f / (1 - f)).": (
            lambda steps: math.log(0.5) / steps
        ),
        "This takes the same amount away at each step; each step multiplies by f.": (
            lambda steps: _logit(1 - 0.5 / steps)
        ),
        "The gate is applied `steps` times: f to that power is 1/2, so take the root.": (
            lambda steps: _logit(0.5**steps)
        ),
    },
    hints=(
        "First find the gate f. After `steps` steps the state has been multiplied by f that many "
        "times.",
        "f^steps = 1/2, so f = 0.5^(1 / steps). Then ask which number b has f as its sigmoid.",
        "The sigmoid is undone by `math.log(f / (1 - f))`.",
    ),
)


def _additive(query: Tensor, keys: Tensor, w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    return _additive_weights(query, keys, w, u, v) @ keys


def _additive_weights(query: Tensor, keys: Tensor, w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(query @ w + keys @ u) @ v).softmax(dim=0)


ADDITIVE = Exercise(
    reference=_additive,
    inputs=[
        random_inputs((4,), (6, 4), (4, 4), (4, 4), (4,)),
        random_inputs((3,), (5, 2), (3, 7), (2, 7), (7,)),
    ],
    mistakes={
        "The tanh is missing: without it the query shifts all scores alike and chooses nothing.": (
            lambda q, k, w, u, v: ((q @ w + k @ u) @ v).softmax(dim=0) @ k
        ),
        "These are the weights; mix the keys with them.": _additive_weights,
        "The scores went in as weights; apply the softmax so that they sum to 1.": (
            lambda q, k, w, u, v: (torch.tanh(q @ w + k @ u) @ v) @ k
        ),
        "W belongs to the query and U to the keys; they are swapped.": (
            lambda q, k, w, u, v: _additive(q, k, u, w, v)
        ),
        "This is dot-product attention; score with the small network.": (
            lambda q, k, w, u, v: (k @ q).softmax(dim=0) @ k
        ),
        "This is the plain mean of the keys.": lambda q, k, w, u, v: k.mean(dim=0),
        "The query has no effect: add it to the keys before the tanh, or it shifts all scores "
        "alike.": (
            lambda q, k, w, u, v: ((torch.tanh(q @ w) + torch.tanh(k @ u)) @ v).softmax(dim=0) @ k
        ),
        "The vector v is missing: it weighs the hidden units; they are not just added up.": (
            lambda q, k, w, u, v: torch.tanh(q @ w + k @ u).sum(dim=-1).softmax(dim=0) @ k
        ),
        "The softmax comes too early: first v makes one score of the hidden units.": (
            lambda q, k, w, u, v: (torch.tanh(q @ w + k @ u).softmax(dim=0) @ v) @ k
        ),
    },
    hints=(
        "Three parts: a score for each key, a softmax, a mean of the keys with these weights.",
        "The score of a key is vᵀ tanh(query through `w` + key through `u`). All keys at once: "
        "`(Da,) + (S, Da)`, then `(S, Da) @ (Da,)`.",
        "The scores are `torch.tanh(query @ w + keys @ u) @ v`; take the softmax over the keys "
        "(dim=0) and mix: `weights @ keys`.",
    ),
)
