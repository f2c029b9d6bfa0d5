"""Text from ids, one by one, never half a letter."""

from collections.abc import Sequence
from functools import partial

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
        self._start = partial(tokenizer.start_decoding, skip_special=skip_special)
        self._decoding = self._start()
        self._known = ""  # text of the prompt that is still held back
        if prompt:
            given = "".join(map(self.push, prompt))
            whole = tokenizer.decode(prompt, skip_special=skip_special)
            self._known = whole.removeprefix(given)

    def push(self, id: int) -> str:
        """Take one more id.

        Args:
            id: the id of a token.

        Returns:
            The text that has become certain, often one token late; it may be empty.

        Raises:
            ValueError: if the id is not in the vocabulary.
        """
        text = self._decoding.push(id)
        return self._without_known(text) if self._known else text

    def end(self) -> str:
        """Take no more ids; the next one begins another text.

        Returns:
            The rest of the text.
        """
        rest = self._without_known(self._decoding.end())
        self._decoding = self._start()
        self._known = ""
        return rest

    def _without_known(self, text: str) -> str:
        """Leave out what is of the prompt; if new ids have changed that text, give it anew."""
        if self._known.startswith(text):
            self._known = self._known.removeprefix(text)
            return ""
        known, self._known = self._known, ""
        return text.removeprefix(known)
