"""The cases of each device, with their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from bench.cases import LIMIT, Case
from bench.encoding import Encoding
from bench.generation import NO_CACHE, Generation
from bench.grouped import GroupedQueries
from bench.long_contexts import LongPrompt, Models, Steps
from bench.races import Competitor
from bench.training import Training
from transformer_lib import PRESETS

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
_SMALL_LLAMA: dict[str, Any] = {
    "vocab_size": 1_024,
    "d_model": 256,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_ff": 768,
    "n_layers": 4,
    "max_len": 2_560,
}
_TINY_LLAMA = _SMALL_LLAMA | {"vocab_size": 64, "d_model": 128, "d_ff": 192, "n_layers": 2}

COMPILED = "ours, compiled"
PLAIN = "plain GPT"  # as nanoGPT builds it


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
    longest, n_rows = (8, 4) if tiny else (128, 16)
    training = Training(gpt, batch, length, n_words=gpt.vocab_size)
    suite: Suite = {"training": partial(_training_on_cpu, training)}
    for size in (1, 8):
        generation = Generation(gpt, size, prompt, new)
        suite[f"generation-{size}"] = partial(_generation_on_cpu, generation, compiled=not tiny)
    half, all_lengths = longest // 2, spread(longest // n_rows, longest, n_rows)
    suite["encoder"] = partial(_encoder, Encoding(bert, spread(half, longest, n_rows)))
    suite["encoder-short"] = partial(_encoder, Encoding(bert, all_lengths))
    grouped = GroupedQueries(4, 2, 4, n_keys=8) if tiny else GroupedQueries(32, 8, 64, n_keys=4_096)
    suite["gqa"] = partial(grouped.case, whole_layer=True)
    suite["gqa-attention"] = partial(grouped.case, whole_layer=False)
    return suite


def spread(shortest: int, longest: int, n: int) -> tuple[int, ...]:
    """Lengths from the shortest to the longest, equally far apart."""
    return tuple(round(shortest + i * (longest - shortest) / (n - 1)) for i in range(n))


def _training_on_cpu(training: Training) -> Case:
    competitors = (
        Competitor("ours", training.ours),
        Competitor("torch.nn", training.torch_nn),
        Competitor("transformers", training.transformers),
        Competitor(PLAIN, training.plain),
    )
    return training.case("Training step of a small GPT", competitors)


def _generation_on_cpu(generation: Generation, *, compiled: bool) -> Case:
    ours = [Competitor("ours", generation.ours)]
    if compiled:
        ours.append(Competitor(COMPILED, generation.compiled, compiled=True))
    competitors = [
        *ours,
        Competitor("transformers", generation.transformers),
        Competitor(f"{PLAIN}, sliced cache", partial(generation.plain, use_cache=True)),
    ]
    if generation.batch_size == 1:  # for several rows it takes half a minute, again and again
        plain = partial(generation.plain, use_cache=False)
        competitors.append(Competitor(f"{PLAIN}, no cache", plain))
    title = f"Greedy generation, small GPT, batch {generation.batch_size}"
    return generation.case(title, competitors)


def _encoder(encoding: Encoding) -> Case:
    competitors = (
        Competitor("ours", encoding.ours),
        Competitor("ours, padding kept", encoding.padded),
        Competitor("torch.nn", partial(encoding.torch_nn, nested=False)),
        Competitor("torch.nn, nested", partial(encoding.torch_nn, nested=True)),
        Competitor("transformers", encoding.transformers),
    )
    low, high = min(encoding.lengths), max(encoding.lengths)
    return encoding.case(f"Encoder forward, sequences of {low} to {high} tokens", competitors)


def cuda_suite(
    *,
    tiny: bool = False,
    device: str = "cuda",
    compiler: Callable[[Any], Any] = torch.compile,
) -> Suite:
    """GPT-2 with 124 million parameters: what each way of training and generating is worth.

    The encoder has the sizes of BERT-base. The two training cases share two of their steps, which
    are compiled only once. A compiled `transformers` does not take part in training: to compile it
    takes longer than all the rest of that case.

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
    bert = replace(_BERT, **_TINY) if tiny else _BERT
    lengths = spread(4, 8, 4) if tiny else spread(256, 512, 64)
    suite["encoder"] = partial(_encoder, Encoding(bert, lengths, device, torch.bfloat16))
    exact = Generation(gpt, 2 if tiny else 8, prompt, new, device, torch.float32)
    suite["generation-float32"] = partial(_exact_generation, exact)
    return suite


def _training_on_gpu(training: Training, ours: Competitor, compiled: Competitor) -> Case:
    # Ours come first, here and below: whoever does so pays for kernels that are loaded on the way.
    competitors = (
        ours,
        compiled,
        Competitor(PLAIN, training.plain),
        Competitor("torch.nn", training.torch_nn),
        Competitor("transformers", training.transformers),
        Competitor(f"{PLAIN}, compiled", partial(training.plain, compiled=True), compiled=True),
        Competitor("torch.nn, compiled", partial(training.torch_nn, compiled=True), compiled=True),
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
        *_ours_on_gpu(generation),
        Competitor(f"{PLAIN}, no cache", partial(generation.plain, use_cache=False)),
        Competitor(f"{PLAIN}, sliced cache", partial(generation.plain, use_cache=True)),
        Competitor("transformers", generation.transformers),
        Competitor("transformers, static", static, compiled=True),
    )
    title = f"Greedy generation, GPT-2 (124M), batch {generation.batch_size}"
    return generation.case(title, competitors)


def _exact_generation(generation: Generation) -> Case:
    title = "Four ways to generate the same text in float32"
    return generation.case(title, _ours_on_gpu(generation))


def _ours_on_gpu(generation: Generation) -> list[Competitor]:
    """All ways to generate with the library: the first one is what `generate` does by itself."""
    return [
        Competitor("ours", generation.ours),
        Competitor(COMPILED, generation.compiled, compiled=True),
        Competitor("ours, not recorded", generation.not_recorded),
        Competitor(NO_CACHE, partial(generation.ours, use_cache=False)),
    ]


def long_suite(device: str, *, tiny: bool = False) -> Suite:
    """Llama 3 with long texts on a GPU: 8 billion parameters, for the long prompt 1 billion.

    On a CPU, and to try the code out, a small model of its kind takes their place.

    Args:
        device: where it runs.
        tiny: whether to try the code out with toy sizes.

    Returns:
        The cases by name.
    """
    is_large = device == "cuda" and not tiny
    what, small = ("a small Llama", _TINY_LLAMA if tiny else _SMALL_LLAMA)
    contexts, many, prompt, chunks = (64, 512, 2_048), (4, 512), 2_048, (256, 1_024)
    new = (32, 96)
    if tiny:
        contexts, many, prompt, chunks, new = (4, 8, 16), (2, 8), 16, (4, 8), (2, 6)
    llama = replace(PRESETS["llama-3-8b"].config, **small)
    reader = llama
    if is_large:
        contexts, many = (64, 4_096, 16_384), (16, 4_096)
        prompt, chunks = 100_000, (2_048, 8_192)
        what, llama = "Llama-3-8B", replace(PRESETS["llama-3-8b"].config, max_len=16_480)
        reader = PRESETS["llama-3.2-1b"].config
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    models, suite = Models(llama, device, dtype), Suite()
    for context in contexts:
        suite[f"step-{context}"] = partial(_steps, what, Steps(models, context, 1, *new))
    batch, context = many
    steps = Steps(models, context, batch, *new)
    suite[f"step-{context}-batch-{batch}"] = partial(_steps, what, steps)
    for bits in (8, 4):
        steps = Steps(replace(models, bits=bits), contexts[0], 1, *new)
        suite[f"step-{contexts[0]}-int{bits}"] = partial(_steps, what, steps)
    what = "Llama-3.2-1B" if is_large else what
    reading = LongPrompt(Models(reader, device, dtype), prompt)
    suite[f"prompt-{prompt}"] = partial(_long_prompt, what, reading, chunks)
    return suite


def _steps(what: str, steps: Steps) -> Case:
    competitors = [
        Competitor("ours", steps.ours),
        Competitor(COMPILED, steps.compiled, compiled=True),
    ]
    if steps.models.bits is None:
        competitors.append(Competitor("transformers", steps.transformers))
    title = f"{steps.n_steps} steps of {what} after {steps.context:,} tokens"
    title += f", batch {steps.batch_size}"
    if steps.models.bits is not None:
        title += f", {steps.models.bits} bits"
    return steps.case(title, [*competitors, Competitor(LIMIT, steps.limit)])


def _long_prompt(what: str, reading: LongPrompt, chunks: tuple[int, ...]) -> Case:
    competitors = (
        Competitor("ours", reading.ours),
        *(Competitor(f"ours, chunks of {n:,}", partial(reading.ours, n)) for n in chunks),
        Competitor("transformers", reading.transformers),
    )
    return reading.case(f"{what} reads a prompt of {reading.length:,} tokens", competitors)
