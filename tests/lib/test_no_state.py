"""Nothing is kept on a model between two calls, and no argument is written to."""

import copy
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tiny_models import LLAMA, VOCAB, attentions, make, random_ids, real_tokens, tiny
from torch import nn
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.testing import assert_close

from transformer_lib.core.eval_mode import evaluating
from transformer_lib.core.eval_twin import Twin
from transformer_lib.generation.beam_search import beam_search
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.attention import MultiHeadAttention, attention
from transformer_lib.layers.build_parts import Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache, LayerCache
from transformer_lib.layers.masks import padding_mask
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.tracing.watch import attention_maps, hidden_states, trace
from transformer_lib.training.data import TextWindows
from transformer_lib.training.loop import evaluate, train
from transformer_lib.training.recipes import Recipe

PROMPT = random_ids(2, 3)


def windows():
    return TextWindows(torch.arange(200) % VOCAB, length=12, batch_size=4, seed=1)


def learn(model):
    recipe = Recipe(steps=6, learning_rate=0.02, validate_every=3, log_every=1)
    options = {"validation": windows(), "progress": False, "device": "cpu"}
    rows = train(model, windows(), recipe, **options)
    return rows, list(model.parameters())


# What looks at a model in a notebook, where the iterator of the last cell is still alive.
OBSERVERS = {
    "train": learn,
    "evaluate": lambda model: evaluate(model, windows()),
    "trace": lambda model: str(trace(model, PROMPT)),
    "attention_maps": lambda model: attention_maps(model, PROMPT),
    "hidden_states": lambda model: hidden_states(model, PROMPT),
    "forward in training": lambda model: model(PROMPT),
    "forward": lambda model: model.eval()(PROMPT),
    "generate": lambda model: generate(model, PROMPT, max_new_tokens=5),
}


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_open_stream_changes_nothing_that_others_see(observer, changed):
    model = make(CausalLM, tiny(**LLAMA)).float().train()
    twin, look = copy.deepcopy(model), OBSERVERS[observer]
    tokens = stream(model, PROMPT, max_new_tokens=5)
    next(tokens)
    if changed:  # the weights that the stream began with are no longer those of the model
        for one in (model, twin):
            with torch.no_grad():
                for weight in one.parameters():
                    weight.mul_(1.1)
    found = []
    for one in (model, twin):
        torch.manual_seed(0)
        found.append(look(one))
    if isinstance(found[0], str):
        assert found[0] == found[1]
    else:
        assert_close(found[0], found[1], rtol=0, atol=0)
    assert len(list(tokens)) == 4


def test_a_stream_that_was_dropped_leaves_nothing_behind():
    model = make(CausalLM, tiny()).train()
    model.decoder.stack.blocks[0].eval()
    before = [dict(vars(part)) for part in model.modules()]
    tokens = stream(model, PROMPT, max_new_tokens=5)
    next(tokens)
    assert [dict(vars(part)) for part in model.modules()] == before
    del tokens
    assert [dict(vars(part)) for part in model.modules()] == before


def test_interleaved_streams_each_give_what_they_give_alone():
    model = make(CausalLM, tiny()).train()  # its dropout would be seen at once
    prompts = [PROMPT, PROMPT + 1 - 2 * (PROMPT > 5), PROMPT.flip(1)]
    alone = [[t.tolist() for t in stream(model, p, max_new_tokens=n + 4)] for n, p in
             enumerate(prompts)]  # fmt: skip
    streams = [stream(model, p, max_new_tokens=n + 4) for n, p in enumerate(prompts)]
    found = [[] for _ in streams]
    for _ in range(6):  # they end at different times
        for tokens, one in zip(found, streams, strict=True):
            tokens.extend(token.tolist() for token in [next(one, None)] if token is not None)
    assert found == alone
    assert model.training


def test_whoever_has_control_sees_each_module_in_its_own_mode():
    model = make(CausalLM, tiny()).train()
    model.decoder.embedding.eval()
    modes = [part.training for part in model.modules()]
    inside, seen = [], []
    model.output.register_forward_pre_hook(
        lambda *_: inside.append(any(part.training for part in model.modules()))
    )

    def look(_):
        seen.append(([part.training for part in model.modules()], torch.is_grad_enabled()))

    def never(new):
        look(new)
        return torch.zeros(len(new), dtype=torch.bool)

    generate(model, PROMPT, max_new_tokens=3, on_token=look, stop=never)
    for _ in stream(model, PROMPT, max_new_tokens=3):
        look(None)
    beam_search(model, PROMPT, n_beams=2, max_new_tokens=3)
    look(None)
    assert inside == [False] * 9
    assert seen == [(modes, True)] * 10


@pytest.mark.parametrize("run", [generate, partial(beam_search, n_beams=2)])
def test_modes_come_back_if_a_step_fails(run):
    model = make(CausalLM, tiny()).train()
    model.decoder.embedding.eval()
    modes = [part.training for part in model.modules()]
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    model.decoder.stack.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(model, PROMPT, max_new_tokens=5)
    assert [part.training for part in model.modules()] == modes


def test_weights_that_change_during_a_stream_are_used_from_the_next_token_on():
    model = make(CausalLM, tiny())
    by_hand, cache, ids = [], KeyValueCache(2, 24), PROMPT
    twin = copy.deepcopy(model)
    tokens, found = stream(model, PROMPT, max_new_tokens=6), []
    with torch.no_grad():
        for n in range(6):
            if n == 2:  # keys and values of earlier tokens stay as they are
                for weight in (*model.parameters(), *twin.parameters()):
                    weight.mul_(-1.3)
            found.append(next(tokens))
            new = ids if n == 0 else by_hand[-1][:, None]
            by_hand.append(twin(new, cache=cache)[:, -1].argmax(dim=-1))
    assert [t.tolist() for t in found] == [t.tolist() for t in by_hand]
    torch.manual_seed(0)
    assert by_hand[2:] != [t.tolist() for t in stream(make(CausalLM, tiny()), PROMPT,
                                                      max_new_tokens=6)][2:]  # fmt: skip


def test_a_model_that_brings_its_own_forward_pass_generates_with_it():
    class Upside(CausalLM):
        def forward(self, ids, mask=None, **options):
            return -super().forward(ids, mask, **options)

    model = make(CausalLM, tiny())
    upside = Upside(tiny()).double().eval()
    upside.load_state_dict(model.state_dict())
    calls = []
    hooked = copy.deepcopy(model)
    hooked.register_forward_hook(lambda _module, _inputs, logits: calls.append(1) or -logits)
    replaced = copy.deepcopy(model)
    replaced.forward = lambda *inputs, **options: -model(*inputs, **options)
    ids = PROMPT
    with torch.no_grad():
        for _ in range(4):
            ids = torch.cat((ids, model(ids)[:, -1].argmin(dim=-1, keepdim=True)), dim=1)
    for other in (upside, hooked, replaced):
        for use_cache in (True, False):
            found = generate(other, PROMPT, max_new_tokens=4, use_cache=use_cache)
            assert torch.equal(found, ids), (type(other), use_cache)
    assert len(calls) == 8


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_encoder_decoder_with_its_own_forward_pass_is_refused():
    class Louder(Seq2SeqLM):
        def forward(self, *inputs):
            return 2 * super().forward(*inputs)

    with pytest.raises(TypeError, match=r"^model is a Louder, whose own forward would not be call"):
        generate(make(Louder, tiny()), PROMPT, source=PROMPT, max_new_tokens=2)


# Arguments


def arguments(kind, seed, n_prompt=4):
    lengths = (n_prompt, 2) if seed % 2 else (1, n_prompt)
    given = {
        "prompt": random_ids(2, n_prompt, seed=seed),
        "prompt_mask": real_tokens(lengths, n_prompt, "left"),
    }
    if kind is Seq2SeqLM:
        given["source"] = random_ids(2, 6, seed=seed + 5)
        given["source_mask"] = padding_mask(torch.tensor([6 - seed % 2, 3 + seed % 2]), 6)
    return given


WAYS = {
    "generate": generate,
    "generate, no cache": partial(generate, use_cache=False),
    "generate, penalty": partial(
        generate, repetition_penalty=1.3, top_k=5, eos_id=[3, 4], stop=[[5, 6]]
    ),
    "stream": lambda *args, **options: list(stream(*args, **options)),
    "beam_search": partial(beam_search, n_beams=3, eos_id=3),
    "beam_search, one beam": partial(beam_search, n_beams=1),
    "compiled": generate,
    "compiled, full": generate,
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM])
@pytest.mark.parametrize("way", WAYS)
def test_no_argument_is_written_to(way, kind, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = make(kind, tiny(n_layers=1))
    n_new = 1 if "full" in way else 3
    if "compiled" in way:
        model = CompiledDecoder(model, max_len=4 if "full" in way else 12)
    given = [arguments(kind, seed) for seed in (0, 1)]
    copies = copy.deepcopy(given)
    for inputs in (*given, given[0]):
        WAYS[way](model, max_new_tokens=n_new, **inputs)
        for ours, theirs in zip(given, copies, strict=True):
            for name, tensor in ours.items():
                assert torch.equal(tensor, theirs[name]), name


@pytest.mark.usefixtures("fresh_compiler")
def test_scores_that_a_caller_keeps_stay_as_they_were(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = make(CausalLM, tiny(n_layers=1))
    with torch.no_grad():
        step = CompiledDecoder(model, max_len=12).begin(PROMPT, 4)
        ids, kept = PROMPT, []
        for _ in range(4):
            kept.append(step(ids))
            assert_close(kept[-1], model(ids)[:, -1])
            ids = torch.cat((ids, PROMPT[:, :1]), dim=1)
        for n, scores in enumerate(kept):
            assert_close(scores, model(ids[:, : 3 + n])[:, -1])


# Whoever listens to a projection, or changes its weights, is heard on every path


def count_with(register):
    def listen(layer, seen):
        handle = getattr(layer, register)(lambda *_: seen.append(1))
        return handle.remove

    return listen


def count_everywhere(register):
    def listen(layer, seen):
        def note(module, *_):
            if module is layer:
                seen.append(1)

        return getattr(all_modules, register)(note).remove

    return listen


def replace_forward(layer, seen):
    old = layer.forward

    def forward(x):
        seen.append(1)
        return old(x)

    layer.forward = forward
    return lambda: vars(layer).pop("forward")


LISTENERS = {
    "forward": count_with("register_forward_hook"),
    "forward pre": count_with("register_forward_pre_hook"),
    "backward": count_with("register_full_backward_hook"),
    "backward pre": count_with("register_full_backward_pre_hook"),
    "global forward": count_everywhere("register_module_forward_hook"),
    "global forward pre": count_everywhere("register_module_forward_pre_hook"),
    "global backward": count_everywhere("register_module_full_backward_hook"),
    "replaced": replace_forward,
}
WEIGHTS = {
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "weight norm": weight_norm,
    "spectral norm": lambda layer: spectral_norm(layer).eval(),
    "parametrized weight norm": parametrizations.weight_norm,
    "parametrized spectral norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
    "parametrized": lambda layer: nn.utils.parametrize.register_parametrization(
        layer, "weight", nn.Dropout(0.0)
    ),
}


def with_gradients(attend, x):
    result = attend(x, causal=True)
    result.sum().backward(inputs=[x, *attend.parameters()])
    return result


def without(attend, x):
    with torch.no_grad():
        return attend(x, causal=True)


def readable(attend, x):
    attend.fused = False
    result = with_gradients(attend, x)
    attend.fused = True
    return result


def cached(attend, x):
    cache = LayerCache(8)
    with torch.no_grad():
        parts = [attend(part, causal=True, cache=cache) for part in x.split((3, 1, 1), dim=1)]
    return torch.cat(parts, dim=1)


def compiled(attend, x):
    torch.compiler.reset()
    return with_gradients(torch.compile(attend, backend="eager"), x)


PATHS = (with_gradients, without, readable, cached, compiled)


def by_its_parts(attend, x):
    """What attention is, with each projection called as a module."""
    q, k, v = (
        part(x).unflatten(-1, (-1, attend.d_head)).transpose(1, 2)
        for part in (attend.query, attend.key, attend.value)
    )
    group = attend.n_heads // attend.n_kv_heads
    heads, _ = attention(
        q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1), causal=True
    )
    return attend.output(heads.transpose(1, 2).flatten(2))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_listener_on_a_projection_is_called_on_every_path(listener, path):
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    if "backward" in listener and path in (without, cached):
        pytest.skip("nothing goes backward there")
    for name in ("query",) if path is compiled else ("query", "key", "value"):
        attend, seen = make(MultiHeadAttention, 16, 4, 2), []
        stop = LISTENERS[listener](getattr(attend, name), seen)
        try:
            found = path(attend, x)
        finally:
            stop()
        assert len(seen) == (3 if path is cached else 1), name
        assert_close(found, by_its_parts(attend, x))
        path(attend, x)
        assert len(seen) == (3 if path is cached else 1), "it was removed"


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_are_made_anew_in_each_call_are_used_on_every_path(kind, path):
    x = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    attend = make(MultiHeadAttention, 16, 4, 2)
    for layer in (attend.query, attend.value):
        WEIGHTS[kind](layer)
    for _ in range(3):  # as updates would, or new weights that are loaded
        assert_close(path(attend, x), by_its_parts(attend, x))
        with torch.no_grad():
            for weight in attend.parameters():
                weight.mul_(1.5)


# A compiled decoder, between two calls


def an_optimizer_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    model.train()
    model(PROMPT).square().sum().backward()
    optimizer.step()


def a_new_state(model):
    model.load_state_dict(make(CausalLM, model.config, seed=7).state_dict())


def a_new_state_in_its_place(model):
    model.load_state_dict(make(CausalLM, model.config, seed=7).state_dict(), assign=True)


def a_hook(model):
    model.decoder.stack.blocks[0].register_forward_hook(lambda _module, _inputs, out: -3 * out)


def a_hook_on_the_model(model):
    model.register_forward_hook(lambda _module, _inputs, out: -out)


def a_pruned_layer(model):
    for block in model.decoder.stack.blocks:
        prune.l1_unstructured(block.attention.value, "weight", 0.9)
        prune.l1_unstructured(block.feed_forward.down, "weight", 0.9)


def a_parametrized_layer(model):
    for block in model.decoder.stack.blocks:
        parametrizations.weight_norm(block.attention.value)
        with torch.no_grad():
            block.attention.value.parametrizations.weight.original0.mul_(-3)


def a_replaced_forward(model):
    old = model.output.forward
    model.output.forward = lambda x: -old(x)


def a_new_layer(model):
    torch.manual_seed(3)
    model.decoder.stack.blocks[0].feed_forward.down = nn.Linear(12, 16).double()


def another_activation(model):
    for block in model.decoder.stack.blocks:
        block.feed_forward.activation = torch.cos


CHANGES = (
    an_optimizer_step, a_new_state, a_new_state_in_its_place, a_hook, a_hook_on_the_model,
    a_pruned_layer, a_parametrized_layer, a_replaced_forward, a_new_layer, another_activation,
)  # fmt: skip


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("change", CHANGES)
def test_a_compiled_decoder_sees_what_happened_since_its_last_call(change, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = make(CausalLM, tiny(n_layers=1, position="rope", n_kv_heads=2))
    fast, options = CompiledDecoder(model, max_len=20), {"max_new_tokens": 8}
    before = generate(fast, PROMPT, **options)
    assert torch.equal(before, generate(model, PROMPT, use_cache=False, **options))
    change(model)
    modes = [part.training for part in model.modules()]
    expected = generate(model, PROMPT, use_cache=False, **options)
    assert not torch.equal(expected, before), "the change is too small to be seen"
    for _ in range(2):
        assert torch.equal(generate(fast, PROMPT, **options), expected)
    assert [part.training for part in model.modules()] == modes


@pytest.mark.usefixtures("fresh_compiler")
def test_a_hook_is_heard_in_the_middle_of_a_compiled_stream_and_not_afterwards(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model, seen = make(CausalLM, tiny(n_layers=1)), []
    plain = generate(model, PROMPT, max_new_tokens=8)[:, 3:]
    tokens = stream(CompiledDecoder(model, max_len=20), PROMPT, max_new_tokens=8)
    found = [next(tokens), next(tokens)]
    with model.output.register_forward_hook(lambda *_: seen.append(1)):
        found += [next(tokens), next(tokens)]
    found += list(tokens)
    assert len(seen) == 2
    assert torch.equal(torch.stack(found, dim=1), plain)


def test_a_model_in_training_generates_as_if_it_were_not():
    model = make(CausalLM, tiny()).train()
    found = generate(model, PROMPT, max_new_tokens=6)
    assert torch.equal(found, generate(model.eval(), PROMPT, max_new_tokens=6))


def test_attention_layers_have_no_attribute_of_their_own_for_generation():
    model = make(CausalLM, tiny())
    with torch.no_grad():
        DecodingStep(model, PROMPT, 2)(PROMPT)
    allowed = {"d_model", "n_heads", "n_kv_heads", "d_head", "scale", "dropout", "pairing"}
    for layer in attentions(model):
        assert {n for n in vars(layer) if not n.startswith("_")} - {"training"} == allowed


# Threads


class OwnNetwork(nn.Module):
    """A part of somebody's own, with a mode that has to be right."""

    def __init__(self, config):
        super().__init__()
        self.layer, self.dropout = nn.Linear(config.d_model, config.d_model), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(self.layer(x))


def hooked():
    model = make(CausalLM, tiny())
    model.decoder.stack.blocks[1].register_forward_hook(lambda *_: None)
    return model


SHARED = {
    "of the library": lambda: make(CausalLM, tiny()),
    "with a part of one's own": lambda: make(
        CausalLM, tiny(), parts=Parts(feed_forward=OwnNetwork)
    ),
    "with a hook": hooked,
}


@pytest.fixture
def many_switches():
    """Let threads take turns often, and none of them start others."""
    before = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-4)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture
def dropouts(monkeypatch):
    """In which mode each thread has called dropout."""
    seen, dropout = defaultdict(list), F.dropout

    def note(x, p=0.5, training=True, inplace=False):
        seen[threading.get_ident()].append(training)
        return dropout(x, p, training, inplace)

    monkeypatch.setattr(F, "dropout", note)
    return seen


def passes_until(done, model, dropouts):
    """Passes as in training, again and again; for each: in which modes, or why it was refused."""
    passes, mine = [], dropouts[threading.get_ident()]
    while not (done.is_set() and passes):
        mine.clear()
        try:
            model(PROMPT).sum().backward()
            passes.append(set(mine))
        except RuntimeError as error:
            passes.append(str(error))
    return passes


@pytest.mark.usefixtures("many_switches", "unchecked_shapes")
@pytest.mark.parametrize(
    ("kind", "training", "beside"),
    [("of the library", mode, beside) for mode in (False, True) for beside in (False, True)]
    + [(kind, True, beside) for kind in list(SHARED)[1:] for beside in (False, True)],
)
def test_threads_that_share_a_model_are_right_or_refused(kind, training, beside, dropouts):
    model = SHARED[kind]()
    prompts = [random_ids(2, 3, seed=n) for n in range(16)]
    alone = [generate(model, prompt, max_new_tokens=3) for prompt in prompts]
    model.train(training)
    done, start = threading.Event(), threading.Barrier(16)

    def write(n):
        start.wait()
        found = []
        for _ in range(4):
            try:
                found.append(torch.equal(generate(model, prompts[n], max_new_tokens=3), alone[n]))
            except RuntimeError as error:
                found.append(str(error))
        return found

    with ThreadPoolExecutor(17) as pool:
        trained = pool.submit(passes_until, done, model, dropouts) if beside else None
        found = [answer for answers in pool.map(write, range(16)) for answer in answers]
        done.set()
        passes = [] if trained is None else trained.result()
    assert len(found) == 64
    refused = "model is in training mode, and another thread uses it"
    assert all(answer is True or str(answer).startswith(refused) for answer in found), found
    for modes in passes:  # as the model says, all of them, or nothing
        assert modes == {training} or str(modes).startswith("another thread generates"), modes
    if kind == "of the library" or not training:
        assert set(found) == {True}, "there is no reason to refuse any"
        assert all(modes == {training} for modes in passes)
    assert all(part.training is training for part in model.modules())


@pytest.mark.parametrize("training", [False, True])
def test_a_model_of_the_library_is_never_switched(training, monkeypatch):
    model = make(Seq2SeqLM, tiny()).train(training)
    seen, read = [], DecodingStep.read

    def look(self, *args, **options):
        seen.append({part.training for part in model.modules()})
        return read(self, *args, **options)

    monkeypatch.setattr(DecodingStep, "read", look)
    generate(model, PROMPT, source=PROMPT, max_new_tokens=3)
    beam_search(model, PROMPT, source=PROMPT, n_beams=2, max_new_tokens=3)
    assert seen == [{training}] * 6


def test_whoever_is_inside_a_model_is_not_disturbed():
    """One thread trains, and waits in the middle of a pass; the other one is refused meanwhile."""
    model = SHARED["with a part of one's own"]().train()
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        go_on.wait()

    with ThreadPoolExecutor(1) as pool:
        handle = model.output.register_forward_pre_hook(wait)
        trained = pool.submit(model, PROMPT)
        inside.wait()
        handle.remove()
        modes = [part.training for part in model.modules()]
        try:
            for judge in (generate_some, lambda model: evaluate(model, windows())):
                with pytest.raises(RuntimeError, match=r"call model\.eval\(\) first, or give"):
                    judge(model)
        finally:
            go_on.set()
        trained.result()
    assert [part.training for part in model.modules()] == modes
    assert generate_some(model).shape == (2, 5)


def generate_some(model):
    return generate(model, PROMPT, max_new_tokens=2)


def test_whoever_comes_meanwhile_is_refused_and_a_thread_may_go_on_by_itself():
    model = SHARED["with a part of one's own"]().train()
    with ThreadPoolExecutor(1) as pool, evaluating(model), torch.no_grad():
        assert_close(model(PROMPT), model(PROMPT))
        generate_some(model)
        for call in (model, generate_some, lambda ids: evaluate(model, windows())):
            given = model if call is generate_some else PROMPT
            with pytest.raises(RuntimeError, match=r"call model\.eval\(\)"):
                pool.submit(call, given).result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(generate_some, model).result().shape == (2, 5)


def test_who_has_switched_a_part_keeps_it_when_the_whole_is_put_back():
    model = SHARED["with a part of one's own"]().train()
    part = model.decoder.stack.blocks[0]
    with ThreadPoolExecutor(1) as pool, evaluating(part):
        with evaluating(model):
            pass
        with pytest.raises(RuntimeError, match="another thread generates"):
            pool.submit(part, torch.zeros(1, 2, model.config.d_model, dtype=torch.double)).result()


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("run", [generate, partial(beam_search, n_beams=2)])
def test_the_best_tokens_need_no_random_numbers(run, kind):
    model = SHARED[kind]().train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(model, PROMPT, max_new_tokens=4)
    assert torch.equal(torch.get_rng_state(), before)


def a_setting(model):
    for layer in attentions(model):
        layer.scale = 3.0


def test_a_twin_has_what_its_model_has_now():
    model = make(CausalLM, tiny()).train()
    twin, layer = Twin(model), attentions(model)[0]
    for fused in (False, True):
        if fused:
            del layer.fused  # as its class says, again
        else:
            layer.fused = False
        (found,) = {attentions(twin.refreshed())[0].fused}
        assert found is fused
    assert model.training


BETWEEN = (*CHANGES[1:], a_setting)


@pytest.mark.parametrize("change", BETWEEN)
def test_a_model_in_training_may_change_between_two_tokens(change):
    """What reads the tokens is a twin of it, which has to keep up."""
    found = []
    for training in (True, False):
        model = make(CausalLM, tiny(position="rope", n_kv_heads=2)).train(training)
        tokens = stream(model, PROMPT, max_new_tokens=8)
        before = [next(tokens) for _ in range(3)]
        change(model)
        found.append(torch.stack(before + list(tokens), dim=1))
    assert torch.equal(*found)
    plain = make(CausalLM, tiny(position="rope", n_kv_heads=2))
    assert not torch.equal(found[0], torch.stack(list(stream(plain, PROMPT, max_new_tokens=8)), 1))
