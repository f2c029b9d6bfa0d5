"""The book's own tools: pictures, exercises that diagnose, and a catalogue of mistakes."""

from transformer_lib.moved import tell_moved_modules

tell_moved_modules()
