"""Does a trained head send nouns to their adjectives? All 72 heads of MiniLM, asked and controlled.

    python -m experiments.word_head

Ten sentences put two adjectives before a noun (*the big red house stands*). For each head of
all-MiniLM-L6 (see ``transformer_book.minilm``) it measures which share of the noun's weight on the
other words these two get. Two controls change one thing each: the same adjectives after the noun
(*the house is big and red*), and other nouns in their places (*the car tree house stands*). Five
sentences are for choosing heads, the other five for testing them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.shared.common import Row, constant_adam, read_options, write_results
from transformer_book import minilm
from transformer_lib import SequenceClassifier, attention_maps

CHAPTER = "06b_trained_heads"
NOUNS = [  # article, two adjectives, noun, verb
    "the big red house stands", "a small old car stops", "the tall green tree falls",
    "a cold dark night comes", "the happy young girl sings", "the strong white horse runs",
    "a long narrow road ends", "the rich old man sleeps", "a soft blue light fades",
    "the hungry black cat waits",
]  # fmt: skip
FOX = "the quick brown fox jumps"  # the sentence of chapter 3
ABOUT = {
    "Task": """Ten nouns, each with two adjectives: before it, as in *the big red house stands*, and
        after it, as in *the house is big and red*. Of the weight that the noun gives to the other
        words of its sentence, which share do the two get? And which share do two other nouns get in
        their places, as in *the car tree house stands*?""",
    "Choices": """The sentences were written before any head was looked at (but for one verb, which
        was two tokens and was replaced); the control with nouns was added after the best heads were
        known, and takes the nouns of the next two sentences. Each is a text of its own for the
        encoder, between its two marks, `[CLS]` and `[SEP]`.""",
    "How to read the tables": """`results.csv`, a row for each of the 72 heads. The share of the two
        words in the noun's weight on the other words (the marks and the noun itself left out):
        `before_choosing` and `nouns_choosing`, mean over the first five sentences; `before`,
        `after` and `nouns`, mean over the other five, which are for testing. A head without any
        preference has 2/4, but 2/5 after the noun. `wins`: in how many of those five sentences the
        adjectives get a larger share than the nouns in their places. `words`: the noun's weight on
        the other words in the form *before*. `fox`: the share of *quick* and *brown* for *fox* in
        the sentence of chapter 3 (2/4).""",
    "Intended use": "Teaching: testing a story about trained heads.",
    "Limits": """Thirty short sentences and one model. A head that does nothing here may do
        something elsewhere.""",
}


def split(sentence: str) -> tuple[str, str, list[str]]:
    """Return the sentence with its adjectives after the noun, the noun, and the adjectives."""
    article, first, second, noun, _ = sentence.split()
    return f"{article} {noun} is {first} and {second}", noun, [first, second]


def with_nouns(sentences: Sequence[str]) -> list[str]:
    """Return the sentences with the next two sentences' nouns in place of the adjectives."""
    nouns = [sentence.split()[3] for sentence in sentences]
    changed = []
    for number, sentence in enumerate(sentences):
        article, _, _, noun, verb = sentence.split()
        first, second = (nouns[(number + step) % len(nouns)] for step in (1, 2))
        changed.append(f"{article} {first} {second} {noun} {verb}")
    return changed


@torch.no_grad()
def weights_of(model: SequenceClassifier, text: str) -> tuple[list[str], Tensor]:
    """Return a text's tokens and the weights of all heads, ``(layers, H, T, T)``."""
    maps = attention_maps(model, torch.tensor([minilm.tokenizer().encode(text)]))
    return minilm.tokenizer().tokens(text), torch.stack([heads[0] for heads in maps.values()])


def shares(
    model: SequenceClassifier, text: str, noun: str, words: list[str]
) -> tuple[Tensor, Tensor]:
    """Return the share of some words in the noun's weight on all other words, and that weight."""
    tokens, weights = weights_of(model, text)
    row = weights[:, :, tokens.index(noun)]  # (layers, H, T)
    apart = {*minilm.SPECIAL, noun}
    others = row[..., [place for place, token in enumerate(tokens) if token not in apart]].sum(-1)
    return row[..., [tokens.index(word) for word in words]].sum(dim=-1) / others, others


def measure(model: SequenceClassifier, sentences: Sequence[str]) -> list[Row]:
    """Measure every head; return the rows of ``results``."""
    turned = [split(sentence) for sentence in sentences]
    asked = [(text, *parts[1:]) for text, parts in zip(sentences, turned, strict=True)]
    changed = [(text, text.split()[3], text.split()[1:3]) for text in with_nouns(sentences)]
    before, words = map(torch.stack, zip(*(shares(model, *each) for each in asked), strict=True))
    after, nouns = (
        torch.stack([shares(model, *each)[0] for each in form]) for form in (turned, changed)
    )
    half = len(sentences) // 2  # the first ones are for choosing heads, the others for testing them
    tables = {
        "before_choosing": before[:half].mean(dim=0),
        "nouns_choosing": nouns[:half].mean(dim=0),
        "before": before[half:].mean(dim=0),
        "after": after[half:].mean(dim=0),
        "nouns": nouns[half:].mean(dim=0),
        "wins": (before > nouns)[half:].sum(dim=0),
        "words": words[half:].mean(dim=0),
        "fox": shares(model, FOX, "fox", ["quick", "brown"])[0],
    }
    n_layers, n_heads = tables["fox"].shape
    return [
        {"layer": layer, "head": head}
        | {name: round(table[layer, head].item(), 4) for name, table in tables.items()}
        for layer in range(n_layers)
        for head in range(n_heads)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all heads."""
    options = read_options("word_head", __doc__, arguments)
    model = minilm.load().cpu().eval()
    sentences = NOUNS[:3] if options.tiny else NOUNS
    results = measure(model, sentences)
    best = max(results, key=lambda row: float(str(row["before_choosing"])))
    metrics = {f"best head, {name}": value for name, value in best.items()}
    write_results(
        options, f"{len(sentences)} sentences in three forms; weights: {minilm.PACKAGE}", ABOUT,
        metrics, constant_adam(1),
        tables={"results": results},
    )  # fmt: skip


if __name__ == "__main__":
    main()
