"""Distributed training (DDP, FSDP): several processes that share one run."""

import atexit
import math
import os
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from transformer_lib.core.devices import devices_here
from transformer_lib.models.blocks import Block
from transformer_lib.models.saving import Tensors, check_tensors, without_copies
from transformer_lib.training.data import IGNORE, Batch

# What an optimizer knows of each parameter, such as ``{"bias": {"step": 3, "exp_avg": ...}}``.
OptimizerState = dict[str, dict[str, object]]

Content = TypeVar("Content")


def rank_and_world() -> tuple[int, int]:
    """Say which process this is, and how many there are.

    Returns:
        Its number, counted from 0, and the number of all.

    Example:
        >>> rank_and_world()
        (0, 1)
    """
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def choose_device(wanted: str | torch.device | None) -> torch.device:
    """Choose where to compute, and join the other processes if ``torchrun`` has started any.

    Args:
        wanted: a device; ``None`` for the fastest one that is there.

    Returns:
        The device.

    Raises:
        ValueError: if the environment says that there are several processes, and this one has not
            joined them: each would train for itself and overwrite what the others write.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
        # Not before: evaluate and further runs share the work too. Who joined otherwise, leaves.
        atexit.register(_leave_processes)
    if not dist.is_initialized():
        _check_alone()
    return torch.device(devices_here()[0] if wanted is None else wanted)


def _check_alone() -> None:
    """Refuse to train alone where there are others; a rank alone says nothing: pods have one."""
    world = os.environ.get("WORLD_SIZE", "")
    if world.isdigit() and int(world) > 1:
        how = "start it with torchrun, or unset WORLD_SIZE to train alone"
        raise ValueError(f"WORLD_SIZE={world}, but this process has not joined the others: {how}")


def _leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Add the tensors that all processes give, in place.

    Args:
        tensor: on the device where this process computes.

    Returns:
        The sum, the same everywhere.

    Example:
        >>> sum_over_processes(torch.tensor(3))
        tensor(3)
    """
    if rank_and_world()[1] > 1:
        dist.all_reduce(tensor)
    return tensor


def own_rows(batch: Batch, rank: int, world: int, device: torch.device) -> Batch:
    """Take this process' rows of a batch, every ``world``-th; bring them to its device.

    Where rows run out, a process gets one again whose targets do not count: all must do the same
    number of passes.

    Args:
        batch: the whole batch, with ``targets``.
        rank: which process this is.
        world: how many there are.
        device: where the rows shall be.

    Returns:
        The rows. What has one row for all of them stays as it is.

    Example:
        >>> batch = {"targets": torch.tensor([10, 11, 12])}
        >>> [
        ...     own_rows(batch, rank, 2, torch.device("cpu"))[
        ...         "targets"
        ...     ].tolist()
        ...     for rank in (0, 1)
        ... ]
        [[10, 12], [11, -100]]
    """
    if world > 1:
        # A batch counts its examples in the first dimension; it is 1 for what all of them share.
        n_rows = len(batch["targets"])
        rows = torch.arange(rank, math.ceil(n_rows / world) * world, world)
        batch = {
            name: tensor[rows % n_rows] if len(tensor) == n_rows else tensor
            for name, tensor in batch.items()
        }
        batch["targets"][rows >= n_rows] = IGNORE
    if device.type == "cuda":  # from pinned memory, copies go on while the GPU computes
        batch = {name: t if t.is_cuda else t.pin_memory() for name, t in batch.items()}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def spread(objective: nn.Module, device: torch.device, *, sharded: bool) -> nn.Module:
    """Let several processes share the work, by PyTorch's own means.

    Args:
        objective: what is trained, with the model in it.
        device: where this process computes.
        sharded: whether each process holds only a part of every tensor (FSDP). The modules are
            changed for good then. If not, each has the whole model (DDP).

    Returns:
        What to call instead of the objective; with one process, the objective itself.

    Example:
        >>> objective = nn.Identity()
        >>> spread(objective, torch.device("cpu"), sharded=False) is objective
        True
    """
    world = rank_and_world()[1]
    if sharded:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  (new in torch 2.6)

        mesh = init_device_mesh(device.type, (world,))
        blocks = [part for part in objective.modules() if isinstance(part, Block)]
        for part in (*blocks, objective):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)  # after a validation too
    elif world > 1:
        return DistributedDataParallel(objective)
    return objective


def gather_weights(model: nn.Module) -> Tensors:
    """Bring all weights of a model to the first process, on its CPU.

    Args:
        model: the model, whose tensors may be shared out over all processes. All of them call this.

    Returns:
        The weights, tied ones once; in all processes but the first, nothing.

    Example:
        >>> sorted(gather_weights(nn.Linear(2, 3)))
        ['bias', 'weight']
    """
    state = dcp.get_model_state_dict(model, options=_state_options())
    tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
    return without_copies(model, tensors)


def spread_weights(model: nn.Module, weights: Tensors) -> None:
    """Give every process its part of what :func:`gather_weights` has brought together.

    Args:
        model: the model that gets them. All processes call this.
        weights: the weights; only those of the first process count.

    Raises:
        ValueError: if they belong to another model.

    Example:
        >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> spread_weights(other, gather_weights(one))
        >>> torch.equal(one.weight, other.weight)
        True
    """
    if rank_and_world()[0] == 0:
        check_tensors(model, weights)
    dcp.set_model_state_dict(model, dict(weights), options=_state_options())


def gather_optimizer(model: nn.Module, optimizer: Optimizer) -> OptimizerState:
    """Bring what an optimizer knows to the first process, on its CPU.

    Args:
        model: the model whose parameters it changes.
        optimizer: any optimizer. All processes call this.

    Returns:
        Its state by names of parameters; in all processes but the first, nothing.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(
        ...     layer.parameters(), lr=0.1, momentum=0.9
        ... )
        >>> layer(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> gather_optimizer(layer, optimizer)["bias"]
        {'momentum_buffer': tensor([1.])}
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    found: OptimizerState = {}
    for parameter, values in optimizer.state.items():
        gathered = {  # all processes take part in gathering a tensor; one keeps it
            key: gather_tensor(value) if isinstance(value, Tensor) else value
            for key, value in values.items()
        }
        if rank_and_world()[0] == 0:
            found[names[parameter]] = {
                key: value.cpu() if isinstance(value, Tensor) else value
                for key, value in gathered.items()
            }
    return found


def spread_optimizer(model: nn.Module, optimizer: Optimizer, state: OptimizerState) -> None:
    """Give every process its part of what :func:`gather_optimizer` has brought together.

    Args:
        model: the model whose parameters the optimizer changes.
        optimizer: one that is like the one the state came from. All processes call this.
        state: the state by names of parameters; only that of the first process counts.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(
        ...     layer.parameters(), lr=0.1, momentum=0.9
        ... )
        >>> spread_optimizer(
        ...     layer, optimizer, {"bias": {"momentum_buffer": torch.ones(1)}}
        ... )
        >>> optimizer.state[layer.bias]
        {'momentum_buffer': tensor([1.])}
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    packed = optimizer.state_dict()
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for i, parameter in enumerate(parameters):
        values = from_first(state.get(names[parameter]))  # one at a time: they are large
        if values is not None:
            packed["state"][i] = {key: _state_like(parameter, values[key]) for key in values}
    optimizer.load_state_dict(packed)


def gather_tensor(tensor: Tensor) -> Tensor:
    """Bring all parts of a tensor to every process.

    Args:
        tensor: one that may be cut; then all processes call this.

    Returns:
        The whole one; if it was not cut, itself.

    Example:
        >>> gather_tensor(torch.tensor([1, 2]))
        tensor([1, 2])
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(example: Tensor, tensor: Tensor) -> Tensor:
    """Cut a whole tensor as another one is cut, if that is.

    Args:
        example: the other one.
        tensor: one of the same shape. All processes call this; that of the first one counts.

    Returns:
        The part of this process.

    Example:
        >>> cut_like(torch.zeros(2), torch.tensor([1, 2]))
        tensor([1, 2])
    """
    if not isinstance(example, DTensor):
        return tensor
    tensor = tensor.to(example.device)
    return distribute_tensor(tensor, example.device_mesh, example.placements)


def from_first(content: Content) -> Content:
    """Let all processes have what the first one has.

    Args:
        content: anything that can be pickled; only that of the first process counts.

    Returns:
        What the first process gave.

    Example:
        >>> from_first({"step": 3})
        {'step': 3}
    """
    if rank_and_world()[1] > 1:
        box = [content]
        dist.broadcast_object_list(box)
        content = box[0]
    return content


def _state_like(parameter: Tensor, value: object) -> object:
    """Cut what is as large as its parameter; what is not, such as a number of steps, is whole."""
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return cut_like(parameter, value)
    return value


def _state_options() -> dcp.StateDictOptions:
    """How tensors of all processes become one on the first one's CPU, and come back."""
    return dcp.StateDictOptions(
        full_state_dict=True,
        cpu_offload=True,
        broadcast_from_rank0=rank_and_world()[1] > 1,
        strict=False,  # of tied tensors there is only one
    )
