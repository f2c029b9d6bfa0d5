"""Changes of a reference that make no wrong answer, each with the reason."""

SURVIVORS: dict[str, list[str]] = {}
