"""Wrong Transformers: mistakes that people really ship, each as a patch that can be put on.

``with mistake("no-scale"): ...`` makes that mistake in every model of this library, also in those
that are built already, and takes it back afterwards. Most of these models still run, still train
and still say something; each entry tells the symptom, and the test that catches it. The tests of
this library make every mistake and check that the test named notices.
"""

from transformer_lib.mistakes import attention, layers, masks, positions  # noqa: F401  (they enter)
from transformer_lib.mistakes.catalogue import MISTAKES, Mistake, mistake

__all__ = ["MISTAKES", "Mistake", "mistake"]
