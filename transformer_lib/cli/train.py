"""The command that trains a model on a text or on pairs."""

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from transformer_lib.cli.answers import read_answers, read_text
from transformer_lib.cli.options import FURTHER_RATE, LORA_RATE, NEW_MODEL, NEW_RATE, WRITING
from transformer_lib.cli.text import adapter_base, find_device, load_writer, translate_text
from transformer_lib.generation.text_generation import AnyTokenizer, write_on
from transformer_lib.hugging_face.peft_format import save_peft
from transformer_lib.hugging_face.pretrained import save_pretrained
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.lora import add_lora, lora_layers, trainable_parameters
from transformer_lib.models.lora_files import save_lora
from transformer_lib.models.presets import PRESETS
from transformer_lib.models.saving import save_model
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import Tokenizer
from transformer_lib.training.data import Batches, TextWindows, translation_batch
from transformer_lib.training.distributed import rank_and_world
from transformer_lib.training.loop import train as run_training
from transformer_lib.training.recipes import Recipe, modern_recipe
from transformer_lib.training.run_checkpoints import last_checkpoint_step
from transformer_lib.training.run_log import Metrics

KINDS = {k.__name__.removesuffix("Tokenizer").lower(): k for k in Tokenizer.__subclasses__()}
Data = tuple[AnyTokenizer, tuple[Batches, Batches], int]  # for training and validation; the length
SAMPLE = 200  # tokens of the text that is shown when training is done


def train(given: Namespace) -> None:
    """Train a model: :func:`~transformer_lib.cli.options.train_options` says how.

    Args:
        given: what the command line says.

    Example:
        >>> train(Namespace(data=Path("a.txt")))
        Traceback (most recent call last):
        ValueError: data='a.txt' holds nothing; expected a text file or a .tsv
    """
    if not (given.data.is_file() and given.data.stat().st_size):
        raise ValueError(f"data={str(given.data)!r} holds nothing; expected a text file or a .tsv")
    device = find_device(given.device)
    translates = given.data.suffix.lower() == ".tsv"
    _fill_in(given, translates)
    there = None if given.model is None else load_writer(given)
    tokenizer, (batches, validation), max_len = _read_data(given, there)
    model = _build(given, tokenizer, max_len, translates) if there is None else there[0]
    out = getattr(given, "out", Path("runs") / (given.data.stem + "-lora" * bool(given.lora)))
    if given.lora is not None:
        _add_adapters(given, model, out)
    made: list[Metrics] = []
    with _stopped_politely(given, out):
        rows = run_training(
            model, batches, _recipe(given),
            validation=validation, folder=out, device=device, on_step=made.append,
        )  # fmt: skip
    if rank_and_world()[0] == 0:  # of the processes of torchrun
        _save(given, model, tokenizer, out)
        loss = f"validation loss {rows[-1]['validation_loss']:.4f}"
        if made:
            print(f"{loss}; the {'adapters are' if lora_layers(model) else 'model is'} in {out}.")
        else:
            print(f"Already finished: {out} holds all {given.steps} steps ({loss}).")
            print("To go on, ask for more --steps; to start anew, name another folder with --out.")
        _show(model, tokenizer, validation, device)
        use = f'translate "{_sources(tokenizer, validation)[0]}"' if translates else "generate"
        print(f'For more:\npython -m transformer_lib {use} --model "{out}"')


def _fill_in(given: Namespace, translates: bool) -> None:
    """Set what the user has left out; a model that is there has its own."""
    if given.model is not None and translates:
        raise ValueError(f"model={str(given.model)!r} goes on with a text; expected no .tsv")
    for what, asked in (("lora", given.lora), ("data", _has_answers(given) and str(given.data))):
        if asked and given.model is None:
            raise ValueError(f"{what}={asked!r} is for a model that is there; expected --model")
    for name, usual in NEW_MODEL.items():
        if given.model is not None and getattr(given, name) is not None:
            value = getattr(given, name)
            raise ValueError(f"{name}={value!r} is for a new model; that of --model has its own")
        if getattr(given, name) is None:
            setattr(given, name, usual)
    if given.learning_rate is None:
        further = FURTHER_RATE if given.lora is None else LORA_RATE
        given.learning_rate = NEW_RATE if given.model is None else further
    given.dtype = "float32"  # in which small steps are not rounded away


def _add_adapters(given: Namespace, model: CausalLM | Seq2SeqLM, out: Path) -> None:
    """Put new adapters beside the layers of a model that is there."""
    if out.resolve() == given.model.resolve():
        raise ValueError(f"out={str(out)!r} is the model itself; expected a folder for adapters")
    layers = "all" if given.lora_layers == "all" else given.lora_layers.split(",")
    torch.manual_seed(given.seed)
    add_lora(model, given.lora, 2.0 * given.lora, layers=layers)
    n_all = sum(parameter.numel() for parameter in model.parameters())
    n_trained = trainable_parameters(model)
    print(f"{n_trained:,} of {n_all:,} parameters are trained ({n_trained / n_all:.2%}).")


def _save(
    given: Namespace, model: CausalLM | Seq2SeqLM, tokenizer: AnyTokenizer, out: Path
) -> None:
    """Write the model as what it was: a checkpoint, or one of ours; of adapters these alone."""
    if lora_layers(model):
        new = given.lora is not None
        base = str(given.model.resolve()) if new else adapter_base(given.model)
        (save_peft if isinstance(tokenizer, PretrainedTokenizer) else save_lora)(
            model, out, base=base
        )
    elif isinstance(tokenizer, PretrainedTokenizer):
        save_pretrained(model, out, tokenizer=tokenizer)
    else:
        save_model(model, out, tokenizer=tokenizer)


@contextmanager
def _stopped_politely(given: Namespace, out: Path) -> Iterator[None]:
    """Say after Ctrl-C how to go on. A request to end (SIGTERM) does the same as Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    here = threading.current_thread() is threading.main_thread()  # others get no signals
    if here:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        step = last_checkpoint_step(out / "checkpoints")
        after, how = "before the first checkpoint", "The same command starts anew"
        if step is not None:
            after = f"after step {step} of {given.steps}"
            how = f"The same command goes on from {out}"
        print(f"Stopped {after}. {how}.", file=sys.stderr)
        raise
    finally:
        if here:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _build(
    given: Namespace, tokenizer: AnyTokenizer, max_len: int, translates: bool
) -> CausalLM | Seq2SeqLM:
    config = replace(
        PRESETS["llama-2-7b"].config,
        vocab_size=tokenizer.vocab_size,
        max_len=max_len,
        d_model=given.d_model,
        n_heads=given.heads,
        n_layers=given.layers,
        d_ff=given.d_model // 3 * 8,  # three matrices of SwiGLU cost what two of 4 D did
        dropout=given.dropout,
    )
    torch.manual_seed(given.seed)
    return Seq2SeqLM(config) if translates else CausalLM(config)


def _recipe(given: Namespace) -> Recipe:
    """What decides about the weights does not depend on the steps, so that more can be added."""
    return modern_recipe(
        given.steps,
        given.learning_rate,
        warmup=(10 if given.steps > 10 else 0) if given.warmup is None else given.warmup,
        schedule=given.schedule,
        optimizer=given.optimizer,
        average=given.average,
        accumulate=given.accumulate,
        precision=given.precision,
        compile=given.compile,
        seed=given.seed,
        log_every=max(given.steps // 100, 1),
        checkpoint_every=given.checkpoint_every or max(given.steps // 20, 1),
        validate_every=200,
    )


def _show(
    model: CausalLM | Seq2SeqLM, tokenizer: AnyTokenizer, validation: Batches, device: str
) -> None:
    """Print a sample of what the model has learned."""
    if isinstance(model, Seq2SeqLM) and isinstance(tokenizer, Tokenizer):
        for source in _sources(tokenizer, validation):
            print(f"{source} -> {translate_text(model, tokenizer, source)[0]}")
        return
    assert isinstance(model, CausalLM)
    torch.manual_seed(0)  # the same weights, the same sample
    prompt = tokenizer.encode("\n") or [0]
    print("A sample of what it writes:")
    print(*write_on(model, tokenizer, prompt, WRITING, SAMPLE, device), sep="")


def _sources(tokenizer: AnyTokenizer, pairs: Batches) -> list[str]:
    """The first few texts that a translator was judged by."""
    return [tokenizer.decode(pairs.examples[n][0]) for n in range(min(len(pairs.examples), 3))]


def _has_answers(given: Namespace) -> bool:
    return bool(given.data.suffix.lower() == ".jsonl")


def _read_data(given: Namespace, there: tuple[CausalLM, AnyTokenizer] | None) -> Data:
    """Return the data of a file by its kind, and the tokenizer."""
    if there is not None and _has_answers(given):
        model, tokenizer = there
        return tokenizer, read_answers(given, model, tokenizer), model.config.max_len
    known = None if there is None else there[1]
    return _pairs(given) if given.data.suffix.lower() == ".tsv" else _windows(given, known)


def _windows(given: Namespace, known: AnyTokenizer | None) -> Data:
    """Return a text's tokenizer, its windows for training and validation, and their length."""
    text = read_text(given.data)
    cut = len(text) * 19 // 20
    tokenizer = known or KINDS[given.tokenizer].train([text[:cut]], given.vocab_size)
    parts = [_plain_ids(tokenizer, part) for part in (text[:cut], text[cut:])]
    shortest = min(map(len, parts))
    if shortest <= given.context:
        rest = f"{shortest} tokens of {given.data} are for validation; expected fewer, or more text"
        raise ValueError(f"context={given.context} is too long: {rest}")
    training, validation = (
        TextWindows(torch.tensor(ids).long(), given.context, given.batch_size, given.seed)
        for ids in parts
    )
    return tokenizer, (training, validation), given.context


def _plain_ids(tokenizer: AnyTokenizer, text: str) -> list[int]:
    """Encode a text in which nothing is a sign for the model."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.encode(text, special=False, parse_special=False)
    return tokenizer.encode(text)


def _pairs(given: Namespace) -> Data:
    """Return the same for pairs of texts; the length has room for the longest."""
    lines = read_text(given.data).strip("\n").split("\n")
    names, *rows = [line.split("\t") for line in lines]
    parts: dict[str, list[list[str]]] = {"train": [], "validation": []}
    for n, row in enumerate(rows):
        if len(row) != len(names) or len(row) < 2 or not all(row[-2:]):
            raise ValueError(f"{given.data}, line {n + 2} must have what line 1 names")
        part = row[0] if names[0] == "split" else "train" if n % 20 else "validation"
        parts.setdefault(part, []).append(row[-2:])
    for part in ("train", "validation"):
        if not parts[part]:
            raise ValueError(f"data={str(given.data)!r} has no row for {part!r}; expected some")
    texts = [text for pair in parts["train"] for text in pair]
    tokenizer = KINDS[given.tokenizer].train(texts, given.vocab_size)
    training, validation = (
        Batches(
            [(tokenizer.encode(source), tokenizer.encode(target)) for source, target in pairs],
            translation_batch,
            batch_size=given.batch_size,
            length=lambda pair: max(map(len, pair)),
            bucket=32 * given.batch_size,
            seed=given.seed,
        )
        for pairs in (parts["train"], parts["validation"])
    )
    longest = max(training.lengths + validation.lengths)
    return tokenizer, (training, validation), max(given.context, longest + 1)  # <bos> is read too
