"""Run a model and watch: its steps, attention weights, hidden states, influence."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.models.blocks import Block
from transformer_lib.tracing.recorder import Recorder
from transformer_lib.tracing.report import Trace


def trace(model: nn.Module, *inputs: object, **options: object) -> Trace:
    """Run a model once and record every step.

    The model runs in eval mode, without gradients, and with the readable path of attention; it is
    left as it was. On the ``meta`` device even the largest model takes no memory. There, tensors
    have no values, so each expert of a mixture gets an equal share of the tokens.

    Args:
        model: any model or part of this library; others are traced too, with fewer words.
        *inputs: what its forward pass takes. A cache among them is filled.
        **options: what its forward pass takes by name.

    Returns:
        The steps.

    Example:
        >>> attend = MultiHeadAttention(d_model=8, n_heads=2)
        >>> for step in list(trace(attend, torch.zeros(1, 3, 8)))[:3]:
        ...     print(f"{step.what}: {step.inputs[0]} -> {step.output}")
        project to queries: B T D -> B T H*Dk
        split heads: B T H*Dk -> B T H Dk
        swap positions and heads: B T H Dk -> B H T Dk
    """
    recorder = Recorder(model)
    with _undisturbed(model) as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(recorder.enter, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(recorder.leave))
            if isinstance(module, MultiHeadAttention):
                module.fused = False
        with recorder:
            model(*inputs, **options)
    return Trace(type(model).__name__, tuple(recorder.steps), recorder.sizes)


def attention_maps(
    model: nn.Module, *inputs: object, **options: object
) -> dict[str, Float[Tensor, "B H T S"]]:
    """Run a model once and return the attention weights of every layer.

    Args:
        model: any model or part of this library, which is left as it was.
        *inputs: what its forward pass takes.
        **options: what its forward pass takes by name.

    Returns:
        For the path of each ``MultiHeadAttention``, in the order in which they ran, its weights
        ``(B, H, T, S)``.

    Raises:
        ValueError: if a cache is among the inputs.

    Example:
        >>> from transformer_lib import TransformerConfig
        >>> block = Block(TransformerConfig(d_model=8, n_heads=2))
        >>> maps = attention_maps(block, torch.zeros(1, 3, 8), causal=True)
        >>> maps["attention"][0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    maps: dict[str, Tensor] = {}

    def keep(
        path: str,
        attend: MultiHeadAttention,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        _: Tensor,
    ) -> None:
        options = {**kwargs}
        if options.pop("cache", None) is not None:
            raise ValueError("attention maps are of whole sequences: leave the cache out")
        with_weights: Callable[..., tuple[Tensor, Tensor]] = attend.with_weights
        maps[path] = with_weights(*args, **options)[1]

    _run_with_hooks(model, MultiHeadAttention, keep, inputs, options)
    return maps


def hidden_states(
    model: nn.Module, *inputs: object, **options: object
) -> dict[str, Float[Tensor, "B T D"]]:
    """Run a model once and return the residual stream before the first and after every block.

    Args:
        model: any model or part of this library, which is left as it was.
        *inputs: what its forward pass takes.
        **options: what its forward pass takes by name.

    Returns:
        The stream ``(B, T, D)``: after the embedding as ``"...stack.input"``, after each block by
        the block's path, in the order in which they ran. The final norm is not applied.

    Example:
        >>> from transformer_lib import Stack, TransformerConfig
        >>> stack = Stack(
        ...     TransformerConfig(d_model=8, n_heads=2, n_layers=2),
        ...     causal=True,
        ... )
        >>> list(hidden_states(stack, torch.zeros(1, 3, 8)))
        ['input', 'blocks.0', 'blocks.1']
    """
    states: dict[str, Tensor] = {}

    def keep(
        path: str,
        _: Block,
        args: tuple[Tensor, *tuple[object, ...]],
        __: dict[str, object],
        output: Tensor,
    ) -> None:
        states.setdefault(f"{path.rpartition('blocks.')[0]}input", args[0])
        states[path] = output

    _run_with_hooks(model, Block, keep, inputs, options)
    return states


def influence(
    function: Callable[[Tensor], Tensor], x: Float[Tensor, "1 T D"]
) -> Float[Tensor, "T_out T"]:
    """Measure how strongly each input position moves each output position.

    A fixed vector is added to each position in turn, and the largest change of every output
    position is recorded. A function that works on each token alone gives a diagonal matrix; one
    that mixes tokens gives entries off the diagonal; a causal one gives a lower triangle.

    Args:
        function: maps ``(1, T, D)`` to ``(1, T_out, ...)``; a module in eval mode, for example.
        x: the input around which to measure.

    Returns:
        Entry ``[i, j]`` is the largest absolute change in output ``i`` when input ``j`` changes.

    Raises:
        ValueError: if ``x`` is not one sequence of vectors.

    Example:
        >>> influence(lambda x: 2 * x, torch.zeros(1, 3, 4))
        tensor([[2., 0., 0.],
                [0., 2., 0.],
                [0., 0., 2.]])
    """
    if x.ndim != 3 or x.shape[0] != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected one sequence, (1, T, D)")
    # Not the same for all features, and not 0 in the mean: LayerNorm would not notice the one, and
    # what mixes the means of tokens not the other.
    nudge = torch.linspace(-0.5, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    nudges = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)[:, :, None] * nudge  # (T, T, D)
    with torch.no_grad():
        changes = torch.cat([function(x + one) - function(x) for one in nudges])  # (T, T_out, ...)
    return changes.abs().flatten(start_dim=2).amax(dim=-1).T


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[ExitStack]:
    """Eval mode, no gradients, and a place for hooks; afterwards every attribute is as it was."""
    # All attributes, not only the mode: a forward pass may set some, such as a balance loss.
    before = {module: dict(vars(module)) for module in model.modules()}
    try:
        with torch.no_grad(), ExitStack() as hooks:
            model.eval()
            yield hooks
    finally:
        for module, attributes in before.items():
            vars(module).clear()
            vars(module).update(attributes)


def _run_with_hooks(
    model: nn.Module,
    kind: type[nn.Module],
    hook: Callable[..., None],
    inputs: tuple[object, ...],
    options: dict[str, object],
) -> None:
    """Run a model; after each module of a kind, call the hook with its path, input and output."""
    with _undisturbed(model) as hooks:
        for path, module in model.named_modules():
            if isinstance(module, kind):
                handle = module.register_forward_hook(partial(hook, path), with_kwargs=True)
                hooks.enter_context(handle)
        model(*inputs, **options)
