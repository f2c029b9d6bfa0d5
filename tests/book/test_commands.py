"""Every command that README and CONTRIBUTING name is run by some test, or it says why none can."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
from omissions import differences, fail_on
from safetensors.torch import load_file, save_file

from tools.fresh_env import copy_repository
from tools.seconds import Row, write

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md")
PROGRAMS = {
    *("make", "python", "pip", "pytest", "ruff", "mypy", "pre-commit", "jupyter", "torchrun"),
    *("git", "uv", "conda", "docker", "npm", "sudo", "apt", "apt-get", "brew", "wsl", "curl"),
}

# Which test runs a command that is no part of `make test`. An asterisk stands for anything. Of make
# the recipe's own commands count, unless the command itself stands here.
TESTS = {
    "tests/book/test_commands.py": {
        "test_help_lists_every_command": ["make help"],
        "test_clean_removes_what_was_made_and_nothing_else": ["make clean"],
        "test_a_quick_check_finds_what_a_change_breaks": ["make quick", "make quick FILE=*"],
        "test_a_command_does_what_it_says": [
            *("make learner", "make seconds", 'python -m tools.notebooks new 22_new --title "*"'),
        ],
        "test_a_command_mends_what_is_damaged": [
            *("python -m tools.documents", "python -m tools.live_definitions"),
            *("python -m tools.rename_tensors", "ruff format book/05_masks.ipynb"),
        ],
        "test_the_traces_that_a_recipe_shows_are_there": ["git grep *"],
        "test_without_a_gpu_its_tests_are_not_said_to_pass": ["make test-cuda"],
    },
    "tests/book/test_budgets.py": {
        "test_check_prints_a_line_for_each_page_and_fails_above_a_budget": [
            "python -m tools.notebooks check --table"
        ],
        "test_the_budgets_command_refuses_to_raise": ["python -m tools.notebooks budgets"],
    },
    "tests/book/test_minutes.py": {
        "test_the_command_writes_what_check_asks_for": ["python -m tools.notebooks minutes*"],
    },
    "tests/book/test_chapters.py": {
        "test_the_command_writes_the_table_and_nothing_else": ["python -m tools.chapters"],
    },
    "tests/book/test_gather.py": {
        "test_the_command_writes_it": ["python -m tools.notebooks file"],
    },
    "tests/book/test_installed.py": {
        "test_every_command_and_the_books_data_work_without_a_clone": [
            *("pip install .", "python -m transformer_lib *"),
        ],
        "test_what_the_readme_installs_in_addition_is_there": ['pip install ".[text]"'],
    },
    "tests/book/test_notebooks.py": {
        "test_run_stores_outputs_in_normal_form": ["python -m tools.notebooks run*"],
        "test_run_does_not_lower_the_record_unless_told": [
            "python -m tools.notebooks run --accept-fewer *"
        ],
    },
    "tests/book/test_owes.py": {
        "test_of_the_real_book": ["python -m tools.notebooks owes 05_masks"],
    },
    "tests/book/test_quick.py": {
        "test_pages_are_called_by_number_name_or_path": ["make quick NB=*"],
    },
    "tests/book/test_replay.py": {"test_the_command_says_what_differs": ["python -m tools.replay"]},
    "tests/book/test_seconds.py": {"test_every_test_is_measured": ["python -m pytest *"]},
    "tests/book/test_site.py": {
        "test_the_built_site_is_served_until_ctrl_c": ["python -m tools.site serve"],
    },
    "tests/browser/test_live.py": {
        "test_the_bench_prints_a_time_for_each_screen": ["python -m bench.live"],
    },
    "tests/browser/test_pdf.py": {
        "test_readers_find_it_on_the_front_page_and_in_the_menu_of_a_chapter": [
            "python -m tools.pdf"
        ],
    },
    "tests/book/test_windows.py": {
        "test_it_installs_what_is_missing_and_runs_the_steps": [
            *("python make.py book", "python make.py test"),
        ],
    },
    "tests/lib/test_bench.py": {"test_the_whole_cpu_suite": ["python -m bench"]},
    "tests/lib/test_cli.py": {
        "test_messages_are_answered_with_all_before_in_view": ["python -m transformer_lib chat *"],
    },
    "tests/lib/test_datasets.py": {
        "test_made_again_they_have_the_same_bytes": ["python -m tools.build_data --check"],
    },
}
# What no test runs as it stands there, and why.
NOT_RUN = {
    "make env*": "downloads for minutes; every run of CI begins with it",
    "python -m tools.install *": "downloads; every run of CI does it, for `make env`",
    "python -m jupyterlab *": "JupyterLab would be downloaded: no test needs it",
    "python -m tools.fresh_env": "downloads for minutes; weekly.yml does it",
    "python -m tools.cover": "needs the site of these sources, and replaces README's picture",
    "python -m pip install pre-commit": "downloads",
    "pre-commit install": "is not among the tests' packages",
    "git status": "is git's own",
    "mypy --strict": "`make lint` runs mypy, and pyproject.toml makes it strict",
    "wsl --install": "needs Windows",
    "sudo apt install *": "changes the machine",
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# --- what is named, and what it runs ------------------------------------------------------------


def plain(command: str) -> str:
    """A command on one line, without a comment, the environment's folder and the stopwatch."""
    words = " ".join(re.sub(r"\s# .*", "", command).replace(".venv/bin/", "").split())
    return re.sub(r"^python -m tools\.seconds run \S+ ", "", words)


def commands_in(text: str) -> set[str]:
    """The commands of a document: lines of its shell blocks, and code that begins with a program.

    >>> sorted(
    ...     commands_in(
    ...         "Run `make\\n  book` or `make`.\\n```bash\\ncd x  # y\\n```\\n"
    ...     )
    ... )
    ['cd x', 'make book']
    """
    blocks = [block for language, block in FENCE.findall(text) if language == "bash"]
    lines = [plain(line) for block in blocks for line in block.splitlines()]
    spans = [plain(span) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    named = [span for span in spans if span.split(" ")[0] in PROGRAMS and " " in span]
    return {command for command in [*lines, *named] if command}


def targets() -> list[str]:
    """The targets that `make help` lists."""
    return re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def surroundings() -> dict[str, str]:
    """The environment without what the make around these tests tells its own children."""
    return {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}


@cache
def runs(command: str) -> tuple[str, ...]:
    """What a command runs: of make, what it says itself that it would, where all is installed."""
    if not command.startswith("make "):
        return (command,)
    installed = [f"--assume-old=.venv/{mark}" for mark in (".ready", ".site-ready")]
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--no-print-directory", *installed],
        cwd=ROOT,
        env=surroundings(),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.replace("\\\n", " ").splitlines()
    own = [line for line in lines if not re.match(r"(?:\S*/)?make\b", line)]  # what it says itself
    return tuple(map(plain, own)) or (command,)


def form_of(command: str, forms: Iterable[str]) -> str:
    """The closest form that a command has; in a form, an asterisk stands for anything."""

    def has(form: str) -> bool:
        return re.fullmatch(".*".join(map(re.escape, form.split("*"))), command) is not None

    return max(filter(has, forms), key=len, default="")


def needed(command: str, forms: Collection[str]) -> list[str]:
    """The entries that a command needs: for itself, or for what it runs beyond `make test`."""
    if form := form_of(command, forms):
        return [form]
    left = [line for line in runs(command) if line not in runs("make test")]
    return [form_of(line, forms) or line for line in left]


def command_problems(commands: Collection[str], forms: Collection[str]) -> list[str]:
    """Which commands no test runs, and which entries stand for none."""
    wanted = {form: command for command in commands for form in needed(command, forms)}
    return differences(
        forms,
        wanted,
        lacks=lambda line: (
            f"{wanted[line]!r} runs {line!r}, and no test does: write one and enter it in TESTS in "
            "tests/book/test_commands.py, or say in NOT_RUN why none can"
        ),
        extra=lambda form: f"tests/book/test_commands.py: nothing names {form!r}: take it out",
    )


def missing_tests(tests: Mapping[str, Iterable[str]]) -> list[str]:
    """Which tests of the table are not there."""
    return [
        f"tests/book/test_commands.py, TESTS: {file} has no {name}"
        for file, names in tests.items()
        for name in names
        if not (ROOT / file).is_file() or f"def {name}(" not in read(file)
    ]


FORMS = [form for tests in TESTS.values() for forms in tests.values() for form in forms]
NAMED = {command for document in DOCUMENTS for command in commands_in(read(document))}
NAMED |= {f"make {target}" for target in targets()}


def test_every_command_is_run_by_a_test_or_says_why_not() -> None:
    assert len(NAMED) > 50
    assert len(set(FORMS)) == len(FORMS)
    assert not set(FORMS) & NOT_RUN.keys()
    fail_on(command_problems(NAMED, [*FORMS, *NOT_RUN]))


def test_the_tests_that_run_them_are_there() -> None:
    fail_on(missing_tests(TESTS))


def test_the_files_that_commands_name_are_there() -> None:
    words = {word for command in NAMED for word in re.split(r"[ =]", command)}
    files = {word for word in words if re.fullmatch(r"[\w/]+\.(?:py|ipynb|md)", word)}
    assert len(files) > 5
    gone = sorted(file for file in files if not (ROOT / file).is_file())
    fail_on(f"a command names {file}, which is not there" for file in gone)


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("Then `make\n   pdf`, not `make` and `pdf`.", ["make pdf"]),
        ("`.venv/bin/python -m tools.pdf`", ["python -m tools.pdf"]),
        ("```bash\nany thing  # a comment\n\nmake book\n```\n", ["any thing", "make book"]),
        ("```text\nmake no\n```\n```python\nmake = 1\n```\n`make yes`", ["make yes"]),
    ],
)
def test_commands_are_found_in_blocks_and_in_sentences(text: str, commands: list[str]) -> None:
    assert sorted(commands_in(text)) == commands


def test_a_command_that_nothing_runs_is_told() -> None:
    (problem,) = command_problems({*NAMED, "python -m tools.newest"}, [*FORMS, *NOT_RUN])
    assert problem.startswith("'python -m tools.newest' runs 'python -m tools.newest', and no test")
    without = [form for form in FORMS if form != "python -m tools.pdf"]
    (problem,) = command_problems(NAMED, [*without, *NOT_RUN])
    assert problem.startswith("'make pdf' runs 'python -m tools.pdf', and no test does: write one")
    assert command_problems({"make lint", "make book", "make test"}, []) == []  # parts of make test


def test_an_entry_that_nothing_needs_is_told() -> None:
    (problem,) = command_problems(NAMED, [*FORMS, *NOT_RUN, "make coffee"])
    assert problem == "tests/book/test_commands.py: nothing names 'make coffee': take it out"


def test_a_test_that_is_not_there_is_told() -> None:
    told = missing_tests({"tests/book/test_pdf.py": ["test_gone"], "tests/gone.py": ["test_x"]})
    assert [line.partition(": ")[2] for line in told] == [
        "tests/book/test_pdf.py has no test_gone",
        "tests/gone.py has no test_x",
    ]


# --- runs ---------------------------------------------------------------------------------------


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a document in a copy of the project, with the packages of these tests."""
    words = shlex.split(command)
    if words[0] == "make":
        words += [f"BIN={BIN}", "READY=", "SITE="]
    elif words[0] != "git":
        words[0] = str(BIN / words[0])
    return subprocess.run(
        words, cwd=folder, env=surroundings(), capture_output=True, text=True, check=False
    )


def said_by(command: str, folder: Path) -> str:
    """What a command prints, which has to end well."""
    done = run(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, in which a run of `make test` was measured."""
    folder = tmp_path_factory.mktemp("clone")
    copy_repository(folder)
    write(folder / "_build" / "seconds" / "lint.alone.json", [Row("mypy", 2.5, 1.5)])
    return folder


def test_help_lists_every_command() -> None:
    listed = re.findall(r"^  make ([a-z-]+) +\S", said_by("make help", ROOT), re.MULTILINE)
    assert listed == targets()
    assert {"book", "pdf", "test", "clean"} <= set(listed)


def test_clean_removes_what_was_made_and_nothing_else(tmp_path: Path) -> None:
    kept = ["Makefile", "book/page.ipynb", "tools/site.py"]
    made = [".venv/bin/x", "_build/html/x", "tools/__pycache__/x", ".mypy_cache/x", "a.egg-info/x"]
    for name in [*kept, *made]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(read("Makefile"), encoding="utf-8")
    said_by("make clean", tmp_path)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path)) for path in left) == kept


@pytest.mark.parametrize(
    ("command", "said", "written"),
    [
        ("make seconds", r"1\.5 +2\.5  lint", "_build/seconds/lint.alone.json"),
        ("make learner", r"_build/learner: \d\d notebooks", "_build/learner/book/05_masks.ipynb"),
        (
            'python -m tools.notebooks new 22_new --title "What is new"',
            r"page 22, after 21",
            "book/22_new.ipynb",
        ),
    ],
)
def test_a_command_does_what_it_says(command: str, said: str, written: str, clone: Path) -> None:
    assert re.search(said, said_by(command, clone))
    assert (clone / written).is_file()


def test_without_a_gpu_its_tests_are_not_said_to_pass() -> None:
    """They skip themselves, which would look like success."""
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = ["make", "test-cuda", f"PYTHON={sys.executable}"]
    ran = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "sees no GPU; name another Python" in ran.stderr


def forget_a_word(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "In fairness" in text
    file.write_text(text.replace("In fairness", "In short"), encoding="utf-8")


def add_spaces(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert "import torch" in text
    file.write_text(text.replace("import torch", "import   torch"), encoding="utf-8")


def give_old_names(file: Path) -> None:
    tensors = load_file(file)
    old = {name.replace("norm.weight", "norm.gain"): tensor for name, tensor in tensors.items()}
    assert old.keys() != tensors.keys()
    save_file(old, file)


@pytest.mark.parametrize(
    ("command", "file", "damage"),
    [
        ("python -m tools.documents", "book/sources_a.ipynb", forget_a_word),
        ("python -m tools.live_definitions", "book/_static/live/figures.json", Path.unlink),
        (
            "python -m tools.rename_tensors",
            "book/results/induction/model.safetensors",
            give_old_names,
        ),
        ("ruff format book/05_masks.ipynb", "book/05_masks.ipynb", add_spaces),
    ],
)
def test_a_command_mends_what_is_damaged(
    command: str, file: str, damage: Callable[[Path], None], clone: Path
) -> None:
    damage(clone / file)
    said_by(command, clone)
    assert (clone / file).read_bytes() == (ROOT / file).read_bytes()


def test_a_quick_check_finds_what_a_change_breaks(tmp_path: Path) -> None:
    """In a project of one page and one test."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    page, test = tmp_path / "book" / "glossary.md", tmp_path / "tests" / "book" / "test_page.py"
    for file, text in {
        page: "right",
        test: f"def test_page():\n    assert open({str(page)!r}).read() == 'right'  # glossary.md",
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    for words in ("init", "add .", "-c user.name=A -c user.email=a@example.org commit -m first"):
        said_by(f"git {words}", tmp_path)
    assert "1 passed" in said_by("make quick FILE=book/glossary.md", tmp_path)
    assert said_by("make quick", tmp_path) == "nothing changed since the last merge\n"
    page.write_text("wrong", encoding="utf-8")
    done = run("make quick", tmp_path)
    assert done.returncode != 0
    assert "make quick: FAILED: tests" in done.stdout


@pytest.mark.parametrize("command", sorted(c for c in NAMED if c.startswith("git grep ")))
def test_the_traces_that_a_recipe_shows_are_there(command: str) -> None:
    found = {line.partition(":")[0] for line in said_by(command, ROOT).splitlines()}
    assert len(found - {"CONTRIBUTING.md"}) >= 3
