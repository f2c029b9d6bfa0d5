"""recurrent: equal to PyTorch's RNN, GRU and LSTM; Bahdanau's attention; padding without effect."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from transformer_book.recurrent import (
    CELLS,
    AdditiveAttention,
    GRUCell,
    LSTMCell,
    Recurrent,
    RecurrentClassifier,
    RecurrentSeq2Seq,
    RNNCell,
    State,
    open_forget_gate,
)

TORCH_CELLS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
TORCH_MODULES = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
KINDS = sorted(CELLS)
D, DH = 3, 5
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_ids(*shape, vocab=7, seed=0):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def make(module, *args, dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    return module(*args, **kwargs).to(dtype)


def torch_twin(recurrent, kind, dtype=torch.float64):
    """PyTorch's module with the same weights."""
    theirs = TORCH_MODULES[kind](D, DH, batch_first=True).to(dtype)
    with torch.no_grad():
        for name in WEIGHTS:
            getattr(theirs, f"{name}_l0").copy_(getattr(recurrent.cell, name))
    return theirs


def first_state(kind, batch, dtype=torch.float64, seed=1):
    cell = draw(batch, DH, seed=seed + 1, dtype=dtype) if kind == "lstm" else None
    return State(draw(batch, DH, seed=seed, dtype=dtype), cell)


def as_torch(state, add_layer=True):
    """The state in the form PyTorch wants: h, or (h, c), each with a dimension for layers."""
    parts = tuple(part[None] if add_layer else part for part in state if part is not None)
    return parts if len(parts) == 2 else parts[0]


def assert_same_state(ours, theirs, **tolerance):
    assert_close(as_torch(ours), theirs, **tolerance)


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_takes_the_weights_of_torchs_and_gives_the_same_step_and_gradients(kind):
    ours, theirs = make(CELLS[kind], D, DH), make(TORCH_CELLS[kind], D, DH)
    ours.load_state_dict(theirs.state_dict())  # the same names and shapes
    x, state = draw(4, D), first_state(kind, 4)
    results = (as_torch(ours(x, state), False), theirs(x, as_torch(state, False)))
    assert_close(*results)
    for result in results:
        parts = result if kind == "lstm" else (result,)
        sum((part * draw(4, DH, seed=9 + i)).sum() for i, part in enumerate(parts)).backward()
    for name in WEIGHTS:
        assert_close(getattr(ours, name).grad, getattr(theirs, name).grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_starts_from_zeros_and_from_the_same_weights_as_torchs(kind):
    ours, theirs = make(CELLS[kind], D, DH), make(TORCH_CELLS[kind], D, DH)
    for name, value in theirs.state_dict().items():
        assert_close(ours.state_dict()[name], value, rtol=0, atol=0)
    assert_close(as_torch(ours(draw(4, D)), False), theirs(draw(4, D)))


def test_the_rnn_step_by_hand():
    cell = RNNCell(1, 1)
    with torch.no_grad():
        for name, value in zip(WEIGHTS, (0.5, -2.0, 0.1, 0.2), strict=True):
            getattr(cell, name).fill_(value)
    hidden = cell(torch.tensor([[3.0]]), State(torch.tensor([[0.4]]))).hidden
    assert_close(hidden, torch.tanh(torch.tensor([[0.5 * 3.0 + 0.1 - 2.0 * 0.4 + 0.2]])))


@pytest.mark.parametrize("diagonal", [True, False])
def test_the_gru_of_the_2014_paper_resets_before_the_matrix(diagonal):
    """Both forms agree where a product with a diagonal matrix does not care about the order."""
    cell = make(GRUCell, D, DH)
    with torch.no_grad():
        cell.bias_hh[2 * DH :] = 0
        if diagonal:
            cell.weight_hh[2 * DH :] = torch.diag(draw(DH, seed=3))
    x, h = draw(4, D), draw(4, DH, seed=1)
    x_r, x_z, x_n = (x @ cell.weight_ih.T + cell.bias_ih).chunk(3, dim=-1)
    w_r, w_z, w_n = cell.weight_hh.chunk(3)
    b_r, b_z, _ = cell.bias_hh.chunk(3)
    reset, keep = (x_r + h @ w_r.T + b_r).sigmoid(), (x_z + h @ w_z.T + b_z).sigmoid()
    paper = (1 - keep) * (x_n + (reset * h) @ w_n.T).tanh() + keep * h
    assert torch.allclose(cell(x, State(h)).hidden, paper) == diagonal


def test_an_lstm_with_an_open_forget_gate_keeps_its_cell_state():
    cell = make(LSTMCell, D, DH)
    with torch.no_grad():
        cell.weight_ih.zero_()
        cell.weight_hh.zero_()
        cell.bias_ih.copy_(torch.tensor([-50.0, 50.0, 0.0, 50.0]).repeat_interleave(DH))
        cell.bias_hh.zero_()
    start = first_state("lstm", 4)
    state = start
    for _ in range(100):
        state = cell(draw(4, D), state)
    assert_close(state.cell, start.cell)
    assert_close(state.hidden, start.cell.tanh())


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_the_forget_gate_starts_where_it_is_told(bias):
    network = Recurrent("lstm", D, DH).double()
    open_forget_gate(network, bias)
    with torch.no_grad():
        network.cell.weight_ih.zero_()
        network.cell.weight_hh.zero_()
        network.cell.bias_ih.view(4, DH)[[0, 2, 3]] = -1e9  # nothing new comes in
    start = first_state("lstm", 2)
    after = network(draw(2, 3, D), state=start)[1]
    assert_close(after.cell, start.cell * torch.sigmoid(torch.tensor(bias)).double() ** 3)


@pytest.mark.parametrize("kind", ["rnn", "gru"])
def test_only_an_lstm_has_a_forget_gate(kind):
    with pytest.raises(ValueError, match="expected an LSTM, which has a forget gate"):
        open_forget_gate(Recurrent(kind, D, DH), 1.0)


# ---------------------------------------------------------------- sequences


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_equals_torch_in_outputs_final_state_and_gradients(kind, with_state):
    ours = make(Recurrent, kind, D, DH)
    theirs = torch_twin(ours, kind)
    inputs = [draw(2, 7, D).requires_grad_() for _ in range(2)]
    start = first_state(kind, 2) if with_state else None
    hidden, final = ours(inputs[0], state=start)
    expected, expected_final = theirs(inputs[1], as_torch(start) if with_state else None)
    assert_close(hidden, expected)
    assert_same_state(final, expected_final)
    (hidden * draw(2, 7, DH, seed=5)).sum().backward()
    (expected * draw(2, 7, DH, seed=5)).sum().backward()
    assert_close(inputs[0].grad, inputs[1].grad)
    for name in WEIGHTS:
        assert_close(getattr(ours.cell, name).grad, getattr(theirs, f"{name}_l0").grad)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_equals_torch_within_the_stated_tolerance(kind):
    ours = make(Recurrent, kind, D, DH, dtype=torch.float32)
    theirs = torch_twin(ours, kind, dtype=torch.float32)
    x = draw(2, 20, D, dtype=torch.float32)
    hidden, final = ours(x)
    expected, expected_final = theirs(x)
    assert_close(hidden, expected, rtol=1e-5, atol=1e-6)
    assert_same_state(final, expected_final, rtol=1e-5, atol=1e-6)


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    extra=st.integers(0, 2),
    kind=st.sampled_from(KINDS),
    with_state=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=30, deadline=None)
def test_lengths_equal_a_packed_sequence(lengths, extra, kind, with_state, seed):
    ours = make(Recurrent, kind, D, DH)
    theirs = torch_twin(ours, kind)
    batch, steps = len(lengths), max(lengths) + extra
    x, lengths = draw(batch, steps, D, seed=seed), torch.tensor(lengths)
    start = first_state(kind, batch) if with_state else None
    hidden, final = ours(x, lengths, start)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    packed_out, expected_final = theirs(packed, as_torch(start) if with_state else None)
    expected, _ = pad_packed_sequence(packed_out, batch_first=True, total_length=steps)
    assert_close(hidden, expected)  # zeros beyond the end, too
    assert_same_state(final, expected_final)


@pytest.mark.parametrize("lengths", [None, [6, 2, 4]])
@pytest.mark.parametrize("kind", KINDS)
def test_reading_backwards_is_reading_the_reversed_real_part(kind, lengths):
    ours = make(Recurrent, kind, D, DH, reverse=True)
    forwards = make(Recurrent, kind, D, DH)
    x = draw(3, 6, D)
    hidden, final = ours(x, None if lengths is None else torch.tensor(lengths))
    for row, length in enumerate(lengths or [6, 6, 6]):
        expected, expected_final = forwards(x[row : row + 1, :length].flip(1))
        assert_close(hidden[row, :length], expected[0].flip(0))
        assert (hidden[row, length:] == 0).all()
        assert_close(final.hidden[row], expected_final.hidden[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_without_any_token_keeps_the_first_state(kind):
    ours, start = make(Recurrent, kind, D, DH), first_state(kind, 2)
    hidden, final = ours(draw(2, 4, D), torch.tensor([0, 4]), start)
    assert (hidden[0] == 0).all()
    assert torch.equal(final.hidden[0], start.hidden[0])
    assert kind != "lstm" or torch.equal(final.cell[0], start.cell[0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("junk", [1e6, float("inf"), float("nan")])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_matters_not_even_nan_not_even_in_the_gradients(kind, junk, reverse):
    ours = make(Recurrent, kind, D, DH, reverse=reverse)
    lengths = torch.tensor([5, 3])
    results = []
    for filler in (0.0, junk):
        x = draw(2, 5, D)
        x[1, 3:] = filler
        x.requires_grad_()
        hidden, final = ours(x, lengths)
        loss = (hidden * draw(2, 5, DH, seed=1)).sum() + final.hidden.sum()
        gradients = torch.autograd.grad(loss, [x, *ours.parameters()])
        assert (gradients[0][1, 3:] == 0).all()
        results.append((hidden, final.hidden, gradients))
    assert_close(results[0], results[1], rtol=0, atol=0)


@given(
    kind=st.sampled_from(KINDS),
    reverse=st.booleans(),
    steps=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=20, deadline=None)
def test_a_state_depends_on_what_was_read_and_on_nothing_else(kind, reverse, steps, data):
    ours = make(Recurrent, kind, D, DH, reverse=reverse)
    place = data.draw(st.integers(0, steps - 1))
    x = draw(2, steps, D)
    changed = x.clone()
    changed[0, place] += 1.0
    same = torch.isclose(ours(x)[0], ours(changed)[0], rtol=0, atol=1e-15).all(dim=-1)
    assert same[1].all()  # the other sequence of the batch
    for t in range(steps):
        assert same[0, t] == (t > place if reverse else t < place)


def test_the_state_can_be_handed_on():
    ours, x = make(Recurrent, "lstm", D, DH), draw(2, 8, D)
    whole, whole_final = ours(x)
    first, between = ours(x[:, :3])
    second, final = ours(x[:, 3:], state=between)
    assert_close(torch.cat([first, second], dim=1), whole)
    assert_close(tuple(final), tuple(whole_final))


def test_each_step_waits_for_the_one_before():
    """T serial steps: the loop calls the cell once a position, each time with the newest state."""
    ours, seen = make(Recurrent, "gru", D, DH), []
    step = ours.cell.step
    ours.cell.step = lambda from_x, state: seen.append(state.hidden) or step(from_x, state)
    hidden, _ = ours(draw(2, 9, D))
    assert len(seen) == 9
    for t in range(1, 9):
        assert seen[t] is not seen[t - 1]
        assert torch.equal(seen[t], hidden[:, t - 1])


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_near_float32(kind):
    ours = make(Recurrent, kind, D, DH, dtype=torch.float32)
    x = draw(2, 6, D, dtype=torch.float32)
    expected, _ = ours(x, torch.tensor([6, 4]))
    hidden, final = ours.bfloat16()(x.bfloat16(), torch.tensor([6, 4]))
    assert hidden.dtype == final.hidden.dtype == torch.bfloat16
    assert_close(hidden.float(), expected, rtol=5e-2, atol=2e-2)


# ---------------------------------------------------------------- additive attention


def additive_by_loop(attend, queries, keys, mask):
    """The formula, one query and one key at a time."""
    v, w, u = attend.score.weight[0], attend.query.weight, attend.key.weight
    contexts, rows = torch.zeros(len(queries), keys.shape[1]).to(keys), torch.zeros_like(mask)
    rows = rows.to(keys.dtype)
    for i, query in enumerate(queries):
        allowed = [j for j in range(len(keys)) if mask[i, j]]
        powers = [torch.exp(v @ torch.tanh(w @ query + u @ keys[j])) for j in allowed]
        for j, power in zip(allowed, powers, strict=True):
            rows[i, j] = power / sum(powers)
            contexts[i] += rows[i, j] * keys[j]
    return contexts, rows


@given(t=st.integers(1, 4), s=st.integers(1, 5), seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_additive_attention_equals_its_formula_and_its_rows_sum_to_one(t, s, seed):
    attend = make(AdditiveAttention, 4, 3, 6)
    queries, keys = draw(2, t, 4, seed=seed), draw(2, s, 3, seed=seed + 1)
    mask = draw(2, t, s, seed=seed + 2) > -0.5
    context, weights = attend(queries, keys, mask)
    for b in range(2):
        assert_close(
            (context[b], weights[b]), additive_by_loop(attend, queries[b], keys[b], mask[b])
        )
    assert_close(weights.sum(dim=-1), mask.any(dim=-1).double())
    assert (weights[~mask] == 0).all()
    everything = torch.ones_like(mask)
    assert_close(attend(queries, keys), attend(queries, keys, everything))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_a_query_without_any_key_gives_zeros_and_clean_gradients():
    attend = make(AdditiveAttention, 4, 3, 6)
    queries, keys = draw(1, 2, 4).requires_grad_(), draw(1, 3, 3).requires_grad_()
    mask = torch.tensor([[True, False, True], [False, False, False]])
    with torch.autograd.detect_anomaly():  # raises at the first NaN of the backward pass
        context, weights = attend(queries, keys, mask)
        (context.square().sum() + weights.square().sum()).backward()
    assert (context[0, 1] == 0).all()
    assert (weights[0, 1] == 0).all()
    assert queries.grad.isfinite().all()
    assert (queries.grad[0, 1] == 0).all()
    assert keys.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attend.parameters())


def test_additive_attention_by_finite_differences():
    attend = make(AdditiveAttention, 2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    inputs = [draw(1, 2, 2).requires_grad_(), draw(1, 3, 3).requires_grad_()]
    assert torch.autograd.gradcheck(lambda q, k: attend(q, k, mask), inputs)


# ---------------------------------------------------------------- sequence to sequence


def seq2seq(attention=True, dtype=torch.float64):
    return make(RecurrentSeq2Seq, 7, 4, attention=attention, dtype=dtype)


def torch_encoder(model):
    theirs = nn.GRU(4, 4, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for name in WEIGHTS:
            getattr(theirs, f"{name}_l0").copy_(getattr(model.forwards.cell, name))
            getattr(theirs, f"{name}_l0_reverse").copy_(getattr(model.backwards.cell, name))
    return theirs


@pytest.mark.parametrize("lengths", [None, [5, 2, 3]])
def test_the_encoder_equals_torchs_bidirectional_gru(lengths):
    model, source = seq2seq(), random_ids(3, 5)
    theirs, x = torch_encoder(model), model.source_embedding(source)
    if lengths is None:
        annotations, last = model.encode(source)
        expected, final = theirs(x)
    else:
        annotations, last = model.encode(source, torch.tensor(lengths))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed_out, final = theirs(packed)
        expected, _ = pad_packed_sequence(packed_out, batch_first=True)
    assert_close(annotations, expected)
    assert_close(last, torch.cat([final[0], final[1]], dim=-1))


@pytest.mark.parametrize("attention", [True, False])
def test_the_decoder_equals_one_made_of_torchs_parts(attention):
    """One sequence at a time, without padding: so it holds the handling of lengths to account."""
    model = seq2seq(attention)
    encoder, decoder = torch_encoder(model), nn.GRUCell(12, 4).double()
    decoder.load_state_dict(model.decoder.state_dict())
    source, target, lengths = random_ids(3, 5), random_ids(3, 4, seed=1), torch.tensor([5, 2, 3])
    output = model(source, target, lengths)
    for b, length in enumerate(lengths.tolist()):
        annotations, final = encoder(model.source_embedding(source[b : b + 1, :length]))
        hidden = torch.tanh(model.first_state(final[1]))
        for t in range(4):
            context = torch.cat([final[0], final[1]], dim=-1)
            if attention:
                everything = torch.ones(1, length, dtype=torch.bool)
                context, weights = additive_by_loop(
                    model.attention, hidden, annotations[0], everything
                )
                assert_close(output.alignment[b, t, :length], weights[0])
                assert (output.alignment[b, t, length:] == 0).all()
            token = model.target_embedding(target[b : b + 1, t])
            hidden = decoder(torch.cat([token, context], dim=-1), hidden)
            logits = model.output(torch.cat([hidden, context], dim=-1))
            assert_close(output.logits[b, t], logits[0])


@pytest.mark.parametrize("attention", [True, False])
def test_shapes_and_alignment(attention):
    output = seq2seq(attention)(random_ids(2, 5), random_ids(2, 3))
    assert output.logits.shape == (2, 3, 7)
    assert (output.alignment is not None) == attention
    if attention:
        assert output.alignment.shape == (2, 3, 5)
        assert_close(output.alignment.sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))


@given(
    attention=st.booleans(),
    steps=st.integers(2, 5),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_logits_never_depend_on_later_targets(attention, steps, data):
    place = data.draw(st.integers(0, steps - 1))
    model, source, target = seq2seq(attention), random_ids(2, 4), random_ids(2, steps)
    changed = target.clone()
    changed[:, place] = (changed[:, place] + 1) % 7
    before, after = model(source, target).logits, model(source, changed).logits
    assert torch.equal(before[:, :place], after[:, :place])
    assert (before[:, place:] != after[:, place:]).any(dim=-1).all()


@pytest.mark.parametrize("attention", [True, False])
def test_the_padding_of_a_source_never_matters(attention):
    model, target, lengths = seq2seq(attention), random_ids(2, 3), torch.tensor([5, 3])
    source = random_ids(2, 5)
    results = []
    for filler in (0, 6):
        source[1, 3:] = filler
        output = model(source, target, lengths)
        loss = (output.logits * draw(2, 3, 7)).sum()
        results.append((output, torch.autograd.grad(loss, list(model.parameters()))))
    assert_close(results[0], results[1], rtol=0, atol=0)
    alone = model(source[1:, :3], target[1:])  # neither does the padding itself
    assert_close(alone.logits, output.logits[1:])


def test_a_source_without_any_token_gives_finite_numbers_and_no_alignment():
    model = seq2seq()
    output = model(random_ids(2, 4), random_ids(2, 3), torch.tensor([0, 4]))
    assert (output.alignment[0] == 0).all()
    output.logits.sum().backward()
    assert output.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_two_models_differ_by_the_attention_alone():
    with_attention = dict(seq2seq(True).named_parameters())
    without = dict(seq2seq(False).named_parameters())
    more = {name for name in with_attention if name not in without}
    assert more == {"attention.query.weight", "attention.key.weight", "attention.score.weight"}
    assert len(with_attention) == len(without) + 3


@pytest.mark.parametrize("attention", [True, False])
def test_every_parameter_is_learned(attention):
    model = seq2seq(attention)
    model(random_ids(4, 6), random_ids(4, 5)).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


# ---------------------------------------------------------------- classifier


@pytest.mark.parametrize("lengths", [None, [5, 2]])
@pytest.mark.parametrize("kind", KINDS)
def test_the_classifier_reads_the_state_at_the_end_of_each_sequence(kind, lengths):
    model, ids = make(RecurrentClassifier, kind, 7, 4, 3), random_ids(2, 5)
    logits = model(ids) if lengths is None else model(ids, torch.tensor(lengths))
    assert logits.shape == (2, 3)
    for b, length in enumerate(lengths or [5, 5]):
        hidden, _ = model.recurrent(model.embedding(ids[b : b + 1, :length]))
        assert_close(logits[b], model.head(hidden[0, -1]))


def test_a_gru_learns_to_recall_the_first_token():
    torch.manual_seed(0)
    model = RecurrentClassifier("gru", vocab_size=4, d_model=16, n_classes=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        ids = torch.randint(4, (64, 6))
        loss = nn.functional.cross_entropy(model(ids), ids[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ids = torch.randint(4, (256, 6))
    assert (model(ids).argmax(dim=-1) == ids[:, 0]).float().mean() > 0.9


# ---------------------------------------------------------------- other devices and modes


def test_everything_runs_on_the_meta_device():
    with torch.device("meta"):
        model, classifier = RecurrentSeq2Seq(7, 4), RecurrentClassifier("lstm", 7, 4, 3)
        ids = torch.zeros(2, 5, dtype=torch.int64)
    output = model(ids, ids[:, :3], torch.tensor([5, 2]))  # the lengths are real: they are checked
    assert output.logits.shape == (2, 3, 7)
    assert output.alignment.shape == (2, 3, 5)
    assert classifier(ids).shape == (2, 3)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_compiled_sequence_gives_the_same_answer():
    ours = make(Recurrent, "lstm", D, DH)
    x, lengths = draw(2, 3, D), torch.tensor([3, 2])
    compiled = torch.compile(ours, backend="eager")
    assert_close(compiled(x)[0], ours(x)[0])
    assert_close(compiled(x, lengths)[0], ours(x, lengths)[0])


# ---------------------------------------------------------------- errors

X = torch.zeros(2, 4, D)
IDS = torch.zeros(2, 4, dtype=torch.int64)
H = torch.zeros(2, DH)


def run(kind="gru", x=X, lengths=None, state=None):
    return Recurrent(kind, D, DH)(x, lengths, state)


def translate(source=IDS, target=IDS, lengths=None):
    return RecurrentSeq2Seq(7, 4)(source, target, lengths)


def classify(ids=IDS, lengths=None):
    return RecurrentClassifier("rnn", 7, 4, 3)(ids, lengths)


def attend(queries=torch.zeros(2, 3, 4), keys=torch.zeros(2, 5, 6), mask=None):  # noqa: B008
    return AdditiveAttention(4, 6, 8)(queries, keys, mask)


MISUSES = [  # what is called, and the whole message
    (
        lambda: Recurrent("elman", D, DH),
        ValueError("kind='elman' must be one of 'rnn', 'gru', 'lstm'"),
    ),
    (
        lambda: RecurrentClassifier("transformer", 7, 4, 3),
        ValueError("kind='transformer' must be one of 'rnn', 'gru', 'lstm'"),
    ),
    (lambda: RNNCell(0, DH), ValueError("d_input=0 must be a whole number of at least 1")),
    (lambda: GRUCell(D, -1), ValueError("d_hidden=-1 must be a whole number of at least 1")),
    (
        lambda: Recurrent("lstm", D, 2.5),
        ValueError("d_hidden=2.5 must be a whole number of at least 1"),
    ),
    (
        lambda: AdditiveAttention(0, 6, 8),
        ValueError("d_query=0 must be a whole number of at least 1"),
    ),
    (
        lambda: AdditiveAttention(4, 0, 8),
        ValueError("d_key=0 must be a whole number of at least 1"),
    ),
    (
        lambda: AdditiveAttention(4, 6, 0),
        ValueError("d_attention=0 must be a whole number of at least 1"),
    ),
    (
        lambda: RecurrentSeq2Seq(0, 4),
        ValueError("vocab_size=0 must be a whole number of at least 1"),
    ),
    (lambda: RecurrentSeq2Seq(7, 0), ValueError("d_model=0 must be a whole number of at least 1")),
    (
        lambda: RecurrentClassifier("rnn", 0, 4, 3),
        ValueError("vocab_size=0 must be a whole number of at least 1"),
    ),
    (
        lambda: RecurrentClassifier("rnn", 7, 0, 3),
        ValueError("d_model=0 must be a whole number of at least 1"),
    ),
    (
        lambda: RecurrentClassifier("rnn", 7, 4, 0),
        ValueError("n_classes=0 must be a whole number of at least 1"),
    ),
    (
        lambda: RNNCell(D, DH)(X),
        ValueError("x has shape (2, 4, 3); expected (B, D)"),
    ),
    (
        lambda: LSTMCell(D, DH)(torch.zeros(2, 4)),
        ValueError("x has shape (2, 4); expected (B, D) with D=3, got D=4"),
    ),
    (lambda: run(x=X[0]), ValueError("x has shape (4, 3); expected (B, T, D)")),
    (
        lambda: run(x=torch.zeros(2, 4, 5)),
        ValueError("x has shape (2, 4, 5); expected (B, T, D) with D=3, got D=5"),
    ),
    (
        lambda: run(x=torch.zeros(2, 0, 3)),
        ValueError("x has shape (2, 0, 3); T in (B, T, D) may not be 0"),
    ),
    (
        lambda: run(x=torch.zeros(0, 4, 3)),
        ValueError("x has shape (0, 4, 3); B in (B, T, D) may not be 0"),
    ),
    (
        lambda: run(state=H),
        TypeError("state has type Tensor; expected State(hidden, cell)"),
    ),
    (
        lambda: run("lstm", state=(H, H)),
        TypeError("state has type tuple; expected State(hidden, cell)"),
    ),
    (
        lambda: run(state=State(H[None])),
        ValueError("state.hidden has shape (1, 2, 5); expected (B, Dh)"),
    ),
    (
        lambda: run(state=State(torch.zeros(3, DH))),
        ValueError("state.hidden has shape (3, 5); expected (B, Dh) with B=2, got B=3"),
    ),
    (
        lambda: run(state=State(torch.zeros(2, 6))),
        ValueError("state.hidden has shape (2, 6); expected (B, Dh) with Dh=5, got Dh=6"),
    ),
    (
        lambda: run("lstm", state=State(H)),
        ValueError("state.cell is None; LSTMCell expects a tensor (B, Dh)"),
    ),
    (
        lambda: run("gru", state=State(H, H)),
        ValueError("state.cell is a tensor; GRUCell expects None"),
    ),
    (
        lambda: run("lstm", state=State(H, torch.zeros(2, 4))),
        ValueError("state.cell has shape (2, 4); expected (B, Dh) with Dh=5, got Dh=4"),
    ),
    (
        lambda: run(lengths=torch.tensor([5, 1])),
        ValueError("lengths has [5]; each must be between 0 and n_keys=4"),
    ),
    (
        lambda: run(lengths=torch.tensor([4, -1])),
        ValueError("lengths has [-1]; each must be between 0 and n_keys=4"),
    ),
    (
        lambda: run(lengths=torch.tensor([4, 4, 4])),
        ValueError("lengths has shape (3,); expected (B) with B=2, got B=3"),
    ),
    (
        lambda: run(lengths=torch.tensor([[4], [4]])),
        ValueError("lengths has shape (2, 1); expected (B)"),
    ),
    (
        lambda: run(lengths=torch.tensor([4.0, 2.0])),
        TypeError("lengths has dtype torch.float32; expected whole numbers"),
    ),
    (
        lambda: attend(queries=torch.zeros(2, 4)),
        ValueError("queries has shape (2, 4); expected (B, T, Dq)"),
    ),
    (
        lambda: attend(queries=torch.zeros(2, 3, 5)),
        ValueError("queries has shape (2, 3, 5); expected (B, T, Dq) with Dq=4, got Dq=5"),
    ),
    (
        lambda: attend(keys=torch.zeros(2, 5, 4)),
        ValueError("keys has shape (2, 5, 4); expected (B, S, Dk) with Dk=6, got Dk=4"),
    ),
    (
        lambda: attend(keys=torch.zeros(1, 5, 6)),
        ValueError("keys has shape (1, 5, 6); expected (B, S, Dk) with B=2, got B=1"),
    ),
    (
        lambda: attend(mask=torch.ones(3, 5)),
        TypeError(
            "mask has dtype torch.float32; expected torch.bool with True = may attend "
            "(for a 0/1 mask: mask.bool())"
        ),
    ),
    (
        lambda: attend(mask=torch.ones(5, 3, dtype=torch.bool)),
        ValueError(
            "mask has shape (5, 3); expected one that broadcasts to the scores, "
            "(..., T, S) = (2, 3, 5)"
        ),
    ),
    (lambda: translate(IDS + 7), ValueError("source has 7; each must be between 0 and 6")),
    (lambda: translate(IDS, IDS - 1), ValueError("target has -1; each must be between 0 and 6")),
    (lambda: translate(IDS[0]), ValueError("source has shape (4,); expected (B, T)")),
    (
        lambda: translate(IDS, IDS[:1]),
        ValueError("target has shape (1, 4); expected (B, T) with B=2, got B=1"),
    ),
    (
        lambda: translate(IDS.float()),
        TypeError("source has dtype torch.float32; expected whole numbers such as torch.long"),
    ),
    (
        lambda: translate(lengths=torch.tensor([1, 9])),
        ValueError("lengths has [9]; each must be between 0 and n_keys=4"),
    ),
    (lambda: classify(IDS + 8), ValueError("ids has 8; each must be between 0 and 6")),
    (
        lambda: classify(IDS.bool()),
        TypeError("ids has dtype torch.bool; expected whole numbers such as torch.long"),
    ),
    (lambda: classify(IDS[..., None]), ValueError("ids has shape (2, 4, 1); expected (B, T)")),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("call", "error"), MISUSES, ids=[str(error) for _, error in MISUSES])
def test_misuse_gets_a_message_that_says_what_is_wrong(call, error):
    with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
        call()
