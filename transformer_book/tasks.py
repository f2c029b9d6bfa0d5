"""Made-up tasks that show what a model can remember.

Each task is a list of pairs of a source and a target, both lists of token ids.
``transformer_lib.training.data.translation_batch`` turns them into batches for an encoder-decoder,
:func:`answer_batch` for a decoder alone. For a classifier, the only id of the target is the class.
"""

import random
from collections.abc import Sequence

import torch

from transformer_lib import IGNORE, Batch, Ids, check_whole, next_token_batch

FIRST_SYMBOL = 3  # 0, 1 and 2 are padding, start and end

Pair = tuple[list[int], list[int]]


def copy_task(n_examples: int, n_symbols: int, max_length: int, seed: int = 0) -> list[Pair]:
    """Make random words that are to be repeated.

    Args:
        n_examples: how many.
        n_symbols: how many different symbols there are, from ``FIRST_SYMBOL`` on.
        max_length: a word has 1 to this many symbols.
        seed: another seed, other words.

    Returns:
        Pairs of a word and the same word.

    Raises:
        ValueError: if a number is too small.

    Example:
        >>> copy_task(2, n_symbols=10, max_length=3)
        [([10, 7], [10, 7]), ([12, 7], [12, 7])]
    """
    check_whole("n_examples", n_examples)
    (symbols,) = _alphabets(1, n_symbols)
    check_whole("max_length", max_length)
    rng = random.Random(seed)
    words = [rng.choices(symbols, k=rng.randint(1, max_length)) for _ in range(n_examples)]
    return [(word, word) for word in words]


def reverse_task(n_examples: int, n_symbols: int, max_length: int, seed: int = 0) -> list[Pair]:
    """Make random words that are to be written backwards.

    Args:
        n_examples: how many.
        n_symbols: how many different symbols there are, from ``FIRST_SYMBOL`` on.
        max_length: a word has 1 to this many symbols.
        seed: another seed, other words.

    Returns:
        Pairs of a word and the reversed word.

    Raises:
        ValueError: if a number is too small.

    Example:
        >>> reverse_task(2, n_symbols=10, max_length=3)
        [([10, 7], [7, 10]), ([12, 7], [7, 12])]
    """
    return [(word, word[::-1]) for word, _ in copy_task(n_examples, n_symbols, max_length, seed)]


def recall_task(n_examples: int, n_symbols: int, distance: int, seed: int = 0) -> list[Pair]:
    """Make sequences whose first symbol is to be remembered to the end.

    Args:
        n_examples: how many.
        n_symbols: how many different symbols there are, from ``FIRST_SYMBOL`` on, and as many
            different fillers after them.
        distance: how many fillers follow the symbol.
        seed: another seed, other sequences.

    Returns:
        Pairs of a sequence and its first symbol; ids are less than ``FIRST_SYMBOL + 2 n_symbols``.

    Raises:
        ValueError: if a number is too small.

    Example:
        >>> recall_task(2, n_symbols=4, distance=3)
        [([6, 8, 8, 9], [6]), ([6, 8, 10, 8], [6])]
    """
    check_whole("n_examples", n_examples)
    symbols, fillers = _alphabets(2, n_symbols)
    check_whole("distance", distance, least=0)
    rng = random.Random(seed)
    firsts = rng.choices(symbols, k=n_examples)
    return [([first, *rng.choices(fillers, k=distance)], [first]) for first in firsts]


def answer_batch(pairs: Sequence[tuple[Ids, Ids]], pad_id: int = 0) -> Batch:
    """Make a batch for a decoder that reads a prompt and is to predict only the answer.

    Args:
        pairs: B pairs of a prompt and its answer, both token ids.
        pad_id: the id to fill up with.

    Returns:
        ``ids`` and ``targets``, each ``(B, T)``.

    Raises:
        ValueError: if there is no pair, or one has no answer or fewer than two tokens.

    Example:
        >>> answer_batch([([5, 6], [7, 8])])
        {'ids': tensor([[5, 6, 7]]), 'targets': tensor([[-100,    7,    8]])}
    """
    if not pairs:
        raise ValueError("pairs is empty; expected at least one prompt with its answer")
    for place, (prompt, answer) in enumerate(pairs):
        if not len(answer) or len(prompt) + len(answer) < 2:
            found = f"pairs[{place}] has {len(prompt)} tokens of prompt and {len(answer)} of answer"
            raise ValueError(f"{found}; expected an answer, and two tokens or more in all")
    whole = [torch.cat([torch.as_tensor(part) for part in pair if len(part)]) for pair in pairs]
    batch = next_token_batch(whole, pad_id)
    for row, (prompt, _) in zip(batch["targets"], pairs, strict=True):
        row[: max(len(prompt) - 1, 0)] = IGNORE
    return batch


def _alphabets(n: int, n_symbols: int) -> list[range]:
    """Divide the ids from ``FIRST_SYMBOL`` on into alphabets of the same size."""
    check_whole("n_symbols", n_symbols)
    starts = range(FIRST_SYMBOL, FIRST_SYMBOL + n * n_symbols, n_symbols)
    return [range(start, start + n_symbols) for start in starts]
