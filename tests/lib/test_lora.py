"""LoRA: an adapter is its formula, changes nothing at first, and alone is trained."""

import copy
import io
import json
import re
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors import safe_open
from tiny_models import LLAMA, make, random_ids, tiny
from torch import nn

from transformer_lib.generation.fast.single_token import LeanDecoder
from transformer_lib.generation.generate import generate, stream
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.fast import padding_free
from transformer_lib.models.language_models import (
    CausalLM,
    MaskedLM,
    Seq2SeqLM,
    SequenceClassifier,
    VisionTransformer,
)
from transformer_lib.models.lora import (
    LoraLinear,
    add_lora,
    describe_adapters,
    lora_layers,
    merge_lora,
    remove_lora,
    trainable_parameters,
)
from transformer_lib.models.lora_files import load_lora, save_lora
from transformer_lib.models.presets import PRESETS
from transformer_lib.models.quantization import quantize
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.training.data import TextWindows
from transformer_lib.training.loop import train
from transformer_lib.training.recipes import Recipe

GPT = {"position": "learned", "norm_position": "pre", "activation": "gelu_tanh"}
IDS = random_ids(2, 7)
IMAGES = torch.linspace(-1, 1, 128).view(2, 1, 8, 8)
MODELS = {
    "gpt": (CausalLM, tiny(**GPT), (), (IDS,)),
    "llama": (CausalLM, tiny(**LLAMA), (), (IDS,)),
    "experts": (CausalLM, tiny(**LLAMA, n_experts=3), (), (IDS,)),
    "capped": (CausalLM, tiny(**LLAMA, qk_norm="head", score_cap=5.0), (), (IDS,)),
    "2017": (Seq2SeqLM, tiny(), (), (IDS, random_ids(2, 5, seed=1))),
    "bert": (MaskedLM, tiny(activation="gelu"), (), (IDS,)),
    "classes": (SequenceClassifier, tiny(), (3,), (IDS,)),
    "vit": (VisionTransformer, tiny(max_len=5, position="learned"), (8, 4, 1, 3), (IMAGES,)),
}


def build(name="gpt", dtype=torch.float64):
    kind, config, more, inputs = MODELS[name]
    floats = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    return make(kind, config, *more).to(dtype), floats


@torch.no_grad()
def train_by_hand(model, seed=0, scale=0.3):
    """Give every adapter numbers, as if it had learned something."""
    torch.manual_seed(seed)
    for layer in lora_layers(model).values():
        layer.up.copy_(scale * torch.randn_like(layer.up))
        layer.down.copy_(scale * torch.randn_like(layer.down))
    return model


def adapted(name="gpt", dtype=torch.float64, **options):
    model, inputs = build(name, dtype)
    add_lora(model, **{"rank": 3, "alpha": 5.0, "layers": "all"} | options)
    return train_by_hand(model), inputs


# --- what an adapter computes -------------------------------------------------------------------


def test_an_adapter_is_its_formula():
    """y = W x + b + alpha / r * B (A x), number by number."""
    sizes = 5, 7
    torch.manual_seed(0)
    base = nn.Linear(*sizes).double()
    layer = LoraLinear(base, rank=2, alpha=3.0)
    nn.init.normal_(layer.up)
    x = torch.randn(sizes[0], dtype=torch.float64)
    narrow = [sum(layer.down[i, k] * x[k] for k in range(sizes[0])) for i in range(2)]
    wide = [sum(layer.up[j, i] * narrow[i] for i in range(2)) for j in range(sizes[1])]
    plain = [sum(base.weight[j, k] * x[k] for k in range(sizes[0])) for j in range(sizes[1])]
    expected = [plain[j] + base.bias[j] + 3.0 / 2 * wide[j] for j in range(sizes[1])]
    torch.testing.assert_close(layer(x), torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_new_adapter_changes_nothing(name):
    model, inputs = build(name)
    with torch.no_grad():
        before = model(*inputs)
        assert add_lora(model, rank=2, layers="all")
        assert torch.equal(model(*inputs), before)


def test_a_new_adapter_says_nothing():
    layer = nn.Linear(5, 7)
    x = torch.linspace(-1, 1, 5)
    assert torch.equal(LoraLinear(layer, rank=2)(x), layer(x))


def test_a_new_adapter_can_learn():
    layer = LoraLinear(nn.Linear(5, 7), rank=2)
    layer(torch.linspace(-1, 1, 5)).sum().backward()
    assert layer.up.grad.abs().sum() > 0
    assert 0.2 < layer.down.std() < 0.3  # 1 / sqrt(3 * 5), as that of a linear layer


@pytest.mark.parametrize("name", MODELS)
def test_merged_equals_unmerged(name):
    """In float32, to 1e-6 of the length of the outputs; in float64, to 1e-12."""
    for dtype, limit in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        model, inputs = build(name, dtype)
        with torch.no_grad():
            plain = model(*inputs)
            add_lora(model, rank=3, alpha=5.0, layers="all")
            expected = train_by_hand(model, scale=0.1)(*inputs)
            merge_lora(model)
            assert not lora_layers(model)
            assert (model(*inputs) - expected).norm() < limit * expected.norm()
            assert (plain - expected).norm() > 0.05 * expected.norm()


def test_merged_equals_unmerged_in_a_square_layer():
    """Nearly all layers of a Transformer are square: a transposed product would fit."""
    model = nn.Sequential(nn.Linear(6, 6)).double()
    add_lora(model, rank=2, layers="0")
    train_by_hand(model)
    x = random_ids(3, 6).double()
    expected = model(x)
    merge_lora(model)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


def test_removed_adapters_leave_the_model_as_it_was():
    model, inputs = build("llama")
    model.decoder.stack.final_norm.weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before, names = model(*inputs), dict(model.named_modules())
    add_lora(model)
    train_by_hand(model)
    assert not torch.equal(model(*inputs), before)
    remove_lora(model)
    assert torch.equal(model(*inputs), before)
    assert dict(model.named_modules()) == names
    after = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert list(map(id, after)) == list(map(id, trained))


def test_an_adapter_drops_what_it_reads_and_the_layer_drops_nothing():
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(4, 4).double(), rank=2, dropout=0.5)
    x = torch.ones(4000, 4, dtype=torch.float64)
    layer.train()
    assert (layer(x) == layer.base(x)).all()  # the adapter adds nothing yet
    nn.init.normal_(layer.up)
    dropped, kept = layer(x), layer.eval()(x)
    assert not torch.equal(dropped, kept)
    torch.testing.assert_close(dropped.mean(0), kept.mean(0), rtol=0, atol=0.1)


# --- which layers -------------------------------------------------------------------------------


CHOICES = [
    (("query", "value"), 8),  # self- and cross-attention of one decoder block, one encoder block
    ("attention.query", 4),
    ("cross_attention.query", 2),
    (["body.decoder.*.feed_forward.*"], 4),
    ("blocks.0.*.output", 3),
    ("all", 32),
]


@pytest.mark.parametrize(("layers", "count"), CHOICES, ids=str)
def test_layers_are_chosen_by_the_ends_of_their_names(layers, count):
    model, _ = build("2017")
    if layers == ("query", "value"):
        count = 12  # two blocks on each side, three attentions for each pair, two layers in each
    names = add_lora(model, layers=layers)
    assert len(names) == len(lora_layers(model)) == count
    assert list(lora_layers(model)) == names
    assert not any("output.projection" in name for name in names)


def test_the_count_is_that_of_the_literature():
    """LLaMA 2 7B, rank 8 on queries and values: 4,194,304, in 32 blocks."""
    preset = PRESETS["llama-2-7b"]
    with torch.device("meta"):
        llama = preset.build(replace(preset.config, n_layers=1))
    add_lora(llama)
    assert preset.config.n_layers * trainable_parameters(llama) == 4_194_304


class Packed(nn.Module):
    """A layer whose matrix is whole numbers and a scale, as a quantised one may be."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        scale = layer.weight.detach().abs().amax() / 127
        self.register_buffer("whole", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.half())
        self.bias = layer.bias

    def forward(self, x):
        return F.linear(x, self.whole.to(x.dtype) * self.scale.to(x.dtype), self.bias)


def packed_model():
    model, inputs = build("gpt", torch.float32)
    for block in model.decoder.stack.blocks:
        for part in (block.attention, block.feed_forward):
            for name, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, name, Packed(layer))
    return model, inputs


def test_adapters_stand_beside_a_packed_matrix_and_are_not_merged():
    model, inputs = packed_model()
    before = model(*inputs)
    assert add_lora(model, rank=2)[0].endswith("attention.query")
    assert torch.equal(model(*inputs), before)
    layer = lora_layers(model)["decoder.stack.blocks.0.attention.query"]
    assert layer.down.dtype == torch.float32  # although the scale is in float16
    train_by_hand(model)
    after = model(*inputs)
    after.sum().backward()
    assert layer.up.grad.abs().sum() > 0
    with pytest.raises(ValueError, match=r"has a Packed at decoder\.stack.blocks\.0\.attention"):
        merge_lora(model)
    assert torch.equal(model(*inputs), after)
    remove_lora(model)
    assert torch.equal(model(*inputs), before)


def test_beside_half_precision_an_adapter_is_precise():
    layer = LoraLinear(nn.Linear(4, 3).bfloat16(), rank=2)
    nn.init.normal_(layer.up)
    x = torch.randn(5, 4).bfloat16()
    assert layer(x).dtype == torch.bfloat16
    assert layer.down.dtype == layer.up.dtype == torch.float32
    model = nn.Sequential(layer)
    product, before = layer.product(), layer.base.weight.float()
    merge_lora(model)
    assert torch.equal(model[0].weight, (before + product).bfloat16())  # rounded once
    with torch.autocast("cpu", torch.bfloat16):
        assert LoraLinear(nn.Linear(4, 3), rank=2)(torch.randn(5, 4)).dtype == torch.bfloat16


# --- copies, files ------------------------------------------------------------------------------


def test_a_copy_has_adapters_of_its_own():
    model, inputs = adapted("llama")
    expected = model(*inputs)
    copied = copy.deepcopy(model)
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    for other in (copied, torch.load(file, weights_only=False)):
        assert torch.equal(other(*inputs), expected)
        train_by_hand(other, seed=1)
        assert torch.equal(model(*inputs), expected)
    assert not torch.equal(copied(*inputs), expected)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_is_saved_with_its_adapters(tied, tmp_path):
    model = make(CausalLM, tiny(**GPT, tie_embeddings=tied)).float()
    add_lora(model, rank=2, alpha=3.0, layers="all", dropout=0.1)
    train_by_hand(model)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert torch.equal(loaded(IDS), model(IDS))
    assert describe_adapters(loaded) == describe_adapters(model)
    assert trainable_parameters(loaded) == trainable_parameters(model)
    assert (loaded.output.projection.weight is loaded.decoder.embedding.tokens.weight) == tied


@pytest.mark.parametrize("name", ["llama", "experts", "2017"])
def test_adapters_are_saved_alone(name, tmp_path):
    model, inputs = adapted(name, torch.float32, dropout=0.25)
    save_lora(model, tmp_path, base="somewhere")
    with safe_open(tmp_path / "lora.safetensors", framework="pt") as file:
        assert len(file.keys()) == 2 * len(lora_layers(model))
    assert json.loads((tmp_path / "lora.json").read_text())["base"] == "somewhere"
    other, _ = build(name, torch.float32)
    before = torch.get_rng_state()
    load_lora(other, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(other(*inputs), model(*inputs))
    assert describe_adapters(other) == describe_adapters(model)
    assert trainable_parameters(other) == trainable_parameters(model)
    (tmp_path / "lora.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"lora\.safetensors cannot be read: "):
        load_lora(build(name, torch.float32)[0], tmp_path)


# --- generation ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_the_single_token_path_follows_adapters(name):
    model, (ids,) = adapted(name)
    cache = KeyValueCache(model.config.n_layers, 16)
    with torch.no_grad():
        model(ids, cache=cache)
        assert LeanDecoder(model.decoder).can_read(ids[:, -1:], cache)
        written = generate(model, ids, max_new_tokens=5)
        for end in range(ids.shape[1], written.shape[1]):
            assert torch.equal(model(written[:, :end])[:, -1].argmax(-1), written[:, end])
    merged = copy.deepcopy(model)
    merge_lora(merged)
    assert torch.equal(generate(merged, ids, max_new_tokens=5), written)


@pytest.mark.usefixtures("unchecked_shapes")
@torch.no_grad()
def test_adapters_that_change_between_two_tokens_are_followed():
    """A token depends on the keys of earlier adapters: the reference reads token by token, too."""
    model, (ids,) = adapted("llama")
    changes = {2: lambda: train_by_hand(model, seed=5), 4: lambda: remove_lora(model)}
    reference, cache = copy.deepcopy(model), KeyValueCache(model.config.n_layers, 24)
    tokens = stream(model, ids, max_new_tokens=7)
    new, seen = ids, 0
    for n, token in enumerate(tokens):
        expected = reference(new, cache=cache)[:, -1].argmax(-1)
        assert torch.equal(token, expected), n
        new, seen = token[:, None], seen + new.shape[1]
        if n in changes:
            changes[n]()
            reference = copy.deepcopy(model)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_path_without_padding_is_taken_beside_adapters(monkeypatch):
    monkeypatch.setattr(padding_free, "COST_OF_A_SEQUENCE", -1)
    model, (ids,) = adapted("bert")
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    taken, ask = [], padding_free.padding_free_batch
    monkeypatch.setattr(
        padding_free, "padding_free_batch", lambda *args: taken.append(ask(*args)) or taken[-1]
    )
    without = model(ids, real=real)
    assert taken[0] is not None
    monkeypatch.setattr(padding_free, "padding_free_batch", lambda *args: None)
    torch.testing.assert_close(without[real], model(ids, real=real)[real], rtol=0, atol=1e-12)


# --- training -----------------------------------------------------------------------------------


@pytest.fixture
def without_curve(monkeypatch, unchecked_shapes):
    """No pictures: they take longer than all the rest."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def text(seed=0):
    numbers = torch.randint(1, 11, (200,), generator=torch.Generator().manual_seed(3))
    return TextWindows(numbers, length=8, batch_size=4, seed=seed)


def recipe(steps=6, **choices):
    rate = {"steps": steps, "learning_rate": 0.01, "log_every": 1, "schedule": "constant"}
    return Recipe(**rate | choices)


def learner(rank=2, seed=0, **options):
    model = make(CausalLM, tiny(**LLAMA), seed=seed).float()
    torch.manual_seed(0)
    add_lora(model, rank=rank, layers="all", dropout=0.2, **options)
    return model


def go(model, steps=6, **options):
    return train(model, text(), recipe(steps), progress=False, device="cpu", **options)


@pytest.mark.usefixtures("unchecked_shapes")
def test_training_changes_adapters_alone():
    model = learner()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = go(model, steps=10)
    assert rows[-1]["loss"] < rows[0]["loss"]
    for name, tensor in model.state_dict().items():
        is_adapter = name.endswith((".up", ".down"))
        assert torch.equal(tensor, before[name]) != is_adapter, name


@pytest.mark.usefixtures("without_curve")
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path):
    whole = learner()
    rows = go(whole, folder=tmp_path / "whole")
    go(learner(), steps=3, folder=tmp_path / "parts")
    resumed = learner(seed=0)
    train_by_hand(resumed, seed=9)  # what the folder holds counts
    assert go(resumed, folder=tmp_path / "parts")[-1] == rows[-1]
    for (name, one), (_, other) in zip(
        whole.state_dict().items(), resumed.state_dict().items(), strict=True
    ):
        assert torch.equal(one, other), name


@pytest.mark.usefixtures("without_curve")
def test_a_checkpoint_holds_adapters_and_refuses_another_base(tmp_path):
    model = learner()
    go(model, steps=2, folder=tmp_path)
    (path,) = (tmp_path / "checkpoints").glob("*.safetensors")
    with safe_open(path, framework="pt") as file:
        kept = {name for name in file.keys() if name.startswith("model/")}  # noqa: SIM118
    assert kept == {
        f"model/{name}.{side}" for name in lora_layers(model) for side in ("up", "down")
    }
    for other, message in (
        (learner(seed=1), "model has other frozen weights than that of the run in"),
        (learner(rank=3), "model has {'rank': 3, 'alpha': 16.0, 'dropout': 0.2} at decoder.stack"),
        (make(CausalLM, tiny(**LLAMA)).float(), "model has no adapter at decoder.stack.blocks.0"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            go(other, folder=tmp_path)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_best_adapters_are_put_back(tmp_path):
    model = learner()
    kept = {}

    def keep(row):
        kept[row["step"]] = copy.deepcopy(model.state_dict())

    options = {"validate_every": 1, "patience": 2, "learning_rate": 0.5}
    rows = train(
        model, text(), recipe(20, **options), validation=text(seed=1), on_step=keep,
        progress=False, device="cpu",
    )  # fmt: skip
    best = min(rows, key=lambda row: row["validation_loss"])["step"]
    assert best < rows[-1]["step"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[best][name]), name


# --- how much a rank can learn ------------------------------------------------------------------


@pytest.mark.usefixtures("unchecked_shapes")
def test_with_full_rank_training_is_full_fine_tuning():
    """If ``down`` is the identity and alpha the rank, gradient steps on ``up`` are those on W."""
    config = tiny(**GPT, d_ff=16, dropout=0.0, attention_dropout=0.0)
    full, model = (make(CausalLM, config) for _ in range(2))
    add_lora(model, rank=16, alpha=16.0, layers="all")
    for layer in lora_layers(model).values():
        nn.init.eye_(layer.down).requires_grad_(False)
    matrices = {name: full.get_submodule(name).weight for name in lora_layers(model)}
    ids, targets = random_ids(4, 9), random_ids(4, 9, seed=1)
    ours = torch.optim.SGD([x for x in model.parameters() if x.requires_grad], lr=0.2)
    losses = []
    for one, optimizer in ((full, torch.optim.SGD(matrices.values(), lr=0.2)), (model, ours)):
        for _ in range(5):
            one.zero_grad()
            loss = F.cross_entropy(one(ids).flatten(end_dim=1), targets.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[5:] == pytest.approx(losses[:5], abs=1e-12)
    assert losses[4] < losses[0] - 0.1
    merge_lora(model)
    for name, weight in matrices.items():
        torch.testing.assert_close(model.get_submodule(name).weight, weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_a_rank_learns_as_much_as_a_matrix_of_this_rank_can(rank):
    """Eckart and Young: what is left are the smallest singular values; of full rank, nothing."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 6, bias=False).double()
    wanted = torch.randn(6, 6, dtype=torch.float64)
    missing = torch.linalg.svdvals(wanted - layer.weight.detach())[rank:].square().sum()
    model = nn.Sequential(layer)
    add_lora(model, rank=rank, layers="0")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.LBFGS(trained, max_iter=500, line_search_fn="strong_wolfe")
    inputs = torch.eye(6, dtype=torch.float64)

    def loss():
        optimizer.zero_grad()
        left = (model(inputs) - wanted.mT).square().sum()
        left.backward()
        return left

    optimizer.step(loss)
    assert loss().item() == pytest.approx(missing.item(), abs=1e-6)


@pytest.mark.usefixtures("unchecked_shapes")
def test_adapters_beside_quantised_layers_learn_and_are_saved(tmp_path):
    model = make(CausalLM, tiny(**LLAMA)).float()
    quantize(model, bits=4, group=4)
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    add_lora(model, rank=2, layers="all")
    train(model, text(), recipe(), progress=False, device="cpu")
    for layer in lora_layers(model).values():
        assert layer.up.abs().sum() > 0
    save_model(model, tmp_path / "whole")
    save_lora(model, tmp_path / "adapters")
    loaded, by_itself = load_model(tmp_path / "whole"), make(CausalLM, tiny(**LLAMA)).float()
    quantize(by_itself, bits=4, group=4)
    by_itself.load_state_dict(base)
    load_lora(by_itself, tmp_path / "adapters")
    with torch.no_grad():
        expected = model.eval()(IDS)
        assert torch.equal(loaded(IDS), expected)
        assert torch.equal(by_itself.eval()(IDS), expected)
    remove_lora(model)
    assert all(torch.equal(tensor, base[name]) for name, tensor in model.state_dict().items())
