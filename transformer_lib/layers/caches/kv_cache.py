"""The KV cache: keys and values kept between the steps of a decoder.

In a decoder no token sees those after it, so the keys and values of earlier tokens never change.
Kept, they need not be computed again: each step reads only the new tokens.

A :class:`KeyValueCache` holds a :class:`LayerCache` for each block's self-attention, to which every
step appends, and a :class:`MemoryCache` for its cross-attention, which is filled once.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.core.checks import check_whole
from transformer_lib.layers.masks import query_key_distances


class AttentionCache:
    """The keys and values of one attention layer, in buffers that are allocated once.

    The common part of :class:`LayerCache` (self-attention, every step appends) and
    :class:`MemoryCache` (cross-attention, filled once). Neither can stand in for the other. G is
    the number of heads that have keys and values of their own.

    For generation, under ``torch.no_grad``: the buffers are overwritten in place.

    Args:
        max_len: for how many positions there is room.

    Attributes:
        length: how many positions are in use.

    Example:
        >>> layer = AttentionCache(max_len=8)
        >>> k, v = layer.append(
        ...     torch.zeros(2, 4, 3, 16), torch.zeros(2, 4, 3, 16)
        ... )
        >>> k.shape, layer.length
        (torch.Size([2, 4, 3, 16]), 3)
    """

    length = 0

    def __init__(self, max_len: int) -> None:
        check_whole("max_len", max_len)
        self.max_len = max_len
        self._stored: tuple[Tensor, Tensor] | None = (
            None  # keys and values, (B, G, max_len, Dk or Dv)
        )

    def append(
        self, k: Float[Tensor, "B G T Dk"], v: Float[Tensor, "B G T Dv"]
    ) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Store the keys and values of new positions, and return all that attention has to read.

        Args:
            k: keys of the new positions, ``(B, G, T, Dk)``.
            v: values of the new positions, ``(B, G, T, Dv)``.

        Returns:
            Keys ``(B, G, S, Dk)`` and values ``(B, G, S, Dv)``, as :meth:`read` returns them.

        Raises:
            ValueError: if there is no room, or the batch is not the one that was stored.
        """
        check_room(self.max_len, self.length, k.shape[2])
        keys, values = self._buffers_for(k, v)
        end = self.length + k.shape[2]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        self.length = end
        return self.read()

    def read(self) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
        """Return the keys and values of the positions in use."""
        keys, values = self._buffers()
        return keys[:, :, : self.length], values[:, :, : self.length]

    @property
    def n_bytes(self) -> int:
        """How many bytes are allocated for keys and values."""
        return sum(x.numel() * x.element_size() for x in self._stored or ())

    def share_storage_with(self, other: "AttentionCache") -> None:
        """Use the buffers of another cache from now on; if it has none yet, allocate new ones."""
        self._stored = other._stored

    def _buffers_for(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The whole buffers, allocated in the first call; later batches must have its size."""
        if self._stored is None:
            self._stored = with_room(self.max_len, k, v)
        batch_size = self._stored[0].shape[0]
        if batch_size != k.shape[0]:
            raise ValueError(f"the cache was filled with a batch of {batch_size}; got {k.shape[0]}")
        return self._stored

    def _buffers(self) -> tuple[Tensor, Tensor]:
        if self._stored is None:
            raise ValueError("the cache is empty: append keys and values first")
        return self._stored


class LayerCache(AttentionCache):
    """The keys and values of one self-attention layer, to which every step appends.

    Args:
        max_len: for how many positions there is room.

    Example:
        >>> layer = LayerCache(max_len=8)
        >>> k, v = layer.append(
        ...     torch.zeros(2, 4, 3, 16), torch.zeros(2, 4, 3, 16)
        ... )
        >>> k, v = layer.append(
        ...     torch.ones(2, 4, 1, 16), torch.ones(2, 4, 1, 16)
        ... )
        >>> k.shape, layer.length
        (torch.Size([2, 4, 4, 16]), 4)
    """

    def select(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with these rows of the batch, in this order (beam search)."""
        for stored in self.read():
            stored.copy_(stored[rows])


class MemoryCache(AttentionCache):
    """The keys and values of a memory, such as an encoder's output: made once, read in every step.

    Args:
        memory: what cross-attention reads, ``(B, S, D)``, the same in every call.

    Example:
        >>> layer = MemoryCache(memory := torch.zeros(1, 3, 8))
        >>> layer.holds(memory)  # not yet
        False
        >>> k, v = layer.append(
        ...     torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
        ... )
        >>> layer.holds(memory)
        True
    """

    def __init__(self, memory: Float[Tensor, "B S D"]) -> None:
        super().__init__(max_len=memory.shape[1])
        self.remember(memory)

    def remember(self, memory: Float[Tensor, "B S D"]) -> None:
        """Note whose keys and values are stored, or will be."""
        self._memory, self._edits = memory, _count_edits(memory)

    def forget(self) -> None:
        """Make room for another memory; if its shape is the same, in the same buffers."""
        self.length = 0

    def overwrite(self, other: "MemoryCache") -> None:
        """Copy what another cache of the same shape holds into the own buffers."""
        for own, its in zip(self._buffers(), other._buffers(), strict=True):
            own.copy_(its)
        self.length = other.length

    def holds(self, memory: Float[Tensor, "B S D"] | None) -> bool:
        """Say whether keys and values of this memory are stored, so that none have to be made.

        Another tensor with equal values will do, but to compare them takes time. A compiled step
        notices another tensor, but not that the same one was changed in place.

        Args:
            memory: what cross-attention is asked to read.

        Returns:
            ``False`` if nothing is stored yet: those of this memory may be appended.

        Raises:
            ValueError: if this is for another memory, or it was changed in place since.
        """
        if memory is None:
            raise ValueError("the cache is for a memory, and none was given")
        if self.length == 0:
            self._expect(memory)
            return False
        if memory is not self._memory or _was_edited(memory, self._edits):
            check = self._check_same
            if torch.compiler.is_compiling():  # not a decorator: it would import the compiler
                check = torch.compiler.disable(check)
            check(memory)
        return True

    def _expect(self, memory: Tensor) -> None:
        """Take this memory next; if its shape is new, in new buffers."""
        if self._memory.shape[:2] != memory.shape[:2]:
            self.max_len, self._stored = memory.shape[1], None
        self.remember(memory)

    def _check_same(self, memory: Tensor) -> None:
        held, advice = self._memory, "start with a new cache, or reset() this one"
        if held.shape[:2] != memory.shape[:2]:
            other = f"the cache holds another one, with (B, S) = {tuple(held.shape[:2])}"
            raise ValueError(f"memory has shape {tuple(memory.shape)}; {other}")
        if _was_edited(held, self._edits):
            raise ValueError(f"memory was changed in place since its keys were stored: {advice}")
        if not torch.equal(held, memory):
            raise ValueError(f"memory is another one than that whose keys are stored: {advice}")
        self.remember(memory)  # the next call may bring it again


class KeyValueCache:
    """A :class:`LayerCache` for each block's self-attention, a :class:`MemoryCache` for the other.

    One cache serves one batch and one memory.

    Args:
        n_layers: the number of blocks of the decoder.
        max_len: the longest target sequence.

    Attributes:
        layers: for each block's self-attention.
        memory_layers: for each block's cross-attention; empty until there is a memory.
        shows_unused_places: whether attention is given places that are not in use, which a mask or
            a bias has to hide (``StaticCache``).

    Example:
        >>> cache = KeyValueCache(n_layers=6, max_len=512)
        >>> cache.length, len(cache.layers)
        (0, 6)
    """

    shows_unused_places = False

    def __init__(self, n_layers: int, max_len: int) -> None:
        check_whole("n_layers", n_layers)
        self.max_len = max_len
        self.layers = [LayerCache(max_len) for _ in range(n_layers)]
        self.memory_layers: list[MemoryCache] = []

    @property
    def length(self) -> int:
        """The number of target positions that every layer has stored."""
        return self.layers[-1].length  # the last layer to store

    @property
    def known_length(self) -> int | None:
        """The length, or ``None`` if it cannot be asked for: a ``StaticCache`` while compiling."""
        return self.length

    @property
    def start(self) -> int | Int[Tensor, ""]:
        """The position of the next token; a ``StaticCache`` has it on the device."""
        return self.length

    def for_blocks(
        self, n_layers: int, memory: Float[Tensor, "B S D"] | None
    ) -> list[tuple[LayerCache, MemoryCache | None]]:
        """Give every block of a decoder its part.

        Args:
            n_layers: the number of blocks.
            memory: what their cross-attention reads, if they have one.

        Returns:
            For each block the caches of its self-attention and of its cross-attention.

        Raises:
            ValueError: if the cache is for another number of blocks, or an earlier call failed
                halfway.
        """
        if len(self.layers) != n_layers:
            wanted = f"expected n_layers={n_layers} of the model"
            raise ValueError(f"the cache has {len(self.layers)} layers; {wanted}")
        self._check_complete()
        if memory is None:
            return [(layer, None) for layer in self.layers]
        if not self.memory_layers:
            self.memory_layers = [MemoryCache(memory) for _ in self.layers]
        return list(zip(self.layers, self.memory_layers, strict=True))

    def _check_complete(self) -> None:
        """Refuse to go on after a call that failed halfway, so that some layers hold more."""
        lengths = [layer.length for layer in self.layers]
        if len(set(lengths)) > 1:
            why = f"an earlier call failed halfway; rewind({min(lengths)}), or start with a new one"
            raise ValueError(f"the layers of the cache hold {lengths} positions: {why}")

    def n_keys(self, n_new: int) -> int:
        """Say how many keys attention sees once ``n_new`` tokens are added."""
        return self.length + n_new

    def n_seen(self, n_new: int, *, local: bool) -> int:
        """Say how many keys layers are given once ``n_new`` tokens are added.

        Args:
            n_new: how many tokens are to be added.
            local: whether the layers have a window; a ``RollingCache`` gives these fewer.

        Returns:
            The number of the newest keys.
        """
        return self.n_keys(n_new)

    def distances(
        self, n_new: int, device: torch.device, *, local: bool = False
    ) -> Int[Tensor, "T S"]:
        """Count how far each key will stand before each of the ``n_new`` next tokens, ``(T, S)``.

        Args:
            n_new: T, how many tokens are to be added.
            device: where to build the table.
            local: whether it is for layers with a window.

        Returns:
            A table like that of :func:`~transformer_lib.layers.masks.query_key_distances`.
        """
        return query_key_distances(n_new, self.n_seen(n_new, local=local), device=device)

    def advance(self, n_new: int) -> None:
        """Count the new tokens, once all layers have stored them (a hook for ``StaticCache``).

        Nothing is to be done here: each layer counts its own.
        """

    def rewind(self, length: int) -> None:
        """Forget what came after the first ``length`` tokens. The memory's keys are kept.

        The next tokens follow directly on those that are kept.

        Args:
            length: how many tokens to keep.

        Raises:
            ValueError: if it is not a whole number, or more than there are.

        Example:
            >>> cache = KeyValueCache(n_layers=1, max_len=8)
            >>> _ = cache.layers[0].append(
            ...     torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4)
            ... )
            >>> cache.rewind(3)
            >>> cache.length
            3
        """
        check_whole("length", length, least=0)
        if length > self.length:
            raise ValueError(f"{length=} is more than the cache holds, {self.length}")
        self._set_length(length)

    def select(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with these rows of the batch, in this order (beam search).

        Rows that change places must have the same memory, as the beams of one text have.
        """
        for layer in self.layers:
            layer.select(rows)

    def _set_length(self, length: int) -> None:
        for layer in self.layers:
            layer.length = length

    def reset(self) -> None:
        """Forget everything, the memory's keys too, and free the buffers.

        The next batch may have another size. (A ``StaticCache`` keeps its buffers.)

        Example:
            >>> cache = KeyValueCache(n_layers=1, max_len=8)
            >>> _ = cache.layers[0].append(
            ...     torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4)
            ... )
            >>> cache.reset()
            >>> cache.length, cache.n_bytes
            (0, 0)
        """
        self.layers = [LayerCache(self.max_len) for _ in self.layers]
        self.memory_layers = []

    @property
    def n_bytes(self) -> int:
        """How many bytes are allocated in all layers."""
        return sum(layer.n_bytes for layer in (*self.layers, *self.memory_layers))


def check_room(max_len: int, used: int, n_new: int) -> None:
    """Raise an error unless new positions have room beside those that are in use.

    Args:
        max_len: how many there is room for.
        used: how many are in use.
        n_new: how many are to come.

    Raises:
        ValueError: if there is no room.

    Example:
        >>> check_room(max_len=4, used=3, n_new=2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: the cache holds max_len=4 positions; 3 are in use and ...
    """
    if used + n_new > max_len:
        use = f"{used} are in use and {n_new} more were given"
        raise ValueError(f"the cache holds {max_len=} positions; {use}")


def with_room(
    n_places: int, k: Float[Tensor, "B G T Dk"], v: Float[Tensor, "B G T Dv"]
) -> tuple[Float[Tensor, "B G S Dk"], Float[Tensor, "B G S Dv"]]:
    """Allocate buffers for keys and values like these.

    Args:
        n_places: S, for how many positions.
        k: keys, whose other sizes are taken.
        v: values; their width may be another one.

    Returns:
        Two buffers of zeros.

    Example:
        >>> k, v = with_room(8, torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 0))
        >>> k.shape, v.shape
        (torch.Size([1, 2, 8, 4]), torch.Size([1, 2, 8, 0]))
    """
    keys, values = (x.new_zeros(*x.shape[:2], n_places, x.shape[3]) for x in (k, v))
    return keys, values


def _count_edits(memory: Tensor) -> int | None:
    """Count the changes of a tensor in place; ``None`` where PyTorch does not count them."""
    if torch.compiler.is_compiling() or memory.is_inference():
        return None
    return memory._version


def _was_edited(memory: Tensor, before: int | None) -> bool:
    now = _count_edits(memory)
    return None not in (now, before) and now != before
