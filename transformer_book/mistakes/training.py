"""Mistakes about training: Muon, the decay of the learning rate, averages of weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.mistakes.catalogue import instead_of
from transformer_lib import Recipe, orthogonalise


@instead_of("training.muon._of_length_one")
def _newton_schulz_without_length_one(matrix: Tensor) -> Tensor:
    """Newton and Schulz's rounds begin with the gradient as it is, not scaled to length 1.

    Symptom: small gradients make steps far too small; large ones become NaN in five rounds.
    Caught by: test_training_muon.py::test_singular_values_come_near_1_whatever_they_were
    """
    return matrix


@instead_of("training.muon._on_its_side")
def _tall_matrices_not_turned(matrix: Tensor) -> Tensor:
    """A tall matrix is multiplied by its transpose as it stands, which makes the larger product.

    Symptom: the steps are right, and those of tall matrices take several times the work.
    Caught by: test_training_muon.py::test_a_tall_matrix_takes_the_work_of_a_wide_one
    """
    return matrix


@instead_of("training.muon._muon")
def _momentum_after_orthogonalising(
    gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
) -> Tensor:
    """Each gradient is made orthogonal by itself, and momentum adds these up.

    Symptom: it learns, but worse: steps are not orthogonal, and noise counts as much as signal.
    Caught by: test_training_muon.py::test_steps_are_those_of_pytorchs_muon
    """
    if not state:
        state["momentum"] = torch.zeros_like(gradient)
    mu = group["momentum"]
    scale: float = 0.2 * max(gradient.shape) ** 0.5
    now = orthogonalise(gradient) * scale * (1 - mu)
    state["momentum"].mul_(mu).add_(now)
    step: Tensor = now + mu * state["momentum"]
    return step


@instead_of("training.muon._scale")
def _muon_scaled_for_no_shape(rows: int, columns: int) -> float:
    """Steps of all matrices have the same singular values, whatever their shape.

    Symptom: the numbers of a large matrix hardly move at a rate that suits AdamW.
    Caught by: test_training_muon.py::test_the_numbers_of_a_step_are_as_large_as_adamws
    """
    return 0.2


@instead_of("training.training_step.hidden_matrices")
def _muon_for_embeddings_too(model: nn.Module) -> list[nn.Parameter]:
    """Muon gets every matrix, the table of embeddings and the output layer included.

    Symptom: it learns; rows of rare tokens move as far in each step as those of frequent ones.
    Caught by: test_training_muon.py::test_embeddings_outputs_norms_and_biases_are_left_to_adamw
    """
    return [p for p in model.parameters() if p.ndim == 2 and p.requires_grad]


@instead_of("training.recipes._decay_done")
def _decay_begins_at_once(step: int, recipe: Recipe) -> float:
    """The rate of warm-up, stable, decay falls from the end of the warm-up on.

    Symptom: it learns a little worse; a run that is given more steps is none that had them at once.
    Caught by: test_training.py::test_the_rate_is_stable_until_the_decay
    """
    return max(0.0, (step - recipe.warmup) / (recipe.steps - recipe.warmup))


@instead_of("training.weight_average._share_of_newest")
def _average_counts_the_first_weights(beta: float, n_steps: int) -> float:
    """The average starts with the weights before the first step, and always moves by 1 - beta.

    Symptom: the averaged model is worse than the last one: random weights are a large part of it.
    Caught by: test_training_average.py::test_the_average_is_the_weighted_mean_of_all_steps
    """
    return 1 - beta


@instead_of("training.weight_average.WeightAverage.in_model")
@contextmanager
def _average_left_in_the_model(self: Any) -> Iterator[None]:
    """The average is put in to be validated, and the weights that learn are not put back.

    Symptom: how the model learns depends on how often it is validated.
    Caught by: test_training_average.py::test_judging_it_does_not_change_what_is_learned
    """
    self.put(self.average)
    yield


@instead_of("training.training_step.Learner.keep_average")
def _average_judged_and_not_kept(self: Any) -> None:
    """The average is validated; the weights that are handed back and saved are the last ones.

    Symptom: the saved model has a worse loss than its own table of metrics says.
    Caught by: test_training_average.py::test_what_is_handed_back_is_what_was_judged
    """
    self.average = None
