"""Added tokens: those found in a text before it is cut."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from transformer_lib.text.tokenizer_json.fields import Part, read_field, read_parts
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


def with_more_tokens(settings: Part, config: Part) -> Part:
    """Add the tokens that only ``tokenizer_config.json`` names, as ``transformers`` does.

    Args:
        settings: what ``tokenizer.json`` holds.
        config: what ``tokenizer_config.json`` and ``special_tokens_map.json`` hold.

    Returns:
        The settings, with more ``added_tokens`` if there are any. One without an id in the
        vocabulary gets the next one.

    Raises:
        ValueError: if a token is listed with an id that it would not get, or is damaged.

    Example:
        >>> settings = {
        ...     "model": {"vocab": {"a": 0, "<s>": 1}},
        ...     "added_tokens": [],
        ... }
        >>> with_more_tokens(settings, {"bos_token": "<s>"})["added_tokens"]
        [{'special': True, 'content': '<s>', 'id': 1}]
    """
    there = read_parts({"added_tokens": [], **settings}, "added_tokens")
    added = {part.get("content"): part for part in there}
    vocabulary = read_field(settings, "model", dict, {}).get("vocab")
    if not isinstance(vocabulary, dict):  # a list, as Unigram has it: of each a token and a score
        pieces = vocabulary if isinstance(vocabulary, list) else []
        vocabulary = {piece[0]: n for n, piece in enumerate(pieces)}
    taken = [*vocabulary.values(), *(part.get("id") for part in added.values())]
    following = count(1 + max((n for n in taken if isinstance(n, int)), default=-1))
    for token in (*_listed_tokens(config), *_named_tokens(config, vocabulary)):
        content = token["content"]
        if content not in added:
            place = vocabulary[content] if content in vocabulary else next(following)
            if token.get("id", place) != place:
                raise ValueError(
                    f"added_tokens_decoder has {content!r} with id={token['id']}; expected {place}"
                )
            added[content] = {"special": True, **token, "id": place}
    return {**settings, "added_tokens": list(added.values())}


def _listed_tokens(config: Part) -> list[Part]:
    """What ``added_tokens_decoder`` lists, in the order of the ids."""
    listed: dict[str, object] = read_field(config, "added_tokens_decoder", dict, {})
    tokens: dict[int, Part] = {}
    for key, token in listed.items():
        if not (key.isdecimal() and isinstance(token, dict) and "content" in token):
            raise ValueError(f"added_tokens_decoder has {key!r}: {token!r}; expected id and token")
        tokens[int(key)] = {**token, "id": int(key)}
    return [tokens[n] for n in sorted(tokens)]


def _named_tokens(config: Part, vocabulary: Mapping[str, int]) -> list[Part]:
    """The tokens with a role, if they are in the vocabulary, and the special ones without one."""
    more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(more.values()) if isinstance(more, dict) else more
    if not isinstance(extra, list):
        raise ValueError(f"additional_special_tokens={more!r:.200}; expected a list")
    roles = [_as_part(config[key]) for key in config if key.endswith("_token")]
    known = [token for token in roles if token.get("content") in vocabulary]
    return [*known, *(token for token in map(_as_part, extra) if token)]


def _as_part(token: object) -> Part:
    """A token, which the files have as a string or as an object; nothing if it is neither."""
    if isinstance(token, str):
        return {"content": token}
    return token if isinstance(token, dict) and "content" in token else {}


def _is_word(character: str) -> bool:
    """Whether Rust counts a character as part of a word; nothing counts as none."""
    if not character:
        return False
    kind = unicodedata.category(character)
    others = character in _JOINERS or _CIRCLED.match(character) is not None
    return kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or others
