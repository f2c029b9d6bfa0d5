"""How does the loss fall with parameters and with text? A grid of decoders, and laws fitted to it.

    python -m experiments.scaling

Sixteen decoders, from 14 thousand to 11 million parameters besides their embeddings, learn Python
sources byte by byte from half a million up to 128 million bytes. Every run is on its own: it has a
schedule that ends with its last byte, and sees no byte twice. First a sweep of learning rates for
some of the sizes gives a rule for all; then comes the grid. The text are the sources of packages
that are installed where this runs; the card says which.
"""

import argparse
import hashlib
import math
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.shared.common import (
    Options,
    Row,
    read_options,
    rounded,
    rounded_row,
    rows_where,
    worker_pool,
    write_csv,
    write_results,
)
from transformer_book.counting import forward_flops, parameter_count, training_flops
from transformer_book.laws import Law, fit_law, resampled_laws, spread
from transformer_lib import CausalLM, Recipe, TransformerConfig

CHAPTER = "19b_scaling"
PACKAGES = (
    *("torch", "sympy", "scipy", "pandas", "statsmodels", "sklearn", "jax", "numba", "numpy"),
    *("matplotlib", "networkx", "xarray"),
)
VOCABULARY = 128  # bytes from 128 on share the id of 127, which no text has
SIZES = (  # width and layers
    *((24, 2), (32, 2), (40, 2), (48, 2), (64, 2), (64, 3), (80, 3), (96, 3)),
    *((128, 3), (160, 3), (192, 3), (192, 4), (224, 4), (256, 5), (288, 6), (384, 6)),
)
MILLION = 2**20
BATCHES = {  # windows of 256 bytes in a step, for each number of bytes to learn from
    MILLION // 2: 4,
    MILLION: 8,
    2 * MILLION: 8,
    4 * MILLION: 16,
    8 * MILLION: 16,
    16 * MILLION: 32,
    32 * MILLION: 32,
    64 * MILLION: 64,
    128 * MILLION: 64,
}
FEW = {64: 2, 128: 2, 256: 2}  # the same for a run that only checks
ABOUT = {
    "Task": "The bytes of a Python source so far in, the probabilities of its next byte out.",
    "Choices": """Decoders as GPT-2's: norms before each sublayer and at the end, learned positions,
        GELU, tied embeddings; but no biases and no dropout. Heads have 24 to 48 features. Windows
        of 256 bytes that do not overlap, each seen once. AdamW (0.9, 0.95), weight decay of 0.1 for
        matrices, gradients clipped to 1, warm-up of 5% of the steps and a cosine down to a tenth,
        which ends with the run. More text goes with more windows in a step (4 to 64). Products in
        bfloat16. The learning rate follows a rule fitted to a sweep (`rates.csv`); validation files
        are others than those learned from, one in 64 by a hash of their names.""",
    "How to read the tables": """`results.csv`: `parameters` without token and position tables,
        `all_parameters` with them; `tokens` learned from; `flops` of the whole training, counted
        matrix by matrix (attention included); `loss` on other files, in nats for each byte.
        `rates.csv`: the sweep. `unfinished.csv`: the loss on the way in runs with the most text, of
        the same schedule, before it has come down. `fits.csv`: laws of the form E + A/N^alpha +
        B/D^beta, `low` and `high` ends of 90% of 200 resampled fits; `cut` tells which runs were
        left out.""",
    "Intended use": "Teaching: what a scaling law is, how it is fitted, and how sure it is.",
    "Limits": """Models far smaller than those that laws are used for; one kind of text, bytes
        instead of subwords, a context of 256 bytes, one recipe. Installed packages share code and
        habits, so the files of validation are not as new as other people's code would be.""",
}


class Job(NamedTuple):
    """One run: which model, how much text, how fast.

    Args:
        width: D.
        layers: how many blocks.
        tokens: how many bytes to learn from.
        batch: windows in a step.
        rate: the highest learning rate.
        seed: of weights and of which windows.
        watched: whether to measure on the way.
        until: after which moment (of ``time.time``) not to begin any more.
    """

    width: int
    layers: int
    tokens: int
    batch: int
    rate: float
    seed: int
    watched: bool = False
    until: float = math.inf


class Place(NamedTuple):
    """Where runs find their text and their device, and how long windows are.

    Args:
        folder: where the text lies.
        device: where to train.
        length: bytes in a window.
        windows: how many windows of new text to measure on.
        amounts: of text; after each the runs that are watched are measured.
        eager: whether never to record a step.
    """

    folder: str
    device: str
    length: int
    windows: int
    amounts: tuple[int, ...]
    eager: bool


def config_of(width: int, layers: int, length: int) -> TransformerConfig:
    """Describe the decoder of this width and depth."""
    return TransformerConfig(
        vocab_size=VOCABULARY,
        max_len=length,
        d_model=width,
        n_heads=max(1, width // 32),
        n_layers=layers,
        dropout=0.0,
        position="learned",
        norm_position="pre",
        activation="gelu_tanh",
        bias=False,
        scale_embeddings=False,
        init="gpt2",
    )


def sizes_of(width: int, layers: int, length: int, tokens: int) -> Row:
    """Count a model's parameters, and the operations of learning from so many tokens."""
    config = config_of(width, layers, length)
    counts = parameter_count(config, "decoder")
    flops = training_flops(forward_flops(config, "decoder", 1, length)["total"])
    inner = counts["total"] - counts["tokens"] - counts["positions"]
    row = {"width": width, "layers": layers, "parameters": inner}
    row |= {"all_parameters": counts["total"], "tokens": tokens}
    return row | {"flops": flops * tokens // length}


def sources(few: bool) -> Iterator[tuple[str, Path]]:
    """List the files of Python source, each with the name of its package before its own."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    if few:
        yield from ((f"python/{path.name}", path) for path in sorted(standard.glob("c*.py")))
        return
    folders = {"python": standard}
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders[name] = Path(spec.origin).parent
    for name, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).as_posix()
            if name != "python" or "-packages/" not in inside:
                yield f"{name}/{inside}", path


def read_text(few: bool) -> tuple[bytes, bytes, dict[str, int]]:
    """Read the sources: what to learn from, what to measure on, and the bytes of each package."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    seen, amounts = set(), dict[str, int]()
    for name, path in sources(few):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        digest = hashlib.sha256(content).digest()
        if digest not in seen and content:
            seen.add(digest)
            held_out = hashlib.sha256(name.encode()).digest()[0] % (4 if few else 64) == 0
            parts[held_out].append(content)
            package = name.split("/")[0]
            amounts[package] = amounts.get(package, 0) + len(content)
    return b"".join(parts[0]), b"".join(parts[1]), amounts


@cache
def load_text(folder: str, device: str) -> tuple[Tensor, Tensor]:
    """Load both texts onto the device, as bytes."""
    names = ("train.npy", "validation.npy")
    known, new = (torch.from_numpy(np.load(Path(folder, name))).to(device) for name in names)
    return known, new


def starts_of(job: Job, n_bytes: int, length: int) -> Tensor:
    """Say where each window begins, ``(steps, batch)``: no byte is to be guessed twice."""
    torch.manual_seed(job.seed)
    steps = job.tokens // (job.batch * length)
    order = torch.randperm((n_bytes - 1) // length)[: steps * job.batch]
    if len(order) < steps * job.batch:
        raise ValueError(f"{job.tokens=} but there are only {n_bytes} bytes of text")
    return order.view(steps, job.batch) * length


def rates_of(job: Job, steps: int) -> Tensor:
    """Return the learning rate of each step: up in a line, down in a cosine to a tenth."""
    warmup = max(steps // 20, 1)
    step = torch.arange(steps, dtype=torch.float64)
    fall = 0.55 + 0.45 * torch.cos(math.pi * (step - warmup) / max(steps - warmup, 1))
    return job.rate * torch.minimum((step + 1) / warmup, fall)


class Learner:
    """A model with its optimizer, and one step of training that can be recorded as a CUDA graph.

    Args:
        model: what learns.
        text: all bytes to learn from.
        batch: windows in a step.
        length: bytes in a window.
        eager: whether never to record.
    """

    def __init__(self, model: nn.Module, text: Tensor, batch: int, length: int, eager: bool):
        self.model, self.text, self.device = model, text, text.device
        self.on_gpu = self.device.type == "cuda"
        self.starts = torch.zeros(batch, dtype=torch.long, device=self.device)
        self.span = torch.arange(length + 1, device=self.device)
        self.rate: Tensor | float = torch.zeros((), device=self.device) if self.on_gpu else 0.0
        matrices = [p for p in model.parameters() if p.ndim > 1]
        gains = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
        how: dict[str, Any] = {"fused": True, "capturable": True} if self.on_gpu else {}
        self.optimizer = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.95), **how)
        self.run: Callable[[], None] = self.plain_step
        self.recorded = False
        if self.on_gpu and not eager:
            try:
                self.record()
            except RuntimeError as error:
                print(f"not recorded: {error}", flush=True)

    def update(self) -> None:
        """Make one step with the windows and the rate that are set."""
        ids = self.text[self.starts[:, None] + self.span].long()  # (B, T + 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu):
            logits = self.model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def plain_step(self) -> None:
        """Make one step as ever."""
        self.optimizer.zero_grad(set_to_none=True)
        self.update()

    def record(self) -> None:
        """Record a step; the rate is 0 meanwhile, and the optimizer forgets it afterwards."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.plain_step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.update()
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        self.run, self.recorded = graph.replay, True

    def step(self, starts: Tensor, rate: Tensor) -> None:
        """Learn from the windows that begin at ``starts``, with this rate."""
        self.starts.copy_(starts)
        for group in self.optimizer.param_groups:
            if self.on_gpu:
                group["lr"].copy_(rate)
            else:
                group["lr"] = float(rate)
        self.run()


@torch.no_grad()
def loss_on(model: nn.Module, text: Tensor, length: int, n_windows: int) -> float:
    """Measure the loss on windows that lie evenly in a text, in float32."""
    n = min(n_windows, (len(text) - 1) // length)
    starts = torch.linspace(0, len(text) - length - 1, n, dtype=torch.float64).long()
    span = torch.arange(length + 1, device=text.device)
    total = torch.zeros((), dtype=torch.float64, device=text.device)
    for some in starts.to(text.device).split(256):
        ids = text[some[:, None] + span].long()
        logits = model(ids[:, :-1]).flatten(0, 1)
        total += nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum").double()
    return float(total) / (n * length)


def run_one(job: Job, place: Place) -> tuple[Row, list[Row]] | None:
    """Train one model.

    Args:
        job: which.
        place: where.

    Returns:
        A row of ``results.csv`` and rows of ``unfinished.csv``; nothing if it is too late.
    """
    if time.time() > job.until:
        return None
    began, (known, new) = time.perf_counter(), load_text(place.folder, place.device)
    starts = starts_of(job, len(known), place.length).to(place.device)
    rates = rates_of(job, len(starts)).float().to(place.device)
    torch.manual_seed(job.seed)
    model = CausalLM(config_of(job.width, job.layers, place.length)).to(place.device)
    learner = Learner(model, known, job.batch, place.length, place.eager)
    sizes = sizes_of(job.width, job.layers, place.length, job.tokens)
    on_the_way = {n // (job.batch * place.length): n for n in place.amounts if n < job.tokens}
    unfinished: list[Row] = []
    for step in range(len(starts)):
        if job.watched and step in on_the_way:
            row = {"parameters": sizes["parameters"], "planned": job.tokens}
            row |= {"tokens": on_the_way[step]}
            loss = loss_on(model, new, place.length, place.windows // 4)
            unfinished.append(row | {"loss": rounded(loss)})
        learner.step(starts[step], rates[step])
    loss = loss_on(model, new, place.length, place.windows)
    row = {"batch": job.batch, "steps": len(starts), "rate": rounded(job.rate), "seed": job.seed}
    row |= {"loss": rounded(loss), "recorded": int(learner.recorded)}
    return sizes | row | {"seconds": round(time.perf_counter() - began, 1)}, unfinished


def run_jobs(
    jobs: Sequence[Job], place: Place, options: Options, pool: ProcessPoolExecutor | None, name: str
) -> tuple[list[Row], list[Row]]:
    """Make runs side by side, and write what is there now and then."""
    if pool is None:
        done: Any = (run_one(job, place) for job in jobs)
    else:
        waiting = [pool.submit(run_one, job, place) for job in jobs]
        done = (_result(each) for each in as_completed(waiting))
    rows: list[Row] = []
    unfinished: list[Row] = []
    for found in done:
        if found is None:
            continue
        rows.append(found[0])
        unfinished += found[1]
        write_csv(options.folder / f"{name}.csv", in_order(rows))
        seconds = time.perf_counter() - options.started
        row = found[0]
        made = f"{row['parameters']} {row['tokens']} {row['rate']} {row['seed']}: {row['loss']}"
        print(f"{seconds:.0f} s, {name} {len(rows)}/{len(jobs)}: {made}", flush=True)
    return in_order(rows), in_order(unfinished)


def _result(run: Future[Any]) -> Any:
    """Return what a run gave; one that failed says why, and does not take the others with it."""
    error = run.exception()
    if error is None:
        return run.result()
    print(f"a run failed: {error!r}", flush=True)
    return None


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by size, text, rate and seed."""
    keys = ("parameters", "planned", "tokens", "rate", "seed")
    return sorted(rows, key=lambda row: [row.get(key, 0) for key in keys])


def cost(job: Job) -> int:
    """Estimate how long a run takes, to let the longest come first."""
    return job.tokens * job.layers * (job.width + 64)


def first_guess(width: int, layers: int) -> float:
    """Guess a learning rate, around which the sweep looks."""
    return 4e-3 * math.pow(12 * layers * width**2 / 1e5, -0.2)


def best_rates(rows: Sequence[Row]) -> list[Row]:
    """Find the best rate of each model and amount of text in a sweep, between the rates tried."""
    found = []
    for parameters, tokens in sorted({(row["parameters"], row["tokens"]) for row in rows}):
        size = {"parameters": parameters, "tokens": tokens}
        some = sorted(
            (math.log(row["rate"]), row["loss"])
            for row in rows_where(rows, **size)
            if math.isfinite(row["loss"])
        )
        at = min(range(len(some)), key=lambda i: some[i][1])
        best, inside = some[at][0], 0 < at < len(some) - 1
        if inside:  # the lowest point of the parabola through the best rate and its neighbours
            (a, la), (b, lb), (c, lc) = some[at - 1 : at + 2]
            up, down = (lc - lb) / (c - b), (lb - la) / (b - a)
            best = (a + b) / 2 - down * (c - a) / (2 * (up - down))
        found.append(size | {"rate": math.exp(best), "inside": int(inside)})
    return found


def rate_rule(best: Sequence[Row]) -> tuple[float, float, float]:
    """Fit a rule to best rates: the logarithm is linear in those of parameters and tokens."""
    columns = [[1.0, math.log(row["parameters"]), math.log(row["tokens"])] for row in best]
    answer = np.linalg.lstsq(
        np.array(columns), np.array([math.log(row["rate"]) for row in best]), rcond=None
    )[0]
    return float(answer[0]), float(answer[1]), float(answer[2])


def sweep(options: Options) -> list[Job]:
    """Plan the sweep of learning rates: every third size, two amounts of text, five rates."""
    sizes = SIZES[::3] if not options.tiny else ((16, 1), (32, 1))
    amounts = options.pick((2 * MILLION, 8 * MILLION), (64, 128))
    factors = options.pick((0.25, 0.5, 1, 2, 4), (0.5, 1, 2))
    return [
        Job(
            *size, tokens, options.pick(BATCHES.get(tokens, 2), 2), factor * first_guess(*size), 100
        )
        for size in sizes
        for tokens in amounts
        for factor in factors
    ]


def grid(options: Options, rule: tuple[float, float, float], n_bytes: int) -> list[Job]:
    """Plan the grid: all sizes and amounts of text that can be paid for, some with more seeds."""
    jobs = []
    limit = time.time() + options.given.limit - (time.perf_counter() - options.started)
    amounts = options.pick(BATCHES, FEW)
    for width, layers in options.pick(SIZES, ((16, 1), (16, 2), (32, 1))):
        for tokens, batch in amounts.items():
            n = 12 * layers * width**2
            if tokens > n_bytes - 256 or (tokens > 32 * MILLION and n * tokens > 1.3e14):
                continue
            rate = math.exp(rule[0] + rule[1] * math.log(n) + rule[2] * math.log(tokens))
            rate = min(max(rate, 3e-4), 3e-2)
            watched = tokens == options.pick(32 * MILLION, max(FEW))
            jobs.append(Job(width, layers, tokens, batch, rate, options.seed, watched))
            for seed, most in ((1, 16 * MILLION), (2, 4 * MILLION)):
                if tokens <= most and not options.tiny:
                    more = options.seed + seed
                    jobs.append(Job(width, layers, tokens, batch, rate, more, until=limit))
    return sorted(jobs, key=lambda job: (job.until < math.inf, job.seed, -cost(job)))


def fits_of(rows: Sequence[Row], n: int) -> list[Row]:
    """Fit laws: to all runs, to parts of them, and with all parameters for N."""
    least, most = min(r["tokens"] for r in rows), max(r["parameters"] for r in rows)
    cuts: dict[str, tuple[str, Callable[[Row], bool]]] = {
        "none": ("parameters", lambda row: True),
        "least text": ("parameters", lambda row: row["tokens"] > 2 * least),
        "largest models": ("parameters", lambda row: row["parameters"] < most / 4),
        "smallest models": ("parameters", lambda row: row["parameters"] > most / 200),
        "none, all parameters": ("all_parameters", lambda row: True),
    }
    fits = []
    for cut, (size, keep) in cuts.items():
        kept = [row for row in rows if keep(row)]
        if len(kept) < 5:
            continue
        columns = [[float(row[name]) for row in kept] for name in (size, "tokens", "loss")]
        law, laws = fit_law(*columns, huber=1e-2), resampled_laws(*columns, n=n, huber=1e-2)
        for name in Law._fields:
            low, high = spread([getattr(each, name) for each in laws])
            row: Row = {"cut": cut, "runs": len(kept), "name": name}
            row |= {"value": getattr(law, name), "low": low, "high": high}
            fits.append(rounded_row(row))
    return fits


def summary(rows: Sequence[Row], fits: Sequence[Row]) -> dict[str, Any]:
    """Put what the book leans on into the card."""
    known = [row for row in rows if math.isfinite(row["loss"])]  # some runs may have diverged
    found: dict[str, Any] = {"lowest_loss": min(row["loss"] for row in known), "runs": len(rows)}
    found |= {row["name"]: row["value"] for row in fits if row["cut"] == "none"}
    found["models"] = len({row["parameters"] for row in rows})
    cells: dict[tuple[int, int], list[float]] = {}
    for row in known:
        cells.setdefault((row["parameters"], row["tokens"]), []).append(row["loss"])
    apart = [stdev(losses) for losses in cells.values() if len(losses) > 2]
    return found | ({"deviation_between_seeds": mean(apart)} if apart else {})


def save_text(folder: Path, options: Options) -> dict[str, Any]:
    """Read the text once and write it to where all processes find it; describe it."""
    known, new, amounts = read_text(options.tiny)
    for name, text in (("train", known), ("validation", new)):
        ids = np.frombuffer(text, dtype=np.uint8)
        np.save(folder / f"{name}.npy", np.minimum(ids, VOCABULARY - 1))
    print(f"{len(known)} bytes to learn from, {len(new)} others", flush=True)
    packages = {name: f"{_version(name)}, {amount} bytes" for name, amount in amounts.items()}
    found: dict[str, Any] = {"train_bytes": len(known), "validation_bytes": len(new)}
    found["train_sha256"] = hashlib.sha256(known).hexdigest()
    found["validation_sha256"] = hashlib.sha256(new).hexdigest()
    return found | {"packages": packages}


def _version(package: str) -> str:
    names = {"sklearn": "scikit-learn", "python": "pip"}
    try:
        found = version(names.get(package, package))
    except PackageNotFoundError:
        found = "unknown"
    return sysconfig.get_python_version() if package == "python" else found


def make_runs(options: Options, length: int) -> tuple[list[list[Row]], dict[str, Any]]:
    """Read the text, sweep learning rates, make the grid.

    Args:
        options: the experiment's.
        length: bytes in a window.

    Returns:
        The rows of the sweep, of its best rates, of the grid, and of the runs that were watched;
        and what the card says of the text and of the rule for learning rates.
    """
    with tempfile.TemporaryDirectory() as folder, worker_pool(most=14, spare=2) as workers:
        pool = None if options.tiny else workers
        text = save_text(Path(folder), options)
        sizes = (length, options.pick(4096, 16), tuple(options.pick(BATCHES, FEW)))
        place = Place(folder, options.device, *sizes, options.eager)
        plan = sorted(sweep(options), key=cost, reverse=True)
        rates, _ = run_jobs(plan, place, options, pool, "rates")
        best = best_rates(rates)
        rule = rate_rule(best)
        print(f"best rates: {best}", flush=True)
        jobs = grid(options, rule, text["train_bytes"])
        rows, watched = run_jobs(jobs, place, options, pool, "results")
    return [rates, best, rows, watched], {"text": text, "rate_rule": rule, "length": length}


def main(arguments: Sequence[str] | None = None) -> None:
    """Sweep learning rates, make the grid of runs, fit the laws."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--limit", type=float, default=330, help="seconds, then no more extra seeds")
    options = read_options("scaling", __doc__, arguments, own)
    (_, best, rows, watched), more = make_runs(options, options.pick(256, 16))
    fits = fits_of([row for row in rows if math.isfinite(row["loss"])], options.pick(200, 3))
    tables = {"unfinished": watched, "best_rates": best, "fits": fits}
    write_results(
        options,
        data="Python sources of installed packages, byte by byte; card.json names them",
        about=ABOUT,
        metrics=summary(rows, fits),
        recipe=Recipe(
            steps=max(row["steps"] for row in rows),
            learning_rate=max(row["rate"] for row in rows),
            warmup=max(row["steps"] for row in rows) // 20,
            precision="bfloat16" if options.device.startswith("cuda") else "float32",
            seed=options.seed,
        ),
        tables={name: table for name, table in tables.items() if table},
        more=more,
    )


if __name__ == "__main__":
    main()
