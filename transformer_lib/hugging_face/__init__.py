"""Checkpoints of others: read and written as Hugging Face does.

Each family of checkpoints has a file of its own in ``families``, with one
:class:`~transformer_lib.hugging_face.family.Family`: the keys of its ``config.json``, the names of
its tensors, and what else is particular to it. All of it is used in both directions, to read a
checkpoint and to write one. To add a family, write such a file and name it in ``family_list.py``.
"""
