"""A rolling KV cache: layers with a window keep only the keys that it still shows."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache, check_room, with_room


def keys_before(window: int) -> int:
    """Say how many earlier keys a new token sees: its own is one of the window.

    Args:
        window: how many keys each token sees.

    Returns:
        How many have to be kept.

    Example:
        >>> keys_before(window=4)
        3
    """
    return window - 1


class RollingLayerCache(LayerCache):
    """The keys and values of one layer with a window: old ones are let go of.

    There is room for two windows. When it is full, the keys that are still seen move to its
    beginning: so each key moves once at most, and keys stay in order.

    Args:
        max_len: the longest sequence, which the cache counts and does not hold.
        window: how many keys each token sees.

    Example:
        >>> layer = RollingLayerCache(max_len=100, window=3)
        >>> for place in range(9):
        ...     new = torch.full((1, 1, 1, 1), float(place))
        ...     k, v = layer.append(new, new)
        >>> k.flatten(), layer.length
        (tensor([6., 7., 8.]), 9)
    """

    def __init__(self, max_len: int, window: int) -> None:
        super().__init__(max_len)
        self.window, self._end = window, 0  # the place after the newest key

    def append(
        self, k: Float[Tensor, "B G T Dk"], v: Float[Tensor, "B G T Dv"]
    ) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Store new keys and values; return those that the first of the new tokens sees, on."""
        n_new, n_before = k.shape[2], min(self.length, keys_before(self.window))
        check_room(self.max_len, self.length, n_new)
        before = slice(self._end - n_before, self._end)
        stored = self._buffers_for(k, v)
        self.length += n_new
        if n_before + n_new > stored[0].shape[2]:  # a long prompt: only its end is kept
            seen = [
                torch.cat((x[:, :, before], new), dim=2)
                for x, new in zip(stored, (k, v), strict=True)
            ]
            self._end = min(self.length, keys_before(self.window))
            for x, all_new in zip(stored, seen, strict=True):
                x[:, :, : self._end] = all_new[:, :, all_new.shape[2] - self._end :]
            return seen[0], seen[1]
        if self._end + n_new > stored[0].shape[2]:
            for x in stored:
                x[:, :, :n_before] = x[:, :, before].clone()  # the two may overlap
            self._end = n_before
        for x, new in zip(stored, (k, v), strict=True):
            x[:, :, self._end : self._end + n_new] = new
        self._end += n_new
        return self._newest(n_before + n_new)

    def read(self) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Return the keys and values that the next token will see."""
        return self._newest(min(self.length, keys_before(self.window)))

    def _newest(self, n: int) -> tuple[Tensor, Tensor]:
        keys, values = self._buffers()
        seen = slice(self._end - n, self._end)
        return keys[:, :, seen], values[:, :, seen]

    def _buffers_for(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self._stored is None:
            self._stored = with_room(2 * self.window, k, v)
        return super()._buffers_for(k, v)


class RollingCache(KeyValueCache):
    """A cache whose layers with a window hold two windows, however long the text becomes.

    Other layers hold all keys. What was let go of cannot come back: :meth:`rewind` is refused.

    Args:
        config: of the model; it must have a window.
        max_len: the longest target sequence; that of the model if left out.

    Raises:
        ValueError: if the configuration has no window.

    Example:
        >>> config = TransformerConfig(
        ...     d_model=8, n_heads=2, n_layers=2, window=4, max_len=500
        ... )
        >>> cache = RollingCache(config)
        >>> new = torch.zeros(1, 2, 100, 4)
        >>> for layer in cache.layers:
        ...     k, v = layer.append(new, new)
        >>> cache.length, cache.n_bytes  # 2 layers of 8 places
        (100, 1024)
    """

    def __init__(self, config: TransformerConfig, max_len: int | None = None) -> None:
        super().__init__(config.n_layers, config.max_len if max_len is None else max_len)
        if config.window is None:
            raise ValueError("config has window=None: all keys are seen, use a KeyValueCache")
        self._config, self.window = config, config.window
        self.reset()

    def reset(self) -> None:
        """Forget everything, the memory's keys too, and free the buffers."""
        super().reset()
        self.layers = [
            RollingLayerCache(self.max_len, self.window) if self._config.is_local(i) else layer
            for i, layer in enumerate(self.layers)
        ]

    def n_seen(self, n_new: int, *, local: bool) -> int:
        """Say how many keys layers are given; those with a window only what it still shows."""
        if not local:
            return self.n_keys(n_new)
        return min(self.length, keys_before(self.window)) + n_new

    def rewind(self, length: int) -> None:
        """Refuse to forget the newest tokens, since older keys would have to come back.

        Args:
            length: how many tokens to keep.

        Raises:
            ValueError: unless it is the number of tokens that there are.
        """
        if length != self.length:
            why = "a rolling cache has let go of keys that would be seen again"
            raise ValueError(f"{length=} must be that of the cache, {self.length}: {why}")
