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
  const cut = ids.map((id) => tokens[id]);
  return {
    ids, letters,
    tokens: cut,
    pieces: cut.filter(isPiece).length,
    length: ids.length,
    scores: ids.length ** 2,
    letterScores: letters ** 2,
    each: ids.length ? letters / ids.length : null,
    vocabulary: special.length + 256 + merges,
    last: merges ? Live.merges[merges - 1].map((number) => tokens[special.length + number]) : [],
  };
}

/* A token of bytes that are no whole character looks like \xd0. */
const isPiece = (token) => token.includes("\\x");

/* What all merges join in a text, each part before its whole: its merge, from where to where, and its two parts.
   The first m merges join those whose number is at most m, for no merge needs a later one. */
function joins(text) {
  const { encode, special, lengths } = tokenizer();
  const found = [];
  const grow = (id, start) => {
    const rank = id - special.length - 255; // from 1; what is no merge is a byte
    if (rank < 1) return { rank: 0, start, end: start + lengths[id], at: start + lengths[id] / 2 };
    const [one, other] = Live.merges[rank - 1].map((number) => special.length + number);
    const left = grow(one, start), right = grow(other, left.end);
    found.push({ rank, start, end: right.end, left, right, at: (left.at + right.at) / 2 });
    return found.at(-1);
  };
  encode(text, ALL).reduce((start, id) => grow(id, start).end, 0);
  return found;
}

const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");
const many = (count, word) => (count === 1 ? `1 ${word}` : `${grouped(count)} ${word}s`);

function say(state, { letters, length, each, scores, letterScores, pieces }) {
  if (!length) return "There is no text to cut.";
  const share = `${Live.part.number(each)} characters a token`;
  const cut = `${many(letters, "character")}, ${many(length, "token")}: ${share}.`;
  const made = `Attention makes ${length}² = ${many(scores, "score")};`;
  const why = pieces ? ` ${pieces === 1 ? "1 token is a piece" : `${pieces} tokens are pieces`} of a character (dashed): ` +
    "outside of English letters a character has two to four bytes, and the plays taught no merge that makes it whole." : "";
  return `${cut} ${made} character by character it would make ${letters}² = ${grouped(letterScores)}.${why}`;
}

// Drawing ----

const MOST_IDS = 24; // with more tokens there is no room for the ids

/* A box for each token, its id below it. A box comes from where its letters were: merges slide together. */
function strip(part) {
  const shown = part.html("div", { class: "live-tokens live-strip", role: "img" });
  const make = () => part.html("span", { class: "live-token" }, part.html("span"), part.html("small"));
  let before = { text: null, starts: [], places: [] };
  const places = () => Array.from(shown.children, ({ offsetLeft, offsetTop }) => [offsetLeft, offsetTop]);
  const titled = part.titled("", shown);
  return {
    node: titled,
    set({ text, merges }, { ids, tokens }) {
      const { lengths, special } = tokenizer();
      const isMoving = !Live.isStill() && before.text === text;
      const from = isMoving ? places() : [];
      const starts = ids.map(((at) => (id) => (at += lengths[id]) - lengths[id])(0)); // in bytes
      part.write(titled.firstChild, ids.length <= MOST_IDS ? "tokens and their ids" : `${ids.length} tokens; up to ${MOST_IDS}, each shows its id`);
      part.fit(shown, ids.length, make);
      ids.forEach((id, at) => {
        const box = shown.children[at];
        part.write(box.firstChild, part.visible(tokens[at]));
        part.write(box.lastChild, ids.length <= MOST_IDS ? String(id) : "");
        box.title = isPiece(tokens[at]) ? `id ${id}: a piece of a character` : `id ${id}`;
        box.classList.toggle("live-piece", isPiece(tokens[at]));
        box.classList.toggle("live-marked", merges > 0 && id === special.length + 255 + merges); // the last merge
        box.style.setProperty("--role", part.colour(ROLES[at % 4]));
      });
      const to = isMoving ? places() : [];
      const came = to.map(([x, y], at) => {
        const old = before.starts.findLastIndex((start) => start <= starts[at]);
        return old < 0 ? [0, 0] : [from[old][0] - x, from[old][1] - y];
      });
      Live.tween(shown, ids.map(() => [0, 0]), (now) => now.forEach(([x, y], at) => {
        shown.children[at].style.transform = x || y ? `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)` : "";
      }), { from: isMoving ? came : undefined });
      before = { text, starts };
      const words = `Tokens: ${tokens.map(part.visible).join(" | ") || "none"}`;
      if (shown.getAttribute("aria-label") !== words) shown.setAttribute("aria-label", words);
    },
  };
}

/* The joins as a tree above the letters, the early ones low. The line of the slider cuts it: what is below it is
   joined, each token in the colour of its box. */
function tree(part) {
  const [width, height, most] = part.isNarrow() ? [330, 150, 26] : [600, 150, 52]; // as many bytes as there is room for
  const [top, foot, right] = [10, height - 24, width - 44];
  const node = part.drawing({ width, height, label: "The merges of this text, as a tree" });
  const y = (rank) => foot - (rank ? 8 + ((foot - top - 8) * Math.log(rank)) / Math.log(ALL) : 0);
  const add = (tag, more) => node.appendChild(part.svg(tag, more));
  for (const rank of [1, 10, 100, 1000])
    node.append(part.svg("path", { class: "live-gridline", d: `M0 ${y(rank)}H${right}` }),
      part.svg("text", { class: "live-tick", x: right + 6, y: y(rank) + 4, text: rank }));
  const rulers = add("path", { stroke: part.colour("muted"), fill: "none" }); // each byte of a letter that has more than one
  const [lines, letters] = [add("g", { fill: "none", "stroke-width": 1.8, "stroke-linejoin": "round" }), add("g", {})];
  const why = add("text", { class: "live-tick live-halo", x: right / 2, y: (top + foot) / 2, "text-anchor": "middle" });
  const cut = add("path", { stroke: part.colour("plain"), "stroke-dasharray": "5 3", "stroke-width": 1.4 });
  const make = () => part.svg("path");
  const bytes = new TextEncoder();
  let [known, found] = [null, []];
  const shown = part.titled("", node);
  return {
    node: shown,
    set({ text, merges }, { ids, letters: all }) {
      const { lengths } = tokenizer();
      if (text !== known) {
        found = joins(text).filter(({ end }) => end <= most);
        let start = 0;
        const places = [...text].map((letter) => [letter, start, (start += bytes.encode(letter).length)]).filter(([, , end]) => end <= most);
        const unit = right / Math.max(16, Math.min(most, start));
        part.fit(letters, places.length, () => part.svg("text", { class: "live-letter", y: foot + 17, "text-anchor": "middle" }));
        places.forEach(([letter, from, to], at) => {
          part.write(letters.children[at], part.visible(letter));
          letters.children[at].setAttribute("x", unit * (from + to) / 2);
        });
        const ticks = places.filter(([, from, to]) => to - from > 1).flatMap(([, from, to]) =>
          Array.from({ length: to - from }, (_, n) => `M${unit * (from + n + 0.5)} ${foot}v-8`).concat(`M${unit * (from + 0.5)} ${foot}H${unit * (to - 0.5)}`));
        rulers.setAttribute("d", ticks.join(""));
        part.write(why, !all || found.length ? "" : ticks.length ? "the plays taught no merge that joins these bytes" : "the plays taught no merge that fits here");
        part.write(shown.firstChild, `how merges 1 to ${grouped(ALL)} join ` +
          `${places.length < all ? `the first ${places.length} of ${all} characters` : "letters"}; dashed: the slider`);
        part.fit(lines, found.length, make);
        found.forEach(({ rank, left, right: other }, at) => lines.children[at].setAttribute(
          "d", `M${unit * left.at} ${y(left.rank)}V${y(rank)}H${unit * other.at}V${y(other.rank)}`));
        known = text;
      }
      let end = 0;
      const ends = ids.map((id) => (end += lengths[id]));
      found.forEach(({ rank, start }, at) => {
        const isJoined = rank <= merges, token = ends.findIndex((one) => one > start);
        lines.children[at].setAttribute("stroke", isJoined ? part.colour(ROLES[token % 4]) : "var(--fig-muted)");
        lines.children[at].setAttribute("opacity", isJoined ? 1 : 0.25);
      });
      Live.tween(node, y(merges ? merges + 0.5 : 0) - (merges ? 1 : 4), (at) => cut.setAttribute("d", `M0 ${at}H${right}`));
    },
  };
}

function squares(part) {
  const drawing = part.drawing({ width: SIDE + 2, height: SIDE + 2, label: "Two squares" });
  const dashed = { "stroke-dasharray": "4 3", stroke: part.colour("muted") };
  const square = (look) => drawing.appendChild(part.svg("rect", { x: 1, ...look }));
  const tokens = square({ fill: part.soft("weight"), stroke: part.colour("weight") });
  const was = square({ class: "live-ghost", fill: "none", stroke: part.colour("weight"), "stroke-width": 2 });
  const letters = square({ fill: "none", ...dashed });
  const size = (square, side) => {
    for (const name of ["width", "height"]) square.setAttribute(name, side);
    square.setAttribute("y", SIDE + 1 - side);
  };
  return {
    node: drawing,
    set({ text }, found) {
      const unit = SIDE / Math.max(new TextEncoder().encode(text).length, 1); // no text has more tokens than bytes
      Live.tween(drawing, { text, cut: unit * found.length, whole: unit * found.letters }, (now, old) => {
        size(tokens, now.cut);
        size(letters, now.whole);
        size(was, old?.text === now.text ? old.cut : 0); // another text has another scale
      }, { step: 1 });
      drawing.setAttribute("aria-label", `${found.scores} scores against ${found.letterScores}`);
    },
  };
}

function build(part, figure) {
  const [cut, grown, areas] = [strip(part), tree(part), squares(part)];
  const numbers = part.numbers({
    label: "Counts",
    names: ["characters", "tokens T", "scores T²", "the same with characters", "characters a token",
      part.isNarrow() ? "vocabulary V" : "vocabulary V: 256 bytes, 3 special tokens, merges"],
  });
  const merge = part.html("p", { class: "live-title live-caption" });
  const player = part.player(figure, {
    names: ["Play the merges", "Next merge that fits"], every: 700, stays: true,
    step() {
      const { text, merges } = figure.state;
      const next = tokenizer().next(text, merges);
      if (next !== null) figure.set({ merges: next }, Live.QUICK);
      return next !== null;
    },
    again: () => figure.set({ merges: 0 }, Live.QUICK),
  });
  const squared = part.titled("scores: T² (filled), characters² (dashed)", areas.node);
  return {
    nodes: [
      cut.node, grown.node, player.node, merge,
    ],
    rest: [part.html("div", { class: "live-aside" }, squared, numbers.node)],
    update(state, found) {
      cut.set(state, found);
      grown.set(state, found);
      areas.set(state, found);
      const [first, second] = found.last.map(part.visible);
      const next = tokenizer().next(state.text, state.merges); // the others change nothing here
      const more = next === null ? "no other fits" : `next to fit: merge ${grouped(next)}`;
      part.write(merge, (found.last.length
        ? `the ${grouped(state.merges)} merges end with ${first} + ${second} → ${first}${second}` : "no merges: 256 bytes, 3 special tokens") + `; ${more}`);
      const { letters, length, scores, letterScores, vocabulary } = found;
      numbers.set([
        letters, length, grouped(scores), grouped(letterScores), length ? part.number(found.each) : "–", grouped(vocabulary)]);
    },
  };
}

Live.define({
  name: "tokenizer",
  title: "One text, more or fewer merges",
  question: "What do merges buy, and for whom?",
  page: "02_tokens",
  heights: [935, 1130],
  scripts: ["text.js", "byte_pairs.js", "merges.js"],
  state: {
    text: {
      kind: "text", label: "text", max: 80, start: "The cats are sleeping while the dogs are running.",
      pattern: "[^\\ud800-\\udfff]*", // no half of a surrogate pair
      letters: "aaeeiinnorsttthh    ETW.,'’1984½éßд☃€😀_\u00a0", // for the tests
    },
    merges: {
      kind: "number", label: "merges", start: ALL, between: true,
      steps: [
        0, 1, 2, 3, 4, 5, 7, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 125, 150, 200, 250, 300, 400, 500,
        600, 700, 800, 900, 1000, 1100, 1200, ALL,
      ],
    },
  },
  values,
  joins,
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
