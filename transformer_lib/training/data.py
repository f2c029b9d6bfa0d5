"""Batches of examples: padded, shuffled, resumed.

A batch is a dictionary: the arguments of a model's forward pass, and ``targets``, what it should
answer, with ``IGNORE`` where nothing is asked. The first dimension of every tensor counts the
examples; it may be 1 for what all of them share, such as a mask.

:class:`Batches` makes them with a function that turns a list of examples into one batch;
``functools.partial`` sets the options of that function.
"""

import random
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Int, Integer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformer_lib.core.checks import check_choice, check_whole
from transformer_lib.core.shapes import expect_shape
from transformer_lib.layers.masks import padding_mask

IGNORE = -100  # a target that is not counted

Batch = dict[str, Tensor]
Ids = Sequence[int] | Integer[Tensor, "_"]
SourceAndTarget = tuple[Ids, Ids]
Example = Any  # whatever the function that makes batches of it understands


@runtime_checkable
class Examples(Protocol):
    """What has a length and an index: a list, a tensor, a data set.

    Example:
        >>> isinstance([[5, 6], [7, 8, 9]], Examples)
        True
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Example: ...


class Batches:
    """An endless stream of batches, in an order that can be repeated and resumed.

    Every epoch brings each example once. Its order is a pure function of the seed and the epoch's
    number, so the place in the stream is all there is to save.

    Args:
        examples: anything with a length and an index.
        collate: makes a batch of a list of examples.
        batch_size: how many examples a batch has; the last one of an epoch may have fewer.
        max_tokens: instead of ``batch_size``: how large a batch may be, padding included, which is
            the number of its examples times the longest. A longer example stands alone.
        length: gives the length of an example; needed for ``max_tokens`` and ``bucket``.
        bucket: how many examples are sorted by length together, so that batches have little
            padding; 1 for none. Batches still come in random order.
        shuffle: whether the order is random.
        seed: another seed, another order.

    Raises:
        ValueError: if an argument is out of range, or two do not go together.

    Example:
        >>> stream = Batches(
        ...     [[5, 6], [7, 8, 9], [5, 9]], next_token_batch, batch_size=2
        ... )
        >>> state = stream.state_dict()
        >>> first = next(stream)
        >>> stream.load_state_dict(state)
        >>> torch.equal(next(stream)["ids"], first["ids"])
        True
    """

    state_has_checksum: ClassVar[bool] = False  # whether state_dict says which data it belongs to

    def __init__(
        self,
        examples: Examples,
        collate: Callable[[list[Example]], Batch],
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        length: Callable[[Example], int] | None = None,
        bucket: int = 1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if (batch_size is None) == (max_tokens is None):
            raise ValueError(f"{batch_size=}, {max_tokens=}: give one of the two")
        if length is None and (bucket != 1 or batch_size is None):
            raise ValueError(f"{max_tokens=}, {bucket=}: to use them, give length, a function")
        self.limit = batch_size or max_tokens or 0
        self.examples, self.collate, self.shuffle = examples, collate, shuffle
        n_examples = len(examples)
        self.lengths = [length(examples[i]) for i in range(n_examples)] if length else []
        self.sizes = None if max_tokens is None else self.lengths  # None: each counts as one
        name = "batch_size" if max_tokens is None else "max_tokens"
        self.settings = {name: self.limit, "bucket": bucket, "n_examples": n_examples}
        for name, value in self.settings.items():
            check_whole(name, value)
        self.settings |= {"shuffle": int(shuffle), "seed": seed}
        self.epoch, self.batch = 0, 0  # the place of the next batch
        self._left: list[list[int]] = []  # the batches of this epoch that are still to come

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._left = self._left or self.plan(self.epoch)[self.batch :]
        batch = self._make(self._left[0])
        del self._left[0]  # only now: where making it failed, the place stays
        self.batch += 1
        if not self._left:
            self.epoch, self.batch = self.epoch + 1, 0
        return batch

    def one_pass(self) -> Iterator[Batch]:
        """Yield every example once, in order; the endless stream stays where it is."""
        return map(self._make, self._group(range(len(self.examples))))

    def _settings(self) -> dict[str, int]:
        """What a stream must have in common with another one to go on where that one stopped."""
        return self.settings

    def state_dict(self) -> dict[str, int]:
        """Return the place of the next batch, and the settings it belongs to."""
        return {**self._settings(), "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to the place of an equal stream.

        Args:
            state: what its :meth:`state_dict` gave.

        Raises:
            ValueError: if that stream had other settings.
        """
        for name, value in self._settings().items():
            if state.get(name) != value:
                raise ValueError(f"{name}={value} here, but {state.get(name)} in the state")
        self.epoch, self.batch, self._left = state["epoch"], state["batch"], []

    def plan(self, epoch: int) -> list[list[int]]:
        """Return the batches of one epoch, each as the numbers of its examples."""
        rng, order = self._rng(epoch), list(range(len(self.examples)))
        if self.shuffle:
            rng.shuffle(order)
        bucket = self.settings["bucket"]
        if bucket > 1:
            pools = (order[start : start + bucket] for start in range(0, len(order), bucket))
            order = [i for pool in pools for i in sorted(pool, key=self.lengths.__getitem__)]
        batches = list(self._group(order))
        if self.shuffle:
            rng.shuffle(batches)
        return batches

    def _group(self, order: Iterable[int]) -> Iterator[list[int]]:
        """Cut an order into batches, each as large as it may be."""
        batch: list[int] = []
        largest = 0
        for i in order:
            size = 1 if self.sizes is None else self.sizes[i]
            largest = max(largest, size)
            if batch and (len(batch) + 1) * largest > self.limit:
                yield batch
                batch, largest = [], size
            batch.append(i)
        if batch:
            yield batch

    def _make(self, indices: list[int]) -> Batch:
        return self.collate([self.examples[i] for i in indices])

    def _rng(self, epoch: int) -> random.Random:
        # A text as seed is hashed: seed 1 in epoch 2 has nothing to do with seed 2 in epoch 1.
        return random.Random(f"{self.settings['seed']} {epoch}")


class TextWindows(Batches):
    """An endless stream of windows from random places of one long text, for language models.

    Args:
        ids: the text as token ids, ``(N,)``: a tensor, or a NumPy array, such as a ``np.memmap`` of
            a file that is larger than the memory. Nothing is copied, and a file is read whole only
            for the checksum that a checkpoint keeps.
        length: T, how many tokens a window has.
        batch_size: B, how many windows a batch has.
        seed: another seed, other places.

    Raises:
        TypeError: if ``ids`` are not whole numbers.
        ValueError: if an argument is out of range, or the text is too short for one window.

    Example:
        >>> stream = TextWindows(torch.arange(100), length=3, batch_size=1)
        >>> batch = next(stream)
        >>> batch["targets"] - batch["ids"]  # the token after each token
        tensor([[1, 1, 1]])
        >>> [
        ...     batch["ids"].tolist()
        ...     for batch in TextWindows(torch.arange(6), 3, 1).one_pass()
        ... ]
        [[[0, 1, 2]], [[3, 4]]]
    """

    state_has_checksum: ClassVar[bool] = True

    def __init__(
        self,
        ids: Integer[Tensor, " N"] | Integer[np.ndarray, " N"],
        length: int,
        batch_size: int,
        seed: int = 0,
    ) -> None:
        check_whole("length", length)
        ids = _as_ids(ids)
        n = len(ids)
        if n <= length:
            raise ValueError(f"{length=} is too much for a text of {n} tokens: one must follow")
        # All windows as a view: nothing is copied. One token more, the target of the last one.
        windows = ids.unfold(0, length + 1, 1)  # (N - T, T + 1)
        super().__init__(windows, next_token_batch, batch_size=batch_size, seed=seed)
        self.ids, self.length = ids, length

    def plan(self, epoch: int) -> list[list[int]]:
        """Return one batch of random windows: an epoch has no other meaning here."""
        rng = self._rng(epoch)
        return [[rng.randrange(len(self.examples)) for _ in range(self.limit)]]

    def one_pass(self) -> Iterator[Batch]:
        """Yield windows that follow each other: every token but the first is a target once."""
        for starts in self._group(range(0, len(self.ids) - 1, self.length)):
            yield self.collate([self.ids[start : start + self.length + 1] for start in starts])

    def _settings(self) -> dict[str, int]:
        return self.settings | {"text": self._checksum}

    @cached_property
    def _checksum(self) -> int:
        """Of all bytes of the text, a piece at a time: they may be in a file, and many."""
        found = 0
        for part in self.ids.split(2**20):
            found = zlib.crc32(part.contiguous().cpu().numpy(), found)
        return found


def _as_ids(ids: object) -> Tensor:
    """Take a text as a tensor, without a copy."""
    if isinstance(ids, np.ndarray):
        whole = np.issubdtype(ids.dtype, np.integer)
    elif isinstance(ids, Tensor):
        whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    else:
        kind = type(ids).__name__
        raise TypeError(f"ids is a {kind}; expected a tensor or a NumPy array of token ids")
    if not whole:
        raise TypeError(f"ids has dtype {ids.dtype}; expected whole numbers, token ids")
    if isinstance(ids, np.ndarray):
        with warnings.catch_warnings():  # of an array that is read-only: it stays so
            warnings.simplefilter("ignore", UserWarning)
            ids = torch.from_numpy(ids)
    expect_shape("ids", ids, "N", {})
    return ids


def pad(
    sequences: Sequence[Ids], pad_id: int = 0, side: Literal["right", "left"] = "right"
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B 1 1 T"]]:
    """Fill sequences up to the length of the longest.

    Args:
        sequences: B sequences of token ids; tensors are faster than lists.
        pad_id: the id to fill up with.
        side: where to fill up: ``"right"``, or ``"left"`` to generate from prompts.

    Returns:
        The ids ``(B, T)``, and the mask that hides the padding, ``(B, 1, 1, T)``.

    Raises:
        TypeError: if an id has a fraction.
        ValueError: if there is no sequence, one is empty, or the side is unknown.

    Example:
        >>> ids, mask = pad([[5, 6, 7], [8]])
        >>> ids
        tensor([[5, 6, 7],
                [8, 0, 0]])
        >>> mask[:, 0, 0].int()
        tensor([[1, 1, 1],
                [1, 0, 0]], dtype=torch.int32)
    """
    check_choice("side", side, ("right", "left"))
    rows = [torch.as_tensor(sequence) for sequence in sequences]
    lengths = [len(row) for row in rows]
    if any(row.is_floating_point() and len(row) for row in rows):
        raise TypeError("sequences has numbers with a fraction; expected token ids")
    if not rows or not all(lengths):
        raise ValueError(f"sequences has lengths {lengths}; each must be 1 or more")
    ids = pad_sequence(rows, batch_first=True, padding_value=pad_id, padding_side=side).long()
    mask = padding_mask(torch.tensor(lengths, device=ids.device), ids.shape[1])
    return ids, mask if side == "right" else mask.flip(-1)


def next_token_batch(sequences: Sequence[Ids], pad_id: int = 0) -> Batch:
    """Make a batch in which every token is to be predicted from those before it.

    There is no mask: padding comes last, and a decoder does not look ahead.

    Args:
        sequences: B sequences of token ids.
        pad_id: the id to fill up with.

    Returns:
        ``ids`` and ``targets``, each ``(B, T)``: all tokens but the last, and all but the first.

    Raises:
        ValueError: if a sequence is too short to have a next token.

    Example:
        >>> next_token_batch([[5, 6, 7], [8, 9]])
        {'ids': tensor([[5, 6],
                [8, 9]]), 'targets': tensor([[   6,    7],
                [   9, -100]])}
    """
    ids, mask = pad(sequences, pad_id)
    if not mask[..., 1:].any(dim=-1).all():
        raise ValueError("sequences has one of a single token; next-token prediction needs two")
    return {"ids": ids[:, :-1], "targets": ids[:, 1:].masked_fill(~mask[:, 0, 0, 1:], IGNORE)}


def translation_batch(
    pairs: Sequence[SourceAndTarget], pad_id: int = 0, bos_id: int = 1, eos_id: int = 2
) -> Batch:
    """Make a batch for an encoder-decoder; the decoder reads the target shifted right.

    Args:
        pairs: B pairs of a source and its target, both token ids.
        pad_id: the id to fill up with.
        bos_id: the id that the decoder reads first.
        eos_id: the id that is to be predicted last.

    Returns:
        ``source`` ``(B, S)``, ``source_mask`` ``(B, 1, 1, S)``, ``target`` and ``targets``, each
        ``(B, T)``.

    Raises:
        ValueError: if a source or a target is empty.

    Example:
        >>> batch = translation_batch([([5, 6], [7, 8])])
        >>> batch["target"], batch["targets"]
        (tensor([[1, 7, 8]]), tensor([[7, 8, 2]]))
    """
    source, source_mask = pad([source for source, _ in pairs], pad_id)
    target, mask = pad([target for _, target in pairs], pad_id)
    targets = F.pad(target.masked_fill(~mask[:, 0, 0], IGNORE), (0, 1), value=IGNORE)  # (B, T + 1)
    targets[torch.arange(len(pairs)), mask.sum(dim=(1, 2, 3))] = eos_id  # right after the last
    target = F.pad(target, (1, 0), value=bos_id)
    # "target" is what the decoder reads, an argument of the model; "targets" is what it is to
    # predict, as in every batch.
    return {"source": source, "source_mask": source_mask, "target": target, "targets": targets}


def classification_batch(examples: Sequence[tuple[Ids, int]], pad_id: int = 0) -> Batch:
    """Make a batch of sequences, each with one class.

    Args:
        examples: B pairs of token ids and the number of their class.
        pad_id: the id to fill up with.

    Returns:
        ``ids`` ``(B, T)``, ``mask`` ``(B, 1, 1, T)`` and ``targets`` ``(B,)``.

    Raises:
        ValueError: if a sequence is empty.

    Example:
        >>> batch = classification_batch([([5, 6, 7], 1), ([8], 0)])
        >>> batch["ids"].shape, batch["mask"].shape, batch["targets"]
        (torch.Size([2, 3]), torch.Size([2, 1, 1, 3]), tensor([1, 0]))
    """
    ids, mask = pad([ids for ids, _ in examples], pad_id)
    targets = torch.tensor([label for _, label in examples], device=ids.device)
    return {"ids": ids, "mask": mask, "targets": targets}
