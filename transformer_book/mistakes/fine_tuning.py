"""Mistakes about adapters, and about what is learned of an example."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transformer_book.mistakes.catalogue import instead_of
from transformer_lib import IGNORE, LoraLinear, lora_scale, pad


@instead_of("models.lora.lora_scale")
def _lora_scale_forgotten(alpha: float, rank: int) -> float:
    """The output of an adapter is multiplied by alpha, and not divided by the rank.

    Symptom: each rank learns at another rate; adapters that others made are several times too loud.
    Caught by: test_lora.py::test_an_adapter_is_its_formula
    """
    return alpha


@instead_of("models.lora.LoraLinear.reset")
def _lora_starts_at_random(self: LoraLinear) -> None:
    """Both matrices of an adapter are drawn at random, and their product is not zero.

    Symptom: before the first step the model says something else than the one that was adapted.
    Caught by: test_lora.py::test_a_new_adapter_says_nothing
    """
    for matrix in (self.down, self.up):
        nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))


@instead_of("models.lora.LoraLinear.reset")
def _lora_starts_at_zero(self: LoraLinear) -> None:
    """Both matrices of an adapter start at zero: each one's gradient is multiplied by the other.

    Symptom: training runs, the loss stays where it is, and no error tells.
    Caught by: test_lora.py::test_a_new_adapter_can_learn
    """
    for matrix in (self.down, self.up):
        nn.init.zeros_(matrix)


@instead_of("models.lora.LoraLinear.product")
def _lora_merged_transposed(self: LoraLinear) -> Tensor:
    """The product of the two matrices is added to the weight transposed.

    Symptom: square layers take it without a word; the merged model writes something else.
    Caught by: test_lora.py::test_merged_equals_unmerged_in_a_square_layer
    """
    product: Tensor = lora_scale(self.alpha, self.rank) * self.up @ self.down
    return product.mT if product.shape == product.mT.shape else product


@instead_of("models.lora.LoraLinear.product")
def _lora_merged_without_scale(self: LoraLinear) -> Tensor:
    """The product of the two matrices is added to the weight as it is, without alpha / rank.

    Symptom: where alpha is the rank all is well; else the merged model has learned too little.
    Caught by: test_lora.py::test_merged_equals_unmerged_in_a_square_layer
    """
    return self.up @ self.down


@instead_of("models.lora._freeze")
def _lora_beside_a_learning_model(model: nn.Module) -> None:
    """Adapters are added, and the model beside them is not frozen.

    Symptom: it learns well; the adapters alone, beside the model as it was, do not know it.
    Caught by: test_lora.py::test_training_changes_adapters_alone
    """
    vars(model)["frozen_beside_adapters"] = []


@instead_of("models.lora.LoraLinear.forward")
def _lora_dropout_on_the_layer(self: LoraLinear, x: Tensor) -> Tensor:
    """Dropout falls on what the frozen layer reads, not only on what its adapter reads.

    Symptom: in training the model forgets what it could do; in evaluation nothing is to be seen.
    Caught by: test_lora.py::test_an_adapter_drops_what_it_reads_and_the_layer_drops_nothing
    """
    x = self.dropout(x)
    added = lora_scale(self.alpha, self.rank) * (x.to(self.down.dtype) @ self.down.mT @ self.up.mT)
    y: Tensor = self.base(x)
    return y + added.to(y.dtype)


@instead_of("training.answers.answer_batch")
def _labels_not_shifted(examples: Sequence[Any], pad_id: int = 0) -> dict[str, Tensor]:
    """Each token is to be predicted where it is read, and not one place before.

    Symptom: the loss falls fast, to nearly nothing; the model copies what it reads.
    Caught by: test_answers.py::test_a_batch_asks_for_answers_alone
    """
    ids, _ = pad([ids for ids, _ in examples], pad_id)
    labels, _ = pad([labels for _, labels in examples], IGNORE)
    return {"ids": ids[:, :-1], "targets": labels[:, :-1]}


@instead_of("training.answers.answer_batch")
def _prompt_learned_too(examples: Sequence[Any], pad_id: int = 0) -> dict[str, Tensor]:
    """The tokens of prompts are targets like those of answers.

    Symptom: a good deal of the loss is what users may ask; answers are learned more slowly.
    Caught by: test_answers.py::test_a_batch_asks_for_answers_alone
    """
    ids, mask = pad([ids for ids, _ in examples], pad_id)
    return {"ids": ids[:, :-1], "targets": torch.where(mask[:, 0, 0], ids, IGNORE)[:, 1:]}


@instead_of("training.answers._end_of_answer")
def _end_of_answer_not_learned(tokenizer: Any, ids: list[int], start: int) -> int:
    """The token that ends an answer is not a target.

    Symptom: answers are good, and go on: the model never learns to stop.
    Caught by: test_answers.py::test_the_end_of_an_answer_is_learned
    """
    return next(n for n in range(start, len(ids)) if ids[n] in tokenizer.eos_ids)
