"""Does a model that adds know how to add? Numbers as long as in training, and longer ones.

    python -m experiments.addition

Small decoders learn to add two numbers of up to five digits, written out digit by digit. They
differ in how positions are told and in the order of the answer's digits. Then they are asked for
sums of numbers of every length up to eight, and for sums whose carry runs through many digits,
which random numbers seldom have.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    Options,
    Row,
    mean_of,
    read_options,
    side_by_side,
    small_config,
    write_results,
)
from experiments.shared.loops import minimise
from transformer_lib import IGNORE, CausalLM, Position, Recipe, modern_recipe

CHAPTER = "20b_questions"
Order = Literal["first digit first", "last digit first"]
ORDERS: tuple[Order, ...] = get_args(Order)
POSITIONS: tuple[Position, ...] = ("learned", "rope", "none")
PLUS, EQUALS, END, PAD = 10, 11, 12, 13  # the digits are 0 to 9
TRAINED, LONGEST = 5, 8  # digits of a number
ABOUT = {
    "Task": f"""Two numbers, a plus and an equals sign in, their sum out, one digit a token. In
        training each number has 1 to {TRAINED} digits (every length as often), drawn anew for every
        batch. The loss counts the answer and its end.""",
    "Choices": """Decoders with 3 layers of width 128, 4 heads and pre-norm. They differ in the
        positions (a learned table, RoPE, none) and in the order of the answer's digits: as we write
        it, or the last digit first. The learned table has rows for the longest test; those beyond
        the longest training example keep the numbers they started with, but for weight decay.""",
    "How to read the tables": f"""`results.csv`: `right` is the share of sums without any wrong
        digit, `digits_right` the share of digits of the true answer that are right, `length_right`
        the share of answers that have as many digits as they should; both numbers have `digits`
        digits. `carries.csv`: numbers of {TRAINED} digits by the longest carry: how many digits in
        a row a carry goes through, from where it arises (0: there is none).""",
    "Intended use": "Teaching: the difference between a rule and its use within a range.",
    "Limits": """One size, one recipe, three seeds, and none of the ways that are known to help with
        longer numbers but the order of the digits.""",
}


def digits_of(numbers: Tensor, width: int) -> Tensor:
    """Return the digits of numbers, the first one first, with zeros before, ``(n, width)``."""
    powers = 10 ** torch.arange(width - 1, -1, -1)
    return numbers[:, None] // powers % 10


def written(numbers: Tensor, width: int) -> Tensor:
    """Return the digits of numbers without zeros before: padding stands there, ``(n, width)``."""
    digits = digits_of(numbers, width)
    leading = (digits.cumsum(dim=1) == 0) & (torch.arange(width) < width - 1)
    return digits.masked_fill(leading, PAD)


def examples(a: Tensor, b: Tensor, order: Order) -> tuple[Tensor, Tensor]:
    """Write sums as tokens.

    Args:
        a: whole numbers, ``(n,)``.
        b: as many.
        order: of the answer's digits.

    Returns:
        Tokens ``(n, T)``, filled up at the end; and which of them belong to the answer.
    """
    n = len(a)
    answer = written(a + b, LONGEST + 1)
    answer = answer.flip(1) if order == "last digit first" else answer
    sign = torch.ones(n, 1, dtype=torch.long)
    prompt = [written(a, LONGEST), PLUS * sign, written(b, LONGEST), EQUALS * sign]
    tokens = torch.cat([*prompt, answer, END * sign], dim=1)
    n_prompt = sum(part.shape[1] for part in prompt)
    in_answer = (torch.arange(tokens.shape[1]) >= n_prompt).expand_as(tokens)
    places = (tokens == PAD).long().argsort(dim=1, stable=True)  # padding goes to the end
    tokens, in_answer = tokens.gather(1, places), in_answer.gather(1, places)
    longest = int((tokens != PAD).sum(dim=1).max())
    return tokens[:, :longest], (in_answer & (tokens != PAD))[:, :longest]


def draw(n: int, generator: torch.Generator, least: int = 1, most: int = TRAINED) -> Tensor:
    """Draw numbers with ``least`` to ``most`` digits, every length as often, ``(n,)``."""
    lengths = torch.randint(least, most + 1, (n,), generator=generator)
    low = torch.where(lengths > 1, 10 ** (lengths - 1), 0)
    part = torch.rand(n, generator=generator, dtype=torch.float64)
    return low + (part * (10**lengths - low)).long()


def longest_carry(a: Tensor, b: Tensor, width: int) -> Tensor:
    """Return how many digits in a row a carry goes through, at most, ``(n,)``."""
    sums = (digits_of(a, width) + digits_of(b, width)).flip(1)  # the last digit first
    run = longest = torch.zeros(len(a), dtype=torch.long)
    for column in sums.T:
        run = torch.where(column > 9, 1, torch.where((column == 9) & (run > 0), run + 1, 0))
        longest = torch.maximum(longest, run)
    return longest


def with_carry(n: int, carry: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw pairs of ``TRAINED`` digits whose longest carry goes through ``carry`` digits.

    Random pairs are asked to have such a carry by setting some digits of the second number: the
    digit where the carry begins makes more than 9 with the one above it, those before it make 9.
    """
    width, kept = TRAINED, torch.zeros(2, 0, dtype=torch.long)
    while kept.shape[1] < n:
        a, b = (draw(4 * n, generator, width, width) for _ in range(2))
        top, below = digits_of(a, width), digits_of(b, width)
        if carry > 0:
            start = torch.randint(carry - 1, width, (4 * n,), generator=generator)  # its column
            columns = torch.arange(width)
            passed = (columns > start[:, None] - carry) & (columns < start[:, None])
            below = torch.where(passed, 9 - top, below)
            b = (below * 10 ** torch.arange(width - 1, -1, -1)).sum(dim=1)
        fits = (longest_carry(a, b, width) == carry) & (b >= 10 ** (width - 1))
        kept = torch.cat([kept, torch.stack([a, b])[:, fits]], dim=1)
    return kept[0, :n], kept[1, :n]


@torch.no_grad()
def answer(model: CausalLM, tokens: Tensor, in_answer: Tensor) -> Tensor:
    """Let a model write its answers; all prompts have one length. Returns ``(n, LONGEST + 2)``."""
    n_prompt = int((~in_answer[0]).sum()) - int((tokens[0] == PAD).sum())
    device = next(model.parameters()).device
    ids = tokens[:, :n_prompt].to(device)
    for _ in range(LONGEST + 2):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(dim=-1)], dim=1)
    return ids[:, n_prompt:].cpu()


def judge(model: CausalLM, a: Tensor, b: Tensor, order: Order) -> dict[str, float]:
    """Ask for sums, and count what is right."""
    tokens, in_answer = examples(a, b, order)
    said = answer(model, tokens, in_answer)
    true = torch.full_like(said, PAD)
    for row, example, inside in zip(true, tokens, in_answer, strict=True):
        row[: int(inside.sum())] = example[inside]
    there = true != PAD
    digits = there & (true != END)
    ended = (said == END).long().cumsum(dim=1) == 0  # before the first end
    same_length = ended.sum(dim=1) == digits.sum(dim=1)
    found = {
        "right": ((said == true) | ~there).all(dim=1),
        "digits_right": (said == true)[digits],
        "length_right": same_length,
    }
    return {name: float(values.double().mean()) for name, values in found.items()}


def build(position: Position, seed: int, options: Options) -> CausalLM:
    """Make a decoder with new weights."""
    torch.manual_seed(seed)
    width, n_layers = options.pick((128, 3), (16, 1))
    sizes = {"vocab_size": PAD + 1, "max_len": 4 * LONGEST, "d_model": width}
    config = small_config(**sizes, n_layers=n_layers, position=position)
    return CausalLM(config).to(options.device)


def run_one(
    order: Order, position: Position, seed: int, recipe: Recipe, options: Options
) -> tuple[list[Row], list[Row]]:
    """Train one model and ask it.

    Args:
        order: of the answer's digits.
        position: how positions are told.
        seed: of weights and data.
        recipe: how it learns.
        options: the experiment's.

    Returns:
        Rows of ``results.csv`` and of ``carries.csv``.
    """
    model = build(position, seed, options)
    optimizer = torch.optim.AdamW(
        model.parameters(), recipe.learning_rate, recipe.betas, weight_decay=recipe.weight_decay
    )
    drawn = torch.Generator().manual_seed(seed)
    size = options.pick(256, 4)

    def loss_at(_step: int) -> Tensor:
        tokens, in_answer = examples(draw(size, drawn), draw(size, drawn), order)
        targets = tokens.masked_fill(~in_answer, IGNORE)[:, 1:].to(options.device)
        logits = model(tokens[:, :-1].to(options.device))
        return F.cross_entropy(logits.mT, targets, ignore_index=IGNORE)

    minimise(model, optimizer, recipe, loss_at, clip=1.0)
    model.eval()
    n, asked = options.pick(500, 4), torch.Generator().manual_seed(10_000 + seed)
    run: Row = {"order": order, "position": position, "seed": seed}
    rows: list[Row] = []
    for digits in range(1, LONGEST + 1):
        a, b = (draw(n, asked, digits, digits) for _ in range(2))
        rows.append(run | {"digits": digits} | judge(model, a, b, order))
    carries: list[Row] = []
    for carry in range(TRAINED + 1):
        found = judge(model, *with_carry(n, carry, asked), order)
        carries.append(run | {"carry": carry} | found)
    return rows, carries


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write two tables."""
    options = read_options("addition", __doc__, arguments)
    recipe = modern_recipe(options.n_steps(3_000), 2e-3, weight_decay=0.01)
    positions = options.pick(POSITIONS, POSITIONS[:1])
    plan = [
        (order, position, seed, recipe, options)
        for seed in options.seeds(3)
        for order in ORDERS
        for position in positions
    ]
    found = side_by_side(run_one, plan, options)
    rows = [row for run in found for row in run[0]]
    tables = {"results": rows, "carries": [row for run in found for row in run[1]]}
    metrics = {
        f"{digits} digits, {order}, {position}": mean_of(
            rows, "right", digits=digits, order=order, position=position
        )
        for digits in (TRAINED, TRAINED + 1)
        for order in ORDERS
        for position in positions
    }
    description = f"sums of random numbers of up to {TRAINED} digits"
    write_results(options, description, ABOUT, metrics, recipe, tables=tables)


if __name__ == "__main__":
    main()
