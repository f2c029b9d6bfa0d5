"""Does a decoder find its place in the source by the letter that it has just read?

    python -m experiments.fingers

One wrong letter is put before a model that writes letter by letter: a letter that stands elsewhere
in the same answer. If the model finds its place by this letter, as one keeps a finger on a line,
it goes on from there. If it knows which letters are written, as one crosses off a list, it goes on
where it is and leaves this letter out later. The control: a letter that stands nowhere in the
answer.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from experiments.decoders import EOS, N_LETTERS, SHOWN, TASKS, prepare
from experiments.shared.common import (
    ROOT,
    Options,
    Row,
    constant_adam,
    read_options,
    side_by_side,
    write_results,
)
from transformer_book import datasets
from transformer_book.tasks import FIRST_SYMBOL, Pair
from transformer_lib import Batch, Recipe, Tokenizer, load_model, train, translation_batch

CHAPTER = "12b_teacher_forcing"
KINDS = ("whole",)  # of the experiment `decoders`
NEXT = 3  # letters that are compared
N_SHOWN = 3  # answers of each kind that are kept
N_WORDS = 2000
LETTERS, YES = ("elsewhere", "nowhere"), ("no", "yes")
SPECIAL = (0, 1, EOS)  # padding, start and end of the words
WAYS = ("in_place", "letter_due", "from_there", "crossed_off", "by_spelling")
ABOUT = {
    "Task": f"""Words of {SHOWN} different letters, to be written backwards by new models of one
        block and one block; and English numbers in German words, by the translator of `numbers`.
        The true letters are given up to a random place, and there a wrong letter.""",
    "Choices": f"""The new models are whole ones of `decoders`, with its task `reverse` and its
        recipe. A wrong letter stands `elsewhere` in the same answer, or `nowhere` in it. Both are
        tried at the same place of the same answers. Places whose ways to go on cannot be told
        apart by {NEXT} letters are left out.""",
    "How to read the tables": f"""`results.csv`: the share of answers whose {NEXT} letters after the
        wrong one are those after the place where it was put (`in_place`); those from that place on
        (`letter_due`: the right letter is written after the wrong one); those after a place where
        the wrong letter stands (`from_there`); those of `letter_due` without the wrong letter,
        where it is among them (`crossed_off`); for `nowhere` the last two are counted for the
        letter of the other row, so they say how often this happens without the letter; and those
        that follow the wrong letter most often in the answers of the data (`by_spelling`), which
        are none of the others. In the words nothing follows by spelling, and this is 0. `soon` says
        whether the letter from elsewhere is among the next {NEXT} that are due. `begins` says
        whether some number of the data begins with the letters given, the wrong one included; with
        words that are random all letters are possible. `examples.csv`: the first {N_SHOWN} answers
        of each kind, with what was given, the wrong letter last, and the {NEXT} letters written
        after it.""",
    "Intended use": "Teaching: how a decoder knows where it is in the source.",
    "Limits": """Two tasks, small models. The next letters may also follow from the letter by a rule
        of spelling that is not the most common one; in the random words they cannot.""",
}

Letters = tuple[int, ...]
Case = tuple[int, int, int]  # the place, a letter from elsewhere, and one from nowhere
Kind = tuple[str, bool, bool]  # of a wrong letter: `letter`, `soon` and `begins` of the tables
Rows = list[Row]


def ways(answer: Sequence[int], place: int, letter: int) -> list[set[Letters]]:
    """Return the next letters by the first four ``WAYS`` to go on after a wrong letter.

    Args:
        answer: the true one.
        place: where the wrong letter stands.
        letter: the wrong one.

    Returns:
        For each way all possible letters; none for the last way where nothing is crossed off
        among the next letters.
    """

    def after(start: int) -> Letters:
        return tuple(answer[start : start + NEXT])

    there = {after(i + 1) for i, other in enumerate(answer) if other == letter}
    due, rest = after(place), list(answer[place:])
    if letter in rest:
        rest.remove(letter)  # its next place
    known = {part for part in there if len(part) == NEXT}
    return [{after(place + 1)}, {due}, known, {tuple(rest[:NEXT])} - {due}]


def spelling(answers: Sequence[Sequence[int]]) -> dict[int, Letters]:
    """Return for each letter the letters that follow it most often."""
    after: dict[int, Counter[Letters]] = {}
    for answer in answers:
        for i in range(len(answer) - NEXT):
            following = tuple(answer[i + 1 : i + 1 + NEXT])
            after.setdefault(answer[i], Counter())[following] += 1
    return {letter: counts.most_common(1)[0][0] for letter, counts in after.items()}


def cases(
    answer: Sequence[int], alphabet: Sequence[int], spelled: Mapping[int, Letters]
) -> list[Case]:
    """List where which wrong letters can be put, so that the ways to go on differ.

    Args:
        answer: the true one, without its end.
        alphabet: all letters.
        spelled: what follows each letter most often.
    """
    nowhere = sorted(set(alphabet) - set(answer))
    found = []
    for place in range(len(answer) - NEXT):
        for letter in sorted(set(answer) - {answer[place]}):
            apart = ways(answer, place, letter)
            known = set().union(*apart)
            if apart[WAYS.index("from_there")] and sum(map(len, apart)) == len(known):
                read = [(letter, other) for other in nowhere]
                found += [
                    (place, *both) for both in read if not {spelled.get(x) for x in both} & known
                ]
    return found


@torch.no_grad()
def go_on(model: nn.Module, batch: Batch, places: Tensor, letters: Tensor) -> Tensor:
    """Put a letter at a place of each answer, and return the next letters that the model writes.

    Args:
        model: a translator.
        batch: what it translates; the true letters stand before the place.
        places: one for each answer, ``(B,)``.
        letters: what is put there, ``(B,)``.

    Returns:
        The likeliest letters, one after the other, ``(B, NEXT)``.
    """
    ids, rows = batch["target"].clone(), torch.arange(len(places))
    ids[rows, places + 1] = letters.to(ids)  # the start token has number 0
    for last in range(1, NEXT + 1):
        logits = model(batch["source"], ids, batch["source_mask"])[rows, places + last]
        if last < NEXT:
            ids[rows, places + last + 1] = logits.argmax(dim=-1)
    written = [ids[rows, places + last + 1] for last in range(1, NEXT)]
    return torch.stack([*written, logits.argmax(dim=-1)], dim=1)


def count(
    model: nn.Module,
    pairs: Sequence[Pair],
    alphabet: Sequence[int],
    special: tuple[int, int, int],
    device: str,
    spell: Callable[[Sequence[int]], str],
    begins: Callable[[Sequence[int]], bool] | None = None,
    spelled: Mapping[int, Letters] | None = None,
) -> tuple[Rows, Rows]:
    """Put wrong letters before a model and count how it goes on.

    Args:
        model: the model.
        pairs: sources and answers.
        alphabet: all letters of answers.
        special: the ids of padding, start and end.
        device: where the model is.
        spell: ids as a text.
        begins: whether some answer of the data begins so.
        spelled: what follows each letter most often.

    Returns:
        Rows of shares for each kind of wrong letter, and rows of examples.
    """
    rng, usual = random.Random(0), spelled or {}
    drawn = [
        (pair, rng.choice(found)) for pair in pairs if (found := cases(pair[1], alphabet, usual))
    ]
    batch = translation_batch([pair for pair, _ in drawn], *special)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    places = torch.tensor([place for _, (place, *_) in drawn])
    answered: dict[Kind, list[tuple[list[bool], Row]]] = {}
    for number, name in enumerate(LETTERS, start=1):
        letters = torch.tensor([case[number] for _, case in drawn])
        written = go_on(model, batch, places, letters).tolist()
        for wrote, ((source, answer), case) in zip(written, drawn, strict=True):
            given = [*answer[: case[0]], case[number]]
            by_letters = ways(answer, case[0], case[1])
            hits = [tuple(wrote) in way for way in by_letters]
            hits.append(tuple(wrote) == usual.get(case[number]))
            texts: Row = {"source": spell(source), "answer": spell(answer)}
            texts |= {"given": spell(given), "wrote": spell(wrote)}
            kind = name, bool(by_letters[-1]), begins is None or begins(given)
            answered.setdefault(kind, []).append((hits, texts))
    return tables_of(answered)


def tables_of(answered: Mapping[Kind, Sequence[tuple[list[bool], Row]]]) -> tuple[Rows, Rows]:
    """Return for each kind of wrong letter the share of each way to go on, and examples."""
    rows: Rows = []
    examples: Rows = []
    for (name, soon, begins), found in sorted(answered.items()):
        kind: Row = {"letter": name, "soon": YES[soon], "begins": YES[begins]}
        columns = zip(*(hits for hits, _ in found), strict=True)
        shares = {way: round(mean(column), 4) for way, column in zip(WAYS, columns, strict=True)}
        rows.append(kind | {"n": len(found)} | shares)
        examples += [kind | texts for _, texts in found[:N_SHOWN]]
    return rows, examples


def run_one(
    kind: str, recipe: Recipe, sizes: tuple[int, int, int], device: str
) -> tuple[Rows, Rows]:
    """Train one model to write words backwards, and count.

    Args:
        kind: one of ``KINDS``.
        recipe: how to train.
        sizes: the width, the batch and how many words are counted.
        device: where to train.

    Returns:
        Rows of shares for each kind of wrong letter, and rows of examples.
    """
    torch.set_float32_matmul_precision("highest")
    model, batches, _ = prepare("reverse", kind, recipe, sizes, device)
    train(model, batches, recipe, device=device, progress=False)
    rng, alphabet = random.Random(recipe.seed), range(FIRST_SYMBOL, FIRST_SYMBOL + N_LETTERS)
    words = [rng.sample(alphabet, SHOWN) for _ in range(sizes[2])]
    pairs = [(word, word[::-1]) for word in words]
    tables = count(model.eval(), pairs, alphabet, SPECIAL, device, in_letters)
    return named({"task": "reverse", "kind": kind, "seed": recipe.seed}, tables)


def in_letters(word: Sequence[int]) -> str:
    """Write the symbols of a word as a, b, c and so on; the end as a point."""
    return "".join("." if i < FIRST_SYMBOL else chr(ord("a") + i - FIRST_SYMBOL) for i in word)


def named(run: Row, tables: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Say in each row of two tables which run it is of."""
    rows, examples = tables
    return [run | row for row in rows], [run | row for row in examples]


def shipped(options: Options) -> tuple[Rows, Rows]:
    """Count with the translator of ``experiments.numbers`` and its test numbers.

    Args:
        options: the experiment's.

    Returns:
        Rows of shares for each kind of wrong letter, and rows of examples.
    """
    folder = ROOT / "book" / "results" / "numbers"
    model = load_model(folder, device=options.device).eval()
    tokenizer, data = Tokenizer.load(folder / "tokenizer.json"), datasets.numbers()
    some = data.test[: options.pick(None, 8)]
    pairs = [(tokenizer.encode(n.english), tokenizer.encode(n.german)) for n in some]
    known = {n.german[:i] for part in data for n in part for i in range(len(n.german) + 1)}
    alphabet = tokenizer.encode("".join(sorted({c for n in data.train for c in n.german})))
    tables = count(
        model, pairs, alphabet, (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id),
        options.device, lambda ids: tokenizer.decode(list(ids)),
        lambda ids: tokenizer.decode(list(ids)) in known,
        spelling([tokenizer.encode(n.german) for n in data.train]),
    )  # fmt: skip
    return named({"task": "numbers", "kind": "shipped", "seed": 0}, tables)


def plan_of(options: Options) -> list[tuple[Any, ...]]:
    """List all runs."""
    sizes, steps = options.pick((64, 128, N_WORDS), (8, 4, 8)), options.n_steps(TASKS["reverse"])
    plan = []
    for kind in KINDS:
        for seed in options.seeds(2):
            recipe = constant_adam(steps, seed=seed, schedule="linear", final_fraction=0.02)
            plan.append((kind, recipe, sizes, options.device))
    return plan


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write their tables."""
    options = read_options("fingers", __doc__, arguments)
    plan = plan_of(options)
    rows, examples = shipped(options)
    for more_rows, more_examples in side_by_side(run_one, plan, options):
        rows, examples = rows + more_rows, examples + more_examples
    metrics = {}
    for kind, letter, way in product(("shipped", *KINDS), LETTERS, WAYS):
        some = [row for row in rows if (row["kind"], row["letter"]) == (kind, letter)]
        hits, n = sum(row[way] * row["n"] for row in some), sum(row["n"] for row in some)
        metrics[f"{way} ({kind}, {letter})"] = round(hits / n, 4)
    write_results(
        options, "transformer_book.tasks.reverse_task; book/data/numbers.tsv", ABOUT, metrics,
        plan[0][1], tables={"results": rows, "examples": examples},
    )  # fmt: skip


if __name__ == "__main__":
    main()
