"""Flexible patterns: a rule in the place of a mask gives what the mask gives, in layers and models.

PyTorch's kernel has no backward pass on a CPU, where a pattern makes a mask of its rule. The tests
that ask for ``flex`` take the way of a GPU all the same, without a compiler and forward only.
"""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tiny_models import make, random_ids, tiny
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.testing import assert_close

from transformer_lib.layers.attention import attention
from transformer_lib.layers.fast import flexible_pattern
from transformer_lib.layers.fast.flexible_pattern import FlexPattern
from transformer_lib.layers.fused_attention import repeat_heads
from transformer_lib.models.language_models import CausalLM, MaskedLM
from transformer_lib.training.data import IGNORE
from transformer_lib.training.losses import Objective
from transformer_lib.training.packing import pack

LENGTH = 150  # more than a block of 128, and no multiple of it
ROWS = {
    "prefix": torch.tensor([0, 70]),
    "documents": torch.tensor([[0] * 40 + [1] * 90 + [2] * 20, [5] * 60 + [3] * 90]),
}
CHOICES = {
    "nothing": {},
    "window": {"window": 7},
    "prefix": {"prefix": ROWS["prefix"]},
    "documents": {"documents": ROWS["documents"]},
    "window, prefix": {"window": 50, "prefix": ROWS["prefix"]},
    "window, documents": {"window": 50, "documents": ROWS["documents"]},
    "prefix, documents": ROWS,
    "all": {"window": 50, **ROWS},
}


def by_hand(length, *, causal, window=None, prefix=None, documents=None):
    """The mask, pair by pair, from the words of the docstring."""
    n_rows = next((len(x) for x in (prefix, documents) if x is not None), 1)
    mask = torch.zeros(n_rows, 1, length, length, dtype=torch.bool)
    for row in range(n_rows):
        start = 0 if prefix is None else prefix[row].item()
        owner = [0] * length if documents is None else documents[row].tolist()
        for query in range(length):
            for key in range(length):
                is_future = key > query and (causal or prefix is not None)
                mask[row, 0, query, key] = (
                    (not is_future or key < start)
                    and (window is None or abs(query - key) < window)
                    and owner[query] == owner[key]
                )
    return mask


@functools.cache
def mask_of(choice, causal):
    return by_hand(LENGTH, causal=causal, **CHOICES[choice])


def inputs(n_heads, n_kv_heads, dtype=torch.float32, length=LENGTH):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, heads, length, 16, generator=generator, dtype=dtype)
        for heads in (n_heads, n_kv_heads, n_kv_heads)
    ]


def wanted(q, k, v, mask, scale=None):
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    return attention(q, k, v, mask, scale=scale)[0]


@pytest.fixture
def by_flex(monkeypatch):
    """Take the way of a GPU, without its compiler."""
    monkeypatch.setattr(flexible_pattern, "_has_kernel", lambda q: True)
    monkeypatch.setattr(flexible_pattern, "_kernel", lambda: flex_attention)
    monkeypatch.setattr(flexible_pattern, "_finder", lambda: create_block_mask)


# --- one layer


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("choice", CHOICES)
def test_the_rule_written_out_is_the_mask_by_hand(choice, causal):
    found = FlexPattern(**CHOICES[choice]).as_mask(LENGTH, causal=causal, device="cpu")
    assert found.equal(mask_of(choice, causal))


def test_a_token_sees_its_window_and_the_past_of_its_document():
    """The same for one small case; the mistakes of the catalogue are told by it."""
    choice = {"window": 3, "documents": torch.tensor([[0, 0, 0, 0, 1, 1]])}
    found = FlexPattern(**choice).as_mask(6, causal=True, device="cpu")
    assert found.equal(by_hand(6, causal=True, **choice))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("choice", "n_kv_heads", "causal"),
    [*((choice, 2, True) for choice in CHOICES), ("all", 4, True), ("window", 1, False)],
)
def test_flex_attention_gives_what_the_mask_gives(choice, n_kv_heads, causal, by_flex):
    pattern, given = FlexPattern(**CHOICES[choice]), inputs(4, n_kv_heads)
    found = pattern.attend(*given, causal=causal, scale=0.3)
    assert_close(found, wanted(*given, mask_of(choice, causal), 0.3), rtol=0, atol=1e-5)
    (made,) = pattern._made.values()
    assert isinstance(made, BlockMask)


@pytest.mark.parametrize("choice", CHOICES)
def test_blocks_without_an_allowed_pair_are_left_out_and_no_others(choice, by_flex):
    blocks = FlexPattern(**CHOICES[choice])._blocks(LENGTH, causal=True, device=torch.device("cpu"))
    whole = F.pad(mask_of(choice, True), (0, 256 - LENGTH) * 2)
    needed = whole.unflatten(-1, (2, 128)).unflatten(-3, (2, 128)).any(-1).any(-2)
    assert blocks.to_dense().bool().equal(needed)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("choice", CHOICES)
def test_outputs_and_gradients_are_those_of_the_mask(choice, n_kv_heads):
    pattern, given = FlexPattern(**CHOICES[choice]), inputs(4, n_kv_heads, torch.float64)
    mask = mask_of(choice, True)
    answers = []
    for run in (
        lambda *x: pattern.attend(*x, causal=True, scale=0.3),
        lambda *x: wanted(*x, mask, 0.3),
    ):
        given = [x.detach().requires_grad_() for x in given]
        found = run(*given)
        answers.append([found, *torch.autograd.grad(found.square().sum(), given)])
    assert_close(*answers)


def test_one_pattern_serves_any_length_and_batch():
    pattern = FlexPattern(window=3)
    for length, size in ((5, 2), (9, 1), (5, 3)):
        q, k, v = (x[:1, :, :length].expand(size, -1, -1, -1) for x in inputs(2, 2))
        mask = by_hand(length, causal=True, window=3)
        assert_close(pattern.attend(q, k, v, causal=True), wanted(q, k, v, mask))
    assert len(pattern._made) == 2


# --- whole models


def without_the_causal_mask(model):
    """A copy that hides nothing by itself, for masks that say it all."""
    model = copy.deepcopy(model)
    model.decoder.stack.causal = False
    return model


def logits_and_gradients(model, ids, mask, **inputs):
    model.zero_grad()
    logits = model(ids, mask, **inputs)
    logits.square().sum().backward()
    return {"logits": logits} | {name: p.grad for name, p in model.named_parameters()}


SMALL = {
    "window": 5,
    "prefix": torch.tensor([4, 0]),
    "documents": torch.tensor([[1] * 6 + [2] * 5, [1] * 3 + [2] * 8]),
}


@pytest.mark.parametrize("windows", [{}, {"window": 3, "window_pattern": "LG"}])
@pytest.mark.parametrize(
    "names", [(), ("window",), ("prefix",), ("documents",), tuple(SMALL)], ids=str
)
def test_a_model_gives_what_it_gives_with_the_mask(names, windows):
    model = make(CausalLM, tiny(position="rope", n_kv_heads=2, dropout=0.0, **windows))
    choice, ids = {name: SMALL[name] for name in names}, random_ids(2, 11)
    mask = by_hand(11, causal=True, **choice)
    expected = logits_and_gradients(without_the_causal_mask(model), ids, mask)
    assert_close(logits_and_gradients(model, ids, FlexPattern(**choice)), expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_model_gives_the_same_by_flex_attention(by_flex):
    model = make(CausalLM, tiny(position="rope", n_kv_heads=2)).float()
    expected = without_the_causal_mask(model)(
        ids := random_ids(2, 11), by_hand(11, causal=True, **SMALL)
    )
    with torch.no_grad():
        assert_close(model(ids, FlexPattern(**SMALL)), expected, rtol=0, atol=1e-5)


def test_an_encoder_sees_both_sides_of_a_window():
    model, ids = make(MaskedLM, tiny()), random_ids(2, 11)
    expected = model(ids, by_hand(11, causal=False, window=2))
    assert_close(model(ids, FlexPattern(window=2)), expected)


def test_packed_texts_train_as_with_the_mask_of_pack():
    model = make(CausalLM, tiny(position="rope", dropout=0.0, attention_dropout=0.0)).train()
    texts = [random_ids(n, seed=n).tolist() for n in (5, 8, 3, 9)]
    batch = pack(texts, length=12)
    expected, gradients = loss_and_gradients(model, batch)
    positions = batch["positions"]
    batch["mask"] = FlexPattern(documents=(positions == 0).cumsum(1))
    assert (batch["targets"] == IGNORE).any()  # there is padding, and no loss reads it
    assert_close(loss_and_gradients(model, batch), (expected, gradients))


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = Objective(model)(batch)[0]
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_all_layers_of_a_kind_share_what_is_made(monkeypatch):
    made, write = [], FlexPattern.as_mask
    monkeypatch.setattr(FlexPattern, "as_mask", lambda *a, **o: made.append(1) or write(*a, **o))
    model = make(CausalLM, tiny(n_layers=4, window=3, window_pattern="LG"))
    pattern, ids = FlexPattern(window=5), random_ids(2, 11)
    for _ in range(2):
        model(ids, pattern)
    assert len(made) == 2  # one for local layers, one for global ones
    assert pattern.within(8) is pattern
    assert pattern.within(3).window == 3
