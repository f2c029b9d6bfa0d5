"""English number words to German ones: the Transformer of 2017, letter by letter.

    python -m experiments.numbers

*Two hundred and forty-one* becomes *zweihunderteinundvierzig*: German says the units before the
tens, so the model has to look to and fro in the source. It is measured by how many numbers it has
never seen it writes without a single wrong letter.
"""

import random
from collections.abc import Sequence

import torch

from experiments.shared.common import Options, intervals, read_options, watch, write_results
from transformer_book import datasets
from transformer_book.datasets import Number
from transformer_lib import (
    Batches,
    CharTokenizer,
    Seq2SeqLM,
    Tokenizer,
    TransformerConfig,
    generate,
    pad,
    recipe_2017,
    train,
    translation_batch,
)

CHAPTER = "14_training"
MAX_LEN = 80  # the longest English text has 72 letters, the longest German word 64
MAX_MISTAKES = 20  # so many are written down
ABOUT = {
    "Task": """A number from 0 to 999,999 in English words in, the same number as a German word
        out. Encoder and decoder read and write single letters.""",
    "Choices": """All parts are those of the paper of 2017, smaller: sinusoidal positions, ReLU,
        post-norm, one table of embeddings for source, target and output; Adam with the
        inverse-square-root schedule, label smoothing of 0.1 and dropout of 0.1. Post-norm is known
        to be hard to train when it is deep; three blocks with a warm-up are not. The book's own
        `CharTokenizer` serves both languages.""",
    "Intended use": """Teaching: a complete translator in one and a half million parameters whose
        cross-attention can be read. Not for anything that must be right.""",
    "Limits": """It knows nothing but number words in the spelling of its data. What it reads must
        be one number of at most six digits. Answers are the best letter at each step (greedy).""",
}

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def encode(numbers: Sequence[Number], tokenizer: Tokenizer) -> Pairs:
    """Write both sides as token ids."""
    return [
        (torch.tensor(tokenizer.encode(n.english)), torch.tensor(tokenizer.encode(n.german)))
        for n in numbers
    ]


def batches(pairs: Pairs, options: Options) -> Batches:
    """Make batches of pairs whose targets are about equally long."""
    return Batches(
        pairs,
        translation_batch,
        batch_size=options.pick(256, 8),
        length=lambda pair: len(pair[1]),
        bucket=options.pick(2_048, 16),
        seed=options.seed,
    )


def translate(model: Seq2SeqLM, texts: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Translate texts, all at once and greedily."""
    source, mask = pad([tokenizer.encode(text) for text in texts], tokenizer.pad_id)
    device = next(model.parameters()).device
    prompt = torch.full((len(texts), 1), tokenizer.bos_id, device=device)
    ids = generate(
        model,
        prompt,
        source=source.to(device),
        source_mask=mask.to(device),
        max_new_tokens=MAX_LEN,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
    )
    return [tokenizer.decode(row) for row in ids.tolist()]


def mistakes(
    model: Seq2SeqLM, numbers: Sequence[Number], tokenizer: Tokenizer
) -> list[dict[str, str]]:
    """Return the numbers that are not translated letter by letter as they should be."""
    answers = translate(model, [number.english for number in numbers], tokenizer)
    return [
        {"english": number.english, "german": number.german, "answer": answer}
        for number, answer in zip(numbers, answers, strict=True)
        if answer != number.german
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the translator, test it on all held-out numbers and write the results."""
    options = read_options("numbers", __doc__, arguments)
    data = datasets.numbers()
    tokenizer = CharTokenizer.train(n.english + n.german for n in data.train)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        max_len=MAX_LEN,
        d_model=options.pick(128, 16),
        n_heads=4,
        n_layers=options.pick(3, 1),
    )  # all else is 2017 by default
    model = Seq2SeqLM(config)
    steps = options.n_steps(4_000)
    recipe = recipe_2017(
        config.d_model,
        steps=steps,
        warmup=max(steps // 5, 1),
        seed=options.seed,
        **intervals(steps),
    )
    few = options.pick(None, 64)
    train_pairs, validation_pairs = (
        encode(part[:few], tokenizer) for part in (data.train, data.validation)
    )
    rows = train(
        model, batches(train_pairs, options), recipe,
        validation=batches(validation_pairs, options),
        device=options.device, progress=False, on_step=watch,
    )  # fmt: skip
    test = data.test[: options.pick(len(data.test), 8)]
    wrong = mistakes(model, test, tokenizer)
    # Of numbers it has learned from: are mistakes a matter of learning, or of carrying over?
    known = random.Random(options.seed).sample(data.train, len(test))
    metrics = {
        "test_exact_match": 1 - len(wrong) / len(test),
        "test_mistakes": len(wrong),
        "test_numbers": len(test),
        "exact_match_on_known_numbers": 1 - len(mistakes(model, known, tokenizer)) / len(known),
        "validation_loss": rows[-1]["validation_loss"],
    }
    write_results(
        options, "numbers.tsv", ABOUT, metrics, recipe, model=model, tokenizer=tokenizer, rows=rows,
        more={"mistakes": wrong[:MAX_MISTAKES]},
    )  # fmt: skip


if __name__ == "__main__":
    main()
