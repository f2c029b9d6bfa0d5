"""The book's own tools: pictures, exercises that diagnose, and a catalogue of mistakes."""

from transformer_lib.moved import tell_moved_modules

_FIGURES = (
    "diagrams", "landscapes", "panels", "pictures", "plot_data", "plot_style", "plots", "sketches",
)  # fmt: skip

tell_moved_modules(
    {f"transformer_book.{name}": f"transformer_book.figures.{name}" for name in _FIGURES}
)
