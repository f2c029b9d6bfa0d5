"""What a chat template may use up, counted before it is spent.

A unit is about ten nanoseconds of work, or ten bytes: a character, or a place in a list. An object,
a look-up or a pass through a loop is ``ITEM`` units. So nothing depends on how fast or how
busy a machine is.
"""

import sys
from collections.abc import Mapping, Set, ValuesView

WORK = 5_000_000  # units that every template may use: less than a second, and below 100 MB
PER_UNIT_GIVEN = 200  # units for each one that the messages weigh: long ones may take longer
ITEM = 10
SPELLED = 10  # characters that one may become in the text of a list, such as \U0010ffff
MAX_DEPTH = 100  # of lists in lists: C code that walks deeper can end the process


class Budget:
    """What is left to a template.

    Args:
        given: what the template is given, plain data.

    Attributes:
        left: the units that are left.

    Example:
        >>> budget = Budget(given="Hello")
        >>> budget.left
        5003000
        >>> budget.use(5_000_000)
        >>> budget.use(10_000)
        Traceback (most recent call last):
        OverflowError: it does or makes more than 5,003,000 units of work allow
    """

    def __init__(self, given: object) -> None:
        self.left = self._whole = sys.maxsize
        self.left = self._whole = WORK + PER_UNIT_GIVEN * self.weigh(given)

    def use(self, units: int) -> None:
        """Take units away.

        Args:
            units: how many; below 0 they are none, so that nothing can be won back.

        Raises:
            OverflowError: if there are not so many.
        """
        self.left -= max(units, 0)
        if self.left < 0:
            raise OverflowError(f"it does or makes more than {self._whole:,} units of work allow")

    def weigh(self, value: object) -> int:
        """Take as many units as it costs to go through a value, with all that is in it.

        Args:
            value: any value. A list that holds another one twice is walked twice, as it is by
                Python, which may never come to an end.

        Returns:
            The units.

        Raises:
            OverflowError: if there are not so many.
            RecursionError: if lists are nested too deep.
        """
        return self.measure(value)[0]

    def measure(self, value: object) -> tuple[int, int]:
        """Do what :meth:`weigh` does; return also how deep the value is nested."""
        before, level, depth = self.left, [value], 0
        self.use(ITEM)
        while level:
            if depth > MAX_DEPTH:
                raise RecursionError(f"it goes through what is nested more than {MAX_DEPTH} deep")
            below: list[object] = []
            for one in level:
                if isinstance(one, str | bytes):
                    self.use(len(one))
                elif isinstance(one, int):
                    self.use(one.bit_length() // 64)
                elif isinstance(one, range):
                    self.use(ITEM * len(one))
                elif isinstance(one, Mapping):
                    self.use(2 * ITEM * len(one))
                    below += [*one.keys(), *one.values()]
                elif isinstance(one, list | tuple | Set | ValuesView):
                    self.use(ITEM * len(one))
                    below += one
            level, depth = below, depth + 1
        return before - self.left, depth

    def spell(self, value: object) -> int:
        """Take as many units as it costs to write a value as text.

        Args:
            value: any value.

        Returns:
            The units; at least the length of the text.
        """
        units = self.weigh(value)
        if not isinstance(value, str):
            self.use(SPELLED * units)
            units += SPELLED * units
        return units
