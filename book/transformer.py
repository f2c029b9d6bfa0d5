"""The Transformer that you write while you read the book.

Each part is a cell of The Executable Transformer, marked "your file", and
stands under the title of its page. All that it needs is PyTorch.

`python -m tools.notebooks file` writes it: to change a part, change its
cell.
"""

import math

from torch import nn

# --- 3 · Attention: query, key, value


# page 5: now with a mask
def attention(q, k, v, mask=None):
    """Mix the values that a query may see; True in the mask means yes."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # (..., T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1)
    if mask is not None:  # a row that sees nothing is all NaN: make it 0
        weights = weights.masked_fill(~mask, 0.0)
    return weights @ v, weights


# --- 6 · Multi-head attention


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each with matrices of its own."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)  # all heads side by side
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def split(self, x):  # (B, T, D) to (B, H, T, Dk)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x, memory=None, mask=None):
        memory = x if memory is None else memory
        q = self.split(self.query(x))  # (B, H, T, Dk)
        k = self.split(self.key(memory))  # (B, H, S, Dk)
        v = self.split(self.value(memory))
        found, _ = attention(q, k, v, mask)  # (B, H, T, Dk)
        return self.output(found.transpose(1, 2).flatten(start_dim=2))
