"""Tiny models for the tests of properties and routes: random in every parameter, in float64."""

import torch
from hypothesis import strategies as st

from transformer_lib.core.config import TransformerConfig

VOCAB = 11
SIZES = {
    "vocab_size": VOCAB,
    "max_len": 24,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 12,
    "n_layers": 2,
    "dropout": 0.3,  # on purpose: eval mode must switch it off
    "attention_dropout": 0.3,
    "tie_embeddings": False,
}
LLAMA = {
    "position": "rope",
    "n_kv_heads": 2,
    "norm": "rms",
    "norm_position": "pre",
    "activation": "swiglu",
    "bias": False,
}
CHOICES = {
    "position": ("sinusoidal", "learned", "rope", "alibi", "t5", "none"),
    "rope_pairing": ("interleaved", "split"),
    "n_kv_heads": (None, 2, 1),
    "norm": ("layer", "rms"),
    "norm_position": ("pre", "post"),
    "activation": ("relu", "gelu", "gelu_tanh", "swiglu", "geglu", "geglu_tanh"),
    "n_experts": (None, None, 3),
    "window": (None, None, 3),
    "bias": (True, False),
    "norm_embeddings": (False, True),
}


def tiny(**choices):
    """A configuration that is tiny unless said otherwise."""
    return TransformerConfig(**SIZES | choices)


def tiny_configs(**fixed):
    """Every combination of the configuration's choices, with some of them fixed."""
    free = {name: st.sampled_from(options) for name, options in CHOICES.items()}
    return st.fixed_dictionaries(free | {k: st.just(v) for k, v in fixed.items()}).map(
        lambda choices: tiny(**choices)
    )


def make(build, *args, seed=0, **kwargs):
    """Build a module in eval mode whose parameters are all random.

    As they are first drawn, gains are 1 and biases 0, which would hide what they do.
    """
    torch.manual_seed(seed)
    module = build(*args, **kwargs).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def random_ids(*shape, seed=0, low=1):
    """Token ids; 0 is left to padding."""
    return torch.randint(low, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def random_like(x, seed=0):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def attentions(model):
    """Every attention layer of a model."""
    return [module for module in model.modules() if hasattr(module, "fused")]


def real_tokens(lengths, n, side):
    """Where the real tokens of a padded batch stand, ``(B, T)``."""
    place = torch.arange(n)
    lengths = torch.as_tensor(lengths)[:, None]
    return place < lengths if side == "right" else place >= n - lengths


def positions_of(real):
    """The place of each real token, counted without the padding; pads get 0."""
    return (real.cumsum(dim=1) - 1).clamp(min=0)
