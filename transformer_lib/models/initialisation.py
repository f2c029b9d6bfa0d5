"""How weights are drawn before training."""

import math

import torch
from torch import nn

from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.feedforward import FeedForward
from transformer_lib.models.blocks import Block, Stack


def initialise(model: nn.Module, config: TransformerConfig) -> None:
    """Draw the weights of a model anew; biases become 0, norms stay as they are.

    ``"xavier"``: matrices uniform with variance ``2 / (inputs + outputs)``, embeddings normal with
    variance ``1 / D``, so that they have length about 1 before ``scale_embeddings``.
    ``"gpt2"``: everything normal with standard deviation 0.02; the projections that write to the
    residual stream divided by the root of the number of writes, so that the sum does not grow.
    Where attention has a scale of its own, queries make up for it (T5 has none and starts so).

    Args:
        model: any module built from the parts of this library.
        config: ``init`` and ``d_model`` are read.

    Example:
        >>> config = TransformerConfig(
        ...     d_model=64, n_heads=2, n_layers=8, init="gpt2"
        ... )
        >>> stack = Stack(config, causal=True)
        >>> torch.manual_seed(0) and initialise(stack, config)
        >>> f"{stack.blocks[0].attention.query.weight.std():.3f}"
        '0.020'
        >>> # 0.02 / sqrt(2 * 8)
        >>> f"{stack.blocks[0].attention.output.weight.std():.3f}"
        '0.005'
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            if config.init == "xavier":
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            xavier = config.init == "xavier"
            nn.init.normal_(module.weight, std=1 / math.sqrt(config.d_model) if xavier else 0.02)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and module.scale is not None:
            with torch.no_grad():  # scores start as if they were multiplied by 1/sqrt(Dk)
                module.query.weight /= module.scale * math.sqrt(module.d_head)
        elif isinstance(module, Stack) and config.init == "gpt2":
            _shrink_residual_writes(module)


def _shrink_residual_writes(stack: Stack) -> None:
    writers = [part for part in stack.modules() if isinstance(part, MultiHeadAttention)]
    networks = [part for part in stack.modules() if isinstance(part, FeedForward)]
    blocks = [part for part in stack.modules() if isinstance(part, Block)]
    n_writes = sum(2 if block.cross_attention is None else 3 for block in blocks)
    matrices = [part.output.weight for part in writers] + [net.down.weight for net in networks]
    for matrix in matrices:
        nn.init.normal_(matrix, std=0.02 / math.sqrt(n_writes))
