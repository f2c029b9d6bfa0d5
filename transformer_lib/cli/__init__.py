"""The command line: train, generate, chat, translate, trace, presets."""
