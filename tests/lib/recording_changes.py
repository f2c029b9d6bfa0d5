"""What may happen to a model between two calls or two tokens, unseen by a recording."""

import torch
from torch import nn
from torch.nn.utils import prune

from transformer_lib.core.config import TransformerConfig
from transformer_lib.models.language_models import CausalLM

PROMPT = torch.tensor([[3, 5, 7], [2, 4, 6]])


def lively_model(kind=CausalLM, **changes):
    """A small model that does not write the same token for ever, as most fresh ones do."""
    sizes = {"vocab_size": 50, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_len": 60}
    torch.manual_seed(1)
    model = kind(TransformerConfig(**{**sizes, "tie_embeddings": False, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter).mul_(0.5 if parameter.ndim == 2 else 0.1))
    return model


def a_step_of_training(model):
    model.train()
    ids = torch.arange(6, device=next(model.parameters()).device)[None]
    model(ids).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def new_weights(model):
    model.load_state_dict({name: -x for name, x in other(model).items()})


def new_weights_elsewhere(model):
    model.load_state_dict({name: -x for name, x in other(model).items()}, assign=True)


def a_new_parameter(model):
    layer = model.decoder.stack.blocks[0].feed_forward.down
    layer.weight = nn.Parameter(-3 * layer.weight.detach())


def a_new_layer(model):
    network = model.decoder.stack.blocks[0].feed_forward
    old = network.down
    network.down = nn.Linear(old.in_features, old.out_features).to(old.weight)
    with torch.no_grad():
        network.down.weight.copy_(-3 * old.weight)


def a_hook(model):
    model.decoder.stack.blocks[0].register_forward_hook(lambda _module, _inputs, out: -3 * out)


def a_pruned_layer(model):
    for block in model.decoder.stack.blocks:
        prune.l1_unstructured(block.attention.value, "weight", 0.9)
        prune.l1_unstructured(block.feed_forward.down, "weight", 0.9)


def a_replaced_forward(model):
    old = model.output.forward
    model.output.forward = lambda x: -old(x)


def other_numbers(model):
    model.double()
    with torch.no_grad():
        model.decoder.embedding.tokens.weight.mul_(-2)


def another_setting(model):
    for block in model.decoder.stack.blocks:
        block.attention.scale = 5.0


def another_activation(model):
    for block in model.decoder.stack.blocks:
        block.feed_forward.activation = torch.cos


def other(model):
    """Other weights for the same model."""
    torch.manual_seed(7)
    twin = CausalLM(model.config).to(next(model.parameters()))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return twin.state_dict()


BETWEEN_CALLS = [
    a_step_of_training, new_weights, new_weights_elsewhere, a_new_parameter, a_new_layer, a_hook,
    a_pruned_layer, a_replaced_forward, other_numbers, another_setting, another_activation,
]  # fmt: skip
# Keys of other numbers do not fit into a cache, and a setting is not looked at for every token.
BETWEEN_TOKENS = [x for x in BETWEEN_CALLS if x not in (other_numbers, another_setting)]
