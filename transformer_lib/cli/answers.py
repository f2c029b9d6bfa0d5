"""Prompts with their answers, read from a .jsonl."""

import json
from argparse import Namespace
from pathlib import Path

from transformer_lib.generation.text_generation import AnyTokenizer
from transformer_lib.models.language_models import CausalLM
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.training.answers import IdsAndLabels, answer_batch, label_answer, label_chat
from transformer_lib.training.data import Batches

EVERY = 20  # every so many lines, one is for validation


def read_text(path: Path) -> str:
    """Read a text; the mark with which some editors begin a file is none of it.

    Args:
        path: the file.

    Returns:
        What it holds.

    Raises:
        ValueError: if it is not UTF-8.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     size = (Path(folder) / "a.txt").write_bytes(b"a")
        ...     read_text(Path(folder) / "a.txt")
        'a'
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"data={str(path)!r} is not UTF-8; {error}") from None


def read_answers(
    given: Namespace, model: CausalLM, tokenizer: AnyTokenizer
) -> tuple[Batches, Batches]:
    r"""Read a file in which each line is a prompt with its completion, or a conversation.

    Args:
        given: what the command line says: ``data``, ``batch_size`` and ``seed``.
        model: what shall learn; each example must fit into its context.
        tokenizer: of the model. If it has a chat template, a prompt is a message of the user.

    Returns:
        Batches for training and for validation, which gets every twentieth line. Only completions,
        and what the assistant says, are targets.

    Raises:
        ValueError: if a line is damaged or too long, or if there are too few.

    Example:
        >>> import tempfile
        >>> from transformer_lib import CharTokenizer, TransformerConfig
        >>> model = CausalLM(TransformerConfig(vocab_size=259, n_layers=1))
        >>> row = json.dumps({"prompt": "2+2=", "completion": "4"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "sums.jsonl"
        ...     size = path.write_text(20 * f"{row}\n")
        ...     given = Namespace(data=path, batch_size=1, seed=0)
        ...     sums, _ = read_answers(given, model, CharTokenizer())
        >>> int((next(sums)["targets"] >= 0).sum())  # "4" and the end
        2
    """
    lines = [line for line in enumerate(read_text(given.data).split("\n"), 1) if line[1].strip()]
    if len(lines) < EVERY:
        wanted = f"expected {EVERY} at least: every {EVERY}th is for validation"
        raise ValueError(f"data={str(given.data)!r} has {len(lines)} lines; {wanted}")
    parts: tuple[list[IdsAndLabels], list[IdsAndLabels]] = [], []
    room = model.config.max_len + 1  # the last token is not read
    for n, (number, line) in enumerate(lines, 1):
        where = f"{given.data}, line {number}"
        try:
            example = _read_line(line, tokenizer)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if len(example[0]) > room:
            fits = f"expected {room} at most, what the model can learn at once"
            raise ValueError(f"{where} has {len(example[0])} tokens; {fits}")
        parts[n % EVERY == 0].append(example)
    training, validation = (_batches(part, given) for part in parts)
    return training, validation


def _batches(examples: list[IdsAndLabels], given: Namespace) -> Batches:
    return Batches(
        examples,
        answer_batch,
        batch_size=given.batch_size,
        length=lambda example: len(example[0]),
        bucket=32 * given.batch_size,
        seed=given.seed,
    )


def _read_line(line: str, tokenizer: AnyTokenizer) -> IdsAndLabels:
    row = json.loads(line)
    known = row if isinstance(row, dict) else {}
    messages, prompt, answer = map(known.get, ("messages", "prompt", "completion"))
    talks = isinstance(tokenizer, PretrainedTokenizer) and tokenizer.chat_template is not None
    if isinstance(prompt, str) and isinstance(answer, str):
        if not talks:
            return label_answer(tokenizer, prompt, answer)
        said = {"user": prompt, "assistant": answer}
        messages = [{"role": role, "content": text} for role, text in said.items()]
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ValueError('expected an object with "prompt" and "completion", or with "messages"')
    if not isinstance(tokenizer, PretrainedTokenizer) or not talks:
        raise ValueError("messages need a chat template, and the tokenizer of --model has none")
    return label_chat(tokenizer, messages)
