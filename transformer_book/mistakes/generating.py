"""Mistakes about writing one token after another."""

from torch import Tensor

from transformer_book.mistakes.catalogue import instead_of


@instead_of("generation.speculative.left_over")
def _rejected_guess_drawn_anew(wanted: Tensor, guessed: Tensor) -> Tensor:
    """In the place of a rejected guess, a token is drawn as if there had been no guess.

    Symptom: texts read well; tokens that the draft likes come too often, and no error tells.
    Caught by: test_speculative.py::test_tokens_of_a_round_are_distributed_as_wanted
    """
    return wanted


@instead_of("generation.speculative._count_kept")
def _all_guesses_kept(chances: Tensor, generator: object = None) -> int:
    """Guesses are kept wherever the model finds them possible at all, without a draw.

    Symptom: nearly all guesses are kept, and it is fast; the text is the draft's.
    Caught by: test_speculative.py::test_chance_keeps_guesses_as_often_as_it_should
    """
    return int((chances > 0).long().cumprod(dim=0).sum())


@instead_of("layers.rolling_kv_cache.keys_before")
def _rolling_cache_keeps_one_key_too_few(window: int) -> int:
    """A rolling cache counts the new key twice, and lets go of a key that is still seen.

    Symptom: prompts are read rightly; each token after them sees one key less, and no error tells.
    Caught by: test_rolling_cache.py::test_tokens_see_what_they_see_without_a_cache
    """
    return max(0, window - 2)
