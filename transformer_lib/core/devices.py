"""Devices: those that PyTorch finds on this machine."""

import torch


def devices_here() -> list[str]:
    """Name the kinds of devices that PyTorch can compute on here.

    Returns:
        Their names for PyTorch, the fastest first; the last is always ``"cpu"``.

    Example:
        >>> devices_here()[-1]
        'cpu'
    """
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [gpu for gpu, is_there in gpus.items() if is_there] + ["cpu"]
