"""Ways to write: what sampling does to a text, and how often a small model guesses a large one.

    python -m experiments.drafts

The shipped language model of eight plays goes on from passages of a ninth play with many ways to
choose the next letter, and with beam search; each text is measured. Then a smaller model, a
*draft*, is trained on the same plays, and so is a table of pairs of letters. Both guess what the
large model will write (speculative decoding): how many guesses it keeps is counted.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from torch import Tensor

from experiments.shared.common import (
    ROOT,
    Options,
    Row,
    intervals,
    mean_of,
    merge_tables,
    modern_config,
    read_options,
    rounded,
    side_by_side,
    write_results,
)
from transformer_book import datasets
from transformer_lib import (
    GREEDY,
    CausalLM,
    KeyValueCache,
    Metrics,
    Recipe,
    Sampling,
    TextWindows,
    Tokenizer,
    beam_search,
    evaluate,
    evaluating,
    filter_logits,
    generate,
    load_model,
    modern_recipe,
    save_model,
    train,
)

CHAPTER = "16_generation"
LARGE = ROOT / "book" / "results" / "shakespeare"
STRATEGIES = {
    "greedy": GREEDY,
    "temperature 0.25": Sampling(temperature=0.25),
    "temperature 0.5": Sampling(temperature=0.5),
    "temperature 0.75": Sampling(temperature=0.75),
    "temperature 1": Sampling(),
    "temperature 1.25": Sampling(temperature=1.25),
    "temperature 1.5": Sampling(temperature=1.5),
    "temperature 2": Sampling(temperature=2.0),
    "top-k 2": Sampling(top_k=2),
    "top-k 5": Sampling(top_k=5),
    "top-k 20": Sampling(top_k=20),
    "top-p 0.5": Sampling(top_p=0.5),
    "top-p 0.8": Sampling(top_p=0.8),
    "top-p 0.95": Sampling(top_p=0.95),
    "min-p 0.05": Sampling(min_p=0.05),
    "min-p 0.2": Sampling(min_p=0.2),
    "temperature 1.5, top-p 0.95": Sampling(temperature=1.5, top_p=0.95),
    "temperature 1.5, min-p 0.05": Sampling(temperature=1.5, min_p=0.05),
    "temperature 1.5, min-p 0.2": Sampling(temperature=1.5, min_p=0.2),
    "greedy, penalty 1.2": Sampling(temperature=0.0, repetition_penalty=1.2),
}
BEAMS = (1, 2, 4, 8, 16)
TEMPERATURES = (0.0, 0.5, 1.0, 1.5)
GUESSES = (8, 6, 4, 3, 2, 1)
COPIED = 20  # letters in a row
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """The model here is the draft: two blocks of width 64 with the parts of the large
        model (that of `shakespeare`), trained on the same plays with the same tokenizer. A draft
        must use the large model's tokens; that is all the two have in common. `pairs` is another
        draft: the frequencies of a letter after a letter in the same plays.""",
    "How to read the tables": f"""`results.csv`: the large model continues passages of the ninth
        play with a strategy, and each row is the mean over the passages of one seed. `loss` is the
        mean of -log p of what was written, under the large model itself, at temperature 1;
        `real_words` is the share of words that occur in the eight plays, `distinct` that of
        different words among all of one text, `repeated` that of groups of three words which the
        same text had before, `copied` that of runs of {COPIED} letters which stand in the eight
        plays. `true text` is how the play goes on. `beams.csv` has the same for beam search without
        a length penalty; `log_p` is the sum for a whole text. `acceptance.csv`: at each letter of
        texts that the large model wrote at a temperature, the chance that a guess of the draft is
        kept, i.e. the sum of the smaller of the two probabilities of each letter. `rounds.csv`:
        speculative decoding with `guesses` letters guessed in each round; `tokens_per_pass` is how
        many letters a pass of the large model yields, `kept` the share of guesses that stayed.""",
    "Intended use": "Teaching: what choices do to a text, and guessing ahead.",
    "Limits": """One small model, letters and one kind of text. The letters after a kept guess are
        easier than others, so the shares of `acceptance.csv` do not give `rounds.csv` exactly.""",
}


# How texts are measured


@dataclass
class Known:
    """The plays that were learned from: their words, and all runs of letters of one length."""

    text: str
    words: frozenset[str] = field(init=False)
    runs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.words = frozenset(words(self.text))
        self.runs = frozenset(_runs(self.text))


def words(text: str) -> list[str]:
    """Cut a text into words of small letters; marks are left out.

    Args:
        text: any text.

    Returns:
        The words in their order.

    Example:
        >>> words("What's done, is done.")
        ["what's", 'done', 'is', 'done']
    """
    return "".join(c if c.isalpha() or c == "'" else " " for c in text.lower()).split()


def _runs(text: str) -> list[str]:
    return [text[i : i + COPIED] for i in range(len(text) - COPIED + 1)]


def statistics(text: str, known: Known) -> dict[str, float]:
    """Measure one text.

    Args:
        text: what was written; the first and the last word may be cut off and do not count.
        known: what the writer has learned from.

    Returns:
        ``real_words``, ``distinct``, ``repeated`` and ``copied``, shares from 0 to 1.
    """
    found = words(text)[1:-1]
    groups = list(zip(found, found[1:], found[2:], strict=False))
    return {
        "real_words": _share(word in known.words for word in found),
        "distinct": len(set(found)) / max(len(found), 1),
        "repeated": 1 - len(set(groups)) / len(groups) if groups else 0.0,
        "copied": _share(run in known.runs for run in _runs(text)),
    }


def _share(answers: Iterator[bool]) -> float:
    found = list(answers)
    return sum(found) / max(len(found), 1)


@torch.no_grad()
def losses(model: CausalLM, ids: Tensor, n_prompt: int) -> Tensor:
    """Return -log p of each token after the prompts, ``(B, T - n_prompt)``."""
    logits = model(ids[:, :-1])[:, n_prompt - 1 :]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, n_prompt:], reduction="none")


def passages(ids: Tensor, n: int, length: int, seed: int) -> Tensor:
    """Cut ``n`` passages from even places of a text, shifted by the seed, ``(n, length)``."""
    step = (len(ids) - length) // n
    starts = [i * step + 37 * seed % max(step, 1) for i in range(n)]
    return torch.stack([ids[start : start + length] for start in starts])


def write_rows(name: str, seeds: Sequence[int], size: Row, device: str) -> list[Row]:
    """Let the large model go on from passages in one way, and measure what it writes.

    Args:
        name: a key of ``STRATEGIES``, ``"true text"``, or ``"beam "`` with the number of beams.
        seeds: of passages; all texts are written in one batch.
        size: ``n_passages`` for each seed, ``n_prompt``, ``n_new``.
        device: where to write.

    Returns:
        Rows of ``results.csv`` or ``beams.csv``, one for each seed.
    """
    model, tokenizer, ids, known = _world()
    model.to(device)
    n, n_prompt, n_new = size["n_passages"], size["n_prompt"], size["n_new"]
    whole = torch.cat([passages(ids, n, n_prompt + n_new, seed) for seed in seeds]).to(device)
    prompt = whole[:, :n_prompt]
    if name in STRATEGIES:
        generator = torch.Generator(device).manual_seed(seeds[0])
        how = asdict(STRATEGIES[name])
        whole = generate(model, prompt, max_new_tokens=n_new, generator=generator, **how)
    elif name.startswith("beam "):
        beams = int(name.split()[1])
        found, _ = beam_search(
            model, prompt, n_beams=beams, max_new_tokens=n_new, length_penalty=0.0
        )
        whole = found[:, 0]
    texts = [tokenizer.decode(row) for row in whole[:, n_prompt:].tolist()]
    each = losses(model, whole, n_prompt).cpu()
    rows: list[Row] = []
    for i, seed in enumerate(seeds):
        part = slice(i * n, (i + 1) * n)
        measured = [statistics(text, known) for text in texts[part]]
        row: Row = {"strategy": name, "seed": seed, "loss": rounded(float(each[part].mean()))}
        row |= {key: rounded(mean_of(measured, key)) for key in measured[0]}
        log_p = -float(each[part].sum(dim=1).mean())
        rows.append(row | {"log_p": rounded(log_p), "sample": texts[part.start + n // 2]})
    return rows


@cache
def _world() -> tuple[CausalLM, Tokenizer, Tensor, Known]:
    """The large model, its tokenizer, the ids of the ninth play, and the eight others."""
    model = load_model(LARGE).eval()
    assert isinstance(model, CausalLM)
    tokenizer, text = Tokenizer.load(LARGE / "tokenizer.json"), datasets.shakespeare()
    return model, tokenizer, torch.tensor(tokenizer.encode(text.validation)), Known(text.train)


# Drafts


def build(vocab_size: int, length: int, d_model: int, n_layers: int) -> CausalLM:
    """Make the draft with new weights."""
    config = modern_config(
        vocab_size=vocab_size,
        max_len=length,
        d_model=d_model,
        n_heads=d_model // 16,
        n_layers=n_layers,
        d_ff=8 * d_model // 3,
        dropout=0.0,
    )
    return CausalLM(config)


def pair_table(ids: Tensor, vocab_size: int) -> Tensor:
    """Count which token follows which, and return log-probabilities, ``(V, V)``."""
    counts = torch.full((vocab_size, vocab_size), 0.01)
    counts.index_put_((ids[:-1], ids[1:]), torch.ones(len(ids) - 1), accumulate=True)
    return (counts / counts.sum(dim=1, keepdim=True)).log()


class Reader:
    """A language model with a cache that can forget what was read in vain.

    Args:
        model: a language model, inside ``evaluating``.
        max_len: the longest text.
    """

    def __init__(self, model: CausalLM, max_len: int) -> None:
        self.model = model
        self.cache = KeyValueCache(model.config.n_layers, max_len)

    def __call__(self, ids: Tensor) -> Tensor:
        """Read what is new in ``ids``, ``(1, T)``; return the logits there, ``(n, V)``."""
        logits: Tensor = self.model(ids[:, self.cache.length :], cache=self.cache)
        return logits[0]

    def forget(self, length: int) -> None:
        """Keep the first ``length`` tokens only."""
        self.cache.rewind(min(self.cache.length, length))


class Pairs:
    """A draft that looks at the last token only.

    Args:
        table: log-probabilities, ``(V, V)``.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the logits after the last token, ``(1, V)``."""
        return self.table[ids[0, -1:]]

    def forget(self, length: int) -> None:
        """Nothing to forget."""


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Turn logits ``(n, V)`` into probabilities; temperature 0 puts all on the best token."""
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits)
    return filter_logits(logits, Sampling(temperature=temperature)).softmax(dim=-1)


def draw(probabilities: Tensor, generator: torch.Generator) -> int:
    """Draw a token from ``(V,)``, which may lack a factor."""
    return int(torch.multinomial(probabilities, 1, generator=generator))


def one_round(
    ids: Tensor,
    large: Callable[[Tensor], Tensor],
    small: Callable[[Tensor], Tensor],
    n_guesses: int,
    temperature: float,
    generator: torch.Generator,
) -> tuple[Tensor, int]:
    """Guess some tokens with the small model, and let the large one judge them in one pass.

    Args:
        ids: the text so far, ``(1, T)``.
        large: logits of the new tokens, the last of which predicts the next one, ``(n, V)``.
        small: the same for the draft.
        n_guesses: how many tokens to guess.
        temperature: of both.
        generator: the source of random numbers.

    Returns:
        The longer text, and how many guesses were kept.
    """
    longer, guessed = ids, []
    for _ in range(n_guesses):
        q = distribution(small(longer)[-1:], temperature)[0]  # (V,)
        guessed.append(q)
        longer = torch.cat([longer, ids.new_tensor([[draw(q, generator)]])], dim=1)
    p = distribution(large(longer)[-n_guesses - 1 :], temperature)  # (n_guesses + 1, V)
    n = ids.shape[1]
    for i, q in enumerate(guessed):
        token = int(longer[0, n + i])
        if float(torch.rand((), generator=generator)) * float(q[token]) >= float(p[i, token]):
            instead = draw((p[i] - q).clamp(min=0), generator)
            return torch.cat([longer[:, : n + i], ids.new_tensor([[instead]])], dim=1), i
    more = draw(p[n_guesses], generator)  # the pass has told what comes after the last guess, too
    return torch.cat([longer, ids.new_tensor([[more]])], dim=1), n_guesses


@contextmanager
def ready(*models: CausalLM) -> Iterator[None]:
    """Make models ready to generate, without gradients."""
    with torch.no_grad(), evaluating(models[0]), evaluating(models[-1]):
        yield


def speculate(draft: str, folder: str, temperature: float, n_guesses: int, size: Row) -> list[Row]:
    """Write texts with guesses, and count.

    Args:
        draft: ``"small"`` or ``"pairs"``.
        folder: where the small model lies.
        temperature: of both models.
        n_guesses: how many tokens are guessed in a round.
        size: ``n_passages``, ``n_prompt``, ``n_new``.

    Returns:
        One row of ``rounds.csv``.
    """
    large, _, ids, _ = _world()
    large.cpu()
    small = load_model(Path(folder)).eval()
    assert isinstance(small, CausalLM)
    n_prompt, n_new = size["n_prompt"], size["n_new"]
    generator = torch.Generator().manual_seed(n_guesses)
    written = passes = kept = 0
    with ready(large, small):
        for prompt in passages(ids, size["n_passages"], n_prompt, seed=0):
            judge = Reader(large, large.config.max_len)
            guess = (
                Reader(small, small.config.max_len) if draft == "small" else Pairs(_pair_table())
            )
            text = prompt[None]
            while text.shape[1] < n_prompt + n_new:
                ways = (n_guesses, temperature, generator)
                text, n = one_round(text, judge, guess, *ways)
                for reader in (judge, guess):
                    reader.forget(text.shape[1] - 1)
                passes, kept = passes + 1, kept + n
            written += text.shape[1] - n_prompt
    row: Row = {"draft": draft, "temperature": temperature, "guesses": n_guesses}
    row |= {
        "tokens_per_pass": rounded(written / passes),
        "kept": rounded(kept / (passes * n_guesses)),
        "passes": passes,
        "tokens": written,
    }
    return [row]


@cache
def _pair_table() -> Tensor:
    large, tokenizer, _, known = _world()
    return pair_table(torch.tensor(tokenizer.encode(known.text)), large.config.vocab_size)


@torch.no_grad()
def acceptance(folder: str, temperature: float, seed: int, size: Row) -> list[Row]:
    """Let the large model write at a temperature, and compare the drafts with it letter by letter.

    Args:
        folder: where the small model lies.
        temperature: of both models.
        seed: of passages and random numbers.
        size: ``n_passages``, ``n_prompt``, ``n_new``.

    Returns:
        Rows of ``acceptance.csv``.
    """
    large, _, ids, _ = _world()
    large.cpu()
    small = load_model(Path(folder)).eval()
    prompt = passages(ids, size["n_passages"], size["n_prompt"], seed)
    drawn = torch.Generator().manual_seed(seed)
    n_new = size["n_new"]
    text = generate(large, prompt, max_new_tokens=n_new, temperature=temperature, generator=drawn)
    before = text[:, :-1]
    start = size["n_prompt"] - 1
    p = distribution(large(before)[:, start:].flatten(0, 1), temperature)
    guesses = {"small": small(before), "pairs": _pair_table()[before]}
    rows = []
    for name, logits in guesses.items():
        q = distribution(logits[:, start:].flatten(0, 1), temperature)
        share = float(torch.minimum(p, q).sum(dim=-1).mean())
        row: Row = {"draft": name, "temperature": temperature, "seed": seed}
        rows.append(row | {"acceptance": rounded(share)})
    return rows


# The whole experiment


def train_draft(options: Options) -> tuple[CausalLM, Recipe, list[Metrics], float]:
    """Train the draft; return it, how it was trained, the rows of its training and its loss."""
    text, tokenizer = datasets.shakespeare(), Tokenizer.load(LARGE / "tokenizer.json")
    length, most = 256, options.pick(None, 2_000)
    known, new = (torch.tensor(tokenizer.encode(part[:most])) for part in text)
    torch.manual_seed(options.seed)
    model = build(tokenizer.vocab_size, length, options.pick(64, 16), options.pick(2, 1))
    steps = options.n_steps(2_500)
    recipe = modern_recipe(steps, 4e-3, seed=options.seed, **intervals(steps, 10))
    validation = TextWindows(new, length, math.ceil((len(new) - 1) / length))
    windows = TextWindows(known, length, options.pick(64, 4), options.seed)
    rows = train(
        model, windows, recipe, validation=validation, device=options.device, progress=False
    )
    return model, recipe, rows, evaluate(model, validation)["loss"]


def plan(options: Options, size: Row) -> list[tuple[Any, ...]]:
    """List everything that is done after the training, the longest first."""
    folder, device = str(options.folder), options.device
    seeds = options.seeds(3)
    names = options.pick(["true text", *STRATEGIES], ["true text", "greedy", "temperature 1"])
    beams = [f"beam {n}" for n in options.pick(BEAMS, (1, 2))]
    heats, guesses = options.pick((TEMPERATURES, GUESSES), ((0.0, 1.0), (2,)))
    small: Row = size | {"n_passages": options.pick(8, 1), "n_new": options.pick(150, 6)}
    tasks: list[tuple[Any, ...]] = [
        (speculate, draft, folder, heat, n, small)
        for n, draft, heat in product(guesses, ("small", "pairs"), heats)
    ]
    tasks += [(write_rows, name, seeds, size, device) for name in [*reversed(beams), *names]]
    return tasks + [(acceptance, folder, heat, seed, small) for heat, seed in product(heats, seeds)]


def table_of(task: Callable[..., list[Row]], name: str, *_: object) -> str:
    """Return the table to which the rows of a task belong."""
    if name.startswith("beam "):
        return "beams"
    return {speculate: "rounds", acceptance: "acceptance"}.get(task, "results")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the draft, let both models write, measure the texts, and write all tables."""
    options = read_options("drafts", __doc__, arguments)
    size: Row = {"n_passages": options.pick(40, 2), "n_prompt": options.pick(64, 8)}
    size["n_new"] = options.pick(192, 22)
    model, recipe, training, loss = train_draft(options)
    tokenizer = Tokenizer.load(LARGE / "tokenizer.json")
    save_model(model.cpu(), options.folder, tokenizer=tokenizer)  # the plan's processes read it
    tasks = plan(options, size)
    torch.set_float32_matmul_precision("highest")  # two ways to write must not differ by rounding
    found = side_by_side(operator.call, tasks, options)
    tables = merge_tables({table_of(*task): rows} for task, rows in zip(tasks, found, strict=True))
    metrics: Row = {"validation_loss": loss} | {
        f"{name}_{row['draft']}_{row['temperature']:g}_{row['guesses']}": row[name]
        for row in tables["rounds"]
        if row["guesses"] in (2, 4) and row["temperature"] in (0.0, 1.0)
        for name in ("tokens_per_pass", "kept")
    }
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, model=model, tokenizer=tokenizer,
        rows=training, tables=tables, more={"texts": size},
    )  # fmt: skip


if __name__ == "__main__":
    main()
