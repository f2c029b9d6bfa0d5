"""Batches of examples: padded, packed, shuffled, resumed."""

IGNORE = -100  # a target that is not counted
