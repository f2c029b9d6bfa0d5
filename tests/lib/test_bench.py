"""The bench: fair races, honest records; at sizes at which nothing takes long."""

import json
import math
import pathlib

import pytest
import torch

from bench import __main__ as command
from bench import report
from bench.cases import Case
from bench.environment import cpu_name, environment, moment
from bench.races import Clock, Competitor, describe, matmul_rate, prepare, summary, take_turns
from bench.suites import cpu_suite, cuda_suite


class Watch:
    """A clock on which a run lasts as long as it says."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def runner(self, seconds, log, name):
        def run():
            self.now += seconds
            log.append(name)
            return name

        return run


@pytest.fixture
def watch(monkeypatch):
    watch = Watch()
    monkeypatch.setattr("bench.races.time", watch)
    return watch


def racers(watch, **seconds):
    log = []
    made = [
        Competitor(name, lambda name=name, s=s: watch.runner(s, log, name))
        for name, s in seconds.items()
    ]
    return made, log


def test_competitors_take_turns_and_nobody_always_goes_first(watch):
    competitors, log = racers(watch, ours=1.0, peer=2.0, other=3.0)
    clock = Clock("cpu")
    for competitor in competitors:
        prepare(competitor, clock)
    log.clear()
    take_turns(competitors, clock, seconds=0)
    assert log == ["ours", "peer", "other", "peer", "other", "ours", "other", "ours", "peer"]
    assert [c.seconds for c in competitors] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_a_longer_race_has_more_rounds(watch):
    competitors, _ = racers(watch, ours=1.0, peer=2.0)
    for competitor in competitors:
        prepare(competitor, Clock("cpu"))
    take_turns(competitors, Clock("cpu"), seconds=30)
    assert {len(c.seconds) for c in competitors} == {21}  # 2 * 30 s, at 3 s a round


def test_a_short_run_is_repeated_within_a_turn(watch):
    (competitor,), log = racers(watch, ours=0.0625)
    prepare(competitor, Clock("cpu"))
    log.clear()
    take_turns([competitor], Clock("cpu"), seconds=0)
    assert competitor.runs_per_turn == 4
    assert len(log) == 3 * 4
    assert competitor.seconds == pytest.approx([0.0625] * 3)


def test_what_is_compiled_warms_up_longer(watch):
    for compiled, runs in ((False, 2), (True, 3)):
        (competitor,), log = racers(watch, ours=5.0)
        competitor.compiled = compiled
        log.clear()
        prepare(competitor, Clock("cpu"))
        # then one to see how long it takes, and one for the record
        assert len(log) == runs + 2


def test_an_error_is_kept_and_the_others_go_on(watch):
    def fail():
        raise RuntimeError("no\n  such kernel")

    log = []
    bad, good = Competitor("bad", fail), Competitor("good", lambda: watch.runner(1.0, log, "good"))
    late = Competitor("late", lambda: watch.runner(1.0, log, "late"))
    for competitor in (bad, good, late):
        prepare(competitor, Clock("cpu"))
    late.run = fail
    take_turns([bad, good, late], Clock("cpu"), seconds=0)
    assert summary(bad, 1) == {"error": "RuntimeError: no such kernel"}
    assert summary(late, 1) == {"error": "RuntimeError: no such kernel"}
    assert summary(good, 10)["per_second"] == 10
    assert describe(ValueError("x" * 999)).endswith("...")


def test_nothing_is_prepared_after_the_limit(watch):
    (competitor,), _ = racers(watch, ours=1.0)
    clock = Clock("cpu", limit=10)
    watch.now = 11
    prepare(competitor, clock)
    assert summary(competitor, 1) == {"error": "skipped: no time left"}


def test_a_summary_has_medians_and_quartiles():
    competitor = Competitor("ours", lambda: None, seconds=[1.0, 2.0, 3.0, 4.0, 100.0])
    result = summary(competitor, amount=6)
    assert (result["median_s"], result["quartiles_s"], result["per_second"]) == (3.0, [2.0, 4.0], 2)
    competitor.peak_bytes = 2**31
    assert summary(competitor, 6)["peak_gib"] == 2
    competitor.seconds = [7.0]
    assert summary(competitor, 6)["quartiles_s"] == [7.0, 7.0]


def test_the_speed_of_matrix_products_is_that_of_the_clock(monkeypatch):
    clock = Clock("cpu")
    asked = []
    monkeypatch.setattr(clock, "time", lambda run, times: asked.append(times) or 0.5)
    assert matmul_rate(clock, n=4, seconds=3) == 2 * 4**3 / 0.5
    assert asked[-1] == 6


def test_ratios_are_ours_over_the_others():
    entries = {
        "ours": {"per_second": 30.0},
        "ours, compiled": {"per_second": 60.0},
        "torch.nn": {"per_second": 20.0},
        "transformers": {"error": "none"},
    }
    assert report.ratios(entries) == {
        "ours": {"torch.nn": 1.5},
        "ours, compiled": {"torch.nn": 3.0},
    }


def gpu_record(**changes):
    """The record of a GPU on which every bar is reached by a little."""
    values = {"share": 0.66, "peak": 21.0, "eager": 1.2, "one": 2_100, "many": 91_000, "same": 1.0}
    values |= changes
    compiled = {"share_of_matmul": values["share"], "peak_gib": values["peak"]}
    cases = {
        "training": {"entries": {"ours, compiled": compiled}},
        "generation-1": {"entries": {"ours, compiled": {"per_second": values["one"]}}},
        "generation-64": {"entries": {"ours, compiled": {"per_second": values["many"]}}},
        "generation-float32": {"entries": {}},
    }
    for case in cases.values():
        case |= {"ratios": {"ours": {"torch.nn": values["eager"]}}}
        case |= {"checks": {"same_tokens": {"ours, compiled": values["same"]}}}
    return {"environment": {"device": "cuda"}, "cases": cases}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"share": 0.64}, ["training, compiled: share of matmul"]),
        ({"peak": 21.2}, ["training, compiled: peak GiB"]),
        ({"peak": None}, ["training, compiled: peak GiB"]),
        ({"eager": 1.09}, ["training, eager: times torch.nn"]),
        ({"one": 1_999}, ["generation-1: tokens/s"]),
        ({"many": 89_999}, ["generation-64: tokens/s"]),
        ({"same": 0.999}, ["float32: share of eager tokens"]),
    ],
)
def test_bars_of_the_gpu(changes, missed):
    bars = report.bars(gpu_record(**changes))
    assert len(bars) == 6
    assert [bar["what"] for bar in bars if not bar["reached"]] == missed


@pytest.mark.parametrize(
    ("training", "eager", "compiled", "reached"),
    [(1.0, 1.2, 1.5, [True, True]), (0.99, 1.6, 1.2, [False, True]), (2, 1.2, 1.4, [True, False])],
)
def test_bars_of_the_cpu(training, eager, compiled, reached):
    ratios = {"ours": {"transformers": eager}, "ours, compiled": {"transformers": compiled}}
    cases = {
        "training": {"ratios": {"ours": {"torch.nn": training, "transformers": 9.0}}},
        "generation-1": {"ratios": ratios},
        "encoder": {"ratios": {"ours": {"torch.nn": 0.1}}},
    }
    bars = report.bars({"environment": {"device": "cpu"}, "cases": cases})
    assert [bar["reached"] for bar in bars] == reached
    empty = {"training": {"ratios": {}}}
    (bar,) = report.bars({"environment": {"device": "cpu"}, "cases": empty})
    assert (bar["value"], bar["reached"]) == (None, False)


@pytest.fixture
def short_turns(monkeypatch):
    monkeypatch.setattr("bench.races.TURN", 1e-9)


@pytest.mark.usefixtures("short_turns")
def test_the_whole_cpu_suite(tmp_path, capsys):
    path = tmp_path / "speed" / "cpu.json"
    arguments = ["--device", "cpu", "--tiny", "--threads", "1", "--out", str(path)]
    assert command.main(arguments) == 0
    record = json.loads(path.read_text())
    assert list(record["cases"]) == list(cpu_suite())
    for case in record["cases"].values():
        assert case["checks"]["agree"], case["checks"]
        for entry in case["entries"].values():
            assert len(entry["seconds"]) >= 3
            assert entry["per_second"] == pytest.approx(
                case["tokens_per_run"] / entry["median_s"], 1e-4
            )
    assert record["cases"]["generation-8"]["checks"]["same_tokens"]["transformers"] == 1
    assert len(record["bars"]) == 3
    assert record["environment"]["torch"] == torch.__version__
    assert "encoder: Encoder forward" in capsys.readouterr().out


@pytest.mark.usefixtures("short_turns")
def test_the_gpu_suite_without_a_gpu(monkeypatch, tmp_path):
    """Every way of training and generating runs and gives the same answer."""
    monkeypatch.setattr(torch, "compile", lambda compute, **_: compute)  # a minute each
    monkeypatch.setattr("bench.races.MIN_ROUNDS", 1)
    suite = cuda_suite(tiny=True, device="cpu", compiler=torch.compile)
    path = tmp_path / "cuda.json"
    record = command.measure(suite, Clock("cpu"), 0.0, path)
    assert not suite
    for name, case in record["cases"].items():
        assert case["checks"]["agree"], (name, case["checks"])
        assert not [entry for entry in case["entries"].values() if "error" in entry]
    ablation = record["cases"]["training-ablation"]["entries"]
    assert next(iter(ablation)) == "plain"
    assert list(ablation)[-1] == "+ torch.compile"
    assert "transformers, static" in report.table(record)


def test_cases_are_added_to_those_of_the_same_machine(tmp_path):
    path = tmp_path / "cpu.json"
    here = environment("cpu")
    assert report.load(path, here)["cases"] == {}
    report.store({"environment": here, "cases": {"a": {}}, "bars": []}, path)
    assert report.load(path, here)["cases"] == {"a": {}}
    assert report.load(path, here | {"torch": "1.0"})["cases"] == {}


@pytest.mark.usefixtures("short_turns")
def test_a_wrong_answer_is_told(monkeypatch, capsys):
    def wrong():
        competitors = [Competitor("ours", lambda: lambda: 1), Competitor("peer", lambda: lambda: 2)]
        return Case("Wrong", {}, 1, competitors, lambda a: {"agree": len(set(a.values())) == 1})

    monkeypatch.setattr(command, "cpu_suite", lambda tiny: {"wrong": wrong})
    assert command.main(["--device", "cpu", "--tiny"]) == 1
    assert "ANSWERS DIFFER" in capsys.readouterr().out


def test_errors_and_missing_values_are_shown():
    record = gpu_record(peak=None, one=1.0)
    record["bars"] = report.bars(record)
    for case in record["cases"].values():
        case |= {"title": "A case", "checks": {"agree": True}}
        case["entries"] = {"peer": {"error": "RuntimeError: no kernel"}}
    text = report.table(record)
    assert "RuntimeError: no kernel" in text
    assert "not measured" in text
    assert "NOT REACHED" in text


def test_shares_follow_from_the_matrix_product():
    competitor = Competitor("ours", lambda: None, seconds=[0.5], peak_bytes=2**30)
    case = Case("T", {}, 10, [competitor], lambda answers: {"agree": True}, flops_per_token=3.0)
    record = report.record_of(case, {"before": 100.0, "after": 140.0})
    assert record["entries"]["ours"]["share_of_matmul"] == 10 / 0.5 * 3 / 120
    assert record["matmul_tflops"] == {"before": 1e-10, "after": 1.4e-10}
    record |= {"ratios": {"ours": {"ours": 2.0}}}
    line = report.table({"cases": {"t": record}, "bars": []}).splitlines()[1]
    assert "50%" in line
    assert "1.0 GiB" in line
    assert line.endswith("ours x2.00")


def test_texts_that_part_are_told_apart():
    """A token that differs in float32 is reported with how close the decision was."""
    case = cuda_suite(tiny=True, device="cpu")["generation-float32"]()
    ids = case.competitors[0].build()()
    other = ids.clone()
    other[1, 7] = (other[1, 7] + 1) % 64
    checks = case.check({"ours": ids, "ours, compiled": other})
    assert not checks["agree"]
    assert checks["same_tokens"]["ours, compiled"] == pytest.approx(7 / 8)
    assert checks["gap of ours, compiled"] > 0
    assert case.check({})["agree"] is False


def test_the_command_knows_its_cases(capsys):
    assert command.main(["--device", "cpu", "--only", "trainig"]) == 2
    assert "no case trainig; there are training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chosen", "place"), [([], "_build/speed"), (["--publish"], "book/results/speed")]
)
def test_the_book_changes_only_if_asked_for(chosen, place, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "cpu_suite", lambda tiny: {})
    found = []

    def measure(suite, clock, seconds, path):
        found.append(path)
        return {"environment": {}, "cases": {}, "bars": []}

    monkeypatch.setattr(command, "measure", measure)
    assert command.main(["--device", "cpu", *chosen]) == 0
    assert command.main(["--device", "cpu", "--tiny"]) == 0
    assert command.main(["--device", "cpu", "--out", "x.json"]) == 0
    assert found == [tmp_path / place / "cpu.json", None, pathlib.Path("x.json")]


@pytest.mark.parametrize("other", [["--out", "x.json"], ["--tiny"]])
def test_what_is_published_has_one_place_and_full_size(other, capsys):
    with pytest.raises(SystemExit):
        command.main(["--device", "cpu", "--publish", *other])
    assert "--publish" in capsys.readouterr().err


def test_compiling_ahead(monkeypatch, capsys):
    done = []
    slow = Competitor("slow", lambda: lambda: done.append("slow"), compiled=True)
    quick = Competitor("quick", lambda: lambda: done.append("quick"))
    case = Case("T", {}, 1, [slow, quick], lambda answers: {"agree": True})
    monkeypatch.setattr(command, "cpu_suite", lambda tiny: {"both": lambda: case})
    assert command.main(["--device", "cpu", "--prepare"]) == 0
    assert set(done) == {"slow"}
    assert "both: slow: ready" in capsys.readouterr().out


def test_the_environment_names_the_machine():
    here = environment("cpu")
    assert here["cpu"] == cpu_name() != ""
    assert here["cores"] >= 1
    assert math.isfinite(moment()["load"])
