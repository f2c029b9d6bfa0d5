"""Laws are found again in losses that follow them, and misuse is named."""

import math

import numpy as np
import pytest

from transformer_book.laws import Law, fit_law, fit_line, resampled_laws, spread

TRUE = Law(E=0.6, A=30.0, B=250.0, alpha=0.35, beta=0.45)
GRID = [(n, d) for n in np.logspace(4, 7, 7) for d in np.logspace(5.5, 8, 6)]


def runs(noise=0.0, seed=0):
    random = np.random.default_rng(seed).normal(size=len(GRID))
    losses = [TRUE.loss(n, d) * math.exp(noise * e) for (n, d), e in zip(GRID, random, strict=True)]
    return [n for n, _ in GRID], [d for _, d in GRID], losses


def test_a_law_is_found_in_its_own_losses():
    for huber in (None, 1e-2):
        assert fit_law(*runs(), huber=huber) == pytest.approx(TRUE, rel=1e-4)


def test_with_noise_the_true_exponents_lie_in_the_spread_of_resampled_fits():
    noisy = runs(noise=0.005)
    laws = resampled_laws(*noisy, n=60)
    for name in ("alpha", "beta", "E"):
        low, high = spread([getattr(law, name) for law in laws], 0.98)
        assert low < getattr(TRUE, name) < high
        assert low < getattr(fit_law(*noisy), name) < high


def test_a_single_wrong_run_pulls_squares_more_than_absolute_errors():
    n, d, losses = runs()
    losses[3] *= 1.5
    off = [abs(fit_law(n, d, losses, huber=h).alpha - TRUE.alpha) for h in (None, 1e-3)]
    assert off[1] < off[0] / 10


def test_the_best_size_is_where_the_loss_is_least():
    flops = 6e14
    best = TRUE.best_size(flops)
    at = TRUE.loss(best, flops / 6 / best)
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert TRUE.loss(factor * best, flops / 6 / (factor * best)) > at
    wider = TRUE.best_size(100 * flops) / best
    assert math.log(wider, 100) == pytest.approx(TRUE.beta / (TRUE.alpha + TRUE.beta))


def test_a_line_is_fitted_and_misuse_named():
    assert fit_line([1, 2, 3], [3, 5, 7]) == pytest.approx((2, 1))
    with pytest.raises(ValueError, match="x has 1 values and y has 2"):
        fit_line([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="have 4, 4, 3 values"):
        fit_law([1] * 4, [1] * 4, [1] * 3)
    with pytest.raises(ValueError, match="losses holds 0; expected numbers greater than 0"):
        fit_law(range(1, 6), range(1, 6), [1.0, 1.0, 1.0, 1.0, 0.0])
