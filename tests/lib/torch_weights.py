"""Copy the weights of PyTorch's own Transformer modules into ours, one to one."""

import torch
from torch import nn

from transformer_lib.core.config import TransformerConfig


def randomise(module, seed=0):
    """Draw every parameter anew: norms and biases that start as 1 and 0 would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(0.3 * noise + (1.0 if parameter.ndim == 1 else 0.0))
    return module


def copy_(ours, theirs):
    with torch.no_grad():
        ours.copy_(theirs)


def copy_linear(ours, theirs):
    copy_(ours.weight, theirs.weight)
    if theirs.bias is not None:
        copy_(ours.bias, theirs.bias)


def copy_norm(ours, theirs):
    copy_(ours.weight, theirs.weight)
    copy_(ours.bias, theirs.bias)


def copy_attention(ours, theirs):
    parts = (ours.query, ours.key, ours.value)
    for part, weight in zip(parts, theirs.in_proj_weight.chunk(3), strict=True):
        copy_(part.weight, weight)
    if theirs.in_proj_bias is not None:
        for part, bias in zip(parts, theirs.in_proj_bias.chunk(3), strict=True):
            copy_(part.bias, bias)
    copy_linear(ours.output, theirs.out_proj)


def copy_block(ours, theirs):
    copy_attention(ours.attention, theirs.self_attn)
    norms = [theirs.norm1, theirs.norm2]
    copy_norm(ours.attention_norm, theirs.norm1)
    if isinstance(theirs, nn.TransformerDecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        copy_norm(ours.cross_attention_norm, theirs.norm2)
        norms = [*norms, theirs.norm3]
    copy_linear(ours.feed_forward.up, theirs.linear1)
    copy_linear(ours.feed_forward.down, theirs.linear2)
    copy_norm(ours.feed_forward_norm, norms[-1])


def copy_stack(ours, theirs):
    for mine, other in zip(ours.blocks, theirs.layers, strict=True):
        copy_block(mine, other)
    if theirs.norm is not None:
        copy_norm(ours.final_norm, theirs.norm)


def small_config(**changes):
    sizes = {"vocab_size": 11, "max_len": 16, "d_model": 8, "n_heads": 2, "d_ff": 12}
    return TransformerConfig(**{**sizes, "n_layers": 2, "dropout": 0.0, **changes})
