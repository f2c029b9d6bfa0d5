"""What BERT does before its model: clean a text, set Chinese characters apart, drop accents."""

import re
import unicodedata
from collections.abc import Callable

from transformer_lib.text.tokenizer_json.fields import Part, read_field
from transformer_lib.text.tokenizers import WHITE_SPACE

_CHINESE = re.compile(
    "([\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f])"
)
_BLANK = re.compile(f"[{WHITE_SPACE}]")
_KEPT = "\t\n\r"  # controls that count as spaces


def read_bert_normalizer(part: Part) -> Callable[[str], str]:
    """Read a normalizer of the type ``BertNormalizer``.

    Args:
        part: the part.

    Returns:
        A function from a text to a text.

    Raises:
        ValueError: if a value is of another type.

    Example:
        >>> read_bert_normalizer({"type": "BertNormalizer"})("Où天")
        'ou 天 '
    """
    cleans = read_field(part, "clean_text", bool, True)
    sets_apart = read_field(part, "handle_chinese_chars", bool, True)
    lowers = read_field(part, "lowercase", bool, True)
    said = part.get("strip_accents") is not None
    drops = read_field(part, "strip_accents", bool) if said else lowers

    def normalize(text: str) -> str:
        if cleans:
            text = _BLANK.sub(" ", "".join(c for c in text if not _is_control(c)))
        if sets_apart:
            text = _CHINESE.sub(r" \1 ", text)
        if drops:
            apart = unicodedata.normalize("NFD", text)
            text = "".join(c for c in apart if unicodedata.category(c) != "Mn")
        return lower(text) if lowers else text

    return normalize


def lower(text: str) -> str:
    """Write a text in small letters, one by one: ``str.lower`` knows the final sigma of Greek.

    Args:
        text: any text.

    Returns:
        The text in small letters.

    Example:
        >>> lower("ΟΔΟΣ")
        'οδοσ'
    """
    return "".join(character.lower() for character in text)


def drop_marks(text: str) -> str:
    """Drop all marks that are combined with a letter, as the normalizer ``StripAccents`` does.

    Args:
        text: any text; letters that have their accent in them stay as they are.

    Returns:
        The text without marks.

    Example:
        >>> drop_marks(unicodedata.normalize("NFKD", "Où"))
        'Ou'
    """
    return "".join(c for c in text if unicodedata.category(c)[0] != "M")


def _is_control(character: str) -> bool:
    if character in _KEPT:
        return False
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs")
