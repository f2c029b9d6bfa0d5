"""Options of sampling: each arrives where tokens are drawn, along every way a user has."""

import inspect
import io
import sys
from contextlib import suppress
from dataclasses import asdict, fields

import pytest
import torch
from checkpoint_tokenizers import settings_of
from omissions import differences, fail_on
from tiny_models import make, tiny

from transformer_lib.cli import main as cli
from transformer_lib.cli import text as cli_text
from transformer_lib.generation import generate as generation
from transformer_lib.generation import text_generation
from transformer_lib.generation.generate import generate, stream
from transformer_lib.generation.sampling import draw_token
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.models.language_models import CausalLM
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer

# A value for each that changes what is drawn.
TRIED = {"temperature": 0.2, "top_k": 2, "top_p": 0.1, "min_p": 0.8, "repetition_penalty": 0.01}
N_NEW = 12
PROMPT = torch.tensor([[5, 7]])
COMMANDS = ("generate", "chat")


@pytest.fixture(scope="module")
def writer():
    """A model, and a tokenizer that can be talked with."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = PretrainedTokenizer(settings_of("Llama 2"), chat_template=template)
    return make(CausalLM, tiny(vocab_size=tokenizer.vocab_size, max_len=64)), tokenizer


@pytest.fixture(autouse=True)
def loaded(writer, monkeypatch):
    """Whatever folder a command names, it finds the writer there."""
    monkeypatch.setattr(cli_text, "load_writer", lambda given: writer)


def typed(name):
    return f"--{name.replace('_', '-')}"


def test_every_option_is_tried():
    where = "tests/lib/test_sampling_options.py, TRIED"
    fail_on(
        differences(
            TRIED,
            [field.name for field in fields(Sampling)],
            lacks=lambda name: f'{where}: add "{name}" with a value that changes what is drawn',
            extra=lambda name: f"{where}: Sampling has no option {name!r}: take it out",
        )
    )


@pytest.mark.parametrize("function", [generate, stream])
def test_a_signature_has_every_option_with_its_kind_and_default(function):
    wanted = {field.name: (field.type, field.default) for field in fields(Sampling)}
    wanted["temperature"] = (float | None, None)  # left out, the other options decide
    found = {
        name: (parameter.annotation, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in wanted
    }
    where = f"transformer_lib/generation/generate.py: {function.__name__}"
    assert found == wanted, f"{where} does not have the options of Sampling"


# Each function on the way, by itself: what it is given, it hands on


class ArrivedError(Exception):
    """Ends a run where what is handed on has been seen."""


def handed_on(name, run, module, function, monkeypatch):
    """The value of an option as one function hands it on to another; none if it does not."""
    seen = {}

    def note(*arguments, **options):
        for argument in arguments:
            seen.update(asdict(argument) if isinstance(argument, Sampling) else {})
        seen.update(options)
        raise ArrivedError

    with monkeypatch.context() as patch, suppress(ArrivedError, TypeError):
        patch.setattr(module, function, note)
        patch.setattr(sys, "stdin", io.StringIO("one\n"))
        run()  # a TypeError: there is no such argument
    return seen.get(name)


def losses(name, value, writer, monkeypatch):
    """Which functions lose an option; each is told by its file and name."""
    alone = {name: value}

    def parsed(command):
        parser = cli._make_parser()
        return parser.parse_known_args([command, "--model", "x", typed(name), str(value)])[0]

    def told(command):
        given = cli._make_parser().parse_args([command, "--model", "x"])
        vars(given).update(asdict(Sampling()), **alone)  # whatever the parser knows
        return given

    def written():
        return next(text_generation.write_on(*writer, [5, 7], Sampling(**alone), N_NEW, "cpu"))

    def commanded(command):
        with monkeypatch.context() as patch:
            patch.setattr(cli_text, "_sampling", lambda given: Sampling(**alone))
            getattr(cli_text, command)(told(command))

    def hands(module, function, run):
        return handed_on(name, run, module, function, monkeypatch)

    model, much = writer[0], {"max_new_tokens": N_NEW}
    found = {
        "generation/generate.py: stream": hands(
            generation, "draw_token", lambda: next(stream(model, PROMPT, **much, **alone))
        ),
        "generation/generate.py: generate": hands(
            generation, "draw_token", lambda: generate(model, PROMPT, **much, **alone)
        ),
        **{
            f"cli/options.py: {command}_options, as {typed(name)}": getattr(
                parsed(command), name, None
            )
            for command in COMMANDS
        },
        "cli/text.py: _sampling": getattr(cli_text._sampling(told("generate")), name, None),
        "generation/text_generation.py: write_on": hands(text_generation, "stream", written),
        **{
            f"cli/text.py: {command}": hands(
                cli_text, "write_on", lambda command=command: commanded(command)
            )
            for command in COMMANDS
        },
    }
    return [
        f"{name!r} of Sampling is lost: hand it on in transformer_lib/{where}"
        for where, arrived in found.items()
        if arrived != value
    ]


@pytest.mark.parametrize("name", TRIED)
def test_every_function_hands_an_option_on(name, writer, monkeypatch):
    fail_on(losses(name, TRIED[name], writer, monkeypatch))


def test_who_loses_an_option_is_told(writer, monkeypatch):
    told = losses("top_z", 1, writer, monkeypatch)
    assert [loss.split("transformer_lib/")[1] for loss in told] == [
        "generation/generate.py: stream",
        "generation/generate.py: generate",
        "cli/options.py: generate_options, as --top-z",
        "cli/options.py: chat_options, as --top-z",
        "cli/text.py: _sampling",
        "generation/text_generation.py: write_on",
        "cli/text.py: generate",
        "cli/text.py: chat",
    ]


# The whole way, from what a user writes to what is drawn


def commanded(command, options):
    words = [word for name, value in options.items() for word in (typed(name), str(value))]
    return cli.main([command, "--model", "x", "--tokens", str(N_NEW), "--seed", "0", *words])


WAYS = {
    "generate": lambda model, options: generate(model, PROMPT, max_new_tokens=N_NEW, **options),
    "stream": lambda model, options: list(stream(model, PROMPT, max_new_tokens=N_NEW, **options)),
    "python -m transformer_lib generate": lambda _, options: commanded("generate", options),
    "python -m transformer_lib chat": lambda _, options: commanded("chat", options),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRIED)
def test_an_option_changes_what_is_drawn(name, way, writer, monkeypatch):
    def drawn(**options):
        """The tokens, and the samplings that they were drawn with."""
        tokens, samplings = [], set()

        def draw(logits, sampling, *others):
            samplings.add(sampling)
            tokens.append(draw_token(logits, sampling, *others).tolist())
            return torch.tensor(tokens[-1])

        monkeypatch.setattr(generation, "draw_token", draw)
        monkeypatch.setattr(sys, "stdin", io.StringIO("one\n"))
        torch.manual_seed(0)
        WAYS[way](writer[0], options)
        return tokens, samplings

    plain = {"temperature": 1.0, "top_p": 1.0}  # the command line has other defaults
    before, _ = drawn(**plain)
    after, samplings = drawn(**plain | {name: TRIED[name]})
    said = f"{way}: {name}={TRIED[name]}"
    wanted = {Sampling(**{name: TRIED[name]})}
    assert samplings == wanted, f"{said} is not what tokens are drawn with"
    assert after != before, f"{said} changes nothing that is drawn"
