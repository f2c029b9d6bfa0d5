"""Commands that write text: generate, chat, translate."""

import csv
import math
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import torch

from transformer_lib.cli.options import BOOK_WRITERS, OWN_WRITER
from transformer_lib.core.devices import devices_here
from transformer_lib.core.fast_path_register import fast_path
from transformer_lib.core.files import read_object
from transformer_lib.generation.beam_search import beam_search, length_divisor
from transformer_lib.generation.constrained import AllowedText
from transformer_lib.generation.fast_interfaces import FastDecoder
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.text_generation import AnyTokenizer, end_ids, write_on
from transformer_lib.hugging_face.peft_format import SETTINGS as PEFT_SETTINGS
from transformer_lib.hugging_face.peft_format import load_peft
from transformer_lib.hugging_face.pretrained import load_pretrained
from transformer_lib.models import lora_files
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.lora_files import load_lora
from transformer_lib.models.saving import load_model
from transformer_lib.text.byte_automaton import ByteAutomaton, read_pattern, read_texts
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTH_PENALTY = 0.6  # of beam search, as in 2017
# Nats per token above the validation loss from which on a translation counts as a guess. Of 1,100
# number words that the book's model was not trained on, none has more than 0.0023; of what is no
# number, hardly anything has less than 0.0064.
UNSURE = 0.006

SMALLEST_ROOM = 256  # tokens that a compiled decoder has room for, if the model has


def generate(given: Namespace) -> None:
    """Continue a prompt: :func:`~transformer_lib.cli.options.generate_options` says how.

    Args:
        given: what the command line says.

    Example:
        >>> generate.__name__
        'generate'
    """
    sampling = _sampling(given)  # which says what is wrong before a model is looked for
    texts = _texts(given)
    prompt = _some("prompt", given.prompt)
    if given.model is None:
        given.model = _default_writer()
    model, tokenizer = load_writer(given)
    ids = tokenizer.encode(prompt)
    if not ids:
        raise ValueError(f"{prompt=} has no tokens; expected something for the model to read")
    allowed, n_tokens = _allowed(given, texts, tokenizer), given.tokens
    if allowed is not None:
        n_tokens = min(n_tokens, _room(model, len(ids)))
    print(prompt, end="", flush=True)
    writer = _with_room(model, len(ids) + n_tokens) if given.compile else model
    _seed(given)
    device = find_device(given.device)
    pieces = _show(write_on(writer, tokenizer, ids, sampling, n_tokens, device, allowed=allowed))
    if allowed is not None and not allowed.automaton.accepts("".join(pieces)):
        print(f"The text is not complete: it was cut off after {n_tokens} tokens.", file=sys.stderr)


def chat(given: Namespace) -> None:
    """Talk with a model: :func:`~transformer_lib.cli.options.chat_options` says how.

    Args:
        given: what the command line says.

    Example:
        >>> chat.__name__
        'chat'
    """
    sampling, texts = _sampling(given), _texts(given)
    model, tokenizer = load_writer(given)
    if not isinstance(tokenizer, PretrainedTokenizer) or tokenizer.chat_template is None:
        raise ValueError(f"{_named(given)} has no chat template; `generate` needs none")
    allowed = _allowed(given, texts, tokenizer)
    context, device = model.config.max_len, find_device(given.device)
    messages = [{"role": "system", "content": given.system}] if given.system else []
    fast: FastDecoder | None = None
    while line := _next_line():
        messages.append({"role": "user", "content": _some("message", line)})
        ids = _fit(tokenizer, messages, context, given.tokens)
        n_tokens = min(given.tokens, context + 1 - len(ids))  # the last one is not read
        if given.compile:
            fast = _with_room(model, len(ids) + n_tokens, fast)
        _seed(given)
        pieces = _show(
            write_on(
                fast or model, tokenizer, ids, sampling, n_tokens, device,
                goes_on=False, allowed=allowed,
            )
        )  # fmt: skip
        all_used = len(pieces) > n_tokens  # there is a piece for each token, and one for the rest
        if all_used and n_tokens < given.tokens:
            print(
                f"The context of {context} tokens is full: the answer ends here.", file=sys.stderr
            )
        messages.append({"role": "assistant", "content": "".join(pieces)})


def _show(pieces: Iterable[str]) -> list[str]:
    """Print a text piece by piece as it is written; return the pieces."""
    shown = []
    for piece in pieces:
        print(piece, end="", flush=True)
        shown.append(piece)
    print()
    return shown


def _texts(given: Namespace) -> ByteAutomaton | None:
    """What --answers or --pattern says; none if all texts may be written."""
    if given.pattern is not None:
        return read_pattern(given.pattern)
    return None if given.answers is None else read_texts(given.answers)


def _allowed(
    given: Namespace, texts: ByteAutomaton | None, tokenizer: AnyTokenizer
) -> AllowedText | None:
    """Those texts for a tokenizer, in which every text must have an end."""
    if texts is None:
        return None
    if not end_ids(tokenizer):
        why = "no end token, so --answers and --pattern cannot say where a text ends"
        raise ValueError(f"{_named(given)} has {why}")
    return AllowedText(texts, tokenizer)


def _room(model: CausalLM, n_prompt: int) -> int:
    """How many tokens fit behind a prompt where the context cannot move along."""
    context = model.config.max_len
    if n_prompt > context:
        most = f"expected at most {context}, the context, with --answers or --pattern"
        raise ValueError(f"prompt has {n_prompt} tokens; {most}")
    return context + 1 - n_prompt  # the last one is not read


def _next_line() -> str:
    if sys.stdin.isatty():
        print("> ", end="", flush=True)
    return sys.stdin.readline().strip()


def _fit(
    tokenizer: PretrainedTokenizer, messages: list[dict[str, str]], context: int, n_tokens: int
) -> list[int]:
    """Return the ids of a conversation; the oldest turns are removed if there is no room for them.

    The system prompt and the last message stay. Up to a quarter of the context is for the answer.
    """
    room = context - min(n_tokens, context // 4)
    first = 1 if messages[0]["role"] == "system" else 0
    ids, n_removed = tokenizer.chat(messages), 0
    while len(ids) > room and len(messages) > first + 1:
        del messages[first : first + 2]  # a question and its answer
        ids, n_removed = tokenizer.chat(messages), n_removed + 1
    if len(ids) > context:
        parts = "the system prompt and the message" if first else "the message"
        raise ValueError(
            f"{parts} take {len(ids)} tokens; expected {context}, the context, at most"
        )
    if not ids:
        raise ValueError(
            "the chat template wrote nothing; expected something for the model to read"
        )
    if n_removed:
        turns = "oldest turn was" if n_removed == 1 else f"{n_removed} oldest turns were"
        print(f"The context of {context} tokens is full: the {turns} left out.", file=sys.stderr)
    return ids


def _with_room(model: CausalLM, n_tokens: int, fast: FastDecoder | None = None) -> FastDecoder:
    """Return a compiled decoder for so many tokens: the one that is there, if it has room.

    Rooms double, so a conversation that grows is seldom compiled anew.
    """
    most = model.config.max_len
    if fast is not None and fast.max_len >= min(n_tokens, most):
        return fast
    room = SMALLEST_ROOM
    while room < n_tokens:
        room *= 2
    path = fast_path("compiled_decoder")
    if path is None:
        raise ValueError("--compile: this copy of the library is without its fast paths")
    compiled: FastDecoder = path.CompiledDecoder(model, min(room, most))
    return compiled


def _seed(given: Namespace) -> None:
    if given.seed is not None:
        torch.manual_seed(given.seed)


def translate(given: Namespace) -> None:
    """Translate texts: :func:`~transformer_lib.cli.options.translate_options` says how.

    Args:
        given: what the command line says.

    Example:
        >>> translate.__name__
        'translate'
    """
    model, tokenizer = _load_translator(given)
    expected = validation_loss(given.model)
    for text in given.text or filter(str.strip, sys.stdin):
        source = _some("text", text.strip())
        target, surprise = translate_text(model, tokenizer, source, given.beams)
        print(target, flush=True)
        if surprise > expected + UNSURE:
            numbers = f"{surprise:.3f} nats per token; {expected:.3f} in validation"
            print(
                f"Unsure: {source!r} looks unlike the training data ({numbers}).", file=sys.stderr
            )


def translate_text(
    model: Seq2SeqLM, tokenizer: Tokenizer, text: str, n_beams: int = 1
) -> tuple[str, float]:
    """Translate one text, and say how unsure the model is of what it wrote.

    Args:
        model: what translates.
        tokenizer: its tokenizer.
        text: what to translate.
        n_beams: how many translations are followed at once.

    Returns:
        The translation, and how much it surprises the model itself, which is the mean of -log p
        over its tokens, in nats. A loss is the same mean, so both can be compared.

    Example:
        >>> from transformer_lib import CharTokenizer, TransformerConfig
        >>> sizes = {
        ...     "vocab_size": 259,
        ...     "d_model": 8,
        ...     "n_heads": 2,
        ...     "max_len": 9,
        ... }
        >>> model = Seq2SeqLM(TransformerConfig(**sizes))
        >>> _, surprise = translate_text(model, CharTokenizer(), "one")
        >>> surprise > 1  # it has learned nothing
        True
    """
    source = torch.tensor([tokenizer.encode(text)], device=next(model.parameters()).device)
    ids, scores = beam_search(
        model,
        torch.full_like(source[:, :1], tokenizer.bos_id),
        source=source,
        n_beams=n_beams,
        max_new_tokens=model.config.max_len,
        length_penalty=LENGTH_PENALTY,
        eos_id=tokenizer.eos_id,
    )
    best = ids[0, 0, 1:].tolist()
    n_tokens = best.index(tokenizer.eos_id) + 1 if tokenizer.eos_id in best else len(best)
    log_p = float(scores[0, 0]) * length_divisor(n_tokens, LENGTH_PENALTY)
    return tokenizer.decode(best), -log_p / n_tokens


def validation_loss(folder: Path) -> float:
    """Read how well a model did in validation.

    Args:
        folder: where `train` has put it.

    Returns:
        The last validation loss in ``metrics.csv``; infinity if nothing is known.

    Example:
        >>> validation_loss(Path("nowhere"))
        inf
    """
    path = folder / "metrics.csv"
    if not path.is_file():
        return math.inf
    with path.open(encoding="utf-8", newline="") as file:
        losses = [row.get("validation_loss") for row in csv.DictReader(file)]
    return next((float(loss) for loss in reversed(losses) if loss), math.inf)


def find_device(name: str) -> str:
    """Find where to compute.

    Args:
        name: a kind of device, or ``"auto"``: a GPU if there is one.

    Returns:
        Its name for PyTorch.

    Raises:
        ValueError: if PyTorch finds no such device.

    Example:
        >>> find_device("cpu")
        'cpu'
    """
    there = devices_here()
    if name not in ("auto", *there):
        raise ValueError(f"device={name!r}: PyTorch finds none here; expected {' or '.join(there)}")
    return there[0] if name == "auto" else name


def _sampling(given: Namespace) -> Sampling:
    return Sampling(**{option.name: getattr(given, option.name) for option in fields(Sampling)})


def _default_writer() -> Path:
    """Choose a model if none is named: what the user has trained, else the book's; say which."""
    if _is_finished(OWN_WRITER):
        print(f"Model: {OWN_WRITER}, which you have trained.", file=sys.stderr)
        return OWN_WRITER
    for folder in filter(_is_finished, BOOK_WRITERS):
        own = "to train your own: python -m transformer_lib train"
        print(f"Model: {folder.name!r}, which comes with the book; {own}", file=sys.stderr)
        return folder
    raise ValueError("--model is not given, and no model is here; `train` makes one")


def load_writer(given: Namespace) -> tuple[CausalLM, AnyTokenizer]:
    """Find a model that writes on, of `train` or of a checkpoint.

    Args:
        given: what the command line says: ``model``, ``dtype`` and ``device``.

    Returns:
        The model and its tokenizer.

    Raises:
        ValueError: if there is no such model.

    Example:
        >>> given = Namespace(model=Path("nowhere"))
        >>> load_writer(given)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: model='nowhere' holds no finished model; expected ...
    """
    if _holds_adapters(given.model):
        return _load_adapted(given)
    is_checkpoint = not _is_finished(given.model) and (given.model / "config.json").is_file()
    model, tokenizer = _load_checkpoint(given) if is_checkpoint else _load_own(given)
    if not isinstance(model, CausalLM):
        raise ValueError(f"{_named(given)} has a {type(model).__name__}; expected a CausalLM")
    return model, tokenizer


def adapter_base(folder: Path) -> str:
    """Find the model beside which adapters were trained.

    Args:
        folder: of the adapters.

    Returns:
        Where it is, or what it is called on the hub.

    Raises:
        ValueError: if the folder does not say.

    Example:
        >>> adapter_base(Path("nowhere"))
        Traceback (most recent call last):
        ValueError: nowhere has no adapter_config.json
    """
    own = (folder / lora_files.SETTINGS).is_file()
    file, key = (lora_files.SETTINGS, "base") if own else (PEFT_SETTINGS, "base_model_name_or_path")
    base = read_object(folder / file).get(key)
    if not isinstance(base, str) or not base:
        raise ValueError(f"{folder / file} has {key}={base!r}; expected the folder of the model")
    return base


def _holds_adapters(folder: Path) -> bool:
    found = any((folder / name).is_file() for name in (lora_files.SETTINGS, PEFT_SETTINGS))
    if found and (_is_finished(folder) or (folder / "config.json").is_file()):
        raise ValueError(f"model={str(folder)!r} holds a model and adapters; expected one of them")
    return found


def _load_adapted(given: Namespace) -> tuple[CausalLM, AnyTokenizer]:
    """Load a model, and beside it the adapters that a folder holds."""
    base = Path(adapter_base(given.model))
    beside = Namespace(**{**vars(given), "model": base})
    if not base.is_dir() and not (given.model / PEFT_SETTINGS).is_file():
        raise ValueError(f"{_named(given)} has adapters for {str(base)!r}, which is not there")
    model, tokenizer = load_writer(beside) if base.is_dir() else _load_checkpoint(beside)
    assert isinstance(model, CausalLM)
    (load_peft if (given.model / PEFT_SETTINGS).is_file() else load_lora)(model, given.model)
    return model, tokenizer


def _load_translator(given: Namespace) -> tuple[Seq2SeqLM, Tokenizer]:
    model, tokenizer = _load_own(given)
    if not isinstance(model, Seq2SeqLM):
        raise ValueError(f"{_named(given)} has a {type(model).__name__}; expected a Seq2SeqLM")
    return model, tokenizer


def _is_finished(folder: Path) -> bool:
    return (folder / "model.json").is_file()


def _named(given: Namespace) -> str:
    return f"model={str(given.model)!r}"


def _load_own(given: Namespace) -> tuple[torch.nn.Module, Tokenizer]:
    if not _is_finished(given.model):
        raise ValueError(f"{_named(given)} holds no finished model; expected what `train` makes")
    tokenizer = Tokenizer.load(given.model / "tokenizer.json")
    return load_model(given.model, find_device(given.device)), tokenizer


def _load_checkpoint(given: Namespace) -> tuple[torch.nn.Module, PretrainedTokenizer]:
    device = find_device(given.device)
    model, tokenizer = load_pretrained(given.model, dtype=DTYPES[given.dtype], device=device)
    if tokenizer is None:
        raise ValueError(f"{_named(given)} has no tokenizer.json, so there is no text to write")
    return model, tokenizer


def _some(argument: str, text: str) -> str:
    if not text:
        raise ValueError(f"{argument}='' is empty; expected something for the model to read")
    try:
        text.encode()
    except UnicodeEncodeError:  # what Python makes of bytes that it cannot read
        raise ValueError(f"{argument}={text!r} is not UTF-8; expected text") from None
    return text
