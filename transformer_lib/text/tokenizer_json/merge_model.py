"""The model of a tokenizer.json: words to ids, by merges.

Byte-pair encoding begins with the characters of a word and merges neighbours, those first whose
merge was learned first. What the vocabulary lacks is written in bytes, or as one unknown token.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from transformer_lib.text.tokenizer_json.fields import Part, read_field
from transformer_lib.text.tokenizers import MAX_REMEMBERED, Pair

_LONGEST = 200  # characters of a word that is remembered; longer ones hardly come back
_SIGN = "▁"  # with it SentencePiece writes a space


class MergeModel:
    """Byte-pair encoding of words.

    Args:
        vocabulary: the id of each token.
        merges: the rank of each pair of ids that is merged; the lowest goes first.
        made: the id of the token that the pair of each rank becomes.
        unknown: the token for what the vocabulary lacks; without one, that is left out.
        join_unknown: whether several unknown characters in a row become one token.
        byte_fallback: whether an unknown character is written in tokens such as ``<0xE2>``.
        whole_first: whether a word that is a token is taken as it is, whatever the merges make.

    Example:
        >>> model = MergeModel(
        ...     {"l": 0, "o": 1, "w": 2, "lo": 3}, {(0, 1): 0}, [3]
        ... )
        >>> model.encode(["low"])
        [3, 2]
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Mapping[Pair, int],
        made: Sequence[int],
        *,
        unknown: str | None = None,
        join_unknown: bool = False,
        byte_fallback: bool = False,
        whole_first: bool = False,
    ) -> None:
        self.vocabulary, self._merges, self._made = vocabulary, merges, made
        self._unknown = None if unknown is None else vocabulary[unknown]
        self._join_unknown, self._whole_first = join_unknown, whole_first
        codes = [vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)]
        self._byte_ids = codes if byte_fallback else [None] * 256
        self._parts = self._find_parts()
        self._remembered: dict[str, list[int]] = {}

    @classmethod
    def read(cls, part: Part) -> "MergeModel":
        """Read the model from the file.

        Args:
            part: the part ``model`` of the file.

        Returns:
            The model.

        Raises:
            ValueError: if it is damaged, or if a merge is of tokens that are not there.

        Example:
            >>> vocabulary = {"a": 0, "b": 1, "ab": 2}
            >>> part = {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]}
            >>> MergeModel.read(part).encode(["abba"])
            [2, 1, 0]
        """
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if value := part.get(name):
                raise ValueError(f"BPE with {name}={value!r} is not supported")
        vocabulary = read_vocabulary(part)
        unknown = None if part.get("unk_token") is None else read_field(part, "unk_token", str)
        if unknown is not None and unknown not in vocabulary:
            raise ValueError(f"BPE has unk_token={unknown!r}, which is not in vocab")
        merges, made = {}, []
        for rank, (left, right) in enumerate(_read_merges(read_field(part, "merges", list))):
            try:
                merges[vocabulary[left], vocabulary[right]] = rank
                made.append(vocabulary[left + right])
            except KeyError as error:
                raise ValueError(
                    f"{error} of the merge {left!r} {right!r} is not in vocab"
                ) from None
        return cls(
            vocabulary,
            merges,
            made,
            unknown=unknown,
            join_unknown=read_field(part, "fuse_unk", bool, False),
            byte_fallback=read_field(part, "byte_fallback", bool, False),
            whole_first=read_field(part, "ignore_merges", bool, False),
        )

    def encode(self, words: Iterable[str]) -> list[int]:
        """Write words as ids.

        Args:
            words: the words.

        Returns:
            The ids of all of them.
        """
        ids: list[int] = []
        for word in words:
            if self._whole_first and word in self.vocabulary:
                ids.append(self.vocabulary[word])
            elif (known := self._remembered.get(word)) is not None:
                ids += known
            else:
                for part in self._parts.findall(word) if self._parts else (word,):
                    ids += self._remembered.get(part) or self._encode_part(part)
        return ids

    def _encode_part(self, word: str) -> list[int]:
        ids = self._merge(self._spell(word))
        if len(word) <= _LONGEST:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[word] = ids
        return ids

    def _spell(self, word: str) -> list[int]:
        """Return the ids of the characters."""
        ids: list[int] = []
        waiting: list[int] = []  # the unknown token, until the next known one: so do the peers
        for character in word:
            if (known := self.vocabulary.get(character)) is not None:
                ids += [*waiting, known]
                waiting = []
                continue
            codes = [self._byte_ids[byte] for byte in character.encode()]
            written = [code for code in codes if code is not None]
            if len(written) == len(codes):
                ids += written
            elif self._unknown is not None:
                ids += [] if self._join_unknown else waiting
                waiting = [self._unknown]
        return ids + waiting

    def _merge(self, ids: list[int]) -> list[int]:
        """Merge pairs by rank, equal ones from left to right, until none is left."""
        merges, n = self._merges, len(ids)
        before, after = list(range(-1, n - 1)), list(range(1, n + 1))
        heap = [
            (merges[pair], place, pair)
            for place, pair in enumerate(pairwise(ids))
            if pair in merges
        ]
        heapify(heap)
        while heap:
            rank, place, (left, right) = heappop(heap)
            end = after[place]
            if end >= n or ids[place] != left or ids[end] != right:
                continue  # one of the two has been merged with another neighbour since
            ids[place], ids[end] = self._made[rank], -1
            after[place] = end = after[end]
            if end < n:
                before[end] = place
                if (rank_after := merges.get(pair := (ids[place], ids[end]))) is not None:
                    heappush(heap, (rank_after, place, pair))
            start = before[place]
            pair = (ids[start], ids[place])
            if start >= 0 and (rank_before := merges.get(pair)) is not None:
                heappush(heap, (rank_before, start, pair))
        return [n for n in ids if n >= 0]

    def _find_parts(self) -> re.Pattern[str] | None:
        """Find out whether words can be cut before spaces without changing what the merges make.

        SentencePiece hands over whole texts. If no merge joins a token to one that begins with a
        space, its words can be merged one by one, and remembered.
        """
        if _SIGN not in self.vocabulary:
            return None
        begins = {n for token, n in self.vocabulary.items() if token.startswith(_SIGN)}
        spaces = {n for token, n in self.vocabulary.items() if token.endswith(_SIGN)}
        if any(right in begins and left not in spaces for left, right in self._merges):
            return None
        return re.compile(f"{_SIGN}+[^{_SIGN}]*|[^{_SIGN}]+")


def read_vocabulary(part: Part) -> dict[str, int]:
    """Read the id of each token.

    Args:
        part: the part ``model`` of the file.

    Returns:
        The ids.

    Raises:
        ValueError: if one is no whole number from 0.

    Example:
        >>> part = {"type": "BPE", "vocab": {"a": -1}}
        >>> read_vocabulary(part)
        Traceback (most recent call last):
        ValueError: BPE has the id -1 in vocab; expected whole numbers from 0
    """
    vocabulary: dict[str, int] = read_field(part, "vocab", dict)
    if wrong := [n for n in vocabulary.values() if not isinstance(n, int) or n < 0]:
        kind = part.get("type", "BPE")
        raise ValueError(f"{kind} has the id {wrong[0]!r} in vocab; expected whole numbers from 0")
    return vocabulary


def _read_merges(merges: Iterable[object]) -> Iterable[tuple[str, str]]:
    """Yield the pairs, which the file has as lists or as strings with a space."""
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(merge, str) and merge.startswith("#version"):
            continue
        match pair:
            case [str(left), str(right)]:
                yield left, right
            case _:
                raise ValueError(f"merges holds {merge!r}; expected two tokens")
