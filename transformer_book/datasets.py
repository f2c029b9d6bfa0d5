"""The book's small data sets, read from book/data.

Each function reads one file and returns its parts. ``book/data/README.md`` says where the data
come from, how they were made and split, and under which licence they may be used.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_lib import Batch, book_folder

FOLDER_VARIABLE = "EXECUTABLE_TRANSFORMER_DATA"
LANGUAGES = {  # the classes of `languages()`, in the order of their labels
    "da": "Danish", "de": "German", "en": "English", "es": "Spanish", "fr": "French",
    "it": "Italian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese",
    "sk": "Slovak", "sv": "Swedish",
}  # fmt: skip
VALIDATION_PLAY = "MACBETH"
DARKEST = 16  # the largest value of a pixel in `digits()`

Part = TypeVar("Part")


@dataclass(frozen=True)
class Parts(Generic[Part]):
    """The three parts of a data set, one after the other; no example is in two of them.

    Args:
        train: what a model learns from.
        validation: what its settings are chosen with.
        test: what it is measured with at the end.

    Example:
        >>> parts = Parts(train=[1, 2, 3], validation=[4], test=[5])
        >>> parts.test, [len(part) for part in parts]
        ([5], [3, 1, 1])
    """

    train: Part
    validation: Part
    test: Part

    def __iter__(self) -> Iterator[Part]:
        return iter((self.train, self.validation, self.test))


class Number(NamedTuple):
    """A number in two languages.

    Args:
        number: the number itself.
        english: its English words, the source of a translation.
        german: its German word, the target.

    Example:
        >>> Number(41, "forty-one", "einundvierzig").german
        'einundvierzig'
    """

    number: int
    english: str
    german: str


class NumberWords(NamedTuple):
    """A number's words in one language, and which language it is.

    Args:
        words: the words.
        language: the code of the language, a key of ``LANGUAGES``.
        number: the number itself.

    Example:
        >>> NumberWords("einundvierzig", "de", 41).label
        1
    """

    words: str
    language: str
    number: int

    @property
    def label(self) -> int:
        """The language's place among ``LANGUAGES``, from 0."""
        return list(LANGUAGES).index(self.language)


class Text(NamedTuple):
    """One long text in two parts.

    Args:
        train: what a model learns from.
        validation: what it is measured with.

    Example:
        >>> Text(train="To be, or not", validation=" to be").validation
        ' to be'
    """

    train: str
    validation: str


class Digits(NamedTuple):
    """Images of handwritten digits.

    Args:
        images: ``(B, 1, 8, 8)``, 0 is paper and 1 the darkest ink.
        labels: the digit in each image, ``(B,)``.

    Example:
        >>> Digits(torch.zeros(2, 1, 8, 8), torch.tensor([3, 7])).labels
        tensor([3, 7])
    """

    images: Float[Tensor, "B 1 8 8"]
    labels: Int[Tensor, " B"]


class Cl100k(NamedTuple):
    """GPT-4's vocabulary, and texts with their ids.

    Args:
        ranks: the id of each token, which is also its place in the order of merges.
        texts: some texts with their ids by the package tiktoken.
        article: one sentence in several languages; each is one of the texts.

    Example:
        >>> Cl100k({b"berry": 15717}, {"berry": [15717]}, {}).ranks[b"berry"]
        15717
    """

    ranks: dict[bytes, int]
    texts: dict[str, list[int]]
    article: dict[str, str]


def numbers() -> Parts[list[Number]]:
    """Read English number words and their German translations.

    Returns:
        The parts; numbers below 100 are all in the training part.

    Raises:
        FileNotFoundError: if the data are not there.

    Example:
        >>> data = numbers()
        >>> [len(part) for part in data]
        [11500, 500, 1000]
        >>> data.train[41]
        Number(number=41, english='forty-one', german='einundvierzig')
    """
    found: dict[str, list[Number]] = {}
    for part, number, english, german in _rows("numbers.tsv", "\t"):
        found.setdefault(part, []).append(Number(int(number), english, german))
    return Parts(**found)


def languages() -> Parts[list[NumberWords]]:
    """Read number words in a dozen languages, for telling the language.

    Returns:
        The parts; a number is in the same part in all languages.

    Raises:
        FileNotFoundError: if the data are not there.

    Example:
        >>> data = languages()
        >>> [len(part) for part in data]
        [2382, 1198, 8346]
        >>> data.train[0]
        NumberWords(words='four', language='en', number=4)
    """
    found: dict[str, list[NumberWords]] = {}
    for part, language, number, words in _rows("languages.tsv", "\t"):
        found.setdefault(part, []).append(NumberWords(words, language, int(number)))
    return Parts(**found)


def shakespeare() -> Text:
    """Read nine plays of Shakespeare; the last one, *Macbeth*, is for validation.

    Returns:
        Eight plays, and the ninth, which is 9.6 % of the whole.

    Raises:
        FileNotFoundError: if the data are not there.

    Example:
        >>> data = shakespeare()
        >>> print(data.validation[:40])
        MACBETH
        <BLANKLINE>
        ACT I.
        <BLANKLINE>
        SCENE I. An open Place.
    """
    text = _read("shakespeare.txt")
    start = text.index(f"\n{VALIDATION_PLAY}\n\n") + 1
    return Text(train=text[:start], validation=text[start:])


def digits() -> Parts[Digits]:
    """Read images of handwritten digits, in the order of their source.

    Returns:
        The parts, each with its images and labels.

    Raises:
        FileNotFoundError: if the data are not there.

    Example:
        >>> data = digits()
        >>> data.train.images.shape, data.test.labels[:5]
        (torch.Size([1197, 1, 8, 8]), tensor([4, 4, 7, 2, 8]))
    """
    found: dict[str, list[list[int]]] = {}
    for part, *values in _rows("digits.csv", ","):
        found.setdefault(part, []).append([int(value) for value in values])
    return Parts(**{part: _as_digits(torch.tensor(rows)) for part, rows in found.items()})


def _cl100k_tokens() -> list[bytes]:
    """All tokens of GPT-4; in the file, line ends and backslashes are escaped."""
    escapes = {r"\n": "\n", r"\r": "\r", r"\\": "\\"}
    lines = _read("cl100k.txt").removesuffix("\n").split("\n")
    plain = (re.sub(r"\\.", lambda escape: escapes[escape[0]], line) for line in lines)
    return [line.encode("latin-1") for line in plain]


def cl100k() -> Cl100k:
    """Read GPT-4's vocabulary, as OpenAI has published it.

    Returns:
        All of its 100,256 tokens, and a few texts with the ids that tiktoken gives them.

    Raises:
        FileNotFoundError: if the data are not there.

    Example:
        >>> real = cl100k()
        >>> len(real.ranks), real.ranks[b" strawberry"]
        (100256, 73700)
        >>> real.texts["strawberry"]
        [496, 675, 15717]
    """
    found = json.loads(_read("cl100k.json"))
    ranks = {token: rank for rank, token in enumerate(_cl100k_tokens())}
    return Cl100k(ranks, found["texts"], found["article"])


def image_batch(examples: Sequence[tuple[Tensor, int | Tensor]]) -> Batch:
    """Make a batch of images of one size, each with one class.

    Args:
        examples: B pairs of an image ``(C, height, width)`` and the number of its class.

    Returns:
        ``images`` ``(B, C, height, width)`` and ``targets`` ``(B,)``.

    Example:
        >>> batch = image_batch(
        ...     [(torch.zeros(1, 8, 8), 3), (torch.ones(1, 8, 8), 7)]
        ... )
        >>> batch["images"].shape, batch["targets"]
        (torch.Size([2, 1, 8, 8]), tensor([3, 7]))
    """
    images = torch.stack([image for image, _ in examples])
    targets = torch.tensor([int(label) for _, label in examples], device=images.device)
    return {"images": images, "targets": targets}


def _as_digits(rows: Int[Tensor, "B 65"]) -> Digits:
    return Digits(images=rows[:, 1:].reshape(-1, 1, 8, 8) / DARKEST, labels=rows[:, 0])


def _rows(filename: str, separator: str) -> Iterator[list[str]]:
    """Yield the fields of each line but the first, which names the columns."""
    for line in _read(filename).splitlines()[1:]:
        yield line.split(separator)


def _read(filename: str) -> str:
    path = _folder() / filename
    if not path.is_file():
        raise FileNotFoundError(
            f"{filename} is not in {path.parent}: the data are in the folder book/data of the "
            f"book's repository; set the environment variable {FOLDER_VARIABLE} to its path"
        )
    return path.read_text(encoding="utf-8")


def _folder() -> Path:
    """The folder named by the environment, or the book's own."""
    return Path(os.environ.get(FOLDER_VARIABLE) or book_folder() / "data")
