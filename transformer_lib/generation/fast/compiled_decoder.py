"""Decoding steps through torch.compile and, on a GPU, as a CUDA graph."""

from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib.core.checks import check_whole
from transformer_lib.core.fingerprint import Fingerprint
from transformer_lib.generation.decoding_step import DecodingStep, LanguageModel
from transformer_lib.generation.fast.cuda_graph import (
    RecordedBatch,
    RecordedSteps,
    StepRunner,
    run_joined,
)
from transformer_lib.generation.fast_interfaces import FastDecoder
from transformer_lib.generation.shared_prefix import SharedPrefix

_CompilerOptions = dict[str, str | int | bool | Callable[..., object]]
_FOR_ONE_ROW: _CompilerOptions = {
    "coordinate_descent_tuning": True,
    # Else the activation would be computed anew for every row of the next product's weights.
    "realize_opcount_threshold": 4,
}


class CompiledDecoder(FastDecoder):
    """A language model whose steps of one token are compiled and, on a GPU, recorded.

    A step of a small model is hundreds of tiny kernels, and to launch them one by one takes longer
    than to run them. A recording (a CUDA graph) is launched at once. It has fixed shapes and
    addresses, so the cache is static. Use it in the place of the model: ``generate(fast, ...)``.
    The first call for a batch of some shape compiles; later ones replay.

    Weights that change in place (an optimizer's step, ``load_state_dict``) are seen at once. If
    parts were exchanged, moved or have other settings, the next batch compiles anew. While there is
    a hook or a replaced ``forward``, steps are neither compiled nor replayed.

    Args:
        model: a ``CausalLM`` or ``Seq2SeqLM``. It may be trained on; one batch at a time.
        max_len: the longest sequence, prompt included.

    Example:
        >>> from transformer_lib import CausalLM, TransformerConfig
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> model = CausalLM(config)
        >>> CompiledDecoder(model, max_len=32).config.d_model
        8
    """

    def __init__(self, model: LanguageModel, max_len: int) -> None:
        super().__init__(model, max_len)
        check_whole("max_len", max_len)
        most = model.config.max_len
        if max_len > most:
            raise ValueError(f"max_len={max_len} must be at most that of the model, {most}")
        self._recorded: RecordedSteps | None = None  # for batches of one shape
        self._key: list[object] = []  # their shape

    def begin(
        self,
        prompt: Int[Tensor, "B T"],
        max_new_tokens: int,
        *,
        prompt_mask: Bool[Tensor, "..."] | None = None,
        source: Int[Tensor, "B S"] | None = None,
        source_mask: Bool[Tensor, "B 1 1 S"] | None = None,
        prefill_chunk: int | None = None,
        prefix: SharedPrefix | None = None,
    ) -> RecordedBatch:
        """Make ready for a batch.

        Args:
            prompt: what the batch starts with, ``(B, T)``.
            max_new_tokens: how many tokens will be asked for.
            prompt_mask: where the prompt has real tokens; see ``DecodingStep``.
            source: what a ``Seq2SeqLM`` reads, ``(B, S)``.
            source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
            prefill_chunk: how many tokens of the prompt are read at once.
            prefix: what was made of the tokens with which every row begins.

        Returns:
            A function from all tokens so far, ``(B, T)``, to the scores of the next, ``(B, V)``.
        """
        shapes = [None if x is None else x.shape for x in (source, source_mask)]
        key = [len(prompt), prompt.device, prompt_mask is None, shapes]
        steps = self._recorded
        if steps is None or self._key != key or not steps.fingerprint.holds(settings=True):
            steps = RecordedSteps(self.model, self.max_len, prompt.device, _compiled)
        step = DecodingStep(
            self.model,
            prompt,
            max_new_tokens,
            prompt_mask=prompt_mask,
            source=source,
            source_mask=source_mask,
            cache=steps.cache.for_prompt(),
            prefill_chunk=prefill_chunk,
            prefix=prefix,
        )
        self._recorded, self._key = steps, key
        return RecordedBatch(steps, step)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_recorded": None, "_key": []}  # a copy records for itself


def _compiled(step: DecodingStep, token: Int[Tensor, "B 1"]) -> StepRunner:
    """Compile a step that reads one token of each row; the model of the step is a copy."""
    assert step.cache is not None, "recorded steps have one"
    if not token.is_cuda:
        read = MethodType(_with_own_code(DecodingStep.read), step)
        return StepRunner(partial(torch.compile(read), token, step.cache.max_len))
    if len(token) > 1:
        _compile_blocks(step)
        return run_joined(step, token)
    # For a single row, a product reads each weight once: memory sets its speed. With these
    # options the compiler writes it itself, fused with all that comes before and after.
    _set_biases_apart(step.model)
    _compile_blocks(step, _FOR_ONE_ROW)
    return StepRunner(partial(step.read, token, step.cache.max_len))


def _with_own_code(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Copy a function so that what it was compiled to is kept apart from other copies.

    The compiler counts how often a piece of code was compiled, and gives up after a few times. Here
    every batch size is compiled anew, and nothing of it is used again for another.
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__,
        function.__defaults__, function.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _compile_blocks(step: DecodingStep, options: _CompilerOptions | None = None) -> None:
    """Compile the blocks of a decoder; the Python between them is not in a recording.

    Weights are inputs of what the compiler makes of ``Block.forward``. So it compiles once, for the
    first block, and the others of the same shapes use that.
    """
    for block in step.decoder.stack.blocks:
        block.compile(options=options)


def _set_biases_apart(model: LanguageModel) -> None:
    """Let linear layers add their biases after the product, which the compiler can then take over.

    Product and bias in one are a call of a library, which leaves nothing to the compiler.
    """
    for part in list(model.modules()):
        for name, child in part.named_children():
            if (
                type(child) is nn.Linear
                and child.bias is not None
                and Fingerprint([child]).is_plain
            ):
                setattr(part, name, _ProductAndBias(child).eval())


class _ProductAndBias(nn.Module):
    """A linear layer in two steps, with the weights of another one."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        return F.linear(x, self.weight) + self.bias
