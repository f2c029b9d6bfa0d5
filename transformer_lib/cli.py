"""The command line: train, generate, chat, translate, trace.

Begin with `train`, then `generate`: neither needs an option. Each command has its own --help, with
examples that work as they stand in a clone of the repository.
"""

import argparse
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from inspect import getdoc
from pathlib import Path
from typing import NoReturn

import torch

from transformer_lib.checks import check_whole
from transformer_lib.cli_text import (
    BOOK,
    DEVICES,
    Arguments,
    chat,
    chat_options,
    generate,
    generate_options,
    translate,
    translate_options,
)
from transformer_lib.data import Batches, TextWindows, translation_batch
from transformer_lib.models import CausalLM, Seq2SeqLM, VisionTransformer
from transformer_lib.presets import PRESETS, build_preset
from transformer_lib.recipes import modern_recipe
from transformer_lib.saving import load_model, save_model
from transformer_lib.tokenizers import Tokenizer
from transformer_lib.tracing import trace
from transformer_lib.training import train

KINDS = {k.__name__.removesuffix("Tokenizer").lower(): k for k in Tokenizer.__subclasses__()}
Data = tuple[Tokenizer, tuple[Batches, Batches], int]  # for training and validation; the length


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. What a user did wrong is said in one line, and the status is 2.

    Args:
        arguments: what follows ``python -m transformer_lib``; that of this process if left out.

    Returns:
        0, or 130 after Ctrl-C.

    Raises:
        SystemExit: with status 2 for bad arguments, with 0 after ``--help``.

    Example:
        >>> main(["presets"])  # doctest: +ELLIPSIS
        preset            model               layers  width  heads       parameters  published...
        transformer-base  Seq2SeqLM                6    512      8       63,082,496  65M...
        ...
        0
    """
    parser = _make_parser()
    given = parser.parse_args(arguments)
    try:
        given.command(given)
    except (ValueError, OSError, ImportError, ArithmeticError, torch.OutOfMemoryError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _train(given: Arguments) -> None:
    """Train a small GPT on a text, or a translator on pairs of texts.

    Without any option it learns Shakespeare, character by character, in minutes on a laptop:

        python -m transformer_lib train

    A file that ends in .tsv makes a translator instead. Its first line names the columns; the
    last two are source and target. If the first one is called "split", it says which rows are
    for "train" and "validation", else each twentieth row is for validation. (Of a text, the last
    twentieth is.)

        python -m transformer_lib train --data book/data/numbers.tsv --steps 3000

    The bar shows the loss: how much the right next token surprises the model, in nats. To know
    nothing is about 5.6, to know how often each letter comes about 3. In the end, --out holds

        model.json, model.safetensors, tokenizer.json   the model, for `generate` or `translate`
        metrics.csv, curve.svg                          how the loss went down
        checkpoints                                     where to go on from

    Stop with Ctrl-C; the same command goes on from the last checkpoint. To share the work among
    processes, write `torchrun --nproc-per-node 2 -m` for `python -m`.
    """
    if not (given.data.is_file() and given.data.stat().st_size):
        raise ValueError(f"there is nothing in {given.data}; name a file with --data FILE")
    translates = given.data.suffix == ".tsv"
    tokenizer, (batches, validation), max_len = _pairs(given) if translates else _windows(given)
    config = replace(
        PRESETS["llama-2-7b"].config,
        vocab_size=tokenizer.vocab_size,
        max_len=max_len,
        d_model=given.d_model,
        n_heads=given.heads,
        n_layers=given.layers,
        d_ff=given.d_model // 3 * 8,  # three matrices of SwiGLU cost what two of 4 D did
    )
    torch.manual_seed(given.seed)
    model = Seq2SeqLM(config) if translates else CausalLM(config)
    recipe = modern_recipe(
        given.steps,
        given.learning_rate,
        precision=given.precision,
        compile=given.compile,
        seed=given.seed,
        log_every=max(given.steps // 100, 1),
        checkpoint_every=max(given.steps // 20, 1),
        validate_every=max(given.steps // 5, 1),
    )
    out = getattr(given, "out", Path("runs") / given.data.stem)
    try:
        rows = train(model, batches, recipe, validation=validation, folder=out, device=given.device)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from the last checkpoint.", file=sys.stderr)
        raise
    if os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun
        save_model(model, out, tokenizer=tokenizer)
        print(f"validation loss {rows[-1]['validation_loss']:.4f}; the model is in {out}. Now try")
        use = "generate"
        if translates:
            use = f'translate "{tokenizer.decode(validation.examples[0][0])}"'
        print(f'python -m transformer_lib {use} --model "{out}"')


def _windows(given: Arguments) -> Data:
    """Return a text's tokenizer, its windows for training and validation, and their length."""
    text = given.data.read_text(encoding="utf-8")
    cut = len(text) * 19 // 20
    tokenizer = KINDS[given.tokenizer].train([text[:cut]], given.vocab_size)
    training, validation = (
        TextWindows(torch.tensor(ids).long(), given.context, given.batch_size, given.seed)
        for ids in (tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:]))
    )
    return tokenizer, (training, validation), given.context


def _pairs(given: Arguments) -> Data:
    """Return the same for pairs of texts; the length has room for the longest."""
    lines = given.data.read_text(encoding="utf-8").strip("\n").split("\n")
    names, *rows = [line.split("\t") for line in lines]
    parts: dict[str, list[list[str]]] = {"train": [], "validation": []}
    for n, row in enumerate(rows):
        if len(row) != len(names) or len(row) < 2 or not all(row[-2:]):
            raise ValueError(f"{given.data}, line {n + 2} must have what line 1 names")
        part = row[0] if names[0] == "split" else "train" if n % 20 else "validation"
        parts.setdefault(part, []).append(row[-2:])
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


def _trace(given: Arguments) -> None:
    """Show every step of a forward pass: shapes, parameters, operations, memory.

        python -m transformer_lib trace gpt2
        python -m transformer_lib trace book/results/numbers --length 64

    The model is one of `presets`, even the largest, which takes no memory here, or a folder that
    `train` has written. Blocks that do the same are one line.
    """
    check_whole("batch", given.batch)
    check_whole("length", given.length)
    if given.model in PRESETS:
        model = build_preset(given.model, device="meta")
    elif Path(given.model).is_dir():
        model = load_model(given.model, device="meta")
    else:
        nearest = get_close_matches(given.model, PRESETS, n=1, cutoff=0)[0]
        raise ValueError(f"{given.model!r} is no folder and no preset; the nearest is {nearest!r}")
    inputs = [torch.zeros(given.batch, given.length, dtype=torch.long, device="meta")]
    if isinstance(model, VisionTransformer):
        size = model.patches.image_size
        inputs = [torch.zeros(given.batch, model.patches.n_channels, size, size, device="meta")]
    print(trace(model, *inputs * (2 if isinstance(model, Seq2SeqLM) else 1)))


def _presets(_: Arguments) -> None:
    """List the famous models that this library builds, and how large they are.

        python -m transformer_lib presets

    "parameters" are counted here; "published" is what the authors say, or what their weights have.
    """
    line = "{:17} {:18} {:>7} {:>6} {:>6} {:>16}  {:14} {}"
    names = ("preset", "model", "layers", "width", "heads", "parameters", "published", "source")
    print(line.format(*names))
    for name, preset in PRESETS.items():
        config = preset.config
        with torch.device("meta"):
            kind = type(preset.build(replace(config, n_layers=1))).__name__
        sizes = (config.n_layers, config.d_model, config.n_heads, f"{preset.parameters:,}")
        print(line.format(name, kind, *sizes, preset.published, preset.source))


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and descriptions as they were written."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help says more)\n")


def _train_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", type=Path, default=BOOK / "data/shakespeare.txt", help="a text, or pairs (.tsv)")
    add("--out", type=Path, default=argparse.SUPPRESS, help="folder (default: runs/NAME of --data)")
    add("--steps", type=int, default=1_000, help="how often the weights are changed")
    add("--batch-size", type=int, default=16, help="pieces of text, or pairs, for one change")
    add("--context", type=int, default=64, help="most tokens that the model sees at once")
    add("--layers", type=int, default=4, help="blocks, one after the other")
    add("--d-model", type=int, default=128, help="numbers in a token's vector")
    add("--heads", type=int, default=4, help="attention heads of a block")
    add("--tokenizer", choices=KINDS, default="char", help="what a token is")
    add("--vocab-size", type=int, default=2_000, help="most different tokens; 259 are always there")
    add("--learning-rate", type=float, default=2e-3, help="the highest one; it falls to a tenth")
    add("--precision", default="float32", help="of products; bfloat16 and float16 suit GPUs")
    add("--compile", action="store_true", help="translate the model into faster code first")
    add("--seed", type=int, default=0, help="another number: other first weights, other batches")
    add("--device", choices=DEVICES, default=DEVICES[0], help="where to compute")


def _trace_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="a preset, or the folder of a trained model")
    add("--batch", type=int, default=1, help="how many sequences it reads at once")
    add("--length", type=int, default=8, help="how many tokens each of them has")


# Each is described by its docstring.
COMMANDS: dict[Callable[[Arguments], None], Callable[[ArgumentParser], None]] = {
    _train: _train_options,
    generate: generate_options,
    chat: chat_options,
    translate: translate_options,
    _trace: _trace_options,
    _presets: lambda parser: None,  # there is nothing to choose
}


def _make_parser() -> _Parser:
    parser = _Parser("python -m transformer_lib", description=__doc__, formatter_class=_Help)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for run, add_options in COMMANDS.items():
        name, text = run.__name__.strip("_"), (getdoc(run) or "").split("\n\nArgs:")[0]
        added = commands.add_parser(name, help=text.split("\n")[0], formatter_class=_Help)
        added.description = text
        added.set_defaults(command=run)
        add_options(added)
    return parser
