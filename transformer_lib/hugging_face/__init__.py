"""What Hugging Face calls the parts of our models.

Each family of checkpoints has a file of its own here, with one
:class:`~transformer_lib.hugging_face.family.Family`: the keys of its ``config.json``, the names of
its tensors, and what else is particular to it. All of it is used in both directions, to read a
checkpoint and to write one. To add a family, write such a file and name it in ``families.py``.
"""

from transformer_lib.hugging_face.families import FAMILIES as FAMILIES
from transformer_lib.hugging_face.family import Family as Family
from transformer_lib.hugging_face.layouts import Layout as Layout
from transformer_lib.hugging_face.layouts import Model as Model
