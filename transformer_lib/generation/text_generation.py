"""Generation from text to text: the prompt is encoded, the answer decoded."""

from collections.abc import Iterator
from dataclasses import asdict

import torch

from transformer_lib.core.checks import check_whole
from transformer_lib.generation.constrained import AllowedText
from transformer_lib.generation.fast_interfaces import FastDecoder
from transformer_lib.generation.generate import stream
from transformer_lib.generation.sampling import GREEDY
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.models.language_models import CausalLM
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.text_stream import TextStream
from transformer_lib.text.tokenizers import Tokenizer

AnyTokenizer = Tokenizer | PretrainedTokenizer


def generate_text(
    model: CausalLM,
    tokenizer: AnyTokenizer,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    sampling: Sampling = GREEDY,
    allowed: AllowedText | None = None,
) -> str:
    """Let a language model go on from a text.

    It ends with an end token of the tokenizer, or after so many tokens. They may be more than fit
    into the model's context, which then moves along.

    Args:
        model: the model.
        tokenizer: what it was trained with.
        prompt: the beginning of the text.
        max_new_tokens: how many tokens are written at most.
        sampling: how tokens are drawn; the best one always, if left out.
        allowed: what may be written behind the prompt: a ``OneOf`` or a ``Pattern``.

    Returns:
        The prompt, and what the model goes on with.

    Raises:
        TypeError: if the model is of another kind, or the prompt is no text.
        ValueError: if the prompt has no tokens, the tokenizer more than the model, or if what is
            allowed may not fit into the model's context.

    Example:
        >>> from transformer_lib import CharTokenizer, TransformerConfig
        >>> sizes = {"vocab_size": 259, "d_model": 8, "n_heads": 2}
        >>> model = CausalLM(TransformerConfig(**sizes))
        >>> text = generate_text(
        ...     model, CharTokenizer(), "My lord, ", max_new_tokens=9
        ... )
        >>> text.startswith("My lord, ")
        True
    """
    if not isinstance(model, CausalLM):
        raise TypeError(f"model is a {type(model).__name__}; expected a CausalLM")
    if not isinstance(prompt, str):
        raise TypeError(f"prompt is a {type(prompt).__name__}; expected a text")
    check_whole("max_new_tokens", max_new_tokens)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens; expected at most "
            f"vocab_size={model.config.vocab_size}, those of the model"
        )
    ids = tokenizer.encode(prompt)
    if not ids:
        raise ValueError(f"{prompt=} has no tokens; expected something for the model to read")
    device = str(next(model.parameters()).device)
    pieces = write_on(model, tokenizer, ids, sampling, max_new_tokens, device, allowed=allowed)
    return prompt + "".join(pieces)


def write_on(
    writer: CausalLM | FastDecoder,
    tokenizer: AnyTokenizer,
    ids: list[int],
    sampling: Sampling,
    n_tokens: int,
    device: str,
    *,
    goes_on: bool = True,
    allowed: AllowedText | None = None,
) -> Iterator[str]:
    """Write on from ids, until there is a new end token, or until there are enough tokens.

    Args:
        writer: a language model.
        tokenizer: its tokenizer.
        ids: of the prompt; if it is longer than the context, its end is read.
        sampling: how tokens are drawn.
        n_tokens: how many tokens are written at most.
        device: where the model is.
        goes_on: whether the new text goes on from that of the prompt; if not, it is a text of its
            own, such as an answer. Some tokenizers begin a text without its first space.
        allowed: what may be written.

    Yields:
        The new text in pieces, never half a letter.

    Raises:
        ValueError: if there are no ids, or what is allowed may not fit into the context.

    Example:
        >>> from transformer_lib import CharTokenizer, TransformerConfig
        >>> sizes = {"vocab_size": 259, "d_model": 8, "n_heads": 2}
        >>> model = CausalLM(TransformerConfig(**sizes))
        >>> pieces = write_on(
        ...     model, CharTokenizer(), [70], Sampling(), 3, "cpu"
        ... )
        >>> len(list(pieces)) <= 3 + 1  # the end, in which nothing may be
        True
    """
    if not ids:
        raise ValueError("ids is empty; expected one token at least to go on from")
    context, ends = writer.config.max_len, end_ids(tokenizer)
    if allowed is not None and len(ids) + n_tokens > context + 1:
        room = f"allowed text must fit into the model's context, {context}"
        raise ValueError(f"max_new_tokens={n_tokens} after {len(ids)} tokens: {room}")
    text = TextStream(tokenizer, prompt=ids if goes_on else ())
    ids, end, ended = list(ids), len(ids) + n_tokens, False
    while len(ids) < end and not ended:
        known = ids if len(ids) <= context else ids[-(context // 2) - 1 :]  # empty it by half
        tokens = stream(
            writer,
            torch.tensor([known], device=device),
            max_new_tokens=min(end - len(ids), context + 1 - len(known)),
            eos_id=ends or None,
            allowed=allowed,
            **asdict(sampling),
        )
        for token in tokens:
            ids.append(int(token))
            yield text.push(ids[-1])
        ended = ids[-1] in ends
    yield text.end()


def end_ids(tokenizer: AnyTokenizer) -> tuple[int, ...]:
    """Return the ids that end a text.

    Args:
        tokenizer: any tokenizer of this library.

    Returns:
        The ids; there may be none.

    Example:
        >>> from transformer_lib import CharTokenizer
        >>> end_ids(CharTokenizer()) == (CharTokenizer().eos_id,)
        True
    """
    return tokenizer.eos_ids if isinstance(tokenizer, PretrainedTokenizer) else (tokenizer.eos_id,)
