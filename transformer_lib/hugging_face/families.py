"""All families of checkpoints, by the ``model_type`` of their ``config.json``."""

from transformer_lib.hugging_face.bert import BERT
from transformer_lib.hugging_face.gpt2 import GPT2
from transformer_lib.hugging_face.llama import LLAMA
from transformer_lib.hugging_face.t5 import T5
from transformer_lib.hugging_face.vit import VIT

FAMILIES = {family.model_type: family for family in (BERT, GPT2, LLAMA, T5, VIT)}
