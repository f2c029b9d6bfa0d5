"""Text from ids, one by one, never half a letter."""

import codecs

from transformer_lib.hugging_face.tokenizer_json import PretrainedTokenizer
from transformer_lib.tokenizers import Tokenizer


class TextStream:
    """Decodes ids as they come.

    A letter may need several tokens. What is not yet certain is held back; all pieces together are
    what ``decode`` makes of all ids. A tokenizer that writes unknown characters as tokens such as
    ``<0xE2>`` has to see the end of a row of them.

    Args:
        tokenizer: any tokenizer of this library.
        skip_special: whether to leave special tokens out rather than to write their names.

    Example:
        >>> from transformer_lib.tokenizers import BPETokenizer
        >>> tokenizer = BPETokenizer()
        >>> stream = TextStream(tokenizer)
        >>> [stream.push(id) for id in tokenizer.encode("für")]
        ['f', '', 'ü', 'r']
        >>> stream.end()
        ''
    """

    def __init__(
        self, tokenizer: Tokenizer | PretrainedTokenizer, *, skip_special: bool = True
    ) -> None:
        if not isinstance(tokenizer, Tokenizer | PretrainedTokenizer):
            raise TypeError(f"expected a tokenizer; got {type(tokenizer).__name__}")
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._start()

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
            return self._decoding.push(self._tokenizer._shown([id], self._skip_special))
        if not 0 <= id < self._tokenizer.vocab_size:
            raise ValueError(
                f"{id=} is not in the vocabulary; expected 0 to {self._tokenizer.vocab_size - 1}"
            )
        if self._skip_special and id < len(self._tokenizer.special):
            return ""
        return self._utf8.decode(self._tokenizer._tokens[id].removeprefix(self._tokenizer._mark))

    def end(self) -> str:
        """Take no more ids; the next one begins another text.

        Returns:
            The rest of the text.
        """
        of_bytes = self._utf8.decode(b"", final=True)
        rest = (
            self._decoding.end() if isinstance(self._tokenizer, PretrainedTokenizer) else of_bytes
        )
        self._start()
        return rest
