"""Keys and values kept between the steps of a decoder."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.checks import check_whole


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
        self._memory: Tensor | None = None  # what they were made from, if it never changes
        self._version: int | None = None  # of the memory: every change in place counts it up

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
        if not self._stored:
            n_places = k.shape[2] if self.max_len is None else self.max_len
            room = (*k.shape[:2], n_places, k.shape[3])
            self._stored = [k.new_zeros(room), v.new_zeros(room)]
        end, n_places = self.length + k.shape[2], self._stored[0].shape[2]
        if end > n_places:
            raise ValueError(_too_full(n_places, self.length, k.shape[2]))
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

    def keep(self, memory: Float[Tensor, "B S D"]) -> None:
        """Remember from which vectors the stored keys and values were made.

        Args:
            memory: what cross-attention reads, the same in every call.
        """
        self._memory, self._version = memory, _version(memory)

    def check(self, memory: Float[Tensor, "B S D"]) -> None:
        """Raise an error unless the stored keys and values were made from these vectors.

        Another tensor with equal values will do; a GPU has to wait until they are compared. A
        compiled step notices another tensor, but not that the same one was changed in place.

        Args:
            memory: what cross-attention is asked to read.

        Raises:
            ValueError: if it is another memory, or was changed in place since.
        """
        if memory is not self._memory or self._was_changed(memory):
            self._compare(memory)

    def _was_changed(self, memory: Tensor) -> bool:
        return None not in (now := _version(memory), self._version) and now != self._version

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _compare(self, memory: Tensor) -> None:
        held, advice = self._memory, "start with a new cache, or reset() this one"
        if held is None:
            raise ValueError(f"the store holds keys that were not made from a memory: {advice}")
        if held.shape[:2] != memory.shape[:2]:
            other = f"the store holds another one, with (B, S) = {tuple(held.shape[:2])}"
            raise ValueError(f"memory has shape {tuple(memory.shape)}; {other}")
        if self._was_changed(held):
            raise ValueError(f"memory was changed in place since its keys were stored: {advice}")
        if not torch.equal(held, memory):
            raise ValueError(f"memory is another one than that whose keys are stored: {advice}")
        self.keep(memory)  # the next call may bring it again

    def reset(self, *, stay: bool = False) -> None:
        """Forget everything.

        Args:
            stay: whether to go on in the same memory, which recorded steps read; if not, the next
                batch may have another size.
        """
        self.length, self._memory = 0, None
        self._stored = self._stored if stay else []

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
        self._counted: int | None = 0  # the same in Python, as long as Python sees every step
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
            why = f"an earlier call failed halfway; rewind({min(lengths)}), or start with a new one"
            raise ValueError(f"the layers of the cache hold {lengths} positions: {why}")

    @property
    def length(self) -> int:
        """The number of target positions that every layer has stored."""
        if self.filled is None:
            return self.own[-1].length  # the last layer to store
        if self._counted is None or self.filled.device.type == "cpu":
            return int(self.filled)  # a GPU has to wait
        return self._counted

    @property
    def start(self) -> int | Int[Tensor, ""]:
        """The place of the next token, as a number or (in a static cache) a tensor."""
        return self.own[-1].length if self.filled is None else self.filled

    def n_keys(self, n_new: int) -> int:
        """The number of keys that attention sees once ``n_new`` tokens are added.

        Args:
            n_new: how many are to be added.

        Returns:
            All of them, or the places that a static cache shows.

        Raises:
            ValueError: if a static cache has no room for them. A compiled step cannot tell: whoever
                drives it counts.
        """
        if self.filled is None:
            return self.length + n_new
        visible = self.own[-1].visible or self.max_len
        used = 0 if torch.compiler.is_compiling() else self.length
        if used + n_new > self.max_len:
            raise ValueError(_too_full(self.max_len, used, n_new))
        if used + n_new > visible:
            use = f"{used} are in use and {n_new} more were given"
            raise ValueError(f"the cache shows {visible} places; {use}")
        return visible

    def show(self, n_keys: int) -> None:
        """Let attention see the first ``n_keys`` places of a static cache: those in use and more.

        Args:
            n_keys: at most ``max_len``; a mask hides what is not in use.

        Raises:
            ValueError: if there are not so many places, or the cache is not static.
        """
        check_whole("n_keys", n_keys)
        if self.filled is None or n_keys > self.max_len:
            kind = "is not static" if self.filled is None else f"holds max_len={self.max_len}"
            raise ValueError(f"{n_keys=} places cannot be shown: the cache {kind}")
        for store in self.own:
            store.visible = n_keys

    def rewind(self, length: int) -> None:
        """Forget what came after the first ``length`` tokens. What the encoder said is kept.

        The next tokens are read as if those before them were all there ever was.

        Args:
            length: how many tokens to keep.

        Raises:
            ValueError: if it is not a whole number, or more than there are.

        Example:
            >>> cache = KeyValueCache(n_layers=1, max_len=8)
            >>> _ = cache.own[0].append(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
            >>> cache.rewind(3)
            >>> cache.length
            3
        """
        check_whole("length", length, least=0)
        if length > self.length:
            raise ValueError(f"{length=} is more than the cache holds, {self.length}")
        self._set_length(length)

    def reset(self) -> None:
        """Forget everything, what the encoder said too: the next batch may begin.

        A static cache stays where it is, because recorded steps read there; so the next batch and
        its memory must have the size of the last.

        Example:
            >>> cache = KeyValueCache(n_layers=1, max_len=8)
            >>> _ = cache.own[0].append(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
            >>> cache.reset()
            >>> cache.length, cache.n_bytes
            (0, 0)
        """
        for store in (*self.own, *self.memory):
            store.reset(stay=self.filled is not None)
        self._set_length(0)

    def _set_length(self, length: int) -> None:
        if self.filled is None:
            for store in self.own:
                store.length = length
        else:
            self.filled.fill_(length)
            self._counted = length

    def advance(self, n_new: int) -> None:
        """Count the new tokens, which all layers have stored by now."""
        if self.filled is not None:
            self.filled += n_new
            if torch.compiler.is_compiling():
                self._counted = None
            elif self._counted is not None:
                self._counted += n_new

    def count_on_device(self) -> None:
        """Say that from now on steps are replayed, of which Python sees nothing."""
        self._counted = None

    @property
    def n_bytes(self) -> int:
        """The memory set aside in all layers."""
        return sum(store.n_bytes for store in (*self.own, *self.memory))


def _version(memory: Tensor) -> int | None:
    """Count the changes of a tensor in place; ``None`` where nobody counts them."""
    if torch.compiler.is_compiling() or memory.is_inference():
        return None
    return memory._version


def _too_full(max_len: int, used: int, n_new: int) -> str:
    use = f"{used} are in use and {n_new} more were given"
    return f"the cache holds {max_len=} positions; {use}"
