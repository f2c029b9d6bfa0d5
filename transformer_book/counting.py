"""Parameters, FLOPs and bytes by arithmetic alone.

A Transformer is a list of matrices and a few tables. Each matrix of ``inputs × outputs`` holds that
many parameters and costs ``2 × inputs × outputs`` operations for each vector it multiplies. What
remains are the two products inside attention, which have no parameters.
"""

from typing import Literal, NamedTuple, get_args

from transformer_lib import ACTIVATIONS, TransformerConfig, check_choice, check_whole

Kind = Literal[
    "encoder", "decoder", "encoder-decoder", "masked-lm", "classifier", "mean-classifier", "vision"
]
T5_BUCKETS = 32


class _Matrix(NamedTuple):
    """A learned matrix, how many the model has of it, and how many of those a vector meets."""

    part: str
    inputs: int
    outputs: int
    bias: bool
    vectors: int
    copies: int = 1
    used: int = 1


def parameter_count(
    config: TransformerConfig, kind: Kind, *, n_classes: int = 0, patch_numbers: int = 768
) -> dict[str, int]:
    """Count the learned numbers of a model, part by part.

    Args:
        config: the model's configuration.
        kind: ``"encoder"`` (the class ``Encoder``), ``"decoder"`` (``CausalLM``),
            ``"encoder-decoder"`` (``Seq2SeqLM``), ``"masked-lm"`` (``MaskedLM``), ``"classifier"``
            and ``"mean-classifier"`` (``SequenceClassifier`` by its first token and by the mean of
            all), or ``"vision"`` (``VisionTransformer``).
        n_classes: of a classifier or a vision model; 0 means no last layer.
        patch_numbers: channels × height × width of a vision model's patch.

    Returns:
        The count of each part that the model has, summed over its blocks, and ``"total"``.

    Raises:
        ValueError: if there is no such kind, or a number is too small.

    Example:
        >>> from transformer_lib import PRESETS
        >>> for part, count in parameter_count(
        ...     PRESETS["gpt2"].config, "decoder"
        ... ).items():
        ...     print(f"{part:12} {count:11,}")
        tokens        38,597,376
        positions        786,432
        norms             38,400
        attention     28,348,416
        feed-forward  56,669,184
        total        124,439,808
    """
    matrices = _matrices(config, kind, n_classes, patch_numbers)
    counts = [(m.part, m.copies * (m.inputs + m.bias) * m.outputs) for m in matrices]
    return _summed(_tables(config, kind) + counts)


def active_parameters(
    config: TransformerConfig, kind: Kind, *, n_classes: int = 0, patch_numbers: int = 768
) -> int:
    """Count the parameters that one token uses: of a mixture's experts, only those picked for it.

    Args:
        config: the model's configuration.
        kind: as in :func:`parameter_count`.
        n_classes: as in :func:`parameter_count`.
        patch_numbers: as in :func:`parameter_count`.

    Returns:
        The number; without experts, that of all parameters.

    Example:
        >>> config = TransformerConfig(n_experts=8, active_experts=2)
        >>> (
        ...     parameter_count(config, "decoder")["total"],
        ...     active_parameters(config, "decoder"),
        ... )
        (126070784, 50481152)
    """
    counts = parameter_count(config, kind, n_classes=n_classes, patch_numbers=patch_numbers)
    n_experts, active = _experts(config)
    return counts["total"] - counts["feed-forward"] // n_experts * (n_experts - active)


def forward_flops(
    config: TransformerConfig,
    kind: Kind,
    batch: int,
    length: int,
    source_length: int | None = None,
    *,
    n_classes: int = 0,
    patch_numbers: int = 768,
) -> dict[str, int]:
    """Count the floating-point operations of one forward pass, part by part.

    Only matrix products are counted, a multiplication and an addition as two, as PyTorch's own
    counter does. Norms, softmax, activations and lookups are left out: they cost time, because
    they read and write memory, but few operations.

    Args:
        config: the model's configuration.
        kind: as in :func:`parameter_count`.
        batch: B, the number of sequences.
        length: T, the number of positions; for vision, the class token included.
        source_length: S, for an encoder-decoder; the same as ``length`` if left out.
        n_classes: as in :func:`parameter_count`.
        patch_numbers: as in :func:`parameter_count`.

    Returns:
        The operations of each part that the model has, summed over its blocks, and ``"total"``.

    Raises:
        ValueError: if there is no such kind or a number is not positive.

    Example:
        >>> sizes = {
        ...     "vocab_size": 100,
        ...     "d_model": 8,
        ...     "n_heads": 2,
        ...     "n_layers": 1,
        ... }
        >>> config = TransformerConfig(**sizes)
        >>> found = forward_flops(config, "decoder", batch=1, length=3)
        >>> for part, flops in found.items():
        ...     print(f"{part:13} {flops:>5}")
        scores          144
        weighted sums   144
        attention      1536
        feed-forward   3072
        output         4800
        total          9696
    """
    source_length = length if source_length is None else source_length
    for name, value in (("batch", batch), ("length", length), ("source_length", source_length)):
        check_whole(name, value)
    pairs = length**2  # of a query and a key
    if kind == "encoder-decoder":
        pairs += source_length**2 + length * source_length
    product = config.n_layers * 2 * batch * pairs * config.n_heads * config.d_head
    sizes = (batch, batch * length, batch * source_length)
    matrices = _matrices(config, kind, n_classes, patch_numbers, *sizes)
    flops = [(m.part, 2 * m.vectors * m.used * m.inputs * m.outputs) for m in matrices]
    return _summed([("scores", product), ("weighted sums", product), *flops])


def training_flops(forward: int) -> int:
    """Return the operations of a training step, from those of its forward pass.

    For each product ``x W`` of the forward pass the backward pass computes two of the same size:
    the gradients of ``x`` and of ``W``. (A vision model spends a little less: images need none.)

    Args:
        forward: the operations of the forward pass, from :func:`forward_flops`.

    Returns:
        Three times as many.

    Example:
        >>> training_flops(9696)
        29088
    """
    return 3 * forward


def six_n_d(parameters: int, tokens: int) -> int:
    """Estimate the operations of training by the rule ``6 N D``: six for each weight and token.

    Two forwards and four backwards. The rule leaves out the products inside attention, which grow
    with the square of the length.

    Args:
        parameters: N, the number of weights that multiply each token: a table that is only looked
            up in does not count.
        tokens: D, the number of tokens trained on.

    Returns:
        The estimate.

    Example:
        >>> gpt3 = six_n_d(175_000_000_000, 300_000_000_000)
        >>> f"{gpt3:.2e}"  # its paper says 3.14e23
        '3.15e+23'
    """
    return 6 * parameters * tokens


def attention_matrix_bytes(
    config: TransformerConfig,
    batch: int,
    n_queries: int,
    n_keys: int | None = None,
    bytes_per_number: int = 2,
) -> int:
    """Return the memory that one layer's attention weights take: ``B H T S`` numbers.

    The readable path writes a matrix of this size several times (scores, mask, softmax); training
    keeps it for every layer. The fused path never stores it.

    Args:
        config: the model's configuration.
        batch: B, the number of sequences.
        n_queries: T, the number of query positions.
        n_keys: S, the number of key positions; the same as ``n_queries`` if left out.
        bytes_per_number: 2 for bfloat16, 4 for float32.

    Returns:
        The number of bytes.

    Raises:
        ValueError: if a number is too small.

    Example:
        >>> config = TransformerConfig(d_model=8192, n_heads=64)
        >>> f"{attention_matrix_bytes(config, 1, 8192) / 2**30} GiB"
        '8.0 GiB'
    """
    n_keys = n_queries if n_keys is None else n_keys
    sizes = {"batch": batch, "n_queries": n_queries, "n_keys": n_keys}
    for name, size in (sizes | {"bytes_per_number": bytes_per_number}).items():
        check_whole(name, size)
    return batch * config.n_heads * n_queries * n_keys * bytes_per_number


def kv_cache_bytes(
    config: TransformerConfig,
    batch: int,
    length: int,
    bytes_per_number: int = 2,
    *,
    source_length: int = 0,
) -> int:
    """Return the memory of a decoder's cache: a key and a value in each layer for each position.

    Args:
        config: the model's configuration.
        batch: B, the number of sequences.
        length: for how many positions there is room.
        bytes_per_number: 2 for bfloat16, 4 for float32.
        source_length: S, what cross-attention keeps of the source in an encoder-decoder.

    Returns:
        The number of bytes.

    Raises:
        ValueError: if a number is too small.

    Example:
        >>> config = TransformerConfig(
        ...     d_model=8192, n_heads=64, n_kv_heads=8, n_layers=80
        ... )
        >>> # LLaMA-3 70B, for each token
        >>> kv_cache_bytes(config, batch=1, length=1)
        327680
        >>> f"{kv_cache_bytes(config, batch=1, length=8192) / 2**30} GiB"
        '2.5 GiB'
    """
    for name, size in (("batch", batch), ("bytes_per_number", bytes_per_number)):
        check_whole(name, size)
    for name, size in (("length", length), ("source_length", source_length)):
        check_whole(name, size, least=0)
    numbers = batch * (length + source_length) * config.kv_heads * config.d_head
    return 2 * config.n_layers * numbers * bytes_per_number


def _matrices(
    config: TransformerConfig, kind: Kind, n_classes: int, patch_numbers: int, *sizes: int
) -> list[_Matrix]:
    """List a model's matrices; each is met by all target or source vectors, or one a sequence.

    The sizes are the numbers of sequences, target vectors and source vectors, if they matter.
    """
    check_choice("kind", kind, get_args(Kind))
    check_whole("n_classes", n_classes, least=0)
    check_whole("patch_numbers", patch_numbers)
    batch, target, source = sizes or (0, 0, 0)
    d, f, kv = config.d_model, config.ffn_width, config.kv_heads * config.d_head
    q, qkv_bias = config.n_heads * config.d_head, config.bias
    if config.qkv_bias is not None:
        qkv_bias = config.qkv_bias
    bias, layers, cross = config.bias, config.n_layers, kind == "encoder-decoder"
    wide = 2 if ACTIVATIONS[config.activation][1] else 1  # a gate is one more matrix of D × F
    experts, active = (layers * n for n in _experts(config))
    found = []
    for vectors in (source, target) if cross else (target,):
        found += [
            _Matrix("attention", d, q + 2 * kv, qkv_bias, vectors, layers, layers),
            _Matrix("attention", q, d, bias, vectors, layers, layers),
            _Matrix("router", d, config.n_experts or 0, False, vectors, layers, layers),
            _Matrix("feed-forward", d, wide * f, bias, vectors, experts, active),
            _Matrix("feed-forward", f, d, bias, vectors, experts, active),
        ]
    if cross:  # queries and outputs for the target, keys and values for the source
        found.append(_Matrix("cross-attention", d, q, qkv_bias, target, layers, layers))
        found.append(_Matrix("cross-attention", d, 2 * kv, qkv_bias, source, layers, layers))
        found.append(_Matrix("cross-attention", q, d, bias, target, layers, layers))
    if kind == "vision":  # one vector of each sequence is the class token, not a patch
        found.append(_Matrix("patches", patch_numbers, d, True, target - batch))
    if kind == "classifier":
        found.append(_Matrix("pooler", d, d, True, batch))
    if kind == "masked-lm":
        found.append(_Matrix("transform", d, d, True, target))
    if kind in ("classifier", "mean-classifier", "vision"):
        found.append(_Matrix("classes", d, n_classes, True, batch))
    elif kind != "encoder":
        own = 0 if config.tie_embeddings else 1
        found.append(_Matrix("output", d, config.vocab_size, False, target, own))
    return found


def _tables(config: TransformerConfig, kind: Kind) -> list[tuple[str, int]]:
    """List what a model has learned besides matrices: what is looked up, added, or a gain."""
    d, vision, masked = config.d_model, kind == "vision", kind == "masked-lm"
    decoders = config.n_layers if kind == "encoder-decoder" else 0  # blocks with cross-attention
    stacks = 2 if decoders else 1
    sublayers = 2 * stacks * config.n_layers + decoders
    norms = sublayers * (1 + (config.norm_position == "both")) + masked
    norms += stacks * ((config.norm_position != "post") + (config.norm_embeddings and not vision))
    gains = norms * d + (stacks * config.n_layers + decoders) * _query_key_gains(config)
    n_tables = 0 if vision else 1 if config.tie_embeddings else stacks
    return [
        ("tokens", config.vocab_size * d * n_tables),
        ("class token", d * vision),
        ("positions", stacks * config.max_len * d * (config.position == "learned")),
        ("segments", stacks * config.n_segments * d * (not vision)),
        ("relative bias", stacks * T5_BUCKETS * config.n_heads * (config.position == "t5")),
        ("norms", gains * (1 + (config.norm == "layer" and config.bias))),
        ("output bias", config.vocab_size * masked),
    ]


def _query_key_gains(config: TransformerConfig) -> int:
    """How many weights the norms of queries and keys have in one attention."""
    heads = {"none": 0, "head": 2, "all": config.n_heads + config.kv_heads}
    return heads[config.qk_norm] * config.d_head


def _experts(config: TransformerConfig) -> tuple[int, int]:
    """How many feed-forward networks a block has, and how many of them a token is sent to."""
    return (1, 1) if config.n_experts is None else (config.n_experts, config.active_experts)


def _summed(parts: list[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part, count in parts:
        if count:
            total[part] = total.get(part, 0) + count
    return {**total, "total": sum(total.values())}
