"""Checks of lab 2, Three architectures, one task."""

import zlib
from collections.abc import Sequence
from functools import partial
from statistics import mean

import torch
from torch import Tensor, nn

from transformer_book.exercises.grading.checking import Exercise, UnfitError
from transformer_lib import IGNORE, CausalLM, Encoder, MaskedLM, TransformerConfig, causal_mask, pad

Pairs = Sequence[tuple[list[int], list[int]]]

PAD, BOS, EOS, SEP, MASK = range(5)
_PAIRS = [([7, 5, 9], [5, 7, 9]), ([8], [8]), ([6, 9, 5, 5], [5, 5, 6, 9])]
_UNEVEN = [([7, 5], [9, 6, 8]), ([5, 6, 9], [8])]


def _whole(width: float) -> float:
    """Refuse 160.0: no layer can be that wide."""
    if isinstance(width, float) and width.is_integer():
        raise UnfitError(f"{width} is no whole number to Python: divide with // in place of /.")
    return width


WIDTH = Exercise(
    reference=lambda d_model, d_ff: d_ff + d_model,
    measure=_whole,
    inputs=[(32, 128), (64, 256), (10, 15)],
    mistakes={
        "Cross-attention is missing: it has four matrices of D · D in every decoder block.": (
            lambda d_model, d_ff: d_ff
        ),
        "Twice too much: cross-attention is in every second block of the pair, but every block "
        "of the single stack is widened.": lambda d_model, d_ff: d_ff + 2 * d_model,
        "Half of it: a column more costs D weights in each of the two matrices, so 4 D² for two "
        "blocks is D more in each.": lambda d_model, d_ff: d_ff + d_model // 2,
        "That is right only where F = 4 D.": lambda d_model, d_ff: 5 * d_model,
        "That is what is missing in a matrix; add it to the width that is there.": (
            lambda d_model, d_ff: d_model
        ),
        "All 4 D² are put into one matrix of one block: share them out over two blocks with two "
        "matrices each.": lambda d_model, d_ff: d_ff + 4 * d_model,
    },
    hints=(
        "Write both counts down with D and F. What has the encoder-decoder that two blocks of a "
        "single stack do not have?",
        "It has one attention more, 4 D². A network that is wider by w costs 2 D w more, and the "
        "single stack has two of them: 4 D² = 2 * 2 D w.",
        "Solve it for w and return `d_ff + w`, a whole number.",
    ),
)


def _rows(pairs: Pairs) -> list[list[int]]:
    return [[*source, SEP, *answer, EOS] for source, answer in pairs]


def _one_row(pairs: Pairs) -> tuple[Tensor, Tensor]:
    rows = _rows(pairs)
    whole, _ = pad(rows, PAD)
    targets = torch.full_like(whole[:, 1:], IGNORE)
    for target, row, (source, _) in zip(targets, rows, pairs, strict=True):
        target[len(source) : len(row) - 1] = torch.tensor(row[len(source) + 1 :])
    return whole[:, :-1], targets


def _mask_dropped(found: object) -> object:
    """Refuse targets that the mask of ``pad`` has blown up to four axes."""
    for part in found if isinstance(found, tuple | list) else ():
        if isinstance(part, Tensor) and part.ndim == 4:
            raise UnfitError(
                f"A part has shape {tuple(part.shape)}. The mask of pad is (B, 1, 1, T), made for "
                "attention; mask[:, 0, 0] is (B, T)."
            )
    return found


def _asked_for_all(pairs: Pairs) -> tuple[Tensor, Tensor]:
    whole, _ = pad(_rows(pairs), PAD)
    targets = whole[:, 1:]
    return whole[:, :-1], targets.masked_fill(targets == PAD, IGNORE)


def _padding_asked_for(pairs: Pairs) -> tuple[Tensor, Tensor]:
    ids, targets = _one_row(pairs)
    for row, (source, answer) in zip(targets, pairs, strict=True):
        row[len(source) + 1 + len(answer) :] = PAD
    return ids, targets


def _without(token: int, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """One row without its separator or without its end."""
    rows = [[part for part in row if part != token] for row in _rows(pairs)]
    whole, _ = pad(rows, PAD)
    targets = torch.full_like(whole[:, 1:], IGNORE)
    for target, row, (source, _) in zip(targets, rows, pairs, strict=True):
        first = len(source) + (token != SEP)
        target[first - 1 : len(row) - 1] = torch.tensor(row[first:])
    return whole[:, :-1], targets


def _end_not_read(pairs: Pairs) -> tuple[Tensor, Tensor]:
    ids, targets = _one_row(pairs)
    return ids.masked_fill(ids == EOS, PAD), targets


def _first_letter_not_asked(pairs: Pairs) -> tuple[Tensor, Tensor]:
    ids, targets = _one_row(pairs)
    for row, (source, _) in zip(targets, pairs, strict=True):
        row[len(source)] = IGNORE
    return ids, targets


def _last_column_kept(pairs: Pairs, *, in_targets: bool) -> tuple[Tensor, Tensor]:
    whole, _ = pad(_rows(pairs), PAD)
    _, targets = _one_row(pairs)
    if in_targets:
        targets = torch.cat([targets, torch.full_like(targets[:, :1], IGNORE)], dim=1)
    return whole, targets


def _not_shifted(pairs: Pairs, *, cut: bool = True) -> tuple[Tensor, Tensor]:
    whole, _ = pad(_rows(pairs), PAD)
    _, targets = _one_row(pairs)
    targets = torch.cat([torch.full_like(targets[:, :1], IGNORE), targets], dim=1)
    return (whole[:, :-1], targets[:, :-1]) if cut else (whole, targets)


def _indexed_by_the_mask(pairs: Pairs) -> tuple[Tensor, Tensor]:
    whole, mask = pad(_rows(pairs), PAD)
    targets = whole[:, 1:].clone()
    targets[~mask[..., 1:]] = IGNORE
    return whole[:, :-1], targets


_MASK_AS_INDEX = (
    "Did you index with the mask of pad? It is (B, 1, 1, T), made for attention; mask[:, 0, 0] is "
    "(B, T)."
)
ONE_ROW = Exercise(
    reference=_one_row,
    inputs=[(_PAIRS,), (_UNEVEN,)],
    returns=("ids", "targets"),
    measure=_mask_dropped,
    mistakes={
        "The source is asked for too: it should be IGNORE.": (_asked_for_all),
        "Padding is asked for: put IGNORE where a row has ended.": _padding_asked_for,
        "The separator is missing: how would the model know where the source ends?": (
            partial(_without, SEP)
        ),
        "The end token is missing: the model would never learn to stop.": partial(_without, EOS),
        "The answer's first letter is not asked for: the separator must predict it.": (
            _first_letter_not_asked
        ),
        "Each row stops before its own end token. That trains the same, but here the rows are "
        "padded first, and then the last column is left out.": _end_not_read,
        "The last column is not left out of the ids: nothing follows it that could be asked for.": (
            partial(_last_column_kept, in_targets=False)
        ),
        "The last column is not left out: neither ids nor targets have it.": (
            partial(_last_column_kept, in_targets=True)
        ),
        "The targets are not shifted: each place is asked for the token that it reads; ask for "
        "the next one.": _not_shifted,
        "The targets are not shifted, and nothing is cut: read all columns but the last, and ask "
        "at each place for the next token.": partial(_not_shifted, cut=False),
        _MASK_AS_INDEX: _indexed_by_the_mask,
    },
    hints=(
        "Make whole rows first: source, `SEP`, answer, `EOS`, padded. What is read and what is "
        "asked for are two cuts of them, one place apart.",
        "Read `whole[:, :-1]`. The target at place t is `whole[:, t + 1]` where that belongs to "
        "the answer or is its end, else `IGNORE`. `SEP` stands at place `len(source)`, so that is "
        "the first place with a target.",
        "`whole, _ = pad(rows, PAD)`, then `targets = torch.full_like(whole[:, 1:], IGNORE)`, and "
        "fill each row from `len(source)` on with `torch.tensor([*answer, EOS])`.",
    ),
)


def _slots(pairs: Pairs, n_slots: int) -> tuple[Tensor, Tensor]:
    ids, _ = pad([[*source, SEP, *[MASK] * n_slots] for source, _ in pairs], PAD)
    targets = torch.full_like(ids, IGNORE)
    for row, (source, answer) in zip(targets, pairs, strict=True):
        row[len(source) + 1 : len(source) + 2 + len(answer)] = torch.tensor([*answer, EOS])
    return ids, targets


def _later_slots(pairs: Pairs, n_slots: int, *, asked_for: int) -> tuple[Tensor, Tensor]:
    """Slots after the end are asked for something, too."""
    ids, targets = _slots(pairs, n_slots)
    return ids, targets.masked_fill((ids == MASK) & (targets == IGNORE), asked_for)


def _slots_filled(pairs: Pairs, n_slots: int, *, end: bool) -> tuple[Tensor, Tensor]:
    """The answer stands where it is asked for, with its end or without."""
    ids, targets = _slots(pairs, n_slots)
    kept = targets == IGNORE if end else (targets == IGNORE) | (targets == EOS)
    return torch.where(kept, ids, targets), targets


def _slots_shifted(pairs: Pairs, n_slots: int) -> tuple[Tensor, Tensor]:
    ids, targets = _slots(pairs, n_slots)
    return ids, targets.roll(-1, dims=1)


def _slots_without_end(pairs: Pairs, n_slots: int) -> tuple[Tensor, Tensor]:
    ids, targets = _slots(pairs, n_slots)
    return ids, targets.masked_fill(targets == EOS, IGNORE)


def _slots_after_padding(pairs: Pairs, n_slots: int) -> tuple[Tensor, Tensor]:
    source, _ = pad([source for source, _ in pairs], PAD)
    longest = [(row, answer) for row, (_, answer) in zip(source.tolist(), pairs, strict=True)]
    return _slots(longest, n_slots)


def _slots_without_separator(pairs: Pairs, n_slots: int) -> tuple[Tensor, Tensor]:
    ids, targets = _slots([(source[:-1], answer) for source, answer in pairs], n_slots)
    for row, (source, _) in zip(ids, pairs, strict=True):
        row[len(source) - 1] = source[-1]
    return ids, targets


SLOTS = Exercise(
    reference=_slots,
    inputs=[(_PAIRS, 6), (_UNEVEN, 4)],
    returns=("ids", "targets"),
    mistakes={
        "The answer stands in its own slots, to be copied.": partial(_slots_filled, end=True),
        "The answer's letters stand in their own slots, to be copied: only MASK is read there.": (
            partial(_slots_filled, end=False)
        ),
        "The targets are shifted; here each slot is asked for its own letter, not the next.": (
            _slots_shifted
        ),
        "The end token is missing: which of the slots count?": _slots_without_end,
        "Later slots are asked for padding; they are asked nothing, IGNORE.": (
            partial(_later_slots, asked_for=PAD)
        ),
        "Later slots are asked for the end, too. Only the slot after the last letter is; the "
        "others get IGNORE.": partial(_later_slots, asked_for=EOS),
        "There is padding between source and separator; padding comes last, after the slots.": (
            _slots_after_padding
        ),
        "The separator is missing: how would the model know where the source ends?": (
            _slots_without_separator
        ),
    },
    hints=(
        "Nothing is shifted here: the model reads `MASK` in a slot and is asked for what belongs "
        "into that very slot.",
        "A row of ids is source, `SEP`, `n_slots` times `MASK`. The first slot stands at place "
        "`len(source) + 1`; from there on the targets are the answer and `EOS`, and `IGNORE` "
        "elsewhere.",
        "`ids, _ = pad([[*source, SEP, *[MASK] * n_slots] for source, _ in pairs], PAD)`, then "
        "`targets = torch.full_like(ids, IGNORE)`, and fill a piece of each row.",
    ),
)


def _two_rows(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    source, _ = pad([source for source, _ in pairs], PAD)
    reads, _ = pad([[BOS, *answer] for _, answer in pairs], PAD)
    targets, mask = pad([[*answer, EOS] for _, answer in pairs], PAD)
    return source, reads, targets.masked_fill(~mask[:, 0, 0], IGNORE)


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


def _end_read(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """Cut the last column of padded rows: all but the longest keep their end token."""
    source, _, targets = _two_rows(pairs)
    whole, _ = pad([[BOS, *answer, EOS] for _, answer in pairs], PAD)
    return source, whole[:, :-1], targets


def _without_start(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    source, reads, targets = _two_rows(pairs)
    return source, reads[:, 1:], targets


def _targets_indexed_by_the_mask(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    source, reads, _ = _two_rows(pairs)
    targets, mask = pad([[*answer, EOS] for _, answer in pairs], PAD)
    targets[~mask] = IGNORE
    return source, reads, targets


TWO_ROWS = Exercise(
    reference=_two_rows,
    inputs=[(_PAIRS,), (_UNEVEN,)],
    returns=("source", "reads", "targets"),
    measure=_mask_dropped,
    mistakes={
        "The end token stands at the end of the padded row; it belongs right after each answer's "
        "last letter.": _end_after_the_padding,
        "Nothing is shifted: the decoder reads the very letter it is asked for.": (
            _reads_its_targets
        ),
        "Padding is asked for: put IGNORE after the end token.": _padding_as_target,
        "The shorter answers read their own end token. That trains the same, but here the decoder "
        "reads BOS and the answer, and no end: pad after that.": _end_read,
        "BOS is missing: what would the decoder read when it is asked for the first letter?": (
            _without_start
        ),
        _MASK_AS_INDEX: _targets_indexed_by_the_mask,
    },
    hints=(
        "Make three lists of rows and pad each by itself. The decoder reads BOS and then the "
        "answer; it is asked for the answer and then EOS.",
        "`[BOS, *answer]` and `[*answer, EOS]` have the same length, so the shift is there by "
        "itself. Only the targets need IGNORE where they were padded.",
        "`targets, mask = pad([[*answer, EOS] for _, answer in pairs], PAD)`; `mask[:, 0, 0]` is "
        "`(B, T)` and True where a token is, so use `targets.masked_fill(~mask[:, 0, 0], IGNORE)`.",
    ),
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


def _rows_and_columns_hidden(
    source: Tensor, reads: Tensor, *, everywhere: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    encoder, own, cross = _masks(source, reads)
    if everywhere:
        real = (reads != PAD)[:, None]  # (B, 1, T)
        own, cross = own & real & real.mT, cross & real.mT
    return encoder & encoder.mT, own, cross


def _padding_hidden_twice(source: Tensor, reads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    encoder, own, cross = _masks(source, reads)
    return encoder, own & (reads != PAD)[:, None], cross


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
        (
            _ids([5, 0, 0, 0, 0], [6, 7, 8, 0, 0], [9, 5, 6, 7, 8]),
            _ids([1, 6, 6, 9], [1, 7, 8, 0], [1, 5, 0, 0]),
        ),
    ],
    returns=("encoder", "decoder", "cross-attention"),
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
        "Rows of padding are hidden, too; leave them open. A row that may see nothing has a "
        "softmax of 0 / 0, which is NaN, and nobody reads what padding finds.": (
            _rows_and_columns_hidden
        ),
        "Rows of padding are hidden in all three tables; leave rows open and hide columns. A row "
        "that may see nothing has a softmax of 0 / 0, which is NaN.": (
            partial(_rows_and_columns_hidden, everywhere=True)
        ),
        "The padding of reads is hidden in the decoder's own table. That does no harm, but it "
        "comes last, where the triangle hides it from every letter: here the triangle is enough.": (
            _padding_hidden_twice
        ),
    },
    hints=(
        "Rows are those who look, columns those who are looked at. Which columns must nobody see, "
        "and which of the three tables has a future?",
        "`(source != PAD)[:, None]` is `(B, 1, S)`: the columns of the source that are real, for "
        "any number of rows. The encoder and cross-attention need it; the decoder's own table is "
        "the triangle.",
        "Write each in full with `expand`, for instance `real.expand(B, T, S)`; `causal_mask(T)` "
        "is the triangle `(T, T)`.",
    ),
)


class _AtOnce(nn.Module):
    """An encoder and its table of letters: a letter for each slot, all at once."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score every letter at each place."""
        table: Tensor = self.encoder.embedding.tokens.weight  # (V, D)
        logits: Tensor = self.encoder(ids, mask) @ table.mT
        return logits


class _OwnTable(_AtOnce):
    """The same with a second table of letters for the output."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.output(self.encoder(ids, mask))
        return logits


class _WithoutMask(_AtOnce):
    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(ids)


class _Normalised(_AtOnce):
    """Probabilities or their logarithms, in place of logits."""

    def __init__(self, config: TransformerConfig, *, log: bool) -> None:
        super().__init__(config)
        self.log = log

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = super().forward(ids, mask)
        return logits.log_softmax(dim=-1) if self.log else logits.softmax(dim=-1)


def _fill(model: nn.Module) -> None:
    """Give all parameters fixed numbers, whatever the reader's own names for the parts are.

    Those of the encoder depend on their names in it, others on their order.
    """
    encoder = next((part for part in model.modules() if isinstance(part, Encoder)), None)
    named = dict(encoder.named_parameters()) if encoder is not None else {}
    inside = {id(parameter) for parameter in named.values()}
    others = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    named |= {f"other {i}": parameter for i, parameter in enumerate(others)}
    with torch.no_grad():
        for name, parameter in named.items():
            draw = torch.Generator("cpu").manual_seed(zlib.crc32(name.encode()))
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draw, device="cpu"))


def _score(model: nn.Module) -> dict[str, object]:
    """The number of parameters, and the logits of fixed weights with a mask and without."""
    ids = _ids([7, 5, 3, 4, 4, 0], [8, 3, 4, 4, 0, 0], [6, 9, 5, 3, 4, 4])
    _fill(model.to("cpu").eval())
    with torch.no_grad():  # the lab calls it by name
        plain, masked = model(ids), model(ids=ids, mask=(ids != PAD)[:, None, None])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "logits": plain, "logits with a mask": masked}


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
        "The mask is not handed on: padding is read. Call the encoder with (ids, mask).": (
            _WithoutMask
        ),
        "These are probabilities; return the logits. The loss takes the softmax itself.": (
            partial(_Normalised, log=False)
        ),
        "These are logarithms of probabilities. They train the same, but logits are asked for: "
        "the loss takes the softmax itself.": partial(_Normalised, log=True),
    },
    measure=_score,
    hints=(
        "Two parts, one after the other: the encoder turns ids into vectors, the output layer "
        "turns each vector into a score for every letter.",
        "In `__init__` make `Encoder(config)` and give its table to the output layer. "
        "`encoder.embedding.tokens` is a module, an `nn.Embedding`, and goes in as it is. In "
        "`forward(self, ids, mask=None)` hand the mask on to the encoder, and take no softmax.",
        "`self.output = OutputLayer(config, self.encoder.embedding.tokens)`, and `forward` returns "
        "`self.output(self.encoder(ids, mask))`.",
    ),
)


def _from_separator(lengths: Tensor, n_places: int) -> Tensor:
    """How far after the separator each place is, ``(B, T)``."""
    return torch.arange(n_places, device=lengths.device) - lengths[:, None]


def _places(lengths: Tensor, n_places: int, start: int) -> Tensor:
    after = _from_separator(lengths, n_places)
    return torch.where(after < 0, after + lengths[:, None], after + start)


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
        "The source is counted back from the separator; its letters keep 0, 1, 2, ...": (
            lambda lengths, n, start: _from_separator(lengths, n) + start
        ),
        "The separator keeps the place that it had; it gets `start`.": (
            lambda lengths, n, start: torch.where(
                _from_separator(lengths, n) == 0, lengths[:, None], _places(lengths, n, start)
            )
        ),
    },
    hints=(
        "The separator stands at place `length` of its row. How far after it is each place?",
        "`torch.arange(n_places) - lengths[:, None]` is `(B, n_places)`: negative in the source, 0 "
        "at the separator.",
        "`torch.where(after < 0, place, after + start)`, where `place` is "
        "`torch.arange(n_places)` and `after` counts from the separator.",
    ),
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


def _valid_somewhere(written: Tensor, source: Tensor) -> float:
    good = torch.tensor([letter in source for letter in written[:, 0]], device=written.device)
    equal = (written[:, :3] == written[:, :1]).all(dim=1)
    return float((good & equal & (written[:, 3] == EOS)).double().mean())


VALID = Exercise(
    reference=_valid,
    inputs=[
        (
            _ids([5, 5, 5, 2], [6, 6, 6, 2], [7, 7, 8, 2], [9, 9, 9, 9], [8, 8, 8, 2]),
            _ids([5, 6, 7, 8], [5, 7, 8, 9], [5, 6, 7, 8], [9, 5, 6, 7], [6, 7, 8, 9]),
        ),
        # one is right, two are of other words, one is of none, four do not end, one is mixed
        (
            _ids(*([n] * 3 + [EOS] for n in (7, 7, 8, 12)), *[[5, 5, 5, 6]] * 4, [9, 8, 9, EOS]),
            _ids([5, 6, 7, 8], [5, 6, 9, 8], *[[5, 6, 9, 7]] * 2, *[[5, 6, 9, 8]] * 5),
        ),
    ],
    mistakes={
        "The letter must be one of the word's.": partial(_valid, member=False),
        "The three letters must be equal.": partial(_valid, same=False),
        "After three letters there must be the end.": partial(_valid, end=False),
        "That is how many are right; divide by how many there are.": (
            lambda written, source: _valid(written, source) * len(written)
        ),
        "It must be a letter of the same row's word, not of any word.": _valid_somewhere,
    },
    hints=(
        "Three conditions for each row, each a table of True and False, `(B,)`. All must hold.",
        "Compare the first three letters with the first, the source with the first letter, and "
        "the fourth token with `EOS`; `.all(dim=1)` and `.any(dim=1)` make one verdict of a row.",
        "`(written[:, :3] == written[:, :1]).all(dim=1)` is the first; join them with `&` and take "
        "`.double().mean()`.",
    ),
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
        "Worst against worst: their lucky seeds are left out.": (
            lambda ours, theirs: min(ours) - min(theirs)
        ),
        "Seed by seed: the numbers of two seeds have nothing to do with each other. Each of ours "
        "must beat each of theirs.": (
            lambda ours, theirs: min(a - b for a, b in zip(ours, theirs, strict=False))
        ),
    },
    hints=(
        "Which of our seeds is the hardest case for us, and which of theirs?",
        "Our worst is `min(ours)`. Take away the best of theirs: what is left is above 0 only if "
        "no two seeds overlap.",
    ),
)
