"""The command line: every command from end to end, and a clear line for every mistake."""

import argparse
import io
import json
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

from transformer_lib import cli, cli_text
from transformer_lib.config import TransformerConfig
from transformer_lib.files import lock_folder
from transformer_lib.generation import generate
from transformer_lib.models import CausalLM
from transformer_lib.presets import PRESETS
from transformer_lib.pretrained import load_pretrained, save_pretrained
from transformer_lib.saving import load_model, save_model
from transformer_lib.tokenizers import CharTokenizer, Tokenizer

TINY = ["--layers", "1", "--d-model", "8", "--heads", "2"]
COMMANDS = ("train", "generate", "chat", "translate", "trace", "presets")
NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "forty": "vierzig"}
WAITING = """  # `python -m transformer_lib`, but at step 4 training waits for Ctrl-C
import runpy, time
from transformer_lib import cli

train = cli.train
wait = lambda row: row["step"] < 4 or time.sleep(600)
cli.train = lambda *arguments, **options: train(*arguments, **options, on_step=wait)
runpy.run_module("transformer_lib", run_name="__main__")
"""
BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(autouse=True, scope="module")
def no_pictures():
    """Drawing takes longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
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
    path.write_text("to be, or not to be: that is the question. " * 35)
    return path


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
    return folder / "model"


class TestTrainAndGenerate:
    def test_training_ends_with_the_loss_the_folder_and_a_command_that_works(
        self, home, monkeypatch, capsys
    ):
        home, printed = home
        monkeypatch.chdir(home)
        loss, folder = re.search(
            r"validation loss (\S+); the model is in (\S+)\. Now", printed
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
        monkeypatch.setenv("RANK", "1")
        options = ["--data", str(text), "--out", str(tmp_path), "--steps", "1", *TINY]
        assert run(capsys, "train", *options) == ""
        assert not (tmp_path / "model.json").exists()

    def test_stopped_with_ctrl_c_it_goes_on_and_ends_with_the_same_bits(
        self, text, tmp_path, capfd
    ):
        options = ["train", "--data", str(text), "--steps", "10", "--context", "16", *TINY]
        command = [sys.executable, "-c", WAITING, *options, "--out", str(tmp_path / "a")]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # if we ignore it
        )  # fmt: skip
        while process.poll() is None and not list(tmp_path.glob("a/checkpoints/step-*")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert "The same command goes on" in errors
        assert "Traceback" not in errors
        assert not (tmp_path / "a" / "model.json").exists()
        for folder in ("a", "b"):  # to the end; and in one go
            assert cli.main([*options, "--out", str(tmp_path / folder)]) == 0
        ours, straight = ((tmp_path / f / "model.safetensors").read_bytes() for f in ("a", "b"))
        assert ours == straight
        capfd.readouterr()
        text = run(
            capfd, "generate", "--model", str(tmp_path / "a"), "--prompt", "to", "--tokens", "3"
        )
        assert text.startswith("to")

    def test_ctrl_c_says_how_to_go_on(self, text, monkeypatch, capsys):
        def train(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli, "train", train)
        assert cli.main(["train", "--data", str(text)]) == 130
        assert capsys.readouterr().err == (
            "Stopped. The same command goes on from the last checkpoint.\n"
        )

    def test_ctrl_c_while_writing_ends_quietly(self, writer, monkeypatch, capsys):
        def stream(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli_text, "stream", stream)
        assert cli.main(["generate", "--model", str(writer)]) == 130
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

        monkeypatch.setattr(cli_text, "stream", stream)
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
        made = []
        monkeypatch.setattr(cli_text, "CompiledDecoder", lambda *of: made.append(of) or of[0])
        run(capsys, "generate", "--model", str(folder), "--tokens", "2", "--compile")
        assert [(type(model), length) for model, length in made] == [(CausalLM, 7)]


class TestTranslate:
    @pytest.mark.parametrize("beams", ["1", "3"])
    def test_sentences_from_the_command_line(self, beams, translator, capsys):
        options = ["--model", str(translator), "--beams", beams]
        printed = run(capsys, "translate", *options, " forty ", "two", "three")
        assert printed == "vierzig\nzwei\ndrei\n"

    def test_the_model_that_comes_with_the_book(self, capsys):
        printed = run(capsys, "translate", "two hundred and forty-one", "--beams", "4")
        assert printed == "zweihunderteinundvierzig\n"

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
        tokenizer, parts, max_len = cli._pairs(given)
        texts = [[list(map(tokenizer.decode, pair)) for pair in part.examples] for part in parts]
        assert texts == [[["one", "eins"]], [["three", "drei"]]]
        assert "ö" not in tokenizer.tokens  # nothing is learned from what is for the test
        assert max_len == 6  # "three", and the end or the start
        assert next(parts[0])["targets"].tolist() == [[*tokenizer.encode("eins"), 2]]

    def test_without_that_column_every_twentieth_row_judges(self, tmp_path):
        data = tmp_path / "data.tsv"
        data.write_text("from\tto\n" + "".join(f"{n}\t{n}!\n" for n in range(41)))
        given = argparse.Namespace(
            data=data, tokenizer="word", vocab_size=300, batch_size=4, seed=0, context=50
        )
        tokenizer, (learned, judged), max_len = cli._pairs(given)
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
        asked, write = [], cli_text.stream

        def stream(model, prompt, **options):
            asked.append(prompt[0].tolist())
            return write(model, prompt, **options)

        monkeypatch.setattr(cli_text, "stream", stream)
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

    def test_what_is_missing_is_said(self, checkpoint, writer, tmp_path, capsys):
        assert "has no chat template" in fail(capsys, "chat", "--model", writer)
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
        assert "has no tokenizer.json" in fail(capsys, "generate", "--model", tmp_path)


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

    def test_all_commands_are_listed(self, capsys):
        with pytest.raises(SystemExit):
            cli.main(["--help"])
        printed = capsys.readouterr().out
        assert all(f"  {command}" in printed for command in COMMANDS)


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "required: COMMAND"),
            (["fly"], "invalid choice: 'fly'"),
            (["trace"], "required: model"),
            (["trace", "gtp2"], "'gtp2' is no folder and no preset; the nearest is 'gpt2'"),
            (["trace", "lama3"], "the nearest is 'llama-3-8b'"),
            (["trace", "gpt2", "--batch", "0"], "batch=0 must be a whole number of at least 1"),
            (["trace", "gpt2", "--length", "-1"], "length=-1 must be"),
            (["trace", "gpt2", "--length", "1025"], "max_len=1024"),
            (["generate", "--tokens", "0"], "tokens=0 must be"),
            (["generate", "--tokens", "many"], "invalid int value: 'many'"),
            (["generate", "--temperature", "-1"], "temperature=-1.0 must be"),
            (["generate", "--top-k", "0"], "top_k=0 must be"),
            (["generate", "--top-p", "1.5"], "top_p=1.5 must be"),
            (["generate", "--min-p", "2"], "min_p=2.0 must be"),
            (["generate", "--repetition-penalty", "0"], "repetition_penalty=0.0 must be"),
            (["generate", "--model", "nowhere"], "no finished model in nowhere; `train` makes one"),
            (["translate", "--model", "nowhere", "one"], "no finished model in nowhere"),
            (
                ["train", "--data", "nowhere.txt"],
                "nothing in nowhere.txt; name a file with --data FILE",
            ),
            (["train", "--tokenizer", "sentence"], "invalid choice: 'sentence'"),
            (["train", "--device", "abacus"], "invalid choice: 'abacus'"),
            (["train", "--wheels", "4"], "unrecognized arguments: --wheels 4"),
        ],
    )
    def test_a_wrong_argument(self, arguments, message, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert message in fail(capsys, *arguments)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--steps", "0"], "steps=0 must be"),
            (["--batch-size", "0"], "batch_size=0 must be"),
            (["--context", "0"], "length=0 must be"),
            (["--context", "100"], "too much for a text of 76 tokens"),
            (["--layers", "0"], "n_layers=0 must be"),
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
            ("a.txt", b"", "there is nothing in"),
            ("a.txt", b"to be", "length=64 is too much for a text of 4 tokens"),
            ("a.txt", b"\xff\xfe", "can't decode byte 0xff"),
            ("a.tsv", b"a\tb\n1\t2\n3\n", "a.tsv, line 3 must have what line 1 names"),
            ("a.tsv", b"a\n1\n", "line 2 must have"),
            ("a.tsv", b"a\tb\n1\t2\n", "n_examples=0 must be"),
            ("a.tsv", b"a\tb\n1\t\n2\t3\n", "line 2 must have"),
        ],
    )
    def test_data_that_cannot_be_used(self, name, content, message, capsys, tmp_path):
        (tmp_path / name).write_bytes(content)
        options = ["--data", tmp_path / name, "--out", tmp_path / "run", "--steps", "1", *TINY]
        assert message in fail(capsys, "train", *options)

    @pytest.mark.usefixtures("unchecked_shapes")
    def test_a_precision_that_does_not_exist(self, text, capsys):
        message = fail(capsys, "train", "--data", text, "--precision", "float8", *TINY)
        assert "precision='float8' must be one of" in message

    def test_without_a_clone_the_data_must_be_named(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(cli, "BOOK", tmp_path / "book")
        assert "shakespeare.txt; name a file with --data FILE" in fail(capsys, "train")

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
        assert f"{writer} has a CausalLM; expected a Seq2SeqLM" in message
        message = fail(capsys, "generate", "--model", translator)
        assert f"{translator} has a Seq2SeqLM; expected a CausalLM" in message

    def test_nothing_to_read(self, writer, translator, capsys):
        assert "the text is empty" in fail(capsys, "generate", "--model", writer, "--prompt", "")
        assert "the text is empty" in fail(capsys, "translate", "--model", translator, " ")

    def test_too_much_to_read_and_no_beams(self, translator, capsys):
        options = ["--model", translator]
        assert "max_len=64" in fail(capsys, "translate", *options, "one " * 20)
        assert "n_beams=0 must be" in fail(capsys, "translate", *options, "one", "--beams", "0")

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
