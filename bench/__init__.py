"""How fast the library is beside others: `python -m bench`.

Competitors run in one process and take turns, so that whatever slows the machine down slows all of
them down. What is compared are medians, and first calls are told beside them. `peers` builds the
competitors from the same weights; `training`, `generation`, `long_contexts`, `encoding` and
`grouped` say what is measured, `suites` with which sizes; `races` measures it, and `report` tells
the result.
"""
