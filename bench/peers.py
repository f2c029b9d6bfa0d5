"""The same models elsewhere: in `torch.nn` and in `transformers`, with the same weights."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from transformer_lib.blocks import Stack
from transformer_lib.config import TransformerConfig
from transformer_lib.data import IGNORE
from transformer_lib.encoder_decoder import Encoder
from transformer_lib.models import CausalLM
from transformer_lib.pretrained import save_pretrained


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
    parts = (ours.attention.query, ours.attention.key, ours.attention.value)
    _copy(theirs.self_attn.in_proj_weight, torch.cat([part.weight for part in parts]))
    _copy(theirs.self_attn.in_proj_bias, torch.cat([part.bias for part in parts]))
    pairs = (
        (theirs.self_attn.out_proj, ours.attention.output),
        (theirs.linear1, ours.feed_forward.up),
        (theirs.linear2, ours.feed_forward.down),
    )
    for linear, mine in pairs:
        _copy(linear.weight, mine.weight)
        _copy(linear.bias, mine.bias)
    _copy_norm(theirs.norm1, ours.attention_norm)
    _copy_norm(theirs.norm2, ours.feed_forward_norm)


def _copy_norm(theirs: nn.LayerNorm, ours: Any) -> None:
    _copy(theirs.weight, ours.weight)
    _copy(theirs.bias, ours.bias)


@torch.no_grad()
def _copy(theirs: Tensor, ours: Tensor) -> None:
    theirs.copy_(ours)


def hugging_face(model: CausalLM | Encoder) -> Any:
    """Build the same model in `transformers`: a `GPT2LMHeadModel` or a `BertModel`.

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
        gpt = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa")
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
