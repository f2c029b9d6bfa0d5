"""The command line: every command from end to end, and a clear line for every mistake."""

import argparse
import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import tokenizers
import torch
from checkpoint_tokenizers import settings_of
from torch.nn.functional import cross_entropy

import transformer_lib
from transformer_lib.cli import main as cli
from transformer_lib.cli import options as cli_options
from transformer_lib.cli import text as cli_text
from transformer_lib.cli import train as cli_train
from transformer_lib.core.config import TransformerConfig
from transformer_lib.core.files import lock_folder
from transformer_lib.generation import text_generation as texts
from transformer_lib.generation.fast import compiled_decoder
from transformer_lib.generation.fast.compiled_decoder import CompiledDecoder
from transformer_lib.generation.generate import generate
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.presets import PRESETS
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import CharTokenizer, Tokenizer
from transformer_lib.training.data import IGNORE, TextWindows, translation_batch
from transformer_lib.training.loop import evaluate

TINY = ["--layers", "1", "--d-model", "8", "--heads", "2"]
STOPPED = ["--steps", "140", "--context", "16", *TINY]  # in which a run is stopped after step 6
QUESTION = "to be, or not to be: that is the question. "
COMMANDS = ("train", "generate", "chat", "translate", "trace", "presets")
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "forty": "vierzig"}
WAITING = """  # `python -m transformer_lib`, but after step 6 training waits for the file "go"
import runpy, sys, time
from pathlib import Path
from transformer_lib.cli import train as cli_train

sys.modules["matplotlib.figure"] = None
folder, train = Path(sys.argv.pop(1)), cli_train.run_training


def wait(row):
    if row["step"] == 6:
        (folder / "waiting").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)


cli_train.run_training = lambda *of, **options: train(*of, **options | {"on_step": wait})
runpy.run_module("transformer_lib", run_name="__main__")
"""
BROKEN = "\N{REPLACEMENT CHARACTER}"
WITHOUT_TORCH = """  # several command lines in one process, in which PyTorch cannot be imported
import json, sys
sys.modules["torch"] = sys.modules["numpy"] = None
from transformer_lib.cli import main as cli

statuses = []
for typed in json.loads(sys.argv[1]):
    try:
        cli.main(typed)
    except SystemExit as ended:
        statuses.append(ended.code)
print(statuses)
"""
NONSENSE = (  # what the book's model answers with "zwölf", "elf" and the like
    "hello world; the cat sat on the mat; forty-eleven; xyzzy; two two two; how are you; zwei; "
    "1234; TWELVE; seven apples; minus four; ??"
)
WHOLE = "must be a whole number of at least 1"


@pytest.fixture(autouse=True, scope="module")
def no_pictures():
    """Drawing takes longer than all the rest; and samples are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_train, "SAMPLE", 20)
        patch.setitem(sys.modules, "matplotlib.figure", None)
        yield


def run(capsys, *arguments):
    """Run a command that must succeed; return what it prints."""
    assert cli.main(arguments) == 0
    return capsys.readouterr().out


def fail(capsys, *arguments):
    """Run a command that must fail with one line and status 2; return that line."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("\n")
    *before, message = printed.err[:-1].split("\n")
    assert all("step" in line for line in before)  # the progress bar, if there was one
    return message


@pytest.fixture
def text(tmp_path):
    """A small text, to be trained on."""
    path = tmp_path / "text.txt"
    path.write_text(QUESTION * 35)
    return path


@pytest.fixture(scope="module")
def in_one_go(tmp_path_factory):
    """What a run leaves that nobody stopped."""
    folder = tmp_path_factory.mktemp("in_one_go")
    (folder / "text.txt").write_text(QUESTION * 35)
    options = ["--data", str(folder / "text.txt"), "--out", str(folder / "run"), *STOPPED]
    with redirect_stdout(io.StringIO()):
        assert cli.main(["train", *options]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder in which ``train`` was called without naming data, and what that printed."""
    folder, printed = tmp_path_factory.mktemp("home"), io.StringIO()
    options = ["--steps", "1", "--batch-size", "512", "--learning-rate", "0.1", *TINY]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        assert cli.main(["train", *options]) == 0
    return folder, printed.getvalue()


@pytest.fixture(scope="module")
def writer(home):
    """A model that was trained on Shakespeare."""
    return home[0] / "runs" / "shakespeare"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A model that knows four words by heart, and was told so without a column ``split``."""
    folder = tmp_path_factory.mktemp("translator")
    rows = ["english\tgerman", *("\t".join(pair) for pair in NUMBERS.items())]
    data, printed = folder / "words.tsv", io.StringIO()
    data.write_text("\n".join([rows[0], *rows[1:] * 2]) + "\n")  # the first row only judges, once
    sizes = ["--layers", "1", "--d-model", "48", "--heads", "4", "--learning-rate", "0.01"]
    options = ["--data", str(data), "--out", str(folder / "model"), "--steps", "60"]
    with redirect_stdout(printed):
        assert cli.main(["train", *options, *sizes]) == 0
    command = f'python -m transformer_lib translate "one" --model "{folder / "model"}"'
    assert printed.getvalue().splitlines()[-1] == command
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder / "model"


class TestTrainAndGenerate:
    def test_training_ends_with_the_loss_the_folder_and_a_command_that_works(
        self, home, monkeypatch, capsys
    ):
        home, printed = home
        monkeypatch.chdir(home)
        loss, folder = re.match(
            r"validation loss (\S+); the model is in (\S+)\.\n", printed
        ).groups()
        rows = (home / folder / "metrics.csv").read_text().splitlines()
        assert float(loss) == pytest.approx(float(rows[-1].split(",")[5]), abs=1e-4)
        assert float(loss) < 5.6  # the logarithm of 259 tokens: it has learned something
        command = shlex.split(printed.splitlines()[-1])
        assert command[:3] == ["python", "-m", "transformer_lib"]
        text = run(capsys, *command[3:], "--prompt", "Now ", "--tokens", "5", "--temperature", "0")
        tokenizer, model = (
            Tokenizer.load(home / folder / "tokenizer.json"),
            load_model(home / folder),
        )
        ids = tokenizer.encode("Now ")
        for _ in range(5):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert text == tokenizer.decode(ids) + "\n"

    def test_training_ends_with_a_sample(self, home, translator):
        _, after, sample = home[1].partition("A sample of what it writes:\n")
        assert after
        assert 5 < len(sample.partition("For more:\n")[0]) < 40
        shown = (translator.parent / "printed.txt").read_text()
        assert "\none -> " in shown

    def test_a_finished_run_says_so_and_goes_on_if_more_steps_are_asked_for(
        self, text, tmp_path, capsys
    ):
        options = ["--data", str(text), "--out", str(tmp_path / "run"), "--context", "16", *TINY]
        first = run(capsys, "train", *options, "--steps", "11")
        assert "Already finished" not in first
        again = run(capsys, "train", *options, "--steps", "11")
        folder, loss = tmp_path / "run", re.search(r"loss (\S+);", first)[1]
        said = f"Already finished: {folder} holds all 11 steps (validation loss {loss}).\nTo go on"
        assert again.startswith(said)
        assert again.partition("A sample")[2] == first.partition("A sample")[2]
        assert run(capsys, "train", *options, "--steps", "22").startswith("validation loss ")
        rows = (folder / "metrics.csv").read_text().split()
        assert [row.split(",")[0] for row in rows[1:]] == [str(n) for n in range(1, 23)]

    def test_the_averaged_model_is_the_one_that_is_judged_and_saved(self, text, tmp_path, capsys):
        folder = tmp_path / "run"
        options = ["--data", str(text), "--out", str(folder), "--context", "16", "--steps", "15"]
        today = ["--optimizer", "muon", "--schedule", "wsd", "--average", "0.8"]
        printed = run(capsys, "train", *options, *TINY, *today)
        written, ids = text.read_text(), CharTokenizer().encode
        judged = TextWindows(torch.tensor(ids(written[len(written) * 19 // 20 :])), 16, 16)
        loss = evaluate(load_model(folder), judged)["loss"]
        assert printed.startswith(f"validation loss {loss:.4f};")
        message = fail(capsys, "train", *options, *TINY, *today[:-2])
        assert f"average=None, but {folder} holds a run with 0.8" in message

    def test_in_a_fresh_clone_the_books_model_writes_and_is_named(
        self, home, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.chdir(tmp_path)
        assert cli.main(["generate", "--tokens", "60", "--seed", "1"]) == 0
        printed = capsys.readouterr()
        assert printed.err == (
            "Model: 'shakespeare', which comes with the book; "
            "to train your own: python -m transformer_lib train\n"
        )
        words = set(re.findall(r"[A-Za-z]{3,}", printed.out[:-5]))  # the last may be cut
        known = (cli_options.BOOK / "data" / "shakespeare.txt").read_text(encoding="utf-8")
        assert len(words) > 3
        assert sum(word in known for word in words) >= len(words) - 1  # it writes English
        monkeypatch.chdir(home[0])
        assert cli.main(["generate", "--tokens", "1"]) == 0
        assert capsys.readouterr().err == "Model: runs/shakespeare, which you have trained.\n"

    def test_an_installed_package_has_the_small_model_only(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        small, missing = cli_options.BOOK_WRITERS[1], tmp_path / "missing"
        monkeypatch.setattr(cli_text, "BOOK_WRITERS", (missing, small))
        assert cli.main(["generate", "--tokens", "1"]) == 0
        assert "Model: 'drafts', which comes with the book" in capsys.readouterr().err
        monkeypatch.setattr(cli_text, "BOOK_WRITERS", (missing,))
        assert "--model is not given, and no model is here" in fail(capsys, "generate")

    def test_what_is_drawn_follows_from_the_seed(self, writer, capsys):
        texts = [
            run(capsys, "generate", "--model", str(writer), "--tokens", "20", *options)
            for options in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], ["--top-k", "1"])
        ]
        assert texts[0] == texts[1]
        assert len(set(texts)) == 3
        assert texts[3] == run(
            capsys, "generate", "--model", str(writer), "--tokens", "20", "--temperature", "0"
        )

    def test_answers_and_patterns_are_all_that_is_written(self, writer, capsys):
        """Drawn with several seeds; a model that has hardly learned anything."""
        common = ["generate", "--model", str(writer), "--prompt", "To be ", "--temperature", "2"]
        answers, years = set(), set()
        for seed in "0123456789":
            some = [*common, "--seed", seed]
            answers.add(run(capsys, *some, "--answers", "or not, or what"))
            years.add(run(capsys, *some, "--pattern", r"1[5-6]\d\d\."))
        assert answers == {"To be or not\n", "To be  or what\n"}  # spaces belong to answers
        assert all(re.fullmatch(r"To be 1[56]\d\d\.\n", year) for year in years)
        assert len(years) > 1

    def test_a_text_that_is_cut_off_is_told(self, writer, capsys):
        """By --tokens, and by the context, which cannot move along."""
        common = ["generate", "--model", str(writer), "--prompt", "To be ", "--pattern", "a{90}"]
        for more, n in (["--tokens", "3"], 3), ([], 64 + 1 - len("To be ")):
            assert cli.main([*common, *more]) == 0
            printed = capsys.readouterr()
            assert printed.out == "To be " + "a" * n + "\n"
            assert printed.err == f"The text is not complete: it was cut off after {n} tokens.\n"
        message = fail(capsys, *common, "--prompt", "to be " * 11)
        assert "prompt has 66 tokens; expected at most 64, the context, with --answers" in message

    def test_the_options_reach_model_and_recipe(self, text, tmp_path, capsys):
        run(
            capsys, "train", "--data", str(text), "--out", str(tmp_path / "run"), "--steps", "2",
            "--context", "12", "--tokenizer", "bpe", "--vocab-size", "270",
            "--learning-rate", "0.5", "--batch-size", "3", "--layers", "2", "--d-model", "12",
            "--heads", "3",
        )  # fmt: skip
        config = load_model(tmp_path / "run").config
        assert (config.n_layers, config.d_model, config.n_heads, config.d_ff) == (2, 12, 3, 32)
        assert (config.vocab_size, config.max_len) == (270, 12)
        rows = [row.split(",") for row in (tmp_path / "run" / "metrics.csv").read_text().split()]
        assert [row[1] for row in rows[1:]] == ["36", "72"]  # 3 windows of 12
        assert float(rows[-1][3]) == pytest.approx(0.05)  # a tenth is left

    def test_only_the_first_process_of_torchrun_writes_the_model(
        self, text, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.setattr(cli_train, "rank_and_world", lambda: (1, 2))
        options = ["--data", str(text), "--out", str(tmp_path), "--steps", "1", *TINY]
        assert run(capsys, "train", *options) == ""
        assert not (tmp_path / "model.json").exists()

    def test_a_rank_without_other_processes_means_nothing(
        self, text, tmp_path, monkeypatch, capsys
    ):
        """Kubernetes gives one to every pod."""
        monkeypatch.setenv("RANK", "1")
        options = ["--data", str(text), "--out", str(tmp_path), "--steps", "1", *TINY]
        assert "validation loss" in run(capsys, "train", *options)
        assert (tmp_path / "model.json").exists()

    def test_processes_that_have_not_met_do_not_train_side_by_side(
        self, text, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "4")
        message = fail(capsys, "train", "--data", text, "--out", tmp_path / "run", *TINY)
        assert "WORLD_SIZE=4, but this process has not joined the others: start it with" in message
        assert not (tmp_path / "run").exists()

    def start_waiting(self, text, folder):
        """Start a process that trains, and wait until it waits."""
        options = ["train", "--data", str(text), *STOPPED]
        command = [sys.executable, "-c", WAITING, str(folder), *options, "--out", folder / "a"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # if we ignore it
        )  # fmt: skip
        while process.poll() is None and not (folder / "waiting").exists():
            time.sleep(0.01)
        return process, options

    @pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
    def test_stopped_with_a_signal_it_goes_on_and_ends_with_the_same_bits(
        self, kind, text, in_one_go, tmp_path, capfd
    ):
        process, options = self.start_waiting(text, tmp_path)
        process.send_signal(kind)
        (tmp_path / "go").touch()
        printed, errors = process.communicate(timeout=60)
        assert (process.returncode, printed) == (130, "")
        folder = tmp_path / "a"
        said = f"Stopped after step 6 of 140. The same command goes on from {folder}."
        lines = [line for line in errors.split("\n") if line and "/140 [" not in line]
        assert lines == [said]  # beside the progress bar
        steps = [path.name[:13] for path in folder.glob("checkpoints/*")]
        assert steps == ["step-00000006"]  # else there would be one after each seventh step
        assert not (folder / "model.json").exists()
        assert cli.main([*options, "--out", str(folder)]) == 0  # to the end
        for name in ("model.safetensors", "metrics.csv"):
            assert (folder / name).read_bytes() == (in_one_go / name).read_bytes(), name
        capfd.readouterr()

    def test_a_second_ctrl_c_stops_at_once(self, text, tmp_path):
        process, _ = self.start_waiting(text, tmp_path)
        process.send_signal(signal.SIGINT)
        time.sleep(2)  # so that the system does not make one signal of both
        assert process.poll() is None  # the step has not ended
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.endswith(
            "\nStopped before the first checkpoint. The same command starts anew.\n"
        )
        assert "Traceback" not in errors

    def test_ctrl_c_says_how_to_go_on(self, text, tmp_path, monkeypatch, capsys):
        def train(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli_train, "run_training", train)
        monkeypatch.chdir(tmp_path)
        assert cli.main(["train", "--data", str(text)]) == 130
        assert capsys.readouterr().err == (
            "Stopped before the first checkpoint. The same command starts anew.\n"
        )

    def test_ctrl_c_while_writing_ends_quietly(self, writer, monkeypatch, capsys):
        def stream(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(texts, "stream", stream)
        assert cli.main(["generate", "--model", str(writer)]) == 130
        assert capsys.readouterr().err == ""

    def test_a_reader_that_has_had_enough_is_no_mistake(self, tmp_path, monkeypatch, capsys):
        class Closed(io.FileIO):
            def write(self, _):
                raise BrokenPipeError(32, "Broken pipe")

        with Closed(tmp_path / "pipe", "w") as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            assert cli.main(["presets"]) == 141
        assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    """Keeps what it is given, piece by piece."""

    def __init__(self):
        super().__init__()
        self.pieces = []

    def write(self, text):
        self.pieces.append(text)
        return len(text)


class TestStreaming:
    """A model that has learned nothing, and a stream that says what we want."""

    @pytest.fixture
    def folder(self, tmp_path):
        tokenizer = CharTokenizer.train(["abc"])
        config = TransformerConfig(
            vocab_size=tokenizer.vocab_size, max_len=7, d_model=4, n_heads=1, n_layers=1
        )
        save_model(CausalLM(config), tmp_path, tokenizer=tokenizer)
        return tmp_path

    def written(self, monkeypatch, folder, ids, *options):
        """Return what is printed, in pieces, and the prompts that the stream was given."""
        terminal, prompts, left = Terminal(), [], list(ids)

        def stream(model, prompt, *, max_new_tokens, **_):
            prompts.append(prompt[0].tolist())
            assert prompt.shape[1] + max_new_tokens <= 7 + 1  # nobody reads the last token
            for _ in range(max_new_tokens):
                token = left.pop(0)
                yield torch.tensor([token])
                if token == CharTokenizer().eos_id:
                    return

        monkeypatch.setattr(texts, "stream", stream)
        monkeypatch.setattr(sys, "stdout", terminal)
        assert cli.main(["generate", "--model", str(folder), *options]) == 0
        return terminal.pieces, prompts

    def test_no_character_is_printed_in_parts(self, folder, monkeypatch):
        text = "né € 😀 ok"
        ids = CharTokenizer().encode(text)
        assert len(ids) == len(text.encode())  # one token for each byte
        options = ["--prompt", ">", "--tokens", str(len(ids))]
        pieces, _ = self.written(monkeypatch, folder, ids, *options)
        assert [piece for piece in pieces if piece.strip("\n")] == [">", *text]

    def test_bytes_that_are_no_text_show_as_such_and_break_nothing(self, folder, monkeypatch):
        tokenizer = CharTokenizer()
        bad = tokenizer.tokens.index(r"\xff")
        ids = [bad, *tokenizer.encode("€"), bad, bad, *tokenizer.encode("€")[:2]]
        options = ["--prompt", ">", "--tokens", str(len(ids))]
        pieces, _ = self.written(monkeypatch, folder, ids, *options)
        assert "".join(pieces) == ">" + tokenizer.decode(ids) + "\n"
        assert tokenizer.decode(ids) == f"{BROKEN}€{BROKEN * 3}"

    def test_a_text_may_be_longer_than_the_context(self, folder, monkeypatch):
        text = "abcdefghijklmnopqrst"
        ids = CharTokenizer().encode(text)
        options = ["--prompt", "123", "--tokens", "20"]
        pieces, prompts = self.written(monkeypatch, folder, ids, *options)
        assert "".join(pieces) == "123" + text + "\n"
        seen = [CharTokenizer().decode(prompt) for prompt in prompts]
        assert seen == ["123", "bcde", "fghi", "jklm", "nopq"]

    def test_a_long_prompt_is_shown_whole_and_its_end_is_read(self, folder, monkeypatch):
        options = ["--prompt", "0123456789", "--tokens", "1"]
        pieces, prompts = self.written(monkeypatch, folder, CharTokenizer().encode("!"), *options)
        assert "".join(pieces) == "0123456789!\n"
        assert [CharTokenizer().decode(prompt) for prompt in prompts] == ["6789"]

    def test_the_end_token_ends_it(self, folder, monkeypatch):
        ids = [*CharTokenizer().encode("abcdefg"), CharTokenizer().eos_id]
        pieces, prompts = self.written(monkeypatch, folder, ids, "--prompt", "1")
        assert "".join(pieces) == "1abcdefg\n"
        assert len(prompts) == 2

    def test_compiled_decoding_is_used_if_asked_for(self, folder, monkeypatch, capsys):
        used = []
        monkeypatch.setattr(
            texts,
            "stream",
            lambda writer, *_, **__: used.append(writer) or torch.tensor([[70]]),
        )
        run(capsys, "generate", "--model", str(folder), "--tokens", "1", "--compile")
        assert [(type(one), one.max_len) for one in used] == [(CompiledDecoder, 7)]

    def test_the_text_of_a_prompt_is_not_changed_by_what_follows(self, folder, monkeypatch):
        """Also by an end token in it: only a new one ends the text."""
        end = CharTokenizer().eos_id
        monkeypatch.setattr(CharTokenizer, "encode", lambda *_: [70, end])
        ids = [71, 72, end]
        pieces, prompts = self.written(monkeypatch, folder, ids, "--prompt", "a")
        assert "".join(pieces) == "a" + CharTokenizer().decode(ids) + "\n"
        assert prompts == [[70, end]]

    def test_the_first_word_is_not_glued_to_the_prompt(self, monkeypatch):
        """Tokenizers such as that of Llama 2 leave out the space that a text begins with."""
        tokenizer = PretrainedTokenizer(settings_of("Llama 2"))
        text = "to be"
        ids, whole = tokenizer.encode(text), tokenizer.encode(text + " or not")
        assert whole[: len(ids)] == ids
        new = whole[len(ids) :]
        monkeypatch.setattr(texts, "stream", lambda *_, **__: iter(torch.tensor(new)[:, None]))
        model = CausalLM(TransformerConfig(vocab_size=9, d_model=4, n_heads=1, n_layers=1))
        options = (model, tokenizer, ids, Sampling(), len(new), "cpu")
        assert "".join(texts.write_on(*options)) == " or not"
        assert "".join(texts.write_on(*options, goes_on=False)) == "or not"

    def test_a_compiled_decoder_has_the_room_that_is_needed(self):
        sizes = {"vocab_size": 9, "d_model": 4, "n_heads": 1, "n_layers": 1}
        model = CausalLM(TransformerConfig(**sizes, max_len=1000))
        first = cli_text._with_room(model, 100)
        assert first.max_len == 256
        assert cli_text._with_room(model, 256, first) is first
        second = cli_text._with_room(model, 257, first)
        assert second.max_len == 512
        last = cli_text._with_room(model, 3000, second)
        assert last.max_len == 1000
        assert cli_text._with_room(model, 3000, last) is last


class TestTranslate:
    @pytest.mark.parametrize("beams", ["1", "3"])
    def test_sentences_from_the_command_line(self, beams, translator, capsys):
        options = ["--model", str(translator), "--beams", beams]
        printed = run(capsys, "translate", *options, " forty ", "two", "three")
        assert printed == "vierzig\nzwei\ndrei\n"

    def test_the_model_that_comes_with_the_book(self, capsys):
        printed = run(capsys, "translate", "two hundred and forty-one", "--beams", "4")
        assert printed == "zweihunderteinundvierzig\n"

    def test_what_is_no_number_word_is_doubted(self, capsys):
        nonsense = [*NONSENSE.split("; "), "two hundred and forty-one"]
        assert cli.main(["translate", *nonsense]) == 0
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == len(nonsense)  # doubts go elsewhere
        doubts = printed.err.splitlines()
        assert len(doubts) == len(nonsense) - 1  # all but the number word
        assert doubts[0] == (
            "Unsure: 'hello world' looks unlike the training data "
            "(0.087 nats per token; 0.079 in validation)."
        )

    def test_number_words_that_it_was_not_trained_on_are_not_doubted(self):
        """The threshold lies between: the model is right about all of these, and sure of them."""
        folder = cli_options.BOOK / "results" / "numbers"
        model, expected = load_model(folder), cli_text.validation_loss(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        rows = (cli_options.BOOK / "data" / "numbers.tsv").read_text(encoding="utf-8").split("\n")
        pairs = [row.split("\t")[2:] for row in rows if row.startswith(("test", "validation"))]
        assert len(pairs) == 1500
        above = []
        for start in range(0, 1500, 250):
            some = [tuple(map(tokenizer.encode, pair)) for pair in pairs[start : start + 25]]
            batch = translation_batch(some)
            targets = batch.pop("targets")
            with torch.no_grad():
                losses = cross_entropy(model(**batch).mT, targets, reduction="none")
            above += (losses.sum(dim=1) / (targets != IGNORE).sum(dim=1) - expected).tolist()
        assert max(above) < 0.5 * cli_text.UNSURE

    def test_the_surprise_is_the_mean_loss_of_what_was_written(self, translator):
        model, tokenizer = load_model(translator), Tokenizer.load(translator / "tokenizer.json")
        for n_beams in (1, 3):
            text, surprise = cli_text.translate_text(model, tokenizer, "three", n_beams)
            pair = (tokenizer.encode("three"), tokenizer.encode(text))
            batch = translation_batch([pair])
            targets = batch.pop("targets")
            with torch.no_grad():
                loss = cross_entropy(model(**batch).mT, targets)
            assert surprise == pytest.approx(float(loss), abs=1e-5)

    def test_without_a_record_of_the_validation_nothing_is_doubted(self, tmp_path):
        assert cli_text.validation_loss(tmp_path) == math.inf
        (tmp_path / "metrics.csv").write_text("step,validation_loss\n1,2.5\n2,0.5\n3,\n")
        assert cli_text.validation_loss(tmp_path) == 0.5

    def test_lines_from_the_standard_input(self, translator, capsys, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO("two\n\n three\n"))
        assert run(capsys, "translate", "--model", str(translator)) == "zwei\ndrei\n"

    def test_a_column_says_which_rows_are_for_what(self, tmp_path):
        data = tmp_path / "data.tsv"
        rows = ["train\t1\tone\teins", "test\t2\ttwö\tzwei", "validation\t3\tthree\tdrei"]
        data.write_text("\n".join(["split\tn\tenglish\tgerman", *rows]), encoding="utf-8")
        given = argparse.Namespace(
            data=data, tokenizer="char", vocab_size=300, batch_size=1, seed=0, context=5
        )
        tokenizer, parts, max_len = cli_train._pairs(given)
        texts = [[list(map(tokenizer.decode, pair)) for pair in part.examples] for part in parts]
        assert texts == [[["one", "eins"]], [["three", "drei"]]]
        assert "ö" not in tokenizer.tokens  # nothing is learned from what is for the test
        assert max_len == 6  # "three", and the end or the start
        assert next(parts[0])["targets"].tolist() == [[*tokenizer.encode("eins"), 2]]

    def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_a_name(self, tmp_path):
        """Excel writes one; "split" must be found all the same."""
        data = tmp_path / "data.tsv"
        data.write_text(
            "split\ta\tb\ntrain\t1\t2\n" + "validation\t3\t4\n" * 2, encoding="utf-8-sig"
        )
        given = argparse.Namespace(
            data=data, tokenizer="char", vocab_size=300, batch_size=1, seed=0, context=5
        )
        _, (learned, judged), _ = cli_train._pairs(given)
        assert (len(learned.examples), len(judged.examples)) == (1, 2)

    def test_without_that_column_every_twentieth_row_judges(self, tmp_path):
        data = tmp_path / "data.tsv"
        data.write_text("from\tto\n" + "".join(f"{n}\t{n}!\n" for n in range(41)))
        given = argparse.Namespace(
            data=data, tokenizer="word", vocab_size=300, batch_size=4, seed=0, context=50
        )
        tokenizer, (learned, judged), max_len = cli_train._pairs(given)
        assert [tokenizer.decode(source) for source, _ in judged.examples] == ["0", "20", "40"]
        assert len(learned.examples) == 38
        assert max_len == 50


class TestTraceAndPresets:
    def test_every_preset_has_its_line(self, capsys):
        lines = run(capsys, "presets").splitlines()
        assert [line.split()[0] for line in lines[1:]] == list(PRESETS)
        for line, preset in zip(lines[1:], PRESETS.values(), strict=True):
            config = preset.config
            cells = (config.n_layers, config.d_model, config.n_heads, f"{preset.parameters:,}")
            assert line.split()[2:] == [*map(str, cells), preset.published, preset.source]
        assert lines[3].split()[:2] == ["bert-base", "SequenceClassifier"]

    @pytest.mark.parametrize(
        ("name", "options", "sizes"),
        [
            ("gpt2", [], "CausalLM: 305 steps with B=1 T=8 H=12 D=768"),
            ("vit-b-16", [], "with B=1 T=197"),
        ],
    )
    def test_presets_are_traced(self, name, options, sizes, capsys):
        printed = run(capsys, "trace", name, *options)
        assert sizes in printed.splitlines()[0]
        total = next(line for line in printed.splitlines() if line.startswith("total"))
        assert total.split()[1] == f"{PRESETS[name].parameters:,}"

    def test_a_trained_model_is_traced(self, translator, capsys):
        printed = run(capsys, "trace", str(translator), "--batch", "2", "--length", "5")
        assert printed.startswith("Seq2SeqLM")
        assert "with B=2 S=5 H=4 D=48" in printed


CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["one two three four five six seven"] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    small = {"vocab_size": tokenizer.get_vocab_size(), "max_len": 200, "d_model": 16}
    config = replace(PRESETS["qwen3-0.6b"].config, **small, d_ff=32, n_layers=2, head_width=8)
    save_pretrained(CausalLM(replace(config, n_heads=2, n_kv_heads=1)), folder)
    return folder


class TestCheckpoints:
    """What `load_pretrained` reads can write, too."""

    def test_a_checkpoint_goes_on_from_a_prompt(self, checkpoint, capsys):
        options = ("--prompt", "one two", "--tokens", "12", "--temperature", "0")
        printed = run(capsys, "generate", "--model", str(checkpoint), *options)
        model, tokenizer = load_pretrained(checkpoint)
        prompt = torch.tensor([tokenizer.encode("one two")])
        ids = generate(model, prompt, max_new_tokens=12, eos_id=tokenizer.eos_ids)
        assert printed == "one two" + tokenizer.decode(ids[0, prompt.shape[1] :].tolist()) + "\n"
        assert run(capsys, "generate", "--model", str(checkpoint), *options, "--dtype", "bfloat16")

    def test_messages_are_answered_with_all_before_in_view(self, checkpoint, capsys, monkeypatch):
        asked, write = [], texts.stream

        def stream(model, prompt, **options):
            asked.append(prompt[0].tolist())
            return write(model, prompt, **options)

        monkeypatch.setattr(texts, "stream", stream)
        monkeypatch.setattr(sys, "stdin", io.StringIO("one<|end|>\ntwo\n\nthree\n"))
        options = ("--tokens", "8", "--temperature", "0", "--system", "six")
        answers = run(capsys, "chat", "--model", str(checkpoint), *options)
        _, tokenizer = load_pretrained(checkpoint)
        first = tokenizer.decode(asked[0], skip_special=False)
        assert first == "<|system|>six<|end|><|user|>one<|end|><|end|><|assistant|>"
        assert asked[0].count(tokenizer.eos_ids[0]) == 2  # nobody can forge one
        second = tokenizer.decode(asked[1], skip_special=False)
        assert second.startswith(first)
        assert second.endswith("<|end|><|user|>two<|end|><|assistant|>")
        assert len(asked) == 2  # an empty line ends it
        assert answers.endswith("\n")

    def test_messages_are_answered_with_nothing_else(self, checkpoint, capsys, monkeypatch):
        common = ["chat", "--model", str(checkpoint), "--temperature", "2"]
        for limit, wanted in (["--answers", "one,six"], "one|six"), (["--pattern", "4{3}"], "444"):
            monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
            said = run(capsys, *common, *limit).splitlines()
            assert len(said) == 2
            assert all(re.fullmatch(wanted, answer) for answer in said)

    def test_the_instructions_stay_when_the_context_is_full(self, checkpoint, capsys, monkeypatch):
        asked = []

        def stream(model, prompt, *, max_new_tokens, **_):
            asked.append(prompt[0].tolist())
            assert prompt.shape[1] + max_new_tokens <= 200 + 1
            return iter(torch.full((min(30, max_new_tokens), 1), 70))

        monkeypatch.setattr(texts, "stream", stream)
        lines = [f"{n} one two three" for n in range(7)]
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        options = ["--tokens", "30", "--system", "six seven"]
        assert cli.main(["chat", "--model", str(checkpoint), *options]) == 0
        tokenizer = load_pretrained(checkpoint)[1]
        said = capsys.readouterr().err.splitlines()
        assert said
        assert set(said) == {"The context of 200 tokens is full: the oldest turn was left out."}
        for line, ids in zip(lines, asked, strict=True):
            shown = tokenizer.decode(ids, skip_special=False)
            roles = re.findall(r"<\|(system|user|assistant)\|>", shown)
            assert shown.startswith("<|system|>six seven<|end|><|user|>")
            assert shown.endswith(f"<|user|>{line}<|end|><|assistant|>")
            assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
            assert len(ids) <= 200 - 30
        assert len(asked[-1]) > 100  # as many turns as there is room for

    def test_an_answer_ends_with_the_context(self, checkpoint, capsys, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO("one " * 40))
        monkeypatch.setattr(
            texts,
            "stream",
            lambda *_, max_new_tokens, **__: torch.full((max_new_tokens, 1), 70),
        )
        assert cli.main(["chat", "--model", str(checkpoint), "--tokens", "500"]) == 0
        printed = capsys.readouterr()
        assert printed.err == "The context of 200 tokens is full: the answer ends here.\n"
        tokenizer = load_pretrained(checkpoint)[1]
        n_asked = len(tokenizer.chat([{"role": "user", "content": ("one " * 40).strip()}]))
        assert printed.out == tokenizer.decode([70] * (201 - n_asked)) + "\n"

    def test_a_message_that_is_longer_than_the_context(self, checkpoint, capsys, monkeypatch):
        for system, parts in (("", "the message"), ("six", "the system prompt and the message")):
            monkeypatch.setattr(sys, "stdin", io.StringIO("12345 " * 80))
            message = fail(capsys, "chat", "--model", checkpoint, "--system", system)
            assert re.search(rf": {parts} take \d+ tokens; expected 200, the context, at", message)

    def test_a_conversation_is_compiled_once(self, checkpoint, capsys, monkeypatch):
        made = []

        class Noted(CompiledDecoder):
            def __init__(self, model, max_len):
                super().__init__(model, max_len)
                made.append(self)

        used = []
        monkeypatch.setattr(compiled_decoder, "CompiledDecoder", Noted)
        monkeypatch.setattr(
            texts,
            "stream",
            lambda writer, *_, **__: used.append(writer) or torch.tensor([[70]]),
        )
        monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\nthree\n"))
        run(capsys, "chat", "--model", str(checkpoint), "--compile", "--tokens", "1")
        assert len(made) == 1
        assert used == made * 3

    def test_a_prompt_that_ends_with_an_end_token_is_gone_on_from(self, checkpoint, capsys):
        model, tokenizer = load_pretrained(checkpoint)
        prompt, texts = "one two<|end|>", []
        ids = tokenizer.encode(prompt)
        assert ids[-1] in tokenizer.eos_ids
        for seed in range(3):
            options = ["--tokens", "12", "--temperature", "1", "--top-p", "1", "--seed", str(seed)]
            common = ["generate", "--model", str(checkpoint), "--prompt", prompt]
            printed = run(capsys, *common, *options)
            torch.manual_seed(seed)
            ends = tokenizer.eos_ids
            whole = generate(
                model, torch.tensor([ids]), max_new_tokens=12, temperature=1.0, eos_id=ends
            )
            texts.append(tokenizer.decode(whole[0, len(ids) :].tolist()))
            assert printed == prompt + texts[-1] + "\n"
        assert any(texts)

    def test_a_prompt_without_tokens_is_refused(self, checkpoint, tmp_path, capsys):
        for path in checkpoint.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        settings = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
        settings["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": ""}
        (tmp_path / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
        message = fail(capsys, "generate", "--model", tmp_path, "--prompt", "  ")
        assert "prompt='  ' has no tokens; expected something for the model to read" in message
        with pytest.raises(ValueError, match="ids is empty; expected one token at least"):
            next(texts.write_on(*load_pretrained(checkpoint), [], Sampling(), 3, "cpu"))

    def test_what_is_missing_is_said(self, checkpoint, writer, tmp_path, capsys):
        assert "has no chat template" in fail(capsys, "chat", "--model", writer)
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
        assert "has no tokenizer.json" in fail(capsys, "generate", "--model", tmp_path)
        (tmp_path / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
        message = fail(capsys, "generate", "--model", tmp_path, "--answers", "one,two")
        assert "has no end token, so --answers and --pattern cannot say where a text" in message


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_has_examples_that_can_be_parsed(self, command, capsys):
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        examples = re.findall(rf"python -m transformer_lib ({command}\b.*)", text)
        assert len(examples) > 1  # the first is the usage
        for example in examples[1:]:
            cli._make_parser().parse_args(shlex.split(example))
        if command != "presets":
            assert "(default: " in text

    def test_choices_are_those_of_the_library(self):
        assert list(cli_options.TOKENIZERS) == list(cli_train.KINDS)
        assert list(cli_options.NUMBERS) == list(cli_text.DTYPES)
        assert list(cli_options.COMMANDS) == list(COMMANDS)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_no_default_is_a_path_of_this_machine_or_nothing(self, command, capsys):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        text = capsys.readouterr().out
        assert str(cli_options.BOOK) not in text
        assert "None" not in text

    def test_help_version_and_mistakes_do_not_wait_for_pytorch(self):
        typed = [["--help"], ["--version"], ["generate", "--top-k", "0"], ["fly"]]
        typed += [[command, "--help"] for command in COMMANDS]
        ran = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, json.dumps(typed)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.splitlines()[-1] == str([0, 0, 2, 2, *[0] * len(COMMANDS)])
        assert f"transformer_lib {transformer_lib.__version__}\n" in ran.stdout

    @pytest.mark.parametrize("module", ["transformer_lib", "transformer_lib.cli.main"])
    def test_both_modules_can_be_run(self, module):
        command = [sys.executable, "-m", module, "--version"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert ran.stdout == f"transformer_lib {transformer_lib.__version__}\n"

    def test_all_commands_are_listed(self, capsys):
        with pytest.raises(SystemExit):
            cli.main(["--help"])
        printed = capsys.readouterr().out
        assert all(f"  {command}" in printed for command in COMMANDS)


class TestMistakes:
    @pytest.mark.parametrize(
        ("typed", "argument", "value", "expected"),
        [
            ("", "COMMAND", "", "required"),
            ("fly", "COMMAND", "'fly'", "choose from"),
            ("generate --tokens 0", "--tokens", "'0'", WHOLE),
            ("generate --tokens many", "--tokens", "'many'", WHOLE),
            ("generate --temperature -1", "temperature", "-1.0", "a number of at least 0"),
            ("generate --temperature hot", "--temperature", "'hot'", "float"),
            ("generate --top-k 0", "--top-k", "'0'", WHOLE),
            ("generate --top-p 1.5", "top_p", "1.5", "greater than 0 and at most 1"),
            ("generate --min-p 2", "min_p", "2.0", "a number from 0 to 1"),
            ("generate --repetition-penalty 0", "repetition_penalty", "0.0", "greater than 0"),
            ("generate --seed x", "--seed", "'x'", "a whole number below 2**63"),
            (f"generate --seed {2**63}", "--seed", f"'{2**63}'", "a whole number below 2**63"),
            (f"train --seed {10**30}", "--seed", f"'{10**30}'", "a whole number below 2**63"),
            ("generate --answers yes,,no", "--answers", "'yes,,no'", "has an empty answer"),
            ("generate --answers a --pattern b", "--pattern", "--answers", "not allowed with"),
            ("chat --model a --answers a --pattern b", "--pattern", "--answers", "not allowed"),
            ("generate --pattern '[a'", "pattern", "'[a'", "this '[' is never closed"),
            ("chat --model a --pattern 'a$'", "pattern", "'a$'", "the whole text must match"),
            (r"generate --pattern '[^\d\D]'", "pattern", "'[^", "matches no text"),
            ("generate --prompt ''", "prompt", "''", "expected something for the model to read"),
            ("generate --prompt '\udcff'", "prompt", r"'\udcff'", "expected text"),
            ("generate --model nowhere", "model", "'nowhere'", "expected what `train` makes"),
            ("generate --model a --dtype int8", "--dtype", "'int8'", "choose from"),
            ("chat", "--model", "", "required"),
            ("translate one --model nowhere", "model", "'nowhere'", "expected what `train` makes"),
            ("translate one --beams 0", "--beams", "'0'", WHOLE),
            ("train --data nowhere.txt", "data", "'nowhere.txt'", "expected a text file or a .tsv"),
            ("train --tokenizer sentence", "--tokenizer", "'sentence'", "choose from"),
            ("train --precision float8", "--precision", "'float8'", "choose from"),
            ("train --device abacus", "--device", "'abacus'", "choose from"),
            ("train --device mps", "device", "'mps'", "expected cpu"),
            ("train --steps 1e3", "--steps", "'1e3'", WHOLE),
            ("train --wheels 4", "arguments", "--wheels 4", "unrecognized"),
            ("trace", "model", "", "required"),
            ("trace gtp2", "model", "'gtp2'", "the nearest is 'gpt2'"),
            ("trace lama3", "model", "'lama3'", "the nearest is 'llama-3-8b'"),
            ("trace gpt2 --batch 0", "--batch", "'0'", WHOLE),
            ("trace gpt2 --length -1", "--length", "'-1'", WHOLE),
            ("trace gpt2 --length 1025", "1025", "1025", "max_len=1024"),
        ],
    )  # fmt: skip
    def test_one_line_names_argument_value_and_what_was_expected(
        self, typed, argument, value, expected, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        message = fail(capsys, *shlex.split(typed))
        command = typed.split(" ")[0] if argument != "COMMAND" else ""
        assert message.startswith(f"python -m transformer_lib {command}".rstrip() + ":") or (
            "unrecognized" in message  # which argparse says before it knows the command
        )
        assert argument in message
        assert value in message
        assert expected in message
        assert message.endswith(" (--help says more)")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--steps", "0"], "--steps: '0' must be a whole number of at least 1"),
            (["--batch-size", "0"], "--batch-size: '0' must be"),
            (["--context", "0"], "--context: '0' must be"),
            (["--context", "100"], "context=100 is too long: 76 tokens of"),
            (["--layers", "0"], "--layers: '0' must be"),
            (["--heads", "3"], "n_heads=3 must divide d_model=8"),
            (["--vocab-size", "9"], "vocab_size=9 must be"),
            (["--seed", "-1"], "seed=-1 must be"),
            (["--learning-rate", "-1"], "learning_rate=-1.0 must be"),
            (["--learning-rate", "1e30", "--steps", "9"], "nan at step"),
        ],
    )
    def test_a_number_out_of_range(self, options, message, text, capsys, tmp_path):
        common = ["--data", text, "--out", tmp_path / "run", "--steps", "1", "--context", "16"]
        assert message in fail(capsys, "train", *common, *TINY, *options)
        assert not (tmp_path / "run" / "model.json").exists()

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.txt", b"", "a.txt' holds nothing; expected a text file or a .tsv"),
            ("a.txt", b"to be", "context=64 is too long: 1 tokens of"),
            ("a.txt", b"\xff\xfe", "a.txt' is not UTF-8; 'utf-8' codec can't decode byte 0xff"),
            (
                "a.tsv",
                b"a\tb\n1\t\xe4\n",
                "a.tsv' is not UTF-8; 'utf-8' codec can't",
            ),
            ("A.TSV", b"a\tb\n1\t2\n3\n", "A.TSV, line 3 must have what line 1 names"),
            ("a.tsv", b"a\tb\n1\t2\n3\n", "a.tsv, line 3 must have what line 1 names"),
            ("a.tsv", b"a\n1\n", "line 2 must have"),
            ("a.tsv", b"a\tb\n1\t2\n", "a.tsv' has no row for 'train'; expected some"),
            ("a.tsv", b"a\tb\n1\t\n2\t3\n", "line 2 must have"),
        ],
    )
    def test_data_that_cannot_be_used(self, name, content, message, capsys, tmp_path):
        (tmp_path / name).write_bytes(content)
        options = ["--data", tmp_path / name, "--out", tmp_path / "run", "--steps", "1", *TINY]
        assert message in fail(capsys, "train", *options)

    def test_without_a_clone_the_data_must_be_named(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(cli_options, "BOOK", tmp_path / "book")
        assert "shakespeare.txt' holds nothing; expected a text file" in fail(capsys, "train")

    def test_a_folder_with_another_run(self, text, tmp_path, capsys):
        options = ["--data", str(text), "--out", str(tmp_path / "run"), "--steps", "1", *TINY]
        run(capsys, "train", *options)
        message = fail(capsys, "train", *options, "--seed", "1")
        assert f"seed=1, but {tmp_path / 'run'} holds a run with 0; take another folder" in message

    def test_a_folder_in_which_somebody_trains(self, text, tmp_path, capsys):
        with lock_folder(tmp_path / "run"):
            message = fail(capsys, "train", "--data", text, "--out", tmp_path / "run", *TINY)
        assert f"folder='{tmp_path / 'run'}' is in use by process {os.getpid()} on " in message

    def test_models_of_the_wrong_kind(self, writer, translator, capsys):
        message = fail(capsys, "translate", "--model", writer, "one")
        assert f"model='{writer}' has a CausalLM; expected a Seq2SeqLM" in message
        message = fail(capsys, "generate", "--model", translator)
        assert f"model='{translator}' has a Seq2SeqLM; expected a CausalLM" in message

    def test_nothing_to_read(self, writer, translator, capsys):
        message = fail(capsys, "generate", "--model", writer, "--prompt", "")
        assert "prompt='' is empty; expected something" in message
        message = fail(capsys, "translate", "--model", translator, " ")
        assert "text='' is empty; expected something" in message

    def test_too_much_to_read_and_no_beams(self, translator, capsys):
        options = ["--model", translator]
        assert "max_len=64" in fail(capsys, "translate", *options, "one " * 20)
        message = fail(capsys, "translate", *options, "one", "--beams", "0")
        assert "--beams: '0' must be a whole number of at least 1" in message

    @pytest.mark.parametrize("name", ["model.json", "model.safetensors", "tokenizer.json"])
    def test_damaged_files(self, name, writer, tmp_path, capsys):
        for path in writer.iterdir():
            if path.is_file():
                content = path.read_bytes()
                (tmp_path / path.name).write_bytes(content[: len(content) // 2])
                if path.name != name:
                    (tmp_path / path.name).write_bytes(content)
        assert str(tmp_path / name) in fail(capsys, "generate", "--model", tmp_path)
        if name != "tokenizer.json":
            assert str(tmp_path / name) in fail(capsys, "trace", tmp_path)

    def test_a_folder_without_a_model(self, tmp_path, capsys):
        assert "model.json cannot be read" in fail(capsys, "trace", tmp_path)
