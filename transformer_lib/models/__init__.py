"""Whole models: blocks, encoder and decoder, language models, presets, models on disk."""
