"""Changes of a reference that make no wrong answer, each with the reason."""

SURVIVORS: dict[str, list[str]] = {    # The last end is 1 but for rounding.
    "lab4.choose": ["missing scale: u * ends[-1]"],
}
