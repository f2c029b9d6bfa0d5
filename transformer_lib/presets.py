"""The famous models, and how many parameters each must have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from transformer_lib.checks import check_choice
from transformer_lib.config import TransformerConfig
from transformer_lib.models import CausalLM, Seq2SeqLM, SequenceClassifier, VisionTransformer


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named model: how to build it, and what its authors say about its size.

    Args:
        build: makes the model from a configuration.
        config: the configuration.
        parameters: the exact number of parameters.
        published: the size as its authors give it, or as the published weights have it.
        source: key of the work in the book's bibliography.

    Example:
        >>> PRESETS["gpt2"].parameters
        124439808
    """

    build: Callable[[TransformerConfig], nn.Module]
    config: TransformerConfig
    parameters: int
    published: str
    source: str


def build_preset(name: str, *, device: torch.device | str = "cpu") -> nn.Module:
    """Build a famous model with fresh weights.

    Args:
        name: a key of ``PRESETS``.
        device: where to put it; ``"meta"`` takes no memory, which suits counting and tracing.
            (To fill a model, build it where it shall run: PyTorch unties weights on the way.)

    Returns:
        The model.

    Raises:
        ValueError: if there is no preset of that name.

    Example:
        >>> model = build_preset("llama-3-70b", device="meta")
        >>> sum(p.numel() for p in model.parameters())
        70553706496
    """
    check_choice("name", name, tuple(PRESETS))
    preset = PRESETS[name]
    with torch.device(device):
        return preset.build(preset.config)


# What these configurations leave out, since it changes no count. Of training: how each model draws
# its first weights (only GPT-2 divides residual writes by the root of their number; T5 draws
# embeddings with deviation 1), and dropout inside the feed-forward network (T5, ViT). Of the model
# itself: every second layer of GPT-3 has sparse attention; here all are dense.

_BASE = TransformerConfig()  # the defaults are the base model of 2017

_BERT = TransformerConfig(
    vocab_size=30_522,
    d_model=768,
    n_heads=12,
    n_layers=12,
    attention_dropout=0.1,
    position="learned",
    norm_eps=1e-12,
    activation="gelu",
    scale_embeddings=False,
    norm_embeddings=True,
    n_segments=2,
    init="gpt2",
)

_GPT2 = TransformerConfig(
    vocab_size=50_257,
    max_len=1024,
    d_model=768,
    n_heads=12,
    n_layers=12,
    attention_dropout=0.1,
    position="learned",
    norm_position="pre",
    activation="gelu_tanh",
    scale_embeddings=False,
    init="gpt2",
)

_LLAMA_2 = TransformerConfig(
    vocab_size=32_000,
    max_len=4096,
    d_model=4096,
    n_heads=32,
    d_ff=11_008,
    n_layers=32,
    dropout=0.0,
    position="rope",
    norm="rms",
    norm_position="pre",
    activation="swiglu",
    bias=False,
    scale_embeddings=False,
    tie_embeddings=False,
    init="gpt2",
)

_LLAMA_3 = replace(
    _LLAMA_2, vocab_size=128_256, max_len=8192, n_kv_heads=8, d_ff=14_336, rope_theta=500_000.0
)

_T5 = TransformerConfig(
    vocab_size=32_128,
    attention_dropout=0.1,
    position="t5",
    norm="rms",
    norm_position="pre",
    norm_eps=1e-6,
    bias=False,
    scale_embeddings=False,
    attention_scale=1.0,  # T5 folds the scale into how it draws its weights
    logit_scale=512**-0.5,
)

_VIT = TransformerConfig(
    vocab_size=1,  # no text
    max_len=14 * 14 + 1,  # the patches and the class token
    d_model=768,
    n_heads=12,
    n_layers=12,
    position="learned",
    norm_position="pre",
    norm_eps=1e-6,
    activation="gelu",
    init="gpt2",
)

PRESETS = {
    "transformer-base": Preset(
        build=Seq2SeqLM,
        config=_BASE,
        parameters=63_082_496,
        published="65M",
        source="vaswani2017attention",
    ),
    "transformer-big": Preset(
        build=Seq2SeqLM,
        config=replace(_BASE, d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
        parameters=214_245_376,
        published="213M",
        source="vaswani2017attention",
    ),
    "bert-base": Preset(
        build=partial(SequenceClassifier, n_classes=0),
        config=_BERT,
        parameters=109_482_240,
        published="109,482,240",
        source="devlin2019bert",
    ),
    "gpt2": Preset(
        build=CausalLM,
        config=_GPT2,
        parameters=124_439_808,
        published="124,439,808",
        source="radford2019language",
    ),
    "gpt2-medium": Preset(
        build=CausalLM,
        config=replace(_GPT2, d_model=1024, n_heads=16, n_layers=24),
        parameters=354_823_168,
        published="354,823,168",
        source="radford2019language",
    ),
    "gpt2-large": Preset(
        build=CausalLM,
        config=replace(_GPT2, d_model=1280, n_heads=20, n_layers=36),
        parameters=774_030_080,
        published="774,030,080",
        source="radford2019language",
    ),
    "gpt2-xl": Preset(
        build=CausalLM,
        config=replace(_GPT2, d_model=1600, n_heads=25, n_layers=48),
        parameters=1_557_611_200,
        published="1,557,611,200",
        source="radford2019language",
    ),
    "gpt3-175b": Preset(
        build=CausalLM,
        config=replace(_GPT2, max_len=2048, d_model=12_288, n_heads=96, n_layers=96),
        parameters=174_604_259_328,
        published="175B",
        source="brown2020language",
    ),
    "llama-2-7b": Preset(
        build=CausalLM,
        config=_LLAMA_2,
        parameters=6_738_415_616,
        published="6,738,415,616",
        source="touvron2023llama2",
    ),
    "llama-3-8b": Preset(
        build=CausalLM,
        config=_LLAMA_3,
        parameters=8_030_261_248,
        published="8,030,261,248",
        source="grattafiori2024llama",
    ),
    "llama-3-70b": Preset(
        build=CausalLM,
        config=replace(_LLAMA_3, d_model=8192, n_heads=64, d_ff=28_672, n_layers=80),
        parameters=70_553_706_496,
        published="70,553,706,496",
        source="grattafiori2024llama",
    ),
    "t5-small": Preset(
        build=Seq2SeqLM,
        config=_T5,
        parameters=60_506_624,
        published="60,506,624",
        source="raffel2020exploring",
    ),
    "vit-b-16": Preset(
        build=partial(VisionTransformer, image_size=224, patch_size=16),
        config=_VIT,
        parameters=86_567_656,
        published="86,567,656",
        source="dosovitskiy2021image",
    ),
}
