"""A shared prefix (prompt caching): a text is read once for all prompts that begin with it.

Many prompts begin alike: with the same instructions, the same document, the same examples. What
attention keeps of a token depends on the tokens before it alone, so for the common beginning it can
be computed once. A continuation gets a copy and writes behind it; the prefix stays as it is.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from transformer_lib.core.precision import autocast_dtype
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.padding import prompt_rows


class SharedPrefix:
    """What a model keeps of a text with which many prompts begin.

    Made by :func:`~transformer_lib.generation.decoding_step.read_prefix`, for ``generate`` and its
    kin. It saves time and no memory: each row of a batch gets its own copy. Threads may share it.

    Args:
        model: that has read the text.
        ids: the text, ``(1, T)``.
        cache: what attention has kept of it, for one row; not to be used elsewhere.

    Example:
        >>> from transformer_lib import TransformerConfig, read_prefix
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> prefix = read_prefix(CausalLM(config), torch.tensor([[5, 7, 9]]))
        >>> prefix.ids, prefix.n_bytes  # 6 layers, 3 tokens, 2 times 8 numbers
        (tensor([[5, 7, 9]]), 1152)
    """

    def __init__(self, model: CausalLM, ids: Int[Tensor, "1 T"], cache: KeyValueCache) -> None:
        self.ids = ids.clone()  # the caller may go on writing into its own tensor
        self._model, self._cache = model, cache
        self._weights = _weights_of(model, ids.device)

    @property
    def n_bytes(self) -> int:
        """How many bytes keys and values take; each row of a batch gets as many."""
        return self._cache.n_bytes

    def cache_for(
        self,
        model: nn.Module,
        prompt: Int[Tensor, "B T"],
        prompt_mask: Bool[Tensor, "..."] | None = None,
        *,
        n_places: int,
        cache: KeyValueCache | None = None,
    ) -> KeyValueCache:
        """Make a cache that holds the prefix, once for each row of a batch.

        Padding on the left moves the prefix of a row to the right. So of a batch with rows of
        different lengths, a few of the prefix's last tokens are read again.

        Args:
            model: that is going to read the prompt.
            prompt: whole prompts, ``(B, T)``: each begins with the prefix, after its padding.
            prompt_mask: where the prompt has real tokens, ``(B, T)`` or ``(B, 1, 1, T)``.
            n_places: how many tokens of each row a new cache has room for.
            cache: an empty one to use; a new one if left out.

        Returns:
            The cache. It holds nothing of the last token of the prompt, which must be read.

        Raises:
            ValueError: if a row begins with other tokens, the model is another one or has other
                weights by now, or the cache is not empty.
        """
        self._check_model(model, prompt)
        padding = self._padding_before(prompt, prompt_mask)  # (B,)
        if cache is None:
            cache = KeyValueCache(len(self._cache.layers), n_places)
        elif cache.length > 0:
            raise ValueError(f"cache holds {cache.length} tokens; a prefix needs an empty one")
        held = min(int(padding.min()) + self.ids.shape[1], prompt.shape[1] - 1)
        # What stands at the places of padding is never seen: the key of the first token will do.
        places = torch.arange(held, device=prompt.device) - padding[:, None]
        places = places.clamp(min=0)  # (B, held): which token of the prefix goes there
        own_layers = cache.for_blocks(len(self._cache.layers), None)
        for (own, _), layer in zip(own_layers, self._cache.layers, strict=True):
            # (G, B, held, Dk) to (B, G, held, Dk)
            k, v = (x[0][:, places].transpose(0, 1) for x in layer.read())
            own.append(k, v)
        cache.advance(held)
        return cache

    def _check_model(self, model: nn.Module, prompt: Tensor) -> None:
        if model is not self._model:
            raise ValueError("prefix was read by another model: read it with this one")
        if _weights_of(self._model, prompt.device) != self._weights:
            why = "the weights, the device or the precision have changed since"
            raise ValueError(f"prefix was read by another state of the model: {why}; read it again")

    def _padding_before(
        self, prompt: Int[Tensor, "B T"], prompt_mask: Bool[Tensor, "..."] | None
    ) -> Int[Tensor, " B"]:
        """Count the padding of each row; raise an error unless the prefix follows it."""
        batch, length = prompt.shape
        n = self.ids.shape[1]
        padding = prompt.new_zeros(batch)
        if prompt_mask is not None:
            padding = (~prompt_rows(prompt_mask, {"B": batch, "T": length})).sum(dim=1)
        if int(padding.max()) + n > length:
            row = int(padding.argmax())
            has = f"row {row} has {length - int(padding[row])}"
            raise ValueError(f"prompt must begin with the prefix, {n} tokens: {has}")
        places = padding[:, None] + torch.arange(n, device=prompt.device)  # (B, n)
        differs = prompt.gather(1, places) != self.ids  # (B, n)
        if differs.any():
            row, place = differs.nonzero()[0].tolist()
            raise ValueError(
                f"prompt must begin with the prefix: token {place} of row {row} is another"
            )
        return padding


def _weights_of(model: nn.Module, device: torch.device) -> list[object]:
    """What tells weights from others without reading them: where they are, how often changed."""
    return [
        autocast_dtype(device),
        *((x.data_ptr(), None if x.is_inference() else x._version) for x in model.parameters()),
    ]
