"""Steps of a tokenizer.json before and after its model.

A normalizer changes the text, a pre-tokenizer cuts it into words, a post-processor adds special
tokens around the ids. Each is read from its part of the file; a part of an unknown type is an
error.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import partial

from transformer_lib.core.checks import check_choice
from transformer_lib.text.tokenizer_json.bert_steps import (
    drop_marks,
    lower,
    read_bert_normalizer,
)
from transformer_lib.text.tokenizer_json.charsmap import read_precompiled
from transformer_lib.text.tokenizer_json.fields import Part, read_field, read_parts, unknown
from transformer_lib.text.tokenizer_json.patterns import Finder, cut, find_spans, find_text
from transformer_lib.text.tokenizers import BYTE_ORDER, GPT2_WORD, NUMBERS, WHITE_SPACE

Normalizer = Callable[[str], str]
PreTokenizer = Callable[[list[str], bool], list[str]]  # the flag: whether the text begins here
PostProcessor = Callable[[list[int], bool], list[int]]  # the flag: whether to add special tokens

# GPT-2 writes each byte as one visible character: those that Latin-1 shows stand for themselves.
_VISIBLE = sum(byte != 0x20 and chr(byte).isprintable() for byte in range(256))
BYTE_CHARACTERS = {
    byte: chr(byte) if place < _VISIBLE else chr(256 + place - _VISIBLE)
    for place, byte in enumerate(BYTE_ORDER)
}


def read_pattern(part: Part) -> Finder:
    """Read the pattern of a part, a plain string or a regular expression.

    Args:
        part: the part.

    Returns:
        A function that finds the pattern.

    Raises:
        ValueError: if the part has neither.

    Example:
        >>> read_pattern({"type": "Split", "pattern": {"String": " "}})("a b")
        [(1, 2)]
    """
    pattern: dict[str, object] = read_field(part, "pattern", dict)
    if isinstance(text := pattern.get("String"), str):
        return find_text(text)
    if isinstance(text := pattern.get("Regex"), str):
        return find_spans(text)
    raise ValueError(f"{part.get('type')} has {pattern=}; expected a String or a Regex")


def replacer(part: Part) -> Normalizer:
    """Read a part of the type ``Replace``.

    Args:
        part: the part.

    Returns:
        A function that writes the content in place of the pattern.

    Example:
        >>> replacer(
        ...     {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        ... )("a b")
        'a▁b'
    """
    find, content = read_pattern(part), read_field(part, "content", str)
    if isinstance(plain := read_field(part, "pattern", dict).get("String"), str) and plain:
        return lambda text: text.replace(plain, content)

    def replace(text: str) -> str:
        pieces, end = [], 0
        for start, stop in find(text):
            pieces += [text[end:start], content]
            end = stop
        return "".join([*pieces, text[end:]])

    return replace


def read_normalizer(part: Part | None) -> Normalizer:
    """Read what changes a text before it is cut into words.

    Args:
        part: the normalizer; ``None`` changes nothing.

    Returns:
        A function from a text to a text.

    Raises:
        ValueError: if the part, or one in it, is of an unknown type.

    Example:
        >>> read_normalizer({"type": "Prepend", "prepend": "▁"})("to be")
        '▁to be'
    """
    kind = None if part is None else part.get("type")
    if part is None:
        return lambda text: text
    if kind == "Sequence":
        return partial(_in_turn, [read_normalizer(one) for one in read_parts(part, "normalizers")])
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return partial(unicodedata.normalize, kind)
    if kind == "Lowercase":
        return lower
    if kind == "StripAccents":
        return drop_marks
    if kind == "BertNormalizer":
        return read_bert_normalizer(part)
    if kind == "Precompiled":
        return read_precompiled(part)
    if kind == "Replace":
        return replacer(part)
    if kind == "Prepend":
        before = read_field(part, "prepend", str)
        return lambda text: before + text if text else text
    if kind == "Strip":
        left, right = (read_field(part, f"strip_{side}", bool) for side in ("left", "right"))
        return partial(_strip, left=left, right=right)
    raise unknown("normalizer", part)


def _in_turn(steps: list[Normalizer], text: str) -> str:
    for step in steps:
        text = step(text)
    return text


def _strip(text: str, left: bool, right: bool) -> str:
    text = text.lstrip(WHITE_SPACE) if left else text
    return text.rstrip(WHITE_SPACE) if right else text


def read_pre_tokenizer(part: Part | None) -> PreTokenizer:
    """Read what cuts a text into words.

    Args:
        part: the pre-tokenizer; ``None`` does not cut.

    Returns:
        A function that cuts texts into words; the model writes each word for itself. Its second
        argument says whether the first text is the beginning of all; a word may be empty.

    Raises:
        ImportError: if a pattern needs the package ``regex``, which is not installed.
        ValueError: if the part, or one in it, is of an unknown type.

    Example:
        >>> read_pre_tokenizer({"type": "Digits", "individual_digits": True})(
        ...     ["in 2024"], True
        ... )
        ['in ', '2', '0', '2', '4']
    """
    if part is None:
        return lambda texts, first: texts
    kind = part.get("type")
    if kind == "Sequence":
        steps = [read_pre_tokenizer(one) for one in read_parts(part, "pretokenizers")]
        return partial(_words_in_turn, steps)
    if kind == "ByteLevel":
        return _read_byte_level(part)
    if kind == "Metaspace":
        return _read_metaspace(part)
    if kind == "BertPreTokenizer":
        return partial(_words_in_turn, [read_pre_tokenizer(one) for one in _BERT_WORDS])
    if kind not in _CUTTERS:
        raise unknown("pre_tokenizer", part)
    find, behavior, invert = _CUTTERS[str(kind)](part)
    cut("", [], behavior)  # an unknown behavior is an error now, not at the first text
    return partial(_cut_all, find, behavior, invert)


_BERT_WORDS: tuple[Part, ...] = (
    {"type": "WhitespaceSplit"},
    {"type": "Punctuation", "behavior": "Isolated"},
)


def _words_in_turn(steps: list[PreTokenizer], words: list[str], first: bool) -> list[str]:
    for step in steps:
        # What was removed has left an empty word, so the word after it is not the first one.
        first = first and words[0] != ""
        words = step([word for word in words if word], first)
    return words


def _cut_all(find: Finder, behavior: str, invert: bool, texts: list[str], first: bool) -> list[str]:
    words = []
    for text in texts:
        if (spans := find(text)) or behavior == "Removed":
            words += cut(text, spans, behavior, invert)
        else:
            words.append(text)
    return words


def _read_byte_level(part: Part) -> PreTokenizer:
    """Cut as GPT-2 does if ``use_regex``, and write every byte as its character."""
    prefix = read_field(part, "add_prefix_space", bool, True)
    find = re.compile(GPT2_WORD).findall if read_field(part, "use_regex", bool, True) else None
    names = {byte: name for byte, name in BYTE_CHARACTERS.items() if chr(byte) != name}

    def words(texts: list[str], first: bool) -> list[str]:
        if prefix:
            texts = [text if text.startswith(" ") else " " + text for text in texts]
        pieces = [piece for text in texts for piece in find(text)] if find else texts
        return [piece.encode().decode("latin-1").translate(names) for piece in pieces]

    return words


def _read_metaspace(part: Part) -> PreTokenizer:
    """Write spaces as a visible sign, perhaps one more at the beginning, and cut before each."""
    sign, scheme = read_metaspace(part)
    splits, find = read_field(part, "split", bool, True), find_text(sign)

    def words(texts: list[str], first: bool) -> list[str]:
        found = []
        for place, plain in enumerate(texts):
            text = plain.replace(" ", sign)
            prefix = scheme == "always" or (scheme == "first" and first and place == 0)
            text = sign + text if prefix and not text.startswith(sign) else text
            found += cut(text, find(text), "MergedWithNext") if splits else [text]
        return found

    return words


def read_metaspace(part: Part) -> tuple[str, str]:
    """Read what the pre-tokenizer and the decoder ``Metaspace`` have in common.

    Args:
        part: the part.

    Returns:
        The sign for a space, and ``"always"``, ``"first"`` or ``"never"`` for one more in front.

    Raises:
        ValueError: if there is no such place, or if an old name for it says something else.

    Example:
        >>> read_metaspace({"type": "Metaspace", "replacement": "▁"})
        ('▁', 'always')
    """
    old = read_field(part, "add_prefix_space", bool, True)
    scheme = read_field(part, "prepend_scheme", str, "always" if old else "never")
    check_choice("prepend_scheme", scheme, ("always", "first", "never") if old else ("never",))
    return read_field(part, "replacement", str), scheme


# These normalizers may remove characters, or set a space before them.
_REMOVE = ("BertNormalizer", "Precompiled", "StripAccents")


def check_beginning(normalizer: Part | None, pre_tokenizer: Part | None) -> None:
    """Refuse a normalizer that may hide from ``Metaspace`` where a text begins.

    Args:
        normalizer: the normalizer.
        pre_tokenizer: the pre-tokenizer.

    Raises:
        ValueError: if the one removes characters and the other asks for the beginning.

    Example:
        >>> strip = {"type": "Strip", "strip_left": True, "strip_right": True}
        >>> metaspace = {"type": "Metaspace", "prepend_scheme": "first"}
        >>> check_beginning(strip, metaspace)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: the normalizer 'Strip' before prepend_scheme='first' is ...
    """
    asked = any(one.get("prepend_scheme") == "first" for one in _flat(pre_tokenizer))
    for one in _flat(normalizer):
        name = one.get("type")
        removes = one.get("strip_left") or one.get("content") == "" or name in _REMOVE
        if asked and removes:
            raise ValueError(
                f"the normalizer {name!r} before prepend_scheme='first' is not supported"
            )


def _flat(part: Part | None) -> list[Part]:
    """Return a part and all parts in it."""
    inner = [
        one
        for name in ("normalizers", "pretokenizers")
        if part and name in part
        for one in read_parts(part, name)
    ]
    return [*([part] if part else []), *(deeper for one in inner for deeper in _flat(one))]


def _digits(part: Part) -> tuple[Finder, str, bool]:
    behavior = "Isolated" if read_field(part, "individual_digits", bool) else "Contiguous"
    return _plain(f"[{NUMBERS}]"), behavior, False


def _split(part: Part) -> tuple[Finder, str, bool]:
    invert = read_field(part, "invert", bool, False)
    return read_pattern(part), read_field(part, "behavior", str), invert


def _punctuation(part: Part) -> tuple[Finder, str, bool]:
    find = find_spans(r"[\p{P}!-/:-@\[-`{-~]")
    return find, read_field(part, "behavior", str, "Isolated"), False


def _plain(pattern: str) -> Finder:
    compiled = re.compile(pattern)
    return lambda text: [match.span() for match in compiled.finditer(text)]


# What each type looks for, what becomes of it, and whether the rest is meant.
_CUTTERS: dict[str, Callable[[Part], tuple[Finder, str, bool]]] = {
    "Split": _split,
    "Digits": _digits,
    "Punctuation": _punctuation,
    "Whitespace": lambda _: (find_spans(r"\w+|[^\w\s]+", "rust"), "Removed", True),
    "WhitespaceSplit": lambda _: (_plain(f"[{WHITE_SPACE}]"), "Removed", False),
}


def read_post_processor(part: Part | None) -> PostProcessor:
    """Read what adds special tokens to the ids of a text.

    Args:
        part: the post-processor; ``None`` adds nothing.

    Returns:
        A function from ids to ids; its second argument says whether to add special tokens.

    Raises:
        ValueError: if the part, or one in it, is of an unknown type.

    Example:
        >>> begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
        >>> whole = {"Sequence": {"id": "A", "type_id": 0}}
        >>> tokens = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
        >>> part = {"single": [begin, whole], "special_tokens": tokens}
        >>> read_post_processor({"type": "TemplateProcessing", **part})(
        ...     [5, 6], True
        ... )
        [1, 5, 6]
    """
    if part is None or part.get("type") == "ByteLevel":  # that one changes offsets only
        return lambda ids, special: ids
    if part.get("type") == "TemplateProcessing":
        return _read_template(part)
    if part.get("type") in ("BertProcessing", "RobertaProcessing"):
        begin, end = (_read_pair(part, name) for name in ("cls", "sep"))
        return lambda ids, special: [begin, *ids, end] if special else ids
    if part.get("type") != "Sequence":
        raise unknown("post_processor", part)
    steps = [read_post_processor(one) for one in read_parts(part, "processors")]

    def process(ids: list[int], special: bool) -> list[int]:
        for step in steps:
            ids = step(ids, special)
        return ids

    return process


def _read_pair(part: Part, name: str) -> int:
    """Read the id of a token that is written as a pair, such as ``["[SEP]", 102]``."""
    match read_field(part, name, list):
        case [str(), int() as id]:
            return id
        case pair:
            raise ValueError(f"{part.get('type')} has {name}={pair!r}; expected a token and its id")


def _read_template(part: Part) -> PostProcessor:
    tokens: dict[str, object] = read_field(part, "special_tokens", dict)
    pieces: list[list[int] | None] = []  # None: the ids of the text
    for item in read_parts(part, "single"):
        if isinstance(token := item.get("SpecialToken"), dict):
            named = tokens.get(read_field(token, "id", str))
            if not isinstance(named, dict):
                raise ValueError(f"TemplateProcessing has no ids for {token.get('id')!r}")
            pieces.append(read_field(named, "ids", list))
        elif isinstance(whole := item.get("Sequence"), dict) and whole.get("id") == "A":
            pieces.append(None)
        else:
            raise ValueError(f"TemplateProcessing has {item!r} in single; expected a token or A")

    def process(ids: list[int], special: bool) -> list[int]:
        return [n for new in pieces for n in (ids if new is None else new if special else [])]

    return process
