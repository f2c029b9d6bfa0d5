"""The notebook machinery: execute, guard, compare, stamp.

A chapter is a notebook with stored outputs. Two lines of defence keep those outputs true:

1. `run` executes a notebook and seals it: the metadata entry `executed` holds a digest of each code
   cell's source and outputs, with the versions and the date. `check` needs no kernel. It recomputes
   the digests and looks for everything that must not be in a stored notebook (`guard`).
2. `compare` executes the notebook again, lets nbval compare the outputs, and closes what nbval
   leaves open with a pytest plugin (`nbval_guard`): cells without execution count, pictures
   (`svg`), order of outputs, tracebacks, exceptions that no longer come. It trusts no digest.

The file `verified.json` beside the notebooks (`record`) holds two floors for each chapter: the
number of cells with output that are compared, and their share of all cells with output, the
verified-cell ratio. `check` and `compare` fail below either. `run` raises the floors by itself. It
lowers the count only with `--accept-fewer`, for a chapter that was shortened on purpose, and never
the ratio: to excuse a cell from the comparison, a person lists it with a reason under `skips` and
edits the chapter's ratio, and both show in the review.

Cells are numbered by their place among all cells of the notebook, from 1.
"""
