"""Recorded steps: always the tokens of the model as it is now. Replays themselves need a GPU.

Here a step runs where it would be replayed; test_cuda.py does the same with real recordings.
"""

import gc
import threading
import weakref

import pytest
import torch
from recording_changes import BETWEEN_CALLS, BETWEEN_TOKENS, PROMPT, lively_model
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.generation.decoding_step import DecodingStep
from transformer_lib.generation.fast import cuda_graph
from transformer_lib.generation.fast.cuda_graph import (
    RecordedBatch,
    RecordedSteps,
    can_record,
    shared_copy,
)
from transformer_lib.generation.fast.decode_kernel import join_projections, use_step_kernel
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.fused_attention import kernels_for
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM

POSITIONS = ["sinusoidal", "learned", "rope", "alibi", "t5", "none"]


@pytest.fixture
def replays(monkeypatch):
    """Let steps be recorded on a CPU too; grows with every step that would be a replay."""
    seen, run = [], RecordedSteps._run_copy
    monkeypatch.setattr(cuda_graph, "can_record", lambda *_: True)
    monkeypatch.setattr(RecordedSteps, "_run_copy", lambda self: seen.append(1) or run(self))
    return seen


def by_the_book(model, prompt=PROMPT, n_new=20, **inputs):
    """Greedy, without a cache: every token from the whole sequence."""
    return generate(model, prompt, max_new_tokens=n_new, use_cache=False, **inputs)


@pytest.mark.parametrize("kind", [CausalLM, Seq2SeqLM])
@pytest.mark.parametrize("position", POSITIONS)
def test_tokens_are_those_of_the_model(position, kind, replays):
    model = lively_model(kind, position=position, n_kv_heads=1, window=5)
    inputs = {"prompt_mask": torch.tensor([[False, True, True], [True] * 3])}
    if kind is Seq2SeqLM:
        inputs["source"] = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
        inputs["source_mask"] = torch.tensor([[True] * 4, [True] * 2 + [False] * 2])[:, None, None]
    found = generate(model, PROMPT, max_new_tokens=20, **inputs)
    assert torch.equal(found, by_the_book(model, **inputs))
    assert len(replays) == 19
    if kind is CausalLM:
        assert len(set(found[:, 3:].flatten().tolist())) > 1, "too dull to tell anything"


@pytest.mark.parametrize("change", BETWEEN_CALLS)
def test_what_happens_between_two_calls_is_seen(change, replays):
    model = lively_model(position="rope")
    before = generate(model, PROMPT, max_new_tokens=20)
    assert torch.equal(before, by_the_book(model))
    change(model)
    modes = [part.training for part in model.modules()]
    expected = by_the_book(model)
    assert not torch.equal(expected, before), "the change is too small to be seen"
    for _ in range(2):
        assert torch.equal(generate(model, PROMPT, max_new_tokens=20), expected)
    assert [part.training for part in model.modules()] == modes


@pytest.mark.parametrize("change", BETWEEN_TOKENS)
def test_what_happens_between_two_tokens_is_seen(change, replays):
    results = []
    for cache in (None, KeyValueCache(2, 60)):  # a cache of one's own is used plainly
        model = lively_model(position="rope")
        tokens = stream(model, PROMPT, max_new_tokens=20, cache=cache)
        found = [next(tokens) for _ in range(6)]
        change(model)
        results.append(torch.stack(found + list(tokens), dim=1))
    assert len(replays) >= 5
    assert torch.equal(*results)
    assert not torch.equal(results[0], by_the_book(lively_model(position="rope"))[:, 3:])


def test_a_hook_that_is_gone_is_not_missed(replays):
    model, seen = lively_model(), []
    tokens = stream(model, PROMPT, max_new_tokens=12)
    found = [next(tokens), next(tokens)]
    with model.output.register_forward_hook(lambda *_: seen.append(1)):
        found += [next(tokens), next(tokens)]
    found += list(tokens)
    assert len(seen) == 2
    assert len(replays) == 9
    assert torch.equal(torch.stack(found, dim=1), by_the_book(model, n_new=12)[:, 3:])


@pytest.mark.parametrize(
    "options", [{"top_k": 5}, {"eos_id": 9}, {"repetition_penalty": 1.5}, {"temperature": 0.7}]
)
def test_whatever_chooses_the_tokens_gets_the_same_scores(options, replays):
    model, results = lively_model(), []
    for cache in (None, KeyValueCache(2, 60)):
        torch.manual_seed(0)
        results.append(generate(model, PROMPT, max_new_tokens=20, cache=cache, **options))
    assert torch.equal(*results)
    assert replays


def test_scores_and_tokens_that_a_caller_keeps_stay_as_they_were():
    model = lively_model().eval()
    steps = RecordedSteps(model, 12, torch.device("cpu"))
    kept = []
    for prompt in (PROMPT, PROMPT + 1):  # one batch after the other, in the same memory
        with torch.no_grad():
            batch = RecordedBatch(
                steps, DecodingStep(model, prompt, 4, cache=steps.cache.for_prompt())
            )
            ids = prompt
            for _ in range(4):
                kept.append((ids, batch(ids)))
                ids = torch.cat((ids, ids[:, :1]), dim=1)
            for ids, scores in kept:
                assert_close(scores, model(ids)[:, -1], rtol=1e-3, atol=1e-3)
    tokens = list(stream(model, PROMPT, max_new_tokens=6))
    copies = [x.clone() for x in tokens]
    generate(model, PROMPT + 1, max_new_tokens=6)
    assert all(torch.equal(*pair) for pair in zip(tokens, copies, strict=True))


def test_a_batch_that_was_left_behind_says_so():
    model = lively_model().eval()
    steps = RecordedSteps(model, 12, torch.device("cpu"))
    with torch.no_grad():
        first, second = (
            RecordedBatch(steps, DecodingStep(model, PROMPT, 4, cache=steps.cache.for_prompt()))
            for _ in range(2)
        )
        second(PROMPT)
        with pytest.raises(RuntimeError, match="another batch was begun before this one had ended"):
            first(PROMPT)
        with pytest.raises(RuntimeError, match="another batch was begun before this one had ended"):
            first.read_best(PROMPT, first=4, n=3)


def test_a_copy_that_fails_after_it_has_counted_its_token_leaves_the_cache_as_it_was(
    replays, monkeypatch
):
    def broken(model):
        model.output = nn.Linear(1, 1)
        return model

    monkeypatch.setattr(cuda_graph, "shared_copy", lambda model: broken(shared_copy(model)))
    model = lively_model()
    assert torch.equal(generate(model, PROMPT, max_new_tokens=20), by_the_book(model))
    assert len(replays) == 1


def test_a_copy_that_fails_is_not_used(replays, monkeypatch, caplog):
    """Such as one whose kernel cannot be compiled here; that is said, once."""
    cuda_graph._log_once.cache_clear()
    tried = []

    def broken(model):
        tried.append(1)
        for block in model.decoder.stack.blocks:
            block.feed_forward = nn.Linear(1, 1)
        return model

    monkeypatch.setattr(
        "transformer_lib.generation.fast.cuda_graph.shared_copy",
        lambda model: broken(shared_copy(model)),
    )
    model = lively_model()
    assert torch.equal(generate(model, PROMPT, max_new_tokens=20), by_the_book(model))
    assert len(tried) == 1
    assert len(replays) == 1, "it has given up after the first"
    generate(model, PROMPT, max_new_tokens=20)
    (record,) = caplog.records
    words = "decoding goes on without a copy of the model: RuntimeError: mat1 and mat2"
    assert record.getMessage().startswith(words)
    assert record.levelname == "WARNING"


def test_scores_that_are_not_numbers_are_noticed(replays):
    model, tokens = lively_model(position="learned"), []
    with torch.no_grad():
        model.decoder.embedding.positions.table.weight[6] = torch.nan
    with pytest.raises(FloatingPointError, match="of row 0 at new token 5 is nan"):
        generate(model, PROMPT, max_new_tokens=20, on_token=tokens.append)
    assert len(tokens) == 4


class TestSharedCopy:
    def test_has_the_weights_of_the_model_and_nothing_else_of_it(self):
        model = lively_model(Seq2SeqLM, dropout=0.5)
        twin = shared_copy(model)
        assert {id(x) for x in twin.parameters()} == {id(x) for x in model.parameters()}
        assert not {id(x) for x in twin.modules()} & {id(x) for x in model.modules()}
        assert model.training
        assert not any(part.training for part in twin.modules())
        twin.output = nn.Identity()
        assert not isinstance(model.output, nn.Identity)

    def test_a_part_that_comes_twice_is_one_part(self):
        body = shared_copy(lively_model(Seq2SeqLM, tie_embeddings=True)).body
        assert body.encoder.embedding.tokens is body.decoder.embedding.tokens


class OnAGpu(torch.Tensor):
    """A prompt that says it is on a GPU."""

    is_cuda, device = True, torch.device("cuda:0")


ON_A_GPU = PROMPT.as_subclass(OnAGpu)


class TestCanRecord:
    @pytest.fixture(autouse=True)
    def _as_if_there_were_a_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def test_a_model_of_this_library(self):
        assert can_record(lively_model(), ON_A_GPU, 16)
        assert can_record(lively_model(Seq2SeqLM, position="t5"), ON_A_GPU, 16)

    def test_too_few_tokens_and_a_cpu(self):
        assert not can_record(lively_model(), ON_A_GPU, 15)
        assert not can_record(lively_model(), PROMPT, 100)

    def test_a_class_that_nobody_knows(self):
        model = lively_model()

        class Counted(nn.Linear):
            def forward(self, x):
                self.calls = getattr(self, "calls", 0) + 1
                return super().forward(x)

        model.decoder.stack.blocks[0].feed_forward.down = Counted(128, 32)
        assert not can_record(model, ON_A_GPU, 16)

    def test_a_forward_put_into_a_known_class(self, monkeypatch):
        monkeypatch.setattr(MultiHeadAttention, "forward", lambda self, x, *_, **__: x)
        assert not can_record(lively_model(), ON_A_GPU, 16)

    def test_another_gpu_a_recording_and_a_mode_for_all_calls(self, monkeypatch):
        with FlopCounterMode(display=False):
            assert not can_record(lively_model(), ON_A_GPU, 16)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not can_record(lively_model(), ON_A_GPU, 16)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        assert not can_record(lively_model(), ON_A_GPU, 16)

    @pytest.mark.parametrize("name", ["a_hook", "a_pruned_layer", "a_replaced_forward"])
    def test_somebody_who_wants_to_be_asked(self, name):
        model = lively_model()
        {change.__name__: change for change in BETWEEN_CALLS}[name](model)
        assert not can_record(model, ON_A_GPU, 16)


def joined_attention(**options):
    """An attention as steps on a GPU use it, and what joins its weights."""
    model = nn.Sequential(MultiHeadAttention(d_model=8, n_heads=4, **options))
    use_step_kernel(model)
    return model[0], join_projections(model)


def test_attention_by_the_kernel_has_weights_and_settings_of_the_one_it_replaces():
    model = nn.Sequential(MultiHeadAttention(d_model=8, n_heads=4, scale=3.0, pairing="split"))
    old, state = model.eval()[0], torch.get_rng_state()
    use_step_kernel(model)
    assert type(model[0]) is not MultiHeadAttention
    assert type(old) is MultiHeadAttention
    assert [id(x) for x in model[0].parameters()] == [id(x) for x in old.parameters()]
    assert vars(old).items() <= vars(model[0]).items()
    assert torch.equal(torch.get_rng_state(), state)


def test_attention_of_other_kinds_is_not_replaced():
    readable, wide = (MultiHeadAttention(d_model=8, n_heads=4, d_head=d) for d in (2, 257))
    readable.fused = False
    model = nn.Sequential(readable, wide)
    use_step_kernel(model)
    assert list(model) == [readable, wide]


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"n_kv_heads": 2}])
def test_one_product_makes_what_three_made(options):
    attention, join_again = joined_attention(**options)
    x, angles = torch.randn(2, 1, 8), torch.randn(1, 1)
    joined = attention.project(x, x, angles)
    expected = attention.project_queries(x, angles), *attention.project_keys_values(x, angles)
    for one, other in zip(joined, expected, strict=True):
        assert_close(one, other)
    with torch.no_grad():
        for weight in attention.parameters():
            weight.add_(1)
    join_again()
    for one, old, other in zip(
        attention.project(x, x, None),
        joined,
        (attention.project_queries(x), *attention.project_keys_values(x)),
        strict=True,
    ):
        assert_close(one, other)
        assert (one - old).abs().max() > 0.1


def test_weights_that_cannot_be_joined_are_used_as_they_are(monkeypatch):
    attention, _ = joined_attention()
    assert attention.joined is not None
    monkeypatch.setattr("transformer_lib.generation.fast.decode_kernel.WIDEST_JOINED", 4)
    assert joined_attention()[0].joined is None
    monkeypatch.undo()
    model = nn.Sequential(MultiHeadAttention(d_model=8, n_heads=4))
    model[0].query.bias = None
    use_step_kernel(model)
    join_projections(model)()
    assert model[0].joined is None
    x = torch.randn(2, 1, 8)
    assert model[0].project(x, x)[0].shape == (2, 4, 1, 2)


@pytest.mark.parametrize("at_once", [7, 20, 512])
def test_best_tokens_come_one_by_one_or_many_at_once(replays, monkeypatch, at_once):
    monkeypatch.setattr("transformer_lib.generation.generate.AT_ONCE", at_once)
    model, asked, read_best = lively_model(), [], cuda_graph.RecordedBatch.read_best

    def note(self, prompt, first, n):
        asked.append(n)
        return read_best(self, prompt, first, n)

    monkeypatch.setattr(cuda_graph.RecordedBatch, "read_best", note)
    expected = by_the_book(model)
    assert torch.equal(generate(model, PROMPT, max_new_tokens=20), expected)
    assert asked == {7: [7, 7, 6], 20: [20], 512: [20]}[at_once]
    asked.clear()
    tokens = torch.stack(list(stream(model, PROMPT, max_new_tokens=20)), dim=1)
    assert torch.equal(tokens, expected[:, PROMPT.shape[1] :])
    assert asked == 20 * [1]


@pytest.mark.parametrize("looks_on", [False, True])
def test_whoever_looks_on_may_change_the_model(replays, looks_on):
    """If nobody does, the model is looked at once for many tokens."""
    model, looked = lively_model(), []

    class Noted(Fingerprint):
        def holds(self, **options):
            looked.append(1)
            return super().holds(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graph, "Fingerprint", Noted)
        on_token = (lambda _: None) if looks_on else None
        ids = generate(model, PROMPT, max_new_tokens=20, on_token=on_token)
    assert torch.equal(ids, by_the_book(model))
    assert len(looked) == (19 if looks_on else 1)


def test_single_queries_do_without_plans_and_leave_the_choice_as_it_was():
    gpu = torch.device("cuda")  # none is needed to ask
    for is_single, chosen in ((True, False), (False, True)):
        with kernels_for(is_single, gpu):
            assert torch.backends.cuda.cudnn_sdp_enabled() is chosen
        assert torch.backends.cuda.cudnn_sdp_enabled()
    with pytest.raises(KeyError), kernels_for(True, gpu):
        raise KeyError
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_threads_that_do_without_plans_at_once_leave_the_choice_as_it_was():
    gpu = torch.device("cuda")
    first, second = kernels_for(True, gpu), kernels_for(True, gpu)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # in the order in which threads may end
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    second.__exit__(None, None, None)
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("options", [{}, {"eos_id": list(range(50))}, {"temperature": 0.7}])
def test_a_recording_goes_as_soon_as_nobody_needs_it(options, replays, monkeypatch):
    """On a GPU it holds memory, which must not wait until Python looks for cycles."""
    made, init = [], RecordedSteps.__init__

    def note(self, *args, **own):
        made.append(weakref.ref(self))
        init(self, *args, **own)

    monkeypatch.setattr(RecordedSteps, "__init__", note)
    model = lively_model()
    gc.disable()
    try:
        generate(model, PROMPT, max_new_tokens=20, **options)
        tokens = stream(model, PROMPT, max_new_tokens=20, **options)
        next(tokens)
        del tokens
        assert [steps() for steps in made] == [None, None]
    finally:
        gc.enable()
    assert bool(replays) == ("eos_id" not in options), "else the first token ends every row"


def test_a_step_that_is_under_way_in_another_thread_is_waited_for(monkeypatch):
    """Both write to the same places: whoever began last goes on, the other one gets an error."""
    model = lively_model().eval()
    steps, replay = RecordedSteps(model, 12, torch.device("cpu")), RecordedSteps._run_copy
    under_way, go_on, told = threading.Event(), threading.Event(), []

    def begin(prompt):
        step = DecodingStep(model, prompt, 6, cache=steps.cache.for_prompt())
        return RecordedBatch(steps, step)

    def wait(self):
        if threading.current_thread() is other:
            under_way.set()
            go_on.wait()
        return replay(self)

    @torch.no_grad()
    def write_on():
        longer = torch.cat((PROMPT, PROMPT), dim=1)
        first(longer[:, :4])
        try:
            first(longer[:, :5])
        except RuntimeError as error:
            told.append(str(error))

    monkeypatch.setattr(RecordedSteps, "_run_copy", wait)
    other = threading.Thread(target=write_on)
    with torch.no_grad():
        first = begin(PROMPT)
        first(PROMPT)
        other.start()
        under_way.wait()
        threading.Timer(0.2, go_on.set).start()
        second, ids = begin(PROMPT + 1), PROMPT + 1
        for _ in range(6):
            best = second(ids).argmax(dim=-1, keepdim=True)
            ids = torch.cat((ids, best), dim=1)
            go_on.set()
            other.join()
    assert torch.equal(ids, by_the_book(model, PROMPT + 1, n_new=6))
    assert told == ["another batch was begun before this one had ended"]
