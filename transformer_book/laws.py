"""Laws of loss, size and data, fitted to measured runs.

A law says what the loss of a trained model will be from its parameters N and its tokens D:
``E + A / N**alpha + B / D**beta``. ``E`` is what no model gets rid of. All of it is plain NumPy in
64 bits, so that the same table gives the same law everywhere.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_lib import check_number, check_whole

Array = NDArray[np.float64]
STARTS = ((0.3, 0.3), (0.3, 0.6), (0.6, 0.3), (0.6, 0.6), (1.0, 0.5))


class Law(NamedTuple):
    """The loss as a sum: a floor, what a finite model costs, what finite data cost.

    Args:
        E: the floor.
        A: what a model of one parameter costs.
        B: what data of one token cost.
        alpha: how fast the one falls with parameters.
        beta: how fast the other falls with tokens.

    Example:
        >>> law = Law(E=1.0, A=100.0, B=400.0, alpha=0.5, beta=0.5)
        >>> law.loss(10_000, 160_000)
        3.0
    """

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss of a model with so many parameters after so many tokens."""
        _check_positive(parameters=parameters, tokens=tokens)
        model, data = self.A / parameters**self.alpha, self.B / tokens**self.beta
        return float(self.E + model + data)

    def best_size(self, flops: float) -> float:
        """Return which N has the least loss if ``6 N D`` operations may be spent.

        Example:
            >>> Law(E=1.0, A=100.0, B=400.0, alpha=0.5, beta=0.5).best_size(6e8)
            2500.0
        """
        _check_positive(flops=flops)
        ratio = self.alpha * self.A / (self.beta * self.B)
        both = self.alpha + self.beta
        return float(ratio ** (1 / both) * (flops / 6) ** (self.beta / both))


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Fit a straight line by least squares.

    Args:
        x: where.
        y: how high, for each.

    Returns:
        The slope, and the height at zero.

    Raises:
        ValueError: if there are not as many of the one as of the other, fewer than two, a number is
            not finite, or all of x are the same.

    Example:
        >>> fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        (2.0, 1.0)
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"x has {len(x)} values and y has {len(y)}; expected two or more of each")
    xs, ys = _finite("x", x), _finite("y", y)
    if (xs == xs[0]).all():
        raise ValueError(f"x is {xs[0]:g} throughout; expected two different values or more")
    slope = float(((xs - xs.mean()) * (ys - ys.mean())).sum() / ((xs - xs.mean()) ** 2).sum())
    return slope, float(ys.mean() - slope * xs.mean())


def fit_law(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    *,
    huber: float | None = None,
    start: Law | None = None,
) -> Law:
    """Find the law that is nearest to measured losses, comparing logarithms.

    Args:
        parameters: N of each run.
        tokens: D of each run.
        losses: what each run reached.
        huber: from which error on (of the logarithm) errors count as they are instead of squared,
            so that single runs cannot pull the law; all are squared if left out.
        start: where to begin; several places are tried if left out.

    Returns:
        The law.

    Raises:
        ValueError: if the lengths differ, there are fewer than five runs, a number is not positive
            and finite, or all runs have the same N or the same D.

    Example:
        >>> true = Law(E=0.5, A=40.0, B=300.0, alpha=0.4, beta=0.5)
        >>> runs = [(n, d) for n in (1e4, 1e5, 1e6) for d in (1e5, 1e6, 1e7)]
        >>> found = fit_law(*zip(*runs), [true.loss(n, d) for n, d in runs])
        >>> [round(value, 3) for value in found]
        [0.5, 40.0, 300.0, 0.4, 0.5]
    """
    columns = [np.asarray(column, dtype=float) for column in (parameters, tokens, losses)]
    if len({len(column) for column in columns}) > 1 or len(columns[0]) < 5:
        sizes = ", ".join(str(len(column)) for column in columns)
        names = "parameters, tokens and losses"
        raise ValueError(f"{names} have {sizes} values; expected five or more of each")
    for name, column in zip(("parameters", "tokens", "losses"), columns, strict=True):
        if not (_finite(name, column) > 0).all():
            raise ValueError(f"{name} holds {column.min():g}; expected numbers greater than 0")
        if start is None and name != "losses" and (column == column[0]).all():
            found = f"{name} is {column[0]:g} throughout"
            raise ValueError(f"{found}; expected runs with two different values or more")
    if huber is not None:
        _check_positive(huber=huber)
    x, y, z = (np.log(column) for column in columns)
    starts = _starts(x, y, z) if start is None else [_packed(start)]
    tried = [_descend(theta, x, y, z, huber) for theta in starts]
    theta = min(tried, key=lambda found: found[1])[0]
    floor, model, data = (float(np.exp(value)) for value in theta[:3])
    return Law(floor, model, data, float(theta[3]), float(theta[4]))


def resampled_laws(
    parameters: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    *,
    n: int = 200,
    huber: float | None = None,
    seed: int = 0,
) -> list[Law]:
    """Fit the law to samples of the runs, drawn with replacement (the bootstrap).

    Args:
        parameters: N of each run.
        tokens: D of each run.
        losses: what each run reached.
        n: how many samples.
        huber: as in :func:`fit_law`.
        seed: of the samples.

    Returns:
        A law for each sample; how far they lie apart says how sure the law is.

    Raises:
        ValueError: as in :func:`fit_law`, or if there are no samples.

    Example:
        >>> true = Law(E=0.5, A=40.0, B=300.0, alpha=0.4, beta=0.5)
        >>> runs = [(n, d) for n in (1e4, 1e5, 1e6) for d in (1e5, 1e6, 1e7)]
        >>> laws = resampled_laws(
        ...     *zip(*runs), [true.loss(n, d) for n, d in runs], n=3
        ... )
        >>> [round(law.alpha, 2) for law in laws]
        [0.4, 0.4, 0.4]
    """
    check_whole("n", n)
    columns = [np.asarray(column, dtype=float) for column in (parameters, tokens, losses)]
    best = fit_law(*(column.tolist() for column in columns), huber=huber)
    drawn = np.random.default_rng(seed).integers(len(losses), size=(n, len(losses)))
    return [
        fit_law(*(column[rows].tolist() for column in columns), huber=huber, start=best)
        for rows in drawn
    ]


def spread(values: Sequence[float], part: float = 0.9) -> tuple[float, float]:
    """Return between which two numbers the middle part of some values lies.

    Args:
        values: any numbers.
        part: how large the middle part is.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: if there are no values, one is not finite, or the part is not from 0 to 1.

    Example:
        >>> spread([float(i) for i in range(101)])
        (5.0, 95.0)
    """
    if not len(values):
        raise ValueError("values is empty; expected at least one number")
    check_number("part", part, lambda x: 0 <= x <= 1, "from 0 to 1")
    low, high = np.quantile(_finite("values", values), [(1 - part) / 2, (1 + part) / 2])
    return round(float(low), 12), round(float(high), 12)


def _finite(name: str, values: Sequence[float] | Array) -> Array:
    numbers = np.asarray(values, dtype=float)
    strange = numbers[~np.isfinite(numbers)]
    if strange.size:
        raise ValueError(f"{name} holds {strange[0]}; expected finite numbers")
    return numbers


def _check_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value > 0:
            raise ValueError(f"{name}={value} must be greater than 0")


def _packed(law: Law) -> Array:
    return np.array([np.log(law.E), np.log(law.A), np.log(law.B), law.alpha, law.beta])


def _starts(x: Array, y: Array, z: Array) -> list[Array]:
    """Guess from where to descend: half of the least loss as floor, the rest shared equally."""
    floor, rest = np.exp(z.min()) / 2, np.exp(z).mean() / 4
    return [
        np.array([np.log(floor), np.log(rest) + a * x.mean(), np.log(rest) + b * y.mean(), a, b])
        for a, b in STARTS
    ]


def _terms(theta: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """The three terms of the law for each run."""
    floor, model, data, alpha, beta = theta
    return np.exp(floor) + 0 * x, np.exp(model - alpha * x), np.exp(data - beta * y)


def _cost(errors: Array, huber: float | None) -> float:
    size = np.abs(errors)
    if huber is None:
        return float((errors**2).sum())
    return float(np.where(size <= huber, errors**2, huber * (2 * size - huber)).sum())


def _descend(
    theta: Array, x: Array, y: Array, z: Array, huber: float | None, steps: int = 200
) -> tuple[Array, float]:
    """Walk downhill by damped Gauss-Newton steps (Levenberg and Marquardt)."""
    damping = 1e-2
    errors = np.log(sum(_terms(theta, x, y))) - z
    cost = _cost(errors, huber)
    for _ in range(steps):
        terms = _terms(theta, x, y)
        floor, model, data = (term / sum(terms) for term in terms)
        slopes = np.stack([floor, model, data, -model * x, -data * y], axis=1)  # of the logarithm
        size = np.maximum(np.abs(errors), 1e-12)
        weights = np.ones_like(size) if huber is None else np.minimum(1, huber / size)
        square = slopes.T @ (weights[:, None] * slopes)
        step = np.linalg.solve(
            square + damping * np.diag(np.diag(square) + 1e-12), -slopes.T @ (weights * errors)
        )
        step = step.clip(-1, 1)
        tried = np.log(sum(_terms(theta + step, x, y))) - z
        if _cost(tried, huber) < cost:
            theta, errors, damping = theta + step, tried, max(damping / 3, 1e-9)
            gain, cost = cost - _cost(tried, huber), _cost(tried, huber)
            if gain < 1e-13 * cost:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return theta, cost
