"""saving: what is read is what was written, and nothing that is damaged is ever read."""

import copy
import json
import os
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import LLAMA, make, random_ids, tiny
from torch import nn

from transformer_lib.core.files import write_file
from transformer_lib.layers.build_parts import Parts, make_attention
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.saving import describe_model, load_model, save_model
from transformer_lib.text.tokenizers import CharTokenizer, Tokenizer
from transformer_lib.training.run_checkpoints import read_checkpoint, write_checkpoint

IDS = random_ids(2, 5)
IMAGES = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
TIED = {"tie_embeddings": True}
MODELS = {
    "causal": (lambda: CausalLM(tiny()), (IDS,)),
    "causal, tied": (lambda: CausalLM(tiny(**TIED)), (IDS,)),
    "llama": (lambda: CausalLM(tiny(**LLAMA)), (IDS,)),
    "t5 positions": (lambda: CausalLM(tiny(position="t5")), (IDS,)),
    "experts": (lambda: CausalLM(tiny(n_experts=3)), (IDS,)),
    "seq2seq, tied": (lambda: Seq2SeqLM(tiny(**TIED)), (IDS, IDS)),
    "masked, tied": (lambda: MaskedLM(tiny(**TIED)), (IDS,)),
    "classifier": (lambda: SequenceClassifier(tiny(), n_classes=3), (IDS,)),
    "classifier, mean": (lambda: SequenceClassifier(tiny(), 3, pooling="mean"), (IDS,)),
    "no classes": (lambda: SequenceClassifier(tiny(), n_classes=0), (IDS,)),
    "vision": (lambda: VisionTransformer(tiny(max_len=5), 8, 4, 1, 10), (IMAGES,)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_as_it_was(name, tmp_path):
    build, inputs = MODELS[name]
    model = make(build).float()
    save_model(model, tmp_path / "new" / "folder")
    before = torch.get_rng_state()
    loaded = load_model(tmp_path / "new" / "folder")
    assert type(loaded) is type(model)
    assert not loaded.training
    assert getattr(loaded, "config", None) == getattr(model, "config", None)
    assert torch.equal(loaded(*inputs), model(*inputs))
    assert len(list(loaded.parameters())) == len(list(model.parameters()))  # ties are ties again
    assert torch.equal(torch.get_rng_state(), before)


def test_tied_weights_are_stored_once(tmp_path):
    save_model(Seq2SeqLM(tiny(**TIED)), tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert [name for name in names if "tokens" in name or "projection" in name] == [
        "body.encoder.embedding.tokens.weight"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_weights_of_half_the_size_are_read_in_float32(tmp_path):
    model = CausalLM(tiny()).bfloat16()
    save_model(model, tmp_path)
    loaded = load_model(tmp_path, device=torch.device("cpu"))
    assert loaded.output.projection.weight.dtype == torch.float32
    assert torch.equal(loaded.output.projection.weight, model.output.projection.weight.float())


def test_tokenizer_and_card_lie_beside_the_model(tmp_path):
    tokenizer = CharTokenizer.train(["to be or not to be"])
    save_model(CausalLM(tiny()), tmp_path, tokenizer=tokenizer, card="# A model\n")
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode("to be") == tokenizer.encode("to be")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# A model\n"


def test_only_models_of_the_library_are_written(tmp_path):
    with pytest.raises(ValueError, match="model='Linear' must be one of 'CausalLM'"):
        save_model(nn.Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())


class OwnNorm(nn.Module):
    """A norm of one's own; its tensor has a name that the library's norms had before."""

    def __init__(self, config):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(config.d_model))

    def forward(self, x):
        return self.gain * x / (1 + x.abs().amax(dim=-1, keepdim=True))


OWN = Parts(norm=OwnNorm, feed_forward=lambda config: nn.Linear(config.d_model, config.d_model))
BUILDERS = {
    "CausalLM": lambda **own: CausalLM(tiny(), **own),
    "Seq2SeqLM": lambda **own: Seq2SeqLM(tiny(**TIED), **own),
    "MaskedLM": lambda **own: MaskedLM(tiny(**TIED), **own),
    "SequenceClassifier": lambda **own: SequenceClassifier(tiny(), n_classes=3, **own),
    "VisionTransformer": lambda **own: VisionTransformer(tiny(max_len=5), 8, 4, 1, 10, **own),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_with_parts_of_its_own_comes_back_with_them(name, tmp_path):
    model = make(partial(BUILDERS[name], parts=OWN)).float()
    save_model(model, tmp_path)
    loaded = load_model(tmp_path, parts=OWN)
    assert type(loaded).__name__ == name
    assert loaded.parts is OWN
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    with pytest.raises(
        ValueError,
        match=r"model\.json cannot be read: the model has parts of its own; expected "
        r"parts=Parts\(feed_forward=.*<lambda>, norm=test_saving\.OwnNorm\)$",
    ):
        load_model(tmp_path)
    with pytest.raises(ValueError, match=r"expected parts=Parts\(feed_forward=.*<lambda>\)$"):
        load_model(tmp_path, parts=Parts(norm=OwnNorm))


def test_a_model_without_parts_of_its_own_says_nothing_of_them(tmp_path):
    save_model(CausalLM(tiny()), tmp_path)
    assert json.loads((tmp_path / "model.json").read_text()).keys() == {"class", "arguments"}
    same = Parts(attention=lambda config: make_attention(config))
    assert load_model(tmp_path, parts=same).parts is same  # a part that fits the weights may come


def test_a_model_whose_tensors_have_the_old_names_is_read(tmp_path):
    model = make(lambda: CausalLM(tiny(**LLAMA))).float()
    save_model(model, tmp_path)

    def give_old_names(tensors):
        for name in list(tensors):
            old = name.replace(".up.", ".expand.").replace(".down.", ".contract.")
            tensors[old.replace("norm.weight", "norm.gain")] = tensors.pop(name)

    change_tensors(tmp_path, give_old_names)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {name.split(".")[-1] for name in names} >= {"gain"}
    assert any(".expand." in name for name in names)
    assert torch.equal(load_model(tmp_path)(IDS), model(IDS))


def change_json(folder, **changes):
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


DAMAGE = {
    "no description": (lambda f: (f / "model.json").unlink(), "model.json cannot be read.*No such"),
    "half a description": (
        lambda f: (f / "model.json").write_text('{"class": "Caus'),
        "model.json cannot be read: Unterminated",
    ),
    "a list": (lambda f: (f / "model.json").write_text("[]"), "model.json cannot be read: list"),
    "no class": (lambda f: (f / "model.json").write_text("{}"), "model.json cannot be read: 'cla"),
    "a foreign class": (
        lambda f: change_json(f, **{"class": "GPT2LMHeadModel"}),
        "model.json cannot be read: class='GPT2LMHeadModel' must be one of",
    ),
    "foreign arguments": (
        lambda f: change_json(f, arguments={"config": {"n_embd": 8}}),
        "model.json cannot be read: .*n_embd",
    ),
    "arguments that do not fit": (
        lambda f: change_json(f, arguments={"config": {"d_model": 10, "n_heads": 4}}),
        "model.json cannot be read: n_heads=4 must divide",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "model.safetensors cannot be read.*No such",
    ),
    "half the weights": (
        lambda f: write_file(
            f / "model.safetensors", (f / "model.safetensors").read_bytes()[:5000]
        ),
        "model.safetensors cannot be read",
    ),
    "a tensor less": (
        lambda f: change_tensors(f, lambda t: t.pop("output.projection.weight")),
        "model.safetensors cannot be read: the tensor output.projection.weight is missing",
    ),
    "a tensor more": (
        lambda f: change_tensors(f, lambda t: t.update(extra=torch.zeros(1))),
        "model.safetensors cannot be read: the tensor extra is unknown",
    ),
    "another shape": (
        lambda f: change_tensors(
            f, lambda t: t.update({"output.projection.weight": torch.zeros(2, 3)})
        ),
        r"the tensor output.projection.weight has shape \(2, 3\); expected \(11, 16\)",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_or_foreign_model_is_an_error_that_names_the_file(name, tmp_path):
    damage, message = DAMAGE[name]
    save_model(CausalLM(tiny()), tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_who_is_stopped_while_writing_leaves_the_old_file(call, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_file(path, b"old")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, stop)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)
        monkeypatch.setattr(
            os, call, lambda *a, call=call, real=real: calls.append(call) or real(*a)
        )
    write_file(tmp_path / "a.txt", b"new")
    assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def write(folder, step, keep=2):
    state = {"step": step, "rows": [{"loss": 0.1 + step}], "text": 'quotes " and ünicode'}
    tensors = {"model/a": torch.full((3,), float(step)), "step/a": torch.tensor(step)}
    write_checkpoint(folder, step, tensors, state, keep)
    return tensors, state


def names(folder):
    return sorted(path.name[: len("step-00000000")] for path in folder.iterdir())


def test_a_checkpoint_holds_tensors_and_state_exactly(tmp_path):
    write(tmp_path, 10)
    tensors, state = write(tmp_path, 20)
    found, found_state = read_checkpoint(tmp_path)
    assert found_state == state
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_ones_are_kept_and_leftovers_removed(keep, tmp_path):
    (tmp_path / ".step-00000009-00000000.safetensors.part").write_bytes(b"half")
    for step in range(8, 13):
        write(tmp_path, step, keep)
    assert names(tmp_path) == [f"step-{step:08d}" for step in range(13 - keep, 13)]


@pytest.mark.parametrize("where", [0, 3, 9, 60, 250, -3, "cut", "empty", "longer"])
def test_a_damaged_checkpoint_is_said_and_passed_over(where, tmp_path):
    _, old = write(tmp_path, 10)
    write(tmp_path, 20)
    newest = max(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    if where == "cut":
        content = content[:-1]
    elif where == "empty":
        content = b""
    elif where == "longer":
        content += b"\0"
    else:
        content[where] ^= 4  # a single bit
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000020-.*is damaged"):
        _, state = read_checkpoint(tmp_path)
    assert state == old


def test_if_all_are_damaged_training_does_not_start_anew(tmp_path):
    for step in (1, 2):
        write(tmp_path, step)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(ValueError, match=r"all checkpoints in .* are damaged; remove them"),
    ):
        read_checkpoint(tmp_path)


def test_a_damaged_checkpoint_never_displaces_a_sound_one(tmp_path):
    write(tmp_path, 10, keep=1)
    (tmp_path / "step-00000030-00000000.safetensors").write_bytes(b"damaged")
    _, state = write(tmp_path, 20, keep=1)
    assert names(tmp_path) == ["step-00000020"]
    assert read_checkpoint(tmp_path)[1] == state


def test_half_a_checkpoint_is_no_checkpoint(tmp_path):
    _, state = write(tmp_path, 10)
    (tmp_path / ".step-00000020-00000000.safetensors.part").write_bytes(b"half")
    assert read_checkpoint(tmp_path)[1] == state


FOREIGN = (  # M3: names that only look a little like ours
    "best-of-first-step-1.safetensors",
    "why-step-2-was-bad.txt",
    "step-00000001-best.safetensors",
    "step-00000001-00000000.safetensors.bak",
    "step-1.safetensors",
    ".step-notes.part",
)


def test_files_and_folders_of_others_are_not_touched(tmp_path):
    """Only what has exactly a name that write_checkpoint gives is removed or read."""
    for name in FOREIGN:
        (tmp_path / name).write_bytes(b"mine")
    folders = ("old-step-runs", "step-00000000-00000000.safetensors")
    for name in folders:
        (tmp_path / name).mkdir()
    assert read_checkpoint(tmp_path) is None
    for step in range(1, 5):
        _, state = write(tmp_path, step, keep=1)
    assert {path.name for path in tmp_path.iterdir()} > {*FOREIGN, *folders}
    assert len(list(tmp_path.iterdir())) == len(FOREIGN) + len(folders) + 1
    assert read_checkpoint(tmp_path)[1] == state


def test_the_newest_is_the_one_with_the_most_steps(tmp_path):
    for step in (99_999_998, 99_999_999, 100_000_000):
        _, state = write(tmp_path, step, keep=2)
    assert len(list(tmp_path.iterdir())) == 2
    assert read_checkpoint(tmp_path)[1] == state


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_with_a_lambda_in_its_parts_can_be_pickled(name, tmp_path):
    """As torch.save and multiprocessing do. Pickle finds functions by their names."""
    model = make(partial(BUILDERS[name], parts=OWN)).float()
    torch.save(model, tmp_path / "whole.pt")
    loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert type(loaded) is type(model)
    assert loaded.parts.norm is OwnNorm
    assert describe_model(loaded) == describe_model(model), "it can be saved under the same names"
    assert copy.deepcopy(model).parts is OWN
    assert copy.copy(OWN) is OWN
