"""Which layers have a window, as ``config.json`` says it."""

from transformer_lib.core.config import TransformerConfig
from transformer_lib.hugging_face.family import Settings

_LETTERS = {"sliding_attention": "L", "full_attention": "G"}


def read_pattern(settings: Settings) -> str:
    """Read ``layer_types``.

    Args:
        settings: the content of ``config.json``.

    Returns:
        The shortest pattern that, over and over, says the same.

    Raises:
        ValueError: if there is another kind of layer, or another number of them.

    Example:
        >>> read_pattern(
        ...     {"layer_types": ["sliding_attention", "full_attention"] * 13}
        ... )
        'LG'
    """
    types = settings.get("layer_types")
    if not isinstance(types, list) or not types or not set(types) <= _LETTERS.keys():
        raise ValueError(
            f"config.json has layer_types={types!r}; expected a list of {list(_LETTERS)}"
        )
    n_layers = settings.get("num_hidden_layers")
    if n_layers is not None and len(types) != n_layers:
        raise ValueError(
            f"config.json has {len(types)} layer_types; expected num_hidden_layers={n_layers}"
        )
    letters = "".join(_LETTERS[kind] for kind in types)
    for length in range(1, len(letters) + 1):
        pattern = letters[:length]
        if (pattern * len(letters))[: len(letters)] == letters:
            return pattern
    return letters


def layer_types(config: TransformerConfig) -> list[str]:
    """Name the kind of each layer.

    Args:
        config: the configuration of a model.

    Returns:
        What ``layer_types`` must say.

    Example:
        >>> layer_types(
        ...     TransformerConfig(n_layers=3, window=8, window_pattern="LG")
        ... )
        ['sliding_attention', 'full_attention', 'sliding_attention']
    """
    kinds = ("full_attention", "sliding_attention")
    return [kinds[config.is_local(layer)] for layer in range(config.n_layers)]
