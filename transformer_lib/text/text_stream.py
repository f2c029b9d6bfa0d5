"""Text from ids, one by one, never half a letter."""

import codecs
from collections.abc import Sequence

from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import Tokenizer


class TextStream:
    """Decodes ids as they come.

    A letter may need several tokens. What is not yet certain is held back; all pieces together are
    what ``decode`` makes of all ids. A tokenizer that writes unknown characters as tokens such as
    ``<0xE2>`` has to see the end of a row of them.

    Args:
        tokenizer: any tokenizer of this library.
        skip_special: whether to leave special tokens out rather than to write their names.
        prompt: ids that come before the first one. Their text is not given again, but it counts:
            some tokenizers leave out the space before the first word of a text.

    Example:
        >>> from transformer_lib import BPETokenizer
        >>> tokenizer = BPETokenizer()
        >>> stream = TextStream(tokenizer)
        >>> [stream.push(id) for id in tokenizer.encode("für")]
        ['f', '', 'ü', 'r']
        >>> stream.end()
        ''
    """

    def __init__(
        self,
        tokenizer: Tokenizer | PretrainedTokenizer,
        *,
        skip_special: bool = True,
        prompt: Sequence[int] = (),
    ) -> None:
        if not isinstance(tokenizer, Tokenizer | PretrainedTokenizer):
            raise TypeError(f"expected a tokenizer; got {type(tokenizer).__name__}")
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._start()
        self._known = ""  # text of the prompt that is still held back
        if prompt:
            given = "".join(map(self.push, prompt))
            whole = tokenizer.decode(prompt, skip_special=skip_special)
            self._known = whole.removeprefix(given)

    def _start(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        if isinstance(self._tokenizer, PretrainedTokenizer):
            self._decoding = self._tokenizer._decoder()

    def push(self, id: int) -> str:
        """Take one more id.

        Args:
            id: the id of a token.

        Returns:
            The text that has become certain, often one token late; it may be empty.

        Raises:
            ValueError: if the id is not in the vocabulary.
        """
        if isinstance(self._tokenizer, PretrainedTokenizer):
            text = self._decoding.push(self._tokenizer._shown([id], self._skip_special))
            return self._without_known(text) if self._known else text
        if not 0 <= id < self._tokenizer.vocab_size:
            raise ValueError(
                f"{id=} is not in the vocabulary; expected 0 to {self._tokenizer.vocab_size - 1}"
            )
        if self._skip_special and id < len(self._tokenizer.special):
            return ""
        text = self._utf8.decode(self._tokenizer._tokens[id].removeprefix(self._tokenizer._mark))
        return self._without_known(text) if self._known else text

    def end(self) -> str:
        """Take no more ids; the next one begins another text.

        Returns:
            The rest of the text.
        """
        of_bytes = self._utf8.decode(b"", final=True)
        rest = (
            self._decoding.end() if isinstance(self._tokenizer, PretrainedTokenizer) else of_bytes
        )
        rest = self._without_known(rest)
        self._start()
        self._known = ""
        return rest

    def _without_known(self, text: str) -> str:
        """Leave out what is of the prompt; if new ids have changed that text, give it anew."""
        if self._known.startswith(text):
            self._known = self._known.removeprefix(text)
            return ""
        known, self._known = self._known, ""
        return text.removeprefix(known)
