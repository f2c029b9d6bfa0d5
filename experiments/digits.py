"""A small Vision Transformer that reads handwritten digits of 8×8 pixels.

    python -m experiments.digits

Three models that differ in their seed are trained on shifted, turned and scaled copies of the
training images. The one that does best on the validation images is kept; all three are measured.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    accuracy,
    intervals,
    mean_of,
    read_options,
    small_config,
    watch,
    write_results,
)
from transformer_book import datasets
from transformer_book.datasets import image_batch
from transformer_lib import Batch, Batches, Metrics, Recipe, VisionTransformer, modern_recipe, train

CHAPTER = "18b_beyond_text"
IMAGE, PATCH = 8, 2
ABOUT = {
    "Task": """A picture of 8×8 pixels in, the digit in it out. The picture is cut into 16 patches
        of 2×2 pixels, which the encoder reads like words.""",
    "Intended use": """Teaching: a model small enough to look into every attention map. Not for
        reading anybody's handwriting.""",
    "Limits": """It knows the handwriting of a few people who wrote centred digits on a form: the
        data are the test part of a larger set, by 13 writers (see `book/data/README.md`). It has no
        way to say that a picture is not a digit. The test part has 400 images, so one mistake is a
        quarter of a per cent. A writer may be in two parts of the data.""",
}


def distort(images: Tensor, turn: float, stretch: float, shift: float) -> Tensor:
    """Turn, scale, shear and shift each image a little, by random amounts of its own.

    Args:
        images: ``(B, 1, 8, 8)``.
        turn: the largest angle, in degrees.
        stretch: the largest change of height or width, and the largest shear, as a fraction.
        shift: the largest shift, in pixels.

    Returns:
        The new images, ``(B, 1, 8, 8)``.
    """
    n = len(images)
    angle = (2 * torch.rand(n) - 1) * math.radians(turn)  # (B,)
    cos, sin = angle.cos(), angle.sin()
    turning = torch.stack((cos, -sin, sin, cos), dim=-1).view(n, 2, 2)
    stretching = torch.eye(2) + stretch * (2 * torch.rand(n, 2, 2) - 1)
    shifting = (2 * torch.rand(n, 2, 1) - 1) * shift * 2 / IMAGE  # the picture goes from -1 to 1
    where = torch.cat((turning @ stretching, shifting), dim=-1)  # (B, 2, 3): from where to take
    grid = F.affine_grid(where, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def distorted_batch(examples: Sequence[tuple[Tensor, Tensor]], **amounts: float) -> Batch:
    """Make a batch of distorted images. Training seeds each step, so they can be made again."""
    batch = image_batch(examples)
    return batch | {"images": distort(batch["images"], **amounts)}


def build(options: Options) -> VisionTransformer:
    """Make the model with new weights."""
    config = small_config(
        max_len=(IMAGE // PATCH) ** 2 + 1,
        d_model=options.pick(64, 16),
        n_layers=options.pick(4, 1),
        position="learned",
        dropout=0.1,
    )
    return VisionTransformer(config, IMAGE, PATCH, n_channels=1, n_classes=10)


def loaders(options: Options, seed: int) -> tuple[Batches, Batches, Batches]:
    """Make the batches of the three parts; only those for training are distorted."""
    parts = [list(zip(*part, strict=True)) for part in datasets.digits()]
    changing = partial(distorted_batch, turn=12.0, stretch=0.2, shift=0.7)
    batch_size = options.pick(256, 16)
    return (
        Batches(parts[0], changing, batch_size=batch_size, seed=seed),
        Batches(parts[1], image_batch, batch_size=len(parts[1])),
        Batches(parts[2], image_batch, batch_size=len(parts[2])),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one model for each seed, keep the best and write the results."""
    options = read_options("digits", __doc__, arguments)
    steps = options.n_steps(2_500)
    results: list[Row] = []
    trained: list[tuple[VisionTransformer, list[Metrics], Recipe]] = []
    for seed in options.seeds(3, 2):
        torch.manual_seed(seed)
        model = build(options)
        batches, validation, test = loaders(options, seed)
        recipe = modern_recipe(
            steps,
            2e-3,
            warmup=steps // 20,
            final_fraction=0.0,
            label_smoothing=0.1,
            seed=seed,
            **intervals(steps),
        )
        rows = train(
            model, batches, recipe, validation=validation, device=options.device, progress=False,
            on_step=watch,
        )  # fmt: skip
        right = {"validation": accuracy(model, validation), "test": accuracy(model, test)}
        results.append({"seed": seed, **right, "validation_loss": rows[-1]["validation_loss"]})
        trained.append((model, rows, recipe))
        print(results[-1], flush=True)
    # Validation has 200 images, so several seeds may get the same number right: then the loss.
    order = [(row["validation"], -row["validation_loss"]) for row in results]
    best = order.index(max(order))
    model, rows, recipe = trained[best]
    metrics = {
        "test_accuracy": results[best]["test"],
        "test_accuracy_mean_of_seeds": mean_of(results, "test"),
        "validation_accuracy": results[best]["validation"],
        "chosen_seed": results[best]["seed"],
    }
    write_results(
        options, "digits.csv", ABOUT, metrics, recipe, model=model, rows=rows,
        tables={"seeds": results}, more={"seeds": results},
    )  # fmt: skip


if __name__ == "__main__":
    main()
