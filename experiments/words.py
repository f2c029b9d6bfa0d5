"""Word embeddings of two small GPTs that read Shakespeare word by word.

    python -m experiments.words

What does a Transformer's table of token vectors hold after training? Three models read the same
eight plays: one that uses its table for input and output, as GPT-2 does, the same one with another
seed, and one with an output layer of its own. Only the tables of the first and the last are kept.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import save_file
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    intervals,
    modern_config,
    n_parameters,
    read_options,
    watch,
    write_results,
)
from transformer_book import datasets
from transformer_lib import CausalLM, Recipe, TextWindows, evaluate, modern_recipe, train

CHAPTER = "02c_meaning"
UNKNOWN = "<unk>"  # has the id 0
WORD = re.compile(r"[a-z]+(?:['’][a-z]+)*|[.,;:!?]")
KINDS = {"tied": 0, "tied_again": 1, "untied": 2}  # and what is added to the seed
KEPT = ("tied", "untied")
N_FREQUENT, N_NEIGHBOURS = 500, 10  # for the comparison of two seeds
ABOUT = {
    "Task": "The words so far in, the probabilities of the next word out.",
    "Choices": """Small letters, six punctuation marks, the 3,000 most frequent words of eight
        plays; every other word is one and the same token. Decoders with RoPE, RMSNorm before each
        sublayer, SwiGLU, no biases, first weights as in GPT-2; AdamW with a cosine, strong dropout,
        and the weights with the lowest validation loss (on a ninth play) are kept.""",
    "What is kept": """`embeddings.safetensors` holds the input tables in float16: `tied`, of a
        model whose table is also its output layer, and `untied`, of one with an output layer of its
        own. `vocabulary.csv` has the words in the order of the rows and how often each occurs.""",
    "Intended use": "Teaching: what similar means for learned embeddings, and what it does not.",
    "Limits": """A quarter of a million words are little: word2vec was shown with billions. Many
        words of the table were seen four times. Nothing about embeddings in general follows from
        what is missing here.""",
}


def words(text: str) -> list[str]:
    """Cut a text into small words and punctuation marks; everything else is dropped."""
    return WORD.findall(text.lower())


def vocabulary(text: str, n: int) -> list[str]:
    """Return the n most frequent words, the most frequent first, behind the unknown one."""
    counts = Counter(words(text))
    return [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[:n]]


def encode(text: str, known: Sequence[str]) -> Tensor:
    """Write a text as the places of its words in a vocabulary."""
    ids = {word: place for place, word in enumerate(known)}
    return torch.tensor([ids.get(word, 0) for word in words(text)])


def build(options: Options, vocab_size: int, length: int, tied: bool) -> CausalLM:
    """Make a model with new weights."""
    config = modern_config(
        vocab_size=vocab_size,
        max_len=length,
        d_model=options.pick(128, 16),
        n_heads=options.pick(4, 2),
        n_layers=options.pick(3, 1),
        d_ff=options.pick(344, 32),
        dropout=0.3,
        tie_embeddings=tied,
    )
    return CausalLM(config)


def shared_neighbours(a: Tensor, b: Tensor) -> float:
    """Return which part of their nearest neighbours the frequent words share in two tables."""
    sets = []
    for table in (a, b):
        unit = F.normalize(table.float(), dim=-1)[1:]
        cosines = (unit @ unit.T).fill_diagonal_(-2)
        sets.append(cosines[:N_FREQUENT].topk(min(N_NEIGHBOURS, len(unit) - 1)).indices.tolist())
    pairs = list(zip(*sets, strict=True))
    return sum(len({*x} & {*y}) / len(x) for x, y in pairs) / len(pairs)


def guess_by_frequency(ids: Tensor, new: Tensor, n: int) -> float:
    """Return the loss of who knows how frequent words are, and nothing else."""
    counts = torch.bincount(ids, minlength=n).double() + 1
    return float(-(counts / counts.sum()).log()[new].mean())


def run(
    options: Options, kind: str, ids: Sequence[Tensor], vocab_size: int
) -> tuple[Tensor, dict[str, Any], list[Row], Recipe]:
    """Train one model; return its table, its results, its training and the recipe."""
    seed = options.seed + KINDS[kind]
    torch.manual_seed(seed)
    length, steps = options.pick(64, 16), options.n_steps(1_500)
    model = build(options, vocab_size, length, tied=kind != "untied")
    recipe = modern_recipe(
        steps, 2e-3, patience=steps, seed=seed, **intervals(steps, n_validations=30)
    )
    windows = TextWindows(ids[0], length, options.pick(64, 4), seed)
    validation = TextWindows(ids[1], length, options.pick(128, 4))
    rows = train(
        model, windows, recipe, validation=validation, device=options.device, progress=False,
        on_step=watch,
    )  # fmt: skip
    found = evaluate(model, validation)
    losses = {row["validation_loss"]: row["step"] for row in rows if row["validation_loss"]}
    metrics = {
        f"{kind}_validation_loss": found["loss"],
        f"{kind}_perplexity": found["perplexity"],
        f"{kind}_best_step": losses[min(losses)],
        f"{kind}_parameters": n_parameters(model),
    }
    print(metrics, flush=True)
    table = model.decoder.embedding.tokens.weight.detach().cpu()
    return table, metrics, [{"table": kind, **row} for row in rows], recipe


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the models, compare their tables and write what the book needs."""
    options = read_options("words", __doc__, arguments)
    text = datasets.shakespeare()
    known = vocabulary(text.train, options.pick(3_000, 200))
    parts = [part[: options.pick(10**9, 9_999)] for part in text]
    ids = [encode(part, known) for part in parts]
    runs = {kind: run(options, kind, ids, len(known)) for kind in KINDS}
    tables = {kind: table for kind, (table, *_) in runs.items()}
    metrics: dict[str, Any] = {}
    for _, found, _, _ in runs.values():
        metrics |= found
    by_frequency = guess_by_frequency(ids[0], ids[1], len(known))
    unknown = [float((part == 0).double().mean()) for part in ids]
    metrics |= {
        "loss_by_frequency_alone": by_frequency,
        "neighbours_shared_by_two_seeds": shared_neighbours(tables["tied"], tables["tied_again"]),
        "neighbours_shared_by_tied_and_untied": shared_neighbours(tables["tied"], tables["untied"]),
        "words_read": len(ids[0]),
        "unknown_in_training": unknown[0],
        "unknown_in_validation": unknown[1],
    }
    kept = {kind: tables[kind].half().contiguous() for kind in KEPT}
    save_file(kept, options.folder / "embeddings.safetensors")
    counts = torch.bincount(ids[0], minlength=len(known)).tolist()
    table = [{"word": word, "count": n} for word, n in zip(known, counts, strict=True)]
    recipe = replace(runs["tied"][3], seed=options.seed)
    config = asdict(build(options, len(known), options.pick(64, 16), tied=True).config)
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe,
        rows=[row for _, _, rows, _ in runs.values() for row in rows], tables={"vocabulary": table},
        more={"config": config},
    )  # fmt: skip


if __name__ == "__main__":
    main()
