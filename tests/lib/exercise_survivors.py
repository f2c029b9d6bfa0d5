"""Changes of a reference that make no wrong answer, each with the reason."""

SURVIVORS: dict[str, list[str]] = {
    # The task leaves open who owns the borders, and a random number does not hit one.
    "families.masked": [
        "other comparison: fate < 0.8",
        "other comparison: fate >= 0.8",
        "other comparison: fate < 0.9",
    ],
}
