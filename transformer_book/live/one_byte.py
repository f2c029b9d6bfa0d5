"""Saved models with one byte for each number, for readers' browsers.

A matrix is written row by row: whole numbers from -127 to 127 and one scale for each row, so that
its largest number is kept almost exactly. Norms and biases, which are few, stay as they are. No
PyTorch is needed here: the book's site is built without it.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_lib.core.files import book_folder

Floats = NDArray[np.float32]
Bytes = NDArray[np.int8]
LARGEST = 127
PARTS = 8  # scripts for a model; model.js expects as many
RESULTS = book_folder() / "results"


def read_tensors(path: str | Path) -> dict[str, Floats]:
    """Read a file of safetensors: the length of its header, the header as JSON, the numbers.

    Args:
        path: the file; all its tensors must be float32.

    Returns:
        The tensors by name.

    Raises:
        ValueError: if a tensor is of another kind.
        FileNotFoundError: if the file is not there.

    Example:
        >>> read_tensors("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'nowhere'
    """
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is of kind {entry['dtype']}; expected F32")
        first, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(content[first:end], dtype="<f4").reshape(entry["shape"])
    return tensors


def quantise(matrix: Floats) -> tuple[Bytes, Floats]:
    """Round a matrix to one byte a number.

    Args:
        matrix: ``(rows, columns)``.

    Returns:
        Whole numbers ``(rows, columns)`` and the scale of each row, ``(rows,)``.

    Example:
        >>> numbers, scales = quantise(
        ...     np.array([[0.5, -1.27], [0.0, 0.0]], dtype=np.float32)
        ... )
        >>> numbers.tolist(), scales.round(4).tolist()
        ([[50, -127], [0, 0]], [0.009999999776482582, 0.0])
    """
    scales = (np.abs(matrix).max(axis=1) / LARGEST).astype(np.float32)  # (rows,)
    divisors = np.where(scales > 0, scales, 1)[:, None]  # a row of zeros stays one
    return np.rint(matrix / divisors).astype(np.int8), scales


def dequantise(numbers: Bytes, scales: Floats) -> Floats:
    """Turn what :func:`quantise` made back into a matrix.

    Args:
        numbers: ``(rows, columns)``.
        scales: ``(rows,)``.

    Returns:
        The matrix; it differs from the original by at most half a scale.

    Example:
        >>> dequantise(
        ...     np.array([[2, -1]], dtype=np.int8),
        ...     np.array([0.5], dtype=np.float32),
        ... )
        array([[ 1. , -0.5]], dtype=float32)
    """
    return numbers.astype(np.float32) * scales[:, None]


def pack(folder: str | Path) -> tuple[dict[str, Any], bytes]:
    """Write a saved model with one byte a number.

    Args:
        folder: with ``model.json``, ``model.safetensors`` and ``tokenizer.json``.

    Returns:
        A header for JSON, which says where each tensor is, and the bytes: first ``floats`` numbers
        in float32 (scales of rows, and tensors of one dimension), then the matrices.

    Raises:
        FileNotFoundError: if a file is not there.

    Example:
        >>> pack("no")
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'no/model.json'
    """
    folder = Path(folder)
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    entries: dict[str, dict[str, Any]] = {}
    floats, matrices = [], []
    float_at = byte_at = 0
    for name, tensor in read_tensors(folder / "model.safetensors").items():
        entries[name] = {"shape": list(tensor.shape), "float": float_at}
        few = tensor
        if tensor.ndim == 2:
            entries[name]["byte"] = byte_at
            numbers, few = quantise(tensor)
            matrices.append(numbers.ravel())
            byte_at += numbers.size
        floats.append(few)
        float_at += few.size
    header = {
        "class": description["class"],
        "config": description["arguments"]["config"],
        "tokenizer": {key: tokenizer[key] for key in ("special", "learned")},
        "floats": float_at,
        "tensors": entries,
    }
    content = np.concatenate(floats).astype("<f4").tobytes() + np.concatenate(matrices).tobytes()
    return header, content


def unpack(header: dict[str, Any], content: bytes) -> dict[str, Floats]:
    """Read what :func:`pack` wrote: the weights that a browser computes with.

    Args:
        header: says where each tensor is.
        content: the bytes.

    Returns:
        The tensors by name.

    Example:
        >>> entries = {"scale": {"shape": [1], "float": 1}}
        >>> entries["matrix"] = {"shape": [1, 2], "float": 0, "byte": 0}
        >>> content = np.array([0.5, 9.0], dtype=np.float32).tobytes() + bytes(
        ...     [2, 255]
        ... )
        >>> unpack({"floats": 2, "tensors": entries}, content)["matrix"]
        array([[ 1. , -0.5]], dtype=float32)
    """
    floats = np.frombuffer(content, dtype="<f4", count=header["floats"])
    numbers = np.frombuffer(content, dtype=np.int8, offset=4 * header["floats"])
    tensors = {}
    for name, entry in header["tensors"].items():
        shape, start = entry["shape"], entry["float"]
        tensors[name] = floats[start : start + shape[0]]
        if len(shape) == 2:
            first = entry["byte"]
            matrix = numbers[first : first + shape[0] * shape[1]].reshape(shape)
            tensors[name] = dequantise(matrix, tensors[name])
    return tensors


def weights_scripts(model: str, results: str | Path = RESULTS) -> list[str]:
    """Write a trained model as scripts that a page can load, ``Live.register(...)`` each.

    There are several, so that a reader can be told how much has come: a page that was opened as a
    file learns no more of a script than that it is there.

    Args:
        model: its folder in the results.
        results: where trained models are.

    Returns:
        ``PARTS`` scripts, together megabytes of text; the first one has the header.

    Raises:
        FileNotFoundError: if the model is not there.

    Example:
        >>> scripts = weights_scripts("numbers")
        >>> len(scripts), scripts[7][:28]
        (8, 'Live.register("numbers", 7, ')
    """
    try:
        header, content = pack(Path(results) / model)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the live figures need the trained model {model!r}, but {error.filename} is missing; "
            "expected model.json, model.safetensors and tokenizer.json in that folder"
        ) from None
    text = base64.b64encode(content).decode()
    cuts = [part * len(text) // PARTS for part in range(PARTS + 1)]
    said = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    return [
        f'Live.register({json.dumps(model)}, {part}, "{text[cuts[part] : cuts[part + 1]]}"'
        f"{'' if part else ', ' + said});\n"
        for part in range(PARTS)
    ]


def weights_script(model: str, results: str | Path = RESULTS) -> str:
    """Write a trained model as one script, for a document that has everything in it.

    Args:
        model: its folder in the results.
        results: where trained models are.

    Returns:
        The script, megabytes of text.

    Raises:
        FileNotFoundError: if the model is not there.

    Example:
        >>> weights_script("numbers")[:28]
        'Live.register("numbers", 0, '
    """
    return "".join(weights_scripts(model, results))
