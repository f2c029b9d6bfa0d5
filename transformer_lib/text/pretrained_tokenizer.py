"""Tokenizers of real checkpoints, read from their files.

:class:`PretrainedTokenizer` reads the file ``tokenizer.json`` that comes with a checkpoint, in the
format of the ``tokenizers`` library, and gives the same ids as that library: GPT-2, Llama 2 and 3,
Mistral, Gemma, Qwen, SmolLM2, OLMo 2 and others whose model is byte-pair encoding; BERT, whose
model is WordPiece; T5, ALBERT and XLM-R, whose model is Unigram.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from transformer_lib.core.files import read_object, whole_files
from transformer_lib.text.chat.template import Messages, protect, render_chat
from transformer_lib.text.tokenizer_json.added_tokens import (
    AddedToken,
    AddedTokens,
    with_more_tokens,
)
from transformer_lib.text.tokenizer_json.decoders import Decoding, read_decoder
from transformer_lib.text.tokenizer_json.fields import Part, read_field, read_parts
from transformer_lib.text.tokenizer_json.merge_model import MergeModel
from transformer_lib.text.tokenizer_json.patterns import cut, find_spans
from transformer_lib.text.tokenizer_json.piece_models import WordModel, read_model
from transformer_lib.text.tokenizer_json.steps import (
    BYTE_CHARACTERS,
    Normalizer,
    PostProcessor,
    PreTokenizer,
    check_beginning,
    read_normalizer,
    read_post_processor,
    read_pre_tokenizer,
)


class PretrainedTokenizer:
    """The tokenizer of a checkpoint.

    Make one with :meth:`from_folder`, :meth:`from_file` or :meth:`from_ranks`. To cut off or pad is
    left to the caller, whatever the file says. Characters newer than the Unicode version of Python
    or of the package ``regex`` may be cut in another way than elsewhere.

    Args:
        settings: what ``tokenizer.json`` holds.
        names: which token has which role, such as ``{"bos_token": "<s>", "eos_token": "</s>"}``.
        eos_ids: more ids that end a text, beside that of ``eos_token``.
        chat_template: how messages become one text, in the language of Jinja.

    Raises:
        ImportError: if a pattern needs the package ``regex``, which is not installed.
        ValueError: if the settings are damaged, or have a part that is not supported.

    Attributes:
        vocab_size: the highest id + 1.
        tokens: all tokens as the file writes them, in the order of their ids; an id without a token
            has ``""``.
        bos_id: the id of the first token of a text, or ``None``; ``pad_id`` likewise.
        eos_ids: the ids that end a text: none, one or several.
        special_ids: the ids of all special tokens.
        chat_template: the template, or ``None``.

    Example:
        >>> model = {
        ...     "type": "BPE",
        ...     "vocab": {"a": 0, "b": 1, "ab": 2},
        ...     "merges": [["a", "b"]],
        ... }
        >>> end = {"id": 3, "content": "</s>", "special": True}
        >>> names = {"eos_token": "</s>"}
        >>> tokenizer = PretrainedTokenizer(
        ...     {"model": model, "added_tokens": [end]}, names
        ... )
        >>> tokenizer.encode("abba</s>"), tokenizer.eos_ids
        ([2, 1, 0, 3], (3,))
    """

    def __init__(
        self,
        settings: Part,
        names: Mapping[str, str] | None = None,
        *,
        eos_ids: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> None:
        self._settings: Part | None = settings
        self._files: dict[str, bytes] = {}  # that it was read from, if it was
        self._template_of_files: str | None
        self._set_steps(_Steps.read(settings))
        self._set_roles(names or {}, eos_ids)
        self.chat_template, self._template_of_files = chat_template, None

    def _set_steps(self, steps: "_Steps") -> None:
        self._normalize, self._words, self._model = steps.normalize, steps.words, steps.model
        self._process, self._decoder = steps.process, steps.decoder
        self._set_vocabulary(steps.model, steps.added)

    def _set_vocabulary(self, model: WordModel, added: Sequence[AddedToken]) -> None:
        """Give every id its token."""
        self._names = {n: token for token, n in model.vocabulary.items()}
        for token in added:
            if self._names.setdefault(token.id, token.content) != token.content:
                taken = f"which is that of {self._names[token.id]!r}"
                raise ValueError(f"the added token {token.content!r} has id={token.id}, {taken}")
        self._ids = {token: n for n, token in self._names.items()}
        if not self._ids:
            raise ValueError("the vocabulary is empty")
        if twice := [token for n, token in self._names.items() if self._ids[token] != n]:
            raise ValueError(f"the vocabulary has the token {twice[0]!r} twice, with different ids")
        self.vocab_size = max(self._names) + 1
        self.tokens = [self._names.get(n, "") for n in range(self.vocab_size)]
        self.special_ids = frozenset(token.id for token in added if token.special)
        late = {self._normalize(token.content): token for token in added if token.normalized}
        self._late_tokens = AddedTokens(late)
        self._raw_tokens = AddedTokens({t.content: t for t in added if not t.normalized})
        # A text comes back as it was after the normalizer, so these tokens do, too.
        self._written = self._names | {token.id: text for text, token in late.items()}

    def _set_roles(self, names: Mapping[str, str], eos_ids: Sequence[int]) -> None:
        """Find the ids of the tokens that begin and end a text."""
        for role in ("bos_token", "eos_token", "pad_token"):
            if role in names and names[role] not in self._ids:
                raise ValueError(f"{role}={names[role]!r} is not in the vocabulary")
        self._roles = dict(names)
        roles = {role: self._ids[name] for role, name in names.items() if name in self._ids}
        self.bos_id, self.pad_id = roles.get("bos_token"), roles.get("pad_token")
        ends = [roles["eos_token"]] if "eos_token" in roles else []
        self.eos_ids = tuple(dict.fromkeys([*ends, *eos_ids]))
        self._check("eos_ids", self.eos_ids)

    @classmethod
    def from_folder(cls, folder: str | Path) -> "PretrainedTokenizer":
        """Read the tokenizer of a checkpoint.

        Beside ``tokenizer.json``, these files are read if they are there: ``tokenizer_config.json``
        and ``special_tokens_map.json`` for the names of the special tokens and the chat template,
        ``chat_template.jinja`` for the template, ``generation_config.json`` for more ends, or else
        ``config.json``. Tokens that only ``tokenizer_config.json`` names are added.

        Args:
            folder: the folder of the checkpoint.

        Returns:
            The tokenizer.

        Raises:
            ImportError: if a pattern needs the package ``regex``, which is not installed.
            ValueError: if a file is missing, damaged or not supported.
        """
        folder = Path(folder)
        config, names, generation, model = (
            read_object(folder / name) if (folder / name).is_file() else None
            for name in (
                "tokenizer_config.json",
                "special_tokens_map.json",
                "generation_config.json",
                "config.json",
            )
        )
        roles = {**(names or {}), **(config or {})}
        settings = read_object(folder / "tokenizer.json")
        said = {**(model or {}), **{k: v for k, v in (generation or {}).items() if v is not None}}
        tokenizer = cls(
            with_more_tokens(settings, roles),
            {
                role: name
                for role in roles
                if role.endswith("_token") and (name := _name(roles[role]))
            },
            eos_ids=_end_ids(said),
            chat_template=_find_template(folder, config or {}),
        )
        if config is None and names is None:  # nothing else says how a text begins
            tokenizer.bos_id, tokenizer.pad_id = (
                read_field(said, f"{role}_token_id", int)
                if said.get(f"{role}_token_id") is not None
                else None
                for role in ("bos", "pad")
            )
        tokenizer._settings, tokenizer._files = (
            None,
            {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()},
        )
        tokenizer._template_of_files = tokenizer.chat_template
        return tokenizer

    def files(self) -> dict[str, bytes]:
        """Return what :meth:`from_folder` reads, by the names of the files.

        Returns:
            The files that the tokenizer was read from, or new ones that say the same. The chat
            template is what it is now. More ends than one are for ``generation_config.json``.

        Raises:
            ValueError: if no ``tokenizer.json`` can describe it.
        """
        files = dict(self._files)
        if self._settings is not None:
            files["tokenizer.json"] = json.dumps(self._settings, ensure_ascii=False).encode()
            config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._roles}
            files["tokenizer_config.json"] = json.dumps(config, indent=2).encode()
        if not files:
            raise ValueError("a tokenizer of ranks cannot be written as tokenizer.json")
        if self.chat_template != self._template_of_files:
            files["chat_template.jinja"] = (self.chat_template or "").encode()
        return files

    def save(self, folder: str | Path) -> None:
        """Write the files of the tokenizer, so that :meth:`from_folder` reads it again.

        Args:
            folder: where they are written; made if need be.

        Raises:
            ValueError: if no ``tokenizer.json`` can describe it.
        """
        files = self.files()
        with whole_files(Path(folder), *files) as places:
            for text, place in zip(files.values(), places, strict=True):
                place.write_bytes(text)

    @classmethod
    def from_file(cls, path: str | Path) -> "PretrainedTokenizer":
        """Read a tokenizer from one file, which does not say how a text begins and ends.

        Args:
            path: the file ``tokenizer.json``.

        Returns:
            The tokenizer, without ``bos_id``, ``eos_ids``, ``pad_id`` and ``chat_template``.

        Raises:
            ImportError: if a pattern needs the package ``regex``, which is not installed.
            ValueError: if the file is missing, damaged or not supported.
        """
        return cls(read_object(Path(path)))

    @classmethod
    def from_ranks(
        cls, ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]
    ) -> "PretrainedTokenizer":
        r"""Make a tokenizer from the ranks of its tokens, as tiktoken has them.

        Args:
            ranks: the id of each token; the lower, the earlier two neighbours become this token.
            pattern: what a word is.
            special: the ids of the special tokens.

        Returns:
            The tokenizer.

        Raises:
            ImportError: if the package ``regex`` is not installed.
            ValueError: if one of the 256 bytes has no rank.

        Example:
            >>> ranks = {bytes([n]): n for n in range(256)} | {
            ...     b"lo": 256,
            ...     b"low": 257,
            ... }
            >>> tokenizer = PretrainedTokenizer.from_ranks(
            ...     ranks, r"\p{L}+|\P{L}+", {"<end>": 300}
            ... )
            >>> tokenizer.encode("low, slow<end>")
            [257, 44, 32, 115, 257, 300]
        """
        if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
            raise ValueError(f"ranks lacks the byte {missing[0]}; expected all 256")
        merges = {
            (ranks[token[:n]], ranks[token[n:]]): rank
            for token, rank in ranks.items()
            for n in range(1, len(token))
            if token[:n] in ranks and token[n:] in ranks
        }
        vocabulary = {
            "".join(map(BYTE_CHARACTERS.__getitem__, token)): n for token, n in ranks.items()
        }
        model = MergeModel(vocabulary, merges, range(max(ranks.values()) + 1), whole_first=True)
        find, to_bytes = find_spans(pattern, "rust"), read_pre_tokenizer(_BYTES_ONLY)

        def words(texts: list[str], first: bool) -> list[str]:
            return to_bytes([p for text in texts for p in cut(text, find(text), "Isolated")], False)

        steps = _Steps(
            normalize=read_normalizer(None),
            words=words,
            model=model,
            process=read_post_processor(None),
            decoder=read_decoder({"type": "ByteLevel"}),
            added=[AddedToken(name, n, special=True) for name, n in special.items()],
        )
        return cls._from_steps(steps)

    @classmethod
    def _from_steps(cls, steps: "_Steps") -> "PretrainedTokenizer":
        """Make a tokenizer of steps that no ``tokenizer.json`` describes."""
        tokenizer = cls.__new__(cls)
        # The constructor would read them from a file's settings.
        tokenizer._settings, tokenizer._files = None, {}
        tokenizer._set_steps(steps)
        tokenizer._set_roles({}, ())
        tokenizer.chat_template = tokenizer._template_of_files = None
        return tokenizer

    def encode(self, text: str, *, special: bool = True, parse_special: bool = True) -> list[int]:
        """Write a text as ids.

        Args:
            text: any text.
            special: whether to add the special tokens that belong around a text, such as the one
                that begins it.
            parse_special: whether the text of a special token becomes its id. Without it, who wrote
                the text cannot end a turn or begin another one.

        Returns:
            The ids.

        Raises:
            ValueError: if the text holds half a surrogate pair.
            TypeError: if it is not a string.
        """
        if not isinstance(text, str):
            raise TypeError(f"expected a text; got {type(text).__name__}: {text!r}")
        text.encode("utf-8")  # half a surrogate pair is no character: Python's error says where
        return self._process(self._encode(text, parse_special), special)

    def _encode(self, text: str, parse_special: bool, mark: str = "") -> list[int]:
        """Encode what is between the tokens that are added; ``mark`` is left out of it."""
        ids: list[int] = []
        for piece, first in self._pieces(text, parse_special):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                plain = piece.replace(mark, "") if mark else piece
                ids += self._model.encode(self._words([plain], first))
        return ids

    def _pieces(self, text: str, parse_special: bool) -> Iterator[tuple[str | int, bool]]:
        """Yield ids of added tokens and the normalized text between them.

        The flag says whether the text begins with that piece.
        """
        for n, piece in enumerate(self._raw_tokens.split(text, parse_special)):
            if isinstance(piece, int):
                yield piece, n == 0
                continue
            normalized = self._normalize(piece)
            for m, part in enumerate(self._late_tokens.split(normalized, parse_special)):
                yield part, n == m == 0

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
        decoding = self._decoder()
        return decoding.push(self._shown(ids, skip_special)) + decoding.end()

    def token_bytes(self, id: int) -> bytes:
        """Return what a token adds to a text that has begun: it may be a part of a character.

        Args:
            id: the id of a token.

        Returns:
            The bytes; none for a special token, or an id without a token.

        Raises:
            ValueError: if the decoder of this tokenizer has to see the whole text.
        """
        if id not in self._names or id in self.special_ids:
            return b""
        return self._decoder().token_bytes(self._written[id])

    def start_decoding(self, *, skip_special: bool = True) -> "_IdDecoding":
        """Begin to turn ids back into text one by one, as they come.

        Args:
            skip_special: whether to leave special tokens out rather than to write their names.

        Returns:
            Its ``push(id)`` and ``end()`` return text, together that of :meth:`decode`.
        """
        return _IdDecoding(self._decoder(), partial(self._shown, skip_special=skip_special))

    def chat(
        self,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        parse_special: bool = False,
        **values: object,
    ) -> list[int]:
        """Write a conversation as ids, with the chat template of the checkpoint.

        Args:
            messages: the messages, such as ``[{"role": "user", "content": "Hello"}]``.
            add_generation_prompt: whether to begin the answer of the model.
            parse_special: whether the text of a special token in the messages and values becomes
                its id. Without it a message cannot forge one, unless a normalizer of the tokenizer
                makes it from other letters, or the template from pieces, as some do with the role.
            values: what else the template knows, such as ``tools``.

        Returns:
            The ids; only special tokens of the template are among them.

        Raises:
            ImportError: if the package ``jinja2`` is not installed.
            ValueError: if there is no template, or if it fails.
        """
        if self.chat_template is None:
            raise ValueError("chat_template=None: this tokenizer has none; set one")
        names = frozenset() if parse_special else {self._names[n] for n in self.special_ids}
        safe, mark = protect({**values, "messages": messages}, names)
        text = render_chat(
            self.chat_template,
            cast(Messages, safe.pop("messages")),
            add_generation_prompt=add_generation_prompt,
            **{**self._roles, **safe},
        )
        return self._encode(text, parse_special=True, mark=mark)

    def _shown(self, ids: Iterable[int], skip_special: bool) -> list[str]:
        """Return the tokens that are written, as the vocabulary has them."""
        numbers = list(ids)
        self._check("ids", numbers)
        hidden = self.special_ids if skip_special else frozenset()
        return [self._written[n] for n in numbers if n not in hidden]

    def _check(self, name: str, ids: Sequence[int]) -> None:
        if outside := [n for n in ids if n not in self._names]:
            why = ", which has no token" if 0 <= outside[0] < self.vocab_size else ""
            highest = self.vocab_size - 1
            raise ValueError(f"{name} holds {outside[0]}{why}; expected 0 to {highest}")


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """What turns a text into ids and back: one function or model for each step."""

    normalize: Normalizer
    words: PreTokenizer
    model: WordModel
    process: PostProcessor
    decoder: Callable[[], Decoding]
    added: Sequence[AddedToken]

    @classmethod
    def read(cls, settings: Part) -> "_Steps":
        """Read all steps from a ``tokenizer.json``."""
        model = read_model(read_field(settings, "model", dict))
        listed = read_parts({"added_tokens": [], **settings}, "added_tokens")
        added = [AddedToken.read(part) for part in listed]
        check_beginning(_part(settings, "normalizer"), _part(settings, "pre_tokenizer"))
        return cls(
            model=model,
            added=added,
            normalize=read_normalizer(_part(settings, "normalizer")),
            process=read_post_processor(_part(settings, "post_processor")),
            decoder=read_decoder(_part(settings, "decoder")),
            words=read_pre_tokenizer(_part(settings, "pre_tokenizer")),
        )


class _IdDecoding:
    """A decoding that is under way, of ids rather than of tokens."""

    def __init__(self, decoding: Decoding, shown: Callable[[list[int]], list[str]]) -> None:
        self._decoding, self._shown = decoding, shown

    def push(self, id: int) -> str:
        """Take one more id; return the text that has become certain."""
        return self._decoding.push(self._shown([id]))

    def end(self) -> str:
        """Take no more ids; return the rest of the text."""
        return self._decoding.end()


_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
_BYTES_ONLY = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def _part(settings: Part, name: str) -> Part | None:
    return None if settings.get(name) is None else read_field(settings, name, dict)


def _name(token: object) -> str | None:
    """Return the text of a token, which the files have as a string or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _end_ids(said: Part) -> list[int]:
    ends = said.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(n, int) for n in listed):
        raise ValueError(f"a configuration has eos_token_id={ends!r}; expected ids")
    return [n for n in listed if isinstance(n, int)]


def _find_template(folder: Path, config: Part) -> str | None:
    """Return the chat template: of its own file, or of the configuration."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        try:
            named = {str(one["name"]): one["template"] for one in template}
        except (KeyError, TypeError):
            expected = "expected a name and a template for each"
            raise ValueError(f"chat_template is a list: {expected}") from None
        template = named.get("default")
    return template if isinstance(template, str) else None
