"""The experiments behind the trained models in the book: see book/results/README.md."""
