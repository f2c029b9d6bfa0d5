"""Small, readable, tested Transformer parts: the library of The Executable Transformer."""
