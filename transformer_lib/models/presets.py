"""The famous models, and how many parameters each must have."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from transformer_lib.core.checks import check_choice
from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import (
    CausalLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.preset_configs import (
    BASE,
    BERT,
    GEMMA2,
    GEMMA3,
    GPT2,
    LLAMA_2,
    LLAMA_3,
    LLAMA_31,
    LLAMA_32,
    MISTRAL,
    OLMO2,
    QWEN2,
    QWEN3,
    SMOLLM2,
    T5,
    VIT,
)


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


def _decoder(config: TransformerConfig, parameters: int, source: str) -> Preset:
    """A language model whose published weights hold so many parameters."""
    return Preset(
        build=CausalLM,
        config=config,
        parameters=parameters,
        published=f"{parameters:,}",
        source=source,
    )


PRESETS = {
    "transformer-base": Preset(
        build=Seq2SeqLM,
        config=BASE,
        parameters=63_082_496,
        published="65M",
        source="vaswani2017attention",
    ),
    "transformer-big": Preset(
        build=Seq2SeqLM,
        config=replace(BASE, d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
        parameters=214_245_376,
        published="213M",
        source="vaswani2017attention",
    ),
    "bert-base": Preset(
        build=partial(SequenceClassifier, n_classes=0),
        config=BERT,
        parameters=109_482_240,
        published="109,482,240",
        source="devlin2019bert",
    ),
    "gpt2": _decoder(
        GPT2,
        124_439_808,
        "radford2019language",
    ),
    "gpt2-medium": _decoder(
        replace(GPT2, d_model=1024, n_heads=16, n_layers=24),
        354_823_168,
        "radford2019language",
    ),
    "gpt2-large": _decoder(
        replace(GPT2, d_model=1280, n_heads=20, n_layers=36),
        774_030_080,
        "radford2019language",
    ),
    "gpt2-xl": _decoder(
        replace(GPT2, d_model=1600, n_heads=25, n_layers=48),
        1_557_611_200,
        "radford2019language",
    ),
    "gpt3-175b": Preset(
        build=CausalLM,
        config=replace(GPT2, max_len=2048, d_model=12_288, n_heads=96, n_layers=96),
        parameters=174_604_259_328,
        published="175B",
        source="brown2020language",
    ),
    "llama-2-7b": _decoder(
        LLAMA_2,
        6_738_415_616,
        "touvron2023llama2",
    ),
    "llama-3-8b": _decoder(
        LLAMA_3,
        8_030_261_248,
        "grattafiori2024llama",
    ),
    "llama-3-70b": _decoder(
        replace(LLAMA_3, d_model=8192, n_heads=64, d_ff=28_672, n_layers=80),
        70_553_706_496,
        "grattafiori2024llama",
    ),
    "llama-3.1-8b": _decoder(
        LLAMA_31,
        8_030_261_248,
        "grattafiori2024llama",
    ),
    "llama-3.2-1b": _decoder(
        replace(LLAMA_32, d_model=2048, n_heads=32, n_kv_heads=8, d_ff=8192, n_layers=16),
        1_235_814_400,
        "grattafiori2024llama",
    ),
    "llama-3.2-3b": _decoder(
        replace(LLAMA_32, d_model=3072, n_heads=24, n_kv_heads=8, d_ff=8192, n_layers=28),
        3_212_749_824,
        "grattafiori2024llama",
    ),
    "mistral-7b": _decoder(
        MISTRAL,
        7_248_023_552,
        "jiang2023mistral",
    ),
    "smollm2-135m": _decoder(
        replace(SMOLLM2, d_model=576, n_heads=9, n_kv_heads=3, d_ff=1536, n_layers=30),
        134_515_008,
        "allal2025smollm2",
    ),
    "smollm2-360m": _decoder(
        replace(SMOLLM2, d_model=960, n_heads=15, n_kv_heads=5, d_ff=2560, n_layers=32),
        361_821_120,
        "allal2025smollm2",
    ),
    "smollm2-1.7b": _decoder(
        replace(
            SMOLLM2,
            d_model=2048,
            n_heads=32,
            n_kv_heads=32,
            d_ff=8192,
            n_layers=24,
            rope_theta=130_000.0,
        ),
        1_711_376_384,
        "allal2025smollm2",
    ),
    "qwen2.5-0.5b": _decoder(
        replace(QWEN2, d_model=896, n_heads=14, n_kv_heads=2, d_ff=4864, n_layers=24),
        494_032_768,
        "yang2024qwen25",
    ),
    "qwen2.5-1.5b": _decoder(
        replace(QWEN2, d_model=1536, n_heads=12, n_kv_heads=2, d_ff=8960, n_layers=28),
        1_543_714_304,
        "yang2024qwen25",
    ),
    "qwen2.5-7b": _decoder(
        replace(
            QWEN2,
            d_model=3584,
            n_heads=28,
            n_kv_heads=4,
            d_ff=18944,
            n_layers=28,
            vocab_size=152_064,
            tie_embeddings=False,
        ),
        7_615_616_512,
        "yang2024qwen25",
    ),
    "qwen3-0.6b": _decoder(
        replace(QWEN3, d_model=1024, n_heads=16, n_kv_heads=8, d_ff=3072, n_layers=28),
        596_049_920,
        "yang2025qwen3",
    ),
    "qwen3-1.7b": _decoder(
        replace(QWEN3, d_model=2048, n_heads=16, n_kv_heads=8, d_ff=6144, n_layers=28),
        1_720_574_976,
        "yang2025qwen3",
    ),
    "qwen3-4b": _decoder(
        replace(QWEN3, d_model=2560, n_heads=32, n_kv_heads=8, d_ff=9728, n_layers=36),
        4_022_468_096,
        "yang2025qwen3",
    ),
    "qwen3-8b": _decoder(
        replace(
            QWEN3,
            d_model=4096,
            n_heads=32,
            n_kv_heads=8,
            d_ff=12288,
            n_layers=36,
            tie_embeddings=False,
        ),
        8_190_735_360,
        "yang2025qwen3",
    ),
    "gemma-2-2b": _decoder(
        replace(GEMMA2, d_model=2304, n_heads=8, n_kv_heads=4, d_ff=9216, n_layers=26),
        2_614_341_888,
        "gemma2024gemma2",
    ),
    "gemma-3-270m": _decoder(
        replace(GEMMA3, d_model=640, n_heads=4, n_kv_heads=1, d_ff=2048, n_layers=18),
        268_098_176,
        "gemma2025gemma3",
    ),
    "gemma-3-1b": _decoder(
        replace(GEMMA3, d_model=1152, n_heads=4, n_kv_heads=1, d_ff=6912, n_layers=26),
        999_885_952,
        "gemma2025gemma3",
    ),
    "olmo-2-1b": _decoder(
        replace(OLMO2, d_model=2048, n_heads=16, n_kv_heads=16, d_ff=8192, n_layers=16),
        1_484_916_736,
        "olmo2024olmo2",
    ),
    "olmo-2-7b": _decoder(
        OLMO2,
        7_298_617_344,
        "olmo2024olmo2",
    ),
    "t5-small": Preset(
        build=Seq2SeqLM,
        config=T5,
        parameters=60_506_624,
        published="60,506,624",
        source="raffel2020exploring",
    ),
    "vit-b-16": Preset(
        build=partial(VisionTransformer, image_size=224, patch_size=16),
        config=VIT,
        parameters=86_567_656,
        published="86,567,656",
        source="dosovitskiy2021image",
    ),
}
