"""What each command does and can be told, without PyTorch.

Importing PyTorch takes seconds, and a user who asks for help should not wait for it. So nothing
here, and nothing that :mod:`transformer_lib.cli.main` imports before it runs a command, imports it.
"""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import get_args

from transformer_lib.core.files import book_folder
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.training.recipes import RecipeChoices

BOOK = book_folder()
OWN_WRITER = Path("runs/shakespeare")  # where `train` puts what it makes of the default text
# The large model is left out of the installed package, which it would make twice as big.
BOOK_WRITERS = (BOOK / "results/shakespeare", BOOK / "results/drafts")
TOKENIZERS = ("char", "word", "bpe", "wordpiece")
NUMBERS = ("float32", "bfloat16", "float16")
OPTIMIZERS, SCHEDULES = (
    get_args(RecipeChoices.__annotations__[name]) for name in ("optimizer", "schedule")
)
AVERAGE = 0.99  # if the user wants an average, and says no more
# What a new model is like, if the user does not say; one that is there already has all of it.
NEW_MODEL: dict[str, object] = {
    "layers": 4, "d_model": 128, "heads": 4, "dropout": 0.0, "tokenizer": "char",
    "vocab_size": 2_000,
}  # fmt: skip
NEW_RATE, FURTHER_RATE, LORA_RATE = 2e-3, 2e-5, 2e-4  # the peak of the learning rate
DEVICES = ("auto", "cuda", "mps", "cpu")
WRITING = Sampling(temperature=0.8, top_p=0.95)  # unless the user says otherwise
CHATTING = Sampling(temperature=0.7, top_p=0.95)


def whole_number(text: str) -> int:
    """Read an argument that counts something.

    Args:
        text: what was typed.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: if it is no whole number of at least 1.

    Example:
        >>> whole_number("12")
        12
        >>> whole_number("many")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: 'many' must be a whole number of at least 1
    """
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def seed_number(text: str) -> int:
    """Read the start of the random numbers.

    Args:
        text: what was typed.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: if it is no whole number, or has more than 64 bits.

    Example:
        >>> seed_number("12")
        12
        >>> seed_number("many")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: 'many' must be a whole number below 2**63
    """
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if abs(number) >= 2**63:
        raise ArgumentTypeError(f"{text!r} must be a whole number below 2**63")
    return number


def count(text: str) -> int:
    """Read an argument that counts something of which there may be none.

    Args:
        text: what was typed.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: if it is no whole number of at least 0.

    Example:
        >>> count("0")
        0
    """
    if text == "0":
        return 0
    try:
        return whole_number(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} must be a whole number of at least 0") from None


def answer_list(text: str) -> list[str]:
    """Read the answers of which one is to be written.

    Args:
        text: what was typed: answers with commas between them. Spaces belong to them.

    Returns:
        The answers.

    Raises:
        argparse.ArgumentTypeError: if one is empty.

    Example:
        >>> answer_list("yes,no")
        ['yes', 'no']
        >>> answer_list("yes,")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: 'yes,' has an empty answer; expected A,B,C
    """
    answers = text.split(",")
    if "" in answers:
        raise ArgumentTypeError(f"{text!r} has an empty answer; expected A,B,C")
    return answers


# How an option is read that is a field of Sampling, by the annotation of the field.
READERS: dict[object, Callable[[str], object]] = {float: float, int | None: whole_number}


def train_options(parser: ArgumentParser) -> None:
    """Train a small GPT on a text, or a translator on pairs of texts.

    Without any option it learns to write like Shakespeare, character by character, in minutes on
    a laptop:

        python -m transformer_lib train

    A file that ends in .tsv makes a translator instead. Its first line names the columns; the
    last two are source and target. If the first column is called "split", it says which rows are
    for "train" and which for "validation"; otherwise every twentieth row is for validation. (Of a
    text, the last twentieth is.)

        python -m transformer_lib train --data book/data/numbers.tsv --steps 3000

    With --model, it goes on with a model that is there: one that `train` has made, or a Hugging
    Face checkpoint, which stays one (--out holds config.json, its weights and its tokenizer).

        python -m transformer_lib train --model FOLDER --data FILE --out NEW --steps 200

    With --lora 8, that model stays as it is, and adapters beside its layers learn, which are small
    (LoRA): --out holds only them, and where the model is. `generate` and `chat` read both, and
    `train --model OUT` goes on with the adapters.

    A file that ends in .jsonl teaches answers to a model that is there. Each line is an object with
    "prompt" and "completion", or with "messages", each of which has a "role" and a "content". Only
    completions, and what the assistant says, are learned; the rest is read. Where the tokenizer has
    a chat template, a prompt is a message of the user.

    The progress bar shows the loss: how much the right next token surprises the model, in nats.
    A model that knows nothing has about 5.6, one that knows how frequent each letter is about 3.
    When it is done, you see a sample of what it has learned, and the folder --out holds

        model.json, model.safetensors, tokenizer.json   the model, for `generate` or `translate`
        metrics.csv, curve.svg                          how the loss went down
        checkpoints                                     where to go on from

    You can stop it with Ctrl-C: it then ends the step, writes a checkpoint and says how to go on. A
    second Ctrl-C stops at once; the same command goes on from the last checkpoint then. To share
    the work among several processes, write `torchrun --nproc-per-node 2 -m` for `python -m`.

    Args:
        parser: of the command.

    Example:
        >>> train_options(parser := ArgumentParser())
        >>> parser.parse_args([]).steps
        1000
    """
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        default=BOOK / "data/shakespeare.txt",
        help="a text file, pairs of texts (.tsv), or prompts with answers (.jsonl) "
        "(default: the book's Shakespeare)",
    )
    add("--out", type=Path, default=SUPPRESS, help="folder to write to (default: runs/NAME)")
    add("--steps", type=whole_number, default=1_000, help="number of updates of the weights")
    add("--batch-size", type=whole_number, default=16, help="pieces of text, or pairs, per update")
    add("--context", type=whole_number, default=64, help="how many tokens the model sees at once")
    add("--model", type=Path, help="folder of a model to go on with (default: a new model)")
    for name, default, how in (
        ("layers", whole_number, "number of blocks"),
        ("d-model", whole_number, "width: numbers in a token's vector"),
        ("heads", whole_number, "attention heads per block"),
        ("dropout", float, "probability with which a value is dropped"),
        ("vocab-size", whole_number, "most different tokens; at least 259: bytes and 3 marks"),
    ):
        said = f"{how} (default: {NEW_MODEL[name.replace('-', '_')]})"
        add(f"--{name}", type=default, help=said)
    words = f"how text is cut into tokens (default: {NEW_MODEL['tokenizer']})"
    add("--tokenizer", choices=TOKENIZERS, help=words)
    add("--lora", type=whole_number, metavar="RANK", help="train adapters of this rank instead")
    add(
        "--lora-layers",
        default="query,value",
        help="layers that get an adapter: ends of names, with commas; or all, those of blocks",
    )
    rates = f"(default: {NEW_RATE}, with --model {FURTHER_RATE}, with --lora {LORA_RATE})"
    add("--learning-rate", type=float, help=f"the highest one, after the warm-up {rates}")
    add(
        "--schedule",
        choices=SCHEDULES,
        default="cosine",
        help="how the learning rate goes on; wsd stays at its peak up to the last fifth",
    )
    add(
        "--optimizer",
        choices=OPTIMIZERS,
        default="adamw",
        help="what makes updates of gradients; muon leaves all but matrices of blocks to adamw",
    )
    add(
        "--average",
        type=float,
        nargs="?",
        const=AVERAGE,
        metavar="BETA",
        help="validate and save an average of the weights, of about the last 1 / (1 - BETA) "
        f"updates (BETA: {AVERAGE}) (default: the last weights)",
    )
    add(
        "--warmup",
        type=count,
        help="updates over which the learning rate rises (default: 10, if there are more)",
    )
    add("--accumulate", type=whole_number, default=1, help="batches that make one update")
    add(
        "--checkpoint-every",
        type=whole_number,
        help="updates between two checkpoints (default: a twentieth of --steps)",
    )
    add(
        "--precision",
        choices=NUMBERS,
        default="float32",
        help="number format of matrix products; 16 bits are faster on a GPU",
    )
    add("--compile", action="store_true", help="compile the model first: slow start, faster steps")
    add(
        "--seed",
        type=seed_number,
        default=0,
        help="start of random numbers: weights, batches",
    )
    _add_device(parser)


def generate_options(parser: ArgumentParser) -> None:
    r"""Continue a prompt with a language model; the text appears as it is written.

        python -m transformer_lib generate --prompt "Friends, " --tokens 300

    Without --model it uses the model that `train` has made, in runs/shakespeare; if there is none,
    one that comes with the book. --model names the folder of another one that `train` has made,
    of a Hugging Face checkpoint, or of adapters (LoRA, also those of `peft`).

    Each token is drawn at random, with the probabilities that the model gives. The options below
    favour likely tokens, or exclude unlikely ones. The text may be longer than the model's
    context; the model then sees only the most recent part.

    With --answers or --pattern, nothing else can be written. The text begins right behind the
    prompt, so spaces count, and ends where it is complete.

        python -m transformer_lib generate --prompt "Speak! Will he come? " --answers "Aye,Nay"
        python -m transformer_lib generate --prompt "Act " --pattern "[1-5], Scene \d"

    Args:
        parser: of the command.

    Example:
        >>> generate_options(parser := ArgumentParser())
        >>> parser.parse_args([]).tokens
        500
    """
    add = parser.add_argument
    add("--model", type=Path, help="folder of what `train` made, or of a checkpoint")
    add("--prompt", default="\n", help="the beginning of the text (default: a new line)")
    _add_sampling(parser, WRITING)


def chat_options(parser: ArgumentParser) -> None:
    """Talk with a model that was trained to answer, line by line.

        python -m transformer_lib chat --model FOLDER

    The folder holds a Hugging Face checkpoint whose tokenizer has a chat template, or adapters
    for one. Each line that
    you type is a message; the model sees the whole conversation so far. If that is longer than its
    context, the oldest turns are left out, and a line says so (on the standard error output). The
    instructions of --system stay. An empty line, or the end of the input, ends it.

    With --answers or --pattern, the model can answer nothing else.

    Args:
        parser: of the command.

    Example:
        >>> chat_options(parser := ArgumentParser())
        >>> parser.parse_args(["--model", "somewhere"]).temperature
        0.7
    """
    add = parser.add_argument
    add("--model", type=Path, required=True, help="the folder of a checkpoint")
    add("--system", default="", help="instructions before the first message (default: none)")
    _add_sampling(parser, CHATTING)


def translate_options(parser: ArgumentParser) -> None:
    """Translate texts with a model that `train` has made from pairs.

        python -m transformer_lib translate "two hundred and forty-one" seven
        echo twelve | python -m transformer_lib translate --beams 4

    It prints one line for each text; without any text, one for each line of the standard input
    that is not empty. If a text looks unlike what the model was trained on, a second line says so
    (on the standard error output): the model then guesses, and its answer is worth little.

    The model that comes with the book turns English number words into German ones.

    Args:
        parser: of the command.

    Example:
        >>> translate_options(parser := ArgumentParser())
        >>> parser.parse_args(["two"]).beams
        1
    """
    add = parser.add_argument
    add("text", nargs="*", help="what to translate (default: lines of the standard input)")
    add(
        "--model",
        type=Path,
        default=BOOK / "results/numbers",
        help="folder of a model that `train` made (default: the book's)",
    )
    add(
        "--beams",
        type=whole_number,
        default=1,
        help="candidates to follow at once; the most probable one wins",
    )
    _add_device(parser)


def trace_options(parser: ArgumentParser) -> None:
    """Show every step of a forward pass: shapes, parameters, operations, memory.

        python -m transformer_lib trace gpt2
        python -m transformer_lib trace book/results/numbers --length 64

    The model is one of `presets` (even the largest, which takes no memory here), or a folder that
    `train` has written. Blocks that do the same share one line.

    Args:
        parser: of the command.

    Example:
        >>> trace_options(parser := ArgumentParser())
        >>> parser.parse_args(["gpt2"]).length
        8
    """
    add = parser.add_argument
    add("model", help="a preset, or the folder of a trained model")
    add("--batch", type=whole_number, default=1, help="number of sequences read at once")
    add("--length", type=whole_number, default=8, help="number of tokens in each of them")


def presets_options(parser: ArgumentParser) -> None:
    """List the famous models that this library builds, and how large they are.

        python -m transformer_lib presets

    "parameters" are counted here; "published" is what the authors say, or what their weights have.

    Args:
        parser: of the command.

    Example:
        >>> presets_options(parser := ArgumentParser())
        >>> parser.parse_args([])
        Namespace()
    """  # there is nothing to choose


def _add_sampling(parser: ArgumentParser, defaults: Sampling) -> None:
    add = parser.add_argument
    add("--tokens", type=whole_number, default=500, help="maximum number of tokens to write")
    for option in fields(Sampling):
        add(
            f"--{option.name.replace('_', '-')}",
            type=READERS[option.type],
            default=getattr(defaults, option.name),
            help=option.metadata["help"],
        )
    limits = parser.add_mutually_exclusive_group()
    words = "write one of these and nothing else; commas stand between them"
    limits.add_argument("--answers", type=answer_list, metavar="A,B,...", help=words)
    words = "write what this regular expression matches as a whole, and nothing else"
    limits.add_argument("--pattern", metavar="REGEX", help=words)
    add("--seed", type=seed_number, help="the same number gives the same text (default: a new one)")
    add("--compile", action="store_true", help="compile the model first: slow start, faster tokens")
    add(
        "--dtype",
        choices=NUMBERS,
        default="float32",
        help="number format of a checkpoint's weights",
    )
    _add_device(parser)


def _add_device(parser: ArgumentParser) -> None:
    words = "where to compute; auto takes a GPU if there is one"
    parser.add_argument("--device", choices=DEVICES, default=DEVICES[0], help=words)


# Each command with the module that runs it and what adds its options, whose docstring is its help.
COMMANDS: dict[str, tuple[str, Callable[[ArgumentParser], None]]] = {
    "train": ("train", train_options),
    "generate": ("text", generate_options),
    "chat": ("text", chat_options),
    "translate": ("text", translate_options),
    "trace": ("models", trace_options),
    "presets": ("models", presets_options),
}
