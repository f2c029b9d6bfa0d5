"""Why two kinds of sublayers, and why many? Encoders of one kind, of both, flat and deep.

    python -m experiments.sublayers

Small encoders read numbers in English words, in which some letters are hidden, and guess these
from the others. Four of them have nearly the same number of parameters: attention alone,
feed-forward networks alone, four blocks of both, and the same four attentions and four networks
side by side in a single block; these two learn at two rates. Two more stacks have fewer blocks.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    n_parameters,
    read_options,
    rounded,
    side_by_side,
    write_results,
)
from experiments.shared.loops import minimise
from transformer_book import datasets
from transformer_lib import (
    FeedForward,
    MultiHeadAttention,
    Recipe,
    modern_recipe,
    sinusoidal,
    token_mask,
)

CHAPTER = "11_encoder"
WIDTH, BATCH, HEADS = 32, 32, 4
BELOW = 10_000  # the numbers that are read
HIDDEN = 0.3  # which part of the letters is hidden
RATE, SECOND_RATE = 5e-3, 1e-2
STACKS = {  # A: attention, F: a network; what is written together works side by side
    "attention only": "A " * 12, "4 blocks": "A F " * 4, "side by side": "AAAA FFFF",
    "2 blocks": "A F " * 2, "feed-forward only": "F " * 6, "1 block": "A F",
}  # fmt: skip
AT_BOTH_RATES = ("4 blocks", "side by side")
ABOUT = {
    "Task": f"""The English words of a number below {BELOW:,} in, each letter hidden with
        probability {HIDDEN}; out, the probabilities of the letters that are hidden.""",
    "Choices": f"""Width {WIDTH}, {HEADS} heads, ReLU, sinusoids added at the input, a LayerNorm
        before each sublayer and at the end, no dropout; AdamW with warm-up and decay, gradients
        clipped at 1, {BATCH} numbers in a batch. `attention only` has twelve sublayers and
        `feed-forward only` six. `side by side` is one block: four attentions read the same
        vectors, their results are added, and so are those of four networks. Each of these has
        nearly as many parameters as four blocks of both. All stacks learn at the rate {RATE},
        which the recipe below names, and `4 blocks` and `side by side` at {SECOND_RATE}, too. For
        one seed all runs see the same letters. Every run is a row.""",
    "How to read the table": """`results.csv`: `right` is the share of the hidden letters of new
        numbers (the test part) that are guessed right, `loss` their mean loss in nats;
        `commonest` the share that a guess of the commonest letter of its place gets right, as
        counted in the numbers that are learned. `parameters` are those of all sublayers and
        norms. `learned` and `new` count the numbers.""",
    "Intended use": "Teaching: what each kind of sublayer is for, and what depth adds.",
    "Limits": """One small width, one regular language, a short training. No stack was given the
        rate or the number of steps that suit it best; two were given a second rate, and both did
        better with it. The shipped runs at 0.01 were made one by one, by the same functions, and
        joined to the others; the seconds are their rough sum.""",
}


class Reader(nn.Module):
    """An encoder whose sublayers are named by letters, and an output layer."""

    def __init__(self, stack: str, n_letters: int, width: int) -> None:
        super().__init__()
        groups = stack.split()
        self.embedding = nn.Embedding(n_letters + 1, width)  # the last row: hidden
        self.sublayers = nn.ModuleList(
            nn.ModuleList(
                MultiHeadAttention(width, HEADS) if kind == "A" else FeedForward(width, 4 * width)
                for kind in group
            )
            for group in groups
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in [*groups, "end"])
        self.output = nn.Linear(width, n_letters)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits ``(B, T, letters)`` for ids ``(B, T)``."""
        x: Tensor = self.embedding(ids)
        x = x + sinusoidal(torch.arange(ids.shape[1], device=ids.device), x.shape[-1])
        mask, (*before, last) = token_mask(ids, 0), self.norms
        for norm, parts in zip(before, self.sublayers, strict=True):
            read = norm(x)
            for part in parts.children():
                x = x + (part(read) if isinstance(part, FeedForward) else part(read, mask=mask))
        logits: Tensor = self.output(last(x))
        return logits


def spelled(part: Sequence[datasets.Number], letters: Sequence[str]) -> Tensor:
    """Return the ids of the numbers' letters, ``(N, T)``; 0 is padding."""
    ids = {letter: n for n, letter in enumerate(letters, start=1)}
    rows = [torch.tensor([ids[letter] for letter in number.english]) for number in part]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def hide(ids: Tensor, n_letters: int, drawn: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return texts ``(B, T)`` with some letters hidden, and which ones these are."""
    hidden = (torch.rand(ids.shape, generator=drawn) < HIDDEN).to(ids.device) & (ids > 0)
    return ids.masked_fill(hidden, n_letters), hidden


def commonest(learn: Tensor, length: int) -> Tensor:
    """Return the commonest letter of each place in numbers ``(N, T)``, ``(length,)``."""
    overall = learn[learn > 0].mode().values
    places = [place[place > 0] for place in learn.T]  # the last ones may be padding alone
    known = [place.mode().values if len(place) else overall for place in places]
    return torch.stack([*known, *[overall] * (length - len(known))][:length])


def run_one(name: str, rate: float, seed: int, recipe: Recipe, options: Options) -> Row:
    """Train one encoder; return its row."""
    numbers = datasets.numbers()
    known, unknown = (
        [number for number in part if number.number < options.pick(BELOW, 500)]
        for part in (numbers.train, numbers.test)
    )
    letters = sorted({letter for number in known for letter in number.english})
    learn, new = spelled(known, letters), spelled(unknown, letters).to(options.device)
    torch.manual_seed(seed)
    n_letters = len(letters) + 1  # with the padding
    model = Reader(STACKS[name], n_letters, options.pick(WIDTH, 16)).to(options.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), rate, recipe.betas, weight_decay=recipe.weight_decay
    )
    drawn = torch.Generator().manual_seed(seed)

    def loss_at(step: int) -> Tensor:
        ids = learn[torch.randint(len(learn), (BATCH,), generator=drawn)].to(options.device)
        seen, hidden = hide(ids, n_letters, drawn)
        return F.cross_entropy(model(seen)[hidden], ids[hidden])

    recipe = replace(recipe, learning_rate=rate, seed=seed)
    minimise(model, optimizer, recipe, loss_at, clip=recipe.clip)
    seen, hidden = hide(new, n_letters, torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, targets = model(seen)[hidden], new[hidden]
    by_place = commonest(learn, new.shape[1]).to(new).expand_as(new)
    return {
        "stack": name,
        "parameters": n_parameters(model.sublayers) + n_parameters(model.norms),
        "rate": rate,
        "seed": seed,
        "right": rounded((logits.argmax(dim=-1) == targets).double().mean().item()),
        "loss": rounded(F.cross_entropy(logits, targets).item()),
        "commonest": rounded((targets == by_place[hidden]).double().mean().item()),
        "learned": len(known),
        "new": len(unknown),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all encoders."""
    options = read_options("sublayers", __doc__, arguments)
    steps = options.n_steps(600)
    recipe = modern_recipe(steps, RATE, warmup=steps // 10, weight_decay=0.01)
    rates = {
        name: (RATE, SECOND_RATE) if name in AT_BOTH_RATES and not options.tiny else (RATE,)
        for name in STACKS
    }
    runs = [
        (name, rate, seed) for name in STACKS for rate in rates[name] for seed in options.seeds(3)
    ]
    results = side_by_side(run_one, [(*run, recipe, options) for run in runs], options)
    metrics = {
        f"right ({name}, rate {rate:g})": mean_of(results, "right", stack=name, rate=rate)
        for name in STACKS
        for rate in rates[name]
    }
    write_results(
        options, "numbers.tsv", ABOUT, metrics, recipe,
        tables={"results": results},
    )  # fmt: skip


if __name__ == "__main__":
    main()
