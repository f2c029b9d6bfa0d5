"""Exercises of chapter 01, Why attention replaced recurrence."""

import math

from transformer_book.exercises.grading.checking import Exercise


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


def _largest_input(keep: float, steps: int) -> float:
    return float(keep**steps / sum(keep**k for k in range(steps)))


LARGEST_INPUT = Exercise(
    reference=_largest_input,
    inputs=[(0.5, 3), (0.9, 20), (1.0, 100), (0.99, 50)],
    mistakes={
        "The first bit fades, too: after all the steps keep^steps of it is left.": (
            lambda keep, steps: 1 / sum(keep**k for k in range(steps))
        ),
        "Not all fillers count alike: an early one has faded by the end.": (
            lambda keep, steps: keep**steps / steps
        ),
        "This is how far random fillers drift as a rule; ask for the worst ones.": (
            lambda keep, steps: keep**steps / math.sqrt(sum(keep ** (2 * k) for k in range(steps)))
        ),
        "This is the sum of endlessly many fillers; there are only `steps`.": (
            lambda keep, steps: keep**steps * (1 - keep)
        ),
        "A power is off by one: `steps` factors on the first bit, none on the last filler.": (
            lambda keep, steps: keep ** (steps - 1) / sum(keep**k for k in range(steps))
        ),
        "The first bit is no filler: there are `steps` terms in the sum, not one more.": (
            lambda keep, steps: keep**steps / sum(keep**k for k in range(steps + 1))
        ),
        "This asks for fillers twice as strong as the bit: they flip it once they outweigh it.": (
            lambda keep, steps: 2 * keep**steps / sum(keep**k for k in range(steps))
        ),
    },
    hints=(
        "Which fillers are the worst for a first bit of +1? Write h after three of them.",
        "The worst are all −1. The bit is keep^steps by then, the last filler counts in full, the "
        "one before it keep times, the next keep² times. When do they outweigh the bit?",
        "Divide what is left of the bit by `sum(keep**k for k in range(steps))`.",
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
