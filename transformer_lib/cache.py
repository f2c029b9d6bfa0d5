"""Keys and values kept between the steps of a decoder."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.shapes import check_whole


class KeyValueStore:
    """The keys and values of one attention layer, in memory that is set aside once.

    For generation, under ``torch.no_grad``: what is stored is written over in place.

    Args:
        max_len: for how many positions there is room; ``None`` means for those of the first call.
        filled: of a static cache, the number of positions in use, kept on the device.

    Example:
        >>> store = KeyValueStore(max_len=8)
        >>> k, v = store.append(torch.zeros(2, 4, 3, 16), torch.zeros(2, 4, 3, 16))
        >>> k, v = store.append(torch.ones(2, 4, 1, 16), torch.ones(2, 4, 1, 16))
        >>> k.shape, store.length
        (torch.Size([2, 4, 4, 16]), 4)
    """

    def __init__(self, max_len: int | None = None, filled: Int[Tensor, ""] | None = None) -> None:
        if max_len is not None:
            check_whole("max_len", max_len)
        self.max_len = max_len
        self.filled = filled
        self.visible = max_len
        self.length = 0
        self._stored: list[Tensor] = []  # keys and values

    def append(
        self, k: Float[Tensor, "B H T K"], v: Float[Tensor, "B H T K"]
    ) -> tuple[Float[Tensor, "B H S K"], Float[Tensor, "B H S K"]]:
        """Add the keys and values of new positions and return all of them.

        Args:
            k: keys of the new positions, ``(B, H, T, K)``.
            v: values of the new positions, ``(B, H, T, K)``.

        Returns:
            Keys and values of all positions so far, ``(B, H, S, K)`` each.

        Raises:
            ValueError: if there is no room, or the batch is not the one that was stored.
        """
        self.max_len = k.shape[2] if self.max_len is None else self.max_len
        end = self.length + k.shape[2]
        if end > self.max_len:
            use = f"{self.length} are in use and {k.shape[2]} more were given"
            raise ValueError(f"the cache holds max_len={self.max_len} positions; {use}")
        if not self._stored:
            room = (*k.shape[:2], self.max_len, k.shape[3])
            self._stored = [k.new_zeros(room), v.new_zeros(room)]
        batch_size = self._stored[0].shape[0]
        if batch_size != k.shape[0]:
            raise ValueError(f"the cache was filled with a batch of {batch_size}; got {k.shape[0]}")
        for stored, new in zip(self._stored, (k, v), strict=True):
            if self.filled is None:
                stored[:, :, self.length : end] = new
            else:
                slots = self.filled + torch.arange(k.shape[2], device=k.device)
                stored.index_copy_(2, slots, new)
        self.length = end if self.filled is None else 0
        return self.read()

    def read(self) -> tuple[Float[Tensor, "B H S K"], Float[Tensor, "B H S K"]]:
        """Return the keys and values of all positions so far, ``(B, H, S, K)`` each."""
        if not self._stored:
            raise ValueError("the cache is empty: append keys and values first")
        n_keys = self.length if self.filled is None else self.visible
        keys, values = (stored[:, :, :n_keys] for stored in self._stored)
        return keys, values

    @property
    def n_bytes(self) -> int:
        """The memory set aside for keys and values."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._stored)


class KeyValueCache:
    """One store for each layer's self-attention, and one for its cross-attention.

    One cache serves one batch and one memory. H is the number of key-value heads here.

    Args:
        n_layers: the number of blocks of the decoder.
        max_len: the longest target sequence.
        static: the device of a static cache, whose shapes do not change from token to token, so
            that one compiled step serves many; ``None``: attention sees only what is in use.

    Example:
        >>> cache = KeyValueCache(n_layers=6, max_len=512)
        >>> cache.length, len(cache.own), len(cache.memory)
        (0, 6, 6)
    """

    def __init__(
        self, n_layers: int, max_len: int, static: torch.device | str | None = None
    ) -> None:
        check_whole("n_layers", n_layers)
        self.max_len = max_len
        # A number on the device, which compiled steps count up without asking Python.
        self.filled = None if static is None else torch.zeros((), dtype=torch.long, device=static)
        self.own = [KeyValueStore(max_len, self.filled) for _ in range(n_layers)]
        # What the encoder said never changes, so its keys and values are stored once, in full.
        self.memory = [KeyValueStore() for _ in range(n_layers)]

    def check_layers(self, n_layers: int) -> None:
        """Raise an error unless the cache fits a decoder and all of its layers stored as much.

        Args:
            n_layers: the number of blocks of the decoder.

        Raises:
            ValueError: if it does not, or if an earlier call failed halfway.
        """
        if len(self.own) != n_layers:
            raise ValueError(
                f"the cache has {len(self.own)} layers; expected n_layers={n_layers} of the model"
            )
        lengths = [store.length for store in self.own]
        if len(set(lengths)) > 1:
            why = "an earlier call failed halfway; start with a new cache"
            raise ValueError(f"the layers of the cache hold {lengths} positions: {why}")

    @property
    def length(self) -> int:
        """The number of target positions that every layer has stored."""
        return self.own[-1].length if self.filled is None else int(self.filled)

    @property
    def start(self) -> int | Int[Tensor, ""]:
        """The place of the next token, as a number or (in a static cache) a tensor."""
        return self.own[-1].length if self.filled is None else self.filled

    def n_keys(self, n_new: int) -> int:
        """The number of keys that attention sees once ``n_new`` tokens are added."""
        if self.filled is None:
            return self.length + n_new
        visible = self.own[-1].visible or self.max_len
        if n_new > visible:
            raise ValueError(f"the cache shows {visible} places; {n_new} new tokens do not fit")
        return visible

    def show(self, n_keys: int) -> None:
        """Let attention see the first ``n_keys`` places of a static cache: those in use and more.

        Args:
            n_keys: at most ``max_len``; a mask hides what is not in use.
        """
        for store in self.own:
            store.visible = n_keys

    def rewind(self, length: int = 0) -> None:
        """Forget what came after the first ``length`` tokens of a static cache, and the memory.

        Args:
            length: how many tokens to keep; with none, the next batch may have another memory.
        """
        if self.filled is not None:
            self.filled.fill_(length)
        for store in self.memory if length == 0 else ():
            store.length = 0

    def advance(self, n_new: int) -> None:
        """Count the new tokens, which all layers have stored by now."""
        if self.filled is not None:
            self.filled += n_new

    @property
    def n_bytes(self) -> int:
        """The memory set aside in all layers."""
        return sum(store.n_bytes for store in (*self.own, *self.memory))
