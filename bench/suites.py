"""The cases of each device, with their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from bench.cases import Case, Encoding, Generation, Training
from bench.races import Competitor
from transformer_lib.presets import PRESETS

Suite = dict[str, Callable[[], Case]]  # a case is built when its turn comes

_GPT = replace(PRESETS["gpt2"].config, dropout=0.0, attention_dropout=0.0)
_BERT = replace(PRESETS["bert-base"].config, dropout=0.0, attention_dropout=0.0)
_TINY: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "max_len": 32,
}

COMPILED = "ours, compiled"


def cpu_suite(*, tiny: bool = False) -> Suite:
    """Small models, as a laptop trains them; the encoder has the sizes of all-MiniLM-L6-v2."""
    small: dict[str, Any] = {
        "vocab_size": 1_024,
        "d_model": 256,
        "n_heads": 4,
        "n_layers": 4,
        "max_len": 256,
    }
    mini: dict[str, Any] = {"d_model": 384, "n_heads": 12, "n_layers": 6}
    gpt = replace(_GPT, **(_TINY if tiny else small))
    bert = replace(_BERT, **(_TINY if tiny else mini))
    batch, length, prompt, new = (2, 8, 4, 4) if tiny else (8, 128, 32, 128)
    lengths = tuple(range(2, 9, 2)) if tiny else tuple(range(8, 129, 8))  # 16 of them, mean 68
    training = Training(gpt, batch, length, n_words=gpt.vocab_size)
    suite: Suite = {"training": partial(_training_on_cpu, training)}
    for size in (1, 8):
        generation = Generation(gpt, size, prompt, new)
        suite[f"generation-{size}"] = partial(_generation_on_cpu, generation, compiled=not tiny)
    suite["encoder"] = partial(_encoder, Encoding(bert, lengths))
    return suite


def _training_on_cpu(training: Training) -> Case:
    competitors = (
        Competitor("ours", training.ours),
        Competitor("torch.nn", training.torch_nn),
        Competitor("transformers", training.transformers),
    )
    return training.case("Training step of a small GPT", competitors)


def _generation_on_cpu(generation: Generation, *, compiled: bool) -> Case:
    competitors = [
        Competitor("ours", generation.ours),
        Competitor("transformers", generation.transformers),
    ]
    if compiled:
        competitors.append(Competitor(COMPILED, generation.compiled, compiled=True))
    title = f"Greedy generation with a cache, batch {generation.batch_size}"
    return generation.case(title, competitors)


def _encoder(encoding: Encoding) -> Case:
    competitors = (
        Competitor("ours", encoding.ours),
        Competitor("torch.nn", partial(encoding.torch_nn, nested=False)),
        Competitor("torch.nn, nested", partial(encoding.torch_nn, nested=True)),
        Competitor("transformers", encoding.transformers),
    )
    return encoding.case("Encoder forward, sequences of many lengths", competitors)


def cuda_suite(
    *,
    tiny: bool = False,
    device: str = "cuda",
    compiler: Callable[[Any], Any] = torch.compile,
) -> Suite:
    """GPT-2 with 124 million parameters: what each way of training and generating is worth.

    The two training cases share two of their steps, which are compiled only once.

    Args:
        tiny: whether to try the code out with sizes that need no GPU.
        device: where it runs.
        compiler: what makes a module fast.

    Returns:
        The cases by name.
    """
    padded = 64 if tiny else 50_304
    gpt = replace(_GPT, **_TINY) if tiny else replace(_GPT, vocab_size=padded)
    batch, length, prompt, new = (2, 8, 4, 4) if tiny else (32, 1024, 32, 256)
    n_words = 63 if tiny else 50_257
    training = Training(gpt, batch, length, device, n_words, torch.bfloat16, compiler)
    ours = Competitor("ours", training.ours)
    compiled = Competitor(COMPILED, partial(training.ours, compiled=True), compiled=True)
    suite: Suite = {
        "training": partial(_training_on_gpu, training, ours, compiled),
        "training-ablation": partial(_ablation, training, ours, compiled),
    }
    for size in (1, 4 if tiny else 64):
        generation = Generation(gpt, size, prompt, new, device, torch.bfloat16)
        suite[f"generation-{size}"] = partial(_generation_on_gpu, generation)
    exact = Generation(gpt, 2 if tiny else 8, prompt, new, device, torch.float32)
    suite["generation-float32"] = partial(_exact_generation, exact)
    return suite


def _training_on_gpu(training: Training, ours: Competitor, compiled: Competitor) -> Case:
    competitors = (
        compiled,
        ours,
        Competitor("torch.nn", training.torch_nn),
        Competitor("transformers", training.transformers),
        Competitor("torch.nn, compiled", partial(training.torch_nn, compiled=True), True),
        Competitor("transformers, compiled", partial(training.transformers, compiled=True), True),
    )
    case = training.case("Training step of GPT-2 (124M)", competitors)
    return replace(case, keeps_compiled=True)


def _ablation(training: Training, ours: Competitor, compiled: Competitor) -> Case:
    """Start with a plain step, add one thing after the other, end with what `train` does."""
    n = training.n_words
    without: list[tuple[str, dict[str, Any]]] = [
        ("plain", {"fused_attention": False, "fused_optimizer": False, "all_logits": True}),
        ("+ fused attention", {"fused_optimizer": False, "all_logits": True}),
        ("+ fused AdamW", {"all_logits": True}),
        ("+ logits in parts", {}),
    ]
    steps = [Competitor(name, partial(training.ours, vocab_size=n, **off)) for name, off in without]
    last = (("+ padded vocabulary", ours), ("+ torch.compile", compiled))
    shared = (replace(step, name=name) for name, step in last)
    return training.case("What each technique buys", [*steps, *shared])


def _generation_on_gpu(generation: Generation) -> Case:
    static = partial(generation.transformers, cache_implementation="static")
    competitors = (
        Competitor(COMPILED, generation.compiled, compiled=True),
        Competitor("ours", generation.ours),
        Competitor("ours, no cache", partial(generation.ours, use_cache=False)),
        Competitor("transformers", generation.transformers),
        Competitor("transformers, static", static, compiled=True),
    )
    title = f"Greedy generation, GPT-2 (124M), batch {generation.batch_size}"
    return generation.case(title, competitors)


def _exact_generation(generation: Generation) -> Case:
    competitors = (
        Competitor("ours", generation.ours),
        Competitor(COMPILED, generation.compiled, compiled=True),
    )
    return generation.case("Compiled and eager generation in float32", competitors)
