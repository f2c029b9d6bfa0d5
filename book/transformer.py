"""The Transformer that you write while you read the book.

Each part is a cell of The Executable Transformer, marked "your file", and
stands under the title of its page. All that it needs is PyTorch.

`python -m tools.notebooks file` writes it: to change a part, change its
cell.
"""

import math
import re
from collections import Counter
from itertools import pairwise

import torch
from torch import nn

# --- 2 · From text to tensors


def merge(pieces, pair, new):
    """Write `new` wherever the pair stands, from left to right."""
    merged = []
    for piece in pieces:
        merged.append(piece)
        if tuple(merged[-2:]) == pair:
            merged[-2:] = [new]
    return merged


class BytePairs:
    """Byte-pair encoding: text to ids and back."""

    pattern = r"'(?:[stmd]|re|ve|ll)| ?[^\W\d_]+| ?\d+"
    pattern += r"| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"

    def __init__(self, text, n_merges):
        self.merges, self.tokens = [], [bytes([n]) for n in range(256)]
        words = re.findall(self.pattern, text)
        spelled = [list(word.encode()) for word in words]
        for new in range(256, 256 + n_merges):
            pairs = Counter(p for word in spelled for p in pairwise(word))
            if not pairs:  # each word is one token
                break
            a, b = min(pairs, key=lambda pair: (-pairs[pair], pair))
            self.merges.append((a, b))
            self.tokens.append(self.tokens[a] + self.tokens[b])
            spelled = [merge(word, (a, b), new) for word in spelled]

    def encode(self, text):
        ids = []
        for word in re.findall(self.pattern, text):
            pieces = list(word.encode())
            for new, pair in enumerate(self.merges, start=256):
                pieces = merge(pieces, pair, new)
            ids += pieces
        return ids

    def decode(self, ids):
        found = b"".join(self.tokens[i] for i in ids)
        return found.decode(errors="replace")


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


# --- 5 · Masks: who may look at whom


def causal_mask(T):
    """Let each position see itself and those before it."""
    return torch.ones(T, T).tril().bool()  # (T, T)


def padding_mask(ids, pad_id=0):
    """Hide padding as a key, from all heads and all queries."""
    real = ids != pad_id  # (B, S)
    return real[:, None, None, :]  # (B, 1, 1, S)


# --- 6 · Multi-head attention


# page 7: queries and keys may turn with positions
class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each with matrices of its own."""

    def __init__(self, d_model, n_heads, rotary=False):
        super().__init__()
        self.n_heads, self.rotary = n_heads, rotary
        self.query = nn.Linear(d_model, d_model)  # all heads side by side
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def split(self, x):  # (B, T, D) to (B, H, T, Dk)
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x, memory=None, mask=None):
        source = x if memory is None else memory
        q = self.split(self.query(x))  # (B, H, T, Dk)
        k = self.split(self.key(source))  # (B, H, S, Dk)
        v = self.split(self.value(source))
        if self.rotary and memory is None:  # new, for self-attention
            places = torch.arange(x.shape[1], device=x.device)
            q, k = rotate(q, places), rotate(k, places)  # v stays
        found, _ = attention(q, k, v, mask)  # (B, H, T, Dk)
        return self.output(found.transpose(1, 2).flatten(start_dim=2))


# --- 7 · Positional encodings


def rotate(x, positions, theta=10_000.0):
    """Turn pairs of features by angles that grow with the position."""
    Dk = x.shape[-1]
    pairs = torch.arange(0, Dk, 2, device=x.device)
    speeds = theta ** -(pairs / Dk)  # (Dk/2,)
    angles = positions[:, None] * speeds  # (T, Dk/2)
    cos, sin = angles.cos(), angles.sin()
    u, v = x[..., 0::2], x[..., 1::2]  # (..., T, Dk/2) each
    turned = torch.stack([u * cos - v * sin, u * sin + v * cos], dim=-1)
    return turned.flatten(start_dim=-2).to(x.dtype)  # (..., T, Dk)


def sinusoids(T, D):
    """A vector of sines and cosines for each position, to be added."""
    speeds = 10_000.0 ** -(torch.arange(0, D, 2) / D)  # (D/2,)
    angles = torch.arange(T)[:, None] * speeds  # (T, D/2)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return waves.flatten(start_dim=1)  # (T, D): sin, cos, sin, cos ...


# --- 8 · The feed-forward network


class FeedForward(nn.Module):
    """Expand each token, apply a non-linearity, contract it again."""

    def __init__(self, d_model, d_ff, activation=torch.relu):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.activation = activation

    def forward(self, x):  # (..., D)
        return self.down(self.activation(self.up(x)))  # inside: (..., F)


# --- 9 · Normalisation


class RMSNorm(nn.Module):
    """Divide each token by its root mean square, multiply by a gain."""

    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))  # the gain
        self.eps = eps

    def forward(self, x):  # (..., D)
        mean_square = x.square().mean(dim=-1, keepdim=True)  # (..., 1)
        return self.weight * x / torch.sqrt(mean_square + self.eps)


# --- 10 · The residual stream


class Block(nn.Module):
    """Attention and a feed-forward network, each added to the stream."""

    def __init__(
        self,
        d_model,
        n_heads,
        norm=nn.LayerNorm,
        feed=FeedForward,
        rotary=False,
        dropout=0.0,
    ):
        super().__init__()
        self.attention_norm = norm(d_model)
        self.attention = MultiHeadAttention(d_model, n_heads, rotary)
        self.feed_forward_norm = norm(d_model)
        self.feed_forward = feed(d_model, 4 * d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):  # (B, T, D)
        read = self.attention_norm(x)
        x = x + self.dropout(self.attention(read, mask=mask))
        read = self.feed_forward_norm(x)
        return x + self.dropout(self.feed_forward(read))


# --- 11 · The encoder


class Encoder(nn.Module):
    """A stack of blocks, and a norm at its end."""

    def __init__(self, d_model, n_heads, n_layers, dropout=0.0):
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(d_model, n_heads, dropout=dropout)
            for _ in range(n_layers)
        )
        self.final_norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):  # (B, T, D)
        for block in self.blocks:
            x = block(x, mask)
        return self.final_norm(x)  # (B, T, D)


# --- 12 · The decoder and cross-attention


class DecoderBlock(nn.Module):
    """Causal attention, attention to a memory, feed-forward network."""

    def __init__(self, d_model, n_heads, dropout=0.0):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, n_heads)
        self.cross_attention_norm = nn.LayerNorm(d_model)
        self.cross_attention = MultiHeadAttention(d_model, n_heads)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, 4 * d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, memory, mask=None, memory_mask=None):
        read = self.attention_norm(x)  # (B, T, D)
        x = x + self.dropout(self.attention(read, mask=mask))
        read = self.cross_attention_norm(x)
        found = self.cross_attention(read, memory, memory_mask)
        x = x + self.dropout(found)
        read = self.feed_forward_norm(x)
        return x + self.dropout(self.feed_forward(read))


# --- 13 · The whole Transformer, end to end


class Transformer(nn.Module):
    """An encoder, a decoder that reads it, and one table for both."""

    def __init__(self, vocab_size, d_model, n_heads, n_layers):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)  # the table
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)
        self.encoder = Encoder(d_model, n_heads, n_layers)
        blocks = (DecoderBlock(d_model, n_heads) for _ in range(n_layers))
        self.decoder = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(d_model)

    def embed(self, ids):  # (B, T) to (B, T, D)
        D = self.tokens.embedding_dim
        x = self.tokens(ids) * math.sqrt(D)
        return x + sinusoids(ids.shape[1], D).to(x)

    def encode(self, source):  # (B, S) to the memory, (B, S, D)
        return self.encoder(self.embed(source), padding_mask(source))

    def decode(self, target, memory, source):  # to logits, (B, T, V)
        x, real = self.embed(target), padding_mask(source)
        causal = causal_mask(target.shape[1]).to(target.device)
        for block in self.decoder:
            x = block(x, memory, causal, real)  # always the same memory
        return self.final_norm(x) @ self.tokens.weight.T

    def forward(self, source, target):
        return self.decode(target, self.encode(source), source)


@torch.no_grad()
def translate(model, source, start, end, longest=50):
    """Write the most probable token, again and again, until the end."""
    memory = model.encode(source)  # the source is read once
    target = source.new_full((len(source), 1), start)  # (B, 1)
    for _ in range(longest):
        logits = model.decode(target, memory, source)  # (B, T, V)
        best = logits[:, -1].argmax(dim=-1, keepdim=True)  # (B, 1)
        target = torch.cat([target, best], dim=1)
        if (target == end).any(dim=1).all():
            break
    return target[:, 1:]  # without the start token
