"""The book's own tools: pictures, exercises that diagnose, and a catalogue of mistakes."""
