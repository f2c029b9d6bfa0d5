"""How the live figures write numbers, in Python as in JavaScript."""

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 2) -> str:
    """Write a number with a true minus sign, and zero without one.

    Args:
        value: the number.
        digits: after the point.

    Returns:
        The same text as ``Live.part.number`` gives.

    Example:
        >>> number(-1.5), number(-0.001), number(2, 0)
        ('−1.50', '0.00', '2')
    """
    text = f"{round_half_up(abs(value), digits):.{digits}f}"
    return f"−{text}" if value < 0 and float(text) != 0 else text


def round_half_up(value: float, digits: int) -> float:
    """Round as JavaScript's ``toFixed`` does, which sends ties of the exact value upwards.

    Args:
        value: a number that is not negative.
        digits: after the point.

    Returns:
        The rounded number.

    Example:
        >>> round_half_up(0.125, 2), round_half_up(2.5, 0)
        (0.13, 3.0)
    """
    scale = int(10**digits)
    below = math.floor(value * scale)
    exact = value.as_integer_ratio() if isinstance(value, float) else (value, 1)
    is_up = 2 * (exact[0] * scale - below * exact[1]) >= exact[1]
    return (below + is_up) / scale


def short(x: float) -> str:
    """Write a number with three digits, far ones as a power of ten.

    Args:
        x: a number that is not negative.

    Returns:
        The text.

    Example:
        >>> [short(x).replace(chr(160), " ") for x in (0.5, 3375, 0.5**100, 0)]
        ['0.500', '3375', '7.89 × 10⁻³¹', '0']
    """
    if x == 0:
        return "0"
    x *= 1 + 1e-9  # so that a tie is rounded up, here and in JavaScript
    digits, exponent = f"{x:.2e}".split("e")
    power = int(exponent)
    if -4 < power < 4:
        return f"{x:.{max(0, 2 - power)}f}"
    return f"{digits}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10{str(power).translate(RAISED)}"


_SIGNS = {" ": "␣", "\n": "⏎", "<bos>": "▷", "<eos>": "■"}
_NAMES = {" ": "the space", "\n": "the line break", "<bos>": "the start", "<eos>": "the end"}


def sign(token: str) -> str:
    """Write a token of a model of letters as one sign; a byte of a letter has a square.

    Args:
        token: as the tokenizer names it.

    Returns:
        The same sign as ``Live.part.sign`` gives.

    Example:
        >>> sign("a"), sign(" "), sign("<pad>")
        ('a', '␣', '▫')
    """
    return _SIGNS.get(token, token if len(token) == 1 else "▫")


def named(token: str) -> str:
    """Say which token it is.

    Args:
        token: as the tokenizer names it.

    Returns:
        The same words as ``Live.part.named`` gives.

    Example:
        >>> named("a"), named(" ")
        ('“a”', 'the space')
    """
    return _NAMES.get(token, f"“{token}”" if len(token) == 1 else "a byte")


def percent(share: float) -> str:
    """Write a probability.

    Args:
        share: from 0 to 1.

    Returns:
        The same text as ``Live.part.percent`` gives.

    Example:
        >>> percent(0.123), percent(0.999)
        ('12%', '>99%')
    """
    return ">99%" if share > 0.995 else f"{number(100 * share, 0)}%"
