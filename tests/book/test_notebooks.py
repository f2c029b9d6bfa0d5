"""The notebook machinery, proven: each kind of damage is seen, by the guard or by re-execution.

One good notebook is executed once. The guard's tests damage copies of it. The comparison's tests
damage many of its cells at once and make the digests fit again, so that only re-execution can tell.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import specimens as sp
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbval.plugin import comment_markers, metadata_tags

from tools.notebooks.__main__ import main
from tools.notebooks.execute import _stamp, patiently
from tools.notebooks.guard import MAX_NOTEBOOK_BYTES, Finding, inspect, inspect_missing
from tools.notebooks.model import ROOT, load, normalise, reseal
from tools.notebooks.nbval_guard import patient_kernel
from tools.notebooks.record import Record, measure
from tools.notebooks.svg import difference


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good notebook, executed."""
    path = tmp_path_factory.mktemp("good") / "01_good.ipynb"
    sp.write(sp.build(), path)
    assert main(["run", str(path)]) == 0
    return path


@pytest.fixture
def notebook(good: Path) -> NotebookNode:
    return load(good)


def findings(notebook: NotebookNode, good: Path, folder: Path) -> list[Finding]:
    """What the guard says of a notebook that stands in the good one's place."""
    path = folder / good.name
    sp.write(notebook, path)
    if not (folder / "verified.json").exists():
        shutil.copy(good.parent / "verified.json", folder)
    return list(inspect(path))


def assert_found(found: list[Finding], number: int | None, words: str) -> None:
    lines = [str(f) for f in found if f.cell == number]
    assert any(words in line for line in lines), f"{words!r} not in {[str(f) for f in found]}"


# --- run --------------------------------------------------------------------------------------


def test_run_stores_outputs_in_normal_form(notebook: NotebookNode, good: Path) -> None:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sp.cell(notebook, "value").outputs[0].data["text/plain"] == "42"
    assert sp.cell(notebook, "title").source == "# A good chapter"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "executed"}
    assert set(notebook.metadata.executed) == {"python", "torch", "date", "sha256", "cells"}
    assert set(sp.cell(notebook, "setup").metadata) == {"tags", "jupyter", "cellView"}
    others = [cell for cell in notebook.cells if cell.id != "setup"]
    assert all(set(cell.metadata) <= {"tags"} for cell in others)
    assert good.read_text(encoding="utf-8").endswith("}\n")


def test_the_good_notebook_passes_the_guard(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(good)]) == 0
    assert "1 notebooks checked" in capsys.readouterr().out


def test_run_records_what_is_verified(good: Path) -> None:
    chapters = json.loads((good.parent / "verified.json").read_text())["chapters"]
    with_output = len(sp.SOURCES) - 2  # `drawing` and `silent` print nothing
    assert chapters == {"01_good.ipynb": {"compared": with_output, "ratio": 1.0}}


def test_a_failing_run_names_the_cell_and_leaves_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = sp.build()
    notebook.cells = notebook.cells[:4]
    notebook.cells[3].source = "print(1)\n1 / 0"
    path = tmp_path / "bad.ipynb"
    sp.write(notebook, path)
    before = path.read_bytes()
    assert main(["run", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"bad.ipynb: cell {notebook.cells[3].id} (under “A good chapter”) failed" in said
    assert "ZeroDivisionError" in said
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bad.ipynb"]


def test_the_date_changes_only_with_the_content(notebook: NotebookNode) -> None:
    stored = dict(notebook.metadata.executed)
    notebook.metadata.executed["date"] = "2001-02-03"
    changed = copy.deepcopy(notebook)
    assert _stamp(notebook, changed) == {**stored, "date": "2001-02-03"}
    sp.cell(changed, "control").outputs[0].text = "other"
    assert _stamp(notebook, changed)["date"] > "2001-02-03"


def test_normal_form_joins_streams_and_drops_foreign_frames() -> None:
    notebook = sp.build()
    victim = sp.cell(notebook, "control")
    victim.execution_count = 7
    victim.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="a"),
        nbformat.v4.new_output("stream", name="stdout", text="b"),
        nbformat.v4.new_output(
            "error",
            ename="E",
            evalue="e",
            traceback=["Cell In[1]", "\x1b[36mFile \x1b[0m/x.py", "E: e"],
        ),
    ]
    normalise(notebook)
    assert victim.execution_count == 1
    assert [output.get("text") for output in victim.outputs] == ["ab", None]
    assert victim.outputs[1].traceback == ["Cell In[1]", "E: e"]


def test_run_does_not_lower_the_record_unless_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = sp.build()
    notebook.cells = notebook.cells[:4]
    path = tmp_path / "short.ipynb"
    sp.write(notebook, path)
    floors = {"short.ipynb": {"compared": 2, "ratio": 1.0}}
    write_record(tmp_path, Record(tmp_path / "verified.json", floors))
    assert main(["run", str(path)]) == 1
    assert "only 1 cells with output are compared, 2 were recorded" in capsys.readouterr().err
    assert Record.beside(path).chapters == floors
    first = path.read_bytes()
    assert main(["run", "--accept-fewer", str(path)]) == 0
    assert Record.beside(path).chapters == {"short.ipynb": {"compared": 1, "ratio": 1.0}}
    assert path.read_bytes() == first, "a second run changes nothing"


# --- the guard: what the digest sees ----------------------------------------------------------

TAMPERED = {
    "one digit of a printed number": ("digit", sp.change_stream("3.25", "3.26")),
    "one digit of a value": ("value", sp.change_data("text/plain", "42", "43")),
    "a blanked output": ("blanked", sp.drop_outputs),
    "a dropped figure": ("figure-dropped", sp.drop_outputs),
    "an altered source": ("source", sp.change_source("3.25", "3.5")),
    "the last digit in a figure": ("figure-last-digit", sp.change_data(sp.SVG, "3.00", "3.01")),
    "the text in a figure": ("figure-text", sp.change_data(sp.SVG, ">one bar<", ">two bars<")),
    "an error message": ("raise-message", sp.change_error("evalue", "3", "4")),
    "a traceback": ("raise-traceback", sp.change_error("traceback", "3", "4")),
    "swapped outputs": ("order", sp.swap_outputs),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_guard_sees_tampering(
    kind: str, notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    name, damage = TAMPERED[kind]
    damage(sp.cell(notebook, name))
    found = findings(notebook, good, tmp_path)
    words = "changed since the cell was run; run `make notebooks NB="
    assert_found(found, sp.number(notebook, name), words)


def test_guard_sees_added_removed_and_reordered_cells(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    shuffled = copy.deepcopy(notebook)
    shuffled.cells[-1], shuffled.cells[-2] = shuffled.cells[-2], shuffled.cells[-1]
    assert_found(findings(shuffled, good, tmp_path), None, "code cells were reordered")
    notebook.cells[-1]["id"] = "new"
    found = findings(notebook, good, tmp_path)
    assert_found(found, len(notebook.cells), "was added since the notebook was run")
    assert_found(found, None, "a code cell was removed since")


def test_guard_wants_the_stamp(notebook: NotebookNode, good: Path, tmp_path: Path) -> None:
    del notebook.metadata["executed"]
    assert_found(findings(notebook, good, tmp_path), None, "carries no stamp of its execution")


# --- the guard: what it sees although the digests fit -----------------------------------------


def display(**data: str) -> sp.Damage:
    """Replace a cell's outputs by one display; `text_plain` stands for text/plain."""

    def damage(victim: NotebookNode) -> None:
        formats = {kind.replace("_", "/").replace("svg", "svg+xml"): v for kind, v in data.items()}
        victim.outputs = [nbformat.v4.new_output("display_data", data=formats)]

    return damage


def made_up_path(folder: str) -> str:
    """A path of somebody's machine; put together, so that this file holds none itself."""
    return "/".join(("", folder, "ann", "x.py"))


def prints(text: str, name: str = "stdout") -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.outputs = [nbformat.v4.new_output("stream", name=name, text=text)]

    return damage


def comment(text: str) -> sp.Damage:
    def damage(victim: NotebookNode) -> None:
        victim.source = f"# {text}\n{victim.source}"

    return damage


def untag(victim: NotebookNode) -> None:
    del victim.metadata["tags"]


def change_count(victim: NotebookNode) -> None:
    victim.execution_count += 1


def empty(victim: NotebookNode) -> None:
    victim.source = ""


def litter(victim: NotebookNode) -> None:
    victim.metadata["execution"] = {"iopub.status.busy": "2020-01-01T00:00:00Z"}


SENTENCE = "A chart with one bar of height 3."

FAULTS = {
    "no count": ("control", sp.drop_count, "has no execution count"),
    "neither count nor outputs": (
        "forgotten",
        sp.both(sp.drop_count, sp.drop_outputs),
        "has no execution count",
    ),
    "wrong count": ("control", change_count, "has execution count"),
    "count of a value": ("value", change_count, "output of run"),
    "unmeant error": ("raise-control", untag, "stores an error"),
    "no stored error": ("raise-control", sp.drop_outputs, "stores no error"),
    "stderr": ("control", prints("UserWarning: x", "stderr"), "stores stderr output"),
    "heavy output": ("control", prints("x" * 300_001), "heavy output"),
    "png": ("control", display(text_plain=SENTENCE, image_png="aGk="), "stores image/png"),
    "jpeg": ("control", display(text_plain=SENTENCE, image_jpeg="aGk="), "stores image/jpeg"),
    "script": ("control", display(application_javascript="x"), "stores application/javascript"),
    "bitmap in html": ("control", display(text_html='<img src="data:image/png;'), "bitmap"),
    "live form": ("control", display(text_html="<iframe></iframe>"), "stores the live form"),
    "no alt text": ("control", display(image_svg="<svg/>"), "image without alt text"),
    "repr as alt text": (
        "control",
        display(image_svg="<svg/>", text_plain="<Figure size 640x480 with 1 Axes>"),
        "image without alt text",
    ),
    "alt text of one word": (
        "control",
        display(image_svg="<svg/>", text_plain="Chart."),
        "image without alt text",
    ),
    "summary altered": (
        "figure-summary",
        sp.change_data("text/plain", "height 3", "height 4"),
        "<desc>",
    ),
    "no description": (
        "control",
        display(image_svg="<svg/>", text_plain=SENTENCE),
        "the SVG's <desc> (missing)",
    ),
    "broken svg": ("control", display(image_svg="<svg>", text_plain=SENTENCE), "not well-formed"),
    "address": ("control", prints("<object at 0x7f3a5c1d2e80>"), "a memory address"),
    "home": ("control", prints(f"read {made_up_path('home')}"), "an absolute path"),
    "root": ("control", prints(f"in '{made_up_path('root')}'"), "an absolute path"),
    "mac": ("control", prints(made_up_path("Users")), "an absolute path"),
    "temporary": ("control", prints(f"({made_up_path('tmp')})"), "an absolute path"),
    "windows": ("control", prints("C:\\Users\\ann"), "an absolute path"),
    "checkout": ("control", prints(str(ROOT / "book")), "the path of this checkout"),
    "unknown tag": ("control", sp.tag("hide-inputs"), "unknown tag `hide-inputs`"),
    "empty cell": ("silent", empty, "empty code cell"),
    "semicolon": ("value", sp.change_source("22", "22;"), "ends with a semicolon"),
    "wide source": ("value", sp.change_source("22", "22  # " + 70 * "x"), "source has a line of"),
    "wide output": ("control", prints(75 * "x"), "output has a line of 75 characters"),
    "timing": ("control", litter, "metadata not in normal form"),
    "trailing blanks": ("control", sp.change_source(")", ") "), "source not in normal form"),
    "set-up cell untagged": ("setup", untag, "not the set-up cell"),
    "set-up cell without address": (
        "setup",
        sp.change_source("REPOSITORY", "ADDRESS"),
        "not the set-up cell",
    ),
    "marker without effect": ("control", comment("NBVAL_CHECK_OUTPUT"), "has no effect"),
    "marker for errors": ("control", comment("NBVAL_RAISES_EXCEPTION"), "use the tag"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_guard_sees_faults(kind: str, notebook: NotebookNode, good: Path, tmp_path: Path) -> None:
    name, damage, words = FAULTS[kind]
    damage(sp.cell(notebook, name))
    reseal(notebook)
    assert_found(findings(notebook, good, tmp_path), sp.number(notebook, name), words)


def test_stderr_may_be_allowed(notebook: NotebookNode, good: Path, tmp_path: Path) -> None:
    sp.both(prints("meant", "stderr"), sp.tag("allow-stderr"))(sp.cell(notebook, "control"))
    reseal(notebook)
    assert findings(notebook, good, tmp_path) == []


MARKDOWN = {
    "![](bar.svg)": "image bar.svg without alt text",
    "![ ][bar]": "image by reference without alt text",
    '<img src="bar.svg">': "image bar.svg without alt text",
    '<img src="bar.svg" alt="">': "image bar.svg without alt text",
    "```{figure} bar.svg\n:name: bar\nCaption\n```": "image bar.svg without alt text",
    "![A bar](https://example.org/bar.svg)": "remote image https://example.org/bar.svg",
    "![A bar](//example.org/bar.svg)": "remote image //example.org/bar.svg",
    '<img alt="A bar" src="http://example.org/bar.svg">': "remote image http://example.org",
    ":::{image} https://example.org/bar.svg\n:alt: A bar\n:::": "remote image https://example.org",
    "![A bar][bar]\n\n[bar]: https://example.org/bar.png": "remote image [bar]: https",
}


@pytest.mark.parametrize("text", MARKDOWN)
def test_guard_sees_bad_images_in_markdown(
    text: str, notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    sp.cell(notebook, "title").source = text
    assert_found(findings(notebook, good, tmp_path), 1, MARKDOWN[text])


@pytest.mark.parametrize(
    "text",
    [
        "![A bar](_static/bar.svg) and [a link](https://example.org/x.html)",
        "Write `![](x.svg)` never.",
        "```html\n<img src='https://example.org/x.svg'>\n```",
        "```{figure} bar.svg\n:alt: A bar\nCaption\n```",
    ],
)
def test_guard_accepts_good_markdown(
    text: str, notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    sp.cell(notebook, "title").source = text
    assert findings(notebook, good, tmp_path) == []


def test_guard_sees_a_heavy_notebook(notebook: NotebookNode, good: Path, tmp_path: Path) -> None:
    sp.cell(notebook, "title").source = "x" * MAX_NOTEBOOK_BYTES
    assert_found(findings(notebook, good, tmp_path), None, "heavy notebook")


def test_guard_sees_volatile_notebook_metadata(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    notebook.metadata.kernelspec["name"] = "conda-env-mine"
    assert_found(findings(notebook, good, tmp_path), None, "notebook metadata not in normal form")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON"),
        ("[]", "expected a notebook with nbformat 4"),
        ('{"nbformat": 3, "worksheets": []}', "found nbformat 3"),
        (
            '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "odd"}]}',
            "does not follow the notebook schema",
        ),
    ],
)
def test_guard_sees_invalid_notebooks(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_text(text)
    assert_found(list(inspect(path)), None, words)


def test_guard_sees_ids_that_occur_twice(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    sp.cell(notebook, "digit")["id"] = "control"
    assert_found(findings(notebook, good, tmp_path), None, "'control' occurs twice")


# --- skipped comparisons and the record -------------------------------------------------------

SKIPS = [
    f"tag {t}" for t, meaning in metadata_tags.items() if meaning in ("skip", ("check", False))
]
SKIPS += [c for c, meaning in comment_markers.items() if meaning in ("skip", ("check", False))]


def test_nbval_still_has_the_skips_that_we_know() -> None:
    known = {"NBVAL_SKIP", "NBVAL_IGNORE_OUTPUT", "PYTEST_VALIDATE_IGNORE_OUTPUT"}
    assert known <= set(SKIPS)
    assert {"tag nbval-skip", "tag nbval-ignore-output"} <= set(SKIPS)


@pytest.mark.parametrize("marker", SKIPS)
def test_guard_sees_unlisted_skips(
    marker: str, notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    damage = sp.tag(marker[4:]) if marker.startswith("tag ") else comment(marker)
    damage(sp.cell(notebook, "skipped"))
    reseal(notebook)
    found = findings(notebook, good, tmp_path)
    assert_found(found, sp.number(notebook, "skipped"), "without a listed reason")
    assert_found(found, None, "verified-cell ratio fell from 100.00% to 95.45%")


def write_record(folder: Path, record: Record, **change: object) -> None:
    content = {"chapters": record.chapters, "skips": [], **change}
    (folder / "verified.json").write_text(json.dumps(content))


def test_a_listed_skip_passes_once_the_ratio_was_lowered_by_hand(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    sp.tag("nbval-skip")(sp.cell(notebook, "skipped"))
    skip = {"notebook": good.name, "cell": "skipped", "reason": "depends on the weather"}
    write_record(
        tmp_path,
        Record.beside(good),
        chapters={good.name: {"compared": 21, "ratio": 0.95}},
        skips=[skip],
    )
    assert findings(notebook, good, tmp_path) == []
    write_record(tmp_path, Record.beside(tmp_path / good.name), skips=[{**skip, "reason": " "}])
    assert_found(
        findings(notebook, good, tmp_path),
        sp.number(notebook, "skipped"),
        "without a listed reason",
    )


def test_guard_sees_an_excuse_that_is_not_used(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    skip = {"notebook": good.name, "cell": "control", "reason": "once"}
    write_record(tmp_path, Record.beside(good), skips=[skip])
    assert_found(findings(notebook, good, tmp_path), None, 'excuses cell "control"')


def test_guard_sees_fewer_compared_cells_than_recorded(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    sp.drop_outputs(sp.cell(notebook, "control"))
    reseal(notebook)
    found = findings(notebook, good, tmp_path)
    assert_found(found, None, "only 21 cells with output are compared, 22 were recorded")


def test_guard_sees_chapters_without_record_and_records_without_chapter(
    notebook: NotebookNode, good: Path, tmp_path: Path
) -> None:
    write_record(
        tmp_path, Record.beside(good), chapters={"gone.ipynb": {"compared": 1, "ratio": 1}}
    )
    found = findings(notebook, good, tmp_path)
    assert_found(found, None, "is not recorded in verified.json")
    assert_found(list(inspect_missing(tmp_path)), None, "gone.ipynb: is in verified.json but")


def test_guard_sees_a_damaged_record(notebook: NotebookNode, good: Path, tmp_path: Path) -> None:
    (tmp_path / "verified.json").write_text('{"chapters": []}')
    assert_found(findings(notebook, good, tmp_path), None, 'verified.json: expected {"chapters"')


def test_the_record_rises_by_itself_and_falls_only_as_told(
    notebook: NotebookNode, tmp_path: Path
) -> None:
    record = Record(tmp_path / "verified.json")
    full = measure(notebook)
    sp.drop_outputs(sp.cell(notebook, "control"))
    sp.tag("nbval-skip")(sp.cell(notebook, "skipped"))
    less = measure(notebook)
    record.update("x", less, accept_fewer=False)
    assert record.chapters["x"] == {"compared": 20, "ratio": 0.9523}
    record.update("x", full, accept_fewer=False)
    assert record.chapters["x"] == {"compared": 22, "ratio": 1.0}
    record.update("x", less, accept_fewer=False)
    assert record.chapters["x"] == {"compared": 22, "ratio": 1.0}
    record.update("x", less, accept_fewer=True)
    assert record.chapters["x"] == {"compared": 20, "ratio": 1.0}


# --- the comparison: nothing but re-execution can see these -----------------------------------

DIFFERS = "Cell outputs differ: mismatch '"
MISSING = "Cell outputs differ: Missing output fields from running code"
UNEXPECTED = "Cell outputs differ: Unexpected output fields from running code"
REEXECUTED = {
    "digit": (sp.change_stream("3.25", "3.26"), DIFFERS),
    "value": (sp.change_data("text/plain", "42", "43"), DIFFERS),
    "blanked": (sp.drop_outputs, UNEXPECTED),
    "forgotten": (sp.both(sp.drop_count, sp.drop_outputs), "has no execution count"),
    "uncounted": (sp.drop_count, "Unrun reference cell has outputs"),
    "source": (sp.change_source("3.25", "3.5"), DIFFERS),
    "silent": (sp.change_source("quiet = 1", "print(1)"), UNEXPECTED),
    "order": (sp.swap_outputs, "stored outputs ['image/svg+xml+text/plain', 'stdout']"),
    "skipped": (sp.both(sp.tag("nbval-skip"), sp.change_stream("3.25", "3.26")), None),
    "figure-number": (
        sp.change_data(sp.SVG, 'height="3.00"', 'height="3.03"'),
        "figure 1 differs: svg/rect[3]: attribute height: stored '3.03', computed '3.00'",
    ),
    "figure-last-digit": (sp.change_data(sp.SVG, 'height="3.00"', 'height="3.01"'), None),
    "figure-colour": (sp.change_data(sp.SVG, "#0067a5", "#b04a00"), "attribute fill"),
    "figure-text": (
        sp.change_data(sp.SVG, ">one bar<", ">two bars<"),
        "stored text 'two bars', computed 'one bar'",
    ),
    "figure-summary": (
        sp.both(
            sp.change_data("text/plain", "height 3", "height 4"),
            sp.change_data(sp.SVG, "height 3", "height 4"),
        ),
        DIFFERS,
    ),
    # 3.4 rounds to the same summary: only the picture itself gives the change away.
    "figure-data": (sp.change_source("3.0", "3.4"), "stored '3.00', computed '3.40'"),
    "figure-dropped": (sp.drop_outputs, UNEXPECTED),
    "raise-message": (sp.change_error("evalue", "3", "4"), DIFFERS),
    "raise-traceback": (sp.change_error("traceback", "meant: ", "meant! "), "traceback differs"),
    "raise-gone": (sp.change_source(sp.RAISES, "quiet = 1"), MISSING),
    "raise-nothing": (
        sp.both(sp.change_source(sp.RAISES, "quiet = 1"), sp.drop_outputs),
        "raises no exception any more",
    ),
}


def run_compare(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.notebooks", "compare", "--table", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def comparison(
    good: Path, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """One comparison of the good notebook and of a copy that is damaged in every way."""
    folder = tmp_path_factory.mktemp("compared")
    shutil.copy(good, folder)
    notebook = load(good)
    for name, (damage, _) in REEXECUTED.items():
        damage(sp.cell(notebook, name))
    reseal(notebook)
    sp.write(notebook, folder / "02_damaged.ipynb")
    floors = Record.beside(good).chapters[good.name]
    write_record(
        folder,
        Record.beside(good),
        chapters={"01_good.ipynb": floors, "02_damaged.ipynb": floors},
    )
    return run_compare(folder)


def lines_about(
    comparison: subprocess.CompletedProcess[str], notebook: str, name: str
) -> list[str]:
    return [
        line for line in comparison.stderr.splitlines() if f"{notebook}: cell {name} (under" in line
    ]


@pytest.mark.parametrize("name", [name for name, (_, words) in REEXECUTED.items() if words])
def test_comparison_sees_damage(name: str, comparison: subprocess.CompletedProcess[str]) -> None:
    words = REEXECUTED[name][1]
    assert words is not None
    said = lines_about(comparison, "02_damaged.ipynb", name)
    assert len(said) == 1, comparison.stderr
    assert words in said[0]


@pytest.mark.parametrize(
    "name",
    ["control", "figure-control", "raise-control", "figure-last-digit", "drawing", "setup"],
)
def test_comparison_passes_what_is_sound(
    name: str, comparison: subprocess.CompletedProcess[str]
) -> None:
    assert lines_about(comparison, "02_damaged.ipynb", name) == []


def test_comparison_sees_the_fallen_ratio_and_the_unlisted_skip(
    comparison: subprocess.CompletedProcess[str],
) -> None:
    assert "02_damaged.ipynb: verified-cell ratio fell from 100.00% to" in comparison.stderr
    assert "02_damaged.ipynb: skips cell skipped: no reason listed" in comparison.stderr


def test_comparison_fails_in_all_and_tells_the_chapters_apart(
    comparison: subprocess.CompletedProcess[str],
) -> None:
    assert comparison.returncode == 1
    assert "01_good.ipynb:" not in comparison.stderr
    good, damaged = (
        next(line.split() for line in comparison.stdout.splitlines() if f"{name} " in line)
        for name in ("01_good.ipynb", "02_damaged.ipynb")
    )
    cells = str(len(sp.SOURCES) + 1)
    assert good[1:6] == [cells, "22", cells, "0", "9"]
    assert good[-1] == "100.00%"
    assert damaged[4] == "1"
    assert float(damaged[-1].rstrip("%")) < 50
    assert any(line.startswith("all ") for line in comparison.stdout.splitlines())


def test_comparison_passes_the_good_notebook_alone(good: Path) -> None:
    result = run_compare(good)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""


class FlakyStart:
    """A kernel start that fails a number of times."""

    def __init__(self, failures: int, error: type[Exception] = RuntimeError) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self, *args: object, **kwargs: object) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error("Kernel died before replying to kernel_info")
        return "started"


@pytest.mark.parametrize(
    ("failures", "error", "calls"),
    [(0, RuntimeError, 1), (2, RuntimeError, 3), (3, RuntimeError, 3), (1, DeadKernelError, 1)],
)
def test_kernels_are_started_up_to_three_times(
    failures: int, error: type[Exception], calls: int
) -> None:
    start = FlakyStart(failures, error)
    if failures in (0, 2):
        assert patiently(start) == "started"
    else:
        with pytest.raises(error, match="Kernel died"):
            patiently(start)
    assert start.calls == calls


def test_run_and_comparison_start_kernels_patiently(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = FlakyStart(2)
    monkeypatch.setattr("tools.notebooks.nbval_guard.RunningKernel", start)
    assert patient_kernel("python3", cwd=".") == "started"
    before = good.read_bytes()
    start = FlakyStart(3)
    monkeypatch.setattr("tools.notebooks.execute.NotebookClient.execute", start)
    assert main(["run", str(good)]) == 1
    assert start.calls == 3
    assert "the kernel failed; the stored notebook is unchanged" in capsys.readouterr().err
    assert good.read_bytes() == before


# --- pictures ---------------------------------------------------------------------------------


def drawing(inner: str) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg">{inner}</svg>'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<path d="M1 2L3.50-4"/>', '<path d="M1 2L3.52-4.01"/>'),
        ('<path fill="#102030"/>', '<path fill="#112233"/>'),
        (
            '<g id="p1f"/><use href="#p1f"/><g clip-path="url(#p1f)"/>',
            '<g id="p2e"/><use href="#p2e"/><g clip-path="url(#p2e)"/>',
        ),
        ("<g>\n <text>a</text></g>", "<g><text>a</text></g>"),
    ],
)
def test_pictures_that_count_as_the_same(old: str, new: str) -> None:
    assert difference(drawing(old), drawing(new)) is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('<path d="M1 2"/>', '<path d="M1 2.03"/>', "attribute d"),
        ('<path d="M1 2"/>', '<path d="M1 2L3 4"/>', "attribute d"),
        ('<path d="M1 2"/>', '<path d="L1 2"/>', "attribute d"),
        ('<path fill="#102030"/>', '<path fill="#102034"/>', "attribute fill"),
        ('<path fill="#102030"/>', '<path fill="none"/>', "attribute fill"),
        ('<path fill="#102030"/>', "<path/>", "attribute fill"),
        ("<text>0.10</text>", "<text>0.11</text>", "stored text '0.10'"),
        ("<g/>", "<path/>", "stored element <g>"),
        ("<g/>", "<g/><g/>", "1 stored elements, 2 computed"),
        (
            '<g id="a"/><g id="b"/><use href="#a"/>',
            '<g id="a"/><g id="b"/><use href="#b"/>',
            "href",
        ),
        ("<g/>", "<g>", "not well-formed"),
    ],
)
def test_pictures_that_differ(old: str, new: str, words: str) -> None:
    assert words in (difference(drawing(old), drawing(new)) or "no difference")


# --- stamp, and the command line --------------------------------------------------------------


def test_stamp_writes_copies_that_know_the_repository(good: Path, tmp_path: Path) -> None:
    out = tmp_path / "site" / "notebooks"
    before = good.read_bytes()
    assert main(["stamp", "https://example.org/ann/book.git", str(good), "--out", str(out)]) == 0
    stamped = load(out / good.name)
    (line,) = sp.cell(stamped, "setup").source.splitlines()[1:]
    assert line == 'REPOSITORY = "https://example.org/ann/book"'
    assert findings(stamped, good, tmp_path) == []
    assert good.read_bytes() == before


@pytest.mark.parametrize(
    "address", ["", "book", 'https://example.org/a"b', "http://example.org/a/b"]
)
def test_stamp_refuses_other_addresses(
    address: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stamp", address, str(good), "--out", str(tmp_path)]) == 2
    assert "expected an address like https://" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_stamp_wants_the_line_to_fill_in(
    notebook: NotebookNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sp.cell(notebook, "setup").source = 'REPOSITORY = "x"'
    path = tmp_path / "a.ipynb"
    sp.write(notebook, path)
    assert main(["stamp", "https://example.org/a/b", str(path), "--out", str(tmp_path / "o")]) == 2
    assert 'a.ipynb: expected one line `REPOSITORY = ""`' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "check", "compare", "dress"])
def test_commands_want_notebooks(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert "no notebook found there" in capsys.readouterr().err
    assert main([command, str(tmp_path / "none.ipynb")]) == 2
    assert "expected an existing .ipynb file" in capsys.readouterr().err


def test_check_ends_with_an_error_status(
    notebook: NotebookNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sp.write(notebook, tmp_path / "a.ipynb")
    assert main(["check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"run `make notebooks NB={tmp_path / 'a.ipynb'}`" in said
    assert "a.ipynb: is not recorded in verified.json; " in said
