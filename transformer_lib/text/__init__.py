"""Text to ids and back: tokenizers, ours and published ones, streams of text, chat templates."""
