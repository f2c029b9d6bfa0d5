"""A static KV cache, for compiled steps: the same shapes in each."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache, check_room


class StaticLayerCache(LayerCache):
    """The keys and values of one layer; attention sees all ``max_len`` places, in use or not.

    A mask or a bias has to hide those that are not in use: see :class:`StaticCache`.

    Args:
        max_len: for how many positions there is room.
        filled: how many of them are in use; shared by all layers, kept on the device.

    Example:
        >>> layer = StaticLayerCache(8, filled=torch.tensor(2))
        >>> k, v = layer.append(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1))
        >>> k.flatten()  # the third of eight places
        tensor([0., 0., 1., 0., 0., 0., 0., 0.])
    """

    def __init__(self, max_len: int, filled: Int[Tensor, ""]) -> None:
        super().__init__(max_len)
        self.filled = filled

    @property
    def length(self) -> int:
        """How many positions are in use, in all layers; to read it, Python waits for a GPU."""
        return int(self.filled)

    @length.setter
    def length(self, length: int) -> None:
        self.filled.fill_(length)

    def append(
        self, k: Float[Tensor, "B G T Dk"], v: Float[Tensor, "B G T Dv"]
    ) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Write the keys and values of new positions to their places; return those of all.

        They are counted later, by :meth:`StaticCache.advance`, once for all layers.
        """
        places = self.filled + torch.arange(k.shape[2], device=k.device)
        for stored, new in zip(self.all_places(k, v), (k, v), strict=True):
            stored.index_copy_(2, places, new)
        return self.read()

    def read(self) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Return the keys and values of all places, in use or not."""
        return self._buffers()

    def all_places(
        self, k: Float[Tensor, "B G T Dk"], v: Float[Tensor, "B G T Dv"]
    ) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Return all places for keys and values like these, without writing them."""
        # How many are in use is not asked here: StaticCache.n_keys does so once for all layers.
        check_room(self.max_len, 0, k.shape[2])
        return self._buffers_for(k, v)


class StaticCache(KeyValueCache):
    """A cache whose shapes and addresses do not change from token to token.

    One compiled or recorded step serves many tokens then. Attention sees all places; a mask hides
    those that are not in use, with the future.

    Args:
        n_layers: the number of blocks of the decoder.
        max_len: the longest target sequence.
        device: where the model is.

    Example:
        >>> cache = StaticCache(n_layers=6, max_len=512)
        >>> cache.length, cache.n_keys(1)
        (0, 512)
    """

    shows_unused_places = True

    def __init__(
        self, n_layers: int, max_len: int, device: torch.device | str | None = None
    ) -> None:
        super().__init__(n_layers, max_len)
        # A number on the device, which compiled steps count up without asking Python.
        self.filled = torch.zeros((), dtype=torch.long, device=device)
        self._counted: int | None = 0  # the same in Python; None after steps that it did not count
        self.layers = [StaticLayerCache(max_len, self.filled) for _ in self.layers]

    @property
    def length(self) -> int:
        """The number of target positions that are in use; Python may have to wait for a GPU."""
        if self._counted is None or self.filled.device.type == "cpu":
            return int(self.filled)
        return self._counted

    @property
    def known_length(self) -> int | None:
        """The length; ``None`` in a compiled step, which must not depend on it."""
        return None if torch.compiler.is_compiling() else self.length

    @property
    def start(self) -> Int[Tensor, ""]:
        """The position of the next token, as a number on the device."""
        return self.filled

    def n_keys(self, n_new: int) -> int:
        """Say how many places attention sees, in use or not.

        Args:
            n_new: how many tokens are to be added.

        Returns:
            The same number for every token.

        Raises:
            ValueError: if there is no room for them. A compiled step cannot check it: whoever calls
                it has to count.
        """
        check_room(self.max_len, self.known_length or 0, n_new)
        return self.max_len

    def distances(
        self, n_new: int, device: torch.device, *, local: bool = False
    ) -> Int[Tensor, "T S"]:
        """Count how far each place stands before the next tokens; negative for later places.

        Args:
            n_new: T, how many tokens are to be added.
            device: where to build the table.
            local: whether it is for layers with a window, which are given all places, too.

        Returns:
            A table ``(T, S)``, one column for each place.
        """
        places = self.filled + torch.arange(n_new, device=device)
        return places[:, None] - torch.arange(self.n_keys(n_new), device=device)

    def advance(self, n_new: int) -> None:
        """Count the new tokens, which all layers have stored by now."""
        self.filled += n_new
        if torch.compiler.is_compiling():
            self._counted = None
        elif self._counted is not None:
            self._counted += n_new

    def note_length(self, length: int | None) -> None:
        """Say how many positions are in use, after recorded or compiled steps.

        Args:
            length: what ``filled`` holds on the device; ``None``: read it there when needed.
        """
        self._counted = length

    def for_prompt(self) -> KeyValueCache:
        """Make an empty ordinary cache with the same buffers, to read a prompt with.

        So the prompt is read as usual, by the fastest kernel and without a mask.
        """
        cache = KeyValueCache(len(self.layers), self.max_len)
        for its, own in zip(cache.layers, self.layers, strict=True):
            its.share_storage_with(own)
        return cache

    def go_on_after(self, prompt: KeyValueCache, memory: Float[Tensor, "B S D"] | None) -> None:
        """Hold what the prompt's cache holds, at the addresses from which recorded steps read.

        Args:
            prompt: made by :meth:`for_prompt`, and filled; not to be used any more.
            memory: what cross-attention is going to be given, with the values that it was given.
        """
        for own, its in zip(self.layers, prompt.layers, strict=True):
            own.share_storage_with(its)
        if not self.memory_layers:
            self.memory_layers = prompt.memory_layers
        for own_memory, its_memory in zip(self.memory_layers, prompt.memory_layers, strict=True):
            if own_memory is not its_memory:
                own_memory.overwrite(its_memory)
            if memory is not None:
                own_memory.remember(memory)
        self._set_length(prompt.length)

    def reset(self) -> None:
        """Forget everything, but keep the buffers, because recorded steps read there.

        So the next batch must have the size of the last. A memory of another length gets new
        buffers: steps that were recorded with the old ones cannot be replayed with it.
        """
        for layer in self.memory_layers:
            layer.forget()
        self._set_length(0)

    def _check_complete(self) -> None:
        """Nothing to check: a step that fails halfway is not counted, and is written over."""

    def _set_length(self, length: int) -> None:
        self.filled.fill_(length)
        self._counted = length
