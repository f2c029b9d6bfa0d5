"""Two models so small that all their numbers can be compared, and questions about them."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from live_v8 import difference, engine
from py_mini_racer import JSEvalException
from torch import Tensor, nn

from transformer_book.live.numbers import normals
from transformer_book.live.one_byte import pack, unpack, weights_script
from transformer_lib.core.config import TransformerConfig
from transformer_lib.generation.generate import generate
from transformer_lib.layers.attention import MultiHeadAttention
from transformer_lib.layers.norms import layer_norm, rms_norm
from transformer_lib.layers.positions import rope_angles, rotate, sinusoidal
from transformer_lib.models.language_models import CausalLM, Seq2SeqLM
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.text.tokenizers import BPETokenizer, CharTokenizer

NASTY = [
    "", "To be", "für ß ẞ ö", "  two  spaces\n\n\tx ", "e\u0301 5 € 🙂👍🏽", "<eos><pad>",
    "\x00\x1c\x7f\xad\xa0", "I'll we've 'S 's don't", "a  the  the", "½ Ⅷ 12³ 一二",
    "a_b __ c-d…", "\u3000 \u2028x\ufeff\x85y", "%41 100% \\x41",
]  # fmt: skip


def with_browser_weights(folder: Path) -> nn.Module:
    """The PyTorch model with the weights that a browser has."""
    model = load_model(folder)
    tensors = unpack(*pack(folder)).items()
    model.load_state_dict({name: torch.tensor(one) for name, one in tensors}, strict=False)
    return model


@torch.no_grad()
def watched(model: nn.Module, *ids: list[int]) -> dict[str, Any]:
    """A model's logits, attention weights and what its sublayers wrote, for one example."""
    maps, stream = [], []
    look_up = MultiHeadAttention.look_up

    def recorded(self: MultiHeadAttention, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        found, weights = look_up(self, *given, **named)
        maps.append(weights[0].tolist())
        return found, weights

    def note(module: nn.Module, given: Any, said: Tensor) -> None:
        stream.append(said[0].flatten().tolist())

    kinds = ("attention", "cross_attention", "feed_forward", "embedding")
    noted = [part for name, part in model.named_modules() if name.split(".")[-1] in kinds]
    hooks = [part.register_forward_hook(note) for part in noted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiHeadAttention, "look_up", recorded)
        patch.setattr(MultiHeadAttention, "fused", False)
        logits = model(*(torch.tensor([one]) for one in ids))[0]
    for hook in hooks:
        hook.remove()
    return {"logits": logits.flatten().tolist(), "maps": maps, "updates": stream}


def tiny_models() -> Iterator[nn.Module]:
    """Untrained models with the saved ones' parts, in which every number matters."""
    sizes: dict[str, Any] = {"n_layers": 2, "n_heads": 2, "max_len": 9, "dropout": 0.0}
    yield CausalLM(
        TransformerConfig(
            vocab_size=259, d_model=16, d_ff=13, position="rope", rope_theta=20.0, norm="rms",
            norm_position="pre", norm_eps=0.3, activation="swiglu", bias=False,
            scale_embeddings=False, **sizes,
        )
    )  # fmt: skip
    yield Seq2SeqLM(TransformerConfig(vocab_size=261, d_model=8, d_ff=14, norm_eps=0.2, **sizes))


def spread(model: nn.Module) -> None:
    """Weights far from zero and one another, so that no part can hide."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + noise / 2 if "norm.weight" in name else noise / 2


ASKED = """(() => {
  const { tensor, text } = Live, all = true, keep = true;
  const one = Live.model.read("CausalLM"), two = Live.model.read("Seq2SeqLM");
  const written = ({ stream }) => stream.map(({ x, update }) => update ?? x);
  const cache = one.cache(), bpe = text.bytePairs(MERGES);
  const first = one.run([70, 71, 72], cache, { all, keep });
  const causal = one.run([70, 71, 72, 200, 71, 9], undefined, { all, keep });
  const source = two.encode([5, 260, 7, 8], { keep });
  const memory = two.cache(source);
  const translated = two.run([1, 50, 260, 50], two.cache(source), { all, keep });
  return {
    logits: causal.logits, maps: causal.attention, updates: written(causal),
    first: first.logits, later: one.run([200, 71], cache).logits, last: one.run([9], cache).logits,
    lens: one.logits(causal.stream[4].x), greedy: one.greedy([70, 71], 5),
    target: translated.logits, source_maps: source.attention,
    target_maps: translated.attention, cross_maps: translated.cross_attention,
    source_updates: written(source), target_updates: written(translated),
    steps: [1, 50, 260, 50].map((id) => two.run([id], memory).logits),
    stopped: one.greedy([70, 71], 5, { stop: one.greedy([70, 71], 5)[3] }),
    said: two.translate("aß"),
    softmax: [[1000, 1001, -Infinity], [-Infinity], [0.5, -1, 2]].map(tensor.softmax),
    product: tensor.matmul([1, 2, 3, 4, 5, 6], [1, 0, 2, 1, 0, 3], 2, 3, 2),
    layer: tensor.layerNorm([1, 2, 4, 0, 0, 1e-3], [1, 2, 3], [0, 1, 0]),
    rms: tensor.rmsNorm([3, 4], [1, 2]), sines: tensor.sinusoid(3, 6),
    turned: tensor.rotate([1, 2, 3, 4], 2), drawn: tensor.normals(7, 5),
    spelled: NASTY.map(text.characters({ learned: ["ü", "🙂"] }).encode),
    cut: [0, 7, 99].map((n) => NASTY.map((line) => bpe.encode(line, n))),
    read: BROKEN.map(text.characters().decode), named: bpe.tokens,
  };
})()"""


def merges() -> list[tuple[int, int]]:
    text = "the 🙂 of für für don't don't  12 12 the the\n\n\n" * 3
    return BPETokenizer.train([text], vocab_size=259 + 40).learned


def broken_ids() -> list[list[int]]:
    """What a model may write that is no text: pieces of characters in any order."""
    random = Random(0)
    tokenizer = CharTokenizer()
    often = bytes.fromhex("c3e0edf0f4809fa0bf908f41c1f5e2")
    ids = {byte: 3 + n for n, (byte,) in enumerate(tokenizer._tokens[3:])}
    rows = [[ids[random.choice(often)] for _ in range(9)] for _ in range(150)]
    return [*rows, [1, *tokenizer.encode("für"), 2, 0]]


def answers_of_models(one: nn.Module, two: nn.Module) -> dict[str, Any]:
    assert isinstance(one, CausalLM)
    assert isinstance(two, Seq2SeqLM)
    causal = watched(one, [70, 71, 72, 200, 71, 9])
    both = watched(two, [5, 260, 7, 8], [1, 50, 260, 50])
    rows = np.array(causal["logits"]).reshape(6, 259).tolist()
    updates, maps = both["updates"], both["maps"]
    greedy = generate(one, torch.tensor([[70, 71]]), max_new_tokens=5)[0, 2:].tolist()
    stream = np.sum(causal["updates"][:5], axis=0).reshape(1, 6, 16)  # after the second block
    with torch.no_grad():
        lens = one.output(one.decoder.stack.final_norm(torch.tensor(stream)))
        source = torch.tensor([two_tokenizer().encode("aß")])
    said = generate(two, torch.tensor([[1]]), source=source, max_new_tokens=9, eos_id=2, pad_id=0)
    return {
        **causal, "first": causal["logits"][: 3 * 259], "later": rows[4], "last": rows[5],
        "lens": lens.flatten().tolist(), "greedy": greedy,
        "stopped": greedy[: greedy.index(greedy[3])],
        "target": both["logits"], "steps": np.array(both["logits"]).reshape(4, 261).tolist(),
        "source_maps": maps[:2], "target_maps": maps[2::2], "cross_maps": maps[3::2],
        "source_updates": updates[:5], "target_updates": updates[5:],
        "said": two_tokenizer().decode(said[0].tolist()),
    }  # fmt: skip


def two_tokenizer() -> CharTokenizer:
    return CharTokenizer(["ü", "ß"])


def answers_of_functions() -> dict[str, Any]:
    def numbers(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    bpe = merges()
    at = torch.tensor([2])
    spelled = CharTokenizer(["ü", "🙂"])
    small, large = numbers(0.5, -1, 2).softmax(0), numbers(1000, 1001).softmax(0)
    return {
        "softmax": [[*large.tolist(), 0], [0], small.tolist()],
        "product": [5.0, 11.0, 14.0, 23.0],
        "layer": layer_norm(
            numbers(1, 2, 4, 0, 0, 1e-3).view(2, 3), numbers(1, 2, 3), numbers(0, 1, 0)
        ).flatten().tolist(),
        "rms": rms_norm(numbers(3, 4), numbers(1, 2)).tolist(),
        "sines": sinusoidal(torch.tensor([3]), 6)[0].tolist(),
        "turned": rotate(numbers(1, 2, 3, 4)[None], rope_angles(at, 4))[0].tolist(),
        "drawn": normals(7, 5).tolist(),
        "spelled": [spelled.encode(text) for text in NASTY],
        "cut": [[BPETokenizer(bpe[:n]).encode(text) for text in NASTY] for n in (0, 7, 99)],
        "read": [CharTokenizer().decode(ids) for ids in broken_ids()],
        "named": BPETokenizer(bpe).tokens,
    }  # fmt: skip


def prepare(folder: Path) -> tuple[str, dict[str, Any]]:
    """A script with what ASKED needs, and what the library answers."""
    script = f"var NASTY = {json.dumps(NASTY)}, MERGES = {json.dumps(merges())};"
    script += f"var BROKEN = {json.dumps(broken_ids())};"
    models = []
    for model, learned in zip(tiny_models(), ([], ["ü", "ß"]), strict=True):
        spread(model)
        name = type(model).__name__
        save_model(model, folder / name, tokenizer=CharTokenizer(learned))
        models.append(with_browser_weights(folder / name).double())
        script += weights_script(name, folder)
    return script, {**answers_of_models(*models), **answers_of_functions()}


def trouble(tiny: tuple[str, dict[str, Any]], scripts: dict[str, str] | None = None) -> str:
    """Where JavaScript and the library differ; nothing if nowhere."""
    script, expected = tiny
    try:
        fresh = engine(scripts=scripts)
        fresh.run(script)
        return difference(fresh.eval(ASKED), expected)
    except JSEvalException as error:
        return str(error)
