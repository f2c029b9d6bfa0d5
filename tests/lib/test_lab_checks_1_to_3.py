"""checks of labs 1 to 3: what learners write there is refused with its cause, or accepted."""

import itertools
import math

import pytest
import torch
from lab_answers import Answers, assert_accepted, assert_refused
from torch import nn

from transformer_book.exercises import EXERCISES
from transformer_book.exercises.grading.checking import judge
from transformer_lib.models.encoder_decoder import Encoder
from transformer_lib.models.language_models import OutputLayer
from transformer_lib.training.data import IGNORE, pad

PAD, BOS, EOS, SEP, MASK = range(5)
ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right


# Lab 1


@wrong("lab1.listen", "torch.stack")
def heard_but_not_stacked(attend, run):
    return tuple(EXERCISES["lab1.listen"].reference(attend, run))


def heads_of(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def weights(q, k, n_heads, *, fill=-math.inf, hidden=1, width=None):
    q, k = heads_of(q, n_heads), heads_of(k, n_heads)
    scores = q @ k.mT / math.sqrt(width or q.shape[-1])
    future = torch.ones(scores.shape[-2:]).triu(hidden).bool()
    return scores.masked_fill(future, fill).softmax(dim=-1)


@wrong("lab1.weights", "one place too generous")
def sees_the_next_place(q, k, n_heads):
    return weights(q, k, n_heads, hidden=2)


@wrong("lab1.weights", "one place too strict", "itself")
def does_not_see_itself(q, k, n_heads):
    return weights(q, k, n_heads, hidden=0)


@wrong("lab1.weights", "exp(0) is 1")
def zeros_in_place_of_inf(q, k, n_heads):
    return weights(q, k, n_heads, fill=0.0)


@wrong("lab1.weights", "exp(0) is 1")
def scores_times_the_mask(q, k, n_heads):
    q, k = heads_of(q, n_heads), heads_of(k, n_heads)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores * torch.ones_like(scores).tril()).softmax(dim=-1)


@wrong("lab1.weights", "wrong way round")
def hides_the_past(q, k, n_heads):
    q, k = heads_of(q, n_heads), heads_of(k, n_heads)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    past = torch.ones_like(scores).tril(-1).bool()
    return scores.masked_fill(past, -math.inf).softmax(dim=-1)


@wrong("lab1.weights", "T, the number of keys")
def scaled_by_the_number_of_keys(q, k, n_heads):
    return weights(q, k, n_heads, width=q.shape[1])


@wrong("lab1.weights", "square root")
def scaled_by_k_itself(q, k, n_heads):
    return weights(q, k, n_heads, width=(q.shape[-1] // n_heads) ** 2)


@wrong("lab1.weights", "transpose(1, 2)")
def heads_of_a_place_meet(q, k, n_heads):
    q, k = q.unflatten(-1, (n_heads, -1)), k.unflatten(-1, (n_heads, -1))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    return scores.masked_fill(future, -math.inf).softmax(dim=-1)


@wrong("lab1.scores", "axes are swapped")
def one_row_for_each_head(weights):
    return EXERCISES["lab1.scores"].reference(weights).mT


@wrong("lab1.silence", "`x`", "Work on a copy")
def silenced_in_place(x, n_heads, head):
    width = x.shape[-1] // n_heads
    part = slice(head * width, (head + 1) * width)
    x[..., part] = x[..., part].mean(dim=(0, 1))
    return x


def silenced(x, n_heads, head, over=(0, 1)):
    changed = x.clone()
    width = x.shape[-1] // n_heads
    part = slice(head * width, (head + 1) * width)
    changed[..., part] = x[..., part].mean(dim=over, keepdim=True)
    return changed


@wrong("lab1.silence", "over the batch alone")
def mean_over_the_batch_alone(x, n_heads, head):
    return silenced(x, n_heads, head, over=(0,))


@wrong("lab1.silence", "as it was")
def nothing_done(x, n_heads, head):
    return x.clone()


@wrong("lab1.silence", "number 0")
def heads_counted_from_one(x, n_heads, head):
    return silenced(x, n_heads, head - 1)


@wrong("lab1.silence", "All other heads")
def all_others_silenced(x, n_heads, head):
    for other in range(n_heads):
        x = x if other == head else silenced(x, n_heads, other)
    return x


@wrong("lab1.chance", "its own layer")
def rivals_of_one_layer(effects, layer, head):
    return (effects[layer] >= effects[layer, head]).double().mean()


# Lab 2


@wrong("lab2.width", "whole number", "//")
def width_with_a_fraction(d_model, d_ff):
    return d_ff + 4 * d_model**2 / (4 * d_model)


@right("lab2.width")
def width_by_whole_division(d_model, d_ff):
    return d_ff + 4 * d_model**2 // (4 * d_model)


def rows_of(pairs):
    return [[*source, SEP, *answer, EOS] for source, answer in pairs]


def answers_only(targets, pairs):
    for row, (source, answer) in zip(targets, pairs, strict=True):
        row[: len(source)] = IGNORE
        row[len(source) + len(answer) + 1 :] = IGNORE
    return targets


@right("lab2.one_row")
def one_row(pairs):
    whole, _ = pad(rows_of(pairs), PAD)
    return whole[:, :-1], answers_only(whole[:, 1:].clone(), pairs)


@wrong("lab2.one_row", "last column")
def last_column_kept_in_ids(pairs):
    whole, _ = pad(rows_of(pairs), PAD)
    return whole, one_row(pairs)[1]


@wrong("lab2.one_row", "last column")
def last_column_kept_in_both(pairs):
    whole, _ = pad(rows_of(pairs), PAD)
    return whole, torch.cat([one_row(pairs)[1], torch.full_like(whole[:, :1], IGNORE)], dim=1)


@wrong("lab2.one_row", "not shifted")
def asked_for_what_is_read(pairs):
    ids, targets = one_row(pairs)
    shifted = torch.full_like(targets, IGNORE)
    shifted[:, 1:] = targets[:, :-1]
    return ids, shifted


@wrong("lab2.one_row", "(B, 1, 1, T)", "mask[:, 0, 0]")
def mask_of_pad_as_an_index(pairs):
    whole, mask = pad(rows_of(pairs), PAD)
    targets = whole[:, 1:].clone()
    targets[~mask[:, 1:]] = IGNORE
    return whole[:, :-1], targets


@wrong("lab2.one_row", "(B, 1, 1, T)", "mask[:, 0, 0]")
def mask_of_pad_broadcast(pairs):
    whole, mask = pad(rows_of(pairs), PAD)
    targets = whole[:, 1:].masked_fill(~mask[..., 1:], IGNORE)
    for row, (source, _) in zip(targets, pairs, strict=True):
        row[..., : len(source)] = IGNORE
    return whole[:, :-1], targets


@wrong("lab2.one_row", "That trains the same, but here")
def rows_end_before_their_end_token(pairs):
    ids, _ = pad([row[:-1] for row in rows_of(pairs)], PAD)
    return ids, one_row(pairs)[1]


def slots(pairs, n_slots, later=IGNORE):
    ids, _ = pad([[*source, SEP, *[MASK] * n_slots] for source, _ in pairs], PAD)
    targets = torch.full_like(ids, IGNORE)
    for row, (source, answer) in zip(targets, pairs, strict=True):
        wanted = [*answer, EOS]
        wanted += [later] * (n_slots - len(wanted))
        row[len(source) + 1 : len(source) + 1 + len(wanted)] = torch.tensor(wanted)
    return ids, targets


@wrong("lab2.slots", "Later slots")
def later_slots_are_asked_for_padding(pairs, n_slots):
    return slots(pairs, n_slots, later=PAD)


@wrong("lab2.slots", "Later slots")
def later_slots_are_asked_for_the_end(pairs, n_slots):
    return slots(pairs, n_slots, later=EOS)


@wrong("lab2.slots", "padding comes last")
def padding_before_the_separator(pairs, n_slots):
    source, _ = pad([source for source, _ in pairs], PAD)
    n, longest = source.shape
    ids = torch.cat([source, torch.tensor([[SEP] + [MASK] * n_slots]).expand(n, -1)], dim=1)
    targets = torch.full_like(ids, IGNORE)
    for row, (_, answer) in zip(targets, pairs, strict=True):
        row[longest + 1 : longest + 2 + len(answer)] = torch.tensor([*answer, EOS])
    return ids, targets


@wrong("lab2.two_rows", "That trains the same, but here")
def shorter_rows_read_their_end(pairs):
    source, _ = pad([source for source, _ in pairs], PAD)
    whole, mask = pad([[BOS, *answer, EOS] for _, answer in pairs], PAD)
    return source, whole[:, :-1], whole[:, 1:].masked_fill(~mask[:, 0, 0, 1:], IGNORE)


@wrong("lab2.two_rows", "(B, 1, 1, T)", "mask[:, 0, 0]")
def mask_of_pad_broadcast_over_targets(pairs):
    source, _ = pad([source for source, _ in pairs], PAD)
    reads, _ = pad([[BOS, *answer] for _, answer in pairs], PAD)
    targets, mask = pad([[*answer, EOS] for _, answer in pairs], PAD)
    return source, reads, targets.masked_fill(~mask, IGNORE)


@wrong("lab2.two_rows", "another order", "source, reads, targets")
def targets_before_reads(pairs):
    source, reads, targets = EXERCISES["lab2.two_rows"].reference(pairs)
    return source, targets, reads


def masks(source, reads):
    real = (source != PAD)[:, None]
    (n, s), t = source.shape, reads.shape[1]
    past = torch.ones(t, t, dtype=torch.bool).tril()
    return real.expand(n, s, s), past.expand(n, t, t), real.expand(n, t, s)


@wrong("lab2.masks", "encoder", "(2, 1, 4, 4), expected (2, 4, 4)")
def masks_with_an_axis_for_heads(source, reads):
    return tuple(mask[:, None] for mask in masks(source, reads))


@wrong("lab2.masks", "Rows of padding", "NaN")
def rows_and_columns_of_the_source_hidden(source, reads):
    encoder, own, cross = masks(source, reads)
    return encoder & encoder.mT, own, cross


@wrong("lab2.masks", "Rows of padding", "NaN")
def rows_and_columns_hidden_everywhere(source, reads):
    encoder, own, cross = masks(source, reads)
    real = (reads != PAD)[:, None]
    return encoder & encoder.mT, own & real & real.mT, cross & real.mT


@wrong("lab2.masks", "does no harm", "comes last")
def padding_of_reads_hidden(source, reads):
    encoder, own, cross = masks(source, reads)
    return encoder, own & (reads != PAD)[:, None], cross


@wrong("lab2.masks", "cross-attention", "swapped")
def cross_attention_transposed(source, reads):
    encoder, own, cross = masks(source, reads)
    return encoder, own, cross.mT


class AtOnce(nn.Module):
    """A right answer with names of its own."""

    def __init__(self, config):
        super().__init__()
        body = Encoder(config)
        self.to_letters = OutputLayer(config, body.embedding.tokens)  # before the encoder
        self.body = body

    def forward(self, ids, mask=None):
        return self.to_letters(self.body(ids, mask))


@right("lab2.at_once")
def other_names_in_another_order(config):
    return AtOnce(config)


@right("lab2.at_once")
class GrownFromAnEncoder(Encoder):
    def __init__(self, config):
        super().__init__(config)
        self.output = OutputLayer(config, self.embedding.tokens)

    def forward(self, ids, mask=None):
        return self.output(super().forward(ids, mask))


@right("lab2.at_once")
class TableUsedDirectly(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config)

    def forward(self, ids, mask=None):
        return self.encoder(ids, mask) @ self.encoder.embedding.tokens.weight.mT


@wrong("lab2.at_once", "mask", "not handed on")
class IgnoresTheMask(AtOnce):
    def forward(self, ids, mask=None):
        return super().forward(ids)


@wrong("lab2.at_once", "probabilities")
class ReturnsProbabilities(AtOnce):
    def forward(self, ids, mask=None):
        return super().forward(ids, mask).softmax(dim=-1)


@wrong("lab2.at_once", "logarithms of probabilities")
class ReturnsLogProbabilities(AtOnce):
    def forward(self, ids, mask=None):
        return super().forward(ids, mask).log_softmax(dim=-1)


@wrong("lab2.at_once", "parameters more than expected")
class HasABias(AtOnce):
    def __init__(self, config):
        super().__init__(config)
        self.to_letters = OutputLayer(config, self.body.embedding.tokens, bias=True)


@wrong("lab2.at_once", "keyword argument 'mask'")
class CallsItsMaskOtherwise(AtOnce):
    def forward(self, ids, hidden=None):
        return super().forward(ids, hidden)


@wrong("lab2.at_once", "no forward method")
class HasNoForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config)


@wrong("lab2.places", "keep 0, 1, 2")
def source_counted_from_the_separator(lengths, n_places, start):
    return torch.arange(n_places) - lengths[:, None] + start


@wrong("lab2.places", "separator")
def separator_counted_with_the_source(lengths, n_places, start):
    place = torch.arange(n_places)
    after = place - lengths[:, None]
    return torch.where(after <= 0, place, after + start)


@wrong("lab2.valid", "divide")
def number_of_right_ones(written, source):
    letter = written[:, :1]
    good = (written[:, :3] == letter).all(dim=1) & (source == letter).any(dim=1)
    return (good & (written[:, 3] == EOS)).sum()


@wrong("lab2.margin", "Seed by seed")
def smallest_gap_of_pairs(ours, theirs):
    return min(a - b for a, b in zip(ours, theirs, strict=False))


@wrong("lab2.margin", "Worst against worst")
def worst_against_worst(ours, theirs):
    return min(ours) - min(theirs)


# Lab 3


@wrong("lab3.moved", "absolute")
def only_what_grows(task, ids, order):
    return (task(ids[:, order]) - task(ids)[:, order] > 1e-3).double().mean()


@wrong("lab3.tasks", "same answer everywhere")
def neither_needs_order_and_one_is_dull():
    return [0, 0, 1]


@wrong("lab3.tasks", "same answer everywhere")
def changed_places_and_one_is_dull():
    return [1, 0, 1]


def arrow(n, slopes, penalty, *, sign=-1, penalty_sign=-1, distance=torch.abs):
    places = torch.arange(n)
    offset = places[None] - places[:, None]
    slope = slopes[:, None, None]
    return sign * slope * distance(offset) + penalty_sign * penalty * (offset > 0)


@wrong("lab3.arrow", "Far keys are preferred")
def distance_added(n, slopes, penalty):
    return arrow(n, slopes, penalty, sign=1)


@wrong("lab3.arrow", "penalty is added")
def penalty_added(n, slopes, penalty):
    return arrow(n, slopes, penalty, penalty_sign=1)


@wrong("lab3.arrow", "sign")
def both_added(n, slopes, penalty):
    return arrow(n, slopes, penalty, sign=1, penalty_sign=1)


@wrong("lab3.arrow", "abs()")
def distance_with_a_sign(n, slopes, penalty):
    return arrow(n, slopes, penalty, distance=lambda offset: offset)


@wrong("lab3.arrow", "abs()")
def distance_with_the_other_sign(n, slopes, penalty):
    return arrow(n, slopes, penalty, distance=lambda offset: -offset)


@wrong("lab3.arrow", "abs()")
def distance_of_the_past_alone(n, slopes, penalty):
    return arrow(n, slopes, penalty, distance=lambda offset: (-offset).clamp(min=0))


@wrong("lab3.arrow", "fixed")
def penalty_that_grows(n, slopes, penalty):
    places = torch.arange(n)
    offset = places[None] - places[:, None]
    return -slopes[:, None, None] * offset.abs() - penalty * offset.clamp(min=0)


def probe(x, places, x_new, *, constant=1.0, penalty=1.0):
    a, new = (torch.cat((v, torch.ones_like(v[:, :1])), dim=1).double() for v in (x, x_new))
    eye = penalty * torch.eye(a.shape[1], dtype=torch.float64)
    eye[-1, -1] = constant
    return new @ torch.linalg.solve(a.mT @ a + eye, a.mT @ places.double())


@right("lab3.probe")
def plain_probe(x, places, x_new):
    return probe(x, places, x_new)


@wrong("lab3.probe", "constant is not penalised", "here it is")
def constant_left_out_of_the_penalty(x, places, x_new):
    return probe(x, places, x_new, constant=0.0)


@wrong("lab3.probe", "dtype")
def doubles_forgotten(x, places, x_new):
    a, new = (torch.cat((v, torch.ones_like(v[:, :1])), dim=1) for v in (x, x_new))
    eye = torch.eye(a.shape[1])
    return new @ torch.linalg.solve(a.mT @ a + eye, a.mT @ places.double())


@wrong("lab3.probe", "rounded")
def rounded_to_places(x, places, x_new):
    return probe(x, places, x_new).round()


@right("lab3.spans")
def spans_without_item(right, counted, edges):
    pairs = itertools.pairwise(edges)
    return [right[:, a:b][:, counted[a:b]].double().mean() for a, b in pairs]


@right("lab3.spans")
def spans_as_one_tensor(right, counted, edges):
    return torch.stack(spans_without_item(right, counted, edges))


@pytest.mark.parametrize(("name", "sentences", "answer"), ANSWERS.wrong_ones)
def test_wrong_answers_are_refused_and_told_why(name, sentences, answer):
    assert_refused(name, sentences, answer)


@pytest.mark.parametrize(("name", "answer"), ANSWERS.right_ones)
def test_right_answers_of_other_forms_are_accepted(name, answer):
    assert_accepted(name, answer)


def test_an_answer_in_place_opens_no_door_for_answers_after_it():
    judge(EXERCISES["lab1.silence"], silenced_in_place)
    for answer in (nothing_done, mean_over_the_batch_alone):
        assert not judge(EXERCISES["lab1.silence"], answer).right
    assert judge(EXERCISES["lab1.silence"], silenced).right


def test_sizes_differ_so_that_a_transposed_result_has_another_shape():
    exercise = EXERCISES["lab1.scores"]
    for i in range(len(exercise.inputs)):
        found = exercise.reference(*exercise.arguments(i))
        assert found.shape[0] != found.shape[1]
