"""Decoders of a tokenizer.json: tokens back to text.

A decoder is a chain of steps that take tokens as they come and give back the text that no later
token can change. So the same code decodes a whole list at once, and a stream token by token.
"""

import codecs
import re
from collections.abc import Callable

from transformer_lib.core.checks import check_whole
from transformer_lib.text.tokenizer_json.fields import Part, read_field, read_parts, unknown
from transformer_lib.text.tokenizer_json.steps import BYTE_CHARACTERS, read_metaspace, replacer

_BYTES = {name: byte for byte, name in BYTE_CHARACTERS.items()}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


class _Each:
    """A step that changes every token for itself; the base of the others."""

    def __init__(self, change: Callable[[str], str] = str) -> None:
        self._change = change

    def push(self, tokens: list[str]) -> list[str]:
        """Take more tokens; return what is certain."""
        return [self._change(token) for token in tokens]

    def end(self) -> list[str]:
        """Return what was held back."""
        return []

    def in_the_middle(self, token: str) -> str | bytes:
        """What becomes of a token that is not the first; bytes may be a part of a character."""
        return self._change(token)


class _Held(_Each):
    """A step that must see the whole text before it can begin."""

    def __init__(self, step: _Each) -> None:
        self._step = step
        self._tokens: list[str] = []

    def push(self, tokens: list[str]) -> list[str]:
        self._tokens += tokens
        return []

    def end(self) -> list[str]:
        return self._step.push(["".join(self._tokens)]) + self._step.end()

    def in_the_middle(self, token: str) -> str | bytes:
        raise ValueError(
            "tokenizer has a decoder that must see the whole text: no token stands alone"
        )


class _First(_Each):
    """A step that treats the first token in another way."""

    def __init__(self, first: Callable[[str], str], change: Callable[[str], str]) -> None:
        super().__init__(change)
        self._first: Callable[[str], str] | None = first

    def push(self, tokens: list[str]) -> list[str]:
        if self._first and tokens:
            tokens, head = tokens[1:], [self._first(tokens[0])]
            self._first = None
            return head + super().push(tokens)
        return super().push(tokens)


class _Lead(_Each):
    """A step that removes a sign at the beginning of the whole text, up to some times."""

    def __init__(self, sign: str, times: int) -> None:
        self._sign, self._times = sign, times

    def push(self, tokens: list[str]) -> list[str]:
        text = "".join(tokens)
        while self._times and text:
            rest = text.removeprefix(self._sign)
            self._times = self._times - 1 if rest != text else 0
            text = rest
        return [text]

    def in_the_middle(self, token: str) -> str | bytes:
        return token


class _ByteLevel(_Each):
    """Characters that stand for bytes become these bytes, and the bytes become text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, tokens: list[str]) -> list[str]:
        content = b"".join(map(self.in_the_middle, tokens))
        return [self._decoder.decode(content)]

    def in_the_middle(self, token: str) -> bytes:
        try:
            return bytes([_BYTES[character] for character in token])
        except KeyError:  # no byte-level token: its own text
            return token.encode()

    def end(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


class _ByteFallback(_Each):
    """Tokens such as ``<0xE2>`` become text; if a row of them is no UTF-8, a sign for each."""

    def __init__(self) -> None:
        self._row = bytearray()

    def push(self, tokens: list[str]) -> list[str]:
        result = []
        for token in tokens:
            if found := _BYTE_TOKEN.fullmatch(token):
                self._row.append(int(found[1], 16))
            else:
                result += [*self.end(), token]
        return result

    def end(self) -> list[str]:
        row, self._row = self._row, bytearray()
        try:
            return [row.decode()] if row else []
        except UnicodeDecodeError:
            return ["�"] * len(row)

    def in_the_middle(self, token: str) -> str | bytes:
        found = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(found[1], 16)]) if found else token


class Decoding:
    """A decoding that is under way.

    Args:
        steps: the steps, in their order.

    Example:
        >>> decoding = read_decoder({"type": "ByteLevel"})()
        >>> [decoding.push([token]) for token in ("gr", "Ã", "¼n")]
        ['gr', '', 'ün']
        >>> decoding.end()
        ''
    """

    def __init__(self, steps: list[_Each]) -> None:
        self._steps = steps

    def push(self, tokens: list[str]) -> str:
        """Take more tokens.

        Args:
            tokens: the tokens, as the vocabulary has them.

        Returns:
            The text that has become certain.
        """
        for step in self._steps:
            tokens = step.push(tokens)
        return "".join(tokens)

    def end(self) -> str:
        """Take no more tokens.

        Returns:
            The rest of the text.
        """
        tokens: list[str] = []
        for step in self._steps:
            tokens = step.push(tokens) + step.end()
        return "".join(tokens)

    def token_bytes(self, token: str) -> bytes:
        """Say what a token adds to a text that has begun, whatever comes before it.

        Args:
            token: the token, as the vocabulary has it.

        Returns:
            Its bytes, which may be a part of a character.

        Raises:
            ValueError: if a step has to see the whole text.
        """
        for step in self._steps:
            shown = step.in_the_middle(token)
            if isinstance(shown, bytes):  # the steps after it get text, which may not be whole yet
                return shown
            token = shown
        return token.encode()


def read_decoder(part: Part | None) -> Callable[[], Decoding]:
    """Read what turns tokens back into text.

    Args:
        part: the decoder; ``None`` writes a space between tokens.

    Returns:
        A function that begins a new decoding.

    Raises:
        ValueError: if the part, or one in it, is of an unknown type.

    Example:
        >>> begin = read_decoder({"type": "Metaspace", "replacement": "▁"})
        >>> begin().push(["▁to", "▁be"])
        'to be'
    """
    if part is None:
        return lambda: Decoding([_First(str, lambda token: " " + token)])
    parts = read_parts(part, "decoders") if part.get("type") == "Sequence" else [part]
    makers: list[Callable[[], _Each]] = []
    one_token = False  # whether the steps before have made a single token of all
    for one in parts:
        makers.append(_read_step(one, one_token))
        one_token = one_token or one.get("type") in ("Fuse", "ByteLevel")
    return lambda: Decoding([make() for make in makers])


def _read_step(part: Part, one_token: bool) -> Callable[[], _Each]:
    kind = part.get("type")
    if kind == "Fuse":
        return _Each
    if kind == "Strip":
        return _read_strip(part, one_token)
    if kind == "Metaspace":
        return _read_metaspace(part, one_token)
    if kind == "WordPiece":
        return _read_word_piece(part, one_token)
    if kind == "Replace":
        replace, pattern = replacer(part), part.get("pattern")
        short = isinstance(pattern, dict) and len(str(pattern.get("String", "more"))) == 1
        return _held_if(one_token and not short, lambda: _Each(replace))
    if kind in ("ByteLevel", "ByteFallback"):
        return _held_if(one_token, _ByteLevel if kind == "ByteLevel" else _ByteFallback)
    raise unknown("decoder", part)


# What is written without a space before it, in the order in which it is looked for.
_NO_SPACE = {
    " .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m",
    " do not": " don't", " 's": "'s", " 've": "'ve", " 're": "'re",
}  # fmt: skip


def _read_word_piece(part: Part, one_token: bool) -> Callable[[], _Each]:
    prefix = read_field(part, "prefix", str, "##")
    cleans = read_field(part, "cleanup", bool, True)

    def first(token: str) -> str:
        for apart, joined in _NO_SPACE.items() if cleans else ():
            token = token.replace(apart, joined)
        return token

    def change(token: str) -> str:
        return first(token.removeprefix(prefix) if token.startswith(prefix) else " " + token)

    return _held_if(one_token, lambda: _First(first, change))


def _held_if(held: bool, make: Callable[[], _Each]) -> Callable[[], _Each]:
    return (lambda: _Held(make())) if held else make


def _read_strip(part: Part, one_token: bool) -> Callable[[], _Each]:
    sign = read_field(part, "content", str)
    start, stop = (read_field(part, name, int) for name in ("start", "stop"))
    check_whole("start", start, 0)
    check_whole("stop", stop, 0)
    if one_token and not stop:
        return lambda: _Lead(sign, start)

    def strip(token: str) -> str:
        first, last = 0, len(token)
        while first < min(start, last) and token[first] == sign:
            first += 1
        while last > max(first, len(token) - stop) and token[last - 1] == sign:
            last -= 1
        return token[first:last]

    return _held_if(one_token, lambda: _Each(strip))


def _read_metaspace(part: Part, one_token: bool) -> Callable[[], _Each]:
    sign, scheme = read_metaspace(part)

    def change(token: str) -> str:
        return token.replace(sign, " ")

    def first(token: str) -> str:
        return change(token) if scheme == "never" else token.replace(sign, "")

    return (lambda: _Each(first)) if one_token else (lambda: _First(first, change))
