"""Commands that write text: generate, chat, translate."""

import argparse
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import torch

from transformer_lib.beams import beam_search
from transformer_lib.checks import check_whole
from transformer_lib.compiled import CompiledDecoder
from transformer_lib.files import book_folder
from transformer_lib.generation import stream
from transformer_lib.hugging_face.tokenizer_json import PretrainedTokenizer
from transformer_lib.models import CausalLM, Seq2SeqLM
from transformer_lib.pretrained import load_pretrained
from transformer_lib.sampling import Sampling
from transformer_lib.saving import load_model
from transformer_lib.text_stream import TextStream
from transformer_lib.tokenizers import Tokenizer

BOOK = book_folder()
GPUS = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
DEVICES = [name for name, is_there in GPUS.items() if is_there] + ["cpu"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Arguments = argparse.Namespace  # what the command line says
AnyTokenizer = Tokenizer | PretrainedTokenizer


def generate(given: Arguments) -> None:
    """Let a model go on from a prompt; the text appears as it is written.

        python -m transformer_lib generate --prompt "Friends, " --tokens 300

    The model is what `train` has made of a text, or a folder with a Hugging Face checkpoint. Each
    token is drawn at random from the model's probabilities; the options make likely tokens
    likelier, or leave unlikely ones out.

    The text may be longer than the model's context: it then sees only the newer part.

    Args:
        given: what the command line says.

    Example:
        >>> generate.__name__
        'generate'
    """
    sampling = _sampling(given)  # which says what is wrong before a model is looked for
    model, tokenizer = _load_writer(given)
    ids = tokenizer.encode(_some(given.prompt))
    print(given.prompt, end="", flush=True)
    for text in _write(model, tokenizer, ids, sampling, given):
        print(text, end="", flush=True)
    print()


def chat(given: Arguments) -> None:
    """Talk with a model that was trained to answer, line by line.

        python -m transformer_lib chat --model FOLDER

    The folder holds a Hugging Face checkpoint whose tokenizer has a chat template. Each line of the
    standard input is a message; the model has all before it in view. An empty line, or the end of
    the input, ends the conversation.

    Args:
        given: what the command line says.

    Example:
        >>> chat.__name__
        'chat'
    """
    sampling = _sampling(given)
    model, tokenizer = _load_writer(given)
    if not isinstance(tokenizer, PretrainedTokenizer) or tokenizer.chat_template is None:
        raise ValueError(f"{given.model} has no chat template; `generate` needs none")
    messages = [{"role": "system", "content": given.system}] if given.system else []
    while line := _next_line():
        messages.append({"role": "user", "content": line})
        answer = []
        for text in _write(model, tokenizer, tokenizer.chat(messages), sampling, given):
            print(text, end="", flush=True)
            answer.append(text)
        print()
        messages.append({"role": "assistant", "content": "".join(answer)})


def _next_line() -> str:
    if sys.stdin.isatty():
        print("> ", end="", flush=True)
    return sys.stdin.readline().strip()


def _write(
    model: CausalLM, tokenizer: AnyTokenizer, ids: list[int], sampling: Sampling, given: Arguments
) -> Iterator[str]:
    """Write on from ids, until an end token or until there are enough; yield whole letters."""
    context = model.config.max_len
    writer = CompiledDecoder(model, context) if given.compile else model
    if given.seed is not None:
        torch.manual_seed(given.seed)
    ends = _end_ids(tokenizer)
    ids, end, text = list(ids), len(ids) + given.tokens, TextStream(tokenizer)
    while len(ids) < end and ids[-1] not in ends:
        known = ids if len(ids) <= context else ids[-(context // 2) - 1 :]  # empty it by half
        tokens = stream(
            writer,
            torch.tensor([known], device=given.device),
            max_new_tokens=min(end - len(ids), context + 1 - len(known)),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            eos_id=ends or None,
        )
        for token in tokens:
            ids.append(int(token))
            yield text.push(ids[-1])
    yield text.end()


def _end_ids(tokenizer: AnyTokenizer) -> tuple[int, ...]:
    return tokenizer.eos_ids if isinstance(tokenizer, PretrainedTokenizer) else (tokenizer.eos_id,)


def translate(given: Arguments) -> None:
    """Translate texts with a model that `train` has made of pairs.

        python -m transformer_lib translate "two hundred and forty-one" seven
        echo twelve | python -m transformer_lib translate --beams 4

    One line comes out for each text; without texts, for each line of the standard input that is
    not empty. More beams look further ahead: they follow so many translations at once and keep
    the likeliest.

    The model that comes with the book turns English number words into German ones.

    Args:
        given: what the command line says.

    Example:
        >>> translate.__name__
        'translate'
    """
    model, tokenizer = _load_translator(given)
    for text in given.text or filter(str.strip, sys.stdin):
        source = torch.tensor([tokenizer.encode(_some(text.strip()))], device=given.device)
        start = torch.full_like(source[:, :1], tokenizer.bos_id)
        ids, _ = beam_search(
            model,
            start,
            source=source,
            n_beams=given.beams,
            max_new_tokens=model.config.max_len,
            eos_id=tokenizer.eos_id,
        )
        print(tokenizer.decode(ids[0, 0].tolist()), flush=True)


def _sampling(given: Arguments) -> Sampling:
    check_whole("tokens", given.tokens)
    return Sampling(
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
    )


def _load_writer(given: Arguments) -> tuple[CausalLM, AnyTokenizer]:
    """Return a model that writes on, of `train` or of a checkpoint, and its tokenizer."""
    model, tokenizer = _load_own(given) if _is_own(given) else _load_checkpoint(given)
    if not isinstance(model, CausalLM):
        raise ValueError(f"{given.model} has a {type(model).__name__}; expected a CausalLM")
    return model, tokenizer


def _load_translator(given: Arguments) -> tuple[Seq2SeqLM, Tokenizer]:
    model, tokenizer = _load_own(given)
    if not isinstance(model, Seq2SeqLM):
        raise ValueError(f"{given.model} has a {type(model).__name__}; expected a Seq2SeqLM")
    return model, tokenizer


def _is_own(given: Arguments) -> bool:
    return (given.model / "model.json").is_file() or not (given.model / "config.json").is_file()


def _load_own(given: Arguments) -> tuple[torch.nn.Module, Tokenizer]:
    if not (given.model / "model.json").is_file():
        raise ValueError(f"there is no finished model in {given.model}; `train` makes one")
    tokenizer = Tokenizer.load(given.model / "tokenizer.json")
    return load_model(given.model, given.device), tokenizer


def _load_checkpoint(given: Arguments) -> tuple[torch.nn.Module, PretrainedTokenizer]:
    model, tokenizer = load_pretrained(given.model, dtype=DTYPES[given.dtype], device=given.device)
    if tokenizer is None:
        raise ValueError(f"{given.model} has no tokenizer.json, so there is no text to write")
    return model, tokenizer


def _some(text: str) -> str:
    if not text:
        raise ValueError("the text is empty; the model needs something to read")
    return text


def generate_options(parser: ArgumentParser) -> None:
    """Say what :func:`generate` can be told.

    Args:
        parser: of the command.

    Example:
        >>> generate_options(parser := ArgumentParser())
        >>> parser.parse_args([]).tokens
        500
    """
    add = parser.add_argument
    add("--model", type=Path, default=Path("runs/shakespeare"), help="of `train`, or a checkpoint")
    add("--prompt", default="\n", help="what to go on from (default: %(default)r)")
    _add_sampling(parser, temperature=0.8)


def chat_options(parser: ArgumentParser) -> None:
    """Say what :func:`chat` can be told.

    Args:
        parser: of the command.

    Example:
        >>> chat_options(parser := ArgumentParser())
        >>> parser.parse_args(["--model", "somewhere"]).temperature
        0.7
    """
    add = parser.add_argument
    add("--model", type=Path, required=True, help="the folder of a checkpoint")
    add("--system", default="", help="what the model is told before the first message")
    _add_sampling(parser, temperature=0.7)


def _add_sampling(parser: ArgumentParser, temperature: float) -> None:
    add = parser.add_argument
    add("--tokens", type=int, default=500, help="how many to write at most")
    add("--temperature", type=float, default=temperature, help="0: the likeliest; 1: as learned")
    add("--top-k", type=int, help="draw only from so many of the likeliest")
    add("--top-p", type=float, default=0.95, help="only from the likeliest with so much together")
    add("--min-p", type=float, default=0.0, help="only from those with so much of the best one's")
    add("--repetition-penalty", type=float, default=1.0, help="above 1: avoid what was there")
    add("--seed", type=int, help="the same number, the same text")
    add("--compile", action="store_true", help="translate the model into faster code first")
    add("--dtype", choices=DTYPES, default="float32", help="numbers of a checkpoint's weights")
    add("--device", choices=DEVICES, default=DEVICES[0], help="where to compute")


def translate_options(parser: ArgumentParser) -> None:
    """Say what :func:`translate` can be told.

    Args:
        parser: of the command.

    Example:
        >>> translate_options(parser := ArgumentParser())
        >>> parser.parse_args(["two"]).beams
        1
    """
    add = parser.add_argument
    add("text", nargs="*", help="what to translate; if left out, lines from the standard input")
    add("--model", type=Path, default=BOOK / "results/numbers", help="the folder `train` wrote")
    add("--beams", type=int, default=1, help="how many translations are followed at once")
    add("--device", choices=DEVICES, default=DEVICES[0], help="where to compute")
