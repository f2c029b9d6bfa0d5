"""How fast the library is beside others: `python -m bench`.

Competitors run in one process and take turns, so that whatever slows the machine down slows all of
them down. What is compared are medians. `peers` builds the competitors from the same weights,
`cases` and `suites` say what is measured, `races` measures it, and `report` tells the result.
"""
