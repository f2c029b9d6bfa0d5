"""What the stills of several live figures draw with."""


def stroke(d: str, colour: str, *, width: float = 1, dash: str = "none", opacity: float = 1) -> str:
    """Write a line that is not filled, as SVG.

    Args:
        d: its path.
        colour: of the line.
        width: of the line.
        dash: the lengths of dashes and gaps.
        opacity: from 0 to 1.

    Returns:
        A path element.

    Example:
        >>> stroke("M0 0h9", "red")[:40]
        '<path d="M0 0h9" fill="none" stroke="red'
    """
    return (
        f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-dasharray="{dash}" opacity="{opacity}"/>'
    )
