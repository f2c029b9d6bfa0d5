"""The live figures' arithmetic in JavaScript: equal to the library's, and quick enough."""

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from live_damages import DAMAGES
from live_tiny import prepare, trouble, watched, with_browser_weights
from live_v8 import SCRIPTS, Engine, damaged, engine
from py_mini_racer import JSEvalException

from tools.live import MODELS, write_weights
from transformer_book import datasets
from transformer_book.live.one_byte import PARTS, RESULTS, read_tensors, weights_scripts
from transformer_lib.generation.generate import generate
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.saving import load_model
from transformer_lib.text.tokenizers import CharTokenizer, Tokenizer
from transformer_lib.training.data import TextWindows, pad
from transformer_lib.training.loop import evaluate


@pytest.fixture(scope="module")
def v8() -> Engine:
    """All trained models, read."""
    found = engine()
    found.register(*MODELS)
    found.run("var letters = Live.model.read('shakespeare'), words = Live.model.read('numbers');")
    return found


@pytest.fixture(scope="module")
def letters() -> CausalLM:
    model = with_browser_weights(RESULTS / "shakespeare")
    assert isinstance(model, CausalLM)
    return model


@pytest.fixture(scope="module")
def words() -> Seq2SeqLM:
    model = with_browser_weights(RESULTS / "numbers")
    assert isinstance(model, Seq2SeqLM)
    return model


# The trained models -------------------------------------------------------------------------------


def texts() -> list[str]:
    play = datasets.shakespeare().validation
    random = Random(0)
    lengths = [*range(1, 19), 40, 256]
    return [play[(at := random.randrange(len(play) - n)) : at + n] for n in lengths]


def test_the_logits_are_pytorchs(v8: Engine, letters: CausalLM) -> None:
    largest = 0.0
    for text in texts():
        ids = CharTokenizer().encode(text)
        v8.run(f"var result = letters.run({ids}, undefined, {{ all: true }});")
        with torch.no_grad():
            expected = letters(torch.tensor([ids]))[0].flatten()
        found = torch.tensor(v8.eval("result.logits"))
        largest = max(largest, (found - expected).abs().max().item())
    print(f"largest difference of a logit: {largest:.1e}")
    assert largest < 1e-4


def test_the_greedy_text_is_the_same(v8: Engine, letters: CausalLM) -> None:
    ids = CharTokenizer().encode("MACBETH.\nTo-morrow, and ")
    start = time.process_time()  # of V8's thread too; others may be at work beside us
    written = v8.eval(f"letters.greedy({ids}, 200)")
    speed = 200 / (time.process_time() - start)
    print(f"{speed:.0f} letters a second")
    # In one pass over the whole text: after each of its letters PyTorch would have gone on so.
    with torch.no_grad():
        likeliest = letters(torch.tensor([ids + written]))[0].argmax(dim=-1).tolist()
    assert likeliest[len(ids) - 1 : -1] == written
    assert speed >= 15  # about 100 on an ordinary core


def test_the_translations_are_the_same(v8: Engine, words: Seq2SeqLM) -> None:
    numbers = datasets.numbers().test[:10]
    tokenizer = Tokenizer.load(RESULTS / "numbers" / "tokenizer.json")
    source, mask = pad([tokenizer.encode(number.english) for number in numbers], pad_id=0)
    start = torch.full((len(numbers), 1), tokenizer.bos_id)
    ids = generate(
        words, start, source=source, source_mask=mask, max_new_tokens=80,
        eos_id=tokenizer.eos_id, pad_id=0,
    )  # fmt: skip
    for number, row in zip(numbers, ids.tolist(), strict=True):
        found = v8.eval(f"words.translate({json.dumps(number.english)})")
        assert found == tokenizer.decode(row) == number.german


def test_the_maps_are_pytorchs(v8: Engine, letters: CausalLM, words: Seq2SeqLM) -> None:
    ids = CharTokenizer().encode("the king, the king")
    found = v8.eval(f"letters.run({ids}, undefined, {{ keep: true }}).attention")
    assert np.allclose(found, watched(letters, ids)["maps"], atol=1e-5)
    tokenizer = Tokenizer.load(RESULTS / "numbers" / "tokenizer.json")
    source, target = tokenizer.encode("ninety-one"), tokenizer.encode("einundneunzig", bos=True)
    maps = watched(words, source, target)["maps"]
    v8.run(f"var source = words.encode({source}, {{ keep: true }});")
    v8.run(f"var result = words.run({target}, words.cache(source), {{ keep: true }});")
    assert np.allclose(v8.eval("source.attention"), maps[:3], atol=1e-5)
    assert np.allclose(v8.eval("result.attention"), maps[3::2], atol=1e-5)
    assert np.allclose(v8.eval("result.cross_attention"), maps[4::2], atol=1e-5)


def test_the_cache_changes_nothing(v8: Engine) -> None:
    ids = CharTokenizer().encode("Is this a dagger")
    v8.run(f"var ids = {ids}, cache = letters.cache(), step;")
    v8.run("letters.run(ids.slice(0, 5), cache); letters.run(ids.slice(5, 9), cache);")
    v8.run("for (const id of ids.slice(9)) step = letters.run([id], cache).logits;")
    assert np.allclose(v8.eval("step"), v8.eval("letters.run(ids).logits"), rtol=0, atol=1e-9)
    v8.run("var source = words.encode(words.tokenizer.encode('seven')), target = [1, 79, 70, 71];")
    v8.run("cache = words.cache(source);")
    v8.run("for (const id of target) step = words.run([id], cache).logits;")
    whole = v8.eval("words.run(target, words.cache(source)).logits")
    assert np.allclose(v8.eval("step"), whole, rtol=0, atol=1e-9)


def test_one_byte_a_number_costs_no_quality(v8: Engine, letters: CausalLM) -> None:
    ids = torch.tensor(CharTokenizer().encode(datasets.shakespeare().validation[:6000]))
    windows = TextWindows(ids, 256, batch_size=24)
    before = evaluate(load_model(RESULTS / "shakespeare"), windows)["loss"]
    after = evaluate(letters, windows)["loss"]
    print(f"loss {before:.4f} before, {after:.4f} with one byte a number")
    assert abs(after - before) < 0.01


def test_starting_takes_little_time() -> None:
    start = time.process_time()
    fresh = engine()
    fresh.register("shakespeare")
    fresh.run("var model = Live.model.read('shakespeare'); model.run([40]);")
    seconds = time.process_time() - start
    print(f"{seconds:.2f} s from the files to the first letter")
    assert seconds < 5


def test_what_a_model_cannot_read_is_refused(v8: Engine) -> None:
    refused = {"[]": "no token", "[259]": "one of 259", "[-1]": "one of", "[undefined]": "one of"}
    refused["Array(257).fill(9)"] = "257 tokens: the model reads 256"
    for ids, message in refused.items():
        with pytest.raises(JSEvalException, match=message):
            v8.run(f"letters.run({ids})")


# Loading ------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_named(v8: Engine) -> None:
    assert v8.eval("Live.model.read('nobody')") is None
    v8.run("""
        var document = { head: { append: (script) => script.onerror() } };
        document.createElement = () => ({ remove() {} });
        Live.here = "file:///book/_static/live/";
        var said = "", same = false;
        Live.model.load("nobody").catch((error) => { said = error.message; });
        Live.model.load("numbers").then((model) => { same = model === words; });
    """)
    assert v8.eval("said").startswith("weights/nobody-0.js could not be loaded. Try again;")
    assert "make book" in v8.eval("said")
    assert v8.eval("same") is True


TINY_PAGE = """
    var asked = [], shares = [], loaded = null, said = "", lost = "tiny-5.js";
    var register = (part) => Live.register("tiny", part, "AAAA", part ? undefined : %s);
    var head = { append(script) {
      asked.push(script.src);
      if (script.src.endsWith(lost)) script.onerror();
      else script.onload(register(Number(script.src.match(/(\\d)\\.js$/)[1])));
    } };
    var document = { head, createElement: () => ({ remove() {} }) };
    Live.here = "";
    var ask = () => Live.model.load("tiny", (share) => shares.push(share)).then(
      (model) => { loaded = model.config.d_model; }, (error) => { said = error.message; });
"""


def test_scripts_bring_the_weights_and_what_failed_is_asked_for_again() -> None:
    fresh = engine()
    fresh.run(TINY_PAGE % json.dumps(tiny_header()))
    fresh.run("ask();")
    assert fresh.eval("loaded") is None
    assert "weights/tiny-5.js could not be loaded. Try again;" in fresh.eval("said")
    assert len(fresh.eval("asked")) == PARTS
    fresh.run("lost = 'nothing'; asked = []; ask();")
    assert fresh.eval("loaded") == 4
    assert fresh.eval("asked") == ["weights/tiny-5.js"]
    assert fresh.eval("shares") == sorted(fresh.eval("shares"))
    assert fresh.eval("shares")[-1] == 1


def test_the_parts_of_the_weights_are_joined_in_their_order() -> None:
    """They come as the network brings them."""
    fresh, expected = engine(), engine()
    expected.register("numbers")
    for script in reversed(weights_scripts("numbers")):
        fresh.run(script)
    run = "Live.model.read('numbers').encode([40, 41]).x"
    assert fresh.eval(run) == expected.eval(run)


def tiny_header() -> dict[str, Any]:
    table = {"shape": [0, 4], "float": 0, "byte": 0}
    tensors = {"decoder.embedding.tokens.weight": table}
    header = {"class": "CausalLM", "config": {"d_model": 4}, "tokenizer": {}}
    return {**header, "floats": 0, "tensors": tensors}


def test_the_site_gets_both_models(tmp_path: Path) -> None:
    written = write_weights(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        f"weights/{model}-{part}.js"
        for model in ("shakespeare", "numbers")
        for part in range(PARTS)
    ]
    sizes = [path.stat().st_size for path in written]
    assert [sum(sizes[:PARTS]) // 100_000, sum(sizes[PARTS:]) // 100_000] == [43, 20]
    assert max(sizes[1:PARTS]) - min(sizes[1:PARTS]) < 10  # a bar that fills evenly
    with pytest.raises(FileNotFoundError, match=r"'shakespeare', but .*model.json is missing"):
        write_weights(tmp_path / "new", results=tmp_path)
    assert not (tmp_path / "new").exists()


def test_no_pytorch_is_needed_to_write_weights() -> None:
    code = "import sys; sys.modules['torch'] = None; import tools.live"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SCRIPTS.parent.parent.parent)


def test_only_float32_is_read(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    path = tmp_path / "half.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(ValueError, match="x is of kind F16; expected F32"):
        read_tensors(path)


def test_the_scripts_are_small() -> None:
    sizes = [(SCRIPTS / file).stat().st_size for file in ("tensor.js", "text.js", "model.js")]
    assert sum(sizes) <= 26_000


# Every formula, on models so small that a damaged script is caught in no time ---------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    return prepare(tmp_path_factory.mktemp("tiny"))


def test_every_number_is_the_librarys(tiny: tuple[str, dict[str, Any]]) -> None:
    assert trouble(tiny) == ""


@pytest.mark.parametrize(("file", "old", "new"), DAMAGES)
def test_damages_are_caught(
    tiny: tuple[str, dict[str, Any]], file: str, old: str, new: str
) -> None:
    found = trouble(tiny, damaged(file, old, new))
    assert found, f"nobody noticed {new!r} for {old!r} in {file}"
    assert "SyntaxError" not in found
    assert "ReferenceError" not in found
