"""The table of words: each word of ours, of PyTorch and of Hugging Face is one that they have."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
import transformers
from torch import nn
from transformers import modeling_outputs
from transformers.activations import ACT2FN
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

import transformer_lib
from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.training.data import IGNORE
from transformer_lib.training.recipes import Recipe

INDEX = Path(__file__).resolve().parents[2] / "book" / "api" / "index.md"
TABLES = INDEX.read_text(encoding="utf-8").partition("\n## Our words")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLES.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| ours |"))
]
TINY = {"vocab_size": 10, "d_model": 8, "n_heads": 2, "n_layers": 1}
FAMILIES = {  # the configuration of each family, with what makes it small, and a model of it
    "B": (transformers.BertConfig, {"num_hidden_layers": 1}, transformers.BertForMaskedLM),
    "G": (transformers.GPT2Config, {"n_layer": 1}, transformers.GPT2LMHeadModel),
    "L": (transformers.LlamaConfig, {"num_hidden_layers": 1}, transformers.LlamaForCausalLM),
    "T": (transformers.T5Config, {"num_layers": 1}, transformers.T5ForConditionalGeneration),
    "V": (transformers.ViTConfig, {"num_hidden_layers": 1}, transformers.ViTForImageClassification),
    "Mistral": (transformers.MistralConfig, {"num_hidden_layers": 1}, None),
    "Mixtral": (
        transformers.MixtralConfig,
        {"num_hidden_layers": 1, "num_local_experts": 2},
        transformers.MixtralForCausalLM,
    ),
}
MODULES = {"L": modeling_llama, "GPT-J": modeling_gptj}
ANY_FAMILY = "BGLTV"


def arguments(*callables):
    return {name for thing in callables for name in inspect.signature(thing).parameters}


def parts_of(model):
    """The names of all parts and parameters, whole and from each dot on to each later one."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for name in names:
        steps = name.split(".")
        for first in range(len(steps)):
            for last in range(first, len(steps)):
                yield ".".join(steps[first : last + 1])


@cache
def our_words():
    modules = [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(transformer_lib.__path__, "transformer_lib.")
        if not info.name.endswith("__main__")
    ]
    public = {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and getattr(thing, "__module__", module.__name__) == module.__name__
    }
    called = [
        thing
        for thing in public.values()
        if inspect.isfunction(thing) or (inspect.isclass(thing) and issubclass(thing, nn.Module))
    ]
    forwards = [thing.forward for thing in called if inspect.isclass(thing)]
    config = TransformerConfig(**TINY, activation="swiglu", n_experts=2)
    return {
        *public,
        *arguments(*called, *forwards),
        *(field.name for field in fields(TransformerConfig)),
        *(field.name for field in fields(Recipe)),
        *parts_of(Seq2SeqLM(config)),
        *parts_of(CausalLM(config)),
        "d_head",
    }


@cache
def words_of_pytorch():
    layers = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    called = [
        nn.Embedding,
        nn.MultiheadAttention,
        nn.Transformer,
        nn.TransformerEncoder,
        nn.LayerNorm,
        nn.CrossEntropyLoss,
        nn.utils.clip_grad_norm_,
        torch.optim.AdamW,
        *layers,
    ]
    forwards = [
        thing.forward for thing in called if inspect.isclass(thing) and issubclass(thing, nn.Module)
    ]
    # These have no signature that Python could read; the first lines of their words have it.
    headings = [
        f.__doc__.strip().split("\n\n")[0] for f in (F.scaled_dot_product_attention, F.gelu)
    ]
    return {
        *arguments(*called, *forwards),
        *(word for heading in headings for word in re.findall(r"\w+(?=[,=) ])", heading)),
        *(name for layer in layers for name in parts_of(layer(8, 2))),
        *vars(nn),
        *vars(F),
        *vars(nn.Transformer),
        *vars(nn.Module),
        *vars(nn.utils),
        *vars(torch.optim),
        *vars(torch.utils.checkpoint),
        *vars(nn.MultiheadAttention(8, 2)),
        *vars(torch),
        "True", "False",
    }  # fmt: skip


@cache
def words_of_family(family):
    found = set(vars(MODULES.get(family, object)))
    if family in FAMILIES:
        make_config, small, model = FAMILIES[family]
        config = make_config(**small)
        found |= {*arguments(make_config), *make_config.attribute_map, *config.to_dict()}
        if model is not None:
            with torch.device("meta"):
                built = model(config)
            found |= {*parts_of(built), *arguments(built.forward)}
        found |= {
            f'rope_parameters["{key}"]' for key in getattr(config, "rope_parameters", None) or {}
        }
        found |= {value for value in config.to_dict().values() if isinstance(value, str)}
    return found


@cache
def words_of_hugging_face():
    outputs = (modeling_outputs.CausalLMOutputWithPast, modeling_outputs.Seq2SeqLMOutput)
    return {
        *(word for family in ANY_FAMILY for word in words_of_family(family)),
        *arguments(
            transformers.TrainingArguments,
            transformers.GenerationMixin.generate,
            transformers.PreTrainedTokenizerBase.apply_chat_template,
        ),
        *vars(transformers.GenerationMixin),
        *vars(transformers.PreTrainedTokenizerBase),
        *transformers.GenerationConfig().to_dict(),
        *(field.name for output in outputs for field in fields(output)),
        *dir(transformers),
        *vars(transformers.PreTrainedModel),
        *ACT2FN,
        "1",
    }


def words_in(cell):
    """The words in backticks of a cell, without the values that are given with some."""
    cell = re.sub(r"\{cite:p\}`[^`]*`", "", cell)
    return [word for word in re.findall(r"`([^`]*)`", cell) if not word.startswith(("(", '"'))]


def name_of(word):
    return word.partition("=")[0]


def with_families(cell):
    """Each word of a cell with the families for which it is said to hold, if any is named."""
    for part in re.split(r";", cell):
        waiting = []
        for word, said in re.findall(r"`([^`]*)`|\(([A-Z][\w, -]*)\)", part):
            if word and not word.startswith(("(", '"')):
                waiting.append(word)
            elif said:
                for family in said.split(", "):
                    yield from ((known, family) for known in waiting)
                waiting = []
        yield from ((word, None) for word in waiting)


WHERE = "book/api/index.md, Our words"


def told(row, unknown, whose):
    """What to do about words in the tables that nobody has."""
    return f"{WHERE}, row {row[0]!r}: {whose} has no {unknown}: write the name that it has now"


def test_there_are_tables():
    assert len(ROWS) >= 60
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_our_words_are_ours(row):
    assert words_in(row[0]), f"{WHERE}, row {row[0]!r}: the first cell has no word in backticks"
    unknown = [w for w in words_in(row[0]) if name_of(w) not in {*our_words(), "True", "id"}]
    assert not unknown, told(row, unknown, "transformer_lib")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_words_of_pytorch_are_its_own(row):
    unknown = [w for w in words_in(row[2]) if name_of(w) not in words_of_pytorch()]
    assert not unknown, told(row, unknown, "PyTorch")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_words_of_hugging_face_are_its_own(row):
    for word, family in with_families(row[3]):
        known = words_of_hugging_face() if family is None else words_of_family(family)
        wanted = re.findall(r"[^=\"]+", word) if family else [name_of(word)]  # with its value
        whose = f"Hugging Face ({family or 'any family'})"
        assert word in known or set(wanted) <= known, told(row, [word], whose)


def test_a_wrong_word_is_noticed():
    assert name_of("norm_last=True") not in words_of_pytorch()
    assert "num_heads" not in words_of_family("L")
    assert "gain" not in our_words()
    assert told(["`clip`"], ["gain"], "PyTorch").startswith(
        "book/api/index.md, Our words, row '`clip`': PyTorch has no ['gain']"
    )
    assert list(with_families("`a`, `b` (L), `c` (G, T); `d`")) == [
        ("a", "L"), ("b", "L"), ("c", "G"), ("c", "T"), ("d", None),
    ]  # fmt: skip


# --- what the tables say about meaning ----------------------------------------------------------


def test_masks_mean_what_the_table_says():
    q = torch.randn(1, 1, 2, 4, generator=torch.Generator().manual_seed(0))
    allowed = torch.tensor([[True, False], [True, True]])
    causal = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q, attn_mask=allowed), causal)
    added = torch.zeros(2, 2).masked_fill(~allowed, float("-inf"))
    torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q, attn_mask=added), causal)

    attention, x = nn.MultiheadAttention(4, 1, batch_first=True), q[0]
    for hidden in (~allowed, added):
        weights = attention(x, x, x, attn_mask=hidden)[1]
        assert weights[0, 0].tolist() == [1, 0]
        assert weights[0, 1, 0] < 1
    weights = attention(x, x, x, key_padding_mask=torch.tensor([[False, True]]))[1]
    assert weights[0].tolist() == [[1, 0], [1, 0]]


def tiny_gpt2():
    config = transformers.GPT2Config(vocab_size=10, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(config).eval()


def test_hugging_face_hides_where_the_mask_is_zero():
    model, mask = tiny_gpt2(), torch.tensor([[0, 1, 1]])
    one, other = torch.tensor([[3, 5, 7]]), torch.tensor([[4, 5, 7]])
    logits = [model(ids, attention_mask=mask).logits[:, 1:] for ids in (one, other)]
    torch.testing.assert_close(*logits)
    seen = [model(ids, attention_mask=torch.ones_like(mask)).logits[:, 1:] for ids in (one, other)]
    assert not torch.allclose(*seen)


def test_hugging_face_shifts_the_labels_itself():
    model, ids = tiny_gpt2(), torch.tensor([[3, 5, 7, 2]])
    out = model(ids, labels=ids.masked_fill(ids == 7, IGNORE))
    targets = ids[:, 1:].masked_fill(ids[:, 1:] == 7, IGNORE)
    shifted = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), targets.flatten())
    torch.testing.assert_close(out.loss, shifted)
    assert nn.CrossEntropyLoss().ignore_index == IGNORE
