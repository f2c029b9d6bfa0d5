"""What is each part of a decoder block for? Take one out, train, and let it write by itself.

    python -m experiments.decoders

Small encoder-decoders learn to copy words, to write them backwards, to write their letters in any
order, and to translate numbers. One has the whole decoder; the others lack its self-attention,
its cross-attention, its feed-forward network or its causal mask; one is whole but reads some wrong
letters as it learns. Each is judged twice: with the true letters before each letter (teacher
forcing), and on its own words.
"""

import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from experiments.shared.common import (
    ROOT,
    Options,
    Row,
    constant_adam,
    mean_of,
    merge_tables,
    read_options,
    side_by_side,
    small_config,
    write_results,
)
from transformer_book import datasets
from transformer_book.tasks import FIRST_SYMBOL, Pair, copy_task, reverse_task
from transformer_lib import (
    IGNORE,
    Batch,
    Batches,
    Metrics,
    Recipe,
    Seq2SeqLM,
    Tokenizer,
    attention_maps,
    load_model,
    modes_kept,
    train,
    translation_batch,
)

CHAPTER = "12b_teacher_forcing"
TASKS = {"numbers": 900, "reverse": 600, "copy": 600, "shuffle": 600}  # and their updates
KINDS = {  # what is taken out of the decoder's blocks
    "whole": None,
    "no self-attention": "attention",
    "no cross-attention": "cross_attention",
    "no feed-forward": "feed_forward",
    "no causal mask": None,
    "noisy letters": None,
}
N_LETTERS, LONGEST = 10, 12  # of the words that are copied and reversed
DISTINCT = 8  # the longest word that is shuffled
ALIGNED = ("whole", "no self-attention", "noisy letters")  # their alignment is kept
LIMIT = 10_000  # numbers below this are translated
NOISE = 0.1  # how many of the letters are wrong that "noisy letters" reads as it learns
EOS = 2
DISTANCES = range(1, 9)
ENDING = 4  # letters of an answer that are compared wherever they stand
UNITS = "zwei|drei|vier|fünf|sechs|sieben|acht|neun"
TENS = "zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig"
TEENS = "zehn|elf|zwölf|(drei|vier|fünf|sech|sieb|acht|neun)zehn"
HUNDREDS = f"((ein|{UNITS})hundert)?(%s|{UNITS}|{TEENS}|((ein|{UNITS})und)?({TENS}))?"
NUMBER_WORD = f"null|({HUNDREDS % 'ein'}tausend)?{HUNDREDS % 'eins'}"  # below a million
SHOWN = 8  # how long the words are whose alignment is kept
ABOUT = {
    "Task": f"""Copy and reverse: a word of 1 to {LONGEST} of {N_LETTERS} letters in, the same word
        or the word backwards out. Shuffle: a word of 2 to {DISTINCT} different letters in, the same
        letters in a random order out. Numbers: an English number below {LIMIT:,} in, the German
        word out. Letter by letter; judged with new words, and with numbers of the test part.""",
    "Choices": f"""One block of encoder and one of decoder, D = 64, four heads, sinusoidal
        positions, pre-norm, no dropout. What a kind lacks, it lacks in the decoder alone, and from
        the start; nothing is put in its place, so it has fewer parameters. `no causal mask` sees
        the whole target as it learns. `noisy letters` is whole, but {NOISE:.0%} of the letters that
        its decoder reads in training are replaced by random ones; what it should answer stays.""",
    "How to read the tables": f"""`letters_taught` is the share of right letters, the end included,
        with the true letters before each; `letters_own` the same with the model's own letters,
        place by place; `words` the share of answers without a wrong letter on its own words, and
        `words_taught` that of words whose letters are all right when taught. `same_letters` is the
        share of answers with the letters of the true one in any order. `later_taught` and
        `later_own` count only the letters after the first mistake of an answer. `curves.csv` has
        the same on the way. `recovery.csv`: a letter is given, the true one or a wrong one, and the
        model writes on by itself; the share of right letters at each distance after it, first
        letter of the answer to last but one; `shipped` is the model of `numbers`, of three blocks
        each, with all test numbers and three kinds of wrong letters: any, one that some number of
        the data has after the same letters (`possible`), one that none has. `endings.csv`: the
        share of these answers whose last {ENDING} letters are right, wherever they stand, of those
        with more letters left. `letters.csv`: the shipped model alone, with the share of answers
        that are a right German number word, if another one. `alignment.csv`: the mean weights of
        cross-attention in `reverse`, for words of {SHOWN} letters and three kinds.""",
    "Intended use": "Teaching: what the parts of a decoder do, and what teacher forcing hides.",
    "Limits": """One small size, one recipe, a short training. A part that is not missed in these
        tasks may be needed in others.""",
}


class Silent(nn.Module):
    """A sublayer that adds nothing to the stream."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(x)


def build(kind: str, vocab: int, max_len: int, d_model: int) -> Seq2SeqLM:
    """Make a model with new weights; the same ones for all kinds, as far as they go.

    Args:
        kind: one of ``KINDS``.
        vocab: how many different tokens there are.
        max_len: of the longest source or target.
        d_model: the width.

    Returns:
        The model.
    """
    sizes = {"vocab_size": vocab, "max_len": max_len, "d_model": d_model, "n_layers": 1}
    model = Seq2SeqLM(small_config(**sizes, activation="relu"))
    stack = model.body.decoder.stack
    stack.causal = kind != "no causal mask"
    missing = KINDS[kind]
    for block in stack.blocks:
        if missing is not None:
            setattr(block, missing, Silent())
    return model


def pairs_of(task: str, n_examples: int, n_tests: int, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Return what to learn from and what to be judged by.

    Args:
        task: one of ``TASKS``.
        n_examples: how many examples to learn from; there may be fewer numbers.
        n_tests: how many new ones at most.
        seed: of the words.
    """
    if task == "shuffle":
        return shuffle_task(n_examples, 2 * seed), shuffle_task(n_tests, 2 * seed + 1)
    if task != "numbers":
        make = copy_task if task == "copy" else reverse_task
        sizes = (N_LETTERS, LONGEST)
        return make(n_examples, *sizes, seed=2 * seed), make(n_tests, *sizes, seed=2 * seed + 1)
    known, new = numbers()
    return known[:n_examples], new[:n_tests]


def shuffle_task(n_examples: int, seed: int) -> list[Pair]:
    """Make words of different letters, and the same letters in another order, drawn at random."""
    rng = random.Random(seed)
    symbols = range(FIRST_SYMBOL, FIRST_SYMBOL + N_LETTERS)
    words = [rng.sample(symbols, rng.randint(2, DISTINCT)) for _ in range(n_examples)]
    return [(word, rng.sample(word, len(word))) for word in words]


@cache
def letters() -> str:
    """Return the letters of English and German numbers, in the order of their ids."""
    used = {c for n in datasets.numbers().train for c in n.english + n.german}
    return "".join(sorted(used))


@cache
def numbers() -> tuple[list[Pair], list[Pair]]:
    """Return the numbers to learn from and the new ones, as ids of letters."""
    data, ids = datasets.numbers(), {letter: i for i, letter in enumerate(letters(), FIRST_SYMBOL)}

    def encode(number: datasets.Number) -> Pair:
        return [ids[c] for c in number.english], [ids[c] for c in number.german]

    parts = ([n for n in part if n.number < LIMIT] for part in (data.train, data.test))
    known, new = (list(map(encode, part)) for part in parts)
    return known, new


def noisy(vocab: int, seed: int) -> Callable[[Sequence[Pair]], Batch]:
    """Return a function that makes batches in which the decoder reads some wrong letters."""
    generator = torch.Generator().manual_seed(seed)

    def collate(pairs: Sequence[Pair]) -> Batch:
        batch = translation_batch(pairs)
        target = batch["target"]
        wrong = torch.rand(target.shape, generator=generator) < NOISE
        other = torch.randint(FIRST_SYMBOL, vocab, target.shape, generator=generator)
        is_letter = target >= FIRST_SYMBOL
        return batch | {"target": torch.where(wrong & is_letter, other, target)}

    return collate


@torch.no_grad()
def taught(model: nn.Module, batch: Batch) -> Tensor:
    """Return the likeliest letter at each place, given the true ones before it, ``(B, T)``."""
    inputs = (batch[name] for name in ("source", "target", "source_mask"))
    answers: Tensor = model(*inputs).argmax(dim=-1)
    return answers


@torch.no_grad()
def write(
    model: nn.Module, batch: Batch, given: Tensor | None = None, read: Tensor | None = None
) -> Tensor:
    """Let a model write by itself, the likeliest letter at each place.

    Args:
        model: a translator.
        batch: what it translates.
        given: where a letter is put before the model instead of its own, ``(B, T)``.
        read: the letters to put there, ``(B, T)``; the true ones if left out.

    Returns:
        What it wrote, ``(B, T)``; at a given letter, what it would have written.
    """
    source, mask, ids = batch["source"], batch["source_mask"], batch["target"][:, :1]
    read = batch["targets"] if read is None else read
    answers = []
    for t in range(batch["targets"].shape[1]):
        new = model(source, ids, mask)[:, -1].argmax(dim=-1)
        answers.append(new)
        if given is not None:
            new = torch.where(given[:, t], read[:, t].clamp_min(0), new)
        ids = torch.cat([ids, new[:, None]], dim=1)
    return torch.stack(answers, dim=1)


def judge(model: nn.Module, batch: Batch) -> Row:
    """Compare what a model does when it is taught with what it does on its own words."""
    targets = batch["targets"]
    counts = targets != IGNORE
    written = write(model, batch)
    by_teacher, by_itself = (
        (answers == targets) & counts for answers in (taught(model, batch), written)
    )
    same_letters = [
        sorted(_up_to_end(ids)) == sorted(_up_to_end(true))
        for ids, true in zip(written.tolist(), targets.tolist(), strict=True)
    ]
    mistaken = (~by_itself & counts).int()
    later = (mistaken.cumsum(dim=1) - mistaken > 0) & counts  # after the first mistake
    return {
        "letters_taught": _share(by_teacher, counts),
        "letters_own": _share(by_itself, counts),
        "words_taught": float((by_teacher | ~counts).all(dim=1).double().mean()),
        "words": float((by_itself | ~counts).all(dim=1).double().mean()),
        "same_letters": mean(same_letters),
        "n_later": int(later.sum()),
        "later_taught": _share(by_teacher, later),
        "later_own": _share(by_itself, later),
    }


def _share(right: Tensor, counts: Tensor) -> float | str:
    """Return which part of the letters that count is right; nothing if none does."""
    n = int(counts.sum())
    return round(int((right & counts).sum()) / n, 5) if n else ""


def slips(targets: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw a place in each answer, and a wrong letter for it.

    Args:
        targets: the answers, ``(B, T)`` on the CPU.
        seed: another seed, other places.

    Returns:
        The places ``(B,)``, never the last letter, and the letters ``(B,)``, each of some answer.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = (targets != IGNORE).sum(dim=1)  # the end included
    places = (torch.rand(len(targets), generator=generator) * (lengths - 2)).long()
    symbols = targets[targets >= FIRST_SYMBOL].unique()
    step = torch.randint(1, len(symbols), (len(targets),), generator=generator)
    true = targets.gather(1, places[:, None])[:, 0]
    return places, symbols[(torch.searchsorted(symbols, true) + step) % len(symbols)]


def go_on(model: nn.Module, batch: Batch, places: Tensor, letters: Tensor) -> list[Tensor]:
    """Put one letter before a model, the true one and then a wrong one, and let it go on.

    Args:
        model: a translator.
        batch: what it translates.
        places: where the letter stands, ``(B,)``; all letters before it are given, too.
        letters: the wrong ones, ``(B,)``.

    Returns:
        The two answers with what was given, ``(B, T)`` each on the CPU.
    """
    device, targets = batch["targets"].device, batch["targets"].cpu()
    given = torch.arange(targets.shape[1]) <= places[:, None]
    wrong = targets.scatter(1, places[:, None], letters[:, None])
    return [
        torch.where(given, read, write(model, batch, given.to(device), read.to(device)).cpu())
        for read in (targets, wrong)
    ]


def recovery(targets: Tensor, places: Tensor, answers: Sequence[Tensor]) -> tuple[list[Row], Row]:
    """Judge answers after a given letter.

    Args:
        targets: the true ones, ``(B, T)``.
        places: where the letter stands, ``(B,)``.
        answers: those of :func:`go_on`.

    Returns:
        For each distance after the letter, the share of right letters in both cases; and the
        share of answers that end as they should, wherever the end stands.
    """
    lengths = (targets != IGNORE).sum(dim=1)  # the end included
    rows = []
    for distance in DISTANCES:
        here = places + distance
        some = (lengths > 2) & (here < lengths)
        if some.any():
            at = torch.arange(len(targets))[some], here[some]
            right = [float((ids[at] == targets[at]).double().mean()) for ids in answers]
            row = {"distance": distance, "n": int(some.sum())}
            rows.append(row | {"after_true": right[0], "after_wrong": right[1]})
    long = [i for i in range(len(targets)) if lengths[i] - places[i] > ENDING + 1]
    ends = [
        mean(_ending(ids[i], places[i]) == _ending(targets[i], places[i]) for i in long or [0])
        for ids in answers
    ]
    return rows, {"n": len(long), "after_true": ends[0], "after_wrong": ends[1]}


def _ending(letters: Tensor, given: Tensor) -> list[int]:
    """Return the last letters before the end; none if there is no end, or too few are new."""
    ids = letters.tolist()
    end = len(_up_to_end(ids)) if EOS in ids else 0
    return ids[end - ENDING : end] if end - ENDING > int(given) else []


def _up_to_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS)] if EOS in ids else ids


def alignment(model: nn.Module, length: int, device: str) -> list[Row]:
    """Return the mean weights of cross-attention over words of one length, written backwards."""
    generator = torch.Generator().manual_seed(0)
    words = FIRST_SYMBOL + torch.randint(N_LETTERS, (200, length), generator=generator)
    batch = translation_batch([(word, word.flip(0)) for word in words])
    inputs = [batch[name].to(device) for name in ("source", "target", "source_mask")]
    maps = attention_maps(model, *inputs)
    weights = maps["body.decoder.stack.blocks.0.cross_attention"].mean(dim=0).cpu()  # (H, T, S)
    return [
        {"head": h, "query": t, "key": s, "weight": round(float(weights[h, t, s]), 4)}
        for h, t, s in product(*map(range, weights.shape))
    ]


def prepare(
    task: str, kind: str, recipe: Recipe, sizes: tuple[int, int, int], device: str
) -> tuple[Seq2SeqLM, Batches, list[Pair]]:
    """Make a new model, what it will learn from, and what it will be judged by.

    Args:
        task: one of ``TASKS``.
        kind: one of ``KINDS``.
        recipe: how it will be trained; its seed is that of weights and data, too.
        sizes: the width, the batch and how many tests there are.
        device: where it will be trained.

    Returns:
        The model, the batches and the tests.
    """
    seed, (d_model, batch_size, n_tests) = recipe.seed, sizes
    pairs, new = pairs_of(task, batch_size * recipe.steps, n_tests, seed)
    vocab = FIRST_SYMBOL + (len(letters()) if task == "numbers" else N_LETTERS)
    max_len = 1 + max(len(side) for pair in [*pairs, *new] for side in pair)
    torch.manual_seed(seed)
    model = build(kind, vocab, max_len, d_model).to(device)
    collate = noisy(vocab, seed) if kind == "noisy letters" else translation_batch
    return model, Batches(pairs, collate, batch_size=batch_size, seed=seed), new


def run_one(
    task: str, kind: str, recipe: Recipe, sizes: tuple[int, int, int], device: str
) -> dict[str, list[Row]]:
    """Train one model and judge it.

    Args:
        task: one of ``TASKS``.
        kind: one of ``KINDS``.
        recipe: how to train; its seed is that of weights and data, too.
        sizes: the width, the batch and how many tests there are.
        device: where to train.

    Returns:
        Rows for each table.
    """
    torch.set_float32_matmul_precision("highest")  # near ties must fall alike in both ways
    seed = recipe.seed
    model, batches, new = prepare(task, kind, recipe, sizes, device)
    test = {name: tensor.to(device) for name, tensor in translation_batch(new).items()}
    run: Row = {"task": task, "kind": kind, "seed": seed}
    curve: list[Row] = []

    def look(row: Metrics) -> None:
        point = run | {"step": row["step"], "loss": round(row["loss"], 4)}
        with modes_kept(model):
            curve.append(point | judge(model.eval(), test))

    train(model, batches, recipe, device=device, progress=False, on_step=look)
    targets = test["targets"].cpu()
    places, wrong = slips(targets, seed)
    after, ends = recovery(targets, places, go_on(model, test, places, wrong))
    tables = {"results": curve[-1:], "curves": curve, "alignment": []}
    tables |= {"recovery": [run | row for row in after], "endings": [run | ends]}
    if task == "shuffle":  # where several letters are right
        tables |= {"recovery": [], "endings": []}
    if task == "reverse" and kind in ALIGNED:
        tables["alignment"] = [run | row for row in alignment(model, SHOWN, device)]
    return tables


def shipped(options: Options) -> dict[str, list[Row]]:
    """See how the translator of ``experiments.numbers`` goes on after a wrong letter.

    Args:
        options: the experiment's.

    Returns:
        Rows of three tables for three kinds of wrong letters: any; one that some number of the
        data has after the same letters; one that none has.
    """
    folder = ROOT / "book" / "results" / "numbers"
    model = load_model(folder, device=options.device).eval()
    tokenizer, data = Tokenizer.load(folder / "tokenizer.json"), datasets.numbers()
    some = data.test[: options.pick(None, 4)]
    possible = {n.german[:i] for part in data for n in part for i in range(len(n.german) + 1)}
    alphabet = sorted({letter for n in data.train for letter in n.german})
    special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    rng, names = random.Random(options.seed), ("impossible", "possible")
    after, endings, kinds = [], [], []
    for kind in ("any", *names):
        pairs, places, letters = [], [], []
        for n in some:
            found = [
                (place, letter)
                for place, letter in product(range(len(n.german) - 1), alphabet)
                if letter != n.german[place]
                and kind in ("any", names[n.german[:place] + letter in possible])
            ]
            if found:
                place, letter = rng.choice(found)
                pairs.append((tokenizer.encode(n.english), tokenizer.encode(n.german)))
                places.append(place)
                letters += tokenizer.encode(letter)
        batch = translation_batch(pairs, *special)
        batch = {name: tensor.to(options.device) for name, tensor in batch.items()}
        where = torch.tensor(places)
        answers = go_on(model, batch, where, torch.tensor(letters))
        rows, ends = recovery(batch["targets"].cpu(), where, answers)
        who = {"task": "numbers", "kind": f"shipped, {kind} letter", "seed": 0}
        after += [who | row for row in rows]
        endings.append(who | ends)
        texts = [tokenizer.decode(_up_to_end(row.tolist())) for row in answers[1]]
        spelled = mean(bool(re.fullmatch(NUMBER_WORD, text)) for text in texts)
        row = {"letter": kind, "n": len(texts), "still_a_number": spelled}
        kinds.append(row | {"ends_right": ends["after_wrong"], "n_ends": ends["n"]})
    return {"recovery": after, "endings": endings, "letters": kinds}


def choices(options: Options) -> list[tuple[str, str]]:
    """List the tasks and kinds that are tried, the longest ones first."""
    everything = list(product(TASKS, KINDS))
    return options.pick(everything, [("numbers", "whole"), *product(["reverse"], KINDS)])


def plan_of(options: Options) -> list[tuple[Any, ...]]:
    """List all runs, the longest ones first."""
    sizes = options.pick((64, 128, 500), (8, 4, 4))
    plan = []
    for (task, kind), seed in product(choices(options), options.seeds(3)):
        steps = options.n_steps(TASKS[task])
        recipe = constant_adam(
            steps,
            seed=seed,
            schedule="linear",
            final_fraction=0.02,
            log_every=options.pick(max(steps // 12, 1), steps),
        )
        plan.append((task, kind, recipe, sizes, options.device))
    return plan


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all runs and write their tables."""
    options = read_options("decoders", __doc__, arguments)
    plan = plan_of(options)
    tables = merge_tables([*side_by_side(run_one, plan, options), shipped(options)])
    metrics = {
        f"{name} ({task}, {kind})": mean_of(tables["results"], name, task=task, kind=kind)
        for task, kind in choices(options)
        for name in ("words", "letters_taught", "letters_own")
    }
    write_results(
        options, "transformer_book.tasks.copy_task and reverse_task; book/data/numbers.tsv", ABOUT,
        metrics, plan[0][2], tables=tables,
        more={"updates": {task: options.n_steps(steps) for task, steps in TASKS.items()}},
    )  # fmt: skip


if __name__ == "__main__":
    main()
