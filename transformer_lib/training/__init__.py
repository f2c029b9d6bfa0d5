"""How a model learns: data, losses, recipes, the loop, checkpoints of a run, several processes."""
