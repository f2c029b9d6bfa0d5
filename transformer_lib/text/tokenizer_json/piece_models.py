"""The models of a tokenizer.json that know pieces of words: WordPiece and Unigram.

WordPiece takes the longest piece that fits, again and again (BERT). Unigram knows how probable each
piece is, and takes the pieces that together are the most probable (T5, ALBERT, XLM-R).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from transformer_lib.core.checks import check_whole
from transformer_lib.text.tokenizer_json.fields import Part, read_field
from transformer_lib.text.tokenizer_json.merge_model import MergeModel, read_vocabulary
from transformer_lib.text.tokenizers import MAX_REMEMBERED

_UNKNOWN_COSTS = 10.0  # how much less probable an unknown character is than the rarest piece


@runtime_checkable
class WordModel(Protocol):
    """What writes words as ids.

    Example:
        >>> read_model(
        ...     {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1}}
        ... ).encode(["a", "b"])
        [1, 0]
    """

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of each token."""

    def encode(self, words: Iterable[str]) -> list[int]:
        """Write words as ids."""


def read_model(part: Part) -> WordModel:
    """Read the model from the file.

    Args:
        part: the part ``model`` of the file.

    Returns:
        The model.

    Raises:
        ValueError: if it is of another type, or damaged.

    Example:
        >>> part = {"type": "WordLevel", "vocab": {}}
        >>> read_model(part)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: the model 'WordLevel' is not supported; expected ...
    """
    kind = part.get("type", "BPE")
    if kind == "WordPiece":
        return WordPieceModel.read(part)
    if kind == "Unigram":
        return UnigramModel.read(part)
    if kind == "BPE" and "vocab" in part:
        return MergeModel.read(part)
    raise ValueError(f"the model {kind!r} is not supported; expected BPE, WordPiece or Unigram")


class _Remembering:
    """What writes each word for itself, and remembers those that it has seen."""

    def __init__(self) -> None:
        self._remembered: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Write words as ids.

        Args:
            words: the words.

        Returns:
            The ids of all of them.
        """
        ids: list[int] = []
        for word in words:
            if word not in self._remembered:
                if len(self._remembered) >= MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[word] = self._write(word) if word else []
            ids += self._remembered[word]
        return ids

    def _write(self, word: str) -> list[int]:
        raise NotImplementedError


class WordPieceModel(_Remembering):
    """WordPiece: the longest piece that fits, again and again.

    Args:
        vocabulary: the id of each piece.
        unknown: the piece for a word that cannot be written.
        prefix: what marks a piece that does not begin a word.
        longest: a word of more characters counts as unknown.

    Example:
        >>> pieces = {"[UNK]": 0, "play": 1, "##ing": 2, "##i": 3}
        >>> WordPieceModel(pieces).encode(["playing", "playi", "plays"])
        [1, 2, 1, 3, 0]
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        *,
        unknown: str = "[UNK]",
        prefix: str = "##",
        longest: int = 100,
    ) -> None:
        super().__init__()
        self.vocabulary, self._prefix, self._longest = vocabulary, prefix, longest
        self._unknown = [vocabulary[unknown]]

    @classmethod
    def read(cls, part: Part) -> "WordPieceModel":
        """Read the model from the file.

        Args:
            part: the part ``model`` of the file.

        Returns:
            The model.

        Raises:
            ValueError: if it is damaged.
        """
        vocabulary = read_vocabulary(part)
        unknown = read_field(part, "unk_token", str, "[UNK]")
        if unknown not in vocabulary:
            raise ValueError(f"WordPiece has unk_token={unknown!r}, which is not in vocab")
        longest = read_field(part, "max_input_chars_per_word", int, 100)
        check_whole("max_input_chars_per_word", longest, least=0)
        prefix = read_field(part, "continuing_subword_prefix", str, "##")
        return cls(vocabulary, unknown=unknown, prefix=prefix, longest=longest)

    def _write(self, word: str) -> list[int]:
        if len(word) > self._longest:
            return self._unknown
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = self._prefix if start else ""
            for end in range(len(word), start, -1):
                if (known := self.vocabulary.get(prefix + word[start:end])) is not None:
                    ids.append(known)
                    start = end
                    break
            else:
                return self._unknown
        return ids


class UnigramModel(_Remembering):
    """Unigram: the pieces that are the most probable together.

    Args:
        pieces: each piece, in the order of the ids, and the logarithm of its probability.
        unknown: the id for characters that no piece has; without one, they are an error.
        byte_fallback: whether an unknown character is written in pieces such as ``<0xE2>``.

    Example:
        >>> pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -1.5)]
        >>> UnigramModel(pieces, unknown=0).encode(["abba", "a?!b"])
        [3, 2, 1, 1, 0, 2]
    """

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        *,
        unknown: int | None = None,
        byte_fallback: bool = False,
    ) -> None:
        super().__init__()
        self.vocabulary = {piece: n for n, (piece, _) in enumerate(pieces)}
        self._scores = [score for _, score in pieces]
        self._unknown, self._byte_fallback = unknown, byte_fallback
        self._unknown_score = min(self._scores, default=0.0) - _UNKNOWN_COSTS
        lengths: dict[str, set[int]] = {}
        for piece, _ in pieces:
            lengths.setdefault(piece[:1], set()).add(len(piece))
        self._lengths = {first: sorted(of) for first, of in lengths.items()}

    @classmethod
    def read(cls, part: Part) -> "UnigramModel":
        """Read the model from the file.

        Args:
            part: the part ``model`` of the file.

        Returns:
            The model.

        Raises:
            ValueError: if it is damaged.
        """
        pieces = []
        for piece in read_field(part, "vocab", list):
            match piece:
                case [str(text), int() | float() as score] if math.isfinite(score):
                    pieces.append((text, float(score)))
                case _:
                    raise ValueError(f"Unigram has {piece!r} in vocab; expected a text and a score")
        unknown = None if part.get("unk_id") is None else read_field(part, "unk_id", int)
        if unknown is not None and not 0 <= unknown < len(pieces):
            raise ValueError(f"Unigram has unk_id={unknown}; expected less than {len(pieces)}")
        fallback = read_field(part, "byte_fallback", bool, False)
        return cls(pieces, unknown=unknown, byte_fallback=fallback)

    def _write(self, word: str) -> list[int]:
        ids: list[int] = []
        unknown = ""  # characters in a row that no piece has
        for id, text in self._best_path(word):
            if id is not None and id != self._unknown:
                ids += [*self._of_unknown(unknown), id]
                unknown = ""
            else:
                unknown += text
        return ids + self._of_unknown(unknown)

    def _best_path(self, word: str) -> list[tuple[int | None, str]]:
        """The most probable pieces, from left to right; ``None`` for an unknown character.

        Of each place, the best way to get there is known when the pieces from there are looked at
        (the algorithm of Viterbi). Of ways that are equal the first one counts.
        """
        end = len(word)
        score = [0.0] + [-math.inf] * end
        reached: list[tuple[int, int | None]] = [(0, None)] * (end + 1)  # from where, with which id
        for start in range(end):
            single = False
            for length in self._lengths.get(word[start], ()):
                id = self.vocabulary.get(word[start : start + length])
                if id is None or start + length > end:
                    continue
                single = single or length == 1
                found = self._scores[id] + score[start]
                if found > score[start + length]:
                    score[start + length], reached[start + length] = found, (start, id)
            if not single and self._unknown_score + score[start] > score[start + 1]:
                score[start + 1] = self._unknown_score + score[start]
                reached[start + 1] = (start, None)
        path = []
        while end:
            start, id = reached[end]
            path.append((id, word[start:end]))
            end = start
        return path[::-1]

    def _of_unknown(self, text: str) -> list[int]:
        """The ids of characters in a row that no piece has: one for all, or their bytes."""
        if not text:
            return []
        if text in self.vocabulary:  # the name of the unknown piece itself
            return [self.vocabulary[text]]
        if self._byte_fallback:
            codes = [self.vocabulary.get(f"<0x{byte:02X}>") for byte in text.encode()]
            known = [code for code in codes if code is not None]
            if len(known) == len(codes):
                return known
        if self._unknown is None:
            raise ValueError(f"{text!r} has no pieces, and unk_id=None: the file names no unknown")
        return [self._unknown]
