"""Language models, classifiers, and one that reads images."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from transformer_lib.core.checks import check_choice, check_whole
from transformer_lib.core.config import TransformerConfig
from transformer_lib.layers.attention import AttentionPattern
from transformer_lib.layers.build_parts import STANDARD_PARTS, Parts
from transformer_lib.layers.caches.kv_cache import KeyValueCache
from transformer_lib.layers.embeddings import Embedding, PatchEmbedding
from transformer_lib.layers.feedforward import ACTIVATIONS
from transformer_lib.layers.positions import AddedPositions
from transformer_lib.models.blocks import Stack, next_positions
from transformer_lib.models.encoder_decoder import Decoder, Encoder, EncoderDecoder
from transformer_lib.models.initialisation import initialise
from transformer_lib.models.padding import hide_padding

Pooling = Literal["cls", "mean"]


class CausalLM(nn.Module):
    """A decoder alone that predicts the next token (GPT, LLaMA).

    Args:
        config: the model's configuration.
        parts: how attention, networks and norms are made.

    Example:
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> model = CausalLM(config).eval()
        >>> model(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])

    A row says the same in a batch, whatever stands beside it and on whatever side:

        >>> batch = torch.tensor([[0, 0, 7], [5, 7, 9]])
        >>> together = model(batch, real=batch != 0)
        >>> alone = model(torch.tensor([[7]]))
        >>> torch.allclose(together[0, 2], alone[0, 0], atol=1e-5)
        True
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts = STANDARD_PARTS) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.decoder = Decoder(config, parts=parts)
        self.output = OutputLayer(config, self.decoder.embedding.tokens)
        _keep_tied(self)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        *,
        positions: Int[Tensor, "#B T"] | None = None,
        cache: KeyValueCache | None = None,
        real: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Score every token of the vocabulary as the next one, at each position.

        Args:
            ids: token ids, ``(B, T)``.
            mask: what hides padding among the keys, those in the cache included; broadcastable to
                ``(B, H, T, S)``. Without a cache, a pattern may take its place:
                :class:`~transformer_lib.layers.fast.flexible_pattern.FlexPattern`.
            positions: the place of each token; counted on from the cache if left out. With padding
                at the start they must not count it: ``real`` sees to that.
            cache: keys and values of earlier tokens; those of ``ids`` are added to it.
            real: where real tokens stand among the keys, those in the cache included, ``(B, S)``:
                hides all others, and numbers the positions without them.

        Returns:
            Logits, ``(B, T, V)``. What stands at padding depends on the size of the batch: no loss
            may read it.
        """
        x = self.decoder(ids, mask=mask, positions=positions, cache=cache, real=real)
        logits: Tensor = self.output(x)
        return logits


class Seq2SeqLM(nn.Module):
    """The whole Transformer of 2017: from a source sequence to the next target token (T5 too).

    Args:
        config: the model's configuration, the same for encoder and decoder.
        parts: how attention, networks and norms are made.

    Example:
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> model = Seq2SeqLM(config)
        >>> model(torch.tensor([[5, 7, 9]]), torch.tensor([[1, 2]])).shape
        torch.Size([1, 2, 100])
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts = STANDARD_PARTS) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.body = EncoderDecoder(config, parts=parts)
        self.output = OutputLayer(config, self.body.decoder.embedding.tokens)
        _keep_tied(self)

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        source_mask: Bool[Tensor, "..."] | None = None,
        target_mask: Bool[Tensor, "..."] | None = None,
        *,
        source_real: Bool[Tensor, "B S"] | None = None,
        target_real: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Score every token of the vocabulary as the next one, at each target position.

        Args:
            source: token ids, ``(B, S)``.
            target: token ids, ``(B, T)``, the correct answer shifted right (teacher forcing).
            source_mask: what hides padding in the source, ``(B, 1, 1, S)``.
            target_mask: what hides padding in the target, broadcastable to ``(B, H, T, T)``.
            source_real: where real tokens stand in the source, ``(B, S)``: hides all others, and
                numbers the positions without them.
            target_real: the same for the target, ``(B, T)``.

        Returns:
            Logits, ``(B, T, V)``.
        """
        x = self.body(
            source, target, source_mask, target_mask,
            source_real=source_real, target_real=target_real,
        )  # fmt: skip
        logits: Tensor = self.output(x)
        return logits


class MaskedLM(nn.Module):
    """An encoder that guesses the tokens that were hidden from it (BERT).

    Args:
        config: the model's configuration.
        parts: how attention, networks and norms are made.

    Example:
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> MaskedLM(config)(torch.tensor([[5, 7, 9]])).shape
        torch.Size([1, 3, 100])
    """

    def __init__(self, config: TransformerConfig, *, parts: Parts = STANDARD_PARTS) -> None:
        super().__init__()
        self.config, self.parts = config, parts
        self.encoder = Encoder(config, parts=parts)
        # BERT puts one more layer between the encoder and the output, with the same activation.
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.activation, _ = ACTIVATIONS[config.activation]
        self.norm = parts.norm(config)
        initialise(self.transform, config)
        self.output = OutputLayer(config, self.encoder.embedding.tokens, bias=True)
        _keep_tied(self)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "..."] | AttentionPattern | None = None,
        *,
        segments: Int[Tensor, "B T"] | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Score every token of the vocabulary at each position.

        Args:
            ids: token ids, ``(B, T)``, some of them replaced by a mask token.
            mask: what hides padding, broadcastable to ``(B, H, T, T)``; or a pattern.
            segments: the segment of each token, ``(B, T)``.
            real: where real tokens stand, ``(B, T)``: hides all others, which are padding, and
                numbers the positions without them, on whatever side they stand.

        Returns:
            Logits, ``(B, T, V)``. What stands at padding depends on the size of the batch: no loss
            may read it.
        """
        x = self.encoder(ids, mask, segments=segments, real=real)
        x = self.norm(self.activation(self.transform(x)))
        logits: Tensor = self.output(x)
        return logits


class SequenceClassifier(nn.Module):
    """An encoder that says to which class a whole sequence belongs.

    Args:
        config: the model's configuration.
        n_classes: the number of classes; 0 leaves the last layer out, and the forward pass returns
            the sequence's vector.
        pooling: ``"cls"`` takes the first token's vector through one more layer (BERT; so no
            padding may come first), ``"mean"`` the mean over the real tokens.
        parts: how attention, networks and norms are made.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> config = TransformerConfig(
        ...     vocab_size=100, d_model=8, n_heads=2, n_layers=2
        ... )
        >>> SequenceClassifier(config, n_classes=3)(
        ...     torch.tensor([[5, 7, 9]])
        ... ).shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        config: TransformerConfig,
        n_classes: int,
        pooling: Pooling = "cls",
        *,
        parts: Parts = STANDARD_PARTS,
    ) -> None:
        super().__init__()
        check_whole("n_classes", n_classes, least=0)
        check_choice("pooling", pooling, ("cls", "mean"))
        self.config, self.parts = config, parts
        self.encoder = Encoder(config, parts=parts)
        self.pooler = nn.Linear(config.d_model, config.d_model) if pooling == "cls" else None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, n_classes) if n_classes else None
        for layer in (self.pooler, self.classifier):
            if layer is not None:
                initialise(layer, config)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "..."] | None = None,
        *,
        segments: Int[Tensor, "B T"] | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B n_classes"]:
        """Score the classes, or return the sequence's vector if there are none.

        Args:
            ids: token ids, ``(B, T)``.
            mask: what hides padding, ``(B, 1, 1, T)``.
            segments: the segment of each token, ``(B, T)``.
            real: where real tokens stand, ``(B, T)``: hides all others, which are padding, and
                numbers the positions without them, on whatever side they stand.

        Returns:
            Logits ``(B, n_classes)``, or vectors ``(B, D)`` if ``n_classes`` is 0.

        Raises:
            ValueError: if the mask is not one for padding and the mean is asked for, or if padding
                comes first and the first token's vector is.
        """
        x = self.encoder(ids, mask, segments=segments, real=real)
        if self.pooler is None:
            pooled = mean_over_tokens(x, hide_padding("real", real, mask, list(ids.shape)))
        else:
            _check_first(real)
            pooled = torch.tanh(self.pooler(x[:, 0]))  # (B, D)
        if self.classifier is None:
            return pooled
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class VisionTransformer(nn.Module):
    """An encoder that reads an image as a sequence of patches and classifies it (ViT).

    Args:
        config: the model's configuration; what concerns token embeddings is not used, and
            ``max_len`` must be the number of patches and one more for the class token.
        image_size: height and width of the images.
        patch_size: height and width of a patch; must divide ``image_size``.
        n_channels: the number of colour channels.
        n_classes: the number of classes.
        parts: how attention, networks and norms are made.

    Raises:
        ValueError: if the sizes do not fit together.

    Example:
        >>> config = TransformerConfig(
        ...     d_model=8, n_heads=2, n_layers=2, max_len=5
        ... )
        >>> model = VisionTransformer(config, 8, 4, n_channels=1, n_classes=10)
        >>> model(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        config: TransformerConfig,
        image_size: int,
        patch_size: int,
        n_channels: int = 3,
        n_classes: int = 1000,
        *,
        parts: Parts = STANDARD_PARTS,
    ) -> None:
        super().__init__()
        check_whole("n_classes", n_classes)
        self.config, self.parts = config, parts
        self.patches = PatchEmbedding(image_size, patch_size, n_channels, config.d_model)
        n_patches = self.patches.n_patches
        if config.max_len != n_patches + 1:
            wanted = f"{n_patches + 1}: {n_patches} patches and the class token"
            raise ValueError(f"max_len={config.max_len} must be {wanted}")
        self.class_token = nn.Parameter(torch.zeros(config.d_model))
        self.positions = AddedPositions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.stack = Stack(config, causal=False, parts=parts)
        self.classifier = nn.Linear(config.d_model, n_classes)
        initialise(self, config)

    def forward(self, images: Float[Tensor, "B C height width"]) -> Float[Tensor, "B n_classes"]:
        """Score the classes of each image.

        Args:
            images: ``(B, C, height, width)``.

        Returns:
            Logits, ``(B, n_classes)``.
        """
        patches = self.patches(images)  # (B, n_patches, D)
        first = self.class_token.expand(len(images), 1, -1)
        x = torch.cat((first, patches), dim=1)  # (B, T, D)
        positions = next_positions(x)
        x = self.stack(self.dropout(self.positions(x, positions)), positions=positions)
        logits: Tensor = self.classifier(x[:, 0])
        return logits


class OutputLayer(nn.Module):
    """From vectors to a score for every token of the vocabulary.

    Args:
        config: the model's configuration.
        tokens: the token embedding, whose weights are used again if ``tie_embeddings``.
        bias: whether each token has a learned constant too.

    Example:
        >>> config = TransformerConfig(vocab_size=100, d_model=8, n_heads=2)
        >>> tokens = nn.Embedding(100, 8)
        >>> OutputLayer(config, tokens).projection.weight is tokens.weight
        True
    """

    def __init__(
        self, config: TransformerConfig, tokens: nn.Embedding, *, bias: bool = False
    ) -> None:
        super().__init__()
        self.scale, self.cap = config.logit_scale, config.logit_cap
        self.projection = nn.Linear(config.d_model, config.vocab_size, bias=bias)
        initialise(self, config)
        if config.tie_embeddings:
            self.projection.weight = tokens.weight

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        """Return the logits ``(..., V)`` of vectors ``(..., D)``."""
        logits: Tensor = self.projection(self.scaled(x))
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def scaled(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Return the vectors as the projection reads them: times ``logit_scale``."""
        return x if self.scale == 1 else x * self.scale


def mean_over_tokens(
    x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 1 T"] | None = None
) -> Float[Tensor, "B D"]:
    """Take the mean of each sequence's vectors, padding left out.

    Args:
        x: one vector for each token, ``(B, T, D)``.
        mask: what hides padding, ``(B, 1, 1, T)``.

    Returns:
        One vector for each sequence, ``(B, D)``; zeros if it has no token.

    Raises:
        ValueError: if the mask has another shape.

    Example:
        >>> from transformer_lib import padding_mask
        >>> x = torch.tensor([[[1.0], [3.0], [99.0]]])
        >>> mean_over_tokens(x, padding_mask(torch.tensor([2]), 3))
        tensor([[2.]])
    """
    if mask is None:
        return x.mean(dim=1)
    if tuple(mask.shape) != (x.shape[0], 1, 1, x.shape[1]):
        wanted = f"a padding mask, (B, 1, 1, T) = ({x.shape[0]}, 1, 1, {x.shape[1]})"
        raise ValueError(f"mask has shape {tuple(mask.shape)}; expected {wanted}")
    real = mask[:, 0, 0, :, None]  # (B, T, 1)
    return x.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _check_first(real: Tensor | None) -> None:
    """Refuse padding where the first token's vector stands for the sequence; a GPU is not asked."""
    if real is None or real.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if not real[:, 0].all():
        raise ValueError("real has padding first, where pooling='cls' reads; pad on the right")


def _keep_tied(model: CausalLM | Seq2SeqLM | MaskedLM) -> None:
    """Tie the output layer again whenever a state dict was loaded."""
    # PyTorch gives this method no types. Through the class, mypy lets it be called all the same.
    nn.Module.register_load_state_dict_post_hook(model, _tie_again)


def _tie_again(model: CausalLM | Seq2SeqLM | MaskedLM, loaded: _IncompatibleKeys) -> None:
    """Make one table again of two that were cut apart, once a state dict has filled them alike.

    ``to_empty`` and ``load_state_dict(assign=True)`` give each name a tensor of its own. Two that
    differ were untied or replaced on purpose, and stay apart.
    """
    parts = [(path, part) for path, part in model.named_modules() if isinstance(part, Embedding)]
    layer = getattr(model.output, "projection", None)
    if not (model.config.tie_embeddings and parts and isinstance(layer, nn.Linear)):
        return
    path, embedding = parts[0]
    ours, shared = layer.weight, embedding.tokens.weight
    if ours is shared or "weight" not in layer._parameters or ours.shape != shared.shape:
        return

    def is_missing(name: str) -> bool:  # it may begin with the name of a wrapper
        return any(each.endswith(name) for each in loaded.missing_keys)

    stored_once = is_missing("output.projection.weight") and not is_missing(f"{path}.tokens.weight")
    if stored_once or (ours.device == shared.device and torch.equal(ours, shared)):
        layer.weight = shared
