"""Loss on answers only: examples of prompts and chats whose answers alone are learned.

An example is two rows of the same length: the ids, and their labels. A label is the id again where
the model shall learn to write it, and ``IGNORE`` where it only reads.
"""

from collections.abc import Callable, Sequence
from functools import partial

from transformer_lib.generation.text_generation import AnyTokenizer, end_ids
from transformer_lib.text.chat.template import Messages
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.training.data import IGNORE, Batch, Ids, pad

IdsAndLabels = tuple[Ids, Ids]


def answer_batch(examples: Sequence[IdsAndLabels], pad_id: int = 0) -> Batch:
    """Make a batch in which only some tokens are to be predicted from those before them.

    There is no mask: padding comes last, and a decoder does not look ahead.

    Args:
        examples: B pairs of ids and labels, as :func:`label_answer` and :func:`label_chat` make
            them.
        pad_id: the id to fill up with.

    Returns:
        ``ids`` and ``targets``, each ``(B, T)``: all ids but the last, all labels but the first.

    Raises:
        ValueError: if a row of labels is not as long as its ids, or an example is empty.

    Example:
        >>> answer_batch([([5, 6, 7, 2], [IGNORE, IGNORE, 7, 2])])
        {'ids': tensor([[5, 6, 7]]), 'targets': tensor([[-100,    7,    2]])}
    """
    for i, (ids, labels) in enumerate(examples):
        if len(ids) != len(labels):
            raise ValueError(
                f"examples[{i}] has {len(ids)} ids and {len(labels)} labels; expected one label "
                "for each id"
            )
    ids, _ = pad([ids for ids, _ in examples], pad_id)
    labels, _ = pad([labels for _, labels in examples], IGNORE)
    return {"ids": ids[:, :-1], "targets": labels[:, 1:]}


def label_answer(tokenizer: AnyTokenizer, prompt: str, answer: str) -> IdsAndLabels:
    """Make an example of a prompt, which is read, and an answer, which is learned.

    The two are encoded apart, as they are when the model writes: it reads the prompt alone first.

    Args:
        tokenizer: of the model.
        prompt: what the model reads.
        answer: what it shall learn to write; the id that ends a text is added, if there is one.

    Returns:
        Ids and labels.

    Raises:
        ValueError: if the prompt or the answer has no tokens.

    Example:
        >>> from transformer_lib import CharTokenizer
        >>> ids, labels = label_answer(CharTokenizer(), "2+2=", "4")
        >>> CharTokenizer().decode(ids), labels[:4]
        ('2+2=4', [-100, -100, -100, -100])
        >>> labels[4:] == [ids[4], CharTokenizer().eos_id]
        True
    """
    read = tokenizer.encode(prompt)
    if isinstance(tokenizer, PretrainedTokenizer):
        learned = tokenizer.encode(answer, special=False, parse_special=False)
    else:
        learned = tokenizer.encode(answer)
    for name, text, ids in (("prompt", prompt, read), ("answer", answer, learned)):
        if not ids:
            raise ValueError(f"{name}={text!r} has no tokens; expected some text")
    return _labelled([*read, *learned, *end_ids(tokenizer)[:1]], [(len(read), None)])


def label_chat(
    tokenizer: PretrainedTokenizer, messages: Messages, **values: object
) -> IdsAndLabels:
    """Make an example of a conversation, of which only the assistant's tokens are learned.

    Which these are is found by writing the conversation up to each answer, as the model reads it
    before it answers, and again with the answer. What a template writes after the id that ends an
    answer is not learned, because the model never writes it. A token that holds the end of what the
    model reads and the beginning of its answer is learned, as in the masks of ``transformers``.

    Args:
        tokenizer: one with a chat template.
        messages: the messages; those with the role ``"assistant"`` are answers.
        values: what else the template knows, such as ``tools``.

    Returns:
        Ids and labels.

    Raises:
        ValueError: if there is no chat template, if it fails, if no message is an answer, or if the
            template writes the beginning of the conversation otherwise when more follows.

    Example:
        >>> marks = ("<end>", "<user>", "<assistant>")
        >>> model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
        >>> tokenizer = PretrainedTokenizer(
        ...     {
        ...         "model": model,
        ...         "added_tokens": [
        ...             {"id": 2 + n, "content": mark, "special": True}
        ...             for n, mark in enumerate(marks)
        ...         ],
        ...     },
        ...     {"eos_token": "<end>"},
        ...     chat_template="{% for m in messages %}"
        ...     "<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
        ...     "{% if add_generation_prompt %}<assistant>{% endif %}",
        ... )
        >>> said = [
        ...     {"role": "user", "content": "a"},
        ...     {"role": "assistant", "content": "b"},
        ... ]
        >>> label_chat(tokenizer, said)
        ([3, 0, 2, 4, 1, 2], [-100, -100, -100, -100, 1, 2])
    """
    write: Callable[..., list[int]] = partial(tokenizer.chat, **values)  # type: ignore[arg-type]
    whole = write(messages, add_generation_prompt=False)
    answers: list[tuple[int, int | None]] = []
    for i, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        asked = write(messages[:i], add_generation_prompt=True)
        answered = write(messages[: i + 1], add_generation_prompt=False)
        start, end = (_shared_part(tokenizer, part, whole) for part in (asked, answered))
        if start is None or end is None:
            raise ValueError(
                f"messages[{i}] is an answer that the chat template writes otherwise when it is "
                "asked for, or when more follows; expected a conversation that goes on from its "
                "beginning: end it with this answer, or make the labels by hand"
            )
        answers.append((start, _end_of_answer(tokenizer, whole[:end], start)))
    if not answers:
        raise ValueError("messages has no answer to learn; expected one with role='assistant'")
    return _labelled(whole, answers)


def _shared_part(tokenizer: PretrainedTokenizer, ids: list[int], whole: list[int]) -> int | None:
    """With how many ids two texts begin alike; ``None`` unless the first is all in the other one.

    Its last ids may be others there, where letters that come next have joined them.
    """
    pairs = enumerate(zip(ids, whole, strict=False))
    n = next((n for n, (one, other) in pairs if one != other), min(len(ids), len(whole)))
    rest, more = (tokenizer.decode(part[n:], skip_special=False) for part in (ids, whole))
    return n if more.startswith(rest) else None


def _end_of_answer(tokenizer: PretrainedTokenizer, ids: list[int], start: int) -> int:
    """Where an answer ends: behind the last id that ends a text, or at the end of all."""
    ends = [place for place in range(start, len(ids)) if ids[place] in tokenizer.eos_ids]
    return ends[-1] + 1 if ends else len(ids)


def _labelled(ids: list[int], answers: Sequence[tuple[int, int | None]]) -> IdsAndLabels:
    """Label what stands between the starts and ends of answers."""
    labels = [IGNORE] * len(ids)
    for start, end in answers:
        labels[start:end] = ids[start:end]
    return ids, labels
