"""One file a family of checkpoints: its settings, its tensors, what is particular to it."""
