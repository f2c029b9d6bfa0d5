"""The search: what it looks through, written when the book is built.

Sphinx's own search knows which words a page has, but not where, how often, or what kind of page it
is. Here each section of each page is noted with its words; ``_static/search.js`` ranks them in the
reader's browser. The names of the glossary are noted with their synonyms, so that a section is
found by the words that a reader knows. All of it is one script, which a page on the reader's disk
may load as well. It is loaded when somebody searches: the words of the book stand in it once, and
each text is a row of their numbers, so that it is half as large as the texts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from book_glossary import homes
from book_order import about, part_of
from book_words import plain

INDEX = "searchindex.js"
GLOSSARY = "book/glossary"
GALLERY = "live-gallery"
FIGURES = "book/figures"  # repeats what stands below each figure: found there
LINKS = (
    "where-this-book-teaches-it"  # of a document: each item is found on the page that teaches it
)
# Pages that teach come before pages that are looked up: what a page's score is multiplied by.
WEIGHTS = {"core": 1.0, "further": 0.8, "lab": 0.4, "apart": 0.2}
OTHERS = {"book/questions": 0.4, "book/sources": 0.15, "book/bibliography": 0.15}
# Signs that a formula has, and what people type for them; a reader types words. Other spellings.
_ROOT = ["square root", "sqrt", "square root of d_k", "sqrt(d_k)"]
_LIVE = ["live figure", "interactive figure"]
# What people say, and what the book says.
ALIKE = [
    ["NaN", "not a number"],
    ["out of memory", "OOM", "memory of the GPU", "GPU memory", "VRAM"],
    ["initialisation", "weight initialization", "Xavier", "Kaiming", "Glorot"],
    ["accuracy", "share of right answers"],
    ["translation", "translator", "machine translation", "NMT"],
    ["image", "picture", "pixel"],
]
SPELLINGS = [_ROOT, _LIVE, ["licence", "license"], ["cite", "citation"], *ALIKE]
# What people type who do not look for a term, and the place that answers it. A word counts in any
# query, a question as a whole; "how do I run it" would be the word "run", which means too much.
ASKED = {
    "play": _LIVE,
    "04_scaling#the-proof-in-four-lines": _ROOT,
    "lab4_mini_gpt": ["write a GPT", "build a GPT", "GPT from scratch"],
    "questions#how-long-does-it-take": ["how long does it take", "how many hours"],
    "questions#how-do-i-install-and-run-it": ["install", "set up", "run the notebooks", "Windows"],
    "questions#may-i-use-the-figures-and-the-text-what-is-the-licence": [
        *("licence", "license", "copyright"),
    ],
    "questions#i-found-a-mistake-where-do-i-report-it": [
        *("report an error", "report a mistake", "report a bug"),
        *("found an error", "found a mistake", "found a bug"),
    ],
    "colophon#how-to-cite-it": ["cite", "citation"],
    "api/index": ["transformer_lib", "API"],
    "sources": ["errata", "erratum"],
    "02_tokens": ["unknown word", "out of vocabulary", "OOV"],
    "19c_hardware": ["fp16", "bf16", "half precision", "mixed precision"],
    "api/hugging_face": ["from_pretrained"],
    "paths": ["where to start", "where should I start", "beginner", "reading order"],
    "14b_recipes": ["batch size", "hyperparameters", "recipe", "early stopping"],
    "16_generation": ["hallucination", "hallucinate", "making things up"],
    "18b_beyond_text": ["multimodal", "images", "audio", "speech", "video"],
    "18_modern#beyond-this-list": ["adapters", "PEFT", "QLoRA"],
    "20_learned": ["interpretability", "explainability", "mechanistic interpretability"],
    "20_learned#an-algorithm-in-two-heads": ["few-shot", "zero-shot", "prompting"],
    "teachers": ["teachers", "teaching", "course", "syllabus", "lecture"],
    "questions#what-do-i-need-to-know-already": [
        *("prerequisites", "math", "mathematics", "background", "what should I know before"),
    ],
    "questions#how-is-a-transformer-related-to-chatgpt": ["ChatGPT", "chatbot", "Claude", "Gemini"],
    "questions#what-are-instruction-tuning-and-rlhf": [
        *("instruction tuning", "RLHF", "DPO", "PPO", "alignment of models", "human feedback"),
    ],
}
# What people want to do, in any words and order: a word in capitals is one of a group, and all
# words of a row must be in the query. They are few: most queries are answered by their words.
GROUPS = {
    "BEYOND": ["longer", "beyond", "extend", "extrapolate", "exceed", "past", "outside"],
    "CHECKPOINT": ["gpt2", "weights", "checkpoint", "missing keys", "unexpected keys"],
    "DATA": ["tokens", "data", "text", "examples"],
    "DERIVE": ["derivative", "backprop", "backpropagation", "backward"],
    "FAST": ["fast", "faster", "speed", "slow", "slower", "accelerate", "latency", "efficient"],
    "GENERATE": ["generate", "generation", "inference", "decoding", "sampling"],
    "GPT": ["gpt", "llm", "language model", "chatgpt", "chatbot"],
    "GPU": ["gpu", "cuda", "card"],
    "HIDDEN": ["future", "cheat", "leak", "next word", "next token"],
    "MAKE": [
        "make",
        "write",
        "build",
        "create",
        "code",
        "implement",
        "program",
        "train",
        "scratch",
    ],
    "MEMORY": ["memory", "oom", "vram", "ram"],
    "MUCH": ["much", "many", "enough", "amount", "how large", "how big"],
    "OR": ["difference", "between", "vs", "versus", "compare", "comparison", "or", "differ"],
    "OWN": ["own", "scratch", "tiny", "small", "mini", "myself"],
    "QKV": ["qkv", "q k v", "query key value", "query key and value", "query key", "wq wk wv"],
    "SEE": ["see", "look", "peek", "leak", "cheat"],
    "TRAINED": ["train", "seen", "context", "window"],
}
INTENTS = {
    "lab4_mini_gpt": ["MAKE GPT", "OWN GPT"],
    "03_attention": ["QKV"],
    "03b_backward": ["DERIVE attention"],
    "05b_masks_in_practice": ["nan mask", "nan loss", "nan padding mask", "nan loss mask"],
    "05c_cheating": ["SEE HIDDEN"],
    "07b_length": ["BEYOND TRAINED"],
    "15_families": ["OR encoder decoder", "OR bert gpt"],
    "16_generation": ["GPT GENERATE"],
    "16b_cache": ["FAST GENERATE"],
    "19b_scaling": ["MUCH DATA train"],
    "19c_hardware": ["MEMORY GPU", "FAST train"],
    "20b_questions": ["understand reason"],
    "paths": ["start beginner"],
    "21_real_weights": ["load CHECKPOINT", "load_state_dict"],
}
# How texts are written: the signs of a script's string, and how many of them are a whole number, or
# the first of two; after the rest, two follow.
SIGNS = "".join(sign for sign in map(chr, range(32, 127)) if sign not in '"\\')
ONE, TWO = 50, 40
_MINUTES = re.compile(r"^\s*\d+ minutes to (?:read|work through),.*? to run\. ", re.S)
_NAME = re.compile(r"[A-Za-z]+(?:_\w+|[a-z][A-Z]\w*)")  # in code: what is not a plain word
_PIECE = re.compile(r"√|[^\W_]+|(?:(?!√)[\W_])+")  # as _static/search.js tells words
_GROUP = r"(\{(?:[^{}]|\{[^{}]*\})*\}|\\[A-Za-z]+|\w)"  # braces in braces, a command, or a sign
_FRACTION = re.compile(rf"\\[td]?frac\s*{_GROUP}\s*{_GROUP}")
_SILENT = (nodes.raw, nodes.comment, nodes.image, nodes.math_block, nodes.substitution_definition)
_FLOWING = (nodes.Inline, nodes.Text)  # what stands within a line; all else ends it


@dataclass
class Part:
    """A piece of a page that a result can lead to: a section, a term, or a documented name.

    Attributes:
        anchor: where it begins on its page.
        heading: its words above it.
        text: what it says.
        strong: the words in bold, which are terms where they are defined.
        code: the names in its code that its text does not have.
    """

    anchor: str
    heading: str
    text: str = ""
    strong: list[str] = field(default_factory=list)
    code: set[str] = field(default_factory=set)

    def row(self) -> list[str]:
        """What the index holds of it; what is empty in the end is left out."""
        text = " ".join(_MINUTES.sub("", self.text).split())
        names = sorted(name for name in self.code if name not in text)
        row = [self.anchor, self.heading, text, "|".join(self.strong), " ".join(names)]
        while not row[-1]:
            row.pop()
        return row

    @property
    def says_something(self) -> bool:
        """Whether somebody wrote its words: Python describes the fields of a tuple so."""
        return not self.text.lstrip().startswith("Alias for field number")


def parts_of(doctree: nodes.document) -> list[Part]:
    """Cut a page into its parts, in their order."""
    parts = [Part("", "")]
    _read(doctree, parts)
    return parts


def words_of(node: nodes.Node) -> str:
    """What a node says, its formulas with the signs of a keyboard."""
    said = [Part("", "")]
    _read(node, said)
    return " ".join(said[0].text.split())


def _read(node: nodes.Node, parts: list[Part]) -> None:
    part = parts[-1]
    if isinstance(node, nodes.Text):
        part.text += node.astext()
    elif isinstance(node, nodes.math):
        part.text += plain(f"${with_slashes(node.astext())}$")
    elif isinstance(node, nodes.literal_block):
        part.code.update(_NAME.findall(node.astext()))
    elif isinstance(node, nodes.Element) and not _is_silent(node):
        if begun := _beginning(node):
            parts.append(begun)
        if isinstance(node, nodes.strong):
            part.strong.append(node.astext())
        for child in _said_in(node):
            _read(child, parts)
        if not isinstance(node, _FLOWING):
            parts[-1].text += "\n"


def with_slashes(formula: str) -> str:
    r"""Write the fractions of a formula in one line; without their bar, 2 over 3 would read 23.

    >>> with_slashes(
    ...     r"\tfrac23 + \tfrac{8}{3} D, \frac{x - \mu}{\sqrt{d_k}}"
    ... )
    '2/3 + 8/3 D, (x - \\mu)/\\sqrt{d_k}'
    """
    while fraction := _FRACTION.search(formula):
        over, under = (_one_thing(part) for part in fraction.groups())
        formula = f"{formula[: fraction.start()]}{over}/{under}{formula[fraction.end() :]}"
    return formula


def _one_thing(part: str) -> str:
    inner = part[1:-1].strip() if part.startswith("{") else part
    return f"({inner})" if re.search(r"[^\\\w{}.]", inner) else inner


def _said_in(node: nodes.Element) -> list[nodes.Node]:
    """The children that add to a part: no headings, and of a documented name the first words."""
    if isinstance(node, addnodes.desc_content):
        inner = [child for child in node.children if isinstance(child, addnodes.desc)]
        # "Bases: Module" above the words of a class says nothing of what it does.
        said = [child for child in node.children if not child.astext().startswith("Bases: ")][:1]
        return [*said, *inner] if said != inner[:1] else inner
    headings = (nodes.title, nodes.term, addnodes.desc_signature)
    return [child for child in node.children if not isinstance(child, headings)]


def _is_silent(node: nodes.Element) -> bool:
    is_repeated = GALLERY in node.get("classes", ())  # in the sections below it
    return isinstance(node, _SILENT) or node.get("nb_element") == "cell_code_output" or is_repeated


def _beginning(node: nodes.Element) -> Part | None:
    """The part that begins with a node, if one does."""
    heads = [child for child in node.children if isinstance(child, nodes.Element)]
    if isinstance(node, nodes.section) and heads:
        return Part(node["ids"][0], words_of(heads[0]))
    if isinstance(node, nodes.definition_list_item):
        terms = [head for head in heads if isinstance(head, nodes.term) and head["ids"]]
        names = ", ".join(term.children[0].astext() for term in terms)
        return Part(terms[0]["ids"][0], names) if terms else None
    if isinstance(node, addnodes.desc) and isinstance(heads[0], addnodes.desc_signature):
        return Part(heads[0]["ids"][0], heads[0].get("fullname", "")) if heads[0]["ids"] else None
    return None


def names_of(glossary: nodes.document) -> list[list[str]]:
    """Read which names the glossary has for each thing: its terms, and those after "Also"."""
    groups: list[tuple[list[str], list[str]]] = []
    for item in glossary.findall(nodes.definition_list_item):
        terms = [child.children[0].astext() for child in item.findall(nodes.term)]
        groups.append((terms, also(item.astext())))
    terms_of_all = {name.lower() for terms, _ in groups for name in terms}
    return [
        [*terms, *(name for name in others if name.lower() not in terms_of_all)]
        for terms, others in groups
    ]


def also(definition: str) -> list[str]:
    """Read the names that others use; a single letter is no name to search for.

    >>> also(
    ...     "The best. Also: arg max, greedy search; `do_sample=False` (in X), $h$ for two."
    ... )
    ['arg max', 'greedy search', 'do_sample=False']
    """
    # What follows, a link to the place that teaches the term, is a paragraph of its own.
    said = " ".join(definition.split()).partition("Also: ")[2].partition(". ")[0].rstrip(".")
    names = re.split(r"[,;]", re.sub(r"\([^)]*\)|[`$]", "", said))
    short = [re.split(r" for ", name.strip())[0].strip() for name in names]
    return [name for name in short if len(name) > 1]


def weight_of(document: str, kind: str | None) -> float:
    """How much a page counts beside others that say as much.

    >>> (
    ...     weight_of("book/04_scaling", "core"),
    ...     weight_of("book/sources_a", "apart"),
    ... )
    (1.0, 0.15)
    """
    others = [weight for start, weight in OTHERS.items() if document.startswith(start)]
    return others[0] if others else WEIGHTS[kind or "apart"]


def intents() -> list[list[Any]]:
    """The intentions, each with its home and, for each of its words, what may stand there."""
    return [
        [home, [GROUPS.get(word, [word]) for word in row.split()]]
        for home, rows in INTENTS.items()
        for row in rows
    ]


def packed(index: dict[str, Any]) -> dict[str, Any]:
    """Write the texts of an index as numbers of their words.

    Args:
        index: what the search knows; the third entry of a row is its text.

    Returns:
        The same, with the words of all texts, the frequent ones first.
    """
    rows = [row for page in index["pages"] for row in page[-1]]
    often = Counter(word for row in rows for word in _pieces("".join(row[2:3])))
    words = [word for word, _ in sorted(often.items(), key=lambda item: (-item[1], item[0]))]
    numbers = {word: number(place) for place, word in enumerate(words)}

    def written(row: list[str]) -> list[str]:
        coded = ["".join(numbers[word] for word in _pieces(text)) for text in row[2:3]]
        return [*row[:2], *coded, *row[3:]]

    pages = [[*page[:-1], [written(row) for row in page[-1]]] for page in index["pages"]]
    how = {"signs": SIGNS, "one": ONE, "two": TWO}
    return {**index, **how, "words": "\n".join(words), "pages": pages}


def _pieces(text: str) -> Iterator[str]:
    """The words of a text, and what stands between two of them if it is more than a space."""
    found = ["√", *_PIECE.findall(text), "√"]
    for before, piece, after in zip(found, found[1:], found[2:], strict=False):
        if piece != " " or "√" in (before, after):
            yield piece


def number(place: int) -> str:
    """Write the place of a word: the most frequent ones need one sign.

    >>> number(0), number(ONE), number(ONE + TWO * len(SIGNS))
    (' ', 'S ', '|  ')
    """
    if place < ONE:
        return SIGNS[place]
    above, low = divmod(place - ONE, len(SIGNS))
    if above < TWO:
        return SIGNS[ONE + above] + SIGNS[low]
    first, middle = divmod(above - TWO, len(SIGNS))
    return SIGNS[ONE + TWO + first] + SIGNS[middle] + SIGNS[low]


@dataclass
class Noted:
    """What the pages said while they were written.

    Attributes:
        rows: the parts of each page.
        names: for each thing in the glossary its names.
    """

    rows: dict[str, list[list[str]]] = field(default_factory=dict)
    names: list[list[str]] = field(default_factory=list)

    def note(self, _app: Sphinx, doctree: nodes.document, document: str) -> None:
        """Read a page, its citations and links resolved."""
        parts = parts_of(doctree)[1:]
        parts = [
            Part(part.anchor, part.heading) if document == FIGURES or part.anchor == LINKS else part
            for part in parts
        ]
        self.rows[document] = [part.row() for part in parts if part.says_something]
        if document == GLOSSARY:
            self.names = names_of(doctree)

    def write(self, app: Sphinx, error: Exception | None) -> None:
        """Write the index, pages in the order of the book."""
        if error is None and app.builder.format == "html":
            pages = [self._page(app.env, document) for document in app.env.collect_relations()]
            # A term's first name has a home, the place that teaches it.
            home_of = [homes().get(names[0], "") for names in self.names]
            index = {
                "names": self.names + SPELLINGS,
                "homes": home_of,
                "asked": ASKED,
                "intents": intents(),
                "pages": pages,
            }
            text = json.dumps(packed(index), ensure_ascii=False, separators=(",", ":"))
            path = Path(app.outdir) / INDEX
            path.write_text(f"const BOOK_INDEX = {text};\n", encoding="utf-8")

    def _page(self, env: BuildEnvironment, document: str) -> list[Any]:
        weight = weight_of(document, about(Path(str(env.doc2path(document)))).kind)
        title, part = words_of(env.titles[document]), part_of(env, document)
        return [f"{document}.html", title, weight, part, self.rows[document]]


def _leave_to_us(app: Sphinx) -> None:
    app.builder.search = False  # Sphinx's own index, and its page


def _add_page(_app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    return [("search", {}, "search.html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", _leave_to_us)
    noted = Noted()
    app.connect("doctree-resolved", noted.note)
    app.connect("html-collect-pages", _add_page)
    app.connect("build-finished", noted.write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
