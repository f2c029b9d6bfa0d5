"""checks of labs 4 and 5: what learners write there is refused with its cause, or accepted."""

import math

import numpy as np
import pytest
import torch
from lab_answers import Answers, assert_accepted, assert_refused
from torch import nn
from torch.nn import functional

from transformer_book.exercises import EXERCISES
from transformer_book.exercises.grading.checking import judge

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right


# Lab 4, batches


@right("lab4.batch")
def batch_in_a_loop(ids, starts, length):
    reads = torch.stack([ids[s : s + length] for s in starts])
    return reads, torch.stack([ids[s + 1 : s + 1 + length] for s in starts])


@right("lab4.batch")
def batch_cut_from_longer_windows(ids, starts, length):
    windows = ids.unfold(0, length + 1, 1)[starts]
    return windows[:, :-1], windows[:, 1:]


@wrong("lab4.batch", "another order", "reads, targets")
def targets_first(ids, starts, length):
    return batch_in_a_loop(ids, starts, length)[::-1]


@wrong("lab4.batch", "reads", "too many at the end of axis 1")
def reads_one_letter_too_many(ids, starts, length):
    return batch_in_a_loop(ids, starts, length + 1)[0], batch_in_a_loop(ids, starts, length)[1]


@wrong("lab4.batch", "first letter of its own window")
def targets_rolled(ids, starts, length):
    reads, _ = batch_in_a_loop(ids, starts, length)
    return reads, torch.roll(reads, -1, dims=1)


# Lab 4, one head


def future(q, diagonal=1):
    n = q.shape[-2]
    return torch.ones(n, n, dtype=torch.bool).triu(diagonal)


def plain_head(q, k, v, *, diagonal=1, fill=-math.inf, scale=None):
    scores = q @ k.mT / math.sqrt(scale or q.shape[-1])
    return scores.masked_fill(future(q, diagonal), fill).softmax(dim=-1) @ v


@right("lab4.head")
def a_very_small_number_hides_as_well(q, k, v):
    return plain_head(q, k, v, fill=-1e9)


@right("lab4.head")
def infinity_added(q, k, v):
    n = q.shape[-2]
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores + torch.full((n, n), -math.inf).triu(1)).softmax(dim=-1) @ v


@right("lab4.head")
def the_function_of_torch(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@right("lab4.head")
def place_by_place(q, k, v):
    found = []
    for t in range(q.shape[-2]):
        scores = q[..., t : t + 1, :] @ k[..., : t + 1, :].mT / math.sqrt(q.shape[-1])
        found.append(scores.softmax(dim=-1) @ v[..., : t + 1, :])
    return torch.cat(found, dim=-2)


@right("lab4.head")
def weights_normalised_by_hand(q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).exp().tril()
    return weights / weights.sum(dim=-1, keepdim=True) @ v


@wrong("lab4.head", "width", "Dk")
def scaled_by_the_width_of_the_values(q, k, v):
    return plain_head(q, k, v, scale=v.shape[-1])


@wrong("lab4.head", "number of keys")
def scaled_by_the_number_of_keys(q, k, v):
    return plain_head(q, k, v, scale=q.shape[-2])


@wrong("lab4.head", "square root")
def scaled_by_k_itself(q, k, v):
    return plain_head(q, k, v, scale=q.shape[-1] ** 2)


@wrong("lab4.head", "exp(0) is 1")
def zeros_in_place_of_infinity(q, k, v):
    return plain_head(q, k, v, fill=0.0)


@wrong("lab4.head", "exp(0) is 1")
def scores_times_the_mask(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores * torch.ones_like(scores).tril()).softmax(dim=-1) @ v


@wrong("lab4.head", "0 * -inf is NaN")
def zero_times_infinity(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    mask = torch.triu(torch.ones(q.shape[-2], q.shape[-2]), diagonal=1) * -math.inf
    return (scores + mask).softmax(dim=-1) @ v


@wrong("lab4.head", "too strict", "itself")
def does_not_see_itself(q, k, v):
    return plain_head(q, k, v, diagonal=0)


@wrong("lab4.head", "too generous")
def sees_the_next_place(q, k, v):
    return plain_head(q, k, v, diagonal=2)


@wrong("lab4.head", "wrong way round")
def hides_the_past(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(future(q).mT, -math.inf).softmax(dim=-1) @ v


@wrong("lab4.head", "wrong way round")
def mask_not_inverted(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~future(q), -math.inf).softmax(dim=-1) @ v


@wrong("lab4.head", "no gradient", "detach()")
def detached(q, k, v):
    return plain_head(q, k, v).detach()


@wrong("lab4.head", "no gradient", "torch.no_grad()")
@torch.no_grad()
def without_gradients(q, k, v):
    return plain_head(q, k, v)


@wrong("lab4.head", "queries and keys could not learn")
def weights_detached(q, k, v):
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(future(q), -math.inf).softmax(-1)
    return weights.detach() @ v


@wrong("lab4.head", "1 gradient fewer than expected")
def keys_detached(q, k, v):
    return plain_head(q, k.data, v)


def test_queries_divided_in_place_are_right_and_told_so():
    def divides_in_place(q, k, v):
        q /= math.sqrt(q.shape[-1])
        return (q @ k.mT).masked_fill(future(q), -math.inf).softmax(dim=-1) @ v

    verdict = judge(EXERCISES["lab4.head"], divides_in_place)
    assert verdict.right
    assert "changes its argument `q` in place" in verdict.text
    assert judge(EXERCISES["lab4.head"], plain_head).text == "correct."  # and spoils nothing


# Lab 4, many heads


class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def cut(self, x):
        b, t, d = x.shape
        return x.view(b, t, self.n_heads, d // self.n_heads).transpose(1, 2)

    def join(self, x):
        b, h, t, k = x.shape
        return x.transpose(1, 2).contiguous().view(b, t, h * k)

    def attend(self, q, k, v):
        return plain_head(q, k, v)

    def forward(self, x):
        q, k, v = self.cut(self.query(x)), self.cut(self.key(x)), self.cut(self.value(x))
        return self.output(self.join(self.attend(q, k, v)))


@right("lab4.attention")
class ViewedAttention(Attention):
    pass


@right("lab4.attention")
class HeadByHead(Attention):
    def forward(self, x):
        parts = [layer(x).chunk(self.n_heads, dim=-1) for layer in (self.query, self.key)]
        values = self.value(x).chunk(self.n_heads, dim=-1)
        heads = [plain_head(*qkv) for qkv in zip(*parts, values, strict=True)]
        return self.output(torch.cat(heads, dim=-1))


@right("lab4.attention")
class MaskNotSaved(Attention):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.register_buffer("mask", torch.ones(64, 64).tril().bool(), persistent=False)

    def attend(self, q, k, v):
        n = q.shape[-2]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.masked_fill(~self.mask[:n, :n], -math.inf).softmax(dim=-1) @ v


@wrong("lab4.attention", "'mask'", "step 7", "persistent=False")
class MaskAsABuffer(Attention):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.register_buffer("mask", torch.ones(64, 64).tril().bool())


@wrong("lab4.attention", "stripes", "neighbouring")
class Striped(Attention):
    def cut(self, x):
        return x.unflatten(-1, (-1, self.n_heads)).permute(0, 3, 1, 2)

    def join(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


@wrong("lab4.attention", "stripes", "neighbouring")
class StripedAndJoined(Attention):
    def cut(self, x):
        return torch.stack([x[..., h :: self.n_heads] for h in range(self.n_heads)], dim=1)


@wrong("lab4.attention", "split and merged by a reshape alone")
class ReshapedTwice(Attention):
    def cut(self, x):
        return x.view(x.shape[0], self.n_heads, x.shape[1], -1)

    def join(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


@wrong("lab4.attention", "the width of one")
class ScaledByAllHeads(Attention):
    def attend(self, q, k, v):
        return plain_head(q, k, v, scale=q.shape[-1] * self.n_heads)


@wrong("lab4.attention", "no gradient")
class DetachedHeads(Attention):
    def attend(self, q, k, v):
        return detached(q, k, v)


@wrong("lab4.attention", "'query.weight'", "'qkv.weight'")
class OneLayerForAllThree(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.output(plain_head(*self.qkv(x).chunk(3, dim=-1)))


@wrong("lab4.attention", "'value.bias'")
class NoBiasInTheValues(Attention):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.value = nn.Linear(d_model, d_model, bias=False)


@wrong("lab4.attention", "norm.weight, norm.bias: 24 parameters")
class HasANormToo(Attention):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.norm = nn.LayerNorm(d_model)


@wrong("lab4.attention", "no forward method")
class HasNoForward(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.query = self.key = self.value = self.output = nn.Linear(d_model, d_model)


# Lab 4, the block


class Norm(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)


class Block(nn.Module):
    inner = 4
    attention_of = Attention

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.attention_norm, self.feed_forward_norm = Norm(d_model), Norm(d_model)
        self.attention = self.attention_of(d_model, n_heads)
        self.up = nn.Linear(d_model, self.inner * d_model)
        self.down = nn.Linear(self.inner * d_model, d_model)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.relu(self.up(self.feed_forward_norm(x))))


@right("lab4.block")
class PlainBlock(Block):
    pass


@wrong("lab4.block", "network replaces the stream")
class NoSecondSum(Block):
    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return self.down(self.up(self.feed_forward_norm(x)).relu())


@wrong("lab4.block", "not used", "normalised stream")
class NoNorms(Block):
    def forward(self, x):
        x = x + self.attention(x)
        return x + self.down(self.up(x).relu())


@wrong("lab4.block", "GELU", "ReLU")
class Gelu(Block):
    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(functional.gelu(self.up(self.feed_forward_norm(x))))


@wrong("lab4.block", "used twice")
class FirstNormTwice(Block):
    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(self.up(self.attention_norm(x)).relu())


@wrong("lab4.block", "One norm", "second one")
class OneNormForBoth(Block):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.feed_forward_norm = self.attention_norm


@wrong("lab4.block", "600 parameters fewer than expected")
class NarrowNetwork(Block):
    inner = 2


@wrong("lab4.block", "extra.weight, extra.bias: 156 parameters", "does not name")
class ExtraLayer(Block):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.extra = nn.Linear(d_model, d_model)


@wrong("lab4.block", "'attention.mask'", "persistent=False")
class BlockWithABuffer(Block):
    attention_of = MaskAsABuffer


@right("lab4.block")
class NormsOfTorch(Block):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.attention_norm, self.feed_forward_norm = (nn.LayerNorm(d_model) for _ in range(2))


# Lab 4, the model


class GPT(nn.Module):
    std = 0.1
    block_of = Block

    def __init__(self, vocab_size, max_len, d_model, n_heads, n_layers):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList([self.block_of(d_model, n_heads) for _ in range(n_layers)])
        self.final_norm = Norm(d_model)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=self.std)

    def features(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)

    def forward(self, ids):
        return functional.linear(self.features(ids), self.tokens.weight)


@right("lab4.gpt")
class PlainGPT(GPT):
    pass


@wrong("lab4.gpt", "'head.weight'", "second name", "self.tokens.weight")
class TiedLayerAsAFifthName(GPT):
    def __init__(self, vocab_size, max_len, d_model, n_heads, n_layers):
        super().__init__(vocab_size, max_len, d_model, n_heads, n_layers)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        return self.head(self.features(ids))


@wrong("lab4.gpt", "head.weight, head.bias: 91 parameters", "table of tokens itself")
class UntiedWithABias(GPT):
    def __init__(self, vocab_size, max_len, d_model, n_heads, n_layers):
        super().__init__(vocab_size, max_len, d_model, n_heads, n_layers)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, ids):
        return self.head(self.features(ids))


@wrong("lab4.gpt", "'blocks.0.attention.mask'", "persistent=False")
class BuffersInEveryBlock(GPT):
    block_of = BlockWithABuffer


@wrong("lab4.gpt", "tokens.weight is drawn too loud", "0.1")
class LoudTables(GPT):
    std = 1.0


@wrong("lab4.gpt", "tokens.weight is drawn too quiet", "0.1")
class TablesAsInGpt2(GPT):
    std = 0.02


@wrong("lab4.gpt", "positions.weight is drawn too loud", "both tables")
class OneLoudTable(GPT):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        nn.init.normal_(self.positions.weight)


@wrong("lab4.gpt", "counted from 1")
class PlacesFromOne(GPT):
    def features(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(1, ids.shape[1] + 1))
        for block in self.blocks:
            x = block(x)
        return self.final_norm(x)


@wrong("lab4.gpt", "'blocks.0.attention.query.weight'")
class BlocksInAList(GPT):
    def __init__(self, vocab_size, max_len, d_model, n_heads, n_layers):
        super().__init__(vocab_size, max_len, d_model, n_heads, 0)
        self.blocks = None
        self.hidden = ([Block(d_model, n_heads) for _ in range(n_layers)],)


# Lab 4, the leak


def leak(model, ids, place, new, *, rows=slice(None), look=lambda change, place: change[:, :place]):
    other = ids.clone()
    other[rows, place] = new
    return look(model(other) - model(ids), place).abs().max().item()


@right("lab4.leak")
def leak_as_a_tensor(model, ids, place, new):
    other = torch.where(torch.arange(ids.shape[1]) == place, new, ids)
    return (model(other) - model(ids)).abs()[:, :place].max()


@wrong("lab4.leak", "every row")
def first_row_changed(model, ids, place, new):
    return leak(model, ids, place, new, rows=0)


@wrong("lab4.leak", "look at all of them")
def first_row_looked_at(model, ids, place, new):
    return leak(model, ids, place, new, look=lambda change, place: change[0, :place])


@wrong("lab4.leak", "just before", "any earlier one")
def place_just_before_looked_at(model, ids, place, new):
    return leak(model, ids, place, new, look=lambda change, place: change[:, place - 1])


@wrong("lab4.leak", "clone()")
def clone_forgotten(model, ids, place, new):
    other = ids
    other[:, place] = new
    return (model(other) - model(ids))[:, :place].abs().max().item()


@wrong("lab4.leak", "argument `ids` in place", "copy")
def changed_in_place(model, ids, place, new):
    before = model(ids)
    ids[:, place] = new
    return (model(ids) - before)[:, :place].abs().max().item()


@wrong("lab4.leak", "absolute")
def only_upwards(model, ids, place, new):
    other = ids.clone()
    other[:, place] = new
    return (model(other) - model(ids))[:, :place].max().item()


def test_a_forgotten_clone_opens_no_door_for_answers_after_it():
    exercise = EXERCISES["lab4.leak"]
    judge(exercise, clone_forgotten)
    assert not judge(exercise, only_upwards).right
    assert judge(exercise, leak).text == "correct."


# Lab 4, choosing and writing


@right("lab4.choose")
def best_k_scattered(logits, temperature, top_k, u):
    """Exactly k ids are left, also if scores are equal."""
    best = logits.topk(top_k)
    kept = torch.full_like(logits, -math.inf).scatter(0, best.indices, best.values)
    ends = (kept / temperature).softmax(dim=-1).cumsum(dim=-1)
    return (ends > u).nonzero()[0].item()


@right("lab4.choose")
def searched(logits, temperature, top_k, u):
    p = (logits / temperature).softmax(dim=-1)
    p = torch.where(p >= p.topk(top_k).values[-1], p, 0)
    ends = (p / p.sum()).cumsum(dim=-1)
    return torch.searchsorted(ends, torch.tensor(u, dtype=ends.dtype), right=True)


@right("lab4.choose")
def step_by_step(logits, temperature, top_k, u):
    scores = logits / temperature
    p = scores.masked_fill(scores < scores.topk(top_k).values[-1], -math.inf).softmax(dim=-1)
    for i in range(len(p)):
        u -= p[i].item()
        if u < 0:
            return i
    return int(p.nonzero()[-1])


@wrong("lab4.choose", "u = 0", "probability 0")
def ends_at_or_after_u(logits, temperature, top_k, u):
    scores = logits / temperature
    p = scores.masked_fill(scores < scores.topk(top_k).values[-1], -math.inf).softmax(dim=-1)
    return int((p.cumsum(dim=-1) >= u).nonzero()[0])


@wrong("lab4.choose", "u = 0", "probability 0")
def ends_before_u_counted(logits, temperature, top_k, u):
    scores = logits / temperature
    p = scores.masked_fill(scores < scores.topk(top_k).values[-1], -math.inf).softmax(dim=-1)
    return int((p.cumsum(dim=-1) < u).sum())


@wrong("lab4.choose", "no longer sum to 1")
def cut_after_the_softmax(logits, temperature, top_k, u):
    p = (logits / temperature).softmax(dim=-1)
    p[p < p.topk(top_k).values[-1]] = 0
    return int((p.cumsum(dim=-1) <= u).sum())


@wrong("lab4.choose", "no longer sum to 1")
def cut_after_the_softmax_and_searched(logits, temperature, top_k, u):
    p = (logits / temperature).softmax(dim=-1)
    p[p < p.topk(top_k).values[-1]] = 0
    return int((p.cumsum(dim=-1) > u).int().argmax())


@wrong("lab4.choose", "temperature is not used")
def no_temperature(logits, temperature, top_k, u):
    return best_k_scattered(logits, 1.0, top_k, u)


def write(model, ids, n, max_len, choose, *, shape=lambda logits: logits[0, -1]):
    for _ in range(n):
        new = choose(shape(model(ids[-max_len:].unsqueeze(0))))
        ids = functional.pad(ids, (0, 1), value=new)
    return ids


@right("lab4.write")
def padded_and_filled(model, ids, n, max_len, choose):
    return write(model, ids, n, max_len, choose)


@right("lab4.write")
def collected_in_a_list(model, ids, n, max_len, choose):
    found = ids.tolist()
    while len(found) < len(ids) + n:
        read = torch.tensor(found)[-max_len:]
        found.append(choose(model(read[None]).squeeze(0)[-1]))
    return torch.tensor(found)


@wrong("lab4.write", "shape (1, 11)", "(V,)", "in your line:")
def choose_gets_a_row_too_many(model, ids, n, max_len, choose):
    return write(model, ids, n, max_len, choose, shape=lambda logits: logits[:, -1])


@wrong("lab4.write", "runs once", "again")
def logits_computed_once(model, ids, n, max_len, choose):
    logits = model(ids[None, -max_len:])[0, -1]
    for _ in range(n):
        ids = torch.cat([ids, torch.tensor([choose(logits)])])
    return ids


@wrong("lab4.write", "ids of shape (3,)", "(1, T)")
def model_gets_no_batch(model, ids, n, max_len, choose):
    return write(lambda ids: model(ids[0])[None], ids, n, max_len, choose)


@wrong("lab4.write", "ids; it has", "places")
def model_gets_all(model, ids, n, max_len, choose):
    return write(model, ids, n, 10**6, choose)


@wrong("lab4.write", "let choose decide")
def best_always(model, ids, n, max_len, choose):
    return write(model, ids, n, max_len, lambda logits: int(logits.argmax()))


@wrong("lab4.write", "keep all ids")
def forgets_what_it_cannot_read(model, ids, n, max_len, choose):
    for _ in range(n):
        ids = write(model, ids[-max_len:], 1, max_len, choose)
    return ids


@wrong("lab4.write", "n new ones")
def n_in_all(model, ids, n, max_len, choose):
    return write(model, ids, max(0, n - len(ids)), max_len, choose)


# Lab 4, other names


def renamed(state):
    new = {}
    for name, tensor in state.items():
        name = name.replace(".up.", ".feed_forward.up.")
        name = name.replace(".down.", ".feed_forward.down.")
        for mine, theirs in (("tokens.", "tokens."), ("positions.", "positions.table.")):
            if name.startswith(mine):
                name = name.replace(mine, f"decoder.embedding.{theirs}")
        if name.startswith(("blocks", "final_norm")):
            name = f"decoder.stack.{name}"
        new[name] = tensor
    return new


@right("lab4.renamed")
def renamed_by_replacing(state):
    return renamed(state) | {"output.projection.weight": state["tokens.weight"].clone()}


@wrong("lab4.renamed", "'output.projection.weight' is missing")
def without_the_output(state):
    return renamed(state)


@wrong("lab4.renamed", "'tokens.weight' is not one of the library's names", "names do not fit")
def as_it_was(state):
    return dict(state)


@wrong("lab4.renamed", "first one's")
def one_norm_for_both(state):
    new = renamed_by_replacing(state)
    return {n: new[n.replace("feed_forward_norm", "attention_norm")] for n in new}


# Lab 5


def counted(width, layers, vocab, length):
    size = layers * (12 * width**2 + 2 * width) + width
    every = size + width * (vocab + length)
    flops = 6 * layers * 12 * width**2 + 6 * vocab * width + 12 * layers * length * width
    return size, every, flops


def counted_with(flops):
    def count(width, layers, vocab, length):
        size, every, right = counted(width, layers, vocab, length)
        return size, every, flops(right, size, every, width, layers, vocab, length)

    return count


@right("lab5.cost")
def numbers_as_floats(width, layers, vocab, length):
    return tuple(map(float, counted(width, layers, vocab, length)))


@right("lab5.cost")
def three_numbers_in_a_list(width, layers, vocab, length):
    return list(counted(width, layers, vocab, length))


@wrong("lab5.cost", "two", "scores", "weighted sum", "mask")
def no_weighted_sum(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return size, every, flops - 6 * layers * length * width


@wrong("lab5.cost", "without tables", "output layer", "attention")
def six_times_n_without_tables(width, layers, vocab, length):
    size, every, _ = counted(width, layers, vocab, length)
    return size, every, 6 * size


@wrong("lab5.cost", "six times all parameters")
def six_times_all(width, layers, vocab, length):
    size, every, _ = counted(width, layers, vocab, length)
    return size, every, 6 * every


@wrong("lab5.cost", "mask", "all pairs")
def causal_pairs(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return size, every, flops - 6 * layers * (length - 1) * width


@wrong("lab5.cost", "no biases")
def biases_counted(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return size + 9 * layers * width, every + 9 * layers * width, flops


@wrong("lab5.cost", "Gains multiply no matrix")
def gains_multiply(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return size, every, flops + 6 * (2 * layers + 1) * width


@wrong("lab5.cost", "looked up")
def lookup_counted(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return size, every, flops + 6 * vocab * width


@wrong("lab5.cost", "N without tables: it is 1 too large")
def one_too_many(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return size + 1, every, flops


@wrong("lab5.cost", "another order", "N without tables, N with tables")
def in_another_order(width, layers, vocab, length):
    size, every, flops = counted(width, layers, vocab, length)
    return every, size, flops


@right("lab5.width")
def width_by_a_loop(layers, size):
    best = 8
    for width in range(8, 1025, 8):
        if abs(counted(width, layers, 0, 0)[0] - size) < abs(counted(best, layers, 0, 0)[0] - size):
            best = width
    return best


@wrong("lab5.width", "gains")
def gains_left_out(layers, size):
    return min(range(8, 1025, 8), key=lambda width: abs(12 * layers * width**2 - size))


@wrong("lab5.width", "1,024")
def without_an_upper_end(layers, size):
    return min(range(8, 4096, 8), key=lambda width: abs(counted(width, layers, 0, 0)[0] - size))


@wrong("lab5.width", "tables")
def tables_included(layers, size):
    return min(range(8, 1025, 8), key=lambda w: abs(counted(w, layers, 66, 32)[1] - size))


@right("lab5.plan")
def plan_in_whole_numbers(flops, seeds, tokens, budget):
    return math.floor(budget / (sum(flops) * seeds * tokens))


@wrong("lab5.plan", "nearest", "down")
def rounded(flops, seeds, tokens, budget):
    return round(budget / (sum(flops) * seeds * tokens))


@right("lab5.gap")
def gap_by_hand(first, second):
    apart = [a - b for a, b in zip(first, second, strict=True)]
    middle = sum(apart) / len(apart)
    variance = sum((a - middle) ** 2 for a in apart) / (len(apart) - 1)
    return middle, (variance / len(apart)) ** 0.5


@wrong("lab5.gap", "variance")
def variance_in_place_of_deviation(first, second):
    apart = np.subtract(first, second)
    return apart.mean(), apart.var(ddof=1) / len(apart)


@wrong("lab5.gap", "root of n")
def divided_by_n(first, second):
    apart = np.subtract(first, second)
    return apart.mean(), apart.std(ddof=1) / len(apart)


def fit(sizes, losses, floors, error=lambda said, loss: np.log(said / loss)):
    x, losses = np.log(sizes), np.array(losses)
    best = math.inf, None
    for floor in floors:
        slope, start = np.polyfit(x, np.log(losses - floor), 1)
        said = floor + np.exp(start + slope * x)
        off = (error(said, losses) ** 2).sum()
        if off < best[0]:
            best = off, (floor, np.exp(start), -slope)
    return best[1]


@right("lab5.fit")
def fit_by_polyfit(sizes, losses, floors):
    return fit(sizes, losses, floors)


@wrong("lab5.fit", "said - loss", "log(said / loss)")
def least_squares_of_the_loss(sizes, losses, floors):
    return fit(sizes, losses, floors, lambda said, loss: said - loss)


@wrong("lab5.fit", "said / loss - 1", "log(said / loss)")
def least_squares_of_relative_errors(sizes, losses, floors):
    return fit(sizes, losses, floors, lambda said, loss: (loss - said) / loss)


@wrong("lab5.fit", "log(said / loss)")
def least_absolute_errors(sizes, losses, floors):
    return fit(sizes, losses, floors, lambda said, loss: np.abs(np.log(said / loss)) ** 0.5)


@wrong("lab5.fit", "another order", "E, A, alpha")
def a_before_e(sizes, losses, floors):
    floor, a, alpha = fit(sizes, losses, floors)
    return a, floor, alpha


@right("lab5.leave_out")
def left_out_by_numpy(sizes, losses, floors):
    n = len(sizes)
    return np.array([fit(np.delete(sizes, i), np.delete(losses, i), floors)[2] for i in range(n)])


@wrong("lab5.leave_out", "sign")
def slopes_with_their_sign(sizes, losses, floors):
    return [-alpha for alpha in left_out_by_numpy(sizes, losses, floors)]


@wrong("lab5.leave_out", "reversed")
def from_the_last_on(sizes, losses, floors):
    return left_out_by_numpy(sizes, losses, floors)[::-1].copy()


@pytest.mark.parametrize(("name", "sentences", "answer"), ANSWERS.wrong_ones)
def test_wrong_answers_are_refused_and_told_why(name, sentences, answer):
    assert_refused(name, sentences, answer)


@pytest.mark.parametrize(("name", "answer"), ANSWERS.right_ones)
def test_right_answers_of_other_forms_are_accepted(name, answer):
    assert_accepted(name, answer)
