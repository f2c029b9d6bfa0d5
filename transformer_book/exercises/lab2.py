"""Checks of lab 2, Three architectures, one task."""

from collections.abc import Sequence
from functools import partial
from statistics import mean

import torch
from torch import Tensor, nn

from transformer_book.exercises.checking import Exercise
from transformer_book.tasks import answer_batch
from transformer_lib.config import TransformerConfig
from transformer_lib.data import IGNORE, pad, translation_batch
from transformer_lib.heads import CausalLM, MaskedLM, OutputLayer
from transformer_lib.masks import causal_mask
from transformer_lib.models import Encoder

Pairs = Sequence[tuple[list[int], list[int]]]

PAD, BOS, EOS, SEP, MASK = range(5)
_PAIRS = [([7, 5, 9], [5, 7, 9]), ([8], [8]), ([6, 9, 5, 5], [5, 5, 6, 9])]
_UNEVEN = [([7, 5], [9, 6, 8]), ([5, 6, 9], [8])]


WIDTH = Exercise(
    reference=lambda d_model, d_ff: d_ff + d_model,
    inputs=[(32, 128), (64, 256), (10, 15)],
    mistakes={
        "Cross-attention is missing: it has four matrices of D · D in every decoder block.": (
            lambda d_model, d_ff: d_ff
        ),
        "Twice too much: cross-attention is in every second block of the pair, but every block "
        "of the single stack is widened.": lambda d_model, d_ff: d_ff + 2 * d_model,
        "Half of it: a column more costs D weights in each of the two matrices, so 4 D² for two "
        "blocks is D more in each.": lambda d_model, d_ff: d_ff + d_model / 2,
        "That is right only where F = 4 D.": lambda d_model, d_ff: 5 * d_model,
    },
)


def _one_row(pairs: Pairs) -> tuple[Tensor, Tensor]:
    batch = answer_batch([([*source, SEP], [*answer, EOS]) for source, answer in pairs], PAD)
    return batch["ids"], batch["targets"]


def _asked_for_all(pairs: Pairs) -> tuple[Tensor, Tensor]:
    whole, _ = pad([[*source, SEP, *answer, EOS] for source, answer in pairs], PAD)
    targets = whole[:, 1:]
    return whole[:, :-1], targets.masked_fill(targets == PAD, IGNORE)


def _padding_asked_for(pairs: Pairs) -> tuple[Tensor, Tensor]:
    ids, targets = _one_row(pairs)
    for row, (source, answer) in zip(targets, pairs, strict=True):
        row[len(source) + 1 + len(answer) :] = PAD
    return ids, targets


def _without_separator(pairs: Pairs) -> tuple[Tensor, Tensor]:
    batch = answer_batch([(source, [*answer, EOS]) for source, answer in pairs], PAD)
    return batch["ids"], batch["targets"]


def _without_end(pairs: Pairs) -> tuple[Tensor, Tensor]:
    batch = answer_batch([([*source, SEP], answer) for source, answer in pairs], PAD)
    return batch["ids"], batch["targets"]


def _end_not_read(pairs: Pairs) -> tuple[Tensor, Tensor]:
    ids, targets = _one_row(pairs)
    return ids.masked_fill(ids == EOS, PAD), targets


def _first_letter_not_asked(pairs: Pairs) -> tuple[Tensor, Tensor]:
    ids, targets = _one_row(pairs)
    for row, (source, _) in zip(targets, pairs, strict=True):
        row[len(source)] = IGNORE
    return ids, targets


ONE_ROW = Exercise(
    reference=_one_row,
    inputs=[(_PAIRS,), (_UNEVEN,)],
    mistakes={
        "The source is asked for too: it should be IGNORE.": (_asked_for_all),
        "Padding is asked for: put IGNORE where a row has ended.": _padding_asked_for,
        "The separator is missing: how would the model know where the source ends?": (
            _without_separator
        ),
        "The end token is missing: the model would never learn to stop.": _without_end,
        "The answer's first letter is not asked for: the separator must predict it.": (
            _first_letter_not_asked
        ),
        "Each row stops before its own end token. That trains the same, but here the rows are "
        "padded first, and then the last column is left out.": _end_not_read,
    },
)


def _slots(
    pairs: Pairs, n_slots: int, *, end: bool = True, shift: int = 0, leak: bool = False
) -> tuple[Tensor, Tensor]:
    ids, _ = pad([[*source, SEP, *[MASK] * n_slots] for source, _ in pairs], PAD)
    targets = torch.full_like(ids, IGNORE)
    for i, (source, answer) in enumerate(pairs):
        wanted = torch.tensor([*answer, EOS] if end else answer)
        first = len(source) + 1
        targets[i, first - shift : first - shift + len(wanted)] = wanted
        if leak:
            ids[i, first : first + len(wanted)] = wanted
    return ids, targets


SLOTS = Exercise(
    reference=_slots,
    inputs=[(_PAIRS, 5), (_UNEVEN, 4)],
    mistakes={
        "The answer stands in its own slots, to be copied.": partial(_slots, leak=True),
        "The targets are shifted; here each slot is asked for its own letter, not the next.": (
            partial(_slots, shift=1)
        ),
        "The end token is missing: which of the slots count?": partial(_slots, end=False),
    },
)


def _two_rows(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    batch = translation_batch(pairs, PAD, BOS, EOS)
    return batch["source"], batch["target"], batch["targets"]


def _end_after_the_padding(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    source, reads, targets = _two_rows(pairs)
    answers, mask = pad([answer for _, answer in pairs], PAD)
    targets = torch.cat(
        [answers.masked_fill(~mask[:, 0, 0], IGNORE), torch.full_like(reads[:, :1], EOS)], dim=1
    )
    return source, reads, targets


def _reads_its_targets(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    source, _, targets = _two_rows(pairs)
    return source, targets.masked_fill(targets == IGNORE, PAD), targets


def _padding_as_target(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    source, reads, targets = _two_rows(pairs)
    return source, reads, targets.masked_fill(targets == IGNORE, PAD)


TWO_ROWS = Exercise(
    reference=_two_rows,
    inputs=[(_PAIRS,), (_UNEVEN,)],
    mistakes={
        "The end token stands at the end of the padded row; it belongs right after each answer's "
        "last letter.": _end_after_the_padding,
        "Nothing is shifted: the decoder reads the very letter it is asked for.": (
            _reads_its_targets
        ),
        "Padding is asked for: put IGNORE after the end token.": _padding_as_target,
    },
)


def _masks(
    source: Tensor, reads: Tensor, *, cross_padding: bool = True, causal: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, n_source), n_reads = source.shape, reads.shape[1]
    real = (source != PAD)[:, None]  # (B, 1, S)
    triangle = causal_mask(n_reads, device=reads.device)
    own = triangle if causal else torch.ones_like(triangle)
    cross = real if cross_padding else torch.ones_like(real)
    return (
        real.expand(batch, n_source, n_source),
        own.expand(batch, n_reads, n_reads),
        cross.expand(batch, n_reads, n_source),
    )


def _rows_hidden(source: Tensor, reads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    encoder, own, cross = _masks(source, reads)
    return encoder.mT, own, cross


def _causal_encoder(source: Tensor, reads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    encoder, own, cross = _masks(source, reads)
    return encoder & causal_mask(source.shape[1], device=source.device), own, cross


def _inverted(source: Tensor, reads: Tensor) -> tuple[Tensor, ...]:
    return tuple(~mask for mask in _masks(source, reads))


def _not_in_full(source: Tensor, reads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    encoder, own, cross = _masks(source, reads)
    return encoder[:, :1], own[0], cross[:, :1]


def _one_triangle(source: Tensor, reads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    encoder, own, cross = _masks(source, reads)
    return encoder, own[0], cross


def _ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, device="cpu")


MASKS = Exercise(
    reference=_masks,
    inputs=[
        (_ids([7, 5, 9, 6], [8, 6, 0, 0]), _ids([1, 5, 7], [1, 6, 8])),
        (_ids([5, 0, 0]), _ids([1, 6, 6, 9])),
    ],
    mistakes={
        "Cross-attention still sees the source's padding.": partial(_masks, cross_padding=False),
        "The decoder sees letters that it has yet to write.": partial(_masks, causal=False),
        "Rows of padding are hidden; hide its columns: rows look, columns are looked at.": (
            _rows_hidden
        ),
        "The encoder is causal: it may look both ways.": _causal_encoder,
        "True and False are swapped: here True means may be seen.": _inverted,
        "They would broadcast, but are not written in full: expand each to (B, queries, keys).": (
            _not_in_full
        ),
        "The triangle is there once; write it for every sequence, (B, T, T).": _one_triangle,
    },
)


class _AtOnce(nn.Module):
    """An encoder with an output layer: a letter for each slot, all at once."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.output: nn.Module = OutputLayer(config, self.encoder.embedding.tokens)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every letter at each place."""
        logits: Tensor = self.output(self.encoder(ids, mask))
        return logits


class _OwnTable(_AtOnce):
    """The same with a second table of letters for the output."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)


def _sees_and_weighs(model: nn.Module) -> Tensor:
    """Which output moves when an input changes (0 or 1), and the number of parameters."""
    ids = torch.tensor([[5, 6, 7, 8]])
    model.eval()
    with torch.no_grad():
        before = model(ids)
        changed = ids.repeat(4, 1) + torch.eye(4, dtype=torch.long)
        moved = (model(changed) - before).abs().amax(dim=-1) > 1e-6  # (4 changed, 4 places)
    weights = sum(p.numel() for p in model.parameters())
    return torch.cat([moved.flatten().double(), torch.tensor([float(weights), before.shape[-1]])])


_SMALL = TransformerConfig(
    vocab_size=13, max_len=8, d_model=8, n_heads=2, n_layers=2, dropout=0.0, norm_position="pre"
)
AT_ONCE = Exercise(
    reference=_AtOnce,
    inputs=[(_SMALL,)],
    mistakes={
        "It is causal: a slot must also see what comes after it.": CausalLM,
        "It has a layer too many (MaskedLM has BERT's), so the comparison would not be fair: "
        "an Encoder and an OutputLayer are enough.": MaskedLM,
        "The output has a table of its own: give the OutputLayer the encoder's.": _OwnTable,
    },
    measure=_sees_and_weighs,
)


def _places(lengths: Tensor, n_places: int, start: int) -> Tensor:
    place = torch.arange(n_places, device=lengths.device)
    after = place - lengths[:, None]  # (B, T): 0 at the separator
    return torch.where(after < 0, place, after + start)


PLACES = Exercise(
    reference=_places,
    inputs=[
        (torch.tensor([3, 1, 2], device="cpu"), 6, 8),
        (torch.tensor([4, 2], device="cpu"), 7, 5),
    ],
    mistakes={
        "That is how it was: the answer's places still depend on the source's length.": (
            lambda lengths, n, start: torch.arange(n, device=lengths.device).expand(len(lengths), n)
        ),
        "One too late: the separator itself, at place len(source) of the row, gets `start`.": (
            lambda lengths, n, start: _places(lengths + 1, n, start)
        ),
        "The answer's places are moved by `start`, so they still depend on the source's length.": (
            lambda lengths, n, start: (
                _places(lengths, n, start)
                + lengths[:, None] * (_places(lengths, n, start) >= start)
            )
        ),
    },
)


def _valid(
    written: Tensor, source: Tensor, *, member: bool = True, same: bool = True, end: bool = True
) -> float:
    letters = written[:, :3]
    one = torch.ones(len(written), dtype=torch.bool, device=written.device)
    equal = (letters == letters[:, :1]).all(dim=1) if same else one
    inside = (letters[:, :, None] == source[:, None]).any(dim=-1).all(dim=1) if member else one
    ended = written[:, 3] == EOS if end else one
    return float((equal & inside & ended).double().mean())


VALID = Exercise(
    reference=_valid,
    inputs=[
        (
            _ids([5, 5, 5, 2], [6, 6, 6, 2], [7, 7, 8, 2], [9, 9, 9, 9], [8, 8, 8, 2]),
            _ids([5, 6, 7, 8], [5, 7, 8, 9], [5, 6, 7, 8], [9, 5, 6, 7], [6, 7, 8, 9]),
        ),
        (
            _ids([7, 7, 7, 2], [7, 7, 7, 2], [6, 6, 6, 6], [5, 5, 5, 6]),
            _ids([5, 6, 7, 8], [5, 6, 9, 8], [5, 6, 9, 8], [5, 6, 9, 8]),
        ),
    ],
    mistakes={
        "The letter must be one of the word's.": partial(_valid, member=False),
        "The three letters must be equal.": partial(_valid, same=False),
        "After three letters there must be the end.": partial(_valid, end=False),
    },
)


MARGIN = Exercise(
    reference=lambda ours, theirs: min(ours) - max(theirs),
    inputs=[([0.9, 0.8, 0.85], [0.7, 0.75, 0.6]), ([0.5, 0.9, 0.8], [0.6, 0.7, 0.4])],
    mistakes={
        "That is the difference of the means: it does not say whether the seeds overlap.": (
            lambda ours, theirs: mean(ours) - mean(theirs)
        ),
        "That is the best of the one against the worst of the other: the kindest choice of seeds, "
        "not the hardest.": lambda ours, theirs: max(ours) - min(theirs),
        "Best against best: one lucky seed decides.": lambda ours, theirs: max(ours) - max(theirs),
    },
)
