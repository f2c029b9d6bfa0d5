"""The bench: fair races, honest records; at sizes at which nothing takes long."""

import json
import math
import os
import pathlib
import re
import shutil
from dataclasses import replace

import pytest
import torch

from bench import __main__ as command
from bench import report
from bench.cases import Case
from bench.environment import (
    COMPILER_CACHES,
    cpu_name,
    environment,
    fresh_compiler_cache,
    moment,
)
from bench.grouped import RepeatedHeads
from bench.long_contexts import Models, Steps
from bench.peers import PlainGPT
from bench.races import (
    Clock,
    Competitor,
    Difference,
    describe,
    matmul_rate,
    prepare,
    summary,
    take_turns,
)
from bench.suites import cpu_suite, cuda_suite, long_suite, spread
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.presets import PRESETS

PUBLISHED = command.ROOT / "book" / "results" / "speed"


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
        assert len(log) == runs + 1  # then one for the record


def test_the_first_call_is_timed_apart_from_building(watch):
    """Compilers work in the first run; a model that is made before is nobody's business."""
    lasts = iter([7.0, 1.0, 1.0, 1.0])

    def run():
        watch.now += next(lasts)

    def build():
        watch.now += 50.0
        return run

    competitor = Competitor("ours", build)
    prepare(competitor, Clock("cpu"))
    entry = summary(competitor, 1)
    assert entry["first_call_s"] == 7
    assert entry["preparation_s"] == 59
    assert entry["seconds"] == [1]


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


def test_of_a_difference_only_what_the_longer_run_does_more_is_timed(watch):
    log = []
    longer, shorter = watch.runner(5.0, log, "longer"), watch.runner(2.0, log, "shorter")
    competitor = Competitor("ours", lambda: Difference(longer, shorter))
    prepare(competitor, Clock("cpu"))
    assert (competitor.first_call, competitor.answer) == (5.0, "longer")
    log.clear()
    take_turns([competitor], Clock("cpu"), seconds=0)
    assert competitor.seconds == [3.0] * 3
    assert log == ["longer", "shorter"] * 3


def test_a_difference_that_drowns_in_noise_is_no_time():
    competitor = Competitor("ours", lambda: None, seconds=[-0.1, 0.0, 0.2])
    assert summary(competitor, 1)["error"].startswith("too noisy")


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
    values = {
        "trained": 560_000, "tflops": 690.0, "share": 0.66, "peak": 17.5, "eager": 1.2,
        "loss": 10.0009, "one": 1_300, "one_first": 4.0, "many": 60_000, "many_first": 3.9,
        "one_compiled": 2_500, "one_compiled_first": 30.0, "many_compiled": 95_000,
        "many_compiled_first": 29.0, "same": 1.0,
    }  # fmt: skip
    values |= changes
    training = {"share_of_matmul": values["share"], "peak_gib": values["peak"]}
    cases = {
        "training": {
            "entries": {"ours, compiled": training | {"per_second": values["trained"]}},
            "matmul_tflops": {"before": values["tflops"] - 10, "after": values["tflops"] + 10},
            "checks": {"third_losses": {"ours": 10.0, "plain GPT": 10.0}},
        },
        "generation-float32": {"entries": {}},
    }
    cases["training"]["checks"]["third_losses"]["ours, compiled"] = values["loss"]
    for name, key in (("generation-1", "one"), ("generation-64", "many")):
        cases[name] = {
            "entries": {
                who: {"per_second": values[key + end], "first_call_s": values[f"{key}{end}_first"]}
                for who, end in (("ours", ""), ("ours, compiled", "_compiled"))
            }
        }
    same = {"ours": 1.0, "ours, compiled": values["same"], "ours, not recorded": 1.0}
    for case in cases.values():
        case |= {"ratios": {"ours": {"torch.nn": values["eager"]}}}
        case.setdefault("checks", {"same_tokens": same})
    return {"environment": {"device": "cuda"}, "cases": cases}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"trained": 559_999}, ["training, compiled: tokens/s"]),
        ({"tflops": 701.0}, ["training, compiled: tokens/s at 700 TFLOP/s"]),
        ({"share": 0.64}, ["training, compiled: share of matmul"]),
        ({"peak": 17.6}, ["training, compiled: peak GiB"]),
        ({"peak": None}, ["training, compiled: peak GiB"]),
        ({"eager": 1.09}, ["training, eager: times torch.nn"]),
        ({"loss": 9.9989}, ["training: third loss, off plain GPT"]),
        ({"one": 1_299}, ["generation-1, ours: tokens/s"]),
        ({"one_first": 4.1}, ["generation-1, ours: first call, s"]),
        ({"one_first": None}, ["generation-1, ours: first call, s"]),
        ({"many": 59_999}, ["generation-64, ours: tokens/s"]),
        ({"many_first": 4.1}, ["generation-64, ours: first call, s"]),
        ({"one_compiled": 2_499}, ["generation-1, ours, compiled: tokens/s"]),
        ({"one_compiled_first": 31}, ["generation-1, ours, compiled: first call, s"]),
        ({"many_compiled": 94_999}, ["generation-64, ours, compiled: tokens/s"]),
        ({"many_compiled_first": 31}, ["generation-64, ours, compiled: first call, s"]),
        ({"same": 0.999}, ["float32, ours, compiled: share of same tokens"]),
    ],
)
def test_bars_of_the_gpu(changes, missed):
    bars = report.bars(gpu_record(**changes))
    assert len(bars) == 17
    assert [bar["what"] for bar in bars if not bar["reached"]] == missed


def test_a_bar_without_a_reference_is_not_reached():
    """No matrix product, no loss of the plain path: what follows from them was not measured."""
    record = gpu_record()
    training = record["cases"] = {"training": record["cases"]["training"]}
    del training["training"]["matmul_tflops"], training["training"]["checks"]["third_losses"]
    missed = [bar for bar in report.bars(record) if not bar["reached"]]
    assert {bar["what"].partition(":")[2] for bar in missed} == {
        " tokens/s at 700 TFLOP/s",
        " third loss, off plain GPT",
    }
    assert {bar["value"] for bar in missed} == {None}


CPU_RATIOS = {
    ("training", "ours", "torch.nn"): 1.0,
    ("training", "ours", "transformers"): 1.0,
    ("generation-1", "ours", "transformers"): 1.4,
    ("generation-1", "ours, compiled", "transformers"): 2.0,
    ("generation-8", "ours", "transformers"): 1.4,
    ("generation-8", "ours, compiled", "transformers"): 2.0,
    ("encoder", "ours", "transformers"): 1.2,
    ("gqa", "ours", "repeated keys"): 4.0,
    ("gqa-attention", "ours", "repeated keys"): 4.0,
}


def cpu_record(ratios):
    cases = {}
    for (name, mine, peer), ratio in ratios.items():
        case = cases.setdefault(name, {"ratios": {}})
        case["ratios"].setdefault(mine, {"plain GPT": 0.1})[peer] = ratio
    cases["encoder-short"] = {"ratios": {"ours": {"transformers": 0.1}}}
    return {"environment": {"device": "cpu"}, "cases": cases}


@pytest.mark.parametrize("missed", [None, *CPU_RATIOS])
def test_bars_of_the_cpu(missed):
    ratios = {key: least - 0.01 * (key == missed) for key, least in CPU_RATIOS.items()}
    bars = report.bars(cpu_record(ratios))
    assert [bar["reached"] for bar in bars] == [key != missed for key in CPU_RATIOS]


def test_bars_of_what_did_not_run():
    record = {"environment": {"device": "cpu"}, "cases": {"gqa": {"ratios": {}}}}
    (bar,) = report.bars(record)
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
        assert case["cold_compiler"] is True
        for entry in case["entries"].values():
            assert len(entry["seconds"]) >= 3
            assert 0 < entry["first_call_s"] <= entry["preparation_s"]
            assert entry["per_second"] == pytest.approx(
                case["tokens_per_run"] / entry["median_s"], 1e-4
            )
    assert record["cases"]["generation-8"]["checks"]["same_tokens"]["transformers"] == 1
    assert {bar["what"] for bar in record["bars"] if bar["value"] is None} == {
        f"generation-{size}, ours, compiled: times transformers" for size in (1, 8)
    }
    assert record["environment"]["torch"] == torch.__version__
    text = capsys.readouterr().out
    assert "encoder: Encoder forward, sequences of 4 to 8 tokens (answers agree)" in text
    assert "plain GPT, sliced cache" in text
    assert "as nanoGPT builds it" in text


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
    written = report.table(record)
    assert "batch 1 (answers not compared)" in written  # tokens in bfloat16
    assert "in float32 (answers agree)" in written
    exact = record["cases"]["generation-float32"]["checks"]["same_tokens"]
    assert exact == dict.fromkeys(
        ["ours", "ours, compiled", "ours, not recorded", "ours, no cache"], 1.0
    )
    assert record["cases"]["encoder"]["sizes"]["precision"] == "bfloat16"
    text = report.table(record)
    for name in ("transformers, static", "plain GPT, compiled", "plain GPT, no cache"):
        assert name in text


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
    record = gpu_record(peak=None, one=1.0, loss=10.1)
    record["bars"] = report.bars(record)
    for case in record["cases"].values():
        case |= {"title": "A case", "checks": {"agree": True}}
        case["entries"] = {"peer": {"error": "RuntimeError: no kernel"}}
    text = report.table(record)
    assert "RuntimeError: no kernel" in text
    assert "not measured" in text
    assert text.count("NOT REACHED") == 2


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


def test_the_limit_is_the_speed_of_a_copy():
    copied = Competitor("limit", lambda: None, seconds=[0.25])
    ours = Competitor("ours", lambda: None, seconds=[0.5])
    found = {"flops_per_token": 3.0, "bytes_per_run": 2e9}
    case = Case("T", {}, 10, [ours, copied], lambda answers: {"agree": True}, **found)
    record = report.record_of(case, {"before": 100.0})
    assert record["copy_gb_per_s"] == 8
    assert record["ratios"] == {"ours": {"limit": 0.5}}
    assert "share_of_matmul" in record["entries"]["ours"]
    assert "share_of_matmul" not in record["entries"]["limit"]
    copied.error = "RuntimeError: no memory"
    assert "copy_gb_per_s" not in report.record_of(case)


def tiny_steps(**changes):
    """Steps of a tiny Llama: 2 layers, 2 of 4 heads with keys, 64 wide, in float32."""
    sizes = {"vocab_size": 50, "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2}
    config = replace(PRESETS["llama-3-8b"].config, d_ff=192, max_len=32, **sizes)
    bits, tied = changes.pop("bits", None), changes.pop("tied", False)
    models = Models(replace(config, tie_embeddings=tied), bits=bits)
    return Steps(models, **({"context": 4, "fewer": 2, "more": 6} | changes))


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_the_bytes_of_a_step_are_those_of_the_model(bits, tied):
    steps = tiny_steps(bits=bits, tied=tied)
    model = steps.models.ours
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    read = sum(tensor.nbytes for name, tensor in tensors.items() if "embedding" not in name)
    cache = 2 * 2 * 2 * 16 * 4 * (4 + 4)  # k and v, layers, heads, features, bytes, tokens
    table = 50 * 64 * 4  # the output layer is the table itself, if tied
    assert steps.bytes_per_step == read + cache + tied * table


def test_the_copy_moves_the_bytes_of_a_step_for_each_step(monkeypatch):
    steps, moved = tiny_steps(), []
    run = steps.limit()
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, x: moved.append(to.nbytes + x.nbytes))
    run()
    assert moved == [steps.bytes_per_step] * 4


def test_a_longer_context_and_more_texts_are_more_bytes():
    one, far, many = tiny_steps(), tiny_steps(context=12), tiny_steps(batch_size=3)
    token = 2 * 2 * 2 * 16 * 4
    assert far.bytes_per_step - one.bytes_per_step == 8 * token
    assert many.bytes_per_step - one.bytes_per_step == 2 * 8 * token
    assert far.flops_per_token - one.flops_per_token == 4 * 2 * 64 * 8
    assert many.flops_per_token == one.flops_per_token


def test_texts_of_steps_that_part_are_told():
    case = tiny_steps().case("T", [])
    ids = torch.zeros(1, 10, dtype=torch.long)
    other = ids.clone()
    other[0, 9] = 1
    assert case.check({"ours": ids, "ours, compiled": ids})["agree"]
    assert not case.check({"ours": ids, "ours, compiled": other})["agree"]
    assert case.check({"ours, compiled": ids}) == {"agree": False}
    quantised = tiny_steps(bits=8).case("T", []).check({"ours": ids, "ours, compiled": other})
    assert (quantised["agree"], quantised["compared"]) == (True, False)


@pytest.fixture(scope="module")
def long_record(tmp_path_factory):
    """Run the long suite with toy sizes, as the command does."""
    path = tmp_path_factory.mktemp("long") / "long-cpu.json"
    arguments = ["--long", "--device", "cpu", "--tiny", "--seconds", "1e-9", "--out", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.races.TURN", 1e-9)
        patch.setattr("bench.races.MIN_ROUNDS", 1)
        patch.setattr(torch, "compile", lambda compute, **_: compute)  # half a minute each
        assert command.main(arguments) == 0
    return json.loads(path.read_text())


def test_the_whole_long_suite(long_record):
    suite = long_suite("cpu", tiny=True)
    assert list(long_record["cases"]) == list(suite)
    for name, case in long_record["cases"].items():
        who = set(case["entries"])
        assert {"ours", "transformers"} <= who or "int" in name
        shares = case["checks"]["same_tokens"]
        assert set(shares) == who - {"limit"}  # everybody wrote
        assert case["checks"]["compared"] is ("int" not in name)
        if name.startswith("step"):
            assert {"ours", "ours, compiled", "limit"} <= who
            per_run = case["sizes"]["bytes_per_step"] * 4
            rate = per_run / case["entries"]["limit"]["median_s"] / 1e9
            assert case["copy_gb_per_s"] == pytest.approx(rate, 1e-4)


def test_the_large_suite_is_made_without_a_gpu():
    """Only what it measures needs one: sizes and bytes are known before any weight is made."""
    cases = {name: make() for name, make in long_suite("cuda").items()}
    assert cases["step-64"].sizes["bytes_per_step"] == 15_026_626_560
    first = cases["step-64"].sizes
    assert (first["precision"], first["n_layers"], first["n_kv_heads"]) == ("bfloat16", 32, 8)
    assert cases["step-4096-batch-16"].amount == 16 * 64
    assert cases["prompt-100000"].sizes["n_layers"] == 16
    names = [competitor.name for competitor in cases["prompt-100000"].competitors]
    assert names == ["ours", "ours, chunks of 2,048", "ours, chunks of 8,192", "transformers"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cuda", "--long"], "--device cuda: PyTorch sees no GPU here"),
        (["--device", "cpu", "--long", "--publish"], "the large models, which need a GPU"),
    ],
)
def test_what_needs_a_gpu_is_refused_without_one(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err


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
    assert checks["compared"]
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


def test_long_contexts_have_a_file_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    options = command.parser().parse_args(["--device", "cuda", "--long", "--publish"])
    assert command.where(options) == tmp_path / "book/results/speed/long-cuda.json"
    options = command.parser().parse_args(["--device", "cpu", "--long"])
    assert command.where(options) == tmp_path / "_build/speed/long-cpu.json"


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
    load = moment()["load"]
    assert load is None or math.isfinite(load)  # Windows does not say


def test_compilers_start_from_nothing_and_leave_nothing(monkeypatch):
    kept, unset = COMPILER_CACHES
    monkeypatch.setenv(kept, "kept")
    monkeypatch.delenv(unset, raising=False)
    with fresh_compiler_cache():
        folders = [pathlib.Path(os.environ[name]) for name in COMPILER_CACHES]
        assert not any(folder.exists() for folder in folders)
        assert len({*folders, pathlib.Path("kept")}) == 3
        folders[0].mkdir()
        assert moment()["cold_compiler"] is True
    assert not folders[0].parent.exists()
    assert os.environ[kept] == "kept"
    assert unset not in os.environ
    assert moment()["cold_compiler"] is False


@pytest.mark.parametrize(("chosen", "cold"), [([], True), (["--warm"], False)])
def test_the_command_measures_cold_unless_told(chosen, cold, monkeypatch):
    monkeypatch.delenv(COMPILER_CACHES[0], raising=False)
    monkeypatch.setattr(command, "cpu_suite", lambda tiny: {})
    found = []

    def measure(*_):
        found.append(moment()["cold_compiler"])
        return {"environment": {}, "cases": {}, "bars": []}

    monkeypatch.setattr(command, "measure", measure)
    assert command.main(["--device", "cpu", "--tiny", *chosen]) == 0
    assert found == [cold]


def test_a_plain_gpt_is_the_same_model():
    torch.manual_seed(0)
    small = {"vocab_size": 50, "d_model": 16, "n_heads": 4, "n_layers": 3, "max_len": 16}
    config = replace(PRESETS["gpt2"].config, d_ff=40, **small)
    ours = CausalLM(config).eval()
    with torch.no_grad():
        for parameter in ours.parameters():  # no bias is zero, no norm does nothing
            parameter.add_(0.3 * torch.randn_like(parameter))
    peer = PlainGPT(ours)
    ids = torch.randint(0, 50, (2, 9))
    targets = ids.roll(-1, 1)
    loss = torch.nn.functional.cross_entropy(ours(ids).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(peer(ids, targets), loss)
    texts = [peer.generate(ids[:, :4], 8, use_cache=use) for use in (False, True)]
    assert torch.equal(*texts)
    assert texts[0].shape == (2, 12)
    assert torch.equal(texts[0][:, 4], ours(ids[:, :4])[:, -1].argmax(-1))


def test_repeated_heads_are_what_grouped_queries_stand_for():
    torch.manual_seed(0)
    layer = RepeatedHeads(16, 4, 2)
    q, k, v = torch.randn(1, 4, 1, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    found = layer.attend(q, k, v)
    for head in range(4):
        weights = (q[0, head] @ k[0, head // 2].T / 2).softmax(-1)
        torch.testing.assert_close(found[0, head], weights @ v[0, head // 2])


def test_wrong_vectors_are_told():
    for name in ("encoder", "gqa", "gqa-attention"):
        made = cpu_suite(tiny=True)[name]()
        answer = made.competitors[0].build()()
        assert made.check({"ours": answer, "peer": answer + 1e-6})["agree"]
        assert not made.check({"ours": answer, "peer": answer + 0.01})["agree"]
        assert not made.check({"peer": answer})["agree"]


def test_vectors_in_bfloat16_may_differ_a_little():
    case = cuda_suite(tiny=True, device="cpu")["encoder"]()
    answer = case.competitors[0].build()().float()
    assert case.check({"ours": answer, "peer": answer + 0.01})["agree"]
    assert not case.check({"ours": answer, "peer": answer + 0.1})["agree"]
    far = answer.clone()
    far[-1, 0, 0] += 1  # a single one, but far off
    assert not case.check({"ours": answer, "peer": far})["agree"]


def test_lengths_are_spread_from_end_to_end():
    assert spread(4, 8, 3) == (4, 6, 8)
    lengths = spread(64, 128, 16)
    assert (lengths[0], lengths[-1], len(set(lengths))) == (64, 128, 16)


@pytest.fixture
def read_page(monkeypatch, tmp_path, capsys):
    """Run the code of the page Speed beside two records; return what it prints."""

    def read(**records):
        folder = tmp_path / "results" / "speed"
        for name, record in records.items():
            report.store(record, folder / f"{name.replace('_', '-')}.json")
        shutil.copy(PUBLISHED / "earlier.csv", folder)
        page = command.ROOT / "book" / "speed.ipynb"
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        capsys.readouterr()
        names.clear()
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
        return capsys.readouterr().out

    names = read.names = {}
    monkeypatch.chdir(tmp_path)
    return read


def test_the_page_bears_that_nothing_was_measured(read_page):
    nothing = {"environment": environment("cpu"), "cases": {}, "bars": []}
    text = read_page(cpu=nothing, cuda=nothing, long_cuda=nothing)
    assert "steps: not measured" in text
    assert "prompt: not measured" in text
    for suite in (cpu_suite(), cuda_suite()):
        for name in set(suite) - {"training-ablation", "generation-float32"}:
            assert f"{name}: not measured" in text


@pytest.mark.usefixtures("short_turns")
def test_the_page_shows_every_competitor(read_page, long_record, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda compute, **_: compute)
    monkeypatch.setattr("bench.races.MIN_ROUNDS", 1)
    suites = {
        "cpu": cpu_suite(tiny=True),
        "cuda": cuda_suite(tiny=True, device="cpu", compiler=torch.compile),
    }
    records = {
        device: command.measure(suite, Clock("cpu"), 0.0, None) for device, suite in suites.items()
    }
    cases = records["cuda"]["cases"]
    cases["generation-64"] = cases.pop("generation-4")
    cases["encoder"]["entries"]["broken"] = {"error": "RuntimeError: no kernel"}
    text = read_page(**records, long_cuda=long_record)
    assert "not measured" not in text
    assert re.search(r"broken +did not run", text)
    for record in records.values():
        for case in record["cases"].values():
            assert case["title"] in text or not case["ratios"].get("ours")  # no peers
            for name, entry in case["entries"].items():
                if "error" not in entry and case["title"] in text:
                    shown = rf"  {re.escape(name)} .* {entry['first_call_s']:.2f} +×"
                    assert re.search(shown, text), (case["title"], name)
    for case in long_record["cases"].values():
        for name, entry in case["entries"].items():
            if "context" not in case["sizes"]:
                assert re.search(rf"  {re.escape(name)} +{entry['median_s']:.2f} ", text)
            elif name != "limit" and "error" not in entry:
                assert f" {entry['median_s'] / 4 * 1000:.2f} " in text
    assert max(map(len, text.splitlines())) <= 74


def published(name):
    return json.loads((PUBLISHED / name).read_text(encoding="utf-8"))


def test_the_page_counts_the_bytes_that_the_bench_counts(read_page, long_record):
    """The page from the shape on record, the bench from the tensors of a model."""
    kept = {name: published(f"{name}.json") for name in ("cpu", "cuda")}
    for long in (published("long-cuda.json"), long_record):
        read_page(**kept, long_cuda=long)
        sizes = [case["sizes"] for case in long["cases"].values() if "context" in case["sizes"]]
        assert len(sizes) == 6
        for size in sizes:
            assert sum(read_page.names["step_bytes"](size)) == size["bytes_per_step"]


def test_published_long_contexts_have_the_sizes_of_the_suite():
    """So a new measurement replaces them case by case."""
    record = published("long-cuda.json")
    cases = {name: make() for name, make in long_suite("cuda").items()}
    assert list(record["cases"]) == list(cases)
    for name, case in cases.items():
        kept = record["cases"][name]
        assert (kept["title"], kept["sizes"]) == (case.title, case.sizes)
        assert set(kept["entries"]) <= {competitor.name for competitor in case.competitors}
        assert kept["tokens_per_run"] == case.amount


def test_published_shares_of_the_limit_follow_from_their_times():
    """A step cannot beat the limit by more than a copy's noise, and `ratios` fit the times."""
    for case in published("long-cuda.json")["cases"].values():
        for entry in case["entries"].values():
            median = entry["median_s"]
            assert entry["per_second"] == pytest.approx(case["tokens_per_run"] / median, 1e-4)
            if "context" in case["sizes"]:
                limit = 64 * case["sizes"]["bytes_per_step"] / case["copy_gb_per_s"] / 1e9
                assert 0.05 < limit / median < 1.05
