"""Mistakes about who may see whom: causal masks, padding, windows."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from transformer_book.mistakes.catalogue import Maybe, instead_of, with_part
from transformer_lib import Block, Decoder, Encoder, FlexPattern, Stack, query_key_distances
from transformer_lib.layers.attention import _masked_softmax

# The right versions, kept from before any mistake is made.
_block = Block.forward
_stack = Stack.forward
_encode = Encoder.forward
_decode = Decoder.forward
_rule = FlexPattern._rule


@instead_of("layers.masks.causal_mask")
def _mask_sees_the_next_token(n_queries: int, n_keys: int, **options: Any) -> Tensor:
    """The causal mask is off by one: each position sees the next token too.

    Symptom: the loss of a language model falls to nearly 0; what it generates is nonsense.
    Caught by: test_properties.py::test_each_position_hears_exactly_itself_and_the_past
    """
    return query_key_distances(n_queries, n_keys, **options) >= -1


@instead_of("layers.masks.causal_mask")
def _mask_hides_itself(n_queries: int, n_keys: int, **options: Any) -> Tensor:
    """The causal mask is off by one the other way: no position sees itself.

    Symptom: the first token attends to nothing (NaN in other libraries); the rest trains, worse.
    Caught by: test_properties.py::test_each_position_hears_exactly_itself_and_the_past
    """
    return query_key_distances(n_queries, n_keys, **options) > 0


@instead_of("layers.masks.causal_mask")
def _mask_aligned_top_left(n_queries: int, n_keys: int, **options: Any) -> Tensor:
    """With a cache, queries are taken for the first positions instead of the last ones.

    Symptom: right in training; in generation each new token sees only the first one.
    Caught by: test_routes.py::test_decoding_with_a_cache_equals_decoding_without
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, **options).tril()


@instead_of("models.blocks.Block.forward")
def _decoder_not_causal(self: Block, x: Tensor, *masks: Maybe, **options: Any) -> Tensor:
    """The decoder has no causal mask.

    Symptom: it copies the answer it is given in training and cannot produce one by itself.
    Caught by: test_properties.py::test_the_future_changes_nothing_before_it
    """
    return _block(self, x, *masks, **options | {"causal": False})


@instead_of("models.blocks.Block.forward")
def _encoder_causal(self: Block, x: Tensor, *masks: Maybe, **options: Any) -> Tensor:
    """The encoder has a causal mask, as if it were a decoder.

    Symptom: each word is understood without those after it; the first is not understood at all.
    Caught by: test_properties.py::test_an_encoder_hears_everything
    """
    return _block(self, x, *masks, **options | {"causal": True})


@instead_of("layers.attention._masked_softmax")
def _mask_polarity_swapped(scores: Tensor, mask: Tensor) -> Tensor:
    """True is taken for "hide": PyTorch's `key_padding_mask` has the other polarity.

    Symptom: tokens attend to padding and to the future, and to nothing else.
    Caught by: test_properties.py::test_weights_are_probabilities_over_exactly_the_keys_allowed
    """
    return _masked_softmax(scores, ~mask)


@instead_of("layers.attention._masked_softmax")
def _mask_added_as_zeros_and_ones(scores: Tensor, mask: Tensor) -> Tensor:
    """A mask of 0 and 1 is added to the scores where 0 and -inf are meant.

    Symptom: what should be hidden is only e times less likely; padding and the future leak in.
    Caught by: test_properties.py::test_weights_are_probabilities_over_exactly_the_keys_allowed
    """
    return (scores + mask).softmax(dim=-1)


@instead_of("layers.attention._masked_softmax")
def _mask_after_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Weights are set to zero after the softmax, which has shared them out already.

    Symptom: rows sum to less than 1, and how much is missing tells about the future.
    Caught by: test_properties.py::test_weights_are_probabilities_over_exactly_the_keys_allowed
    """
    return scores.softmax(dim=-1) * mask


@instead_of("layers.attention._masked_softmax")
def _minus_ten_thousand(scores: Tensor, mask: Tensor) -> Tensor:
    """Hidden scores become -10000: a row with no allowed key spreads evenly over all of them.

    Symptom: a sequence of padding alone gets the mean of what it should not see, not zeros.
    Caught by: test_properties.py::test_a_query_without_any_key_says_nothing
    """
    return scores.masked_fill(~mask, -1e4).softmax(dim=-1)


@instead_of("layers.attention._masked_softmax")
def _minus_infinity_everywhere(scores: Tensor, mask: Tensor) -> Tensor:
    """A row with no allowed key is -inf throughout, and its softmax is 0/0.

    Symptom: one empty sequence in a batch turns the loss, then all weights, into NaN.
    Caught by: test_properties.py::test_a_query_without_any_key_says_nothing
    """
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


@instead_of("models.blocks.Stack.forward")
def _window_off_by_one(self: Stack, x: Tensor, *inputs: Maybe, **options: Any) -> Tensor:
    """A window of w reaches w positions back and the token itself: w + 1.

    Symptom: a rolling cache of w entries is one too short; a loaded checkpoint differs slightly.
    Caught by: test_properties.py::test_a_window_limits_the_reach_of_each_layer
    """
    if self.config.window is None:
        return _stack(self, x, *inputs, **options)
    with with_part(self, "config", replace(self.config, window=self.config.window + 1)):
        return _stack(self, x, *inputs, **options)


@instead_of("layers.fast.flexible_pattern._nearer_than")
def _window_of_a_pattern_off_by_one(window: int) -> Callable[..., Tensor]:
    """The rule of a window counts the distance, not the tokens: w and the token itself.

    Symptom: none by itself; the same window as a mask, or in a rolling cache, gives other numbers.
    Caught by: test_flexible_pattern.py::test_a_token_sees_its_window_and_the_past_of_its_document
    """
    return lambda row, head, query, key: (query - key).abs() <= window


@instead_of("layers.fast.flexible_pattern.FlexPattern._rule")
def _documents_without_the_causal_rule(self: FlexPattern, causal: bool) -> Callable[..., Tensor]:
    """Packed documents are kept apart by a rule that forgets to hide the future of each.

    Symptom: the loss falls to nearly 0, as without any causal mask; what is generated is nonsense.
    Caught by: test_flexible_pattern.py::test_a_token_sees_its_window_and_the_past_of_its_document
    """
    return _rule(self, causal and "documents" not in self.numbers)


@instead_of("models.encoder_decoder.Encoder.forward")
def _padding_ignored_in_encoder(
    self: Encoder, ids: Tensor, mask: Maybe = None, **options: Any
) -> Tensor:
    """The encoder is not told which tokens are padding.

    Symptom: a sequence's result depends on how long the others in its batch are.
    Caught by: test_properties.py::test_padding_never_matters_in_an_encoder
    """
    return _encode(self, ids, None, **options)


@instead_of("models.encoder_decoder.Decoder.forward")
def _padding_ignored_in_decoder(
    self: Decoder,
    ids: Tensor,
    memory: Maybe = None,
    mask: Maybe = None,
    memory_mask: Maybe = None,
    **options: Any,
) -> Tensor:
    """The decoder is not told which tokens are padding.

    Symptom: none with padding at the end, which is the future; wrong as soon as it is on the left.
    Caught by: test_properties.py::test_padding_never_matters_in_a_decoder
    """
    return _decode(self, ids, memory, None, memory_mask, **options)


@instead_of("models.blocks.Block.forward")
def _padding_ignored_in_cross_attention(
    self: Block,
    x: Tensor,
    mask: Maybe = None,
    memory: Maybe = None,
    memory_mask: Maybe = None,
    **options: Any,
) -> Tensor:
    """Cross-attention reads the padding of the source.

    Symptom: translations of short sentences are worse in a batch with long ones.
    Caught by: test_properties.py::test_padding_never_matters_in_an_encoder_decoder
    """
    return _block(self, x, mask, memory, None, **options)
