"""Interfaces of the fast paths: what generation asks of them."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.generation.shared_prefix import SharedPrefix
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM


class FastStep:
    """A faster forward pass of a decoder, for one token of each row.

    Example:
        >>> from transformer_lib.generation.fast.single_token import (
        ...     LeanDecoder,
        ... )
        >>> issubclass(LeanDecoder, FastStep)
        True
    """

    def can_read(self, new: Int[Tensor, "B T"], cache: KeyValueCache | None) -> bool:
        """Say whether the next tokens can be read here, with the same output."""
        raise NotImplementedError

    def __call__(
        self,
        new: Int[Tensor, "B 1"],
        cache: KeyValueCache,
        mask: Bool[Tensor, "B 1 1 S"] | None = None,
        positions: Int[Tensor, "#B 1"] | None = None,
    ) -> Float[Tensor, "B 1 D"]:
        """Read one token of each row, as the decoder does."""
        raise NotImplementedError


class FastBatch:
    """A batch that is decoded faster, in the place of a ``DecodingStep``.

    Example:
        >>> from transformer_lib.generation.fast.cuda_graph import (
        ...     RecordedBatch,
        ... )
        >>> issubclass(RecordedBatch, FastBatch)
        True
    """

    def __call__(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Return the scores ``(B, V)`` of the token after ``ids``, ``(B, T)``, all of them."""
        raise NotImplementedError

    def read_best(
        self, prompt: Int[Tensor, "B T"], first: int, n: int
    ) -> tuple[Float[Tensor, "n B"], Int[Tensor, "n B"]]:
        """Choose ``n`` tokens greedily, after ``first`` tokens; return their scores, and them."""
        raise NotImplementedError


class FastDecoder(nn.Module):
    """A language model that decodes its batches itself, in the place of the model.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``.
        max_len: the longest sequence, prompt included.

    Example:
        >>> from transformer_lib import CompiledDecoder
        >>> issubclass(CompiledDecoder, FastDecoder)
        True
    """

    def __init__(self, model: CausalLM | Seq2SeqLM, max_len: int) -> None:
        super().__init__()
        self.model, self.config, self.max_len = model, model.config, max_len

    def begin(
        self,
        prompt: Int[Tensor, "B T"],
        max_new_tokens: int,
        *,
        prompt_mask: Bool[Tensor, "..."] | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
        prefill_chunk: int | None = None,
        prefix: SharedPrefix | None = None,
    ) -> FastBatch:
        """Prepare a batch; the arguments are those of ``DecodingStep``."""
        raise NotImplementedError
