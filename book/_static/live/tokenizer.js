"use strict";
/* Chapter 2: one text, cut with more or fewer merges of the chapter's byte-pair encoding. */
(() => {
const ALL = 1277; // merges
const ROLES = ["query", "key", "value", "weight"]; // neighbours differ; the colour has no other meaning
const SIDE = 190; // px of the larger square

let made; // when first needed
const tokenizer = () => (made = made || Live.text.bytePairs(Live.merges));

function values({ text, merges }) {
  const { encode, tokens, special } = tokenizer();
  const ids = encode(text, merges); // (T,)
  const letters = [...text].length;
  return {
    ids, letters,
    tokens: ids.map((id) => tokens[id]),
    length: ids.length,
    scores: ids.length ** 2,
    letterScores: letters ** 2,
    each: ids.length ? letters / ids.length : null,
    vocabulary: special.length + 256 + merges,
    last: merges ? Live.merges[merges - 1].map((number) => tokens[special.length + number]) : [],
  };
}

const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");
const many = (count, word) => (count === 1 ? `1 ${word}` : `${grouped(count)} ${word}s`);

function say(state, { letters, length, each, scores, letterScores }) {
  if (!length) return "There is no text to cut.";
  const share = `${Live.part.number(each)} characters a token`;
  const cut = `${many(letters, "character")}, ${many(length, "token")}: ${share}.`;
  const made = `Attention makes ${length}² = ${many(scores, "score")};`;
  return `${cut} ${made} character by character it would make ${letters}² = ${grouped(letterScores)}.`;
}

// Drawing ----

const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎");

/* A box for each token, its id below it. */
function boxes(part, ids) {
  const { tokens } = tokenizer();
  return ids.map((id, at) => {
    const style = `--shade: 0.4; --role: ${part.colour(ROLES[at % 4])}; text-align: center`;
    const below = part.html("small", { text: id, style: "display: block; font-size: 0.75rem" });
    return part.html("span", { class: "live-token", style }, visible(tokens[id]), below);
  });
}

/* The strip has the height that the same text takes without merges, so that nothing below it moves. */
function strip(part) {
  const layer = (more) => {
    const style = `align-content: flex-start; grid-area: 1 / 1; ${more}`;
    return part.html("div", { class: "live-tokens", role: "img", style });
  };
  const [room, shown] = [layer("visibility: hidden"), layer("")];
  let before;
  return {
    node: part.html("div", { style: "display: grid" }, room, shown),
    set({ text }, { ids, tokens }) {
      if (text !== before) room.replaceChildren(...boxes(part, tokenizer().encode(text, 0)));
      before = text;
      shown.replaceChildren(...boxes(part, ids));
      shown.setAttribute("aria-label", `Tokens: ${tokens.map(visible).join(" | ") || "none"}`);
    },
  };
}

function squares(part) {
  const drawing = part.drawing({ width: SIDE + 2, height: SIDE + 2, label: "Two squares" });
  const tokens = part.svg("rect", { x: 1, fill: part.soft("weight"), stroke: part.colour("weight") });
  const dashed = { "stroke-dasharray": "4 3", stroke: part.colour("muted") };
  const letters = part.svg("rect", { x: 1, fill: "none", ...dashed });
  const size = (square, side) => {
    for (const name of ["width", "height"]) square.setAttribute(name, side);
    square.setAttribute("y", SIDE + 1 - side);
  };
  drawing.append(tokens, letters);
  return {
    node: drawing,
    set(found) {
      const unit = SIDE / Math.max(found.length, found.letters, 1);
      size(tokens, unit * found.length);
      size(letters, unit * found.letters);
      drawing.setAttribute("aria-label", `${found.scores} scores against ${found.letterScores}`);
    },
  };
}

function build(part) {
  const [cut, areas] = [strip(part), squares(part)];
  const numbers = part.numbers({
    label: "Counts",
    names: [
      "characters", "tokens T", "characters a token",
      "attention’s scores T²", "the same with characters", "vocabulary V", "last merge",
    ],
  });
  return {
    nodes: [
      part.titled("tokens and their ids", cut.node),
      part.columns(part.titled("scores: T² (filled), characters² (dashed)", areas.node), numbers.node),
    ],
    update(state, found) {
      cut.set(state, found);
      areas.set(found);
      const { letters, length, scores, letterScores, vocabulary } = found;
      numbers.set([
        letters, length, length ? part.number(found.each) : "–",
        ...[scores, letterScores, vocabulary].map(grouped), found.last.map(visible).join(" + ") || "none",
      ]);
    },
  };
}

Live.define({
  name: "tokenizer",
  title: "One text, more or fewer merges",
  question: "What do merges buy, and for whom?",
  page: "02_tokens",
  heights: [725, 1235],
  scripts: ["merges.js"],
  state: {
    text: {
      kind: "text", label: "text", max: 80, start: "The cats are sleeping while the dogs are running.",
      pattern: "[^\\ud800-\\udfff]*", // no half of a surrogate pair
      letters: "aaeeiinnorsttthh    ETW.,'’1984½éßд☃€😀_\u00a0", // for the tests
    },
    merges: {
      kind: "number", label: "merges", start: ALL,
      steps: [
        0, 1, 2, 3, 4, 5, 7, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 125, 150, 200, 250, 300, 400, 500,
        600, 700, 800, 900, 1000, 1100, 1200, ALL,
      ],
    },
  },
  values,
  say,
  tries: [
    {
      do: "Take all merges away", set: { merges: 0 },
      see: "Each byte is a token, and here each character: 49 in place of 16, and more than nine times as many scores.",
    },
    {
      do: "Write The, the and The", set: { text: "The the The" },
      see: "Three tokens with three unrelated ids, 422, 270 and 903: case counts, and so does the space " +
        "before a word.",
    },
    {
      do: "Rain in Russian", set: { text: "дождь" },
      see: "5 characters, 10 tokens: each has two bytes, and Shakespeare’s plays taught no merge for them. " +
        "The square of the tokens is four times that of the characters.",
    },
  ],
  build,
});
})();
