"""What pyproject.toml cannot say: the book's files are installed, and nothing is left behind."""

import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BOOK = Path("book")
# What the command line and ``transformer_book`` read: in a clone from here, else from the package.
INSTALLED = (
    "data/*", "results/*/card.json", "results/*/*.csv", "results/numbers/*", "results/drafts/*",
    "_static/book.css", "_static/live/*",
)  # fmt: skip


class BuildWithBook(build_py):
    """Copies the book's files into the package, so that there is only one of each to look after."""

    def run(self) -> None:
        """Copy the modules, then the book's files; an editable package reads those in the clone."""
        super().run()
        if not self.editable_mode:
            for path in book_files():
                target = Path(self.build_lib, "transformer_lib", path)
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))

    def get_source_files(self) -> list[str]:
        """Name all files that a source archive must have to be built from."""
        return [*super().get_source_files(), *map(str, book_files())]


def book_files() -> list[Path]:
    """List the files that are installed; it is an error if a pattern finds none."""
    found = {pattern: sorted(BOOK.glob(pattern)) for pattern in INSTALLED}
    if missing := [pattern for pattern, paths in found.items() if not paths]:
        raise FileNotFoundError(f"{BOOK} has no {missing}; build in a clone of the repository")
    paths = {path for some in found.values() for path in some if not path.name.startswith(".")}
    return sorted(paths)


with tempfile.TemporaryDirectory() as folder:  # instead of build/ and *.egg-info in the clone
    setup(
        cmdclass={"build_py": BuildWithBook},
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )
