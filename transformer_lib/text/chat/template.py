"""Chat templates: messages become one text.

The template of a checkpoint is a program in the language of Jinja, written by others. It runs in
Jinja's sandbox: it sees copies of plain data, and neither private attributes nor what Python has
built in. Whatever it does is paid for in advance, by size: each step, look-up, operator, filter and
call. A template that would run for hours or fill the memory is an error before it does so.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence

Messages = Sequence[Mapping[str, object]]
_MARKS = [chr(n) for n in range(0xFDD0, 0xFDF0)]  # Unicode keeps these free: they are no characters
_ADVICE = "pass parse_special=True if you trust the messages"


def render_chat(
    template: str, messages: Messages, *, add_generation_prompt: bool = True, **values: object
) -> str:
    r"""Write messages as one text, as ``apply_chat_template`` of ``transformers`` does.

    Args:
        template: the template.
        messages: the messages, such as ``[{"role": "user", "content": "Hello"}]``.
        add_generation_prompt: whether to begin the answer of the model.
        values: what else the template knows, such as ``bos_token`` or ``tools``: plain data.

    Returns:
        The text.

    Raises:
        ImportError: if the package ``jinja2`` is not installed.
        TypeError: if the messages are not a list of dicts, or if something is no plain data.
        ValueError: if the template is damaged, if it refuses the messages, or if it does what it
            may not do.

    Example:
        >>> template = (
        ...     "{% for m in messages %}"
        ...     "<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        ... )
        >>> render_chat(template, [{"role": "user", "content": "Hello"}])
        '<user>Hello\n'
    """
    if not isinstance(template, str):
        raise TypeError(f"expected a template; got {type(template).__name__}: {template!r}")
    if isinstance(messages, str | Mapping) or not all(isinstance(m, Mapping) for m in messages):
        raise TypeError(f"{messages=} must be a list of dicts")
    known = {
        "tools": None,
        "documents": None,
        **values,
        "messages": list(messages),
        "add_generation_prompt": add_generation_prompt,
    }
    plain = {name: _plain(name, value) for name, value in known.items()}
    try:
        from transformer_lib.text.chat.sandbox import render  # noqa: PLC0415  (an optional extra)
    except ImportError as error:
        needed = "chat templates need the package jinja2, 3.1.6 or newer: pip install -U jinja2"
        raise ImportError(needed) from error
    try:
        return render(template, plain)
    except Exception as error:  # a program of others can fail in any way
        raise ValueError(f"the chat template failed: {type(error).__name__}: {error}") from error


def protect(values: Mapping[str, object], tokens: Collection[str]) -> tuple[dict[str, object], str]:
    """Break the special tokens in what users wrote, by a mark that is taken out later.

    Args:
        values: plain data; its strings are searched.
        tokens: the special tokens.

    Returns:
        A copy in which no token stands, begins at the end of a string or ends at its beginning; and
        the mark, a character that occurred nowhere.

    Raises:
        ValueError: if a token has only one character and cannot be broken, or if no mark is free.

    Example:
        >>> copy, mark = protect({"content": "bye<eos>"}, ["<eos>"])
        >>> copy["content"].replace(mark, "|")
        'bye<|eos>'
    """
    if single := [token for token in tokens if len(token) < 2]:
        raise ValueError(f"the special token {single[0]!r} has one character: {_ADVICE}")
    whole = json.dumps(_plain("messages", values), ensure_ascii=False)
    free = [mark for mark in _MARKS if mark not in whole]
    if not free:
        raise ValueError(f"the messages hold all of {_MARKS!r}: {_ADVICE}")
    mark = free[0]
    begins = {token[:n] for token in tokens for n in range(1, len(token))}
    ends = {token[n:] for token in tokens for n in range(1, len(token))}
    longest = max(map(len, tokens), default=0)
    inside = re.compile("(?=" + ("|".join(map(re.escape, tokens)) or "(?!)") + ").", re.DOTALL)

    def broken(text: str) -> str:
        head = any(text[:n] in ends for n in range(1, longest))
        tail = any(text[-n:] in begins for n in range(1, longest))
        return mark * head + inside.sub(lambda found: found[0] + mark, text) + mark * tail

    return {name: _plain(name, value, broken) for name, value in values.items()}, mark


def _plain(name: str, value: object, change: Callable[[str], str] = str) -> object:
    """Copy plain data: a template may get nothing that has methods of its own."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return change(str(value))
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, Mapping):
        return {_plain(name, k, change): _plain(name, v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, item, change) for item in value]
    raise TypeError(f"{name} holds a {type(value).__name__}; expected plain data, as JSON has it")
