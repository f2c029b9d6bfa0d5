"""What save_pretrained writes is whole: ends, labels, settings of generation, tokenizer, shards."""

import json
import re

import pytest
import torch
import transformers
from checkpoint_tokenizers import settings_of
from every_setting import BASES
from torch.testing import assert_close

from transformer_lib.core.config import TransformerConfig
from transformer_lib.generation.generate import generate
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

BESIDE = {  # keys that change no number, in any family
    "bos_token_id": 3, "eos_token_id": [5, 7], "pad_token_id": 0, "sep_token_id": 4,
    "task_specific_params": {"a": 1}, "a_note_of_mine": "kept",
}  # fmt: skip
VOLATILE = {"transformers_version", "dtype", "_name_or_path", "rope_scaling", "rope_theta"}
SAID_OTHERWISE = {
    "classifier_dropout", "n_inner", "head_dim", "max_window_layers", "hidden_act",
    "partial_rotary_factor",  # in a place of its own
    "no_rope_layer_interval",  # layers are named one by one
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
    "pad_token": "<unk>", "chat_template": TEMPLATE, "model_max_length": 64,
}  # fmt: skip
LLAMA = {
    "vocab_size": 1463, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 40, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def their_model(architecture, **settings):
    torch.manual_seed(0)
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.mark.parametrize("architecture", BASES)
def test_all_that_a_configuration_says_is_kept(architecture, tmp_path):
    """Also the family: a Mistral without a window would do as a LLaMA."""
    settings = {**BASES[architecture], **BESIDE}
    if architecture == "MistralForCausalLM":
        settings["sliding_window"] = None
    if architecture == "SmolLM3ForCausalLM":  # a window that is not in use is not written
        settings["use_sliding_window"] = True
    if architecture == "T5ForConditionalGeneration":
        settings["decoder_start_token_id"] = 6
    theirs = their_model(architecture, **settings)
    theirs.save_pretrained(tmp_path / "theirs")
    save_pretrained(load_pretrained(tmp_path / "theirs").model, tmp_path / "ours")
    again = type(theirs.config).from_pretrained(tmp_path / "ours").to_dict()
    expected = type(theirs.config).from_pretrained(tmp_path / "theirs").to_dict()
    different = {k for k in expected.keys() | again.keys() if again.get(k) != expected.get(k)}
    assert not different - VOLATILE - SAID_OTHERWISE


def tokenizer_folder(folder, **config):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(settings_of("Llama 2")), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")
    return folder


def texts_of_theirs(folder, prompts, **options):
    """What transformers writes with all that is in a folder, and in how many tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    found = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        new = model.generate(ids, max_new_tokens=40, **options)[0, ids.shape[1] :]
        found.append((new.tolist(), tokenizer.decode(new)))
    return found


def ends_early(folder, prompt="to be or"):
    """An id that the model soon writes: to end there shows that the end was kept."""
    ids, _ = texts_of_theirs(folder, [prompt], do_sample=False, eos_token_id=None)[0]
    return ids[5]


@pytest.mark.parametrize("generation", [True, False], ids=["generation_config", "config alone"])
def test_transformers_writes_the_same_and_stops_at_the_same_place(generation, tmp_path):
    """F6: a LLaMA whose texts end with another token no longer stopped."""
    theirs, folder = their_model("LlamaForCausalLM", **LLAMA), tokenizer_folder(tmp_path / "a")
    theirs.save_pretrained(folder)
    end = ends_early(folder)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [end, 2]}))
    if not generation:
        path.unlink()
    model, tokenizer = load_pretrained(folder)
    save_pretrained(model, tmp_path / "b", tokenizer=tokenizer)
    assert (tmp_path / "b" / "generation_config.json").is_file() is generation
    prompts = ["to be or", "the question"]
    expected = texts_of_theirs(folder, prompts, do_sample=False)
    assert len(expected[0][0]) <= 6 < 40
    assert texts_of_theirs(tmp_path / "b", prompts, do_sample=False) == expected
    model, tokenizer = load_pretrained(tmp_path / "b")
    for prompt, (new, _) in zip(prompts, expected, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        ours = generate(model, ids, max_new_tokens=40, eos_id=tokenizer.eos_ids)
        assert ours[0, ids.shape[1] :].tolist() == new


DECODERS = [name for name in BASES if name.endswith(("ForCausalLM", "LMHeadModel"))]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("architecture", DECODERS)
def test_each_family_goes_on_and_stops_as_before(architecture, tmp_path):
    """With transformers before and after, and from text to text with ours."""
    theirs = their_model(architecture, **BASES[architecture] | {"vocab_size": 1463})
    tokenizer = PretrainedTokenizer.from_folder(tokenizer_folder(tmp_path / "a"))
    prompt, options = "to be or", {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    ids = torch.tensor([tokenizer.encode(prompt)])
    text = theirs.generate(ids, **options, eos_token_id=None)
    end = text[0, ids.shape[1] + 3].item()  # the fourth new token, or one before if it is the same
    theirs.generation_config.eos_token_id = theirs.config.eos_token_id = end
    theirs.save_pretrained(tmp_path / "a")
    model, tokenizer = load_pretrained(tmp_path / "a")
    save_pretrained(model, tmp_path / "b", tokenizer=tokenizer)
    expected = theirs.generate(ids, **options)
    assert expected[0, -1] == end
    again = type(theirs).from_pretrained(tmp_path / "b").eval()
    assert torch.equal(again.generate(ids, **options), expected)
    model, tokenizer = load_pretrained(tmp_path / "b")
    ours = generate(model, ids, max_new_tokens=10, eos_id=tokenizer.eos_ids)
    assert torch.equal(ours, expected)


def test_a_model_of_ours_ends_where_its_tokenizer_says(tmp_path):
    tokenizer = PretrainedTokenizer.from_folder(tokenizer_folder(tmp_path / "tokenizer"))
    config = load_pretrained_config(tmp_path)
    torch.manual_seed(0)
    save_pretrained(CausalLM(config), tmp_path / "a", tokenizer=tokenizer)
    written = json.loads((tmp_path / "a" / "config.json").read_text())
    assert [written[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [1, 2, 0]
    save_pretrained(CausalLM(config), tmp_path / "b")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert theirs.generation_config.eos_token_id is None  # not 2, which is LLaMA's


def load_pretrained_config(folder):
    their_model("LlamaForCausalLM", **LLAMA).save_pretrained(folder / "plain")
    return load_pretrained(folder / "plain").model.config


@pytest.mark.parametrize("start", [0, 6])
def test_t5_begins_and_ends_as_before(start, tmp_path):
    settings = {**BASES["T5ForConditionalGeneration"], "decoder_start_token_id": start}
    theirs = their_model("T5ForConditionalGeneration", **settings, eos_token_id=1)
    theirs.save_pretrained(tmp_path / "a")
    save_pretrained(load_pretrained(tmp_path / "a").model, tmp_path / "b")
    again = type(theirs).from_pretrained(tmp_path / "b").eval()
    source, new = torch.tensor([[5, 9, 8, 3]]), {"max_new_tokens": 9}
    assert torch.equal(again.generate(source, **new), theirs.generate(source, **new))


def test_a_t5_of_ours_can_be_asked_for_text(tmp_path):
    their_model(
        "T5ForConditionalGeneration", **BASES["T5ForConditionalGeneration"]
    ).save_pretrained(tmp_path / "a")
    save_pretrained(Seq2SeqLM(load_pretrained(tmp_path / "a").model.config), tmp_path / "b")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "b")
    assert theirs.generate(torch.tensor([[5, 9]]), max_new_tokens=3)[0, 0] == 0


def test_classes_keep_their_names(tmp_path):
    """F6: BERT's became LABEL_0."""
    names = {0: "cat", 1: "dog", 2: "neither"}
    base = BASES["BertForSequenceClassification"]
    theirs = their_model("BertForSequenceClassification", **base, id2label=names)
    theirs.save_pretrained(tmp_path / "a")
    model = load_pretrained(tmp_path / "a").model
    save_pretrained(model, tmp_path / "b")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "b")
    assert again.config.id2label == names
    model.classifier = torch.nn.Linear(24, 5)  # for another task: the names no longer fit
    save_pretrained(model, tmp_path / "b")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "b")
    assert again.config.id2label == {n: f"LABEL_{n}" for n in range(5)}


def test_the_files_of_a_tokenizer_are_written_as_they_were(tmp_path):
    folder = tokenizer_folder(tmp_path / "a")
    (folder / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    PretrainedTokenizer.from_folder(folder).save(tmp_path / "b")
    names = ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == names
    for name in names:
        assert (tmp_path / "b" / name).read_bytes() == (folder / name).read_bytes()


def test_a_new_chat_template_is_written(tmp_path):
    tokenizer = PretrainedTokenizer.from_folder(tokenizer_folder(tmp_path / "a"))
    tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    tokenizer.save(tmp_path / "b")
    again = PretrainedTokenizer.from_folder(tmp_path / "b")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    messages = [{"role": "user", "content": "to be"}]
    expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert again.chat(messages) == tokenizer.chat(messages) == expected


def test_a_tokenizer_that_was_made_of_settings_is_written(tmp_path):
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    made = PretrainedTokenizer(settings_of("Llama 2"), names, chat_template=TEMPLATE)
    made.save(tmp_path)
    again = PretrainedTokenizer.from_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "To be,  or not\n to be: é世</s>"
    assert made.encode(text) == again.encode(text) == theirs(text)["input_ids"]
    assert (again.bos_id, again.eos_ids, again.chat_template) == (1, (2,), TEMPLATE)


@torch.no_grad()
def test_shards_hold_the_same_and_leave_nothing_old(tmp_path):
    theirs = their_model("LlamaForCausalLM", **LLAMA)
    theirs.save_pretrained(tmp_path)
    model, ids = load_pretrained(tmp_path).model, torch.tensor([[1, 7, 9, 4]])
    save_pretrained(model, tmp_path, shard_bytes=20_000)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert not (tmp_path / "model.safetensors").exists()
    assert len(shards) > 3
    sizes = [path.stat().st_size for path in shards]
    assert sum(size > 22_000 for size in sizes) == 2  # each of the two tables alone
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(p.numel() * 4 for p in model.parameters())
    again = type(theirs).from_pretrained(tmp_path).eval()
    assert torch.equal(again(ids).logits, theirs(ids).logits)
    assert torch.equal(load_pretrained(tmp_path).model(ids), model(ids))
    save_pretrained(model, tmp_path, shard_bytes=100_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) == 3
    assert_close(type(theirs).from_pretrained(tmp_path).eval()(ids).logits, model(ids))
    save_pretrained(model, tmp_path)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]


RANKS = PretrainedTokenizer.from_ranks(
    {bytes([n]): n for n in range(256)}, r"\p{L}+|\P{L}+", {"<end>": 300}
)
MISUSE = [
    ({"tokenizer": RANKS}, "the tokenizer has 301 tokens; expected vocab_size=60, those of the m"),
    ({"shard_bytes": 0}, "shard_bytes=0 must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("options", "message"), MISUSE)
def test_what_cannot_be_written_is_said_and_nothing_is(options, message, tmp_path):
    model = CausalLM(TransformerConfig(vocab_size=60, d_model=8, n_heads=2, position="rope"))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        save_pretrained(model, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_of_ranks_has_no_file(tmp_path):
    with pytest.raises(ValueError, match=r"^a tokenizer of ranks cannot be written as tokenizer"):
        RANKS.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
