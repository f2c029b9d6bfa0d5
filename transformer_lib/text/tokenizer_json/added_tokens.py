"""Added tokens: those found in a text before it is cut."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from transformer_lib.text.tokenizer_json.fields import Part, read_field
from transformer_lib.text.tokenizers import WHITE_SPACE

_JOINERS = "\u200c\u200d"
_CIRCLED = re.compile(
    "[\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]"
)
_BLANK = re.compile(f"[{WHITE_SPACE}]*")


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text as it is, whatever the model would make of it.

    Args:
        content: its text.
        id: its id.
        special: whether it is a sign for the model rather than a piece of text.
        lstrip: whether it takes the white space on its left with it.
        rstrip: whether it takes the white space on its right with it.
        single_word: whether it is found only where no letter or digit stands beside it.
        normalized: whether it is looked for in the normalized text, itself normalized.

    Example:
        >>> AddedToken("<mask>", 4, special=True, lstrip=True).content
        '<mask>'
    """

    content: str
    id: int
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @classmethod
    def read(cls, part: Part) -> "AddedToken":
        """Read a token from the file.

        Args:
            part: one of the ``added_tokens`` of the file.

        Returns:
            The token.

        Raises:
            ValueError: if a value is missing or of another type.
        """
        named = {"type": "an added token", **part}
        special = read_field(named, "special", bool, False)
        return cls(
            content=read_field(named, "content", str),
            id=read_field(named, "id", int),
            special=special,
            lstrip=read_field(named, "lstrip", bool, False),
            rstrip=read_field(named, "rstrip", bool, False),
            single_word=read_field(named, "single_word", bool, False),
            normalized=read_field(named, "normalized", bool, not special),
        )


class AddedTokens:
    """Finds tokens in a text: the leftmost first, and of several there the longest.

    Args:
        tokens: the tokens by the text that is looked for.

    Example:
        >>> tokens = AddedTokens(
        ...     {"<a>": AddedToken("<a>", 7), "<a>b": AddedToken("<a>b", 8)}
        ... )
        >>> list(tokens.split("to <a>be <a>"))
        ['to ', 8, 'e ', 7]
    """

    def __init__(self, tokens: Mapping[str, AddedToken]) -> None:
        self._tokens = {text: token for text, token in tokens.items() if text}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._tokens:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(of, reverse=True) for first, of in lengths.items()}
        self._first = re.compile("|".join(map(re.escape, lengths)) or "(?!)")

    def split(self, text: str, parse_special: bool = True) -> Iterator[str | int]:
        """Cut a text at its tokens.

        Args:
            text: the text.
            parse_special: whether special tokens are found, too.

        Yields:
            The ids of tokens, and the text between them.
        """
        done = 0  # up to here the text has been yielded
        for start, end, token in self._find(text):
            if token.special and not parse_special:
                continue
            beside = text[max(start - 1, 0) : start], text[end : end + 1]
            if token.single_word and any(map(_is_word, beside)):
                continue
            if token.lstrip:  # but what the token before has taken is its own
                start = done + len(text[done:start].rstrip(WHITE_SPACE))
            if token.rstrip:
                blank = _BLANK.match(text, end)
                end = blank.end() if blank else end
            if start > done:
                yield text[done:start]
            yield token.id
            done = end
        if done < len(text):
            yield text[done:]

    def _find(self, text: str) -> Iterator[tuple[int, int, AddedToken]]:
        place = 0
        while match := self._first.search(text, place):
            start = match.start()
            place = start + 1
            for length in self._lengths[text[start]]:
                if token := self._tokens.get(text[start : start + length]):
                    place = start + length
                    yield start, place, token
                    break


def _is_word(character: str) -> bool:
    """Whether Rust counts a character as part of a word; nothing counts as none."""
    if not character:
        return False
    kind = unicodedata.category(character)
    others = character in _JOINERS or _CIRCLED.match(character) is not None
    return kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or others
