"""A cache for compiled steps: the same shapes in each."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib.cache import KeyValueCache, LayerCache, MemoryCache, check_room
from transformer_lib.checks import check_whole


class StaticLayerCache(LayerCache):
    """The keys and values of one layer, of which attention always sees as many places.

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
        self.filled, self.visible = filled, max_len

    def append(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T K"]
    ) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        """Write the keys and values of new positions to their places; return all that is seen."""
        places = self.filled + torch.arange(k.shape[2], device=k.device)
        for stored, new in zip(self._room_for(k, v), (k, v), strict=True):
            stored.index_copy_(2, places, new)
        return self.read()

    def read(self) -> tuple[Float[Tensor, "B G S K"], Float[Tensor, "B G S K"]]:
        """Return the keys and values of all places that are seen, in use or not."""
        keys, values = self._all()
        return keys[:, :, : self.visible], values[:, :, : self.visible]


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

    def __init__(
        self, n_layers: int, max_len: int, device: torch.device | str | None = None
    ) -> None:
        super().__init__(n_layers, max_len)
        # A number on the device, which compiled steps count up without asking Python.
        self.filled = torch.zeros((), dtype=torch.long, device=device)
        self._counted: int | None = 0  # the same in Python, as long as Python sees every step
        self._layers = [StaticLayerCache(max_len, self.filled) for _ in range(n_layers)]
        self.layers = list[LayerCache](self._layers)

    @property
    def length(self) -> int:
        """The number of target positions that are in use; a GPU may have to wait."""
        if self._counted is None or self.filled.device.type == "cpu":
            return int(self.filled)
        return self._counted

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
            ValueError: if there is no room for them. A compiled step cannot tell: whoever drives it
                counts.
        """
        visible = self._layers[-1].visible
        used = 0 if torch.compiler.is_compiling() else self.length
        check_room(self.max_len, used, n_new)
        if used + n_new > visible:
            use = f"{used} are in use and {n_new} more were given"
            raise ValueError(f"the cache shows {visible} places; {use}")
        return visible

    def distances(self, n_new: int, device: torch.device) -> Int[Tensor, "T S"]:
        """Count how far each place stands before the next tokens; those to come have less than 0.

        Args:
            n_new: T, how many tokens are to be added.
            device: where to build the table.

        Returns:
            A table ``(T, S)``, one column for each place that is seen.
        """
        places = self.filled + torch.arange(n_new, device=device)
        return places[:, None] - torch.arange(self.n_keys(n_new), device=device)

    def show(self, n_keys: int) -> None:
        """Let attention see the first ``n_keys`` places: those in use and more.

        Args:
            n_keys: at most ``max_len``.

        Raises:
            ValueError: if there are not so many places.
        """
        check_whole("n_keys", n_keys)
        if n_keys > self.max_len:
            holds = f"the cache holds max_len={self.max_len}"
            raise ValueError(f"{n_keys=} places cannot be shown: {holds}")
        for layer in self._layers:
            layer.visible = n_keys

    def advance(self, n_new: int) -> None:
        """Count the new tokens, which all layers have stored by now."""
        self.filled += n_new
        if torch.compiler.is_compiling():
            self._counted = None
        elif self._counted is not None:
            self._counted += n_new

    def count_on_device(self) -> None:
        """Say that from now on steps are replayed, of which Python sees nothing."""
        self._counted = None

    def for_blocks(
        self, n_layers: int, memory: Float[Tensor, "B S D"] | None
    ) -> list[tuple[LayerCache, MemoryCache | None]]:
        """Give every block of a decoder its part; after a reset, the memory may be a new one."""
        if memory is not None and self.memory_layers and self.memory_layers[0].length == 0:
            for layer in self.memory_layers:
                layer.remember(memory)
        return super().for_blocks(n_layers, memory)

    def reset(self) -> None:
        """Forget everything, but stay where it is, because recorded steps read there.

        So the next batch and its memory must have the size of the last.
        """
        for layer in self.memory_layers:
            layer.length = 0
        self._set_length(0)

    def _set_length(self, length: int) -> None:
        self.filled.fill_(length)
        self._counted = length
