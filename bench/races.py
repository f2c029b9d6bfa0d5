"""Races: competitors are warmed up, then take turns until the time is over."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[], Any]  # what is timed; what it returns is compared between competitors

WARM_UP = 3  # runs before anything is timed: compilers and allocators settle in the first ones,
SETTLED = 3.0  # and what is not compiled has settled after three seconds, too
MIN_ROUNDS, MAX_ROUNDS = 3, 50
TURN = 0.2  # seconds; a competitor that needs less runs several times in a turn
GIB = 2**30


@dataclass(frozen=True)
class Difference:
    """What a longer run does and a shorter one does not; nothing else of them is timed.

    So a step of decoding is timed without the prompt before it.

    Args:
        longer: gives the answer.
        shorter: the beginning of the other one.
    """

    longer: Run
    shorter: Run

    def __call__(self) -> Any:
        """Run the longer one."""
        return self.longer()


@dataclass
class Competitor:
    """One way of doing the work of a case.

    Args:
        name: what the tables call it.
        build: makes what is timed; called once, in the race.
        compiled: whether a compiler works on it before it runs, which takes long.
    """

    name: str
    build: Callable[[], Run]
    compiled: bool = False
    run: Run | None = field(default=None, repr=False)
    answer: Any = field(default=None, repr=False)  # of its last run before the race
    seconds: list[float] = field(default_factory=list)  # per run, one for each turn
    runs_per_turn: int = 0
    first_call: float | None = None  # seconds of the first run: compilers work in it
    preparation: float | None = None  # seconds to build, compile and warm up
    own_bytes: int = 0  # what it holds between two runs
    peak_bytes: int | None = None
    error: str | None = None


class Clock:
    """Time and memory of one device.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        limit: seconds after which no competitor is prepared any more.
    """

    def __init__(self, device: str, limit: float = math.inf) -> None:
        self.device = device
        self.deadline = time.perf_counter() + limit

    @property
    def is_over(self) -> bool:
        """Whether it is too late to start anything new."""
        return time.perf_counter() > self.deadline

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def warm_up(self) -> None:
        """Start the device and its library of matrix products, which no competitor shall pay for.

        Single kernels are loaded when they are first used, and whoever comes first pays for them.
        """
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(256, 256, device=self.device, dtype=dtype)
            x @ x
        self.wait()

    def allocated(self) -> int:
        """Bytes in use on a GPU; 0 on a CPU, where nobody counts them."""
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def time(self, run: Run, times: int = 1) -> float:
        """Return the seconds that one of several runs takes."""
        if isinstance(run, Difference):
            return self.time(run.longer, times) - self.time(run.shorter, times)
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            run()
        self.wait()
        return (time.perf_counter() - start) / times

    def free(self, *, compiled: bool) -> None:
        """Let go of memory that nobody holds, and if wanted of all that was compiled."""
        if compiled:  # else shapes of the last case would make the compiler generalise the next
            torch._dynamo.reset()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def take_turns(
    competitors: Sequence[Competitor],
    clock: Clock,
    seconds: float,
    publish: Callable[[], None] = lambda: None,
) -> None:
    """Let all competitors that are prepared run in turn, round after round.

    A competitor that fails keeps its error and is left out; the others go on.

    Args:
        competitors: who takes part; their times are written into them.
        clock: measures.
        seconds: how long each of them runs in all; three rounds at least.
        publish: called after each round.
    """
    for competitor in competitors:
        competitor.seconds = []  # of other races, or when it was tried out
    start, rounds = time.perf_counter(), 0
    while rounds < MAX_ROUNDS:
        running = [competitor for competitor in competitors if competitor.run is not None]
        enough = time.perf_counter() - start > seconds * len(running)
        if not running or (rounds >= MIN_ROUNDS and enough):
            break
        first = rounds % len(running)  # nobody always runs after the same neighbour
        for competitor in running[first:] + running[:first]:
            turn(competitor, clock)
        rounds += 1
        publish()


def prepare(competitor: Competitor, clock: Clock) -> None:
    """Build a competitor and warm it up, if that was not done; keep its first answer or its error.

    It is timed once as well: should the race be cut short, there is something to show.
    """
    if competitor.run is not None or competitor.error is not None:
        return
    if clock.is_over:
        competitor.error = "skipped: no time left"
        return
    start, before = time.perf_counter(), clock.allocated()
    try:
        run = competitor.build()
        competitor.first_call = clock.time(lambda: _keep_answer(competitor, run))
        first = time.perf_counter()
        for _ in range(WARM_UP - 1):
            if competitor.compiled or time.perf_counter() - first < SETTLED:
                # The latest one: a loss that has fallen tells that there were gradients.
                once = clock.time(lambda: _keep_answer(competitor, run))
                competitor.runs_per_turn = math.ceil(TURN / max(once, 1e-9))
    except Exception as error:  # whatever a peer raises must not end the whole run
        competitor.error = describe(error)
        return
    competitor.run = run
    competitor.preparation = time.perf_counter() - start
    competitor.own_bytes = clock.allocated() - before
    turn(competitor, clock)


def _keep_answer(competitor: Competitor, run: Run) -> None:
    competitor.answer = run()


def turn(competitor: Competitor, clock: Clock) -> None:
    """Time a few runs of a competitor and see how much memory they need."""
    if competitor.run is None:
        return
    before = clock.allocated()
    if clock.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        competitor.seconds.append(clock.time(competitor.run, competitor.runs_per_turn))
    except Exception as error:
        competitor.error, competitor.run = describe(error), None
        return
    if clock.device == "cuda":
        # The others hold memory too, and it must not count here.
        needed = competitor.own_bytes + torch.cuda.max_memory_allocated() - before
        competitor.peak_bytes = max(needed, competitor.peak_bytes or 0)


def describe(error: BaseException) -> str:
    """Write an error as one short line; a traceback would keep its tensors alive."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else text[:397] + "..."


def matmul_rate(clock: Clock, n: int = 8192, seconds: float = 1.0) -> float:
    """Measure how many floating-point operations a second matrix products in bfloat16 reach.

    Sustained over about a second, since a cool GPU is faster for a moment; and on random numbers,
    since zeros draw less power and run faster than anything real.

    Args:
        clock: measures.
        n: the matrices are n by n.
        seconds: for how long.

    Returns:
        Operations a second.
    """
    a, b = (torch.randn(n, n, device=clock.device, dtype=torch.bfloat16) for _ in range(2))
    clock.time(lambda: a @ b, times=3)  # the first one looks for a kernel
    once = clock.time(lambda: a @ b, times=10)
    return 2 * n**3 / clock.time(lambda: a @ b, times=max(1, round(seconds / once)))


def summary(competitor: Competitor, amount: float) -> dict[str, Any]:
    """Sum up what a competitor did, ready for JSON.

    Args:
        competitor: after the race.
        amount: how much work one run does, such as tokens.

    Returns:
        Its error; or seconds of each turn, median, quartiles, and the rate that follows.
    """
    if competitor.error is not None or not competitor.seconds:
        return {"error": competitor.error or "not measured"}
    low, median, high = quartiles(competitor.seconds)
    if median <= 0:  # of a difference: noise is larger
        return {"error": "too noisy: the longer run was as short as the shorter one"}
    result: dict[str, Any] = {
        "median_s": median,
        "quartiles_s": [low, high],
        "per_second": amount / median,
        "first_call_s": competitor.first_call,
        "preparation_s": competitor.preparation,
        "seconds": competitor.seconds,
    }
    if competitor.peak_bytes is not None:
        result["peak_gib"] = competitor.peak_bytes / GIB
    return result


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
