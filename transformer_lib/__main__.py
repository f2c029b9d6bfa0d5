"""Lets ``python -m transformer_lib`` work; see ``cli``."""

from transformer_lib.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
