"""Watch a model at work: its steps and shapes, attention maps, hidden states, influence."""
