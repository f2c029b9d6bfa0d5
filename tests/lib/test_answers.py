"""Loss on answers only: the targets are the answers' tokens, and no others."""

import json
import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from checkpoint_tokenizers import settings_of
from tiny_models import make, tiny

from transformer_lib.models.language_models import CausalLM
from transformer_lib.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_lib.text.tokenizers import CharTokenizer
from transformer_lib.training import answers
from transformer_lib.training.answers import label_answer, label_chat
from transformer_lib.training.data import IGNORE
from transformer_lib.training.losses import Objective

EXAMPLES = [
    ([5, 6, 7, 8, 2], [IGNORE, IGNORE, IGNORE, 8, 2]),
    ([5, 9, 2], [IGNORE, 9, 2]),
    ([4, 3, 1, 7], [IGNORE, IGNORE, 1, IGNORE]),  # what follows an answer is read again
]


def test_a_batch_asks_for_answers_alone():
    batch = answers.answer_batch(EXAMPLES, pad_id=0)
    assert batch["ids"].tolist() == [[5, 6, 7, 8], [5, 9, 2, 0], [4, 3, 1, 7]]
    no = IGNORE
    assert batch["targets"].tolist() == [[no, no, 8, 2], [9, 2, no, no], [no, 1, no, no]]


def test_the_loss_is_that_of_the_answers():
    """Token by token: the surprise at each learned token, given all tokens before it."""
    model = make(CausalLM, tiny())
    expected = []
    for ids, labels in EXAMPLES:
        for place, label in enumerate(labels):
            if label != IGNORE:
                logits = model(torch.tensor([ids[:place]]))[0, -1]
                expected.append(-F.log_softmax(logits, dim=-1)[ids[place]])
    total, count = Objective(model).eval()(answers.answer_batch(EXAMPLES))
    assert int(count) == len(expected) == 5
    torch.testing.assert_close(total, torch.stack(expected).sum(), rtol=0, atol=1e-10)


def test_a_prompt_is_read_and_its_answer_learned():
    tokenizer = CharTokenizer()
    ids, labels = label_answer(tokenizer, "2+2=", "four")
    prompt, answer = tokenizer.encode("2+2="), tokenizer.encode("four")
    assert ids == [*prompt, *answer, tokenizer.eos_id]
    assert labels == [IGNORE] * 4 + [*answer, tokenizer.eos_id]
    theirs = PretrainedTokenizer(settings_of("Llama 2"), {"eos_token": "</s>"})
    ids, labels = label_answer(theirs, "To be", "</s>or not")
    assert ids == theirs.encode("To be") + labels[len(theirs.encode("To be")) :]
    assert labels.count(theirs.eos_ids[0]) == 1  # the end; an answer cannot forge one


# --- chats: the same tokens as the masks of transformers ----------------------------------------

TURNS = """
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{ m.content }}<|im_end|>{% endgeneration %}{{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
INSTRUCTIONS = """
{{- bos_token }}{% for m in messages %}
{%- if m.role == 'user' %}[INST] {{ m.content }} [/INST]
{%- else %}{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}"""
CHATS = {
    "one answer": "ua", "two": "uaua", "a last question": "uau", "a system prompt": "suaua",
    "an answer with a mark": "uA",
}  # fmt: skip
SAID = {
    "s": {"role": "system", "content": "Be brief."},
    "u": {"role": "user", "content": "to be or not to be"},
    "a": {"role": "assistant", "content": "that is the question"},
    "A": {"role": "assistant", "content": "no <end> to be"},
}


def tokenizers(template, tmp_path):
    """Ours and theirs, of the same files."""
    settings = settings_of("Llama 2")
    end = "<|im_end|>" if "im_end" in template else "</s>"
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": end}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names | {"chat_template": template}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    return PretrainedTokenizer.from_folder(tmp_path), theirs


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("template", [TURNS, INSTRUCTIONS], ids=["turns", "instructions"])
def test_learned_tokens_are_those_that_transformers_masks(template, chat, tmp_path):
    if template is INSTRUCTIONS and "s" in CHATS[chat]:
        chat = "one answer"  # this template has no system prompt
    messages = [SAID[letter] for letter in CHATS[chat]]
    ours, theirs = tokenizers(template, tmp_path)
    ids, labels = label_chat(ours, messages)
    expected = theirs.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    assert ids == expected["input_ids"]
    mask = expected["assistant_masks"]
    assert 0 < sum(mask) < len(mask)
    assert labels == [n if seen else IGNORE for n, seen in zip(ids, mask, strict=True)]


def test_the_end_of_an_answer_is_learned():
    marks = ("<end>", "<user>", "<assistant>")
    added = [{"id": 2 + n, "content": mark, "special": True} for n, mark in enumerate(marks)]
    tokenizer = PretrainedTokenizer(
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": added},
        {"eos_token": "<end>"},
        chat_template="{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>ab{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
    )
    said = [{"role": "user", "content": "aa"}, {"role": "assistant", "content": "bb"}]
    ids, labels = label_chat(tokenizer, said)
    assert ids == [3, 0, 0, 2, 0, 1, 4, 1, 1, 2, 0, 1]
    assert labels == [IGNORE] * 7 + [1, 1, 2] + [IGNORE] * 2  # not what follows the end


def test_chats_that_cannot_be_labelled_are_refused(tmp_path):
    ours, _ = tokenizers(TURNS, tmp_path)
    question, answer = SAID["u"], SAID["a"]
    with pytest.raises(ValueError, match="messages has no answer to learn; expected one with role"):
        label_chat(ours, [question])
    # As some templates do with the thoughts of all answers but the last.
    ours.chat_template = TURNS.replace(
        "generation %}{{", "generation %}{% if loop.last %}thinking {% endif %}{{"
    )
    assert label_chat(ours, [question, answer])
    changed = re.escape("messages[1] is an answer that the chat template writes otherwise when it")
    with pytest.raises(ValueError, match=changed):
        label_chat(ours, [question, answer, question, answer])
    ours.chat_template = None
    with pytest.raises(ValueError, match="chat_template=None: this tokenizer has none; set one"):
        label_chat(ours, [question, answer])
