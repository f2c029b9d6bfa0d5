"""The same models elsewhere, with the same weights: in `torch.nn`, in `transformers`, and plain."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from transformer_lib import IGNORE, CausalLM, Encoder, Stack, TransformerConfig, save_pretrained


class TorchGPT(nn.Module):
    """A GPT out of `torch.nn`: `nn.TransformerEncoder` with a causal mask, and its loss.

    Args:
        model: ours; its weights are copied.
    """

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        config = model.config
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_len, config.d_model)
        self.stack = torch_stack(model.decoder.stack, nested=False)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = self.tokens.weight
        self.mask: Tensor
        mask = nn.Transformer.generate_square_subsequent_mask(config.max_len)
        self.register_buffer("mask", mask)
        embedding: Any = model.decoder.embedding
        _copy(self.tokens.weight, embedding.tokens.weight)
        _copy(self.positions.weight, embedding.positions.table.weight)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the targets."""
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(n, device=ids.device))
        x = self.stack(x, mask=self.mask[:n, :n], is_causal=True)
        logits = self.output(x)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


class PlainGPT(nn.Module):
    """A plain GPT, as nanoGPT builds it: what a short file without checks and options can reach.

    One product makes queries, keys and values, PyTorch's fused kernel attends, and the loss is
    taken of all logits at once.

    Args:
        model: ours; its weights are copied.
    """

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        config, ours = model.config, model.decoder
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_len, config.d_model)
        self.n_heads, self.d_head = config.n_heads, config.d_model // config.n_heads
        self.blocks = nn.ModuleList(PlainBlock(config, block) for block in ours.stack.blocks)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.output.weight = self.tokens.weight
        embedding: Any = ours.embedding
        _copy(self.tokens.weight, embedding.tokens.weight)
        _copy(self.positions.weight, embedding.positions.table.weight)
        _copy_norm(self.norm, ours.stack.final_norm)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of the targets."""
        logits = self.output(self._read(ids))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)

    @torch.no_grad()
    def generate(self, prompt: Tensor, max_new_tokens: int, *, use_cache: bool) -> Tensor:
        """Add the most probable token, again and again.

        Without a cache the whole text is read for each token. With one, keys and values lie in
        memory that is set aside once, and a step reads a slice of it: the least that it can do.
        """
        ids, seen = prompt, 0
        room = (2, len(ids), self.n_heads, ids.shape[1] + max_new_tokens, self.d_head)
        caches = [self.tokens.weight.new_empty(room) for _ in self.blocks] if use_cache else None
        for _ in range(max_new_tokens):
            last = self._read(ids[:, seen:], seen, caches)[:, -1]
            ids = torch.cat([ids, self.output(last).argmax(dim=-1, keepdim=True)], dim=1)
            seen = ids.shape[1] - 1 if use_cache else 0
        return ids

    def _read(self, ids: Tensor, start: int = 0, caches: list[Tensor] | None = None) -> Tensor:
        places = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        for number, block in enumerate(self.blocks):
            x = block(x, start, None if caches is None else caches[number])
        normed: Tensor = self.norm(x)
        return normed


class PlainBlock(nn.Module):
    """One block of a plain GPT.

    Args:
        config: its sizes.
        ours: a block of ours; its weights are copied.
    """

    def __init__(self, config: TransformerConfig, ours: Any) -> None:
        super().__init__()
        d_model = config.d_model
        self.n_heads, self.d_head = config.n_heads, d_model // config.n_heads
        self.norm1 = nn.LayerNorm(d_model, eps=config.norm_eps)
        self.joined = nn.Linear(d_model, 3 * d_model)
        self.mix = nn.Linear(d_model, d_model)
        self.norm2 = nn.LayerNorm(d_model, eps=config.norm_eps)
        self.up = nn.Linear(d_model, config.ffn_width)
        self.down = nn.Linear(config.ffn_width, d_model)
        _copy_attention((self.joined.weight, self.joined.bias), self.mix, ours)
        _copy_rest((self.up, self.down), (self.norm1, self.norm2), ours)

    def forward(self, x: Tensor, start: int, cache: Tensor | None) -> Tensor:
        """Return ``(B, T, D)``; the tokens stand behind `start` others, which are in the cache."""
        split = self.joined(self.norm1(x)).unflatten(-1, (3, self.n_heads, self.d_head))
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (B, H, T, Dk) each
        if cache is not None:
            end = start + x.shape[1]
            cache[0, :, :, start:end] = k
            cache[1, :, :, start:end] = v
            k, v = cache[:, :, :, :end]
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0)
        x = x + self.mix(heads.transpose(1, 2).flatten(start_dim=2))
        wide = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        added: Tensor = x + self.down(wide)
        return added


class TorchEncoder(nn.Module):
    """A BERT out of `torch.nn`.

    Args:
        model: ours; its weights are copied.
        nested: whether padding may be cut out of the batch (nested tensors).
    """

    def __init__(self, model: Encoder, *, nested: bool) -> None:
        super().__init__()
        config = model.config
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_len, config.d_model)
        self.segments = nn.Embedding(config.n_segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.stack = torch_stack(model.stack, nested=nested)
        embedding: Any = model.embedding
        _copy(self.tokens.weight, embedding.tokens.weight)
        _copy(self.positions.weight, embedding.positions.table.weight)
        _copy(self.segments.weight, embedding.segments.weight)
        _copy_norm(self.norm, embedding.norm)

    def forward(self, ids: Tensor, is_padding: Tensor) -> Tensor:
        """Return a vector for each token; `torch.nn` wants to know which are padding."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places) + self.segments(torch.zeros_like(ids))
        encoded: Tensor = self.stack(self.norm(x), src_key_padding_mask=is_padding)
        return encoded


def torch_stack(ours: Stack, *, nested: bool) -> nn.TransformerEncoder:
    """Build the `nn.TransformerEncoder` that computes what a stack of ours computes."""
    config = ours.config
    layer = nn.TransformerEncoderLayer(
        config.d_model,
        config.n_heads,
        config.ffn_width,
        dropout=config.dropout,
        activation=_activation(config),
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm_position == "pre",
    )
    norm = None
    if ours.final_norm is not None:
        norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        _copy_norm(norm, ours.final_norm)
    stack = nn.TransformerEncoder(layer, config.n_layers, norm, enable_nested_tensor=nested)
    for theirs, block in zip(stack.layers, ours.blocks, strict=True):
        _copy_block(theirs, block)
    return stack


def _activation(config: TransformerConfig) -> Any:
    return partial(F.gelu, approximate="tanh") if config.activation == "gelu_tanh" else "gelu"


def _copy_block(theirs: Any, ours: Any) -> None:
    attention = theirs.self_attn
    _copy_attention((attention.in_proj_weight, attention.in_proj_bias), attention.out_proj, ours)
    _copy_rest((theirs.linear1, theirs.linear2), (theirs.norm1, theirs.norm2), ours)


def _copy_attention(joined: tuple[Tensor, Tensor], mix: nn.Linear, ours: Any) -> None:
    """Others keep the weights of queries, keys and values in one tensor, and the biases too."""
    parts = (ours.attention.query, ours.attention.key, ours.attention.value)
    _copy(joined[0], torch.cat([part.weight for part in parts]))
    _copy(joined[1], torch.cat([part.bias for part in parts]))
    _copy_linear(mix, ours.attention.output)


def _copy_rest(
    layers: tuple[nn.Linear, nn.Linear], norms: tuple[nn.LayerNorm, nn.LayerNorm], ours: Any
) -> None:
    _copy_linear(layers[0], ours.feed_forward.up)
    _copy_linear(layers[1], ours.feed_forward.down)
    _copy_norm(norms[0], ours.attention_norm)
    _copy_norm(norms[1], ours.feed_forward_norm)


def _copy_linear(theirs: nn.Linear, ours: Any) -> None:
    _copy(theirs.weight, ours.weight)
    _copy(theirs.bias, ours.bias)


def _copy_norm(theirs: nn.LayerNorm, ours: Any) -> None:
    _copy(theirs.weight, ours.weight)
    _copy(theirs.bias, ours.bias)


@torch.no_grad()
def _copy(theirs: Tensor, ours: Tensor) -> None:
    theirs.copy_(ours)


def hugging_face(model: CausalLM | Encoder) -> Any:
    """Build the same model in `transformers`, such as a `GPT2LMHeadModel` or a `BertModel`.

    It goes through a checkpoint on disk, as ours would if somebody used it there.
    """
    import transformers  # noqa: PLC0415  (slow to import, and not needed for all)

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        if isinstance(model, Encoder):
            bert = transformers.BertModel
            return bert.from_pretrained(folder, add_pooling_layer=False, attn_implementation="sdpa")
        language_model: Any = transformers.AutoModelForCausalLM
        gpt = language_model.from_pretrained(folder, attn_implementation="sdpa")
    # Nothing ends a text here, so that all competitors write the same number of tokens.
    gpt.generation_config.eos_token_id = None
    gpt.generation_config.pad_token_id = 0
    return gpt


def without_warning(run: Callable[[], Any]) -> Callable[[], Any]:
    """Silence PyTorch, which says of nested tensors each time that they are a prototype."""

    def silent() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run()

    return silent
