"""Models and heads: tying, pooling, presets, and what each of them may see."""

import copy
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch_weights import randomise, small_config

from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.embeddings import Embedding
from transformer_lib.layers.masks import padding_mask, prefix_mask
from transformer_lib.models.encoder_decoder import Decoder, Encoder, EncoderDecoder
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    OutputLayer,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
    mean_over_tokens,
)
from transformer_lib.models.presets import PRESETS, build_preset
from transformer_lib.models.saving import without_copies
from transformer_lib.tracing.watch import influence

IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def n_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_exactly_the_published_number_of_parameters(name):
    preset = PRESETS[name]
    count = n_parameters(build_preset(name, device="meta"))
    assert count == preset.parameters
    rounded = re.fullmatch(r"(\d+)([MB])", preset.published)
    if rounded is None:
        assert f"{count:,}" == preset.published
    else:  # the authors give a rounded number; 2017's does not say how it was counted
        size = int(rounded[1]) * {"M": 1e6, "B": 1e9}[rounded[2]]
        assert abs(count / size - 1) < 0.03


@pytest.mark.parametrize("name", PRESETS)
def test_preset_names_a_work_of_the_bibliography(name):
    works = Path(__file__).parents[2].joinpath("book", "references.bib").read_text("utf-8")
    source = PRESETS[name].source
    said = f"book/references.bib has no entry {source!r}, the source of the preset {name!r}"
    assert f"{{{source}," in works, f"{said}: add it, or name another work in presets.py"


def test_a_preset_really_computes():
    model = build_preset("transformer-base").eval()
    with torch.no_grad():
        assert model(IDS, IDS[:, :3]).shape == (2, 3, 37_000)


class TestTying:
    def test_output_and_both_embeddings_are_one_table(self):
        model = Seq2SeqLM(small_config())
        tables = {
            model.body.encoder.embedding.tokens.weight.data_ptr(),
            model.body.decoder.embedding.tokens.weight.data_ptr(),
            model.output.projection.weight.data_ptr(),
        }
        assert len(tables) == 1

    def test_untied_has_three_tables(self):
        tied, untied = (Seq2SeqLM(small_config(tie_embeddings=tie)) for tie in (True, False))
        assert n_parameters(untied) - n_parameters(tied) == 2 * 11 * 8

    def test_gradient_of_the_table_comes_from_both_ends(self):
        model = CausalLM(small_config()).double()
        table = model.decoder.embedding.tokens.weight
        model(IDS).square().sum().backward()
        assert (table.grad[[0, 7, 8, 10]].abs().sum(dim=1) > 0).all()  # never in the input

    @pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM, MaskedLM])
    @pytest.mark.parametrize("how", ["whole", "without copies", "assigned"])
    def test_a_model_that_was_given_memory_later_is_tied_again_when_it_is_loaded(self, kind, how):
        """``to_empty`` makes new tensors one by one; trained on, two tables would drift apart."""
        original = randomise(kind(small_config())).eval()
        with torch.device("meta"):
            model = kind(small_config())
        state = original.state_dict()
        if how == "without copies":
            state = without_copies(original, state)
        if how == "assigned":
            state = {name: tensor.clone() for name, tensor in state.items()}
            model.load_state_dict(state, assign=True)
        else:
            model.to_empty(device="cpu").load_state_dict(state, strict=how == "whole")
        tables = [part.tokens.weight for part in model.modules() if isinstance(part, Embedding)]
        assert all(table is model.output.projection.weight for table in tables)
        assert n_parameters(model) == n_parameters(original)
        inputs = (IDS, IDS) if kind is Seq2SeqLM else (IDS,)
        assert_close(model.eval()(*inputs), original(*inputs), rtol=0, atol=0)
        copied = copy.deepcopy(model)  # and pickled
        pickle.loads(pickle.dumps(copied)).load_state_dict(state, strict=how == "whole")

    def test_a_model_that_was_untied_on_purpose_stays_so(self):
        model = CausalLM(small_config())
        model.output.projection.weight = torch.nn.Parameter(torch.ones(11, 8))
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(state)
        assert model.output.projection.weight is not model.decoder.embedding.tokens.weight
        assert (model.output.projection.weight == 1).all()
        model.load_state_dict({"decoder.stack.norm.weight": torch.ones(8)}, strict=False)
        assert (model.output.projection.weight == 1).all()
        model.output = torch.nn.Identity()  # there is nothing left to tie
        model.load_state_dict(model.state_dict())

    def test_logits_are_scaled_products_with_the_table(self):
        layer = OutputLayer(small_config(logit_scale=0.5), torch.nn.Embedding(11, 8))
        x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
        assert_close(layer(x), 0.5 * x @ layer.projection.weight.T)


class TestWhoSeesWhom:
    def seen(self, stack):
        x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
        return influence(stack.eval(), x) > 1e-6

    def test_encoder_sees_all(self):
        assert self.seen(randomise(Encoder(small_config()).stack)).all()

    def test_decoder_sees_the_past(self):
        seen = self.seen(randomise(Decoder(small_config()).stack))
        assert torch.equal(seen, torch.ones(6, 6).tril().bool())

    def test_each_block_widens_the_reach_by_one_window(self):
        seen = self.seen(randomise(Decoder(small_config(window=2)).stack))
        assert torch.equal(seen, torch.ones(6, 6).tril().triu(-2).bool())

    def test_an_encoder_with_a_prefix_mask_is_a_prefix_language_model(self):
        stack = randomise(Encoder(small_config()).stack).eval()
        mask = prefix_mask(torch.tensor([3]), 6)
        seen = self.seen_through(stack, mask)
        assert torch.equal(seen, mask[0, 0])

    def seen_through(self, stack, mask):
        x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
        return influence(lambda value: stack(value, mask), x) > 1e-6


class TestClassifier:
    def test_cls_reads_the_first_vector_only(self):
        model = randomise(SequenceClassifier(small_config(), 3)).eval()
        first = model.encoder(IDS)[:, 0]
        expected = model.classifier(torch.tanh(model.pooler(first)))
        assert_close(model(IDS), expected)

    def test_mean_leaves_padding_out(self):
        model = randomise(SequenceClassifier(small_config(), 3, "mean")).eval()
        mask = padding_mask(torch.tensor([5, 2]), 5)
        alone = model(IDS[1:, :2])
        assert_close(model(IDS, mask)[1:], alone, rtol=1e-5, atol=1e-5)
        assert model.pooler is None

    def test_mean_of_no_token_is_zero(self):
        mask = padding_mask(torch.tensor([0]), 2)
        assert_close(mean_over_tokens(torch.ones(1, 2, 3), mask), torch.zeros(1, 3))
        assert_close(mean_over_tokens(torch.ones(1, 2, 3)), torch.ones(1, 3))

    def test_without_classes_it_returns_the_sequence_vector(self):
        model = SequenceClassifier(small_config(), 0).eval()
        assert model(IDS).shape == (2, 8)

    def test_segments_reach_the_embedding(self):
        model = SequenceClassifier(small_config(n_segments=2), 3).eval()
        other = model(IDS, segments=torch.ones_like(IDS))
        assert not torch.allclose(model(IDS), other)


def test_masked_lm_puts_a_layer_and_a_bias_before_the_logits():
    model = randomise(MaskedLM(small_config(activation="gelu", n_segments=2))).eval()
    segments = torch.tensor([[0, 0, 1, 1, 1]]).expand(2, 5)
    x = model.encoder(IDS, segments=segments)
    x = model.norm(torch.nn.functional.gelu(model.transform(x)))
    expected = x @ model.encoder.embedding.tokens.weight.T + model.output.projection.bias
    assert_close(model(IDS, segments=segments), expected)


class TestVision:
    def model(self, **changes):
        config = small_config(max_len=5, **changes)
        return randomise(VisionTransformer(config, 4, 2, n_channels=1, n_classes=3)).eval()

    def images(self):
        return torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))

    @pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope", "alibi", "t5"])
    def test_classifies_from_the_class_token_and_knows_where_patches_are(self, position):
        model, images = self.model(position=position), self.images()
        assert model(images).shape == (2, 3)
        swapped = images.roll(2, dims=-1)  # the left and the right patches change places
        assert not torch.allclose(model(images), model(swapped), atol=1e-4)

    def test_without_positions_the_order_of_patches_is_lost(self):
        model, images = self.model(position="none"), self.images()
        assert_close(model(images), model(images.roll(2, dims=-1)), rtol=1e-4, atol=1e-4)


def test_cache_holds_the_memorys_keys_once():
    config = small_config()
    model = EncoderDecoder(config).eval()
    memory = model.encoder(IDS)
    cache = KeyValueCache(config.n_layers, config.max_len)
    with torch.no_grad():
        first = model.decoder(IDS[:, :2], memory, cache=cache)
        second = model.decoder(IDS[:, 2:3], memory.clone(), cache=cache)  # equal: the same memory
        whole = model.decoder(IDS[:, :3], memory)
    assert_close(torch.cat((first, second), dim=1), whole, rtol=1e-5, atol=1e-6)
    assert cache.length == 3
    assert [store.length for store in cache.memory_layers] == [5, 5]


def test_explicit_positions_move_a_learned_table_and_rope():
    ids = IDS[:1]
    for position in ("learned", "rope", "sinusoidal"):
        model = randomise(CausalLM(small_config(position=position))).eval()
        gaps = torch.tensor([[0, 2, 4, 6, 8]])
        assert not torch.allclose(model(ids), model(ids, positions=gaps), atol=1e-4)
        assert_close(model(ids), model(ids, positions=torch.arange(5)[None]))


def test_experts_work_in_every_block_of_a_model():
    config = small_config(n_experts=3, active_experts=1, activation="swiglu")
    model = randomise(CausalLM(config))
    (
        model(IDS).sum() + sum(b.feed_forward.balance_loss for b in model.decoder.stack.blocks)
    ).backward()
    for block in model.decoder.stack.blocks:
        assert 0 < block.feed_forward.balance_loss <= 3
        assert block.feed_forward.router.weight.grad.abs().max() > 0


def test_configurations_can_be_changed_by_replace():
    assert replace(PRESETS["gpt2"].config, n_layers=1).n_layers == 1


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        ("attention_scale", 1.0),
        ("rope_theta", 100.0),
        ("rope_pairing", "split"),
        ("norm_eps", 0.5),
        ("activation", "gelu"),
        ("norm", "rms"),
        ("norm_position", "pre"),
        ("scale_embeddings", False),
        ("norm_embeddings", True),
        ("logit_scale", 2.0),
        ("window", 2),
        ("position", "alibi"),
    ],
)
def test_each_choice_of_the_configuration_changes_what_the_model_says(choice, value):
    def logits(**changes):
        model = randomise(CausalLM(small_config(**{"position": "rope", **changes})))
        return model.eval()(IDS)

    assert not torch.allclose(logits(), logits(**{choice: value}), rtol=1e-3, atol=1e-3)


def test_attention_dropout_reaches_every_attention():
    model = Seq2SeqLM(small_config(attention_dropout=0.5))
    rates = [module.dropout for module in model.modules() if hasattr(module, "fused")]
    assert rates == [0.5] * 6


def test_what_the_classifier_reads_is_dropped_in_training():
    model = randomise(SequenceClassifier(small_config(dropout=0.999999), 3)).train()
    assert_close(model(IDS), model.classifier.bias.expand(2, 3))


def test_patches_are_dropped_in_training():
    config = small_config(max_len=5, dropout=0.999999)
    model = randomise(VisionTransformer(config, 4, 2, n_channels=1, n_classes=3)).train()
    for block in model.stack.blocks:
        block.dropout.p = 0.0  # what the blocks add stays
    images = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert_close(model(images), model(torch.zeros_like(images)))
