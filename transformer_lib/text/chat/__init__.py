"""Chat templates: messages become one text, in a sandbox with a budget."""
