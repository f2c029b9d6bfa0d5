"""Wrong Transformers: mistakes that people really ship.

``with mistake("no-scale"): ...`` makes that mistake in every model of this library, also in those
that are built already, and takes it back afterwards. Most of these models still run, still train
and still say something; each entry tells the symptom, and the test that catches it. The tests of
this library make every mistake and check that the test named notices.
"""

from transformer_book.mistakes import (  # noqa: F401  (they enter)
    attention,
    bits,
    families,
    fine_tuning,
    generating,
    layers,
    masks,
    positions,
    training,
)
from transformer_book.mistakes.catalogue import MISTAKES, Mistake, mistake

__all__ = ["MISTAKES", "Mistake", "mistake"]
