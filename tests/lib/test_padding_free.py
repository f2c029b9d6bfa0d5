"""Padding left out of a stack: real tokens get the same answers."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close
from torch_weights import randomise

from transformer_lib.core import fingerprint
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.fast import padding_free
from transformer_lib.layers.fast.padding_free import PaddingFreeBatch, padding_free_batch
from transformer_lib.layers.feedforward import FeedForward
from transformer_lib.layers.masks import causal_mask, padding_mask, prefix_mask
from transformer_lib.models.blocks import Stack
from transformer_lib.models.encoder_decoder import Encoder
from transformer_lib.models.language_models import CausalLM, MaskedLM, Seq2SeqLM, SequenceClassifier
from transformer_lib.training.data import IGNORE
from transformer_lib.training.losses import Objective
from transformer_lib.training.packing import pack

SCHEMES = ["sinusoidal", "learned", "rope", "alibi", "t5", "none"]
SIZES = {"vocab_size": 20, "d_model": 16, "n_heads": 4, "d_ff": 24, "n_layers": 2, "max_len": 12}
LENGTHS = torch.tensor([7, 1, 4, 0, 6])
RIGHT = padding_mask(LENGTHS, 8)
LEFT = RIGHT.flip(-1)
HOLES = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 0, 0, 0]]).bool()[:, None, None]


@pytest.fixture(autouse=True)
def worth_it(monkeypatch):
    """Tiny models would never gain anything."""
    monkeypatch.setattr(padding_free, "COST_OF_A_SEQUENCE", -1)


@pytest.fixture
def seen(monkeypatch):
    """What ``padding_free_batch`` answers, call by call."""
    answers = []

    def watch(*args):
        answers.append(padding_free_batch(*args))
        return answers[-1]

    monkeypatch.setattr(padding_free, "padding_free_batch", watch)
    return answers


def config(**choices):
    return TransformerConfig(**SIZES | {"dropout": 0.0} | choices)


def make(build, *args, **choices):
    return randomise(build(config(**choices), *args)).double()


def ids_for(mask):
    generator = torch.Generator().manual_seed(0)
    shape = (mask.shape[0], mask.shape[-1])
    return torch.randint(0, SIZES["vocab_size"], shape, generator=generator)


def with_padding(model):
    """A copy that keeps padding: somebody listens to each stack."""
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, Stack):
            part.register_forward_hook(lambda *_: None)
    return model


def answer_and_gradients(run, model, real):
    """What is at real places, what at the others, and the gradients of a loss over real places."""
    model.zero_grad()
    answer = run(model)
    (answer[real].pow(2).sum() + answer[real].sum()).backward()
    return answer[real], answer[~real], {n: p.grad for n, p in model.named_parameters()}


def assert_same(run, model, real):
    """The same with padding and without, with all gradients."""
    answer, at_padding, gradients = answer_and_gradients(run, model, real)
    wanted, _, wanted_gradients = answer_and_gradients(run, with_padding(model), real)
    assert_close(answer, wanted)
    assert wanted_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, wanted_gradients[name], msg=name)
    return at_padding


def real_places(mask):
    return mask[:, 0, 0]


# --- the same answers


@pytest.mark.parametrize("position", SCHEMES)
@pytest.mark.parametrize("mask", [RIGHT, LEFT, HOLES], ids=["right", "left", "holes"])
@pytest.mark.parametrize("kind", [Encoder, CausalLM])
def test_real_tokens_get_what_they_got_with_padding(kind, mask, position, seen):
    model = make(kind, position=position)
    ids, real = ids_for(mask), real_places(mask)
    at_padding = assert_same(lambda model: model(ids, mask), model, real)
    by_distance = position in ("alibi", "t5")
    left_out, kept = seen
    assert (left_out is None) == (by_distance and mask is HOLES)
    assert kept is None
    if left_out is not None:
        assert sum(left_out.lengths) == real.sum()
        if kind is Encoder:
            assert (at_padding == 0).all()


def test_a_window_of_one_token_is_no_sequence_of_one_token(seen):
    """It looks like one in layers with a window; the others see the whole sequence."""
    model = make(CausalLM, window=1, window_pattern="LG", n_layers=2)
    ids = ids_for(RIGHT)
    assert_same(lambda model: model(ids), model, torch.ones_like(ids, dtype=torch.bool))
    assert seen[0] is None


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("n_kv_heads", [None, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_every_kind_of_heads_and_norms(causal, n_kv_heads, norm_position, seen):
    choices = {"norm": "rms", "activation": "swiglu", "position": "rope", "attention_scale": 0.7}
    cfg = config(n_kv_heads=n_kv_heads, norm_position=norm_position, **choices)
    stack = randomise(Stack(cfg, causal=causal)).double()
    x = torch.randn(5, 8, 16, dtype=torch.float64, requires_grad=True)
    real = real_places(LEFT)
    positions = (real.cumsum(1) - 1).clamp(min=0)
    gradients = []
    for model in (stack, with_padding(stack)):
        answer = model(x, LEFT, positions=positions)
        gradients.append(torch.autograd.grad(answer[real].pow(2).sum(), x)[0])
    assert_close(*gradients)
    assert (gradients[0][~real] == 0).all()
    assert_same(lambda model: model(x, LEFT, positions=positions), stack, real)
    assert seen[0].lengths == [7, 1, 4, 6]


def test_one_mask_for_all_rows(seen):
    model, ids = make(Encoder, position="rope"), ids_for(RIGHT)
    real = real_places(RIGHT[:1]).expand(5, 8)
    assert_same(lambda model: model(ids, RIGHT[:1]), model, real)
    assert seen[0].lengths == [7] * 5


def test_masked_language_models_and_classifiers(seen):
    mask = padding_mask(torch.tensor([8, 3, 1]), 8)
    ids, real = ids_for(mask), real_places(mask)
    assert_same(lambda model: model(ids, mask), make(MaskedLM), real)
    for pooling in ("cls", "mean"):
        model = make(SequenceClassifier, 3, pooling)
        assert_same(lambda model: model(ids, mask), model, torch.ones(3, dtype=torch.bool))
    assert [batch is None for batch in seen] == [False, True] * 3


def test_the_encoder_of_a_translator_gains_and_its_decoder_stays(seen):
    model, source, target = make(Seq2SeqLM, position="t5"), ids_for(RIGHT), ids_for(LEFT)
    everything = torch.ones(5, 8, dtype=torch.bool)
    target_mask = padding_mask(torch.tensor([8, 7, 6, 5, 4]), 8)
    assert_same(lambda m: m(source, target, RIGHT, target_mask), model, everything)
    assert len(seen) == 2  # the decoder does not even ask
    assert [batch is None for batch in seen] == [False, True]


@pytest.mark.parametrize("position", SCHEMES)
def test_packed_sequences_attend_alone_and_padding_is_left_out(position, seen):
    batch = pack([[5, 6, 7, 8], [9, 8, 7], [1, 2], [3, 4, 5, 6, 7], [1, 2, 3]], length=6)
    batch["mask"] = batch["mask"][:2]  # one row has no room left, the other one has padding
    model = make(CausalLM, position=position).train()
    results = []
    for one in (model, with_padding(model)):
        total, count = Objective(one)(batch)
        total.backward()
        results.append((total, count, {n: p.grad for n, p in one.named_parameters()}))
    assert_close(*results)
    assert seen[0].lengths == [3, 2, 1, 4, 2]
    assert_same(
        lambda m: m(batch["ids"], batch["mask"], positions=batch["positions"]),
        model,
        batch["targets"] >= 0,
    )


def test_checkpoints_of_activations(seen):
    model, ids = make(Encoder).train(), ids_for(RIGHT)
    model.stack.checkpoint_activations = True
    assert_same(lambda model: model(ids, RIGHT), model, real_places(RIGHT))
    assert seen[0] is not None


def test_16_bits_under_autocast(seen):
    model, ids, real = make(Encoder).float(), ids_for(RIGHT), real_places(RIGHT)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, wanted = model(ids, RIGHT), with_padding(model)(ids, RIGHT)
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert_close(found[real], wanted[real], atol=0.05, rtol=0.05)
    assert seen[0] is not None


# --- less work


def test_layers_see_real_tokens_only(monkeypatch):
    widths = []

    @functools.wraps(FeedForward.forward)
    def count(self, x):
        widths.append(x.shape)
        return count.__wrapped__(self, x)

    monkeypatch.setattr(FeedForward, "forward", count)
    known = type(fingerprint._FUNCTIONS)()
    monkeypatch.setattr(fingerprint, "_FUNCTIONS", known)  # as if it had always been so
    make(Encoder)(ids_for(RIGHT), RIGHT)
    assert widths == [(1, 18, 16)] * 2


def test_no_work_where_nothing_is_gained(monkeypatch, seen):
    model, ids = make(Encoder), ids_for(RIGHT)
    monkeypatch.undo()
    monkeypatch.setattr(padding_free, "padding_free_batch", lambda *args: seen.append(args) or None)
    model(ids, RIGHT)
    assert padding_free_batch(*seen[0]) is None  # so little padding in so small a model


@pytest.mark.parametrize(
    ("lengths", "width", "gains"),
    [([96, 64], 384, True), ([96, 96], 384, False), ([96, 95], 16, False)],
)
def test_it_pays_for_much_padding_and_wide_models(lengths, width, gains, monkeypatch):
    monkeypatch.undo()
    stack = nn.Linear(width, width)
    mask = padding_mask(torch.tensor(lengths), 96)
    x = torch.zeros(2, 96, width)
    batch = padding_free_batch(stack, {nn.Linear}, x, [mask])
    assert (batch is not None) == gains


NO = {
    "not built in": ("torch.backends.cuda.is_flash_attention_available", False),
    "another kernel is wanted": ("torch.backends.cuda.flash_sdp_enabled", False),
    "an old GPU": ("torch.cuda.get_device_capability", (7, 5)),
    "recorded": ("torch.cuda.is_current_stream_capturing", True),
}


@pytest.mark.parametrize("reason", [None, *NO])
def test_a_gpu_has_the_kernel_unless(reason, monkeypatch):
    monkeypatch.undo()
    for name, answer in (
        ("torch.backends.cuda.is_flash_attention_available", True),
        ("torch.cuda.get_device_capability", (8, 0)),
        ("torch.cuda.is_current_stream_capturing", False),
        *([NO[reason]] if reason else []),
    ):
        monkeypatch.setattr(name, lambda *_, answer=answer: answer)
    large = torch.empty(64, 512, 768, dtype=torch.bfloat16, device="meta")
    assert padding_free._may_pay_on_a_gpu(large) == (reason is None)
    assert not padding_free._may_pay_on_a_gpu(large.float())
    assert not padding_free._may_pay_on_a_gpu(large[:2])


# --- padding stays


def changed(change):
    model = make(Encoder)
    change(model)
    return model


def listen(register):
    return lambda model: getattr(model.stack.blocks[1].feed_forward.up, register)(lambda *_: None)


def replace_attend(model):
    part = model.stack.blocks[0].attention
    part.attend = lambda *args, **options: MultiHeadAttention.attend(part, *args, **options)


def compile_block(model):
    block = model.stack.blocks[0]
    block._compiled_call_impl = block._call_impl  # what block.compile() does, without a compiler


def record_activation(model):
    part = model.stack.blocks[0].feed_forward
    plain = part.activation
    part.activation = lambda x: plain(x)


class OwnAttention(MultiHeadAttention):
    pass


def own(config):
    return OwnAttention(config.d_model, config.n_heads)


CHANGES = {
    "forward hook": listen("register_forward_hook"),
    "pre-hook": listen("register_forward_pre_hook"),
    "backward hook": listen("register_full_backward_hook"),
    "backward pre-hook": listen("register_full_backward_pre_hook"),
    "replaced forward": lambda m: setattr(m.stack.blocks[0], "forward", m.stack.blocks[0].forward),
    "replaced method": replace_attend,
    "replaced activation": record_activation,
    "pruned": lambda m: prune.l1_unstructured(m.stack.blocks[0].attention.key, "weight", 0.5),
    "parametrised": lambda m: parametrizations.weight_norm(m.stack.blocks[0].feed_forward.up),
    "readable": lambda m: setattr(m.stack.blocks[0].attention, "fused", False),
    "another part": lambda m: setattr(m.stack.blocks[0], "feed_forward", nn.Identity()),
    "compiled": compile_block,
    "dropout": lambda m: [setattr(m.train().stack.blocks[0].dropout, "p", 0.5)],
    "attention dropout": lambda m: [setattr(m.train().stack.blocks[0].attention, "dropout", 0.5)],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_padding_stays_where_a_part_was_changed_or_drops(change, seen):
    changed(change)(ids_for(RIGHT), RIGHT)
    assert seen == [None]
    changed(lambda model: None)(ids_for(RIGHT), RIGHT)
    assert seen[1] is not None


def test_dropout_is_no_hindrance_in_evaluation(seen):
    make(Encoder, dropout=0.5, attention_dropout=0.5).eval()(ids_for(RIGHT), RIGHT)
    assert seen[0] is not None


@pytest.mark.parametrize(
    "choices", [{"n_experts": 3}, {"window": 3}, {"position": "alibi", "window": 4}]
)
def test_experts_and_windows_keep_padding(choices, seen):
    model = make(Encoder, **choices)
    ids, real = ids_for(RIGHT), real_places(RIGHT)
    assert_close(model(ids, RIGHT)[real], with_padding(model)(ids, RIGHT)[real])
    assert seen == [None, None]


def test_parts_of_ones_own_keep_padding(seen):
    Encoder(config(), parts=Parts(attention=own))(ids_for(RIGHT), RIGHT)
    Encoder(config(), parts=Parts(norm=lambda config: nn.LayerNorm(config.d_model)))(
        ids_for(RIGHT), RIGHT
    )
    assert seen == [None, None]


def test_hooks_see_batches_as_before():
    model, shapes = make(Encoder), []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda block, inputs, output: shapes.append(output.shape))
    model(ids_for(RIGHT), RIGHT)
    assert shapes == [(5, 8, 16)] * 2


def test_hooks_for_all_modules_keep_padding(seen):
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        make(Encoder)(ids_for(RIGHT), RIGHT)
    finally:
        handle.remove()
    assert seen == [None]


def test_a_replaced_class_keeps_padding(monkeypatch, seen):
    forward = MultiHeadAttention.merge
    monkeypatch.setattr(MultiHeadAttention, "merge", lambda self, heads: forward(self, heads))
    make(Encoder)(ids_for(RIGHT), RIGHT)
    assert seen == [None]


def test_caches_and_memories_are_not_asked(seen):
    model = make(CausalLM)
    model(ids_for(RIGHT), RIGHT, cache=KeyValueCache(2, 8))
    assert seen == []


SQUARE = torch.eye(8, dtype=torch.bool).expand(5, 1, 8, 8)
BLOCKS = (torch.arange(8)[:, None] // 3 == torch.arange(8) // 3).expand(5, 1, 8, 8)
INTERLEAVED = (torch.arange(8)[:, None] % 2 == torch.arange(8) % 2).expand(5, 1, 8, 8)
READER = BLOCKS.clone()
READER[:, :, :, 7] = False  # sees, and is not seen: it may be read in the end
SEEN = BLOCKS.clone()
SEEN[:, :, 7] = False
MASKS = {
    "nothing real": torch.zeros(5, 1, 1, 8, dtype=torch.bool),
    "causal": causal_mask(8).expand(5, 1, 8, 8),
    "prefix": prefix_mask(torch.tensor([1, 2, 3, 4, 5]), 8),
    "interleaved": INTERLEAVED,
    "a reader": READER,
    "a blind one": SEEN,
    "for each head": RIGHT.expand(5, 4, 1, 8),
    "padding for each query": RIGHT.expand(5, 1, 8, 8),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_other_masks_keep_padding(mask, seen):
    model = make(Encoder)
    ids = ids_for(RIGHT)
    found = model(ids, mask)
    assert seen == [None]
    assert_close(found, with_padding(model)(ids, mask))


@pytest.mark.parametrize("mask", [BLOCKS, SQUARE], ids=["blocks", "each alone"])
def test_sequences_side_by_side(mask, seen):
    model, ids = make(CausalLM, position="alibi"), ids_for(RIGHT)
    everything = torch.ones(5, 8, dtype=torch.bool)
    assert_same(lambda model: model(ids, mask), model, everything)
    assert len(seen[0].lengths) == (15 if mask is BLOCKS else 40)


def test_compiled_models_keep_padding(fresh_compiler):
    model, ids, real = make(Encoder), ids_for(RIGHT), real_places(RIGHT)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(ids, RIGHT)[real], model(ids, RIGHT)[real])
        other = padding_mask(torch.tensor([2, 3, 8, 8, 8]), 8)  # the lengths are not frozen in
        assert_close(
            compiled(ids, other)[real_places(other)], model(ids, other)[real_places(other)]
        )


@pytest.mark.filterwarnings("ignore")  # of tracing itself
def test_traced_models_keep_padding(unchecked_shapes):
    model, ids = make(Encoder, position="none").eval(), ids_for(RIGHT)
    other = padding_mask(torch.tensor([2, 3, 8, 8, 8]), 8)
    with torch.no_grad():
        traced = torch.jit.trace(model, (ids, RIGHT))
        assert_close(traced(ids, other)[real_places(other)], model(ids, other)[real_places(other)])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_mapped_models_keep_padding(unchecked_shapes):
    stack = randomise(Stack(config(), causal=False)).double()
    x = torch.randn(3, 5, 8, 16, dtype=torch.float64)
    masks = torch.stack([RIGHT, LEFT, RIGHT])
    with torch.no_grad():
        found = torch.func.vmap(stack)(x, masks)
        wanted = torch.stack([stack(one, mask) for one, mask in zip(x, masks, strict=True)])
    real = masks[:, :, 0, 0]
    assert_close(found[real], wanted[real])


def test_nothing_is_computed_on_the_meta_device(seen):
    with torch.device("meta"):
        stack = Stack(config(), causal=True)
        x, mask = torch.zeros(2, 8, 16), torch.zeros(2, 1, 1, 8, dtype=torch.bool)
        assert stack(x, mask).shape == x.shape
    assert seen == [None]


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (torch.zeros(5, 8, 12), RIGHT, r"x has shape \(5, 8, 12\); .* with D=16, got D=12"),
        (torch.zeros(5, 8, 16), RIGHT.long(), "mask has dtype torch.int64"),
        (torch.zeros(5, 8, 16), RIGHT[:2], r"mask has shape \(2, 1, 1, 8\)"),
        (torch.zeros(5, 8, 16), RIGHT[:, 0, 0], r"mask has shape \(5, 8\)"),
    ],
)  # fmt: skip
def test_errors_are_those_of_padded_batches(unchecked_shapes, x, mask, message):
    stack = Stack(config(norm_position="post"), causal=False)
    for one in (stack, with_padding(stack)):
        with pytest.raises((ValueError, TypeError), match=message):
            one(x, mask)


# --- one row for all


def test_tokens_go_out_and_come_back():
    batch = PaddingFreeBatch(torch.tensor([[-1, 0, 0], [-1, -1, -1], [3, 4, 4]]))
    assert batch.lengths == [2, 1, 2]
    assert not batch.has_holes
    x = torch.arange(18.0).view(3, 3, 2).requires_grad_()
    row = batch.drop(x)
    assert row[0].tolist() == [[2, 3], [4, 5], [12, 13], [14, 15], [16, 17]]
    back = batch.put_back(row)
    real = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 1]])[:, :, None]
    assert torch.equal(back, x * real)
    back.sum().backward()
    assert torch.equal(x.grad, real.expand(3, 3, 2).float())
    assert PaddingFreeBatch(torch.tensor([[0, -1, 0]])).has_holes


@pytest.mark.parametrize("activation", ["gelu_tanh", "geglu_tanh"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_model_leaves_padding_out_too(copied, activation, seen):
    model = copied(make(Encoder, activation=activation))
    model(ids_for(RIGHT), RIGHT)
    assert seen[0] is not None


def test_what_stands_at_hidden_places_is_not_the_same_and_reaches_no_loss(monkeypatch):
    """Zeros in a large batch, what the layers make of padding in a small one: see Stack.forward."""
    model, ids = make(MaskedLM, tie_embeddings=False), ids_for(RIGHT)
    real = real_places(RIGHT)
    targets = torch.where(real, ids, IGNORE)
    results, hidden = [], []
    for cost in (-1, 10**12):
        monkeypatch.setattr(padding_free, "COST_OF_A_SEQUENCE", cost)
        hidden.append(model.encoder(ids, RIGHT)[~real])
        model.zero_grad()
        total, count = Objective(model)({"ids": ids, "mask": RIGHT, "targets": targets})
        total.backward()
        results.append((total, count, {n: p.grad for n, p in model.named_parameters()}))
    assert (hidden[0] == 0).all()
    assert (hidden[1] != 0).all()
    assert_close(*results)


@pytest.mark.parametrize("name", ["causal", "interleaved", "a reader", "a blind one"])
def test_a_mask_of_another_kind_has_no_owners(name):
    assert padding_free._owners(MASKS[name], 5, 8) is None
    assert padding_free._owners(BLOCKS, 5, 8) is not None


@pytest.mark.parametrize(("name", "value"), [("cap", 5.0), ("dropout", 0.5)])
def test_attention_that_a_pattern_cannot_do_refuses_it(name, value):
    attend = MultiHeadAttention(16, 4)
    batch = PaddingFreeBatch(torch.tensor([[0, 0, -1]]))
    x = batch.drop(torch.zeros(1, 3, 16))
    assert attend(x, mask=batch).shape == (1, 2, 16)
    setattr(attend, name, value)
    with pytest.raises(ValueError, match=f"^{name}={value}: expected none with a PaddingFreeBatch"):
        attend(x, mask=batch)
