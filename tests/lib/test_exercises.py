"""exercises: right answers pass, every known mistake is diagnosed, and nothing else passes."""

import ast
import copy
import dataclasses
import importlib
import json
import math
import pkgutil
import re
from pathlib import Path

import mutants as mutants_of
import pytest
import torch
from exercise_survivors import SURVIVORS
from mutants import count_mutants, mutants
from omissions import differences, fail_on
from torch import nn

from transformer_book import exercises
from transformer_book.exercises import EXERCISES, check, hint, pick, summary
from transformer_book.exercises.grading.checking import Exercise, judge

BOOK = Path(__file__).parents[2] / "book"
REGISTER = "transformer_book/exercises/__init__.py, EXERCISES"


# --- an exercise stands in its module, in the register and on a page


def defined():
    """Every exercise of a module, by where it stands, such as ``masks.SHIFT``."""
    for info in pkgutil.iter_modules(exercises.__path__):
        module = importlib.import_module(f"{exercises.__name__}.{info.name}")
        for variable, value in vars(module).items():
            if isinstance(value, Exercise):
                yield f"{info.name}.{variable}", value


def unregistered(found, register):
    """Which exercises of the modules nobody can check."""
    known = {id(exercise) for exercise in register.values()}
    return [
        f"{REGISTER}: {place} is not there: add '\"{place.lower()}\": {place},', "
        f"and {place.partition('.')[0]} to the imports if they lack it"
        for place, exercise in found
        if id(exercise) not in known
    ]


def checked_on_pages():
    """For each exercise that a notebook checks or picks the notebook."""
    found = {}
    for path in BOOK.glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        found |= dict.fromkeys(re.findall(r'\b(?:check|pick)\(\s*"(\w+\.[\w.]+)"', code), path.name)
    return found


def page_problems(called, register):
    """Which exercises stand on no page, and which pages check one that is not registered."""
    return differences(
        called,
        register,
        lacks=lambda name: (
            f"no page of book/ checks {name}, which is in {REGISTER}: "
            f'end the cell of the exercise with `check("{name}", ...)`, or take it out there'
        ),
        extra=lambda name: f"book/{called[name]} checks {name}, which is not in {REGISTER}: add it",
    )


def test_every_exercise_of_a_module_is_registered():
    fail_on(unregistered(defined(), EXERCISES))


def test_every_registered_exercise_stands_on_a_page():
    fail_on(page_problems(checked_on_pages(), EXERCISES))


def test_an_exercise_that_was_not_registered_is_told_where():
    new, old = EXERCISES["masks.shift"], EXERCISES["heads.split"]
    assert unregistered([("masks.SHIFT", new)], {"masks.shift": new}) == []
    assert unregistered([("masks.SHIFT", new)], {"heads.split": old}) == [
        "transformer_book/exercises/__init__.py, EXERCISES: masks.SHIFT is not there: "
        "add '\"masks.shift\": masks.SHIFT,', and masks to the imports if they lack it"
    ]


@pytest.mark.parametrize(
    ("called", "said"),
    [
        ({}, "no page of book/ checks masks.shift, which is in transformer_book/exercises/__in"),
        (
            {"masks.shift": "05_masks.ipynb", "masks.new": "05_masks.ipynb"},
            "book/05_masks.ipynb checks masks.new, which is not in transformer_book/exercises/__in",
        ),
    ],
)
def test_an_exercise_that_a_page_lacks_or_has_alone_is_told(called, said):
    (problem,) = page_problems(called, {"masks.shift": EXERCISES["masks.shift"]})
    assert problem.startswith(said)


def said(capsys, name, answer):
    check(name, answer)
    return capsys.readouterr().out


def test_a_summary_counts_the_latest_answers(capsys, monkeypatch):
    monkeypatch.setattr(exercises, "_LATEST", {})
    for name in ("masks.shift", "heads.split", "heads.merge"):
        check(name, lambda *_: ...)
    check("masks.shift", EXERCISES["masks.shift"].reference)
    pick("heads.split", lambda x, n_heads: x)
    capsys.readouterr()
    summary()
    assert capsys.readouterr().out.splitlines() == [
        "Checked: 1 right, 1 not right, 1 not attempted",
        "not right: heads.split",
        "not attempted: heads.merge",
    ]


def tensors_of(value):
    """All tensors in an argument, however deep."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def spoil(arguments):
    with torch.no_grad():
        for tensor in tensors_of(list(arguments)):
            tensor.zero_()


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)  # it may hold an argument
    if isinstance(value, tuple | list):
        return type(value)(copied(item) for item in value)
    return {k: copied(v) for k, v in value.items()} if isinstance(value, dict) else value


def has_tensors(name):
    exercise = EXERCISES[name]
    return any(True for i in range(len(exercise.inputs)) for _ in tensors_of(exercise.arguments(i)))


WITH_TENSORS = [name for name in EXERCISES if has_tensors(name)]


def zeroes_first(name):
    """An answer that spoils its arguments before it computes with them."""

    def answer(*arguments):
        spoil(arguments)
        return EXERCISES[name].reference(*arguments)

    return answer


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_an_answer_that_zeroes_its_arguments_first_is_wrong(name):
    assert not judge(EXERCISES[name], zeroes_first(name)).right


@pytest.mark.parametrize("name", WITH_TENSORS)
def test_an_answer_that_spoils_its_arguments_is_judged_by_what_it_returns_and_told(name):
    exercise = EXERCISES[name]

    def spoils(*arguments):
        result = copied(exercise.reference(*arguments))
        spoil(arguments)
        return result

    verdict = judge(exercise, spoils)
    assert verdict.right is not exercise.leaves_arguments
    assert "in place" in verdict.text


def survivor_problems(name, accepted, survivors):
    """Which answers made wrong by machine are accepted without a reason, and which no more."""
    where = "tests/lib/exercise_survivors.py"
    refuse = "give the exercise inputs that tell it from the right one, or, if it is no mistake"
    return differences(
        accepted,
        survivors.get(name, ()),
        lacks=lambda what: f"{where}: {name} refuses {what!r} now: take the line out",
        extra=lambda what: (
            f"{name} accepts {what!r} for correct: {refuse}, add it to {where} with the reason"
        ),
    )


def test_what_survives_is_told_where_to_write_it():
    survivors = {"a.b": ["other axis: 1"]}
    assert survivor_problems("a.b", {"other axis: 1"}, survivors) == []
    (now_refused,) = survivor_problems("a.b", set(), survivors)
    assert now_refused.startswith("tests/lib/exercise_survivors.py: a.b refuses 'other axis: 1'")
    (accepted,) = survivor_problems("a.c", {"off by one: 2"}, survivors)
    assert accepted.startswith("a.c accepts 'off by one: 2' for correct: give the exercise inputs")
    assert "add it to tests/lib/exercise_survivors.py with the reason" in accepted


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("NEW = Exercise(min, [()], {})", r"write NEW = Exercise\(reference=\.\.\."),
        ("OTHER = 1", r"NEW is not assigned"),
    ],
)
def test_a_reference_that_no_machine_can_find_is_told(source, said):
    with pytest.raises(LookupError, match=said):
        mutants_of._reference(ast.parse(source), "NEW")


def test_no_survivor_is_kept_for_an_exercise_that_is_gone():
    fail_on(
        f"tests/lib/exercise_survivors.py: {name} is not in {REGISTER}: take its lines out"
        for name in sorted(set(SURVIVORS) - set(EXERCISES))
    )


@pytest.mark.parametrize("name", EXERCISES)
def test_mistakes_made_by_machine_are_refused(name):
    exercise = dataclasses.replace(EXERCISES[name], mistakes={})
    found = mutants(EXERCISES[name])
    accepted = {wrong.what for wrong in found if judge(exercise, wrong.answer).text == "correct."}
    fail_on(survivor_problems(name, accepted, SURVIVORS))


# counts, and what must not be taken for rounding
COUNTS = [
    ("tokens.ways_to_cut", 1),
    ("recurrence.steps_until", 1),
    ("transformer.count", 1),
    ("heads.parameters", 1),
    ("encoder.parameters", 1),
    ("feedforward.gated_width", 1),
    ("families.pairs", 1),
    ("generation.cache_bytes", 1),
    ("generation.cache_bytes", -512),
    ("modern.route", 1),
    ("modern.tokens", 1),
    ("costs.traffic", 1),
    ("counting.block", 1),
    ("counting.flops_per_token", 1),
    ("counting.training_bytes", 1),
    ("counting.training_bytes", -512),
    ("lab5.cost", 1),
    ("lab5.width", 8),
    ("lab5.plan", 1),
]


@pytest.mark.parametrize(("name", "change"), COUNTS)
def test_a_count_is_compared_exactly_also_if_it_comes_as_a_float(name, change):
    exercise = EXERCISES[name]

    def as_floats(*arguments):
        return torch.as_tensor(exercise.reference(*arguments)).double()

    for i in range(len(exercise.inputs)):
        one = dataclasses.replace(exercise, inputs=[exercise.inputs[i]])
        assert judge(one, as_floats).text == "correct."
        assert not judge(one, lambda *arguments: as_floats(*arguments) + change).right


def test_hardly_any_machine_made_mistake_survives():
    counts = {name: count_mutants(exercise) for name, exercise in EXERCISES.items()}
    fail_on(
        f"{name}: nothing in its reference can be changed by machine: call a function of its own "
        "module, or let it compute with an axis, a sum or a comparison (tests/lib/mutants.py)"
        for name, count in counts.items()
        if not count
    )
    assert sum(map(len, SURVIVORS.values())) <= 0.05 * sum(counts.values())


@pytest.mark.parametrize("name", EXERCISES)
def test_two_or_three_hints_lead_from_a_nudge_to_the_call(capsys, name):
    hints = EXERCISES[name].hints
    assert len(hints) in (2, 3), f"{name} has {len(hints)} hints: write hints=[...] with 2 or 3"
    assert len(set(hints)) == len(hints), f"{name} has the same hint twice"
    assert re.search(r"`[^`]+`", hints[-1]), "the last one names what to write, in backquotes"
    for step in range(1, len(hints) + 1):
        hint(name, step)
    assert capsys.readouterr().out.count(f"of {len(hints)}: ") == len(hints)


def test_a_hint_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match=r"step=4 must be a whole number from 1 to [23]"):
        hint("attention.by_distance", 4)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(capsys, name):
    assert said(capsys, name, EXERCISES[name].reference) == f"{name}: correct.\n"


@pytest.mark.parametrize("name", EXERCISES)
def test_each_mistake_is_diagnosed_with_its_own_hint(name):
    """Also after an answer that would spoil the arguments of others."""
    exercise = EXERCISES[name]
    judge(exercise, zeroes_first(name))
    told = {hint: judge(exercise, wrong).text for hint, wrong in exercise.mistakes.items()}
    assert {hint: text for hint, text in told.items() if hint not in text} == {}


@pytest.mark.parametrize("name", EXERCISES)
def test_an_untouched_stub_is_not_attempted(capsys, name):
    for nothing in (None, ...):
        said_of_nothing = said(capsys, name, lambda *_, nothing=nothing: nothing)
        assert said_of_nothing.startswith(f"{name}: not attempted yet")


def not_written(*_):
    raise NotImplementedError


def divides_by_zero(*_):
    return 1 / 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (not_written, "not attempted yet"),
        (divides_by_zero, "It raised ZeroDivisionError: division by zero"),
        (lambda *_: "words", "It returned a str; expected numbers"),
        (lambda *_: (torch.ones(2), torch.ones(3)), "return the one that is asked for"),
        (lambda *_: torch.ones(9, 9), r"The shape is (9, 9); expected (2,)"),
        (lambda *_: torch.full((2,), 7.0), "The shape is right; the largest error is"),
        (lambda *_: torch.full((2,), torch.nan), "There are NaNs in it at index 0"),
    ],
)
def test_other_answers_get_a_useful_sentence(capsys, answer, message):
    assert message in said(capsys, "attention.by_distance", answer)


def test_unknown_exercise_is_named():
    with pytest.raises(ValueError, match="name='nope' is not an exercise"):
        check("nope", lambda: None)


def test_a_mistake_that_crashes_on_other_sizes_is_found_on_the_square_ones(capsys):
    def transposed(x, memory, w_query, w_key, w_value):
        q, k, v = x @ w_query.T, memory @ w_key.T, memory @ w_value.T
        return (q.T @ k / math.sqrt(w_query.shape[0])).softmax(dim=-1) @ v

    assert "positions must meet positions" in said(capsys, "attention.head", transposed)


def test_answers_rounded_by_hand_are_told_so(capsys):
    rounded = [[0, 0], [2.21, -2.21]]
    assert "Nearly right" in said(capsys, "attention.second_token", lambda: rounded)
    assert "correct" in said(capsys, "attention.second_token", lambda: [[0, 0], [2.2118, -2.2118]])
    three_decimals = [[0.333] * 3, [0.333] * 3, [0.274, 0.274, 0.452]]
    assert "give four" in said(capsys, "attention.three_tokens", lambda: three_decimals)


def kernel_regression(query, keys, values):
    """With the constant in front of the Gaussian, which the division by the sum takes out."""
    variance = math.sqrt(len(query))
    weights = torch.distributions.Normal(query, math.sqrt(variance)).log_prob(keys).sum(1).exp()
    return (weights[:, None] * values).sum(0) / weights.sum()


def by_automatic_differentiation(scores, temperature, weights_gradient):
    t = torch.tensor(temperature, dtype=scores.dtype, requires_grad=True)
    ((scores / t).softmax(dim=-1) * weights_gradient).sum().backward()
    return t.grad


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("three_tokens", lambda: [[0.3333] * 3, [0.3333] * 3, [0.2741, 0.2741, 0.4519]]),
        ("query_length", lambda p: 2**0.5 * (torch.tensor(p).logit() + math.log(1.5)).item()),
        (
            "head",
            lambda x, memory, w_query, w_key, w_value: nn.functional.scaled_dot_product_attention(
                x @ w_query.T, memory @ w_key.T, memory @ w_value.T
            ),
        ),
        ("by_distance", kernel_regression),
        ("temperature", by_automatic_differentiation),
    ],
)
def test_right_answers_by_another_way_pass(capsys, name, answer):
    assert said(capsys, f"attention.{name}", answer) == f"attention.{name}: correct.\n"


@pytest.mark.parametrize("log", [math.log, lambda power: torch.tensor(power).log()])
def test_a_mistake_without_a_logarithm_for_a_large_p_is_found_on_the_small_ones(capsys, log):
    def p_for_each(p):
        return math.sqrt(2) * log(3 * p / (1 - 2 * p))

    assert "gives p to each" in said(capsys, "attention.query_length", p_for_each)


def test_a_hook_that_is_left_behind_is_noticed_and_forgotten(capsys):
    def forgetful(attend, run):
        heard = []
        for part in (attend.query, attend.key):
            part.register_forward_hook(lambda *given: heard.append(given[2]))
        run()
        return torch.stack(heard)

    assert "remove() each handle" in said(capsys, "lab1.listen", forgetful)

    def careless(attend, run):
        heard = []
        parts = (attend.query, attend.key)
        handles = [p.register_forward_hook(lambda *given: heard.append(given[2])) for p in parts]
        run()
        for handle in handles:
            handle.remove()
        return torch.stack(heard)

    assert "in a finally" in said(capsys, "lab1.listen", careless)
    assert "correct" in said(capsys, "lab1.listen", EXERCISES["lab1.listen"].reference)


def test_a_lab_goes_on_with_a_right_answer(capsys):
    def yours(heads):
        return heads.transpose(1, 2).flatten(start_dim=2)

    assert pick("heads.merge", yours) is yours
    assert capsys.readouterr().out == "heads.merge: correct.\nGoing on with your answer.\n"


def test_a_lab_goes_on_with_the_books_answer_after_a_wrong_one(capsys):
    hint, wrong = next(iter(EXERCISES["heads.merge"].mistakes.items()))
    assert pick("heads.merge", wrong) is EXERCISES["heads.merge"].reference
    out = capsys.readouterr().out
    assert hint in out
    assert out.endswith("Going on with the book's answer.\n")


def test_a_lab_shows_the_way_to_the_hints_where_the_mistake_is_not_known(capsys):
    pick("heads.merge", lambda heads: heads * 7)
    assert 'hint("heads.merge")' in capsys.readouterr().out


def test_the_books_class_is_made_of_the_parts_that_were_picked():
    calls = []

    def head(q, k, v):
        calls.append(q.shape)
        return EXERCISES["lab4.head"].reference(q, k, v)

    attention = pick("lab4.attention", lambda *sizes: ..., head=lambda *given: head(*given))
    block = pick("lab4.block", lambda *sizes: ..., Attention=attention)
    gpt = pick("lab4.gpt", lambda *sizes: ..., Block=block)
    model = gpt(vocab_size=7, max_len=5, d_model=12, n_heads=3, n_layers=2)
    model(torch.tensor([[1, 2, 3]]))
    assert calls == [(1, 3, 3, 4)] * 2
    for name, ours in (("attention", attention), ("block", block), ("gpt", gpt)):
        assert judge(EXERCISES[f"lab4.{name}"], ours).right, name


@pytest.mark.parametrize(
    ("name", "parts"), [("heads.merge", {"head": min}), ("lab4.block", {"Norm": min})]
)
def test_parts_that_the_books_answer_does_not_have_are_refused(name, parts):
    with pytest.raises(ValueError, match=rf"not what the book's answer to {name} is made of"):
        pick(name, lambda *given: ..., **parts)
