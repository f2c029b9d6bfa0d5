"""Autocast (mixed precision): which numbers matrices are multiplied in."""

import torch


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Say to which dtype autocast takes matrix products on a device; ``None`` if it is off.

    Args:
        device: where the tensors are.

    Returns:
        Such as ``torch.bfloat16``, or ``None``.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     autocast_dtype(torch.device("cpu"))
        torch.bfloat16
    """
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)
