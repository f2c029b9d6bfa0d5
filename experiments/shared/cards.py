"""What a card says: the data, the machine, and all of it as a page for people."""

import hashlib
import platform
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import torch


def describe_data(data: str, root: Path) -> dict[str, str]:
    """Name a file of ``book/data`` with its checksum, or say in words what the data are."""
    path = root / "book" / "data" / data
    if not path.is_file():
        return {"description": data}
    return {"file": f"book/data/{data}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def environment(device: str) -> dict[str, str]:
    """Say on which device and with which versions an experiment ran."""
    on_gpu = device.startswith("cuda")
    name = torch.cuda.get_device_name(device) if on_gpu else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"device": f"{device} ({name})", **versions, "numpy": np.__version__}


def card_text(card: dict[str, Any], about: dict[str, str]) -> str:
    """Write the card for people: what is in ``card.json``, and paragraphs about it.

    Args:
        card: what ``card.json`` holds.
        about: paragraphs by their headings.

    Returns:
        The content of ``card.md``.
    """
    lines = [f"# {card['experiment'].capitalize()}", ""]
    for heading, paragraph in about.items():
        lines += [f"## {heading}", "", " ".join(paragraph.split()), ""]
    tables = {"Results": card["metrics"], "Data": card["data"]}
    if "model" in card:
        config = card["model"]["arguments"].get("config", {})
        rest = {k: v for k, v in card["model"]["arguments"].items() if k != "config"}
        sizes = {"class": card["model"]["class"], "parameters": card["parameters"]}
        tables["Model"] = sizes | config | rest
    tables["Recipe"] = card["recipe"]
    tables["Run"] = card["environment"] | {"seed": card["seed"], "seconds": card["seconds"]}
    for heading, table in tables.items():
        lines += [f"## {heading}", "", "| | |", "|---|---|"]
        lines += [f"| {name.replace('_', ' ')} | {show(value)} |" for name, value in table.items()]
        lines += [""]
    command = shlex.join(["python", "-m", f"experiments.{card['experiment']}", *card["arguments"]])
    return "\n".join([*lines, f"Made by `{command}`; `card.json` has the same for programs.", ""])


def show(value: object) -> str:
    """Write a value of a card: numbers with five digits, whole ones with commas."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if type(value) is int else str(value)
