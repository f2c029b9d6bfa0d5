"""Batches: nothing lost, nothing doubled, nothing mixed up, and resumed to the bit."""

import copy
import json
import pathlib
import tracemalloc
import zlib
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_book import tasks
from transformer_book.datasets import image_batch
from transformer_book.recurrent import RecurrentClassifier, RecurrentSeq2Seq, with_lengths
from transformer_book.tasks import answer_batch
from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import (
    CausalLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.training.data import (
    IGNORE,
    Batches,
    TextWindows,
    classification_batch,
    next_token_batch,
    pad,
    translation_batch,
)
from transformer_lib.training.losses import Objective
from transformer_lib.training.packing import pack

WORDS = [[*range(1, 2 + i % 7), 10 + i] for i in range(53)]  # all different, lengths 2 to 8
TINY = {"vocab_size": 100, "d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_len": 64}
STREAMS = {
    "plain": lambda seed: Batches(WORDS, next_token_batch, batch_size=4, seed=seed),
    "one batch": lambda seed: Batches(WORDS, next_token_batch, batch_size=99, seed=seed),
    "in order": lambda seed: Batches(
        WORDS, next_token_batch, batch_size=4, shuffle=False, seed=seed
    ),
    "buckets": lambda seed: Batches(
        WORDS, next_token_batch, batch_size=4, length=len, bucket=20, seed=seed
    ),
    "tokens": lambda seed: Batches(
        WORDS, next_token_batch, max_tokens=21, length=len, bucket=20, seed=seed
    ),
    "packed": lambda seed: Batches(WORDS, partial(pack, length=16), batch_size=10, seed=seed),
    "windows": lambda seed: TextWindows(torch.arange(97), length=8, batch_size=3, seed=seed),
}


def numbers(batch):
    """Keep the numbers of the examples instead of making a batch."""
    return {"targets": torch.tensor(batch)}


def take(stream, n):
    return [next(stream) for _ in range(n)]


def same(first, second):
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


def model_of(kind, **changes):
    torch.manual_seed(0)
    return kind(TransformerConfig(**{**TINY, **changes})).eval()


# --- the order of the examples


@pytest.mark.parametrize(
    "limits", [{"batch_size": 7}, {"max_tokens": 40, "length": lambda i: 1 + i % 9}]
)
@pytest.mark.parametrize("bucket", [1, 10, 1000])
def test_an_epoch_has_every_example_once(limits, bucket):
    limits = {"length": lambda i: 1 + i % 9, **limits}
    stream = Batches(range(50), numbers, bucket=bucket, **limits)
    for epoch in range(3):
        seen = Counter()
        while stream.epoch == epoch:
            seen.update(next(stream)["targets"].tolist())
        assert seen == Counter(range(50))


def test_epochs_and_seeds_differ():
    plans = [
        Batches(range(50), numbers, batch_size=5, seed=s).plan(e)
        for s in (0, 1, 2)
        for e in (0, 1, 2)
    ]
    assert len({str(plan) for plan in plans}) == 9


def test_the_order_is_the_same_on_every_machine():
    """Printed once with Python 3.11; a changed generator would break resuming silently."""
    assert Batches(range(6), numbers, batch_size=2, seed=3).plan(1) == [[4, 1], [2, 3], [0, 5]]


def test_without_shuffling_the_order_is_that_of_the_examples():
    assert Batches(range(5), numbers, batch_size=2, shuffle=False).plan(7) == [[0, 1], [2, 3], [4]]


def padding_share(stream):
    batches = [next(stream)["ids"] for _ in range(len(stream.plan(0)))]
    return sum((ids == 0).sum().item() for ids in batches) / sum(ids.numel() for ids in batches)


def test_buckets_save_padding_and_stay_random():
    words = [
        [1] * n for n in torch.randint(2, 60, (400,), generator=torch.Generator().manual_seed(0))
    ]
    make = partial(Batches, words, next_token_batch, batch_size=8, length=len)
    assert padding_share(make(bucket=400)) < 0.05 < 0.3 < padding_share(make(bucket=1))
    longest = [
        max(make(bucket=400).lengths[i] for i in batch) for batch in make(bucket=400).plan(0)
    ]
    assert longest != sorted(longest)  # the batches are not in the order of their lengths
    assert make(bucket=80).plan(0) != make(bucket=80).plan(1)


def test_a_batch_is_as_large_as_the_tokens_allow():
    stream = Batches(WORDS, next_token_batch, max_tokens=21, length=len, shuffle=False)
    plan = [[len(WORDS[i]) for i in batch] for batch in stream.plan(0)]
    assert all(len(lengths) * max(lengths) <= 21 for lengths in plan)
    for lengths, after in pairwise(plan):
        more = [*lengths, after[0]]
        assert len(more) * max(more) > 21
    alone = Batches([[1] * 9, [1, 2]], next_token_batch, max_tokens=5, length=len).plan(0)
    assert sorted(map(len, alone)) == [1, 1]  # longer than allowed: alone, not lost


# --- exact resumption


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("at", [0, 1, 5, 13, 14, 15, 40])
def test_resumed_stream_goes_on_to_the_bit(name, at):
    stream = STREAMS[name](seed=5)
    take(stream, at)
    state = json.loads(json.dumps(stream.state_dict()))  # as a file would keep it
    rest = take(stream, 30)
    resumed = STREAMS[name](seed=5)
    take(resumed, 3)  # somewhere else before
    resumed.load_state_dict(state)
    assert same(take(resumed, 30), rest)
    assert resumed.state_dict() == stream.state_dict()


@pytest.mark.parametrize("name", STREAMS)
def test_state_is_whole_numbers_and_a_copy(name):
    stream = STREAMS[name](seed=5)
    state = stream.state_dict()
    before = copy.deepcopy(state)
    next(stream)
    assert state == before != stream.state_dict()
    assert all(type(value) is int for value in state.values())


@pytest.mark.parametrize("name", STREAMS)
def test_one_pass_leaves_the_stream_alone(name):
    stream, other = STREAMS[name](seed=5), STREAMS[name](seed=5)
    next(stream), next(other)
    first = list(stream.one_pass())
    assert same(list(stream.one_pass()), first)
    assert same(take(stream, 20), take(other, 20))


def test_iter_goes_on_where_it_stands():
    stream, other = STREAMS["plain"](seed=0), STREAMS["plain"](seed=0)
    first = [batch for batch, _ in zip(stream, range(3), strict=False)]
    expected = take(other, 4)  # zip took one more before it saw the end of the range
    assert same(first, expected[:3])
    assert same([next(iter(stream))], take(other, 1))


@pytest.mark.parametrize(
    ("name", "changed"),
    [("plain", "windows"), ("plain", "in order"), ("buckets", "plain"), ("tokens", "buckets")],
)
def test_state_of_another_stream_is_refused(name, changed):
    with pytest.raises(ValueError, match=r"here, but .* in the state"):
        STREAMS[name](seed=0).load_state_dict(STREAMS[changed](seed=0).state_dict())


def test_state_of_another_seed_or_of_other_data_is_refused():
    with pytest.raises(ValueError, match="seed=0 here, but 1 in the state"):
        STREAMS["plain"](seed=0).load_state_dict(STREAMS["plain"](seed=1).state_dict())
    fewer = Batches(WORDS[1:], next_token_batch, batch_size=4)
    with pytest.raises(ValueError, match="n_examples=53 here, but 52 in the state"):
        STREAMS["plain"](seed=0).load_state_dict(fewer.state_dict())


# --- windows of a text


def test_one_pass_has_every_token_but_the_first_as_a_target_once():
    for n in range(9, 40):
        targets = [b["targets"] for b in TextWindows(torch.arange(n), 8, 2).one_pass()]
        flat = torch.cat([t.flatten() for t in targets])
        assert flat[flat != IGNORE].tolist() == list(range(1, n))


def test_windows_are_next_tokens_of_the_text_and_cover_it():
    stream = TextWindows(torch.arange(20), length=8, batch_size=4)
    starts = Counter()
    for batch in take(stream, 200):
        assert batch.keys() == {"ids", "targets"}
        assert batch["ids"].shape == batch["targets"].shape == (4, 8)
        assert torch.equal(batch["ids"] + 1, batch["targets"])
        assert torch.equal(batch["ids"][:, 1:], batch["targets"][:, :-1])
        starts.update(batch["ids"][:, 0].tolist())
    assert set(starts) == set(range(12))  # the last window ends with the last token
    assert min(starts.values()) > 30  # of 800, evenly


def test_windows_do_not_copy_the_text():
    ids = torch.arange(1000, dtype=torch.int16)
    stream = TextWindows(ids, length=64, batch_size=4)
    assert stream.examples.data_ptr() == ids.data_ptr()
    assert next(stream)["ids"].dtype == torch.long


# --- batches


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=6),
    st.sampled_from(["left", "right"]),
)
@settings(max_examples=50, deadline=None)
def test_padding_can_be_taken_off_again(sequences, side):
    ids, mask = pad(sequences, pad_id=0, side=side)
    assert ids.shape[1] == max(map(len, sequences))
    assert mask.shape == (len(sequences), 1, 1, ids.shape[1])
    assert [row[real].tolist() for row, real in zip(ids, mask[:, 0, 0], strict=True)] == sequences
    assert (ids[~mask[:, 0, 0]] == 0).all()
    ends = mask[:, 0, 0, -1 if side == "left" else 0]
    assert ends.all()  # the padding is on the other side


def test_a_real_token_may_have_the_id_of_padding():
    _, mask = pad([[0, 5, 0], [7]], pad_id=0)
    assert mask[:, 0, 0].tolist() == [[True, True, True], [True, False, False]]


def test_no_mask_is_needed_where_padding_comes_last():
    model = model_of(CausalLM)
    batch = next_token_batch([[5, 6, 7, 8], [9, 8]], pad_id=3)
    mask = pad([[5, 6, 7], [9]])[1]
    with torch.no_grad():
        free, masked = model(batch["ids"]), model(batch["ids"], mask)
        alone = model(torch.tensor([[9]]))
    assert_close(free[0], masked[0])
    assert_close(free[1, :1], masked[1, :1])
    assert_close(free[1, :1], alone[0])


def loss_of(model, batch):
    total, count = Objective(model)(batch)
    return total.item(), count.item()


def test_an_answer_is_judged_and_its_prompt_is_not():
    pairs = [([5, 6, 7], [8, 9]), ([4], [3, 2, 1])]
    batch = answer_batch(pairs)
    assert batch["targets"].tolist() == [[IGNORE, IGNORE, 8, 9], [3, 2, 1, IGNORE]]
    assert batch["ids"].tolist() == [[5, 6, 7, 8], [4, 3, 2, 1]]
    whole = next_token_batch([[*prompt, *answer] for prompt, answer in pairs])
    assert torch.equal(batch["ids"], whole["ids"])
    model = model_of(CausalLM)
    assert loss_of(model, batch)[1] == 5 < loss_of(model, whole)[1] == 7


def test_translation_shifts_the_target_right():
    batch = translation_batch([([5, 6], [7, 8, 9]), ([4], [3])], pad_id=0, bos_id=1, eos_id=2)
    assert batch["source"].tolist() == [[5, 6], [4, 0]]
    assert batch["source_mask"][:, 0, 0].tolist() == [[True, True], [True, False]]
    assert batch["target"].tolist() == [[1, 7, 8, 9], [1, 3, 0, 0]]
    assert batch["targets"].tolist() == [[7, 8, 9, 2], [3, 2, IGNORE, IGNORE]]


@pytest.mark.parametrize("collate", [translation_batch, answer_batch])
def test_lists_and_tensors_give_the_same_batch(collate):
    tensors = [(torch.tensor(source), torch.tensor(target)) for source, target in EXAMPLES]
    assert same([collate(tensors)], [collate(EXAMPLES)])


EXAMPLES = [([5, 6, 7], [8, 9]), ([4], [3, 2, 1, 7]), ([9, 9], [9])]
LABELLED = [(source, len(target)) for source, target in EXAMPLES]
MODELS = {
    "seq2seq": (lambda: model_of(Seq2SeqLM), translation_batch, EXAMPLES),
    "answers": (lambda: model_of(CausalLM), answer_batch, EXAMPLES),
    "text": (lambda: model_of(CausalLM), next_token_batch, [s + t for s, t in EXAMPLES]),
    "packed": (lambda: model_of(CausalLM), partial(pack, length=16), [s + t for s, t in EXAMPLES]),
    "classes": (
        lambda: model_of(partial(SequenceClassifier, n_classes=5, pooling="mean")),
        classification_batch,
        LABELLED,
    ),
    "recurrent classes": (
        lambda: RecurrentClassifier("lstm", 100, 8, 5),
        lambda examples: with_lengths(classification_batch(examples)),
        LABELLED,
    ),
    "recurrent seq2seq": (
        lambda: RecurrentSeq2Seq(100, 8),
        lambda examples: with_lengths(translation_batch(examples)),
        EXAMPLES,
    ),
    "images": (
        lambda: model_of(
            partial(VisionTransformer, image_size=4, patch_size=2, n_channels=1), max_len=5
        ),
        image_batch,
        [(torch.full((1, 4, 4), float(i)), i) for i in range(3)],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_a_batch_is_the_sum_of_its_examples(name):
    """So padding, packing and masks change nothing, in every kind of model."""
    make, collate, examples = MODELS[name]
    torch.manual_seed(1)
    model = make()
    together = loss_of(model, collate(examples))
    alone = [loss_of(model, collate([example])) for example in examples]
    assert together[1] == sum(count for _, count in alone) > 0
    assert together[0] == pytest.approx(sum(total for total, _ in alone), rel=1e-5)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope", "alibi", "none"])
def test_packed_sequences_do_not_see_each_other(position):
    sequences = [[5, 6, 7, 8], [9, 8, 7], [1, 2], [3, 4, 5, 6, 7]]
    model = model_of(CausalLM, position=position)
    batch = pack(sequences, length=6)
    assert len(batch["ids"]) == 2  # 3 + 2 + 1, and 4
    with torch.no_grad():
        packed = model(batch["ids"], batch["mask"], positions=batch["positions"])
        for sequence, (row, start) in zip(sequences, [(0, 0), (0, 3), (0, 5), (1, 0)], strict=True):
            alone = model(torch.tensor([sequence[:-1]]))[0]
            assert_close(packed[row, start : start + len(alone)], alone, rtol=1e-4, atol=1e-5)
            found = batch["targets"][row, start : start + len(alone)]
            assert found.tolist() == sequence[1:]


@given(st.lists(st.integers(2, 9), min_size=1, max_size=12), st.integers(8, 12))
@settings(max_examples=50, deadline=None)
def test_packing_loses_nothing(lengths, length):
    sequences = [[100 * i + j for j in range(n)] for i, n in enumerate(lengths, 1)]
    batch = pack(sequences, length)
    real = batch["targets"] != IGNORE
    assert real.sum() == sum(n - 1 for n in lengths)
    assert (batch["targets"][real] == batch["ids"][real] + 1).all()
    assert sorted(batch["ids"][real].tolist()) == [t for s in sequences for t in s[:-1]]
    assert (batch["positions"][real] == batch["ids"][real] % 100).all()
    owners = torch.where(real, batch["ids"] // 100, 0)
    same = owners[:, :, None] == owners[:, None, :]
    assert torch.equal(batch["mask"][:, 0], same & (owners > 0)[:, None, :])
    assert real.any(dim=1).all()  # no empty rows


# --- made-up tasks


def test_tasks_are_what_they_say():
    for word, target in tasks.copy_task(50, n_symbols=5, max_length=6):
        assert word == target
        assert 1 <= len(word) <= 6
        assert set(word) <= set(range(3, 8))
    for word, target in tasks.reverse_task(50, n_symbols=5, max_length=6):
        assert word == target[::-1]
    for source, target in tasks.recall_task(50, n_symbols=5, distance=7):
        assert target == source[:1]
        assert len(source) == 8
        assert 3 <= source[0] < 8 <= min(source[1:]) <= max(source[1:]) < 13


def test_lengths_are_spread_evenly():
    words = tasks.copy_task(600, n_symbols=5, max_length=6)
    assert min(Counter(len(word) for word, _ in words).values()) > 70


@pytest.mark.parametrize(
    "task",
    [
        partial(tasks.copy_task, 20, 5, 6),
        partial(tasks.reverse_task, 20, 5, 6),
        partial(tasks.recall_task, 20, 5, 6),
    ],
)
def test_tasks_depend_on_the_seed_alone(task):
    assert task(seed=1) == task(seed=1) != task(seed=2)


def test_a_model_can_learn_a_task():
    """The loaders give what a model needs: it learns to recall what it could not guess."""
    stream = Batches(tasks.recall_task(64, n_symbols=4, distance=2), answer_batch, batch_size=16)
    model = model_of(CausalLM, n_layers=1).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for batch in take(stream, 60):
        total, count = Objective(model)(batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    assert (total / count).item() < 0.1  # by chance: log(4) = 1.39


# --- what a user can get wrong

one = partial(Batches, [1], numbers)
MISTAKES = {
    "batch_size=None, max_tokens=None: give one": lambda: one(),
    "batch_size=2, max_tokens=3: give one": lambda: one(batch_size=2, max_tokens=3),
    "max_tokens=3, bucket=1: .* give length": lambda: one(max_tokens=3),
    "max_tokens=None, bucket=9: .* give length": lambda: one(batch_size=2, bucket=9),
    "batch_size=0 must be a whole number": lambda: one(batch_size=0),
    "max_tokens=-1 must be a whole number": lambda: one(max_tokens=-1, length=int),
    "bucket=0 must be a whole number": lambda: one(batch_size=1, length=int, bucket=0),
    "n_examples=0 must be a whole number": lambda: Batches([], numbers, batch_size=1),
    "length=5 .* text of 5 tokens": lambda: TextWindows(torch.arange(5), 5, 1),
    "length=0 must be a whole number": lambda: TextWindows(torch.arange(5), 0, 1),
    r"ids has shape \(2, 5\)": lambda: TextWindows(torch.zeros(2, 5, dtype=torch.long), 1, 1),
    r"lengths \[\]": lambda: pad([]),
    r"lengths \[2, 0\]": lambda: pad([[1, 2], []]),
    "side='top' must be one of": lambda: pad([[1]], side="top"),
    "one of a single token": lambda: next_token_batch([[1, 2], [3]]),
    "has 5 tokens; length=3": lambda: pack([[1, 2, 3, 4, 5]], 3),
    "has 1 tokens; length=3": lambda: pack([[1]], 3),
    r"len\(sequences\)=0": lambda: pack([], 3),
    "length=-1 must": lambda: pack([[1, 2]], -1),
    "n_symbols=0 must": lambda: tasks.copy_task(1, 0, 3),
    "max_length=0 must": lambda: tasks.reverse_task(1, 3, 0),
    "distance=-1 must": lambda: tasks.recall_task(1, 3, -1),
}


@pytest.mark.parametrize("message", MISTAKES)
@pytest.mark.usefixtures("unchecked_shapes")
def test_mistakes_are_named(message):
    with pytest.raises(ValueError, match=message):
        MISTAKES[message]()


@pytest.mark.usefixtures("unchecked_shapes")
def test_ids_with_a_fraction_are_refused():
    with pytest.raises(TypeError, match="sequences has numbers with a fraction"):
        pad([[1.5, 2.0]])


def test_another_text_is_refused_when_resuming():
    text = torch.arange(50)
    state = TextWindows(text, 4, 2).state_dict()
    with pytest.raises(ValueError, match="text="):
        TextWindows(text.flip(0), 4, 2).load_state_dict(state)


def test_an_answer_without_a_prompt_is_all_to_be_predicted():
    assert answer_batch([([], [7, 8, 9])])["targets"].tolist() == [[8, 9]]


# --- large data stay where they are


def test_a_stream_of_a_long_text_costs_next_to_no_memory():
    ids = torch.zeros(5_000_000, dtype=torch.uint8)  # 5 MB of text
    tracemalloc.start()
    stream = TextWindows(ids, length=8, batch_size=2)
    next(stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_judging_by_a_long_text_costs_next_to_no_memory():
    stream = TextWindows(torch.zeros(2_000_000, dtype=torch.uint8), length=8, batch_size=2)
    tracemalloc.start()
    for _, _ in zip(stream.one_pass(), range(3), strict=False):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_equal_examples_need_no_list_of_lengths():
    tracemalloc.start()
    Batches(range(1_000_000), numbers, batch_size=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**18


def resident_bytes(path):
    """How much of a mapped file this process holds in memory (Linux says so)."""
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    starts = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    sizes = [next(x for x in lines[i:] if x.startswith("Rss:")) for i in starts]
    assert sizes, "the file is not mapped any more"
    return sum(int(line.split()[1]) * 1024 for line in sizes)


@pytest.mark.skipif(not pathlib.Path("/proc/self/smaps").exists(), reason="asks Linux")
@pytest.mark.parametrize("as_tensor", [True, False])
@pytest.mark.filterwarnings("ignore:.*not writable")
def test_a_text_in_a_file_is_not_read_whole(as_tensor, tmp_path):
    """Tokens of 40 MB, as nanoGPT keeps them; a batch touches a few of its pages."""
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        for start in range(0, 20_000_000, 1_000_000):
            (np.arange(start, start + 1_000_000) % 50_000).astype(np.uint16).tofile(file)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    tracemalloc.start()
    text = torch.from_numpy(tokens) if as_tensor else tokens
    stream = TextWindows(text, length=16, batch_size=1)
    batches = take(stream, 3)
    assert torch.equal(next(stream.one_pass())["ids"][0], torch.arange(16))
    assert resident_bytes(path) < 20e6  # of 40; the system maps more than was asked for
    state = stream.state_dict()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20, "a copy was made"
    assert all(batch["ids"].dtype == torch.long for batch in batches)
    assert all(torch.equal(b["targets"], (b["ids"] + 1) % 50_000) for b in batches)
    assert state["text"] == zlib.crc32(path.read_bytes())


def test_the_checksum_of_a_text_is_that_of_all_its_bytes():
    """As it was before it was made in parts: old checkpoints hold it."""
    for ids in (torch.arange(3_000_000), torch.arange(60).view(20, 3)[:, 1]):
        stream = TextWindows(ids, length=3, batch_size=1)
        assert stream.state_dict()["text"] == zlib.crc32(ids.numpy().tobytes())


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: TextWindows(np.zeros(9), 2, 1),
            TypeError,
            r"^ids has dtype float64; expected whole numbers, token ids$",
        ),
        (
            lambda: TextWindows(torch.zeros(9), 2, 1),
            TypeError,
            r"^ids has dtype torch.float32; expected whole numbers, token ids$",
        ),
        (
            lambda: TextWindows([1, 2, 3], 2, 1),
            TypeError,
            r"^ids is a list; expected a tensor or a NumPy array of token ids$",
        ),
        (
            lambda: TextWindows(np.zeros((3, 3), dtype=np.uint16), 2, 1),
            ValueError,
            r"^ids has shape \(3, 3\); expected \(N\)$",
        ),
        (
            lambda: TextWindows(np.zeros(2, dtype=np.uint16), 2, 1),
            ValueError,
            r"^length=2 is too much for a text of 2 tokens: one must follow$",
        ),
    ],
)
def test_what_is_no_text_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


# --- packing holds no more than it returns


class LargeTensors(TorchDispatchMode):
    """Adds up the bytes of every tensor of more than 100 kB that is made."""

    def __init__(self):
        super().__init__()
        self.made, self._known = 0, set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **options or {})
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.nbytes() > 100_000 and storage.data_ptr() not in self._known:
                    self._known.add(storage.data_ptr())
                    self.made += storage.nbytes()
        return result


def test_packed_tensors_hold_the_memory_of_their_rows_and_no_more():
    """There were as many masks as sequences, and the result was a view of them all."""
    with LargeTensors() as seen:
        batch = pack([list(range(17))] * 300, 512)
    assert len(batch["ids"]) == 10
    assert batch["mask"].shape == (10, 1, 512, 512)
    for name, tensor in batch.items():
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), name
    assert seen.made < 1.5 * batch["mask"].numel(), "on the way, too"


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("sequence", [[1.5, 2.0], torch.tensor([1.5, 2.0])])
def test_ids_with_a_fraction_are_not_packed(sequence):
    with pytest.raises(TypeError, match=r"^sequences has numbers with a fraction; expected token"):
        pack([[1, 2], sequence], 4)


def test_a_batch_that_cannot_be_made_is_still_the_next_one():
    broken = {2}

    def collate(examples):
        if broken & set(examples):
            raise OSError("a file that is not there")
        return {"ids": torch.tensor(examples)}

    batches = Batches(range(4), collate, batch_size=1, shuffle=False)
    assert [next(batches)["ids"].item() for _ in range(2)] == [0, 1]
    place = batches.state_dict()
    with pytest.raises(OSError, match="not there"):
        next(batches)
    assert batches.state_dict() == place
    broken.clear()
    assert next(batches)["ids"].item() == 2
