"""Caches and compiled steps give the answers of the plain ones."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.eval_mode import evaluating
from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder, _set_biases_apart
from transformer_lib.generation.fast.cuda_graph import shared_copy
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.caches.static_kv_cache import StaticCache, StaticLayerCache
from transformer_lib.models.blocks import Stack
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM

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
        cache = StaticCache(2, max_len=16)
        with torch.no_grad():
            parts = [model(new, cache=cache) for new in (ids[:, :4], ids[:, 4:5], ids[:, 5:])]
            torch.testing.assert_close(torch.cat(parts, dim=1), model(ids))
        assert cache.length == 9

    def test_hides_padding_at_the_start(self):
        torch.manual_seed(0)
        model = CausalLM(config(position="rope")).eval()
        ids = torch.randint(30, (1, 6))
        padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), ids), dim=1)
        real = torch.tensor([[False] * 3 + [True] * 13])[:, None, None]
        cache = StaticCache(2, max_len=16)
        with torch.no_grad():
            positions = (torch.arange(9)[None] - 3).clamp(min=0)
            logits = model(padded, real, positions=positions, cache=cache)
            torch.testing.assert_close(logits[:, 3:], model(ids))
        assert torch.isfinite(logits).all()

    def test_more_than_it_holds_is_refused_before_anything_is_written(self):
        torch.manual_seed(0)
        model, ids = CausalLM(config()).eval(), torch.randint(30, (1, 6))
        cache = StaticCache(2, max_len=4)
        with torch.no_grad():
            model(ids[:, :3], cache=cache)
            wanted = r"the cache holds max_len=4 positions; 3 are in use and 2 more were given"
            with pytest.raises(ValueError, match=wanted):
                model(ids[:, 3:5], cache=cache)
            torch.testing.assert_close(model(ids[:, 3:4], cache=cache), model(ids[:, :4])[:, 3:])

    @pytest.mark.usefixtures("fresh_compiler")
    def test_steps_that_were_compiled_by_hand_are_counted_too(self):
        torch.manual_seed(0)
        model, ids = CausalLM(config(n_layers=1)).eval(), torch.randint(30, (1, 5))
        cache = StaticCache(1, max_len=4)
        fast = torch.compile(model, backend="eager")
        with torch.no_grad():
            for n in range(3):
                fast(ids[:, n : n + 1], cache=cache)
            assert cache.length == 3
            torch.testing.assert_close(model(ids[:, 3:4], cache=cache), model(ids[:, :4])[:, 3:])
            with pytest.raises(ValueError, match="4 are in use and 1 more were given"):
                model(ids[:, 4:], cache=cache)

    def test_its_memory_is_where_it_was(self):
        stack = Stack(config(), causal=True)
        cache = StaticCache(2, max_len=8)
        with torch.no_grad():
            stack(torch.zeros(1, 2, 16), cache=cache)
            before = [layer._stored[0].data_ptr() for layer in cache.layers]
            stack(torch.zeros(1, 2, 16), cache=cache)
        assert [layer._stored[0].data_ptr() for layer in cache.layers] == before
        assert cache.n_bytes == 2 * 2 * 8 * 8 * 4  # layers, k and v, places, heads * Dk, bytes

    def test_a_layer_knows_its_length_as_every_layer_cache_does(self):
        cache = StaticCache(2, max_len=8)
        with torch.no_grad():
            Stack(config(), causal=True)(torch.zeros(1, 3, 16), cache=cache)
        assert [layer.length for layer in cache.layers] == [3, 3]
        layer = StaticLayerCache(8, filled=torch.tensor(2))
        assert layer.length == 2
        layer.length = 1
        assert int(layer.filled) == 1

    def test_reset_keeps_the_buffers_of_the_memory_too_if_they_fit(self):
        torch.manual_seed(0)
        decoder, cache = Seq2SeqLM(config()).eval().body.decoder, StaticCache(2, max_len=8)
        ids, buffers = torch.randint(30, (2, 3)), []
        with torch.no_grad():
            for n_sources in (4, 4, 6):
                memory = torch.randn(2, n_sources, 16)
                found = decoder(ids, memory, cache=cache)
                torch.testing.assert_close(found, decoder(ids, memory))
                assert [layer.length for layer in cache.memory_layers] == [n_sources] * 2
                every = [*cache.layers, *cache.memory_layers]
                buffers.append([stored for layer in every for stored in layer._stored])
                cache.reset()
        first, second, third = ([id(stored) for stored in found] for found in buffers)
        assert second == first
        assert third[:4] == first[:4]  # of self-attention: two layers, keys and values

    @pytest.mark.parametrize("position", POSITIONS)
    def test_a_model_takes_no_more_tokens_than_it_has_places_for(self, position):
        model, cache = CausalLM(config(position=position, max_len=8)).eval(), StaticCache(2, 64)
        with torch.no_grad():
            model(IDS, cache=cache)
            model(IDS, cache=cache)
            with pytest.raises(ValueError, match=r"^ids has 1 tokens after 8 in the cache; the mo"):
                model(IDS[:, :1], cache=cache)
        with pytest.raises(ValueError, match=r"^max_new_tokens=6 after a prompt of 4 tokens: the"):
            generate(model, IDS, max_new_tokens=6, cache=StaticCache(2, 64))
        assert generate(model, IDS, max_new_tokens=5, cache=StaticCache(2, 64)).shape == (1, 9)

    @pytest.mark.usefixtures("fresh_compiler")
    def test_a_compiled_step_that_cannot_count_refuses_to_go_on_too(self):
        model, cache = CausalLM(config(n_layers=1, max_len=4)).eval(), StaticCache(1, 64)
        fast = torch.compile(model, backend="eager")
        with torch.no_grad(), pytest.raises(ValueError, match="max_len"):
            [fast(IDS[:, :1], cache=cache) for _ in range(5)]

    def test_more_than_it_holds_is_refused(self):
        wanted = "the cache holds max_len=4 positions; 0 are in use and 5 more were given"
        with pytest.raises(ValueError, match=wanted):
            Stack(config(), causal=True)(torch.zeros(1, 5, 16), cache=StaticCache(2, max_len=4))


@pytest.mark.parametrize("kind", [KeyValueCache, StaticCache])
class TestRewind:
    @pytest.mark.parametrize("position", POSITIONS)
    def test_what_comes_next_is_read_as_on_a_fresh_cache(self, kind, position):
        torch.manual_seed(0)
        model = CausalLM(config(position=position)).eval()
        ids, others = torch.randint(30, (2, 2, 7))
        cache = kind(2, max_len=12)
        with torch.no_grad():
            model(ids, cache=cache)
            for length in (7, 5, 3, 0):
                cache.rewind(length)
                assert cache.length == length
                mixed = torch.cat((ids[:, :length], others[:, length:]), dim=1)
                if length < 7:
                    found = model(others[:, length:], cache=cache)
                    torch.testing.assert_close(found, model(mixed)[:, length:])
                    cache.rewind(length)
                    model(ids[:, length:], cache=cache)

    def test_what_the_encoder_said_is_kept_until_the_cache_is_reset(self, kind):
        torch.manual_seed(0)
        model = Seq2SeqLM(config()).eval().body
        ids, sources = torch.randint(30, (2, 5)), torch.randint(30, (2, 2, 4))
        with torch.no_grad():
            memory, other = (model.encoder(source) for source in sources)
            cache = kind(2, max_len=8)
            model.decoder(ids, memory, cache=cache)
            cache.rewind(0)
            with pytest.raises(ValueError, match="memory is another one than that whose keys"):
                model.decoder(ids, other, cache=cache)
            cache.rewind(0)
            found = model.decoder(ids, memory.clone(), cache=cache)
            torch.testing.assert_close(found, model.decoder(ids, memory))
            cache.reset()
            found = model.decoder(ids, other, cache=cache)
            torch.testing.assert_close(found, model.decoder(ids, other))

    def test_a_call_that_failed_halfway_can_be_taken_back(self, kind):
        torch.manual_seed(0)
        model, ids = CausalLM(config()).eval(), torch.randint(30, (1, 6))
        cache, second = kind(2, max_len=8), model.decoder.stack.blocks[1]
        with torch.no_grad():
            model(ids[:, :4], cache=cache)
            with (
                second.register_forward_pre_hook(lambda *_: 1 / 0),
                pytest.raises(ZeroDivisionError),
            ):
                model(ids[:, 4:], cache=cache)
            cache.rewind(4)
            torch.testing.assert_close(model(ids[:, 4:], cache=cache), model(ids)[:, 4:])


def test_a_cache_that_was_reset_takes_a_batch_of_another_size():
    torch.manual_seed(0)
    model, cache = Seq2SeqLM(config()).eval().body, KeyValueCache(2, max_len=8)
    with torch.no_grad():
        for size, length in ((2, 4), (3, 6), (1, 3)):
            ids, memory = torch.randint(30, (size, 5)), torch.randn(size, length, 16)
            found = model.decoder(ids, memory, cache=cache)
            torch.testing.assert_close(found, model.decoder(ids, memory))
            cache.reset()
    assert (cache.length, cache.n_bytes) == (0, 0)


@pytest.mark.parametrize("kind", [KeyValueCache, StaticCache])
class TestCacheOfTheCaller:
    @pytest.mark.parametrize("position", POSITIONS)
    def test_padding_at_the_start_is_hidden(self, kind, position):
        torch.manual_seed(0)
        model = CausalLM(config(position=position)).eval()
        inputs = {"prompt": torch.randint(30, (2, 5)), "max_new_tokens": 6}
        inputs["prompt_mask"] = torch.tensor([[False] * 3 + [True] * 2, [True] * 5])
        wanted = generate(model, use_cache=False, **inputs)
        assert torch.equal(generate(model, cache=kind(2, 16), **inputs), wanted)
        assert torch.equal(torch.stack(list(stream(model, cache=kind(2, 16), **inputs)), 1),
                           wanted[:, 5:])  # fmt: skip

    @pytest.mark.parametrize("n_read", [1, 4, 5])
    def test_what_it_holds_of_the_prompt_may_be_all_of_it(self, kind, n_read):
        torch.manual_seed(0)
        model, prompt = CausalLM(config()).eval(), torch.randint(30, (2, 5))
        cache = kind(2, 16)
        with torch.no_grad():
            model(prompt[:, :n_read], cache=cache)
        found = generate(model, prompt, max_new_tokens=6, cache=cache)
        assert torch.equal(found, generate(model, prompt, max_new_tokens=6, use_cache=False))
        assert cache.length == 10

    def test_more_than_the_prompt_is_refused(self, kind):
        model, cache = CausalLM(config()).eval(), kind(2, 16)
        with torch.no_grad():
            model(IDS, cache=cache)
        wanted = "^cache holds 4 tokens, more than a prompt of 3 tokens: begin the prompt with all "
        with pytest.raises(ValueError, match=wanted):
            generate(model, IDS[:, :3], max_new_tokens=2, cache=cache)


def by_torch_compile(model):
    blocks = model.decoder.stack.blocks
    blocks[0] = torch.compile(blocks[0], backend="eager")


def in_place(model):
    model.decoder.stack.blocks[0].compile(backend="eager")


def scripted(model):
    block = model.decoder.stack.blocks[0]
    block.dropout = torch.jit.script(block.dropout)
    block.feed_forward.down = torch.jit.script(block.feed_forward.down)


def _collect(*args, **options):
    tokens = torch.stack(list(stream(*args, **options)), dim=1)
    return torch.cat((args[1], tokens), dim=1)


RUNS = {
    "generate": generate,
    "stream": _collect,
    "beam_search": lambda *args, **options: beam_search(*args, n_beams=1, **options)[0][:, 0],
    "CompiledDecoder": lambda model, *args, **options: generate(
        CompiledDecoder(model, max_len=16), *args, **options
    ),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("change", [by_torch_compile, in_place, scripted])
@pytest.mark.parametrize("run", RUNS)
def test_a_model_whose_parts_were_compiled_generates_as_before(run, change, training, monkeypatch):
    torch.manual_seed(0)
    model = CausalLM(config(dropout=0.5, attention_dropout=0.5)).train(training)
    wanted = generate(model, IDS, max_new_tokens=8, use_cache=False)
    change(model)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    for _ in range(2):
        assert torch.equal(RUNS[run](model, IDS, max_new_tokens=8), wanted)
    assert all(part.training is training for part in model.modules())


class TestMemory:
    """Cross-attention keeps the keys of one memory, and notices another one."""

    @pytest.mark.usefixtures("fresh_compiler")
    @pytest.mark.parametrize("compiled", [False, True])
    def test_another_memory_of_the_same_shape_is_refused(self, compiled):
        torch.manual_seed(0)
        model = Seq2SeqLM(config(n_layers=1)).eval().body.decoder
        ids, memory = torch.randint(30, (2, 3)), torch.randn(2, 4, 16)
        cache = StaticCache(1, max_len=8)
        step = torch.compile(model, backend="eager") if compiled else model
        with torch.no_grad():
            model(ids, memory, cache=cache)
            for given in (memory, memory, memory.clone()):
                step(ids[:, :1], given, cache=cache)
            with pytest.raises(ValueError, match="memory is another one than that whose keys"):
                step(ids[:, :1], memory + 1, cache=cache)

    @pytest.mark.usefixtures("fresh_compiler")
    def test_a_step_with_the_same_memory_is_one_graph(self):
        model = Seq2SeqLM(config(n_layers=1)).eval().body.decoder
        ids, memory = torch.randint(30, (2, 3)), torch.randn(2, 4, 16)
        cache = StaticCache(1, max_len=8)
        with torch.no_grad():
            model(ids, memory, cache=cache)
            step = torch.compile(model, backend="eager", fullgraph=True)
            found = [step(ids[:, n : n + 1], memory, cache=cache) for n in range(3)]
            wanted = model(torch.cat((ids, ids), dim=1), memory)[:, 3:]
            torch.testing.assert_close(torch.cat(found, dim=1), wanted)

    def test_a_memory_that_was_changed_in_place_is_refused(self):
        model = Seq2SeqLM(config()).eval().body.decoder
        ids, memory = torch.randint(30, (2, 3)), torch.randn(2, 4, 16)
        cache = KeyValueCache(2, max_len=8)
        with torch.no_grad():
            model(ids, memory, cache=cache)
            before = memory.clone()
            memory.mul_(2)
            for given in (memory, before):  # there is nothing left to compare with
                with pytest.raises(ValueError, match="memory was changed in place since its keys"):
                    model(ids[:, :1], given, cache=cache)
                cache.rewind(3)  # the first layer had stored its own keys by then

    def test_inference_mode_has_no_versions_and_works(self):
        model = Seq2SeqLM(config()).eval()
        ids = torch.randint(30, (2, 4))
        with torch.inference_mode():
            found = generate(model, ids[:, :1], source=ids, max_new_tokens=4)
        assert torch.equal(found, generate(model, ids[:, :1], source=ids, max_new_tokens=4))


class TestProjections:
    """Three layers, each called once, whatever stands there and whoever listens."""

    def test_a_layer_that_somebody_put_in_is_used(self):
        attend = MultiHeadAttention(16, 4)
        x = torch.randn(1, 3, 16)
        before = attend(x)

        class Doubled(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        doubled = Doubled(16, 16)
        doubled.load_state_dict(attend.value.state_dict())
        attend.value = doubled
        assert not torch.allclose(attend(x), before)

    def test_a_hook_on_a_projection_is_called(self):
        attend, seen = MultiHeadAttention(16, 4), []
        handle = attend.query.register_forward_hook(lambda *_: seen.append(1))
        attend(torch.zeros(1, 3, 16))
        assert seen == [1]
        handle.remove()
        attend(torch.zeros(1, 3, 16))
        assert seen == [1]

    def test_only_some_may_have_a_bias(self):
        attend = MultiHeadAttention(16, 4).double()
        attend.key.bias = None
        x, results = torch.randn(1, 3, 16).double(), []
        for attend.fused in (True, False):
            results.append(attend(x))
        torch.testing.assert_close(*results)


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

    def test_every_batch_size_is_compiled(self, monkeypatch):
        """PyTorch gives up on code that was compiled in eight ways; here, in two."""
        compiled = []

        def backend(graph, inputs):
            compiled.append(1)
            return graph.forward

        monkeypatch.setattr(torch, "compile", partial(torch.compile.func, backend=backend))
        model = CausalLM(config(n_layers=1))
        fast = CompiledDecoder(model, max_len=12)
        with torch._dynamo.config.patch(recompile_limit=2):
            for size in range(1, 5):
                prompt = torch.randint(30, (size, 3))
                found = generate(fast, prompt, max_new_tokens=3)
                assert torch.equal(found, generate(model, prompt, max_new_tokens=3))
                assert compiled, f"a batch of {size} was not compiled"
                compiled.clear()

    def test_two_batches_at_once_are_refused(self):
        fast = CompiledDecoder(CausalLM(config()), max_len=16)
        first = stream(fast, IDS, max_new_tokens=3)
        next(first)
        next(stream(fast, IDS + 1, max_new_tokens=3))
        with pytest.raises(RuntimeError, match="another batch was begun"):
            next(first)

    def test_a_copy_records_for_itself(self):
        model = CausalLM(config(n_layers=1))
        fast = CompiledDecoder(model, max_len=16)
        wanted = generate(fast, IDS, max_new_tokens=3)
        copied = copy.deepcopy(fast)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(-2)
        assert copied._recorded is None
        assert torch.equal(generate(copied, IDS, max_new_tokens=3), wanted)

    def test_a_model_that_was_moved_is_recorded_anew(self):
        model = CausalLM(config())
        fast = CompiledDecoder(model, max_len=16)
        generate(fast, IDS, max_new_tokens=1)
        recorded = fast._recorded.cache
        generate(fast, IDS, max_new_tokens=1)
        assert fast._recorded.cache is recorded
        model.double()
        assert torch.equal(
            generate(fast, IDS, max_new_tokens=3), generate(model, IDS, max_new_tokens=3)
        )
        assert fast._recorded.cache is not recorded

    @pytest.mark.parametrize("options", [{"use_cache": False}, {"cache": KeyValueCache(2, 8)}])
    def test_another_cache_is_refused(self, options):
        fast = CompiledDecoder(CausalLM(config()), max_len=16)
        with pytest.raises(TypeError, match="a CompiledDecoder has a cache of its own: leave out"):
            generate(fast, IDS, max_new_tokens=2, **options)

    def test_what_is_compiled_is_a_copy_with_the_weights_of_the_model(self):
        model = CausalLM(config())
        twin = shared_copy(model)
        _set_biases_apart(twin)
        query, copied = (m.decoder.stack.blocks[0].attention.query for m in (model, twin))
        assert type(query) is nn.Linear
        assert type(copied) is not nn.Linear
        assert copied.weight is query.weight
        assert copied.bias is query.bias
        assert model.training
        assert not any(part.training for part in twin.modules())
        assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}
        torch.testing.assert_close(twin(IDS), model.eval()(IDS))

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
        options = {"top_k": 5, "repetition_penalty": 1.2, "eos_id": 3}
        results = []
        for decoder in (model, CompiledDecoder(model, max_len=16)):
            generator = torch.Generator().manual_seed(1)
            results.append(generate(decoder, IDS, max_new_tokens=1, generator=generator, **options))
        assert torch.equal(*results)


IDS = torch.tensor([[5, 7, 9, 2]])


def test_a_step_reads_only_what_is_new():
    model = CausalLM(config()).eval()
    with evaluating(model), torch.no_grad():
        step = DecodingStep(model, IDS, max_new_tokens=3)
        step(IDS)
        longer = torch.cat((IDS, IDS[:, :1]), dim=1)
        torch.testing.assert_close(step(longer), model(longer)[:, -1])
        assert step.cache.length == 5


def test_autocast_to_bfloat16_rounds_the_residual_stream_and_not_the_products_alone():
    """What `Recipe.precision` says of it: a stack rounds the stream, a block by itself does not."""
    torch.manual_seed(0)
    stack = Stack(config(norm_position="pre", n_layers=24, d_model=64), causal=True).eval()
    x = torch.randn(8, 16, 64)
    with torch.no_grad():
        exact, stream_of_float32 = stack(x), x
        with torch.autocast("cpu", torch.bfloat16):
            rounded = stack(x)
            for block in stack.blocks:
                stream_of_float32 = block(stream_of_float32, causal=True)
            products_alone = stack.final_norm(stream_of_float32)
    assert (rounded.dtype, stream_of_float32.dtype) == (torch.bfloat16, torch.float32)
    errors = [(found - exact).square().mean().sqrt() for found in (rounded.float(), products_alone)]
    assert 1.2 < errors[0] / errors[1] < 4


def test_autocast_keeps_the_stream_in_bfloat16_through_every_norm():
    for norm in ("layer", "rms"):
        model = CausalLM(config(norm=norm, norm_position="pre")).eval()
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert model.decoder(IDS).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.float16), torch.no_grad():
            assert model.decoder(IDS).dtype == torch.float32
