"""One word, two meanings: how far does a trained encoder tell them apart, and a twin that is not?

    python -m experiments.senses

The word *bank* stands in ten sentences beside a river and in ten about money; two more words come
in ten sentences each. all-MiniLM-L6 (see ``transformer_book.minilm``) gives a vector of the word
after each layer. Which share of these vectors' variance does the meaning explain, and can it be
read from them? The same is asked of untrained twins, of the bare input, and of the word *the*.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import Row, constant_adam, read_options, rounded, write_results
from transformer_book import minilm
from transformer_lib import SequenceClassifier, hidden_states

CHAPTER = "11b_context"
SENTENCES = {  # the first half of each has one meaning, the second the other
    "bank": [
        "we sat on the bank of the river and ate our bread",
        "the boat drifted slowly towards the muddy bank",
        "willows grow along the bank where the water is shallow",
        "she swam across and climbed up the steep bank",
        "the flood washed away a part of the bank",
        "two fishermen stood on the bank with their rods",
        "ducks were sleeping in the grass of the bank",
        "the path follows the bank down to the bridge",
        "he slipped on the wet bank and fell into the stream",
        "a heron waited on the far bank of the canal",
        "the bank raised its interest rates again in spring",
        "she opened an account at the bank near the office",
        "the bank refused to lend him the money for a house",
        "he paid the cheque into the bank on monday",
        "the robbers left the bank with two bags of cash",
        "my bank charges a fee for every transfer",
        "the clerk at the bank counted the notes twice",
        "shares of the largest bank fell by a tenth",
        "they asked the bank for a loan to buy a tractor",
        "the bank sent her a new card by post",
    ],
    "bat": [
        "a bat flew out of the cave at dusk",
        "the bat hung from the branch with folded wings",
        "at night the bat hunts moths by their echo",
        "a small brown bat slept under the roof",
        "the bat cannot see well but hears everything",
        "he swung the bat and missed the ball",
        "she bought a new bat before the match",
        "the bat broke when it hit the fast ball",
        "the player raised his bat to thank the crowd",
        "the coach showed him how to hold the bat",
    ],
    "spring": [
        "in spring the birds return from the south",
        "the snow melts early every spring on these hills",
        "we plant beans and peas in spring",
        "after a long winter the spring was warm",
        "the trees turn green again each spring",
        "the spring in the old watch is broken",
        "a steel spring pushes the door shut",
        "he stretched the spring until it bent",
        "the mattress has a loose spring in the middle",
        "the toy jumps because of a small spring inside",
    ],
}
COMMON = "the"
N_TWINS = 5
ABOUT = {
    "Task": """*bank* in ten sentences beside a river and ten about money, *bat* (five animals, five
        for ball games) and *spring* (five seasons, five coils). For the vectors of the word: which
        share of their variance does the meaning explain? And which part is nearer to the mean of
        the others of its own meaning than to that of the other meaning, by the cosine?""",
    "Choices": f"""The sentences were written before any vector was looked at, and none was
        exchanged. Each is a text of its own, without padding. `untrained`: {N_TWINS} twins, the
        same configuration with parameters freshly drawn, after Xavier: the small first weights of
        BERT's authors would write next to nothing. `inputs`: the mean of
        the embeddings of all other words of the sentence, without positions and without any layer.
        `{COMMON}`: the first *{COMMON}* of each sentence of *bank* that has one.""",
    "How to read the tables": """`results.csv`: `share`, of the variance; `chance`, what a random
        split into the same groups would explain on average; `right`, the part that is told by the
        nearer mean, where each vector is left out of the means. Layer 0 is the input.
        `pairs.csv`: the mean cosine of a vector of *bank* with those of *bank* in other sentences
        of the same meaning and of the other one, and with those of all other words in other
        sentences. `sentences.csv`: the sentences.""",
    "Intended use": "Teaching: what a contextual vector is about, beside controls.",
    "Limits": """Forty plain sentences and one encoder. Sentences on one meaning share other words
        and a subject, and the vectors of all their words may show it: the rows of `inputs` and of
        the common word say how much.""",
}


@torch.no_grad()
def states_of(model: SequenceClassifier, sentence: str) -> Tensor:
    """Return the vectors of a sentence's tokens, ``(layers + 1, T, D)``."""
    ids = torch.tensor([minilm.tokenizer().encode(sentence)])
    return torch.cat(list(hidden_states(model.encoder, ids).values())).double()


def vectors(model: SequenceClassifier, sentences: Sequence[str], word: str) -> Tensor:
    """Return the vectors of a word's first place in sentences, ``(layers + 1, N, D)``."""
    places = [minilm.tokenizer().tokens(sentence).index(word) for sentence in sentences]
    found = [states_of(model, s)[:, place] for s, place in zip(sentences, places, strict=True)]
    return torch.stack(found, dim=1)


@torch.no_grad()
def inputs(model: SequenceClassifier, sentences: Sequence[str], word: str) -> Tensor:
    """Return the mean of the embeddings of a sentence's other words, ``(N, D)``."""
    tokenizer, table = minilm.tokenizer(), model.encoder.embedding.tokens.weight
    rows = [
        [tokenizer.ids[token] for token in tokenizer.tokens(sentence)[1:-1] if token != word]
        for sentence in sentences
    ]
    return torch.stack([table[row].mean(dim=0) for row in rows]).double()


def share(x: Tensor, second: Tensor) -> float:
    """Return the share of the variance of ``(N, D)`` that two groups explain."""
    x = x - x.mean(dim=0)
    within = sum((x[g] - x[g].mean(dim=0)).square().sum() for g in (second, ~second))
    return float(1 - within / x.square().sum())


def told(x: Tensor, second: Tensor) -> float:
    """Return which part of ``(N, D)`` is nearer to the mean of its own group, itself left out."""
    right = 0
    for n, group in enumerate(second):
        rest = torch.arange(len(x)) != n
        means = [x[rest & same].mean(dim=0) for same in (second == group, second != group)]
        own, other = (F.cosine_similarity(x[n], mean, dim=0) for mean in means)
        right += int(own > other)
    return right / len(x)


def rows_of(word: str, kind: str, draw: int, layers: Tensor, second: Tensor) -> list[Row]:
    """Measure the vectors ``(layers, N, D)`` of a word; a row for each layer."""
    return [
        {
            "word": word,
            "kind": kind,
            "draw": draw,
            "layer": layer,
            "share": rounded(share(x, second), 4) if x.std(dim=0).max() > 1e-9 else 0.0,
            "right": rounded(told(x, second), 4),
            "chance": rounded(1 / (len(x) - 1), 4),
        }
        for layer, x in enumerate(layers)
    ]


def mean_cosines(x: Tensor, second: Tensor, others: Tensor, owner: Tensor) -> Row:
    """Compare the vectors ``(N, D)`` of a word with each other, and with those of other words.

    Args:
        x: the word's vector in each sentence.
        second: which sentences have the second meaning, ``(N,)``.
        others: the vectors of other words, ``(M, D)``.
        owner: the sentence in which each of these stands, ``(M,)``.
    """
    x, others = F.normalize(x, dim=-1), F.normalize(others, dim=-1)
    same, sentence = second[:, None] == second, torch.arange(len(x))
    twice = torch.eye(len(x), dtype=torch.bool)
    cosines, beside = x @ x.T, x @ others.T
    return {
        "same_meaning": rounded(cosines[same & ~twice].mean().item(), 4),
        "other_meaning": rounded(cosines[~same].mean().item(), 4),
        "other_word": rounded(beside[sentence[:, None] != owner].mean().item(), 4),
    }


def pair_rows(model: SequenceClassifier, kind: str, draw: int, word: str) -> list[Row]:
    """Return the mean cosines of a word's vectors; a row for each layer."""
    sentences, found, owner = SENTENCES[word], [], []
    for n, sentence in enumerate(sentences):
        tokens = enumerate(minilm.tokenizer().tokens(sentence)[1:-1], start=1)
        places = [place for place, token in tokens if token != word]
        found.append(states_of(model, sentence)[:, places])
        owner += [n] * len(places)
    second = torch.arange(len(sentences)) >= len(sentences) // 2
    layers = zip(vectors(model, sentences, word), torch.cat(found, dim=1), strict=True)
    return [
        {"kind": kind, "draw": draw, "layer": layer}
        | mean_cosines(x, second, others, torch.tensor(owner))
        for layer, (x, others) in enumerate(layers)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the trained encoder, its twins, and the inputs."""
    options = read_options("senses", __doc__, arguments)
    model = minilm.load().cpu().eval()
    models = [("trained", 0, model)]
    fresh = replace(model.config, init="xavier")
    for draw in range(options.pick(N_TWINS, 1)):
        torch.manual_seed(options.seed + draw)
        models.append(("untrained", draw, SequenceClassifier(fresh, 2).cpu().eval()))
    results: list[Row] = []
    pairs = [row for kind, draw, each in models for row in pair_rows(each, kind, draw, "bank")]
    for word, sentences in SENTENCES.items():
        second = torch.arange(len(sentences)) >= len(sentences) // 2
        results += rows_of(word, "inputs", 0, inputs(model, sentences, word)[None], second)
        for kind, draw, each in models:
            results += rows_of(word, kind, draw, vectors(each, sentences, word), second)
    have = [n for n, text in enumerate(SENTENCES["bank"]) if COMMON in text.split()]
    some, second = [SENTENCES["bank"][n] for n in have], torch.tensor([n >= 10 for n in have])
    results += rows_of(COMMON, "trained", 0, vectors(model, some, COMMON), second)
    metrics = {
        f"{row['word']}, {row['kind']}, after {row['layer']} layers": row["share"]
        for row in results
        if row["draw"] == 0 and row["layer"] in (0, 6)
    }
    texts = [
        {"word": word, "meaning": 1 + (n >= len(sentences) // 2), "sentence": sentence}
        for word, sentences in SENTENCES.items()
        for n, sentence in enumerate(sentences)
    ]
    write_results(
        options, f"40 sentences; weights: {minilm.PACKAGE}", ABOUT, metrics, constant_adam(1),
        tables={"results": results, "pairs": pairs, "sentences": texts},
    )  # fmt: skip


if __name__ == "__main__":
    main()
