"""The boxes of a whole model, read off its trace: shapes and formulas in letters, and the numbers.

Nothing here knows a model. Boxes are the modules of a stack and what stands before and behind it;
their order is the order in which they ran; a formula is made from the letters of the trace, and is
held against the trace's own number before anyone sees it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby

import torch
from torch import Tensor, nn

from transformer_book.live.journey_number import SOURCE, WRITTEN
from transformer_book.live.one_byte import RESULTS
from transformer_lib import (
    PRESETS,
    Preset,
    Seq2SeqLM,
    Step,
    TransformerConfig,
    VisionTransformer,
    trace,
)

NUMBERS = "numbers"  # the book's own translator, through which a real number travels
_SAVED = json.loads((RESULTS / NUMBERS / "model.json").read_text(encoding="utf-8"))
_TRANSLATOR = Preset(
    build=Seq2SeqLM,
    config=TransformerConfig(**_SAVED["arguments"]["config"]),
    parameters=1_422_080,
    published="",
    source="",
)
MODELS = {**PRESETS, NUMBERS: _TRANSLATOR}

# The letters of the trace, and those of what a preset has besides: M longest text, N patches of
# P numbers each, I the side of an image.
ORDER = "B T S N L D H G Dk F V M C P I"
FEW = (5, 7)  # target and source tokens of a trace: lengths that are no other size
TABLES = {"tokens": "V", "positions": "M", "segments": "2", "bias": "32"}  # rows of each table
JOINED = ("positions", "segments", "class_token")  # boxes that something is added to
LABELS = {
    "tokens": "token embedding",
    "positions": "+ positions",
    "segments": "+ segments",
    "patches": "patch embedding",
    "class_token": "+ class token",
    "bias": "distance bias",
    "attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "pooler": "pooler",
    "classifier": "classifier",
    "output": "output layer",
}
NAMES = {
    "transformer-base": "Transformer base", "transformer-big": "Transformer big",
    "bert-base": "BERT base", "gpt2": "GPT-2 small", "gpt2-medium": "GPT-2 medium",
    "gpt2-large": "GPT-2 large", "gpt2-xl": "GPT-2 XL", "gpt3-175b": "GPT-3 175B",
    "llama-2-7b": "LLaMA 2 7B", "llama-3-8b": "LLaMA 3 8B", "llama-3-70b": "LLaMA 3 70B",
    "llama-3.1-8b": "LLaMA 3.1 8B", "llama-3.2-1b": "LLaMA 3.2 1B",
    "llama-3.2-3b": "LLaMA 3.2 3B", "mistral-7b": "Mistral 7B", "smollm2-135m": "SmolLM2 135M",
    "smollm2-360m": "SmolLM2 360M", "smollm2-1.7b": "SmolLM2 1.7B",
    "qwen2.5-0.5b": "Qwen2.5 0.5B", "qwen2.5-1.5b": "Qwen2.5 1.5B",
    "qwen2.5-7b": "Qwen2.5 7B", "qwen3-0.6b": "Qwen3 0.6B", "qwen3-1.7b": "Qwen3 1.7B",
    "qwen3-4b": "Qwen3 4B", "qwen3-8b": "Qwen3 8B", "gemma-2-2b": "Gemma 2 2B",
    "gemma-3-270m": "Gemma 3 270M", "gemma-3-1b": "Gemma 3 1B", "olmo-2-1b": "OLMo 2 1B",
    "olmo-2-7b": "OLMo 2 7B", "t5-small": "T5 small", "vit-b-16": "ViT-B/16",
    NUMBERS: "Number translator",
}  # fmt: skip
QUIET = (  # steps that only rearrange, or that belong to the one before
    "split heads", "swap positions and heads", "merge heads", "repeat for each group of heads",
    "set masked weights to 0", "div", "scale by 1", "put heads first", "repeat the class token",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One box of the picture.

    Args:
        tower: ``"encoder"`` or ``"decoder"``.
        stage: ``"in"``, ``"block"`` or ``"out"``: before, inside or behind the repeated blocks.
        name: of its module, such as ``"cross_attention_norm"``; a residual sum ends in ``_add``.
        label: the words in the box.
        shape: letters of what goes in and what comes out.
        sizes: the same in numbers.
        parameters: formula of one such box.
        flops: formula of one such box.
        counts: parameters and FLOPs of one such box, counted.
        steps: what happens inside: words, the letters of the result, and its sizes.

    Example:
        >>> parts_of("gpt2", 64)[0].parameters
        'D·V'
    """

    tower: str
    stage: str
    name: str
    label: str
    shape: tuple[str, str]
    sizes: tuple[str, str]
    parameters: str
    flops: str
    counts: tuple[int, int]
    steps: tuple[tuple[str, str, str], ...]

    @property
    def box(self) -> str:
        """Its name in the figure's settings."""
        return f"{self.tower}.{self.name}"


def length_of(preset: str, length: int) -> int:
    """Say how many tokens a preset reads when it is given so many.

    Args:
        preset: a key of ``MODELS``.
        length: how many are asked for.

    Returns:
        No more than the model has room for; of an image always the same number.

    Example:
        >>> length_of("gpt2", 4096), length_of("vit-b-16", 8)
        (1024, 197)
    """
    if preset == NUMBERS:
        return len(WRITTEN) + 1
    longest = MODELS[preset].config.max_len
    is_image = isinstance(MODELS[preset].build, partial) and "image_size" in _options(preset)
    return longest if is_image else min(length, longest)


def source_length_of(preset: str, length: int) -> int:
    """Say how many tokens of a source go with so many tokens of a target.

    Args:
        preset: a key of ``MODELS``.
        length: T.

    Returns:
        As many; of the number that travels its own letters.

    Example:
        >>> source_length_of("t5-small", 64), source_length_of("numbers", 5)
        (64, 9)
    """
    return len(SOURCE) if preset == NUMBERS else length


def _options(preset: str) -> Mapping[str, int]:
    build = MODELS[preset].build
    return build.keywords if isinstance(build, partial) else {}


@cache
def sizes_of(preset: str) -> dict[str, int]:
    """Give the size of each letter, except for the lengths of texts.

    Args:
        preset: a key of ``MODELS``.

    Returns:
        A number for each letter that the preset has.

    Example:
        >>> sizes_of("gpt2")["D"], sizes_of("vit-b-16")["P"]
        (768, 768)
    """
    config = MODELS[preset].config
    sizes = {
        "L": config.n_layers, "D": config.d_model, "H": config.n_heads, "G": config.kv_heads,
        "Dk": config.d_head, "F": config.ffn_width, "V": config.vocab_size, "M": config.max_len,
    }  # fmt: skip
    model = _built(preset)
    if isinstance(model, VisionTransformer):
        patch = model.patches.projection.in_features
        image = {"C": model.classifier.out_features, "N": model.patches.n_patches, "P": patch}
        return {**sizes, **image, "I": _options(preset)["image_size"]}
    return sizes


def evaluate(formula: str, sizes: Mapping[str, int]) -> int:
    """Compute a sum of products of letters.

    Args:
        formula: such as ``"4·D²·L + 2·D"``; nothing means 0.
        sizes: of each letter.

    Returns:
        The number.

    Example:
        >>> evaluate("4·D²·L + 2·D", {"D": 3, "L": 2})
        78
    """
    terms = formula.split(" + ") if formula else []
    return sum(math.prod(_factor(x, sizes) for x in term.split("·")) for term in terms)


def _factor(text: str, sizes: Mapping[str, int]) -> int:
    letter = text.rstrip("²")
    size = int(letter) if letter.isdigit() else sizes[letter]
    return size**2 if text.endswith("²") else size


@cache
def parts_at(preset: str, length: int) -> tuple[Part, ...]:
    """Give the boxes of a preset for a length, by its formulas.

    The preset is traced once, with few tokens; a test holds the result equal to :func:`parts_of`,
    which traces it with as many as are asked for.

    Args:
        preset: a key of ``MODELS``.
        length: T, and in an encoder-decoder S too.

    Returns:
        The boxes, in the order in which they ran.

    Example:
        >>> [part.sizes[1] for part in parts_at("gpt2", 1024)][-1]
        '1 × 1,024 × 50,257'
    """
    length = length_of(preset, length)
    sizes = {**sizes_of(preset), "B": 1, "T": length, "S": source_length_of(preset, length)}
    return tuple(
        replace(
            part,
            sizes=(_in_numbers(part.shape[0], sizes), _in_numbers(part.shape[1], sizes)),
            counts=(evaluate(part.parameters, sizes), evaluate(part.flops, sizes)),
            steps=tuple((what, shape, _in_numbers(shape, sizes)) for what, shape, _ in part.steps),
        )
        for part in parts_of(preset, *FEW)
    )


def _in_numbers(shape: str, sizes: Mapping[str, int]) -> str:
    streams = (stream.split() for stream in shape.split(" and "))
    return " and ".join(_times(evaluate(x, sizes) for x in stream) for stream in streams)


@cache
def parts_of(preset: str, length: int, source_length: int | None = None) -> tuple[Part, ...]:
    """Trace a preset, with one block of each stack, and read its boxes off.

    Args:
        preset: a key of ``MODELS``.
        length: T, the number of tokens; no more than there is room for, see :func:`length_of`.
        source_length: S, in an encoder-decoder; the same as T if left out.

    Returns:
        The boxes, in the order in which they ran.

    Raises:
        ArithmeticError: if a formula does not give the number that was counted.

    Example:
        >>> [part.name for part in parts_of("llama-3-8b", 8)][1:4]
        ['attention_norm', 'attention', 'attention_add']
    """
    model = _built(preset)
    source_length = length if source_length is None else source_length
    if preset != NUMBERS:  # that one may be traced with other lengths than its number has
        source_length, length = length_of(preset, source_length), length_of(preset, length)
    sizes = {**sizes_of(preset), "B": 1, "T": length, "S": source_length}
    steps = list(trace(model, *_inputs(preset, model, length, source_length)))
    places = _places(model, steps)
    runs = [(place, [step for _, step in run]) for place, run in groupby(
        zip(places, steps, strict=True), key=lambda pair: pair[0])]  # fmt: skip
    return tuple(_part(model, place, run, sizes) for place, run in runs)


@cache
def _built(preset: str) -> nn.Module:
    """A preset with one block in each stack, without numbers."""
    found = MODELS[preset]
    with torch.device("meta"):
        return found.build(replace(found.config, n_layers=1))


def _inputs(preset: str, model: nn.Module, length: int, source_length: int) -> list[Tensor]:
    if isinstance(model, VisionTransformer):
        side = _options(preset)["image_size"]
        return [torch.zeros(1, 3, side, side, device="meta")]
    lengths = [source_length, length] if isinstance(model, Seq2SeqLM) else [length]
    return [torch.zeros(1, n, dtype=torch.long, device="meta") for n in lengths]


Place = tuple[str, str, str]  # tower, stage, name


def _places(model: nn.Module, steps: list[Step]) -> list[Place]:
    """Say for each step to which box it belongs."""
    towers = [name for name in ("decoder", "encoder") if any(name in s.module for s in steps)]
    found: list[Place] = []
    for step in steps:
        path = step.module.split(".")
        tower = next((t for t in towers if t in path), (towers or ["encoder"])[0])
        inside = "blocks" in path
        name = _name(path, step.what, found[-1][2] if found else "")
        before = any(place[:2] == (tower, "block") for place in found)
        found.append((tower, "block" if inside else "out" if before else "in", name))
    return found


def _name(path: list[str], what: str, last: str) -> str:
    """Name the box of a step by the path of its module."""
    if "blocks" in path:
        rest = path[path.index("blocks") + 2 :]
        return rest[0] if rest else last.removesuffix("_update_norm").removesuffix("_norm") + "_add"
    for name in ("tokens", "positions", "segments", "bias", "final_norm", "patches", "output"):
        if name in path:
            return name
    if path[-1] == "norm":
        return "norm"
    if path[-1] == "embedding":
        return "segments" if what == "add segments" else "tokens"
    if "class token" in what:
        return "classifier" if what.startswith("take") else "class_token"
    return path[-1] if path[-1] == "classifier" else "pooler"


def _part(model: nn.Module, place: Place, run: list[Step], sizes: Mapping[str, int]) -> Part:
    """Make a box from the steps that ran in it."""
    tower, _, name = place
    length = "S" if isinstance(model, Seq2SeqLM) and tower == "encoder" else "T"
    letters = partial(_letters, name, {str(sizes[x]): x for x in "NPI" if x in sizes}, length)
    shape_in = run[-1].inputs[-1] if name in JOINED else run[0].inputs[0]
    size_in = run[-1].input_sizes[-1] if name in JOINED else run[0].input_sizes[0]
    memory = next((s for s in run if s.module.endswith("cross_attention.key")), None)
    shapes, numbers = [letters(shape_in)], [size_in]
    if memory:  # cross-attention reads two streams
        shapes, numbers = [*shapes, *memory.inputs], [*numbers, *memory.input_sizes]
    learned = _learned(model, run, name, letters)
    products = Counter(
        _product(2, *letters(s.output).split(), letters(s.inputs[0]).split()[-1])
        for s in run if s.flops
    )  # fmt: skip
    part = Part(
        *place,
        _label(name, run),
        (" and ".join(shapes), letters(run[-1].output)),
        (" and ".join(map(_times, numbers)), _times(run[-1].output_sizes)),
        _sum(learned[0]),
        _sum(products),
        (learned[1], sum(step.flops for step in run)),
        tuple(_steps(run, letters)),
    )
    if (evaluate(part.parameters, sizes), evaluate(part.flops, sizes)) != part.counts:
        raise ArithmeticError(f"{part} does not count what its formulas say")
    return part


def _letters(name: str, numbers: Mapping[str, str], length: str, shape: str) -> str:
    """Write a shape with letters where the trace has only numbers: distances and patches."""
    if name == "bias":
        return " ".join(length if x.isdigit() else x for x in shape.split())
    if name in ("patches", "class_token"):
        return " ".join(numbers.get(x, x) for x in shape.split())
    return shape.replace("*", "·")


def _learned(
    model: nn.Module, run: list[Step], name: str, letters: partial[str]
) -> tuple[Counter[str], int]:
    """Formula and number of the parameters that the box has, those it shares left to the first."""
    owned = dict(model.named_parameters())
    formula: Counter[str] = Counter()
    count = 0
    for path in dict.fromkeys(step.module for step in run):
        if not path and name != "class_token":  # the whole model has one parameter of its own
            continue
        step = next(s for s in run if s.module == path)
        ends = letters(step.inputs[0]).split()[-1], letters(step.output).split()[-1]
        for kind, parameter in model.get_submodule(path).named_parameters(recurse=False):
            if f"{path}.{kind}".lstrip(".") not in owned:
                continue
            rows = {1: (), 2: (TABLES.get(name, ends[0]),)}[parameter.ndim]
            column = "D" if kind == "class_token" else ends[1]
            formula[_product(1, *rows, column)] += 1
            count += parameter.numel()
    return formula, count


def _product(number: int, *factors: str) -> str:
    """Write a product in a fixed order, squares as such."""
    single = [x for factor in factors for x in factor.split("·")]
    for text in [x for x in single if x.isdigit()]:
        number *= int(text)
    letters = Counter(x for x in single if not x.isdigit())
    written = [f"{x}{'²' * (letters[x] == 2)}" for x in sorted(letters, key=ORDER.split().index)]
    return "·".join([str(number)] * (number != 1) + written)


def _sum(terms: Counter[str]) -> str:
    """Add like terms: twice ``2·D`` is ``4·D``."""
    total: Counter[str] = Counter()
    for term, times in terms.items():
        number, _, rest = term.partition("·") if term[0].isdigit() else ("1", "", term)
        total[rest] += times * int(number)
    longest_first = sorted(total, key=lambda term: -term.count("·") - term.count("²"))
    return " + ".join(f"{total[x]}·{x}" if total[x] > 1 else x for x in longest_first)


def _label(name: str, run: list[Step]) -> str:
    if name.endswith("_add"):
        return "add"
    if name.endswith("norm"):
        return "LayerNorm" if run[0].what == "layer norm" else "RMSNorm"
    masked = name == "attention" and any(step.what == "mask" for step in run)
    return "masked " * masked + LABELS[name]


def _steps(run: list[Step], letters: partial[str]) -> Iterable[tuple[str, str, str]]:
    """The steps worth reading, without numbers that another preset would not have."""
    capped = False
    for step in run:
        shape = letters(step.output)
        what = re.sub(r"( by| =) [\d.]+$", "", step.what).replace("sqrt(D)", "√D")
        is_quiet = step.what in QUIET or re.search(r"\b\d\d", shape)
        if not is_quiet and not (capped and what == "scale"):
            words = "cap (tanh)" if what == "tanh" and len(shape) > 3 else what
            yield words, shape, _times(step.output_sizes)
        capped = what == "tanh"


def _times(sizes: Iterable[int]) -> str:
    return " × ".join(f"{size:,}" for size in sizes)
