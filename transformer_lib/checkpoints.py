"""What Hugging Face calls the parts of our models.

Each family of checkpoints has a column in a table of settings (the keys of its ``config.json``) and
one in a table of tensors. Both are used in both directions: to read a checkpoint and to write one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_lib import heads, models
from transformer_lib.config import TransformerConfig
from transformer_lib.positions import change_pairing
from transformer_lib.presets import PRESETS

# A dash: the family has no such thing. Two rows for one key or one field: they must agree.
_SETTINGS = """
ours               BERT                          GPT-2                LLaMA
vocab_size         vocab_size                    vocab_size           vocab_size
max_len            max_position_embeddings       n_positions          max_position_embeddings
d_model            hidden_size                   n_embd               hidden_size
n_heads            num_attention_heads           n_head               num_attention_heads
n_kv_heads         -                             -                    num_key_value_heads
d_head             -                             -                    head_dim
d_ff               intermediate_size             n_inner              intermediate_size
n_layers           num_hidden_layers             n_layer              num_hidden_layers
dropout            hidden_dropout_prob           resid_pdrop          -
dropout            classifier_dropout            embd_pdrop           -
attention_dropout  attention_probs_dropout_prob  attn_pdrop           attention_dropout
rope_theta         -                             -                    rope_theta
norm_eps           layer_norm_eps                layer_norm_epsilon   rms_norm_eps
activation         hidden_act                    activation_function  hidden_act
n_segments         type_vocab_size               -                    -
tie_embeddings     tie_word_embeddings           tie_word_embeddings  tie_word_embeddings

ours               T5                            ViT
vocab_size         vocab_size                    -
max_len            n_positions                   -
d_model            d_model                       hidden_size
n_heads            num_heads                     num_attention_heads
d_head             d_kv                          -
d_ff               d_ff                          intermediate_size
n_layers           num_layers                    num_hidden_layers
n_layers           num_decoder_layers            -
dropout            dropout_rate                  hidden_dropout_prob
attention_dropout  dropout_rate                  attention_probs_dropout_prob
norm_eps           layer_norm_epsilon            layer_norm_eps
activation         feed_forward_proj             hidden_act
tie_embeddings     tie_word_embeddings           -
"""

# Our names without "encoder." or "decoder." and, for the parts of a block, without its number.
# The ends ".weight" and ".bias" are left out where both have them; our gains are their weights.
_TENSORS = """
ours                       BERT                              GPT-2        LLaMA
embedding.tokens           embeddings.word_embeddings        wte          embed_tokens
embedding.positions.table  embeddings.position_embeddings    wpe          -
embedding.segments         embeddings.token_type_embeddings  -            -
embedding.norm             embeddings.LayerNorm              -            -
attention.query            attention.self.query              attn.c_attn  self_attn.q_proj
attention.key              attention.self.key                attn.c_attn  self_attn.k_proj
attention.value            attention.self.value              attn.c_attn  self_attn.v_proj
attention.output           attention.output.dense            attn.c_proj  self_attn.o_proj
attention_norm             attention.output.LayerNorm        ln_1         input_layernorm
feed_forward.gate          -                                 -            mlp.gate_proj
feed_forward.expand        intermediate.dense                mlp.c_fc     mlp.up_proj
feed_forward.contract      output.dense                      mlp.c_proj   mlp.down_proj
feed_forward_norm          output.LayerNorm                  ln_2         post_attention_layernorm
stack.final_norm           -                                 ln_f         norm
output.projection          -                                 lm_head      lm_head
output.projection.bias     cls.predictions.bias              -            -
transform                  cls.predictions.transform.dense   -            -
norm                       cls.predictions.transform.LayerNorm  -         -
pooler                     pooler.dense                      -            -
classifier                 classifier                        -            -

ours                       T5                                 ViT
embedding.tokens           shared                             -
class_token                -                                  embeddings.cls_token
positions.table.weight     -                                  embeddings.position_embeddings
patches.projection         -                                  embeddings.patch_embeddings.projection
stack.bias.table           {side}.block.0.layer.0.SelfAttention.relative_attention_bias  -
attention.query            layer.0.SelfAttention.q            attention.attention.query
attention.key              layer.0.SelfAttention.k            attention.attention.key
attention.value            layer.0.SelfAttention.v            attention.attention.value
attention.output           layer.0.SelfAttention.o            attention.output.dense
attention_norm             layer.0.layer_norm                 layernorm_before
cross_attention.query      layer.1.EncDecAttention.q          -
cross_attention.key        layer.1.EncDecAttention.k          -
cross_attention.value      layer.1.EncDecAttention.v          -
cross_attention.output     layer.1.EncDecAttention.o          -
cross_attention_norm       layer.1.layer_norm                 -
feed_forward.gate          layer.{last}.DenseReluDense.wi_0   -
feed_forward.expand        layer.{last}.DenseReluDense.{wi}   intermediate.dense
feed_forward.contract      layer.{last}.DenseReluDense.wo     output.dense
feed_forward_norm          layer.{last}.layer_norm            layernorm_after
stack.final_norm           {side}.final_layer_norm            layernorm
output.projection          lm_head                            -
classifier                 -                                  classifier
"""


TextModel = models.Encoder | heads.MaskedLM | heads.SequenceClassifier | heads.CausalLM
Model = TextModel | heads.Seq2SeqLM | heads.VisionTransformer


class Transform(NamedTuple):
    """How one tensor of a file becomes one or more of ours, and back.

    Args:
        read: takes the file's tensor and the shape of ours; returns ours.
        write: takes ours and the model; returns the file's tensor.

    Example:
        >>> TRANSPOSED.read(torch.zeros(2, 3), (3, 2))[0].shape
        torch.Size([3, 2])
    """

    read: Callable[[Tensor, Sequence[int]], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor], Model], Tensor]


def _split_pairs(parts: Sequence[Tensor], model: Model) -> Tensor:
    """Order the rows of a query or key projection for the RoPE pairing of Hugging Face."""
    if model.config.rope_pairing == "split":
        return parts[0]
    return change_pairing(parts[0], parts[0].shape[0] // model.config.d_head, to="split")


def _as_convolution(parts: Sequence[Tensor], model: Model) -> Tensor:
    """A linear layer over patches is a convolution whose steps are as wide as its kernel."""
    if parts[0].ndim == 1 or not isinstance(model, heads.VisionTransformer):
        return parts[0]  # the bias
    size = model.patches.patch_size
    return parts[0].reshape(-1, model.patches.n_channels, size, size)


SAME = Transform(lambda tensor, shape: [tensor], lambda parts, model: parts[0])
TRANSPOSED = Transform(lambda tensor, shape: [tensor.t()], lambda parts, model: parts[0].t())
FUSED = Transform(  # queries, keys and values in one transposed matrix
    lambda tensor, shape: [part.t() for part in tensor.chunk(3, dim=-1)],
    lambda parts, model: torch.cat([part.t() for part in parts], dim=-1),
)
ROTATED = Transform(SAME.read, _split_pairs)
CONVOLUTION = Transform(lambda tensor, shape: [tensor.reshape(shape)], _as_convolution)
BATCHED = Transform(  # with a batch dimension of 1
    lambda tensor, shape: [tensor.reshape(shape)],
    lambda parts, model: parts[0].reshape(1, -1, model.config.d_model),
)


@dataclass(frozen=True)
class Family:
    """What the checkpoints of one kind of model have in common.

    Args:
        column: its name in the tables.
        architectures: the classes of ``transformers`` that are known.
        prefix: what stands before the names of all tensors but those of the head. Some files leave
            it out, and so do the tables.
        block: what stands before the names of the parts of block ``n``.
        base: the configuration of which ``config.json`` changes some values.
        activations: its names for activations, and ours.
        transforms: the last part of the names of tensors that are laid out differently.
        copies: tensors that some files have and that only repeat another one.

    Example:
        >>> name, transform = FAMILIES["gpt2"].place("decoder.stack.blocks.3.attention_norm.gain")
        >>> name
        'h.3.ln_1.weight'
    """

    column: str
    architectures: tuple[str, ...]
    prefix: str
    block: str
    base: TransformerConfig
    activations: dict[str, str]
    transforms: dict[str, Transform] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)

    @cached_property
    def settings(self) -> list[tuple[str, str]]:
        """Fields of our configuration, and the keys of ``config.json`` with the same values."""
        return _read_column(_SETTINGS, self.column)

    @cached_property
    def tensors(self) -> dict[str, str]:
        """Our names of the parts of a model, and theirs."""
        return dict(_read_column(_TENSORS, self.column))

    def plain_name(self, name: str) -> str:
        """Return a file's name of a tensor as the tables have it."""
        name = name.removeprefix(self.prefix)
        # The first BERT was trained with another framework, which says gamma and beta.
        return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))

    def place(self, name: str, *, gated: bool = False) -> tuple[str, Transform] | None:
        """Say in which tensor of a file a parameter of ours is stored, and how.

        Args:
            name: the parameter's name in our model.
            gated: whether its feed-forward networks have a gate.

        Returns:
            The plain name of the tensor, and the transform; ``None`` if the family has none.
        """
        match = re.fullmatch(r"(?:body\.)?(?:(\w+coder)\.)?(?:stack\.blocks\.(\d+)\.)?(.+)", name)
        side, number, ours = match.groups() if match else ("", "", "")
        part, _, end = ours.rpartition(".")
        theirs = self.tensors.get(ours)
        if theirs is None and part in self.tensors:
            theirs = f"{self.tensors[part]}.{end.replace('gain', 'weight')}"
        if theirs is None:
            return None
        layout = self.transforms.get(theirs.removesuffix(f".{end}").rpartition(".")[-1], SAME)
        full = (self.block if number else "") + theirs
        last = 1 if side == "encoder" else 2  # T5 numbers the sublayers of a block
        return full.format(n=number, side=side, last=last, wi="wi_1" if gated else "wi"), layout


def _read_column(table: str, column: str) -> list[tuple[str, str]]:
    """Return the pairs of our names and theirs from the table that has this column."""
    part = next(part for part in table.strip().split("\n\n") if column in part.split())
    rows = [row.split() for row in part.splitlines()]
    i = rows[0].index(column)
    return [(row[0], row[i]) for row in rows[1:] if row[i] != "-"]


_PLAIN = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}

# What a file means that leaves a key out is what the presets say, with few exceptions.
FAMILIES = {
    "bert": Family(
        column="BERT",
        architectures=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
        prefix="bert.",
        block="encoder.layer.{n}.",
        base=PRESETS["bert-base"].config,
        activations=_PLAIN,
        copies={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
    "gpt2": Family(
        column="GPT-2",
        architectures=("GPT2LMHeadModel", "GPT2Model"),
        prefix="transformer.",
        block="h.{n}.",
        base=PRESETS["gpt2"].config,
        activations=_PLAIN,
        transforms={"c_attn": FUSED, "c_proj": TRANSPOSED, "c_fc": TRANSPOSED},
        copies={"lm_head.weight": "wte.weight"},
    ),
    "llama": Family(
        column="LLaMA",
        architectures=("LlamaForCausalLM",),
        prefix="model.",
        block="layers.{n}.",
        base=replace(
            PRESETS["llama-2-7b"].config, max_len=2048, norm_eps=1e-6, rope_pairing="split"
        ),
        activations={"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh"},
        transforms={"q_proj": ROTATED, "k_proj": ROTATED},
        copies={"lm_head.weight": "embed_tokens.weight"},
    ),
    # T5 also drops inside the feed-forward network and after the final norm; our models do not.
    "t5": Family(
        column="T5",
        architectures=("T5ForConditionalGeneration",),
        prefix="",
        block="{side}.block.{n}.",
        base=PRESETS["t5-small"].config,
        activations={"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"},
        copies={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        },
    ),
    "vit": Family(
        column="ViT",
        architectures=("ViTForImageClassification",),
        prefix="vit.",
        block="encoder.layer.{n}.",
        base=replace(PRESETS["vit-b-16"].config, dropout=0.0, norm_eps=1e-12),
        activations=_PLAIN,
        transforms={
            "cls_token": BATCHED,
            "position_embeddings": BATCHED,
            "projection": CONVOLUTION,
        },
    ),
}
