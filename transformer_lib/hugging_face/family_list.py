"""All families of checkpoints, by the ``model_type`` of their ``config.json``."""

from transformer_lib.hugging_face.families.bert import BERT
from transformer_lib.hugging_face.families.gemma import GEMMA1, GEMMA2, GEMMA3
from transformer_lib.hugging_face.families.gpt2 import GPT2
from transformer_lib.hugging_face.families.llama import LLAMA, MISTRAL
from transformer_lib.hugging_face.families.mixtures import MIXTRAL, QWEN3_MOE
from transformer_lib.hugging_face.families.olmo import OLMO2
from transformer_lib.hugging_face.families.phi import PHI3
from transformer_lib.hugging_face.families.qwen import QWEN2, QWEN3
from transformer_lib.hugging_face.families.smollm import SMOLLM3
from transformer_lib.hugging_face.families.t5 import T5
from transformer_lib.hugging_face.families.vit import VIT

_ALL = (
    BERT, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA1, GEMMA2, GEMMA3, OLMO2, PHI3, SMOLLM3,
    MIXTRAL, QWEN3_MOE, T5, VIT,
)  # fmt: skip
FAMILIES = {family.model_type: family for family in _ALL}
