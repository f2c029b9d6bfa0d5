"""What ``config.json`` says of RoPE, in all its spellings."""

import math

from transformer_lib.core.config import RopeScaling, TransformerConfig
from transformer_lib.hugging_face.family import Settings, check_setting, number_setting

# Their kinds of scaling, and ours; and of each, the keys that it must have and those that it may.
_KINDS = {"linear": "linear", "dynamic": "ntk", "yarn": "yarn", "llama3": "llama3"}
_TRAINED = "original_max_position_embeddings"
_NEEDED = {
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", _TRAINED},
}
_YARN = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
_MAY_BE = {"linear": set(), "dynamic": set(), "yarn": {_TRAINED, *_YARN}, "llama3": set()}
_ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_THETA = 10_000.0  # what transformers takes where no place names a base


def one_rope_spelling(settings: Settings) -> Settings:
    """Say in ``rope_theta`` and ``rope_scaling`` what newer files say in ``rope_parameters``.

    Args:
        settings: the content of ``config.json``.

    Returns:
        The settings; ``rope_scaling`` is ``None`` where nothing is scaled. If both are there,
        ``rope_scaling`` takes the place of all that the other one says, as in ``transformers``.

    Raises:
        ValueError: if two places contradict each other, or a scaling is not known.

    Example:
        >>> new = {
        ...     "rope_parameters": {
        ...         "rope_type": "default",
        ...         "rope_theta": 500_000.0,
        ...     }
        ... }
        >>> one_rope_spelling(new)["rope_theta"]
        500000.0
    """
    rope = _one_place(settings)
    theta = rope.get("rope_theta", settings.get("rope_theta"))
    check_setting("partial_rotary_factor", rope.get("partial_rotary_factor"), None, 1.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        raise ValueError(
            f"config.json has type={rope['type']!r} beside rope_type={kind!r}; expected the same"
        )
    if kind == "default":
        scaling = None
        _check_keys(rope, kind, set(), set())
    elif kind in _KINDS:
        scaling = rope
        _check_keys(rope, kind, _NEEDED[kind], _MAY_BE[kind])
    else:
        known = ", ".join(map(repr, ("default", *_KINDS)))
        raise ValueError(f"config.json has rope_type={kind!r}; our models know {known}")
    settings = settings | {"rope_theta": theta, "rope_scaling": scaling}
    if kind == "dynamic":  # texts may be longer than the file says: that is what it is for
        longest, factor = settings.get("max_position_embeddings"), rope["factor"]
        if isinstance(longest, int) and isinstance(factor, int | float):  # else see RopeScaling
            settings["max_position_embeddings"] = int(longest * factor)
            settings["rope_scaling"] = rope | {_TRAINED: longest}
    return settings


def rope_object(settings: Settings, key: str) -> Settings:
    """Return what stands below a key, if it is an object.

    Args:
        settings: the content of ``config.json``, or an object in it.
        key: the key.

    Returns:
        The object; an empty one if there is none, or null.

    Raises:
        ValueError: if something else is there.

    Example:
        >>> rope_object({"rope_scaling": None}, "rope_scaling")
        {}
    """
    value = settings.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"config.json has {key}={value!r}; expected an object")
    return value


def _one_place(settings: Settings) -> Settings:
    """What is said of RoPE, in the place that counts."""
    scaling = rope_object(settings, "rope_scaling")
    parameters = rope_object(settings, "rope_parameters")
    if scaling and parameters:  # model cards tell to add the first, and newer files have the second
        theta = scaling.get("rope_theta", settings.get("rope_theta", _THETA))
        hidden = parameters.get("rope_theta", theta)
        if hidden != theta:
            raise ValueError(
                f"config.json has rope_theta={hidden!r} in rope_parameters, which does not count "
                f"beside rope_scaling: {theta!r} would; say all of it in rope_parameters"
            )
    return scaling or parameters


def _check_keys(rope: Settings, kind: str, needed: set[str], may_be: set[str]) -> None:
    given = {key for key, value in rope.items() if value is not None} - _ALWAYS
    if missing := needed - given:
        raise ValueError(f"config.json has rope_type={kind!r} without {min(missing)}")
    if unknown := given - needed - may_be:
        key = min(unknown)
        raise ValueError(
            f"config.json has {key}={rope[key]!r}, which is not known for rope_type={kind!r}"
        )


def rope_scaling(settings: Settings) -> RopeScaling | None:
    """Read how RoPE is scaled.

    Args:
        settings: the content of ``config.json``, as :func:`one_rope_spelling` left it.

    Returns:
        Our description; ``None`` if it is not scaled.

    Example:
        >>> rope_scaling(
        ...     {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
        ... ).factor
        8.0
    """
    rope = settings.get("rope_scaling")
    if not isinstance(rope, dict):
        return None
    kind = _KINDS[str(rope.get("rope_type", rope.get("type")))]
    values = {"kind": kind, "factor": rope["factor"]}
    if kind != "linear":
        values["trained_len"] = rope.get(_TRAINED, settings.get("max_position_embeddings"))
    if kind == "llama3":
        values["fast_turns"] = rope["high_freq_factor"]
        values["slow_turns"] = rope["low_freq_factor"]
    elif kind == "yarn":
        values["fast_turns"] = rope.get("beta_fast") or 32.0
        values["slow_turns"] = rope.get("beta_slow") or 1.0
        values["sharpness"] = _sharpness(rope)
        values["whole_pairs"] = rope.get("truncate") is not False  # null is as if it were not there
    return RopeScaling(**values)


def _sharpness(rope: Settings) -> float | None:
    """What queries and keys are multiplied by, if it is not what YaRN's paper says."""
    if rope.get("attention_factor") is not None:
        return number_setting(rope, "attention_factor")
    if not rope.get("mscale") or not rope.get("mscale_all_dim"):
        return None
    growth = 0.1 * math.log(number_setting(rope, "factor"))
    above, below = number_setting(rope, "mscale"), number_setting(rope, "mscale_all_dim")
    return (1 + above * growth) / (1 + below * growth)


def rope_settings(config: TransformerConfig) -> Settings:
    """Say what ``config.json`` must say of a scaling of RoPE.

    Args:
        config: the configuration of a model.

    Returns:
        What is to be written; without scaling, nothing that differs from other files.

    Example:
        >>> scaling = RopeScaling(kind="linear", factor=8.0)
        >>> config = TransformerConfig(position="rope", rope_scaling=scaling)
        >>> rope_settings(config)["rope_scaling"]
        {'rope_type': 'linear', 'factor': 8.0}
    """
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_scaling": None}
    theirs = {ours: name for name, ours in _KINDS.items()}[scaling.kind]
    rope: Settings = {"rope_type": theirs, "factor": scaling.factor}
    if scaling.kind == "ntk":
        return {"rope_scaling": rope, "max_position_embeddings": scaling.trained_len}
    if scaling.kind == "llama3":
        rope |= {"high_freq_factor": scaling.fast_turns, "low_freq_factor": scaling.slow_turns}
    elif scaling.kind == "yarn":
        rope |= {"beta_fast": scaling.fast_turns, "beta_slow": scaling.slow_turns}
        rope |= {"attention_factor": scaling.sharpness, "truncate": scaling.whole_pairs}
    if scaling.kind != "linear":
        rope[_TRAINED] = scaling.trained_len
    return {"rope_scaling": rope}
