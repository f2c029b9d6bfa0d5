"""Which paragraph of this book says it? Vectors of a real encoder against counted words.

    python -m experiments.paragraphs

Reads the text of chapters 0 to 13 as it is now, makes a vector of each paragraph with all-MiniLM-L6
(see ``transformer_book.minilm``), and keeps text and vectors, so that a chapter can search them.
Then it asks: each line of a page's section "In one minute" is a query, and the right answer is any
other paragraph of the same page. Several kinds of vectors compete, and a count of shared words.
"""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from experiments.shared.common import ROOT, Row, constant_adam, read_options, write_results
from transformer_book import minilm
from transformer_lib import SequenceClassifier, mean_over_tokens

CHAPTER = "21_real_weights"
LAST = 13  # the last chapter whose text is kept
SUMMARY = "In one minute"
AT = (1, 5, 10)
LEAST_WORDS = 8  # of a paragraph
ABOUT = {
    "Task": f"""Search: {SUMMARY!r} is the last section of most pages. Each of its lines is a query,
        and a paragraph of the same page, outside such sections, is the right answer.""",
    "Choices": """Paragraphs of at least eight words, without tables, code and pictures; links are
        replaced by their text. MiniLM's vector of a text is the mean over its tokens, as its
        authors made it; `layer n` is the same mean over the vectors after n blocks (0: the
        embeddings), `[CLS]` the first token's vector, `pooler` what BERT makes of that. All are
        compared by their cosine. `words` is BM25, the usual count of shared words, rare ones
        counting more (k1 = 1.2, b = 0.75).""",
    "How to read the tables": """`results.csv`: for each method the share of queries whose first
        answer, one of the first five, one of the first ten is right; the mean of 1 / rank of the
        first right one (`mrr`), with a 95 % interval from drawing queries anew; `cosine`, the mean
        over pairs of different paragraphs. `paragraphs.csv`: the texts. `queries.csv`: where the
        first right answer stood, by MiniLM and by words. `vectors.safetensors`: a row for each
        paragraph, 16 bits.""",
    "Intended use": "Teaching: what vectors of sentences can find, and what they cannot.",
    "Limits": """One book by one hand: pages treat neighbouring things, so a right answer may stand
        on another page and is then counted as wrong. The texts are as they were on the day.""",
}


def pages() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each page, and its cells of text."""
    for path in sorted((ROOT / "book").glob("[0-9]*.ipynb")):
        if int(path.name[:2]) <= LAST:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            found = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
            yield path.stem, found


def plain(text: str) -> str:
    """Take the marks out of a paragraph of Markdown: links, bold, code, dollars."""
    text = re.sub(r"\[([^\]]*)\]\((?:<[^>]*>|[^)]*)\)", r"\1", text)
    text = re.sub(r"\*\*|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)|[`$]", "", text)
    return " ".join(text.split())


def split(cell: str) -> Iterator[tuple[bool, str]]:
    """Yield headings (``True``) and paragraphs of a cell; each point of a list is one."""
    cell = re.sub(r"(?ms)^(```|:::).*?^\1\s*$|^\$\$.*?\$\$.*?$", "\n\n", cell)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", cell):
        block = part.strip()
        if block.startswith("#"):
            yield True, block.lstrip("# ").strip()
        elif block and not block.startswith(("|", "<", "---", "!")):
            yield False, re.sub(r"^(?:[-*]|\d+\.)\s+", "", block)


def read_paragraphs() -> list[Row]:
    """Read all paragraphs of the book that have enough words."""
    rows: list[Row] = []
    for page, cells in pages():
        heading = ""
        for is_heading, text in (found for cell in cells for found in split(cell)):
            words = plain(text)
            if is_heading:
                heading = words
            elif len(words.split()) >= LEAST_WORDS:
                rows.append({"page": page, "heading": heading, "text": words})
    return rows


@torch.no_grad()
def vectors(model: SequenceClassifier, texts: Sequence[str], size: int = 16) -> dict[str, Tensor]:
    """Make all kinds of vectors of each text, with the length 1, ``(N, D)``."""
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    found: dict[str, list[Tensor]] = {}
    states: list[Tensor] = []
    watched = (model.encoder.embedding, *model.encoder.stack.blocks)
    hooks = [part.register_forward_hook(lambda _m, _i, out: states.append(out)) for part in watched]
    for start in range(0, len(order), size):
        states.clear()
        some = [texts[n] for n in order[start : start + size]]
        ids, mask = minilm.tokenizer().batch(some)
        last = model.encoder(ids, mask)
        made = {f"layer {n}": mean_over_tokens(x, mask) for n, x in enumerate(states)}
        made |= {"[CLS]": last[:, 0]}
        if model.pooler is not None:
            made["pooler"] = torch.tanh(model.pooler(last[:, 0]))
        for name, some_vectors in made.items():
            found.setdefault(name, []).append(torch.nn.functional.normalize(some_vectors))
        print(f"{start + len(some)} of {len(order)}", flush=True)
    for hook in hooks:
        hook.remove()
    place = torch.tensor(order).argsort()
    return {name: torch.cat(parts)[place] for name, parts in found.items()}


def words(text: str) -> list[str]:
    """Return the words of a text, without punctuation."""
    return [word for word in minilm.tokenizer().words(text) if any(c.isalnum() for c in word)]


def bm25(queries: Sequence[str], texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> Tensor:
    """Score texts by the words they share with queries, ``(n queries, n texts)``."""
    counts = [Counter(words(text)) for text in texts]
    lengths = [sum(count.values()) for count in counts]
    mean_length = sum(lengths) / len(lengths)
    n_with = Counter(word for count in counts for word in count)
    scores = torch.zeros(len(queries), len(texts), dtype=torch.double)
    for row, query in enumerate(queries):
        for word in set(words(query)) & n_with.keys():
            rarity = math.log(1 + (len(texts) - n_with[word] + 0.5) / (n_with[word] + 0.5))
            for column, (count, length) in enumerate(zip(counts, lengths, strict=True)):
                if word in count:
                    often = count[word]
                    usual = k1 * (1 - b + b * length / mean_length)
                    scores[row, column] += rarity * often * (k1 + 1) / (often + usual)
    return scores


def ranks(scores: Tensor, right: Tensor) -> list[int]:
    """Return at which place the first right text stands, from 1, for each row of scores."""
    order = scores.argsort(dim=1, descending=True, stable=True)
    sorted_right = right.gather(1, order)
    return (sorted_right.int().argmax(dim=1) + 1).tolist()


def interval(values: Sequence[float], rng: random.Random) -> tuple[float, float]:
    """Draw values anew 2,000 times; return between which means 95 % of the draws lie."""
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(2_000))
    return means[50], means[1_949]


def judge(name: str, found: list[int], cosine: float | None) -> Row:
    """Make a row of ``results.csv`` of the ranks of all queries."""
    inverse = [1 / rank for rank in found]
    low, high = interval(inverse, random.Random(0))
    row: Row = {"method": name, "queries": len(found)}
    row |= {f"at_{k}": sum(rank <= k for rank in found) / len(found) for k in AT}
    return row | {"mrr": sum(inverse) / len(found), "low": low, "high": high, "cosine": cosine}


def compare(rows: list[Row], made: dict[str, Tensor]) -> tuple[list[Row], list[Row]]:
    """Let all methods answer all queries; return the rows of ``results`` and of ``queries``."""
    asked = [n for n, row in enumerate(rows) if row["heading"] == SUMMARY]
    corpus = [n for n, row in enumerate(rows) if row["heading"] != SUMMARY]
    right = torch.tensor([[rows[q]["page"] == rows[n]["page"] for n in corpus] for q in asked])
    found: dict[str, list[int]] = {}
    results = []
    for name, table in made.items():
        found[name] = ranks(table[asked] @ table[corpus].T, right)
        total, n = table[corpus].double().sum(dim=0), len(corpus)
        cosine = float((total @ total - n) / (n * (n - 1)))  # the pairs of one with itself left out
        results.append(judge(name, found[name], cosine))
    texts = [str(row["text"]) for row in rows]
    scores = bm25([texts[n] for n in asked], [texts[n] for n in corpus])
    found["words"] = ranks(scores, right)
    results.append(judge("words", found["words"], None))
    last = list(made)[-3] if "pooler" in made else list(made)[-2]  # the mean after the last block
    queries = [
        {"page": rows[n]["page"], "minilm": mine, "words": counted, "query": rows[n]["text"]}
        for n, mine, counted in zip(asked, found[last], found["words"], strict=True)
    ]
    return results, queries


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the book, make the vectors, and compare."""
    options = read_options("paragraphs", __doc__, arguments)
    rows = read_paragraphs()
    if options.tiny:  # two pages
        names = sorted({str(row["page"]) for row in rows})[4:6]
        some = [row for row in rows if row["page"] in names]
        rows = some[:6] + [row for row in some if row["heading"] == SUMMARY][:3] + some[-3:]
    with torch.device(options.device):
        made = vectors(minilm.load(), [str(row["text"]) for row in rows])
    made = {name: table.cpu() for name, table in made.items()}
    kept = {"vectors": made["layer 6"].half().contiguous()}
    save_file(kept, options.folder / "vectors.safetensors")
    results, queries = compare(rows, made)
    metrics: dict[str, Any] = {f"mrr ({row['method']})": row["mrr"] for row in results}
    metrics |= {"paragraphs": len(rows), "queries": results[0]["queries"]}
    write_results(
        options, f"the text of chapters 0 to {LAST}; weights: {minilm.PACKAGE}", ABOUT, metrics,
        constant_adam(1), tables={"paragraphs": rows, "queries": queries, "results": results},
    )  # fmt: skip


if __name__ == "__main__":
    main()
