"""Which language is a number written in? An encoder that reads letters.

    python -m experiments.languages

A dozen languages, some of them near relatives; 200 numbers to learn from, 700 others to be
measured with.
"""

from collections.abc import Sequence

import torch

from experiments.shared.common import (
    Options,
    intervals,
    predictions,
    read_options,
    small_config,
    watch,
    write_results,
)
from transformer_book import datasets
from transformer_book.datasets import LANGUAGES, NumberWords
from transformer_lib import (
    Batches,
    CharTokenizer,
    SequenceClassifier,
    Tokenizer,
    classification_batch,
    modern_recipe,
    train,
)

CHAPTER = "11b_context"
ABOUT = {
    "Task": f"""The words of a number from 0 to 999 in, one of {len(LANGUAGES)} languages out:
        {", ".join(LANGUAGES.values())}. The encoder reads letters; the mean of its vectors is
        classified.""",
    "Intended use": "Teaching: a classifier with padding, pooling and a confusion matrix.",
    "Limits": """It has seen number words only, so any other text gets some language, too.
        Hard are near relatives and short words that occur in no other number; `confusion.csv` and
        the mistakes in `card.json` show which. This task needs no Transformer: logistic regression
        on the counts of up to three letters in a row gets 99.3 % of the same test right (measured
        once with scikit-learn's `LogisticRegression`, not part of the tests).""",
}


def batches(part: Sequence[NumberWords], tokenizer: Tokenizer, options: Options) -> Batches:
    """Make batches of texts that are about equally long."""
    examples = [(torch.tensor(tokenizer.encode(row.words)), row.label) for row in part]
    return Batches(
        examples,
        classification_batch,
        batch_size=options.pick(64, 8),
        length=lambda example: len(example[0]),
        bucket=512,
        seed=options.seed,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the classifier, test it and write the results."""
    options = read_options("languages", __doc__, arguments)
    data = datasets.languages()
    tokenizer = CharTokenizer.train(row.words for row in data.train)
    config = small_config(
        vocab_size=tokenizer.vocab_size,
        max_len=128,
        d_model=options.pick(64, 16),
        n_layers=options.pick(4, 1),
        dropout=0.2,
    )
    model = SequenceClassifier(config, n_classes=len(LANGUAGES), pooling="mean")
    steps = options.n_steps(1_500)
    recipe = modern_recipe(
        steps, 1e-3, final_fraction=0.0, patience=steps, seed=options.seed, **intervals(steps)
    )  # with patience the weights of the best validation are put back
    few = options.pick(None, 24)
    rows = train(
        model, batches(data.train, tokenizer, options), recipe,
        validation=batches(data.validation[:few], tokenizer, options),
        device=options.device, progress=False, on_step=watch,
    )  # fmt: skip
    test = batches(data.test[:few], tokenizer, options)
    found = predictions(model, test)
    truth = torch.tensor([row.label for row in data.test[:few]])
    n = len(LANGUAGES)
    confusion = torch.bincount(truth * n + found, minlength=n * n).view(n, n)  # row: the truth
    table = [
        {"language": code, **dict(zip(LANGUAGES, counts, strict=True))}
        for code, counts in zip(LANGUAGES, confusion.tolist(), strict=True)
    ]
    mistakes = [
        {"words": row.words, "language": row.language, "answer": list(LANGUAGES)[answer]}
        for row, answer in zip(data.test, found.tolist(), strict=False)
        if row.label != answer
    ]
    metrics = {
        "test_accuracy": float((found == truth).double().mean()),
        "test_mistakes": len(mistakes),
        "test_examples": len(truth),
        "validation_loss": min(row["validation_loss"] or 99.0 for row in rows),
    }
    write_results(
        options, "languages.tsv", ABOUT, metrics, recipe, model=model, tokenizer=tokenizer,
        rows=rows, tables={"confusion": table}, more={"mistakes": mistakes[:20]},
    )  # fmt: skip


if __name__ == "__main__":
    main()
