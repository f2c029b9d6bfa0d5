"""Small tokenizers set up like those of real checkpoints, and mixed text to try them on."""

import base64
import json
import random
import struct
import sys
import unicodedata
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from transformer_lib.core.files import book_folder

SCRIPTS = {
    "English": "To be, or not to be, that is the question: It's what THEY'LL say; I'd go.",
    "German": "Über allen Gipfeln ist Ruh, in allen Wipfeln spürest du kaum einen Hauch. Größe ẞß.",
    "French": "L'œuvre naïve d'où vient ça ? « Été », garçon, cœur, aïe, Noël, forêt, hôtel.",
    "Polish": "Zażółć gęślą jaźń. W Szczebrzeszynie chrząszcz brzmi w trzcinie.",
    "Vietnamese": "Tiếng Việt có nhiều dấu: ộ ế ữ ằ ẫ, người ta nói rất nhanh.",
    "Turkish": "İstanbul'da ılık bir gün; ISPARTA, ığdır, şeker, çiğ köfte.",
    "Russian": "Привет, мир! Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Greek": "Γειά σου Κόσμε. ΟΔΥΣΣΕΥΣ, ὁ ἄνθρωπος φύσει πολιτικὸν ζῷον.",
    "Chinese": "你好，世界。天地玄黄，宇宙洪荒；日月盈昃，辰宿列张。一二三 𠀀𠀁",
    "Japanese": "こんにちは、世界。吾輩は猫である。カタカナ ｶﾀｶﾅ ＡＢＣ１２３ ㍿",
    "Korean": "안녕하세요 세계. 한국어 조합: 한 글",
    "Arabic": "مرحبا بالعالم، السَّلامُ عليكم ٣٤٥ ﷽",
    "Hebrew": "שלום עולם, בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "Hindi": "नमस्ते दुनिया, क्षत्रिय ज्ञान १२३",
    "Thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "Tamil": "வணக்கம் உலகம், தமிழ் மொழி ௧௨௩",
    "emoji": "👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷🇯🇵 ❤️❤️ 🤖🤖 x😀y😀z 🏳️‍🌈 👩🏿‍🚀 1️⃣ #️⃣ ☎︎ 🫠",
    "numbers": "1 12 123 1234 12345678901 3.14159 1,000,000 2024-01-31 ½ ²³ Ⅷ ٣٤٥ 0x1F 1e-9 ①②",
    "code": "def f(x):\n    if x_1 >= 10:\n\treturn {'a': [x ** 2, -x]}  # y\n\n\nprint(f(3))\r\n",
    "markup": '<div class="a">&nbsp;</div>\n```c\nint f() { return 0; }\n```\n$$\\sum_{i=1}^n$$',
    "spaces": "  two   three    \n\n \n  \t tab\t\ttab \u00a0nb\u2003em\u3000wide"
    "\x1c\x1d\x85\u2028\u200b end   ",
    "marks": "e\u0301 o\u0308\u0304 a\u0300\u0301\u0302 Z\u0351\u036b n\u0303 \u0301alone ﬁ ﬀ Å K",
    "controls": "\x00\x01 a\x00b \x7f\x80\x9f\xad\ufeff\u200b\u2060 \ufffd\ufffe \U0010ffff\ue000",
    "long": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabababababababab" + "_-=" * 20 + "abc" * 30,
    "signs": "▁ ▁▁a▁b <0x41> <0xE2> Ġthe Ċ <|x|> < s > <s <|im_ end|> <unk> ĠĠ ’s ‘t “q” … – —",
    "contractions": "I'LL we'Re 'S 'ſ don't can'T 'tis '''s I'm I'M you'd y'all'd've",
}
SPECIALS = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "[INST]"]


def _is_old(character):
    """Whether all Unicode versions in use agree on a character: the peers have several."""
    kind, first = unicodedata.category(character), unicodedata.ucd_3_2_0.category(character)
    if first != "Cn":
        return kind == first
    plain = unicodedata.normalize("NFKC", character) == character
    return plain and kind[0] not in "MP" and kind != "Cf"


ASSIGNED = [
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(character) not in ("Cn", "Cs") and _is_old(character)
]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MIDDLE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _MIDDLE
QWEN2 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _MIDDLE
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
O200K = "|".join(
    [rf"[^\r\n\p{{L}}\p{{N}}]?{case}{_SUFFIXES}?" for case in (_CASED, _UPPER)]
    + [r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
)


def random_text(draw, n):
    """Characters of all kinds, most of them from a few scripts."""
    near = draw.randrange(len(ASSIGNED))
    around = ASSIGNED[near : near + 40]
    usual = [*"ab Z1'\n\t .,-_▁", "\r\n", "  ", "e\u0301", "’"]
    return "".join(draw.choice(draw.choice([usual, usual, around, ASSIGNED])) for _ in range(n))


@cache
def mixed_texts(n_bytes, seed=0):
    """Texts of several languages, code, tables, random characters and special tokens in between."""
    draw = random.Random(seed)
    data, sources = book_folder() / "data", sorted(Path(__file__).parents[1].rglob("test_*.py"))
    names = ("shakespeare.txt", "languages.tsv", "numbers.tsv")
    files = [path.read_text("utf-8") for path in [*(data / name for name in names), *sources[:9]]]
    texts, size = ["", *SCRIPTS.values(), *(c for text in SCRIPTS.values() for c in text[:9])], 0
    while size < n_bytes:
        pieces = []
        for _ in range(draw.randint(1, 12)):
            kind = draw.randrange(8)
            if kind < 3:
                source = draw.choice(files)
                start = draw.randrange(len(source))
                pieces.append(source[start : start + draw.randrange(400)])
            elif kind < 6:
                text = draw.choice(list(SCRIPTS.values()))
                start = draw.randrange(len(text))
                pieces.append(text[start : start + draw.randrange(120)])
            elif kind == 6:
                pieces.append(random_text(draw, draw.randrange(60)))
            else:
                blank = draw.choice(["", "", " ", "\n", "  "])
                pieces.append(
                    blank + draw.choice(SPECIALS) + draw.choice(["", "", " ", " \n", "a"])
                )
        texts.append("".join(pieces))
        size += len(texts[-1].encode())
    return tuple(texts)


@cache
def training_texts():
    """What the small vocabularies are learned from."""
    draw = random.Random(1)
    shakespeare = (book_folder() / "data" / "shakespeare.txt").read_text("utf-8")
    words = shakespeare.split()
    return [*SCRIPTS.values(), shakespeare[:120_000], Path(__file__).read_text("utf-8")] + [
        " ".join(draw.choices(words, k=8)) + str(draw.randrange(10**6)) for _ in range(300)
    ]


def _trained(pre_tokenizer, vocab_size, alphabet=(), **options):
    peer = Tokenizer(BPE())
    peer.pre_tokenizer = pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=list(alphabet), **options
    )
    peer.train_from_iterator(training_texts(), trainer)
    return json.loads(peer.to_str())["model"]


def _with_special(settings, names):
    """Add special tokens behind the vocabulary, or where they already are."""
    for name in names:
        _add(settings, name, special=True)
    return settings


def _add(settings, content, *, special, **flags):
    vocabulary, added = settings["model"]["vocab"], settings["added_tokens"]
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        vocabulary = {piece: n for n, (piece, _) in enumerate(vocabulary)}
    free = max([*vocabulary.values(), *(token["id"] for token in added)]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | flags
    number = vocabulary.get(content, free)
    added.append({"id": number, "content": content, "special": special, **flags})


def _settings(peer_model, **parts):
    settings = json.loads(Tokenizer(BPE()).to_str())
    settings["model"] |= peer_model
    settings |= {name: json.loads(part.__getstate__()) for name, part in parts.items()}
    return settings


def byte_level(pre_tokenizer, normalizer=None, begin=None, vocab_size=1500):
    """A checkpoint in the manner of GPT-2: words are bytes."""
    parts = {"pre_tokenizer": pre_tokenizer, "decoder": decoders.ByteLevel()}
    parts |= {"normalizer": normalizer} if normalizer else {}
    model = _trained(pre_tokenizer, vocab_size, pre_tokenizers.ByteLevel.alphabet())
    settings = _settings(model, **parts, post_processor=processors.ByteLevel(trim_offsets=False))
    names = SPECIALS if begin is None else [begin, *SPECIALS]
    settings = _with_special(settings, names)
    if begin:
        number = next(t["id"] for t in settings["added_tokens"] if t["content"] == begin)
        template = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, number)]
        )
        both = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        settings["post_processor"] = json.loads(both.__getstate__())
    return settings


def split(pattern):
    """Cut by a pattern, then write the bytes."""
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([cut, bytes_only])


def sentence_piece(
    normalizer=None, pre_tokenizer=None, strip=True, crossing=False, bytes_missing=0, **options
):
    """A checkpoint in the manner of Llama 2: characters, with bytes for those that are unknown."""
    learn_by = pre_tokenizers.Metaspace("▁", "always")
    if crossing:  # merges go over the ends of words
        learn_by = pre_tokenizers.Split(Regex(r"\S+\s+\S+\s*"), "isolated")
    learned = _trained(learn_by, 1200, limit_alphabet=150, max_token_length=16)
    merges = [[a.replace(" ", "▁"), b.replace(" ", "▁")] for a, b in learned["merges"]]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(bytes_missing, 256)), "▁"]
    tokens += [token.replace(" ", "▁") for token in learned["vocab"]]
    model = {"vocab": {token: n for n, token in enumerate(dict.fromkeys(tokens))}, "merges": merges}
    model |= {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **options}
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps += [decoders.Strip(" ", 1, 0)] if strip else []
    begin = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    parts |= {"decoder": decoders.Sequence(steps), "post_processor": begin}
    given = {name: part for name, part in parts.items() if part is not None}
    return _with_special(_settings(model, **given), SPECIALS)


def _gemma():
    spaces = normalizers.Replace(" ", "▁")
    words = pre_tokenizers.Split(" ", "merged_with_previous")
    settings = sentence_piece(spaces, words, strip=False)
    for text in ("\n\n", "\n\n\n", "▁▁▁", "\t\t", "<table>"):
        _add(settings, text, special=False)
    return settings


def _llama3():
    settings = byte_level(split(LLAMA3), begin="<|begin_of_text|>")
    model = settings["model"]
    model["ignore_merges"] = True
    made = {"".join(pair) for pair in model["merges"][-200:]}  # tokens that no merge makes any more
    model["merges"] = [pair for pair in model["merges"][:-200] if "".join(pair) not in made]
    return settings


def _falcon():
    steps = [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
    return byte_level(pre_tokenizers.Sequence(steps))


def _deepseek():
    last = (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    patterns = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", last]
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(pre_tokenizers.Sequence([*steps, bytes_only]))


def _smollm():
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return byte_level(pre_tokenizers.Sequence([digits, words]))


def _words_of_metaspace():
    settings = sentence_piece(pre_tokenizer=pre_tokenizers.Metaspace("▁", "always"), fuse_unk=False)
    settings["decoder"] = json.loads(decoders.Metaspace("▁", "always").__getstate__())
    settings["model"]["byte_fallback"] = False
    settings["model"]["merges"] = [" ".join(pair) for pair in settings["model"]["merges"]]
    return settings


def _llama2_spaces():
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return normalizers.Sequence(steps)


def _flagged():
    """Added tokens with every flag, looked for in the text and in the normalized text."""
    settings = byte_level(
        split(QWEN2), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    )
    names = ["lstrip", "rstrip", "single_word", "normalized"]
    words = ["the", "to", "of", "<s", "<|im_", "THOU", "a", "and", "I'll", "12", "é", "ﬁ", "in"]
    for n, word in enumerate([*words, "Σ", "<X>", "you"]):
        flags = {name: bool(n >> place & 1) for place, name in enumerate(names)}
        _add(settings, word, special=n % 3 == 0, **flags)
    return settings


def word_piece(lowercase, prefix="##", cleanup=True, longest=100):
    """A checkpoint in the manner of BERT: words, and pieces that go on with a word."""
    learned = settings_of("Llama 2")["model"]["vocab"]
    words = [token.lower() if lowercase else token for token in learned]
    pieces = [word[1:] if word[0] == "▁" else prefix + word for word in words[260:]]
    letters = [*"abcdefghijklmnopqrstuvwxyz.,!?'-1234567890äéпривет世界", *"ABTW" * (not lowercase)]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*names, *letters, *(prefix + letter for letter in letters), *pieces]
    vocabulary = {piece: n for n, piece in enumerate(dict.fromkeys(filter(None, pieces)))}
    model = {
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": longest, "vocab": vocabulary,
    }  # fmt: skip
    around = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    if not lowercase:
        around = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    parts = {
        "normalizer": normalizers.BertNormalizer(lowercase=lowercase),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece(prefix, cleanup),
        "post_processor": around,
    }
    return _with_special(_settings({}, **parts) | {"model": model}, [*names, *SPECIALS])


def double_array(table):
    """A search tree as SentencePiece stores it, and behind it the texts at its ends."""
    units, texts = {}, bytearray()

    def place(node, keys, depth):
        """Lay out the branches of a node: all keys below it, and what they stand for."""
        branches = {}
        for key, value in keys:
            branches.setdefault(key[depth] if depth < len(key) else 0, []).append((key, value))
        base = next(b for b in range(1, 1 << 20) if not any(b ^ c in units for c in branches))
        assert (node ^ base) < 1 << 21
        units[node] = units.get(node, 0) | (node ^ base) << 10 | (1 << 8 if 0 in branches else 0)
        units.update({base ^ c: c for c in branches})
        for c, below in branches.items():
            if c == 0:
                units[base] = 1 << 31 | below[0][1]
            else:
                place(base ^ c, below, depth + 1)

    keys = []
    for text, other in sorted(table.items()):
        keys.append((text.encode(), len(texts)))
        texts += other.encode() + b"\0"
    units[0] = 0
    place(0, keys, 0)
    numbers = [units.get(n, 0) for n in range((max(units) // 256 + 1) * 256)]
    return struct.pack(f"<{len(numbers) + 1}I", 4 * len(numbers), *numbers) + bytes(texts)


def charsmap():
    """What SentencePiece does to the scripts above: full width, ligatures, blanks, accents."""
    characters = sorted(set("".join(SCRIPTS.values())))
    table = {c: unicodedata.normalize("NFKC", c) for c in characters}
    table = {c: other for c, other in table.items() if c != other}
    table |= dict.fromkeys("\t\n\r\u00a0\u2003\u2028\u3000", " ")
    table |= dict.fromkeys("\x01\x7f\u200b\ufeff", "")
    both = [letter + "\u0301" for letter in "aeo"]
    table |= {two: unicodedata.normalize("NFC", two) for two in both}
    return base64.b64encode(double_array(table)).decode()


PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": charsmap()}


def unigram(pre_tokenizer, *, steps=(), begin=True, scheme="always", **options):
    """A checkpoint in the manner of T5: pieces with a probability."""
    draw, learned = random.Random(2), list(settings_of("Llama 2")["model"]["vocab"])
    first = learned[:3] if not options.get("byte_fallback") else learned[:259]
    pieces = [[token, 0.0] for token in ("<pad>", *first)]
    pieces += [[token, -draw.randint(2000, 14_000) / 1000] for token in learned[259:]]
    model = {"type": "Unigram", "unk_id": 1, "vocab": pieces, "byte_fallback": False, **options}
    template = {"single": "$A </s>", "pair": "$A </s> $B </s>", "special_tokens": [("</s>", 3)]}
    if begin:
        template = {
            "single": "<s> $A </s>", "pair": "<s> $A </s> $B </s>",
            "special_tokens": [("<s>", 2), ("</s>", 3)],
        }  # fmt: skip
    parts = {
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoders.Metaspace("▁", scheme),
        "post_processor": processors.TemplateProcessing(**template),
    }
    normalizer = {"type": "Sequence", "normalizers": [*map(_as_json, steps), PRECOMPILED]}
    settings = _settings({}, **parts) | {"model": model}
    settings["normalizer"] = normalizer if steps else PRECOMPILED
    return _with_special(settings, SPECIALS)


def _as_json(part):
    return json.loads(part.__getstate__())


def _metaspace(*before):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.Metaspace("▁", "always")])


def _albert():
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    plain = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    settings = unigram(_metaspace(pre_tokenizers.WhitespaceSplit()), steps=[*quotes, *plain])
    _add(settings, "[MASK]", special=True, lstrip=True)
    return settings


MAKERS = {
    "BERT": lambda: word_piece(lowercase=True),
    "BERT, cased": lambda: word_piece(lowercase=False, cleanup=False, longest=12),
    "T5": lambda: unigram(_metaspace(), begin=False),
    "ALBERT": _albert,
    "XLM-R": lambda: unigram(
        _metaspace(pre_tokenizers.WhitespaceSplit()),
        steps=[normalizers.Replace(Regex(" {2,}"), " ")],
    ),
    "Unigram with bytes": lambda: unigram(_metaspace(), byte_fallback=True),
    "GPT-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "with a prefix": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "Llama 2": lambda: sentence_piece(_llama2_spaces()),
    "Llama 2, Metaspace": lambda: sentence_piece(
        pre_tokenizer=pre_tokenizers.Metaspace("▁", "first", split=False)
    ),
    "Mistral": lambda: sentence_piece(
        pre_tokenizer=pre_tokenizers.Metaspace("▁", "always", split=False)
    ),
    "words of Metaspace": _words_of_metaspace,
    "merges over spaces": lambda: sentence_piece(_llama2_spaces(), crossing=True),
    "bytes missing": lambda: sentence_piece(_llama2_spaces(), bytes_missing=0xA5),
    "no unknown token": lambda: sentence_piece(
        _llama2_spaces(), byte_fallback=False, unk_token=None
    ),
    "Gemma": _gemma,
    "Llama 3": _llama3,
    "Qwen 2": lambda: byte_level(split(QWEN2), normalizers.NFC()),
    "SmolLM2": _smollm,
    "OLMo 2": lambda: byte_level(split(LLAMA3)),
    "o200k": lambda: byte_level(split(O200K)),
    "Falcon": _falcon,
    "DeepSeek": _deepseek,
    "flags": _flagged,
}


@cache
def settings_of(name):
    """The content of ``tokenizer.json``; do not change it."""
    return MAKERS[name]()


@cache
def peer_of(name):
    return Tokenizer.from_str(json.dumps(settings_of(name)))
