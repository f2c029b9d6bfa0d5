"""From a checkpoint to a fine-tuned one, on the command line; and from text to text."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch
import transformers
from checkpoint_tokenizers import settings_of

from transformer_lib.cli import main as cli
from transformer_lib.cli import train as cli_train
from transformer_lib.core.config import TransformerConfig
from transformer_lib.generation.generate import generate
from transformer_lib.generation.sampling_options import Sampling
from transformer_lib.generation.text_generation import generate_text
from transformer_lib.hugging_face.peft_format import load_peft
from transformer_lib.hugging_face.pretrained import load_pretrained
from transformer_lib.models.language_models import CausalLM, MaskedLM
from transformer_lib.models.lora_files import load_lora
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import CharTokenizer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXT = "To be, or not to be, that is the question:\n" * 60
FEW = ["--steps", "12", "--context", "16", "--batch-size", "4", "--learning-rate", "0.02"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A LLaMA of transformers that has learned nothing, with a tokenizer and an end."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1463, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=64, bos_token_id=1, eos_token_id=[2, 9],
        pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(settings_of("Llama 2")), encoding="utf-8")
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}, {% endfor %}",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "text.txt").write_text(TEXT)
    return folder


def train(capsys, *options):
    assert cli.main(["train", *map(str, options)]) == 0
    return capsys.readouterr().out


def test_a_checkpoint_is_trained_further_and_stays_one(checkpoint, tmp_path, capsys, monkeypatch):
    out, data = tmp_path / "new", checkpoint / "text.txt"
    options = ["--model", checkpoint, "--data", data, "--out", out, *FEW]
    printed = train(capsys, *options)
    assert float(re.match(r"validation loss (\S+);", printed)[1]) < 5.5  # of 7.3
    assert f'python -m transformer_lib generate --model "{out}"' in printed
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    assert theirs.generation_config.eos_token_id == [2, 9]
    model, tokenizer = load_pretrained(out)
    ids = torch.tensor([tokenizer.encode("To be, or not")])
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert ids.tolist() == their_tokenizer(["To be, or not"]).input_ids
    with torch.no_grad():
        assert torch.equal(model(ids).argmax(-1), theirs(ids).logits.argmax(-1))
    assert train(capsys, *options).startswith("Already finished")
    cli.main(["generate", "--model", str(out), "--prompt", "To be", "--tokens", "3"])
    assert capsys.readouterr().out.startswith("To be")
    monkeypatch.setattr(sys, "stdin", io.StringIO("to be\n"))
    cli.main(["chat", "--model", str(out), "--tokens", "5", "--temperature", "0"])
    said = [{"role": "user", "content": "to be"}]
    asked = their_tokenizer.apply_chat_template(
        said, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    answer = theirs.generate(asked, max_new_tokens=5, do_sample=False)[0, asked.shape[1] :]
    expected = their_tokenizer.decode(answer, skip_special_tokens=True)
    assert capsys.readouterr().out.strip() == expected.strip()


def test_what_train_has_made_is_trained_further(checkpoint, tmp_path, capsys):
    data = checkpoint / "text.txt"
    small = ["--layers", "1", "--d-model", "16", "--heads", "2", "--dropout", "0.25"]
    train(capsys, "--data", data, "--out", tmp_path / "a", *FEW, *small)
    before = load_model(tmp_path / "a")
    assert before.config.dropout == 0.25
    train(capsys, "--model", tmp_path / "a", "--data", data, "--out", tmp_path / "b", *FEW)
    after = load_model(tmp_path / "b")
    assert after.config == before.config
    losses = [
        float((tmp_path / run / "metrics.csv").read_text().split()[-1].split(",")[5])
        for run in "ab"
    ]
    assert losses[1] < losses[0] - 0.1


def test_flags_are_handed_on():
    typed = ["train", "--warmup", "0", "--accumulate", "3", "--checkpoint-every", "7"]
    given = cli._make_parser().parse_args([*typed, "--steps", "90"])
    cli_train._fill_in(given, translates=False)
    recipe = cli_train._recipe(given)
    assert (recipe.warmup, recipe.accumulate, recipe.checkpoint_every) == (0, 3, 7)
    assert recipe.learning_rate == 2e-3
    given = cli._make_parser().parse_args(["train", "--steps", "90"])
    cli_train._fill_in(given, translates=False)
    recipe = cli_train._recipe(given)
    assert (recipe.warmup, recipe.accumulate, recipe.checkpoint_every) == (10, 1, 4)
    assert (recipe.optimizer, recipe.schedule, recipe.average) == ("adamw", "cosine", None)
    for typed, beta in (([], 0.99), (["0.9"], 0.9)):
        today = ["--optimizer", "muon", "--schedule", "wsd", "--average", *typed]
        given = cli._make_parser().parse_args(["train", *today])
        cli_train._fill_in(given, translates=False)
        recipe = cli_train._recipe(given)
        assert (recipe.optimizer, recipe.schedule, recipe.average) == ("muon", "wsd", beta)
    given = cli._make_parser().parse_args(["train", "--model", "x"])
    cli_train._fill_in(given, translates=False)
    assert given.learning_rate == 2e-5


MISTAKES = [
    (
        ["--model", "{}", "--layers", "2"],
        "layers=2 is for a new model; that of --model has its ow",
    ),
    (["--model", "{}", "--dropout", "0.0"], "dropout=0.0 is for a new model; that of --model has"),
    (["--model", "{}", "--data", "{}/a.tsv"], "goes on with a text; expected no .tsv"),
    (["--model", "{}/none"], "/none' holds no finished model; expected what `train` makes"),
    (["--warmup", "-1"], "'-1' must be a whole number of at least 0"),
    (["--warmup", "50", "--steps", "20"], "warmup=50 must be at most steps=20"),
    (["--checkpoint-every", "0"], "'0' must be a whole number of at least 1"),
    (["--accumulate", "few"], "'few' must be a whole number of at least 1"),
    (["--dropout", "1.5"], "dropout=1.5"),
    (["--average", "1"], "average=1.0 must be at least 0 and less than 1"),
    (["--average", "often"], "argument --average: invalid float value: 'often'"),
    (["--optimizer", "lion"], "argument --optimizer: invalid choice: 'lion'"),
    (
        ["--schedule", "wsd", "--warmup", "17", "--steps", "20"],
        "warmup=17 must end before the decay begins (decay_share=0.2 of steps=20)",
    ),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[row[1] for row in MISTAKES])
def test_mistakes_are_said_in_one_line(options, message, checkpoint, tmp_path, capsys):
    (checkpoint / "a.tsv").write_text("a\tb\n1\t2\n")
    given = [option.format(checkpoint) for option in options]
    data = [] if "--data" in given else ["--data", str(checkpoint / "text.txt")]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *data, "--out", str(tmp_path / "new"), *given])
    assert stopped.value.code == 2
    *_, said = capsys.readouterr().err[:-1].split("\n")
    assert message in said
    assert not (tmp_path / "new" / "config.json").exists()


# --- adapters, and answers ----------------------------------------------------------------------


@pytest.fixture
def answers(checkpoint, monkeypatch):
    """Prompts with answers, and conversations; of a model whose tokenizer has an end."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # pictures take long
    rows = [{"prompt": "to be", "completion": "or not"} for _ in range(20)]
    said = ({"role": role, "content": "to be"} for role in ("user", "assistant"))
    rows += [{"messages": list(said)}, *rows]
    path = checkpoint / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def test_adapters_of_a_checkpoint(checkpoint, answers, tmp_path, capsys, monkeypatch):
    out, before = tmp_path / "adapter", (checkpoint / "model.safetensors").read_bytes()
    options = ["--model", checkpoint, "--data", answers, "--out", out, "--lora", "4", *FEW]
    printed = train(capsys, *options, "--lora-layers", "all")
    assert printed.startswith("992 of ")  # 4 * (4 * (16 + 16) + 3 * (16 + 24))
    assert f"the adapters are in {out}." in printed
    rows = (out / "metrics.csv").read_text().split()
    assert float(rows[-1].split(",")[2]) < float(rows[1].split(",")[2]) - 0.05
    told = json.loads((out / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"]) == (4, 8.0)
    assert Path(told["base_model_name_or_path"]) == checkpoint
    assert not (out / "config.json").exists()
    assert (checkpoint / "model.safetensors").read_bytes() == before
    assert train(capsys, *options, "--lora-layers", "all").split("\n")[1].startswith("Already")

    by_hand = load_pretrained(checkpoint)
    load_peft(by_hand.model, out)
    expected = generate_text(*by_hand, "to be", max_new_tokens=5)
    cli.main(["generate", "--model", str(out), "--prompt", "to be", "--tokens", "5", *GREEDY])
    assert capsys.readouterr().out.strip() == expected.strip()
    monkeypatch.setattr(sys, "stdin", io.StringIO("to be\n"))
    cli.main(["chat", "--model", str(out), "--tokens", "5", *GREEDY])
    assert capsys.readouterr().out

    again = ["--model", out, "--data", answers, "--out", tmp_path / "more", *FEW]
    train(capsys, *again)  # goes on with the adapters that are there
    more = json.loads((tmp_path / "more" / "adapter_config.json").read_text())
    assert (more["r"], more["base_model_name_or_path"]) == (4, told["base_model_name_or_path"])


GREEDY = ["--temperature", "0"]


def test_adapters_of_what_train_has_made(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    base = make_model()
    save_model(base, tmp_path / "base", tokenizer=CharTokenizer())
    train(capsys, "--model", "base", "--data", checkpoint / "text.txt", "--lora", "2", *FEW)
    out = tmp_path / "runs" / "text-lora"
    load_lora(base, out)
    expected = generate_text(base.eval(), CharTokenizer(), "To be", max_new_tokens=5)
    monkeypatch.chdir(checkpoint)  # the base is found from everywhere
    cli.main(["generate", "--model", str(out), "--prompt", "To be", "--tokens", "5", *GREEDY])
    assert capsys.readouterr().out.strip() == expected.strip()


ADAPTER_MISTAKES = [
    (["--lora", "8"], "lora=8 is for a model that is there; expected --model"),
    (["--lora", "0", "--model", "{}"], "'0' must be a whole number of at least 1"),
    (["--lora", "8", "--model", "{}", "--lora-layers", "qqq"], "layers holds 'qqq', which fits no"),
    (["--lora", "8", "--model", "{}", "--out", "{}"], "' is the model itself; expected a folder"),
    (["--data", "{}/answers.jsonl"], "answers.jsonl' is for a model that is there; expected --mo"),
    (["--model", "{}", "--data", "{}/few.jsonl"], "few.jsonl' has 2 lines; expected 20 at least"),
    (["--model", "{}", "--data", "{}/bad.jsonl"], "bad.jsonl, line 1: Expecting value: line 1"),
    (
        ["--model", "{}", "--data", "{}/odd.jsonl"],
        'odd.jsonl, line 3: expected an object with "',
    ),
    (["--model", "{}", "--data", "{}/long.jsonl"], "long.jsonl, line 1 has "),
    (
        ["--model", "{}/nobase", "--lora", "8"],
        "nobase/lora.json has base=None; expected the",
    ),
    (["--model", "{}/lost", "--lora", "8"], "has adapters for 'gone', which is not there"),
    (
        ["--model", "{}/both", "--lora", "8"],
        "both' holds a model and adapters; expected one",
    ),
]


@pytest.mark.parametrize(("options", "message"), ADAPTER_MISTAKES, ids=lambda row: row[-1][:40])
def test_mistakes_with_adapters_are_said_in_one_line(
    options, message, checkpoint, answers, tmp_path, capsys
):
    good = json.dumps({"prompt": "to be", "completion": "or not"}) + "\n"
    for name, text in (
        ("few", 2 * good),
        ("bad", "to be\n" * 20),
        ("odd", 2 * good + '{"prompt": "to"}\n' + 20 * good),
        ("long", good.replace("or not", "or not " * 60) * 20),
    ):
        (checkpoint / f"{name}.jsonl").write_text(text)
    for name, base in (("nobase", None), ("lost", "gone"), ("both", "gone")):
        (checkpoint / name).mkdir(exist_ok=True)
        (checkpoint / name / "lora.json").write_text(json.dumps({"base": base}))
    (checkpoint / "both" / "config.json").write_text("{}")
    given = [option.format(checkpoint) for option in options]
    data = [] if "--data" in given else ["--data", str(checkpoint / "text.txt")]
    to = [] if "--out" in given else ["--out", str(tmp_path / "new")]
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *data, *to, "--context", "16", *given])
    assert stopped.value.code == 2
    *_, said = capsys.readouterr().err[:-1].split("\n")
    assert message in said


def test_messages_need_a_chat_template(checkpoint, answers, tmp_path, capsys):
    save_model(make_model(), tmp_path / "base", tokenizer=CharTokenizer())
    options = ["--model", str(tmp_path / "base"), "--data", str(answers), "--lora", "2"]
    with pytest.raises(SystemExit):
        cli.main(["train", *options, "--out", str(tmp_path / "new")])
    said = capsys.readouterr().err
    assert "line 21: messages need a chat template, and the tokenizer of --model has none" in said


# --- from text to text --------------------------------------------------------------------------


def make_model(vocab_size=259, **more):
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_len": 64}
    return CausalLM(TransformerConfig(vocab_size=vocab_size, **sizes | more))


def test_the_text_is_that_of_the_tokens():
    model, tokenizer, prompt = make_model(), CharTokenizer(), "My lord, "
    ids = torch.tensor([tokenizer.encode(prompt)])
    expected = generate(model, ids, max_new_tokens=20, eos_id=tokenizer.eos_id)[0].tolist()
    text = generate_text(model, tokenizer, prompt, max_new_tokens=20)
    assert text == tokenizer.decode(expected)
    torch.manual_seed(1)
    drawn = generate_text(model, tokenizer, prompt, sampling=Sampling(temperature=2.0))
    assert drawn.startswith(prompt)
    assert len(drawn) > 64  # more than the context


def test_the_text_ends_with_an_end_token(checkpoint):
    model, tokenizer = load_pretrained(checkpoint)
    whole = generate_text(model, tokenizer, "to be", max_new_tokens=12)
    ids = generate(model, torch.tensor([tokenizer.encode("to be")]), max_new_tokens=12)[0].tolist()
    assert whole.startswith("to be")
    tokenizer.eos_ids = (ids[-6],)
    assert len(generate_text(model, tokenizer, "to be", max_new_tokens=12)) <= len(whole)


def test_misuse_of_text_to_text(unchecked_shapes):
    model, tokenizer = make_model(), CharTokenizer()
    masked = MaskedLM(TransformerConfig(vocab_size=259, d_model=8, n_heads=2))
    wide = PretrainedTokenizer(settings_of("Llama 2"))
    for call, error, message in (
        (lambda: generate_text(masked, tokenizer, "a"), TypeError, "model is a MaskedLM; expected"),
        (lambda: generate_text(model, tokenizer, ["a"]), TypeError, "prompt is a list; expected a"),
        (lambda: generate_text(model, tokenizer, ""), ValueError, "prompt='' has no tokens; expe"),
        (lambda: generate_text(model, wide, "a"), ValueError, "the tokenizer has 1463 tokens; exp"),
        (
            lambda: generate_text(model, tokenizer, "a", max_new_tokens=0),
            ValueError,
            "max_new_tokens=0 must be a whole number of at least 1",
        ),
    ):
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            call()
