"""When RoPE breaks beyond the trained length, and what stretching its angles repairs.

    python -m experiments.stretching

Language models that differ in one thing from the one before (training, length, size, parts, recipe)
are read at up to four times the trained length, position by position. Then their angles are
stretched by the rules that models use, as they are and after some more training, with two controls.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from experiments.lengths import letter_losses, stretches
from experiments.shared.common import (
    Options,
    Row,
    constant_adam,
    mean_of,
    merge_tables,
    modern_config,
    read_options,
    rounded,
    side_by_side,
    small_config,
    texts,
    write_results,
)
from experiments.shared.loops import minimise
from transformer_lib import CausalLM, RopeScaling, TextWindows, modern_recipe, train

CHAPTER = "07b_length"
FACTORS = (2, 4)  # how many times as long the texts become
TURNS = (0.5, 1.0, 2.0, 4.0, 8.0)  # pairs that turn less often in the trained length are slowed
RULES = ("plain", "linear", "ntk", "yarn", "llama3")
TUNED = (0, 10, 30, 100)  # updates at the new length
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """Decoders with RoPE, four heads of 32 features (eight in the larger models), three
        seeds each. `small` has three layers of width 128 and reads windows of 128 characters for
        2,000 updates, as in `lengths`. `brief` and `patient` differ from it in the number of
        updates, `longer` in the length of its windows (256), `larger` in its size (four layers of
        width 256), `both` in these two. `modern` has the parts of today besides, and `book` also
        the dropout and the weight decay of the model in `shakespeare`. Texts are parts of a play
        that was not learned from. `first` is its first third, on which a rule may be chosen, and
        `rest` is what comes after it.""",
    "How to read the tables": """`positions.csv`: mean losses at the positions from `first` up to,
        but without, `last`. `rules.csv`: the loss of the last letters (half of the trained length
        of them) of a text of `length` letters, if angles are stretched for a text `factor` times as
        long by a rule: not at all (`plain`), all pairs alike (`linear`), by a base that is raised
        once (`base`, plain NTK) or grows with the text (`ntk`, dynamic NTK), or by turns (`yarn`,
        `llama3`, with their published constants). `turns 2` divides the pairs that turn fewer than
        twice in the trained length, and leaves all others alone. `tuned.csv`: the same after more
        updates on texts of four times the length with the stretched angles. `plain` is the control
        for stretching, and `short`, which goes on with plain angles and texts of the trained
        length, the one for the longer texts. `base` was measured later, on models that were trained
        again with the same seeds. Those of `small` came out the same to the last digit. Those of
        `both` and `book` did not: without stretching, the new models of `book` have losses from
        4.34 to 4.45 at twice the length (4.38 to 4.74 before).""",
    "Intended use": "Teaching: that one result at twice the length says little about another.",
    "Limits": """One text, one learning rate, small models. Between `both` and `book` parts and
        regularisation change, which are several things at a time. Large models may differ.""",
}


@dataclass(frozen=True)
class Kind:
    """What a model is made of, and how it is trained.

    Args:
        trained: how many characters its windows have.
        large: whether it has four layers of width 256.
        steps: how many updates, as a multiple of the usual number.
        modern: whether it has the parts of today.
        regular: whether it has dropout and weight decay.
    """

    trained: int = 128
    large: bool = False
    steps: float = 1.0
    modern: bool = False
    regular: bool = False


KINDS = {
    "small": Kind(),
    "brief": Kind(steps=0.25),
    "patient": Kind(steps=3.0),
    "longer": Kind(trained=256),
    "larger": Kind(large=True),
    "both": Kind(trained=256, large=True),
    "modern": Kind(trained=256, large=True, modern=True),
    "book": Kind(trained=256, large=True, modern=True, regular=True),
}
STRETCHED = ("small", "both", "book")


def build(kind: Kind, vocab: int, longest: int, options: Options) -> CausalLM:
    """Make a decoder of a kind with new weights."""
    width, n_layers = options.pick((256, 4) if kind.large else (128, 3), (16, 1))
    sizes = {"vocab_size": vocab, "max_len": longest, "d_model": width, "n_layers": n_layers}
    sizes["n_heads"] = options.pick(width // 32, 2)
    if not kind.modern:
        return CausalLM(small_config(**sizes, position="rope"))
    sizes["d_ff"] = options.pick(688, 32)
    return CausalLM(modern_config(**sizes, dropout=0.3 if kind.regular else 0.0))


def scaling_of(rule: str, factor: float, trained: int) -> RopeScaling | None:
    """Say how angles are stretched: by a name of ``RULES``, or "turns 2" for a sharp border."""
    if rule in {"plain", "short", "base"}:
        return None
    if rule.startswith("turns "):  # the rule of LLaMA 3, with hardly any room between fast and slow
        border = float(rule.removeprefix("turns "))
        fast = border * 1.0001
        return RopeScaling(
            kind="llama3", factor=factor, trained_len=trained, slow_turns=border, fast_turns=fast
        )
    ends = {"fast_turns": 4.0} if rule == "llama3" else {}
    kind = rule  # the names are the library's
    return RopeScaling(kind=kind, factor=factor, trained_len=trained, **ends)  # type: ignore[arg-type]


def stretched(model: CausalLM, rule: str, factor: float, trained: int) -> CausalLM:
    """Copy a trained model, with other angles."""
    config = replace(model.config, rope_scaling=scaling_of(rule, factor, trained))
    if rule == "base":  # plain NTK: the slowest pair is divided by the factor, at every length
        width = config.d_model // config.n_heads
        raised = config.rope_theta * factor ** (width / (width - 2))
        config = replace(config, rope_theta=raised)
    copy = CausalLM(config).to(next(model.parameters()).device)
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def losses_by_part(model: CausalLM, text: Tensor, length: int, trained: int) -> Row:
    """Return the mean loss of the last letters of texts, on the part to choose on and on the rest.

    Args:
        model: a language model.
        text: new text, ``(N,)``.
        length: how many letters the model reads.
        trained: the length of its training.

    Returns:
        The losses, ``first`` and ``rest``, of the last ``trained / 2`` letters.
    """
    parts = {"first": text[: len(text) // 3], "rest": text[len(text) // 3 :]}
    longest = max(FACTORS) * trained
    return {
        name: rounded(float(letter_losses(model, part, length, longest)[-trained // 2 :].mean()))
        for name, part in parts.items()
    }


def run_kind(name: str, seed: int, options: Options) -> dict[str, list[Row]]:
    """Train one model, read it by position, and stretch it.

    Args:
        name: of its kind.
        seed: of weights, batches and dropout.
        options: the experiment's.

    Returns:
        The rows of all tables.
    """
    kind = KINDS[name]
    known, unknown, letters = texts(options.pick(None, 3_000))
    unknown = unknown.to(options.device)
    trained = options.pick(kind.trained, 16)
    longest = max(FACTORS) * trained
    torch.manual_seed(seed)
    model = build(kind, len(letters), longest, options)
    recipe = modern_recipe(
        max(1, int(options.n_steps(2_000) * kind.steps)),
        2e-3,
        weight_decay=0.1 if kind.regular else 0.0,
        checkpoint_every=10**6,
        seed=seed,
    )
    windows = TextWindows(known, trained, batch_size=32, seed=seed)
    train(model, windows, recipe, device=options.device, progress=False)
    model.eval()
    run: Row = {"kind": name, "seed": seed}
    by_position = letter_losses(model, unknown, longest, longest)
    places = [
        run | {"trained": trained, "first": first, "last": last}
        | {"loss": rounded(float(by_position[first:last].mean()))}
        for first, last in stretches(trained, longest)
    ]  # fmt: skip
    tables = {"positions": places}
    if name in STRETCHED:
        tables["rules"] = apply_rules(model, unknown, trained, run)
        tables["tuned"] = tune(model, known, unknown, trained, run, options)
    return tables


def apply_rules(model: CausalLM, text: Tensor, trained: int, run: Row) -> list[Row]:
    """Stretch a trained model by all rules, without any training.

    Args:
        model: the model.
        text: new text.
        trained: the trained length.
        run: the fields that every row begins with.

    Returns:
        The rows of ``rules.csv``.
    """
    rows = []
    names = (*RULES, "base", *(f"turns {n:g}" for n in TURNS))
    for rule, factor in product(names, FACTORS):
        other = stretched(model, rule, factor, trained)
        for length in (trained, factor * trained):
            found = losses_by_part(other, text, length, trained)
            rows.append(run | {"rule": rule, "factor": factor, "length": length} | found)
    return rows


def tune(
    model: CausalLM, known: Tensor, unknown: Tensor, trained: int, run: Row, options: Options
) -> list[Row]:
    """Go on training for a while at the longest length, with stretched angles and without.

    Args:
        model: the trained model.
        known: text to learn from.
        unknown: text to test with.
        trained: the trained length.
        run: the fields that every row begins with.
        options: the experiment's.

    Returns:
        The rows of ``tuned.csv``.
    """
    factor = max(FACTORS)
    milestones = options.pick(TUNED, (0, 2))
    rows: list[Row] = []
    for rule in (*RULES, "short"):
        longer = 1 if rule == "short" else factor
        other = stretched(model, rule, factor, trained)
        windows = TextWindows(known, longer * trained, 32 // longer, seed=1_000 + run["seed"])

        def measure(steps: int, other: CausalLM = other, rule: str = rule) -> None:
            other.eval()
            for length in (trained, factor * trained):
                found = losses_by_part(other, unknown, length, trained)
                rows.append(run | {"rule": rule, "steps": steps, "length": length} | found)
            other.train()

        def loss_at(
            step: int, other: CausalLM = other, windows: TextWindows = windows,
        ) -> Tensor:  # fmt: skip
            if step - 1 in milestones:
                measure(step - 1, other)
            batch = {field: part.to(options.device) for field, part in next(windows).items()}
            return F.cross_entropy(other(batch["ids"]).flatten(0, 1), batch["targets"].flatten())

        recipe = constant_adam(milestones[-1], 5e-4, seed=run["seed"])
        optimizer = torch.optim.Adam(other.parameters(), recipe.learning_rate, recipe.betas)
        torch.manual_seed(run["seed"])  # of dropout
        minimise(other, optimizer, recipe, loss_at, clip=1.0)
        measure(milestones[-1])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write three tables."""
    options = read_options("stretching", __doc__, arguments)
    order = sorted(KINDS, key=lambda name: (name not in STRETCHED[1:], -KINDS[name].steps))
    plan = [(run_kind, *run, options) for run in product(order, options.seeds(3))]
    tables = merge_tables(side_by_side(operator.call, plan, options))
    metrics = {
        f"{name}_{column}": mean_of(rows, "loss")
        for name in KINDS
        for column, rows in by_stretch(tables["positions"], name).items()
    }
    recipe = modern_recipe(options.n_steps(2_000), 2e-3, weight_decay=0.0, checkpoint_every=10**6)
    write_results(options, "shakespeare.txt", ABOUT, metrics, recipe, tables=tables)


def by_stretch(rows: Sequence[Row], name: str) -> dict[str, list[Row]]:
    """Return the rows of a kind at the end of the trained length, and at the end of twice it."""
    mine = [row for row in rows if row["kind"] == name]
    return {
        "inside": [r for r in mine if r["trained"] / 2 <= r["first"] < r["trained"]],
        "twice": [r for r in mine if 1.5 * r["trained"] <= r["first"] < 2 * r["trained"]],
    }


if __name__ == "__main__":
    main()
