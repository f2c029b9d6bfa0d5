"""The book as one PDF: the built pages joined in reading order, and printed by Chromium.

:mod:`.contents` reads the order, :mod:`.article` prepares one page for paper, :mod:`.join` makes
one document of all of them, :mod:`.printing` prints it, :mod:`.polish` has the last touch, and
:mod:`.offer` links to it.
"""
