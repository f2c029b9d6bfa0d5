"""The command line: train, generate, chat, translate, trace.

Begin with `generate`, which uses a model that comes with the book; then `train` your own. Neither
needs an option. Each command has its own --help, with examples that work as they stand in a clone
of the repository.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import getdoc
from typing import NoReturn

import transformer_lib
from transformer_lib.cli.options import COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. What a user did wrong is said in one line, and the status is 2.

    Args:
        arguments: what follows ``python -m transformer_lib``; that of this process if left out.

    Returns:
        0; 130 after Ctrl-C; 141 if the output is not read to its end, as in ``... | head``.

    Raises:
        SystemExit: with status 2 for bad arguments, with 0 after ``--help`` and ``--version``.

    Example:
        >>> main(["trace", "gpt2"])  # doctest: +ELLIPSIS
        CausalLM: 305 steps with B=1 T=8 H=12 D=768 ...
        0
    """
    given = _make_parser().parse_args(arguments)
    try:
        _run(given)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # what is left in the buffer must go somewhere when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _run(given: argparse.Namespace) -> None:
    """Run the command; PyTorch is imported only now, since that takes seconds."""
    from torch import OutOfMemoryError  # noqa: PLC0415

    command = getattr(import_module(f"transformer_lib.cli.{given.module}"), given.command)
    try:
        command(given)
    except BrokenPipeError:
        raise
    except (ValueError, OSError, ImportError, ArithmeticError, OutOfMemoryError) as error:
        given.parser.error(" ".join(str(error).split("\n")))


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows descriptions as they were written, and defaults that the help does not put in words."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said = "(default" in (action.help or "")
        nothing = action.default is None or action.default is False
        return action.help if said or nothing else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help says more)\n")


def _make_parser() -> _Parser:
    parser = _Parser("python -m transformer_lib", description=__doc__, formatter_class=_Help)
    version = f"transformer_lib {transformer_lib.__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, (module, add_options) in COMMANDS.items():
        text = (getdoc(add_options) or "").split("\n\nArgs:")[0]
        added = commands.add_parser(name, help=text.split("\n")[0], formatter_class=_Help)
        added.description = text
        added.set_defaults(module=module, parser=added)
        add_options(added)
    return parser


if __name__ == "__main__":  # `-m transformer_lib.cli.main` would do nothing, without a word
    raise SystemExit(main())
