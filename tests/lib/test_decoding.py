"""Static caches, joined projections and compiled steps give the answers of the plain ones."""

from functools import partial

import pytest
import torch
from torch import nn

from transformer_lib.attention import MultiHeadAttention
from transformer_lib.blocks import Stack
from transformer_lib.cache import KeyValueCache
from transformer_lib.config import TransformerConfig
from transformer_lib.decoding import CompiledDecoder, DecodingStep, generating
from transformer_lib.generation import Sampling, generate, stream
from transformer_lib.heads import CausalLM, Seq2SeqLM

POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "t5", "none")


def config(**changes):
    sizes = {"vocab_size": 30, "d_model": 16, "n_heads": 4, "n_layers": 2, "max_len": 24}
    return TransformerConfig(**{**sizes, "n_kv_heads": 2, "dropout": 0.0, **changes})


class TestStaticCache:
    @pytest.mark.parametrize("window", [None, 3])
    @pytest.mark.parametrize("position", POSITIONS)
    def test_gives_the_logits_of_one_pass(self, position, window):
        torch.manual_seed(0)
        model = CausalLM(config(position=position, window=window)).eval()
        ids = torch.randint(30, (2, 9))
        cache = KeyValueCache(2, max_len=16, static="cpu")
        with torch.no_grad():
            parts = []
            for n_keys, new in ((6, ids[:, :4]), (12, ids[:, 4:5]), (16, ids[:, 5:])):
                cache.show(n_keys)
                parts.append(model(new, cache=cache))
            torch.testing.assert_close(torch.cat(parts, dim=1), model(ids))
        assert cache.length == 9

    def test_hides_padding_at_the_start(self):
        torch.manual_seed(0)
        model = CausalLM(config(position="rope")).eval()
        ids = torch.randint(30, (1, 6))
        padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), ids), dim=1)
        real = torch.tensor([[False] * 3 + [True] * 13])[:, None, None]
        cache = KeyValueCache(2, max_len=16, static="cpu")
        with torch.no_grad():
            positions = (torch.arange(9)[None] - 3).clamp(min=0)
            logits = model(padded, real, positions=positions, cache=cache)
            torch.testing.assert_close(logits[:, 3:], model(ids))
        assert torch.isfinite(logits).all()

    def test_can_be_rewound(self):
        torch.manual_seed(0)
        model = CausalLM(config()).eval()
        ids, others = torch.randint(30, (2, 1, 5))
        cache = KeyValueCache(2, max_len=8, static="cpu")
        with torch.no_grad():
            model(ids, cache=cache)
            cache.rewind(3)
            torch.testing.assert_close(model(ids[:, 3:], cache=cache), model(ids)[:, 3:])
            cache.rewind()
            torch.testing.assert_close(model(others, cache=cache), model(others))

    def test_its_memory_is_where_it_was(self):
        stack = Stack(config(), causal=True)
        cache = KeyValueCache(2, max_len=8, static="cpu")
        with torch.no_grad():
            stack(torch.zeros(1, 2, 16), cache=cache)
            before = [store._stored[0].data_ptr() for store in cache.own]
            stack(torch.zeros(1, 2, 16), cache=cache)
        assert [store._stored[0].data_ptr() for store in cache.own] == before
        assert cache.n_bytes == 2 * 2 * 8 * 8 * 4  # layers, k and v, places, heads * K, bytes

    def test_more_than_it_holds_is_refused(self):
        with pytest.raises(ValueError, match="the cache shows 4 places; 5 new tokens do not fit"):
            Stack(config(), causal=True)(
                torch.zeros(1, 5, 16), cache=KeyValueCache(2, max_len=4, static="cpu")
            )


class TestJoinedProjections:
    @pytest.mark.parametrize("bias", [True, False])
    def test_answers_and_gradients_are_those_of_three_products(self, bias):
        torch.manual_seed(0)
        attend = MultiHeadAttention(16, 4, n_kv_heads=2, bias=bias)
        x = torch.randn(2, 5, 16, requires_grad=True)
        assert attend.join() is not None
        results = []
        for fused in (True, False):
            attend.fused = fused
            y = attend(x, causal=True)
            results.append((y, *torch.autograd.grad(y.sum(), (x, *attend.parameters()))))
        for ours, wanted in zip(*results, strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)

    def test_a_layer_that_somebody_put_in_is_used(self):
        attend = MultiHeadAttention(16, 4)
        x = torch.randn(1, 3, 16)
        before = attend(x)

        class Doubled(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        attend.value.__class__ = Doubled
        assert attend.join() is None
        assert not torch.allclose(attend(x), before)

    def test_a_hook_on_a_projection_is_called(self):
        attend, seen = MultiHeadAttention(16, 4), []
        handle = attend.query.register_forward_hook(lambda *_: seen.append(1))
        attend(torch.zeros(1, 3, 16))
        assert seen == [1]
        handle.remove()
        attend(torch.zeros(1, 3, 16))
        assert seen == [1], "the hook was removed, so the projections may be joined again"

    def test_kept_only_while_generating_and_never_with_gradients(self):
        torch.manual_seed(0)
        model = CausalLM(config())
        attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
        ids = torch.randint(30, (1, 4))
        with generating(model):
            assert all(part.joined is not None for part in attentions)
            model(ids).sum().backward()
            assert all(part.query.weight.grad is not None for part in attentions)
            with torch.no_grad():
                for part in attentions:
                    part.value.weight.mul_(-2)
                stale = model(ids)  # of what was joined before
            assert not torch.allclose(stale, model(ids))  # with gradients, nothing is kept
        assert all(part.joined is None for part in attentions)
        assert model.training


class TestCompiledDecoder:
    """Without the compiler's last part, which takes long; test_cuda.py has all of it."""

    @pytest.fixture(autouse=True)
    def _quickly(self, monkeypatch, fresh_compiler):
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))

    @pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM])
    def test_gives_the_tokens_of_the_model_again_and_again(self, kind):
        torch.manual_seed(0)
        model = kind(config(n_layers=1, max_len=140, position="rope"))
        fast = CompiledDecoder(model, max_len=136)
        mask = torch.ones(2, 125, dtype=torch.bool)
        mask[0, :3] = False
        for _ in range(2):  # the second batch uses what was compiled for the first
            inputs = {"prompt": torch.randint(30, (2, 125)), "prompt_mask": mask}
            if kind is Seq2SeqLM:
                inputs["source"] = torch.randint(30, (2, 7))
            plain = generate(model, max_new_tokens=8, **inputs)
            assert torch.equal(generate(fast, max_new_tokens=8, **inputs), plain)
        assert sorted(fast.replays) == [128, 136]
        with torch.no_grad():  # training goes on, and the compiled steps see it
            for part in model.modules():
                if isinstance(part, MultiHeadAttention):
                    part.value.weight.mul_(-3)
        changed = generate(model, max_new_tokens=8, **inputs)
        assert not torch.equal(changed, plain)
        assert torch.equal(generate(fast, max_new_tokens=8, **inputs), changed)
        # other shapes: only the prompt is read here, so nothing is compiled
        shorter = {name: tensor[:1] for name, tensor in inputs.items()}
        assert generate(fast, max_new_tokens=1, **shorter).shape == (1, 126)

    def test_two_batches_at_once_are_refused(self):
        fast = CompiledDecoder(CausalLM(config()), max_len=16)
        first = stream(fast, IDS, max_new_tokens=3)
        next(first)
        next(stream(fast, IDS + 1, max_new_tokens=3))
        with pytest.raises(RuntimeError, match="another batch was begun"):
            next(first)

    def test_a_model_that_was_moved_is_recorded_anew(self):
        model = CausalLM(config())
        fast = CompiledDecoder(model, max_len=16)
        generate(fast, IDS, max_new_tokens=1)
        recorded = fast.cache
        generate(fast, IDS, max_new_tokens=1)
        assert fast.cache is recorded
        model.double()
        assert torch.equal(
            generate(fast, IDS, max_new_tokens=3), generate(model, IDS, max_new_tokens=3)
        )
        assert fast.cache is not recorded

    def test_what_does_not_fit_is_refused(self):
        model = CausalLM(config())
        with pytest.raises(ValueError, match="max_len=25 must be at most that of the model, 24"):
            CompiledDecoder(model, max_len=25)
        fast = CompiledDecoder(model, max_len=8)
        with pytest.raises(ValueError, match="max_new_tokens=6 after a prompt of 4 tokens"):
            generate(fast, IDS, max_new_tokens=6)

    def test_sampling_and_ends_work_as_they_do_plainly(self):
        torch.manual_seed(0)
        model = CausalLM(config(n_layers=1))
        options = {"sampling": Sampling(top_k=5, repetition_penalty=1.2), "eos_id": 3}
        results = []
        for decoder in (model, CompiledDecoder(model, max_len=16)):
            generator = torch.Generator().manual_seed(1)
            results.append(generate(decoder, IDS, max_new_tokens=1, generator=generator, **options))
        assert torch.equal(*results)


IDS = torch.tensor([[5, 7, 9, 2]])


def test_a_step_reads_only_what_is_new():
    model = CausalLM(config()).eval()
    with generating(model), torch.no_grad():
        step = DecodingStep(model, IDS, max_new_tokens=3)
        step(IDS)
        longer = torch.cat((IDS, IDS[:, :1]), dim=1)
        torch.testing.assert_close(step(longer), model(longer)[:, -1])
        assert step.cache.length == 5


def test_autocast_keeps_the_stream_in_bfloat16_through_every_norm():
    for norm in ("layer", "rms"):
        model = CausalLM(config(norm=norm, norm_position="pre")).eval()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert model.decoder(IDS).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.float16), torch.no_grad():
            assert model.decoder(IDS).dtype == torch.float32
