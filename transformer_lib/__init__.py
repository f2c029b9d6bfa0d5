"""Small, readable, tested Transformer parts: the library of The Executable Transformer.

The main names can be imported from here, all others from their modules. A name is looked up when
it is first used, so ``import transformer_lib`` takes next to no time.

Example:
    >>> import transformer_lib
    >>> transformer_lib.CausalLM.__module__
    'transformer_lib.models'
"""

from importlib import import_module
from typing import TYPE_CHECKING

from transformer_lib.moved import MOVED, tell_moved_modules

if TYPE_CHECKING:  # what editors and type checkers read; a test holds it equal to _MODULES
    from transformer_lib.attention import AttentionHead as AttentionHead
    from transformer_lib.attention import MultiHeadAttention as MultiHeadAttention
    from transformer_lib.beams import beam_search as beam_search
    from transformer_lib.blocks import Block as Block
    from transformer_lib.blocks import Stack as Stack
    from transformer_lib.cache import KeyValueCache as KeyValueCache
    from transformer_lib.compiled import CompiledDecoder as CompiledDecoder
    from transformer_lib.config import TransformerConfig as TransformerConfig
    from transformer_lib.data import IGNORE as IGNORE
    from transformer_lib.data import Batches as Batches
    from transformer_lib.data import TextWindows as TextWindows
    from transformer_lib.encoder_decoder import Decoder as Decoder
    from transformer_lib.encoder_decoder import Encoder as Encoder
    from transformer_lib.encoder_decoder import EncoderDecoder as EncoderDecoder
    from transformer_lib.feedforward import FeedForward as FeedForward
    from transformer_lib.feedforward import MixtureOfExperts as MixtureOfExperts
    from transformer_lib.generation import generate as generate
    from transformer_lib.generation import stream as stream
    from transformer_lib.losses import Objective as Objective
    from transformer_lib.masks import causal_mask as causal_mask
    from transformer_lib.masks import padding_mask as padding_mask
    from transformer_lib.models import CausalLM as CausalLM
    from transformer_lib.models import MaskedLM as MaskedLM
    from transformer_lib.models import Seq2SeqLM as Seq2SeqLM
    from transformer_lib.models import SequenceClassifier as SequenceClassifier
    from transformer_lib.models import VisionTransformer as VisionTransformer
    from transformer_lib.norms import LayerNorm as LayerNorm
    from transformer_lib.norms import RMSNorm as RMSNorm
    from transformer_lib.parts import Parts as Parts
    from transformer_lib.presets import PRESETS as PRESETS
    from transformer_lib.presets import build_preset as build_preset
    from transformer_lib.pretrained import load_pretrained as load_pretrained
    from transformer_lib.pretrained import save_pretrained as save_pretrained
    from transformer_lib.recipes import Recipe as Recipe
    from transformer_lib.saving import load_model as load_model
    from transformer_lib.saving import save_model as save_model
    from transformer_lib.static_cache import StaticCache as StaticCache
    from transformer_lib.tokenizers import BPETokenizer as BPETokenizer
    from transformer_lib.tokenizers import CharTokenizer as CharTokenizer
    from transformer_lib.tokenizers import WordPieceTokenizer as WordPieceTokenizer
    from transformer_lib.tokenizers import WordTokenizer as WordTokenizer
    from transformer_lib.tracing import trace as trace
    from transformer_lib.training import evaluate as evaluate
    from transformer_lib.training import train as train

__version__ = "1.0.0"  # written here only: pyproject.toml reads it, tests compare CITATION.cff

# Where each name that can be imported from here is defined.
_MODULES = {
    "AttentionHead": "attention",
    "MultiHeadAttention": "attention",
    "Block": "blocks",
    "Stack": "blocks",
    "KeyValueCache": "cache",
    "Parts": "parts",
    "StaticCache": "static_cache",
    "TransformerConfig": "config",
    "IGNORE": "data",
    "Batches": "data",
    "TextWindows": "data",
    "CompiledDecoder": "compiled",
    "Decoder": "encoder_decoder",
    "Encoder": "encoder_decoder",
    "EncoderDecoder": "encoder_decoder",
    "FeedForward": "feedforward",
    "MixtureOfExperts": "feedforward",
    "beam_search": "beams",
    "generate": "generation",
    "stream": "generation",
    "Objective": "losses",
    "causal_mask": "masks",
    "padding_mask": "masks",
    "CausalLM": "models",
    "MaskedLM": "models",
    "Seq2SeqLM": "models",
    "SequenceClassifier": "models",
    "VisionTransformer": "models",
    "LayerNorm": "norms",
    "RMSNorm": "norms",
    "PRESETS": "presets",
    "build_preset": "presets",
    "load_pretrained": "pretrained",
    "save_pretrained": "pretrained",
    "Recipe": "recipes",
    "load_model": "saving",
    "save_model": "saving",
    "BPETokenizer": "tokenizers",
    "CharTokenizer": "tokenizers",
    "WordPieceTokenizer": "tokenizers",
    "WordTokenizer": "tokenizers",
    "trace": "tracing",
    "evaluate": "training",
    "train": "training",
}

__all__ = list(_MODULES)

tell_moved_modules(MOVED)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(f"transformer_lib.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'transformer_lib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
