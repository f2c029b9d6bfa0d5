"""Tokenizers: text to ids and back, without any loss.

Every tokenizer here cuts a text into *words* and writes each word with the tokens of its
vocabulary. Four kinds differ in what a word is and in how it is written:

- :class:`CharTokenizer`: every character is a word, and a token.
- :class:`WordTokenizer`: every word is a token.
- :class:`BPETokenizer`: a word starts as bytes; pairs are merged in the order they were learned.
- :class:`WordPieceTokenizer`: a word is cut into the longest known pieces, from left to right.

All vocabularies begin with the special tokens and the 256 bytes. What a vocabulary does not know
is written as its UTF-8 bytes, so there is no token for the unknown, and every text comes back as it
was. A space belongs to the word that follows it: ``"to be"`` is ``"to"`` and ``" be"``.
"""

import codecs
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import ClassVar

from transformer_lib.core.checks import check_whole
from transformer_lib.core.files import write_file

SPECIAL = ("<pad>", "<bos>", "<eos>")  # what every tokenizer must have
MAX_REMEMBERED = 100_000  # words whose ids are kept, so that a frequent one is cut up only once

# Hugging Face numbers the bytes in the order of the characters with which GPT-2 shows them: first
# those that are visible in Latin-1. The numbers decide ties in BPE, so the order here is the same.
BYTE_ORDER = sorted(range(256), key=lambda byte: byte == 0x20 or not chr(byte).isprintable())
_BYTES = [bytes([byte]) for byte in BYTE_ORDER]

# GPT-2's pattern says \p{L} for letters and \p{N} for numbers. Python's `re` has only \w and \d, so
# the numbers (7, ½, Ⅷ; all below U+20000) are listed here.
NUMBERS = "".join(c for c in map(chr, range(0x20000)) if c.isnumeric() and not c.isalpha())
# The characters with the property White_Space. Python's \s and str.strip() take four more.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_OTHER = rf"(?:[^\w{WHITE_SPACE}]|_)"  # punctuation, symbols, emoji, marks, control characters
# Of several spaces, the last one goes with the next word.
_BLANK = rf"[{WHITE_SPACE}]+(?![^{WHITE_SPACE}])|[{WHITE_SPACE}]+"
GPT2_WORD = rf"'(?:[stmd]|re|ve|ll)| ?[^\W_{NUMBERS}]+| ?[{NUMBERS}]+| ?{_OTHER}+|{_BLANK}"

Pair = tuple[int, int]


def _merge(symbols: Sequence[int], pair: Pair, new: int) -> list[int]:
    """Write ``new`` wherever the pair stands, from left to right."""
    merged: list[int] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] = new
        else:
            merged.append(symbol)
    return merged


def _frequent_pairs(words: Mapping[tuple[int, ...], int], n_units: int) -> Iterator[Pair]:
    """Merge the most frequent pair of neighbours, again and again, and yield each such pair.

    Args:
        words: words as the ids of their units, and how often each word occurs.
        n_units: how many units there are. The first pair becomes the unit with this id.

    Yields:
        The next pair, until every word is a single unit.
    """
    spelled, times = list(map(list, words)), list(words.values())
    frequency: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[int]] = defaultdict(set)  # the words in which a pair occurs

    def count(place: int, sign: int) -> None:
        for pair in pairwise(spelled[place]):
            frequency[pair] += sign * times[place]
            places[pair].add(place)

    for place in range(len(spelled)):
        count(place, +1)
    while highest := max(frequency.values(), default=0):
        # Among equals the smallest ids, those learned first, win: so it is in Hugging Face.
        best = min(pair for pair, n in frequency.items() if n == highest)
        yield best
        for place in places[best]:  # no other words change
            count(place, -1)
            spelled[place] = _merge(spelled[place], best, n_units)
            count(place, +1)
        n_units += 1


class Tokenizer:
    r"""Turns text into ids and back: what all kinds have in common.

    Use one of the four kinds. ``train`` learns a vocabulary from texts, ``load`` reads one.

    Args:
        learned: what training found: the tokens that follow the bytes.
        special: the special tokens, those of ``SPECIAL`` and any others. They get the lowest ids,
            in this order, and are never made from text: ``"<eos>"`` in a text is just five
            characters.

    Raises:
        ValueError: if a special token is missing or comes twice.

    Attributes:
        vocab_size: V, the number of different tokens.
        tokens: all of them as text, in the order of their ids; bytes look like ``\xe2``.
        pad_id: the id of ``"<pad>"``; ``bos_id`` and ``eos_id`` likewise.

    Example:
        >>> tokenizer = WordTokenizer.train(["to be or not to be"])
        >>> tokenizer.encode("to be", bos=True, eos=True)
        [1, 263, 259, 2]
        >>> tokenizer.decode([1, 263, 259, 2])
        'to be'
    """

    _pattern: ClassVar[re.Pattern[str]] = re.compile(GPT2_WORD)
    _mark: ClassVar[bytes] = b""  # what a token has before its text

    def __init__(self, learned: Sequence[str] = (), special: Sequence[str] = SPECIAL) -> None:
        self._set_vocabulary(learned, [token.encode() for token in learned], special)

    def _set_vocabulary(
        self, learned: Sequence[str | Pair], tokens: Sequence[bytes], special: Sequence[str]
    ) -> None:
        """Give ids to the special tokens, the bytes, and the tokens for what was learned."""
        if not set(SPECIAL) <= set(special) or len(set(special)) != len(special):
            raise ValueError(f"special={special!r} must hold {SPECIAL}, and nothing twice")
        self.learned, self.special = list(learned), list(special)
        self.pad_id, self.bos_id, self.eos_id = (self.special.index(name) for name in SPECIAL)
        self._tokens = [*(name.encode() for name in special), *_BYTES, *tokens]
        self.tokens = [token.decode("utf-8", errors="backslashreplace") for token in self._tokens]
        self.vocab_size, self._longest = len(self._tokens), max(map(len, self._tokens))
        self._ids = {token: n for n, token in enumerate(self._tokens) if n >= len(special)}
        self._remembered: dict[str, list[int]] = {}

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int | None = None, special: Sequence[str] = SPECIAL
    ) -> "Tokenizer":
        """Learn a vocabulary from texts.

        Args:
            texts: the texts; no word goes on from one to the next.
            vocab_size: V, at most how many tokens to have, with the special ones and the bytes;
                ``None`` means all that the texts give.
            special: the special tokens.

        Returns:
            The tokenizer. The same texts, in any order, always give the same one.

        Raises:
            ValueError: if there is no room for the special tokens and the bytes.
            TypeError: if ``texts`` is a single string.
        """
        if isinstance(texts, str):
            raise TypeError("texts is a single string; expected several, such as [text]")
        least = len(special) + len(_BYTES)
        check_whole("vocab_size", least if vocab_size is None else vocab_size, least)
        words = Counter(word for text in texts for word in cls._split(text))
        return cls._learn(words, vocab_size and vocab_size - least, special)

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Write a text as ids.

        Args:
            text: any text.
            bos: whether to begin with the id of ``"<bos>"``.
            eos: whether to end with the id of ``"<eos>"``.

        Returns:
            The ids. Without ``bos`` and ``eos`` none of them is special.

        Raises:
            ValueError: if the text holds half a surrogate pair.
            TypeError: if it is not a string.
        """
        ids = [self.bos_id] * bos
        for word in self._split(text):
            if word not in self._remembered:
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[word] = self._encode_word(word)
            ids += self._remembered[word]
        return ids + [self.eos_id] * eos

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Turn ids back into text.

        Args:
            ids: ids of tokens, such as a list; for a tensor of one dimension, its ``tolist()``.
            skip_special: whether to leave special tokens out rather than to write their names.

        Returns:
            The text; bytes that are no UTF-8, as a model may produce, become ``"�"``.

        Raises:
            ValueError: if an id is not in the vocabulary.
        """
        numbers = list(ids)
        if outside := [n for n in numbers if not 0 <= n < self.vocab_size]:
            raise ValueError(f"ids holds {outside[0]}; expected 0 to {self.vocab_size - 1}")
        content = b"".join(self._bytes_of(n, skip_special) for n in numbers)
        return content.decode("utf-8", errors="replace")

    def start_decoding(self, *, skip_special: bool = True) -> "_Decoding":
        """Begin to turn ids back into text one by one, as they come.

        Args:
            skip_special: whether to leave special tokens out rather than to write their names.

        Returns:
            Its ``push(id)`` and ``end()`` return text, together that of :meth:`decode`.
        """
        return _Decoding(self, skip_special)

    def token_bytes(self, id: int) -> bytes:
        """Return what a token adds to a text, as bytes: it may be a part of a character.

        Args:
            id: the id of a token.

        Returns:
            The bytes; none for a special token.
        """
        return self._bytes_of(id, skip_special=True)

    def _bytes_of(self, id: int, skip_special: bool) -> bytes:
        """Return what a token stands for in a text."""
        if skip_special and id < len(self.special):
            return b""
        return self._tokens[id].removeprefix(self._mark)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to one JSON file: whole, or not at all.

        Args:
            path: the file; an old one is replaced.
        """
        content = {"kind": type(self).__name__, "special": self.special, "learned": self.learned}
        text = json.dumps(content, ensure_ascii=False) + "\n"
        write_file(Path(path), text.encode())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer from a file that ``save`` wrote.

        Args:
            path: the file.

        Returns:
            The tokenizer, of the kind that was saved.

        Raises:
            ValueError: if the file is missing, damaged, or of another program or kind.
        """
        kinds = {kind.__name__: kind for kind in (cls, *cls.__subclasses__())}
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return kinds[content["kind"]](content["learned"], content["special"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged or not a {cls.__name__}: {error!r}") from error

    @classmethod
    def _split(cls, text: str) -> list[str]:
        """Cut a text into words; together they are the text."""
        if not isinstance(text, str):
            raise TypeError(f"expected a text; got {type(text).__name__}: {text!r}")
        text.encode("utf-8")  # half a surrogate pair is no character: Python's error says where
        return cls._pattern.findall(text)

    @classmethod
    def _learn(
        cls, words: Mapping[str, int], room: int | None, special: Sequence[str]
    ) -> "Tokenizer":
        """Make a tokenizer with at most ``room`` learned tokens: here, the most frequent words."""
        longer = [word for word in words if len(word.encode()) > 1]  # bytes are there already
        return cls(sorted(longer, key=lambda word: (-words[word], word))[:room], special)

    def _encode_word(self, word: str) -> list[int]:
        """Return the ids of one word: here a single one, or those of its bytes."""
        token = word.encode()
        parts = [token] if token in self._ids else [bytes([byte]) for byte in token]
        return [self._ids[part] for part in parts]


class _Decoding:
    """A decoding that is under way: bytes wait until they are a whole character."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """Take one more id; return the text that has become certain."""
        highest = self._tokenizer.vocab_size - 1
        if not 0 <= id <= highest:
            raise ValueError(f"{id=} is not in the vocabulary; expected 0 to {highest}")
        return self._utf8.decode(self._tokenizer._bytes_of(id, self._skip_special))

    def end(self) -> str:
        """Take no more ids; return the rest of the text."""
        return self._utf8.decode(b"", final=True)


class CharTokenizer(Tokenizer):
    r"""Every character is a token; one that was not in the training texts is written as bytes.

    Args:
        learned: the characters of more than one byte.
        special: the special tokens.

    Example:
        >>> tokenizer = CharTokenizer.train(["für"])
        >>> ids = tokenizer.encode("fürß")
        >>> print(*[tokenizer.tokens[i] for i in ids])
        f ü r \xc3 \x9f
        >>> tokenizer.decode(ids)
        'fürß'
    """

    _pattern = re.compile(r"(?s).")


class WordTokenizer(Tokenizer):
    """Every word is a token; one that is not in the vocabulary is written as bytes.

    Args:
        learned: the words of more than one byte.
        special: the special tokens.

    Example:
        >>> tokenizer = WordTokenizer.train(["to be, or not to be"])
        >>> [tokenizer.tokens[i] for i in tokenizer.encode("to be so")]
        ['to', ' be', ' ', 's', 'o']
    """


class BPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding, as GPT-2 has it.

    Trained on the same texts it equals the ``tokenizers`` library of Hugging Face: the same
    merges, the same ids, the same encodings.

    Args:
        learned: the merges, in the order in which they were learned: pairs of token numbers, of
            which the bytes have 0 to 255 and the n-th merge 256 + n.
        special: the special tokens.

    Raises:
        ValueError: if a merge is not a pair of earlier tokens.

    Example:
        >>> tokenizer = BPETokenizer.train(
        ...     ["low lower lowest"], vocab_size=263
        ... )
        >>> tokenizer.tokens[-4:]
        ['lo', 'low', ' low', ' lowe']
        >>> [tokenizer.tokens[i] for i in tokenizer.encode("low slower")]
        ['low', ' ', 's', 'low', 'e', 'r']
    """

    def __init__(
        self, learned: Sequence[Sequence[int]] = (), special: Sequence[str] = SPECIAL
    ) -> None:
        pairs = [(first, second) for first, second in learned]  # JSON has lists
        tokens = list(_BYTES)
        for first, second in pairs:
            if not (0 <= first < len(tokens) and 0 <= second < len(tokens)):
                raise ValueError(f"learned holds {first, second}; expected two earlier tokens")
            tokens.append(tokens[first] + tokens[second])
        self._set_vocabulary(pairs, tokens[len(_BYTES) :], special)
        shift = len(special)  # from the numbers of tokens to their ids
        self._merges = {(a + shift, b + shift): 256 + n + shift for n, (a, b) in enumerate(pairs)}

    @classmethod
    def _learn(
        cls, words: Mapping[str, int], room: int | None, special: Sequence[str]
    ) -> "Tokenizer":
        numbers = bytes(BYTE_ORDER.index(byte) for byte in range(256))
        spelled = {tuple(word.encode().translate(numbers)): n for word, n in words.items()}
        return cls(list(islice(_frequent_pairs(spelled, len(_BYTES)), room)), special)

    def _encode_word(self, word: str) -> list[int]:
        symbols = [self._ids[bytes([byte])] for byte in word.encode()]
        # What was learned earlier has a smaller id, and is merged earlier.
        while known := [pair for pair in pairwise(symbols) if pair in self._merges]:
            first = min(known, key=self._merges.__getitem__)
            symbols = _merge(symbols, first, self._merges[first])
        return symbols


class WordPieceTokenizer(Tokenizer):
    """Words cut into the longest known pieces, as BERT does; ``##`` marks all but the first.

    It differs from BERT where that loses something: case and spaces are kept, and only the
    characters that no piece covers, rather than the whole word, are written in another way.
    Pieces are learned by merging the most frequent pair, as Hugging Face does. (The first
    WordPiece chose the pair that made the texts most likely.)

    Args:
        learned: the pieces, such as ``"##ing"``.
        special: the special tokens.

    Example:
        >>> tokenizer = WordPieceTokenizer(["play", " play", "##ing", "##s"])
        >>> [tokenizer.tokens[i] for i in tokenizer.encode("playing plays")]
        ['play', '##ing', ' play', '##s']
    """

    # As in BERT, every punctuation mark is a word, so no word begins with "##".
    _pattern = re.compile(GPT2_WORD.replace(f"{_OTHER}+", _OTHER))
    _mark = b"##"

    @classmethod
    def _learn(
        cls, words: Mapping[str, int], room: int | None, special: Sequence[str]
    ) -> "Tokenizer":
        units = {word: [word[0], *("##" + character for character in word[1:])] for word in words}
        names = [chr(n) for n in range(128)]  # they are single bytes, which need not be learned
        names += sorted(set().union(*units.values()) - set(names))[:room]
        order = {unit: n for n, unit in enumerate(names)}
        known = [word for word in words if order.keys() >= set(units[word])]  # if there was room
        spelled = {tuple(order[unit] for unit in units[word]): words[word] for word in known}
        pairs = _frequent_pairs(spelled, len(names))
        for first, second in islice(pairs, room and room + 128 - len(names)):
            names.append(names[first] + names[second].removeprefix("##"))
        return cls(names[128:], special)

    def _encode_word(self, word: str) -> list[int]:
        ids: list[int] = []
        mark = b""
        while word:
            ends = range(min(len(word), self._longest), 0, -1)
            end = next((n for n in ends if mark + word[:n].encode() in self._ids), 0)
            ids += [self._ids[mark + word[:end].encode()]] if end else super()._encode_word(word[0])
            word, mark = word[end or 1 :], self._mark
        return ids
