"""Mistakes about writing one token after another."""

from copy import copy

import torch
from torch import Tensor

from transformer_book.mistakes.catalogue import instead_of
from transformer_lib import AllowedTokens, ByteAutomaton, KeyValueCache, SharedPrefix, TokenBytes


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


@instead_of("layers.caches.rolling_kv_cache.keys_before")
def _rolling_cache_keeps_one_key_too_few(window: int) -> int:
    """A rolling cache counts the new key twice, and lets go of a key that is still seen.

    Symptom: prompts are read rightly; each token after them sees one key less, and no error tells.
    Caught by: test_rolling_cache.py::test_tokens_see_what_they_see_without_a_cache
    """
    return max(0, window - 2)


@instead_of("generation.shared_prefix.SharedPrefix.cache_for")
def _prefix_goes_on_with_its_continuation(
    self: SharedPrefix, model: object, prompt: Tensor, prompt_mask: object = None, *,
    n_places: int, cache: object = None,
) -> KeyValueCache:  # fmt: skip
    """A continuation writes into the cache of the shared prefix.

    Symptom: the first answer is right; all later ones also know what the first one said.
    Caught by: test_shared_prefix.py::test_continuations_write_nothing_into_the_prefix
    """
    own = KeyValueCache(len(self._cache.layers), n_places)
    for new, old in zip(own.layers, self._cache.layers, strict=True):
        k, v = (x.expand(len(prompt), -1, -1, -1) for x in old.read())
        new.append(k, v)
    self._cache = own
    return own


@instead_of("generation.shared_prefix.SharedPrefix._padding_before")
def _prefix_ignores_padding(self: object, prompt: Tensor, prompt_mask: object = None) -> Tensor:
    """Keys of a shared prefix are put to the left edge of every row, padding or not.

    Symptom: single prompts are right; in a batch, shorter ones miss the beginning of the prefix.
    Caught by: test_shared_prefix.py::test_padded_rows_are_read_as_by_hand
    """
    return prompt.new_zeros(len(prompt))


@instead_of("generation.constrained.may_end")
def _text_may_end_anywhere(state: int, automaton: ByteAutomaton) -> bool:
    """The end token is allowed before the text is complete.

    Symptom: every text is a beginning of an allowed one; a parser fails at the end now and then.
    Caught by: test_constrained.py::test_tokens_that_may_follow_are_those_found_by_trying
    """
    return True


@instead_of("generation.constrained.TokenBytes.states_after")
def _only_the_first_byte_of_a_token_is_checked(
    self: TokenBytes, table: Tensor, state: int
) -> Tensor:
    """A token is allowed if its first byte may come next.

    Symptom: right with characters as tokens; with longer tokens, texts leave the pattern.
    Caught by: test_constrained.py::test_tokens_that_may_follow_are_those_found_by_trying
    """
    first = self._bytes[:, 0].long()
    return torch.where(self._lengths > 0, table[state, first], -1)


@instead_of("generation.constrained.AllowedTokens.select")
def _beams_move_without_what_may_come(self: AllowedTokens, rows: Tensor) -> None:
    """Beams are reordered, but not the states of what each of them may write.

    Symptom: one beam is right; several write beginnings of one answer and ends of another.
    Caught by: test_constrained.py::test_beams_find_the_best_of_all_texts
    """
    self._states = self._states[: len(rows)]


@instead_of("generation.constrained.AllowedTokens.along")
def _guesses_judged_by_what_may_come_first(self: AllowedTokens, tokens: Tensor) -> AllowedTokens:
    """All guesses of a draft are limited to what may come in the place of the first.

    Symptom: right with one guess; with several, texts leave the pattern.
    Caught by: test_constrained.py::test_texts_guessed_by_a_model_are_as_probable_as_without_guesses
    """
    ahead = copy(self)
    ahead.select(torch.zeros(len(tokens) + 1, dtype=torch.long))
    return ahead
