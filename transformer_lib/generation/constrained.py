"""Constrained output (structured output): a list, or a regular expression, says what is written.

Before each token is chosen, all tokens after which the text could not be completed any more are
taken out; the probabilities of the others are as they were, divided by their sum. The end token is
possible only where the text is complete.

So no text can go wrong, but it need not be the most probable of those that are allowed: each token
is chosen without looking ahead. Beam search compares whole texts, by the model's own probabilities.

What it costs: each token takes a pass over the scores of its row (for 100,000 tokens 0.2 ms on one
core, as long as two softmaxes), and a GPU is waited for. A state of the automaton that is reached
for the first time takes a walk through the vocabulary, 5 to 50 ms there, the longer the more tokens
are allowed. ``[a-z]*`` has two states, ``[a-z]{1,200}`` has two hundred.
"""

from collections.abc import Iterable
from copy import copy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_lib.text.byte_automaton import ByteAutomaton, read_pattern, read_texts
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import Tokenizer

DEAD = -1  # the state from which no text can be completed
MAX_REMEMBERED = 256  # states whose tokens are kept: for each, a number for every token


class TokenBytes:
    """The bytes of every token of a vocabulary, for :class:`OneOf` and :class:`Pattern`.

    They make it themselves of a tokenizer; whoever needs several of them makes it once.

    Args:
        tokenizer: any tokenizer of this library.

    Raises:
        TypeError: if it is something else.
        ValueError: if its decoder has to see the whole text.

    Example:
        >>> from transformer_lib import CharTokenizer
        >>> tokens = TokenBytes(CharTokenizer())
        >>> yes, no = OneOf(["yes"], tokens), OneOf(["no"], tokens)
        >>> len(tokens)  # 256 bytes and three special tokens
        259
    """

    def __init__(self, tokenizer: Tokenizer | PretrainedTokenizer) -> None:
        if not isinstance(tokenizer, Tokenizer | PretrainedTokenizer):
            raise TypeError(f"tokenizer has type {type(tokenizer).__name__}; expected a tokenizer")
        tokens = [tokenizer.token_bytes(n) for n in range(tokenizer.vocab_size)]
        self._lengths = torch.tensor([len(token) for token in tokens])  # (V,)
        longest = int(self._lengths.max())
        rows = bytearray(b"".join(token.ljust(longest, b"\0") for token in tokens))
        self._bytes = torch.frombuffer(rows, dtype=torch.uint8).view(len(tokens), longest)
        self._single = {token[0] for token in tokens if len(token) == 1}

    def __len__(self) -> int:
        return len(self._lengths)

    def states_after(self, table: Int[Tensor, "N 256"], state: int) -> Int[Tensor, " V"]:
        """Walk through the bytes of all tokens at once.

        Args:
            table: the state after each byte in each of N states.
            state: where to begin.

        Returns:
            The state after each token; ``DEAD`` if it leads nowhere, or has no bytes.
        """
        found = torch.full((len(self),), DEAD)
        tokens = self._lengths.nonzero()[:, 0]  # those that are still under way
        states = torch.full_like(tokens, state)
        for place in range(self._bytes.shape[1]):
            states = table[states, self._bytes[tokens, place].long()]
            is_last = self._lengths[tokens] == place + 1
            found[tokens[is_last]] = states[is_last]
            goes_on = (states != DEAD) & ~is_last
            tokens, states = tokens[goes_on], states[goes_on]
            if len(tokens) == 0:
                break
        return found

    def can_write(self, used: Iterable[int]) -> bool:
        """Say whether each of these bytes is a token of its own."""
        return self._single.issuperset(used)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; none if it is special, or unknown to the tokenizer."""
        if token >= len(self):
            return b""
        return bytes(self._bytes[token, : int(self._lengths[token])].tolist())


class AllowedText:
    """The texts that may be written; :class:`OneOf` and :class:`Pattern` make it.

    It may serve any number of batches, and threads. The tokens of a state are computed when it is
    first reached, in a walk through the whole vocabulary; of the last 256 states they are kept.

    Args:
        automaton: the texts, byte by byte.
        tokenizer: that of the model, or its :class:`TokenBytes`.

    Raises:
        TypeError: if the tokenizer is something else.
        ValueError: if no text can be written with its tokens.

    Example:
        >>> from transformer_lib import CharTokenizer
        >>> allowed = AllowedText(read_texts(["ja", "jo"]), CharTokenizer())
        >>> allowed.automaton.accepts("jo")
        True
    """

    def __init__(
        self, automaton: ByteAutomaton, tokenizer: Tokenizer | PretrainedTokenizer | TokenBytes
    ) -> None:
        tokens = tokenizer if isinstance(tokenizer, TokenBytes) else TokenBytes(tokenizer)
        self.automaton, self.tokens = automaton, tokens
        self._table = torch.full((len(automaton.steps), 256), DEAD)
        for state, row in enumerate(automaton.steps):
            self._table[state, list(row)] = torch.tensor(list(row.values()), dtype=torch.long)
        self._remembered: dict[int, Tensor] = {}
        self._leads_on = torch.ones(len(automaton.steps) + 1, dtype=torch.bool)
        self._leads_on[DEAD] = False  # the last place
        self._used = {byte for row in automaton.steps for byte in row}
        if not tokens.can_write(self._used):  # else tokens reach what bytes reach
            self._leave_out_what_tokens_cannot_complete()

    def _leave_out_what_tokens_cannot_complete(self) -> None:
        """Find the states from which tokens reach an end, which takes a walk for each state."""
        after = [set(self.states_after(n).unique().tolist()) for n in range(len(self._table))]
        alive, before = set(self.automaton.ends), set[int]()
        while len(alive) > len(before):
            before = alive
            alive = before | {n for n, targets in enumerate(after) if targets & before}
        if 0 not in alive:
            raise ValueError("tokenizer has no tokens for any of the texts that are allowed")
        self._leads_on.fill_(False)
        self._leads_on[list(alive)] = True
        self._remembered = {}

    def states_after(self, state: int) -> Int[Tensor, " V"]:
        """Return the state after each token; ``DEAD`` for those that may not be chosen.

        Args:
            state: of the text so far.
        """
        found = self._remembered.get(state)
        if found is None:
            reached = self.tokens.states_after(self._table, state)
            found = reached.where(self._leads_on[reached], DEAD)
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered = {}
            self._remembered[state] = found
        return found

    def begin(self, n_rows: int, ends: Int[Tensor, " n_ends"], vocab_size: int) -> "AllowedTokens":
        """Begin so many texts.

        Args:
            n_rows: B, how many rows the batch has.
            ends: the end tokens.
            vocab_size: V, of the model.

        Returns:
            What says which tokens come next.

        Raises:
            ValueError: if there is no end token, if one is a piece of text that is allowed, or if
                the tokenizer has more tokens than the model.
        """
        if len(ends) == 0:
            raise ValueError("allowed needs eos_id: the token that says that a text is complete")
        for end in ends.tolist():
            text = self.tokens.bytes_of(end)
            if text and self._used.issuperset(text):  # or some texts could not be completed
                raise ValueError(
                    f"eos_id={end} stands for {text!r}, which may come in allowed texts"
                )
        if len(self.tokens) > vocab_size:
            has = f"the tokenizer of allowed has {len(self.tokens)} tokens"
            raise ValueError(f"{has}; expected at most vocab_size={vocab_size}, those of the model")
        return AllowedTokens(self, n_rows, ends, vocab_size)


class OneOf(AllowedText):
    """Lets a model write one of several answers.

    The answer goes on from the prompt as it stands there: if a space belongs before it, it is part
    of the answer.

    Args:
        answers: the texts.
        tokenizer: that of the model, or its :class:`TokenBytes`.

    Raises:
        TypeError: if the answers are no texts, or the tokenizer is something else.
        ValueError: if there are none, or no tokens for them.

    Example:
        >>> from transformer_lib import (
        ...     CausalLM,
        ...     CharTokenizer,
        ...     TransformerConfig,
        ...     generate,
        ... )
        >>> tokenizer = CharTokenizer()
        >>> sizes = {"vocab_size": 259, "d_model": 8, "n_heads": 2}
        >>> ids = generate(
        ...     CausalLM(TransformerConfig(**sizes)),
        ...     torch.tensor([tokenizer.encode("Is it? ")]),
        ...     allowed=OneOf(["yes", "no"], tokenizer),
        ...     eos_id=tokenizer.eos_id,
        ...     max_new_tokens=4,
        ... )
        >>> tokenizer.decode(ids[0].tolist()) in ("Is it? yes", "Is it? no")
        True
    """

    def __init__(
        self,
        answers: Iterable[str],
        tokenizer: Tokenizer | PretrainedTokenizer | TokenBytes,
    ) -> None:
        super().__init__(read_texts(answers), tokenizer)


class Pattern(AllowedText):
    r"""Lets a model write only what a regular expression matches, as a whole.

    It must be complete before ``max_new_tokens`` are written: then the text is a beginning of one
    that is allowed, as any other text that is cut off.

    Args:
        pattern: the expression; what it may hold is said in
            :mod:`~transformer_lib.text.byte_automaton`.
        tokenizer: that of the model, or its :class:`TokenBytes`.

    Raises:
        TypeError: if the pattern is no text, or the tokenizer is something else.
        ValueError: if the pattern is malformed or not supported, or no tokens can match it.

    Example:
        >>> from transformer_lib import (
        ...     CausalLM,
        ...     CharTokenizer,
        ...     TransformerConfig,
        ...     generate,
        ... )
        >>> tokenizer = CharTokenizer()
        >>> sizes = {"vocab_size": 259, "d_model": 8, "n_heads": 2}
        >>> ids = generate(
        ...     CausalLM(TransformerConfig(**sizes)),
        ...     torch.tensor([tokenizer.encode("Born in ")]),
        ...     allowed=Pattern(r"(19|20)\d\d", tokenizer),
        ...     eos_id=tokenizer.eos_id,
        ...     max_new_tokens=5,
        ... )
        >>> 1900 <= int(tokenizer.decode(ids[0, 8:].tolist())) < 2100
        True
    """

    def __init__(
        self, pattern: str, tokenizer: Tokenizer | PretrainedTokenizer | TokenBytes
    ) -> None:
        super().__init__(read_pattern(pattern), tokenizer)


class AllowedTokens:
    """Which tokens may come next in each row of a batch.

    To follow the texts, Python has to know each token: a GPU is waited for once in each step.

    Args:
        allowed: the texts.
        n_rows: B, how many rows the batch has.
        ends: the end tokens.
        vocab_size: V, of the model.

    Example:
        >>> from transformer_lib import CharTokenizer
        >>> allowed = OneOf(["ab"], tokenizer := CharTokenizer())
        >>> ends = torch.tensor([tokenizer.eos_id])
        >>> next_ones = AllowedTokens(allowed, 1, ends, vocab_size=259)
        >>> for letter in "ab":
        ...     token = next_ones.mask(torch.zeros(1, 259)).argmax(dim=-1)
        ...     assert tokenizer.decode(token.tolist()) == letter
        ...     next_ones.push(token)
        >>> next_ones.mask(torch.zeros(1, 259)).argmax() == tokenizer.eos_id
        tensor(True)
    """

    def __init__(
        self, allowed: AllowedText, n_rows: int, ends: Int[Tensor, " n_ends"], vocab_size: int
    ) -> None:
        self._allowed, self._ends, self._vocab_size = allowed, ends, vocab_size
        self._end_ids = frozenset(ends.tolist())
        self._states = [0] * n_rows  # DEAD once a row has ended
        self._rows: dict[int, Tensor] = {}  # of states, on the device

    def mask(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Take out the tokens that may not come next.

        Args:
            logits: scores of the next token.

        Returns:
            New logits, minus infinity for those. Rows that have ended stay as they are.
        """
        may_come = torch.stack([self._row(state) for state in self._states])  # (B, V)
        return logits.masked_fill(~may_come, -torch.inf)

    def push(self, tokens: Int[Tensor, " B"]) -> None:
        """Take the next token of each row.

        Args:
            tokens: what was chosen; of rows that have ended, anything.
        """
        self._states = [
            self._after(state, token)
            for state, token in zip(self._states, tokens.tolist(), strict=True)
        ]

    def select(self, rows: Int[Tensor, " B"]) -> None:
        """Go on with these rows, in this order.

        Args:
            rows: their numbers; a row may come several times, or not at all.
        """
        self._states = [self._states[row] for row in rows.tolist()]

    def along(self, tokens: Int[Tensor, " n"]) -> "AllowedTokens":
        """Look ahead in a single text: what may come instead of each token, and after the last.

        Args:
            tokens: n tokens, one after another. After one that is not allowed, all may come.

        Returns:
            n + 1 rows of their own, the first of which is where the text is now, and stays.
        """
        ahead, (state,) = copy(self), self._states
        ahead._states = [state]
        for token in tokens.tolist():
            state = self._after(state, token)
            ahead._states.append(state)
        return ahead

    def _after(self, state: int, token: int) -> int:
        """The state after a token; ``DEAD`` after the end of a text, too."""
        if state == DEAD or token in self._end_ids:
            return DEAD
        after = self._allowed.states_after(state)
        return int(after[token]) if token < len(after) else DEAD

    def _row(self, state: int) -> Bool[Tensor, " V"]:
        """Which tokens may come in a state."""
        if state not in self._rows:
            if len(self._rows) >= MAX_REMEMBERED:
                self._rows = {}
            row = torch.full((self._vocab_size,), state == DEAD)
            if state != DEAD:
                after = self._allowed.states_after(state)
                row[: len(after)] = after != DEAD
                row[self._ends.cpu()] = may_end(state, self._allowed.automaton)
            self._rows[state] = row.to(self._ends.device)
        return self._rows[state]


def next_ones(
    allowed: AllowedText | None, n_rows: int, ends: Int[Tensor, " n_ends"], vocab_size: int
) -> AllowedTokens | None:
    """Begin so many texts, if anything says what may be written.

    Args:
        allowed: a ``OneOf`` or a ``Pattern``; ``None``: everything may be written.
        n_rows: B, how many rows the batch has.
        ends: the end tokens.
        vocab_size: V, of the model.

    Returns:
        What says which tokens come next; ``None`` if any token may.

    Raises:
        TypeError: if what is allowed is something else.
        ValueError: as in :meth:`AllowedText.begin`.

    Example:
        >>> from transformer_lib import CharTokenizer
        >>> answers = OneOf(["yes", "no"], CharTokenizer())
        >>> ends = torch.tensor([CharTokenizer().eos_id])
        >>> ones = next_ones(answers, 1, ends, vocab_size=259)
        >>> type(ones).__name__
        'AllowedTokens'
    """
    if allowed is None:
        return None
    if not isinstance(allowed, AllowedText):
        raise TypeError(f"allowed has type {type(allowed).__name__}; expected a OneOf or a Pattern")
    return allowed.begin(n_rows, ends, vocab_size)


def may_end(state: int, automaton: ByteAutomaton) -> bool:
    """Say whether a text may end in a state.

    Args:
        state: of the text so far.
        automaton: the texts that are allowed.

    Returns:
        Whether the text is one of them.

    Example:
        >>> may_end(0, read_texts(["", "no"])), may_end(0, read_texts(["no"]))
        (True, False)
    """
    return state in automaton.ends
