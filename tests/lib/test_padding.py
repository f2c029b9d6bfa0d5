"""padding: where real tokens stand is said by an argument; each row is as if it were alone."""

import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import make, random_ids, real_tokens, tiny, tiny_configs
from torch.testing import assert_close
from torch_weights import small_config

from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.caches.static_kv_cache import StaticCache
from transformer_lib.models.encoder_decoder import Encoder
from transformer_lib.models.language_models import CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier
from transformer_lib.models.padding import real_positions
from transformer_lib.training.losses import IGNORE, Objective

N = 7
LENGTHS = (N, 4, 1)
SIDES = ("left", "right")


def same(actual, expected):
    # angles are in float32, so that what is rotated is as near as that
    assert_close(actual, expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def padded(side, seed=0, n=N, lengths=LENGTHS):
    return random_ids(len(lengths), n, seed=seed), real_tokens(lengths, n, side)


@settings(max_examples=12, deadline=None)
@given(config=tiny_configs(), side=st.sampled_from(SIDES), seed=st.integers(0, 99))
@example(config=tiny(position="learned"), side="left", seed=0)
@example(config=tiny(position="sinusoidal", norm_embeddings=True), side="left", seed=0)
@example(config=tiny(position="rope", window=3), side="left", seed=0)
@example(config=tiny(position="t5"), side="left", seed=0)
@torch.no_grad()
def test_a_row_says_the_same_alone_and_padded_on_either_side(config, side, seed):
    ids, real = padded(side, seed)
    for build in (CausalLM, Encoder, MaskedLM):
        model = make(build, config, seed=seed)
        together = model(ids, real=real)
        for n in range(len(ids)):
            same(together[n, real[n]], model(ids[n, real[n]][None])[0])


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope", "alibi", "t5"])
@torch.no_grad()
def test_a_translation_is_the_same_with_both_sides_padded(position):
    model = make(Seq2SeqLM, tiny(position=position))
    (source, in_source), (target, in_target) = padded("left"), padded("right", 1, 5, (2, 5, 3))
    both = {"source_real": in_source, "target_real": in_target}
    together = model(source, target, **both)
    for n in range(3):
        alone = model(source[n, in_source[n]][None], target[n, in_target[n]][None])
        same(together[n, in_target[n]], alone[0])


@pytest.mark.parametrize(
    ("pooling", "side"), [("mean", "left"), ("mean", "right"), ("cls", "right")]
)
@torch.no_grad()
def test_a_class_does_not_depend_on_padding(pooling, side):
    model = make(SequenceClassifier, tiny(position="learned"), 3, pooling)
    ids, real = padded(side)
    for n, answer in enumerate(model(ids, real=real)):
        same(answer, model(ids[n, real[n]][None])[0])


@pytest.mark.parametrize("kind", [KeyValueCache, StaticCache])
@pytest.mark.parametrize("position", ["learned", "rope"])
@torch.no_grad()
def test_a_cache_goes_on_with_the_same_rows(kind, position):
    model = make(CausalLM, tiny(position=position))
    ids, real = padded("left")
    cache, found = kind(2, N), []
    for first, last in ((0, 3), (3, 4), (4, N)):
        now = real if kind is StaticCache else real[:, :last]  # of all places that there are
        found.append(model(ids[:, first:last], cache=cache, real=now))
    same(torch.cat(found, dim=1)[real], model(ids, real=real)[real])


@torch.no_grad()
def test_other_masks_and_positions_are_followed_too():
    model = make(CausalLM, tiny(position="learned"))
    ids, real = padded("right")
    hidden = torch.ones(1, 1, 1, N, dtype=torch.bool)
    hidden[..., 1] = False
    expected = model(ids, hidden & real[:, None, None])
    same(model(ids, hidden, real=real)[real], expected[real])
    places = 2 * real_positions(real)
    same(model(ids, real=real, positions=places)[real], model(ids, positions=places)[real])


def gradients(model, batches):
    model.zero_grad()
    for batch in batches:
        Objective(model)(batch)[0].backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("side", SIDES)
def test_training_learns_from_each_row_what_it_would_alone(side):
    model = make(CausalLM, tiny(position="learned", tie_embeddings=True))
    ids, real = padded(side)
    targets = ids.masked_fill(~real, IGNORE)
    rows = [{"ids": i[r][None], "targets": i[r][None]} for i, r in zip(ids, real, strict=True)]
    together = gradients(model, [{"ids": ids, "targets": targets, "real": real}])
    same(torch.cat([g.flatten() for g in together]),
         torch.cat([g.flatten() for g in gradients(model, rows)]))  # fmt: skip


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
REAL = torch.ones(2, 3, dtype=torch.bool)
LM, CLASSES = CausalLM(small_config()), SequenceClassifier(small_config(), 2)
BOTH = Seq2SeqLM(small_config())
BOOLEAN = "expected torch.bool, True at real tokens"
MISUSE = {
    "numbers": (
        lambda: LM(IDS, real=REAL.long()), TypeError, f"real has dtype torch.int64; {BOOLEAN}",
    ),
    "additive": (
        lambda: LM(IDS, real=torch.zeros(2, 3)), TypeError,
        f"real has dtype torch.float32; {BOOLEAN}",
    ),
    "four dimensions": (
        lambda: LM(IDS, real=REAL[:, None, None]), ValueError,
        "real has shape (2, 1, 1, 3); expected (B, S)",
    ),
    "one row": (
        lambda: LM(IDS, real=REAL[:1]), ValueError,
        "real has shape (1, 3); expected (B, S) with B=2, got B=1",
    ),
    "too short": (
        lambda: LM(IDS, real=REAL[:, :2]), ValueError,
        "real has shape (2, 2); expected (B, S) with S=3, got S=2",
    ),
    "transposed": (
        lambda: LM(IDS, real=REAL.t()), ValueError,
        "real has shape (3, 2); expected (B, S) with B=2, got B=3",
    ),
    "as a mask": (
        lambda: LM(IDS, REAL), ValueError,
        "mask has shape (2, 3); expected four dimensions that broadcast to (B, H, T, S), such as "
        "(B, 1, 1, S) from padding_mask; what says where real tokens stand, (B, S), is an argument "
        "of its own, real",
    ),
    "a mask of two dimensions beside it": (
        lambda: LM(IDS, REAL, real=REAL), ValueError, "mask has shape (2, 3); expected four dimens",
    ),
    "cls behind padding": (
        lambda: CLASSES(IDS, real=IDS > 1), ValueError,
        "real has padding first, where pooling='cls' reads; pad on the right",
    ),
    "the target's for the source": (
        lambda: BOTH(IDS[:, :2], IDS, source_real=REAL), ValueError,
        "source_real has shape (2, 3); expected (B, S) with S=2, got S=3",
    ),
    "no room": (
        lambda: LM(torch.ones(2, 17).long(), real=torch.ones(2, 17).bool()), ValueError,
        "ids has 17 tokens; the model accepts max_len=16",
    ),
    "without what the cache holds": (
        lambda: _second_step(real=REAL), ValueError,
        "real has shape (2, 3); expected (B, S) with S=6, got S=3",
    ),
}  # fmt: skip


def _second_step(**options):
    cache = KeyValueCache(2, 16)
    LM(IDS, cache=cache)
    LM(IDS, cache=cache, **options)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", MISUSE)
def test_what_cannot_say_where_real_tokens_stand_is_refused(name):
    run, error, message = MISUSE[name]
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        run()
