"""All families of checkpoints, by the ``model_type`` of their ``config.json``."""

from transformer_lib.hugging_face.bert import BERT
from transformer_lib.hugging_face.gemma import GEMMA2, GEMMA3
from transformer_lib.hugging_face.gpt2 import GPT2
from transformer_lib.hugging_face.llama import LLAMA, MISTRAL
from transformer_lib.hugging_face.olmo import OLMO2
from transformer_lib.hugging_face.qwen import QWEN2, QWEN3
from transformer_lib.hugging_face.t5 import T5
from transformer_lib.hugging_face.vit import VIT

_ALL = (BERT, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, OLMO2, T5, VIT)
FAMILIES = {family.model_type: family for family in _ALL}
