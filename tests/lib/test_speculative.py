"""Speculative decoding: the text is distributed as that of the model alone, whatever the draft."""

import itertools
from unittest import mock

import pytest
import torch
from tiny_models import LLAMA, make, tiny
from torch.testing import assert_close

from transformer_lib.generation import speculative
from transformer_lib.generation.generate import generate
from transformer_lib.generation.sampling import filter_logits
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.speculative import (
    NgramDraft,
    keep_guesses,
    left_over,
    speculative_generate,
    speculative_stream,
)
from transformer_lib.models.language_models import CausalLM

V, NEW = 3, 3  # tokens in the vocabulary; written after the prompt
PROMPT = torch.tensor([[1, 2, 0, 1, 2]])  # an n-gram is found at once


def lively(seed, **changes):
    """A small model whose distributions are far from even, in float64."""
    model = make(CausalLM, tiny(**LLAMA | {"vocab_size": V, "n_layers": 1} | changes), seed=seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim == 2 else 1)
    return model.double()


@pytest.fixture(scope="module")
def model():
    return lively(0)


pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # thousands of small passes


class AllChoices:
    """Runs code once for every way in which its random choices can fall, with its probability."""

    def __init__(self):
        self.script, self.place, self.chance = [], 0, 1.0

    def choose(self, probabilities):
        """The choice of this run at this place; all others get their turn later."""
        if self.place == len(self.script):
            self.script.append([i for i, p in enumerate(probabilities) if p > 0])
        chosen = self.script[self.place][0]
        self.place += 1
        self.chance *= float(probabilities[chosen])
        return chosen

    def draw(self, probabilities, generator):
        flat = probabilities.flatten().tolist()
        return torch.full(probabilities.shape[:-1], self.choose(flat))

    def count_kept(self, chances, generator):
        stay, found = 1.0, []
        for chance in chances.clamp(max=1).tolist():
            found.append(stay * (1 - chance))
            stay *= chance
        return self.choose([*found, stay])

    def outcomes(self, run):
        """The probability of each answer of a function."""
        found = {}
        with (
            mock.patch.object(speculative, "_draw", self.draw),
            mock.patch.object(speculative, "_count_kept", self.count_kept),
        ):
            while True:
                self.place, self.chance = 0, 1.0
                answer = run()
                found[answer] = found.get(answer, 0.0) + self.chance
                while self.script and len(self.script[-1]) == 1:
                    self.script.pop()
                if not self.script:
                    return found
                self.script[-1].pop(0)


def by_the_model_alone(model, sampling=Sampling(), n=NEW, eos_id=None):  # noqa: B008
    """The probability of each text, from whole passes without a cache."""
    found = {}

    def follow(ids, chance):
        new = tuple(ids[0, PROMPT.shape[1] :].tolist())
        if len(new) == n or (new and new[-1] == eos_id):
            found[new] = chance
            return
        logits = filter_logits(model(ids)[:, -1].double(), sampling)
        for token, p in enumerate(logits.softmax(dim=-1)[0].tolist()):
            if p > 0:
                follow(torch.cat((ids, torch.tensor([[token]])), dim=1), chance * p)

    with torch.no_grad():
        follow(PROMPT, 1.0)
    return found


def by_guesses(model, draft, **options):
    options = {"sampling": Sampling(), "n_guesses": 2, "max_new_tokens": NEW, **options}

    def run():
        ids = speculative_generate(model, PROMPT, draft=draft, **options)
        return tuple(ids[0, PROMPT.shape[1] :].tolist())

    return AllChoices().outcomes(run)


def assert_same_distribution(found, wanted):
    assert found.keys() <= wanted.keys()
    texts = sorted(wanted)
    assert_close(
        torch.tensor([found.get(text, 0.0) for text in texts]),
        torch.tensor([wanted[text] for text in texts]),
        rtol=0,
        atol=1e-6,
    )


def test_tokens_of_a_round_are_distributed_as_wanted():
    """Two guesses, each next token depends on the one before; what is missing is drawn plainly."""
    tables = torch.rand(2, 2, V, V, generator=torch.Generator().manual_seed(0)) ** 4
    wanted, guessed = tables / tables.sum(dim=-1, keepdim=True)  # (place, token before, V) each
    choices = AllChoices()

    def run():
        first = choices.choose(guessed[0, 0].tolist())
        second = choices.choose(guessed[1, first].tolist())
        at = wanted[0, 0], wanted[1, first], wanted[1, second]
        tokens = keep_guesses(
            torch.tensor([first, second]),
            torch.stack(at),
            torch.stack((guessed[0, 0], guessed[1, first])),
        ).tolist()
        while len(tokens) < 3:
            tokens.append(choices.choose(wanted[1, tokens[-1]].tolist()))
        return tuple(tokens)

    texts = itertools.product(range(V), repeat=3)
    law = {
        (a, b, c): float(wanted[0, 0, a] * wanted[1, a, b] * wanted[1, b, c]) for a, b, c in texts
    }
    assert_same_distribution(choices.outcomes(run), law)


def test_with_a_draft_all_texts_are_as_probable_as_with_the_model_alone():
    model, draft = lively(0), lively(1)
    wanted = by_the_model_alone(model)
    assert sum(wanted.values()) == pytest.approx(1)
    found = by_guesses(model, draft)
    assert_same_distribution(found, wanted)
    other = by_the_model_alone(draft)
    assert max(abs(wanted[text] - other[text]) for text in wanted) > 0.1


def test_with_ngrams_all_texts_are_as_probable_as_with_the_model_alone(model):
    found = by_guesses(model, NgramDraft(), max_new_tokens=4)
    assert_same_distribution(found, by_the_model_alone(model, n=4))


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.5), Sampling(top_k=2)])
def test_the_same_with_options_of_sampling_and_an_end(model, sampling):
    wanted = by_the_model_alone(model, sampling, eos_id=1)
    assert_same_distribution(by_guesses(model, lively(1), sampling=sampling, eos_id=1), wanted)


def test_chance_keeps_guesses_as_often_as_it_should():
    generator = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.8, 2.0, 0.5])
    counts = torch.zeros(4)
    for _ in range(4000):
        counts[speculative._count_kept(chances, generator)] += 1
    assert_close(counts / 4000, torch.tensor([0.2, 0.0, 0.4, 0.4]), rtol=0, atol=0.03)


def test_a_guess_that_is_never_wanted_is_never_kept():
    wanted = torch.tensor([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]])
    for guessed in (None, torch.tensor([[1.0, 0.0, 0.0]])):
        assert keep_guesses(torch.tensor([0]), wanted, guessed)[0] in (1, 2)


def test_what_is_left_over_is_a_distribution_even_if_nothing_is():
    even = torch.full((4,), 0.25)
    assert_close(left_over(even, even), even)


@pytest.mark.parametrize("n_guesses", [1, 3, 20])
@pytest.mark.parametrize("changes", [{}, {"window": 3, "position": "alibi"}])
def test_greedy_texts_are_those_of_the_model(changes, n_guesses):
    model = lively(0, vocab_size=11, max_len=40, **changes)
    for draft in (lively(1, vocab_size=11, max_len=40), model, NgramDraft()):
        for prompt in (PROMPT, PROMPT[:, :1]):
            wanted = generate(model, prompt, max_new_tokens=12)
            options = {"draft": draft, "max_new_tokens": 12, "n_guesses": n_guesses}
            rounds = list(speculative_stream(model, prompt, **options))
            assert torch.equal(torch.cat((prompt[0], *rounds)), wanted[0])
            assert all(1 <= len(new) <= n_guesses + 1 for new in rounds)
            if draft is model:
                assert len(rounds) == 1 + -(-11 // (n_guesses + 1))


def test_a_greedy_text_ends_where_that_of_the_model_ends():
    model = lively(0, vocab_size=11, max_len=40)
    text = generate(model, PROMPT, max_new_tokens=12)
    for eos in set(text[0, PROMPT.shape[1] :].tolist()):
        wanted = generate(model, PROMPT, max_new_tokens=30, eos_id=eos)
        options = {"draft": model, "max_new_tokens": 12, "eos_id": eos}
        assert torch.equal(speculative_generate(model, PROMPT, **options), wanted)


def test_models_in_training_are_left_so_and_drop_nothing():
    model = lively(0, vocab_size=11, max_len=40, dropout=0.5)
    wanted = generate(model.eval(), PROMPT, max_new_tokens=20)
    model.train()
    found = speculative_generate(model, PROMPT, draft=model, max_new_tokens=20)
    assert torch.equal(found, wanted)
    assert model.training


def test_no_round_reads_what_the_cache_holds(model):
    read = []
    handle = model.decoder.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    rounds = list(speculative_stream(model, PROMPT, draft=NgramDraft(), max_new_tokens=10))
    handle.remove()
    assert len(rounds) == len(read)
    assert read[0].shape[1] == PROMPT.shape[1]
    assert all(ids.shape[1] <= 5 for ids in read[1:])  # a token, and four guesses


@pytest.mark.parametrize(
    ("text", "n", "guess"),
    [
        ([1, 2, 3, 9, 1, 2], 2, [3, 9]),
        ([1, 2, 3, 9, 1, 2], 9, [3, 9, 1, 2]),  # as many as there are
        ([5, 1, 7, 2, 1], 1, [7]),  # a single token, found again
        ([1, 2, 5, 3, 2, 6, 1, 2], 1, [5]),  # two tokens tell more than one
        ([4, 1, 4, 2, 4], 1, [2]),  # the latest place
        ([4, 4, 4, 4, 4, 4], 2, [4, 4]),  # a place with room before the latest
        ([1, 2, 3], 4, []),
        ([1], 4, []),
    ],
)
def test_ngrams_are_found_where_a_reader_finds_them(text, n, guess):
    assert NgramDraft().guess(torch.tensor([text]), n).tolist() == guess


def test_scores_that_are_not_finite_are_told():
    model = lively(0)
    with torch.no_grad():
        model.decoder.stack.final_norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="row 0 at new token 1"):
        speculative_generate(model, PROMPT, draft=NgramDraft(), max_new_tokens=3)


def test_all_ways_of_three_coins_are_tried():
    choices = AllChoices()
    found = choices.outcomes(lambda: tuple(choices.choose([0.25, 0.75]) for _ in range(3)))
    assert found.keys() == set(itertools.product((0, 1), repeat=3))
    assert found[1, 1, 1] == pytest.approx(27 / 64)
