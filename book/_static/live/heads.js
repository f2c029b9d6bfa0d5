"use strict";
/* Chapter 6: where does each head of a trained model look? Rows are T queries, columns S keys. */
(() => {
const MAX = 40; // tokens; what comes after them is cut off
const WHAT = {
  before: "weight on the letter before", itself: "weight on itself", same: "weight on copies of itself",
  space: "weight on spaces", first: "weight on the first position", distance: "distance in letters",
  entropy: "entropy in nats",
};
const CELL = { // what one cell adds to its row; false if the row's sum leaves it out
  before: (w, i, j) => j === i - 1 && w,
  itself: (w, i, j) => j === i && w,
  same: (w, i, j, { queries, keys }) => j !== i && keys[j] === queries[i] && w,
  space: (w, i, j, { keys }) => keys[j] === " " && w,
  first: (w, i, j) => j === 0 && w,
  distance: (w, i, j) => w * Math.abs(i - j),
  entropy: (w) => (w > 0 ? -w * Math.log(w) : 0),
};
const ACROSS = ["space", "first", "entropy"]; // what can be asked of two different texts

const doesApply = (what, model, part) => model === "shakespeare" || part !== "cross" || ACROSS.includes(what);

const PIECE = 2; // letters of a line that are read at a time

/* Reads ids in pieces. The maps [layer][head][query], each (S,): a letter gives none to what comes later. */
function* read(model, ids) {
  const cache = model.cache();
  const maps = [];
  for (let at = 0; at < ids.length; at += PIECE) {
    yield;
    model.run(ids.slice(at, at + PIECE), cache, { keep: true }).attention.forEach((heads, layer) =>
      heads.forEach((rows, head) => rows.forEach((row) => {
        const whole = new Float64Array(ids.length);
        whole.set(row);
        ((maps[layer] ??= [])[head] ??= []).push(whole);
      })));
  }
  return maps;
}

/* For each attention of the model: tokens, and maps [layer][head][query], each (S,). */
function* run(model, text) {
  const { tokenizer } = model;
  const ids = tokenizer.encode(text).slice(0, MAX);
  if (!ids.length) return null;
  const named = (list) => list.map((id) => tokenizer.tokens[id]);
  const table = (rows, columns, maps) => ({ queries: named(rows), keys: named(columns), maps });
  const keep = { keep: true };
  if (!model.encode) return { decoder: table(ids, ids, yield* read(model, ids)) };
  yield;
  const source = model.encode(ids, keep);
  const options = { cache: model.cache(source), stop: tokenizer.eos };
  const target = [tokenizer.bos, ...model.greedy([tokenizer.bos], MAX - 1, options)];
  yield;
  const found = model.run(target, model.cache(source), keep);
  return {
    encoder: table(ids, ids, source.attention),
    decoder: table(target, target, found.attention),
    cross: table(target, ids, found.cross_attention),
  };
}

const seen = ({ part, keys }, i) => (part === "decoder" ? i + 1 : keys.length); // keys that query i sees

/* The mean over all queries that see such a cell; null if there is none. */
function mean(what, table, map) {
  if (table.part === "cross" && !ACROSS.includes(what)) return null;
  let [sum, rows] = [0, 0];
  map.forEach((row, i) => {
    let isAsked = false;
    for (let j = 0; j < seen(table, i); j++) {
      const part = CELL[what](row[j], i, j, table);
      isAsked ||= part !== false;
      sum += Number(part);
    }
    rows += isAsked;
  });
  return rows ? sum / rows : null;
}

const kept = {}; // the last run of each model: another head must not run it again

function* prepare(state, model) {
  const text = state.model === "shakespeare" ? state.text : state.number;
  if (kept[state.model]?.text !== text) kept[state.model] = { text, tables: yield* run(model, text) };
}

function values(state, model) {
  const part = state.model === "shakespeare" ? "decoder" : state.part;
  for (const _ of prepare(state, model)); // mostly, that is done
  const { tables } = kept[state.model];
  if (!tables) return { queries: [], keys: [], weights: [], links: [], means: [], even: [], heads: [] };
  const { maps, ...table } = { part, ...tables[part] };
  const layer = Math.min(state.layer, maps.length - 1); // the translator has fewer
  const head = Math.min(state.head, maps[0].length - 1);
  const at = Math.min(state.at, table.queries.length - 1);
  const measure = doesApply(state.measure, state.model, part) ? state.measure : "entropy";
  const weights = maps[layer][head]; // (T, S)
  const even = weights.map((row, i) => row.map((_, j) => (j < seen(table, i) ? 1 / seen(table, i) : 0)));
  const means = (map) => Object.keys(WHAT).map((what) => mean(what, table, map));
  return {
    ...table, layer, head, at, measure, weights, links: Live.part.strongest(weights[at]),
    means: means(weights), even: means(even), // in the order of WHAT
    heads: maps.map((one) => one.map((map) => mean(measure, table, map))), // (layers, H)
  };
}

/* The values of the start, which need no model: a tool has written them down. */
const stored = () => ({
  ...Live.headsStart, queries: [...Live.headsStart.queries], keys: [...Live.headsStart.keys],
  weights: Live.headsStart.weights.map((row, _, { length }) => Array.from({ length }, (__, j) => row[j] ?? 0)),
});

const quoted = (token) => (token === " " ? "a space" : token === undefined ? "the end" : `“${token}”`);
const short = (value) => (value === null ? "none" : Live.part.number(value));

/* Where a key stands, as seen from the letter that looks; two texts have no such distance. */
function placed(keys, j, at, part) {
  if (part === "cross") return `${quoted(keys[j])} (${j})`;
  const far = Math.abs(at - j);
  return far ? `${quoted(keys[j])}, ${far} ${far === 1 ? "letter" : "letters"} ${j < at ? "before" : "after"}` : "itself";
}

/* One sentence: who looks at whom. How the heads differ is drawn. */
function say({ model }, { part, queries, keys, layer, head, at, links }) {
  if (!queries.length) return "There is no letter yet: type some.";
  const isWriting = model === "numbers" && part !== "encoder";
  const writes = isWriting ? `It writes ${queries.slice(1).join("")}. ` : "";
  const who = part === "cross" ? `about to write ${quoted(queries[at + 1])}, the decoder` : quoted(queries[at]);
  const places = links.map(([j, w], n) => `${short(w)} ${n ? "" : "of its weight "}to ${placed(keys, j, at, part)}`);
  return `${writes}Head ${head + 1} of layer ${layer + 1}: ${who} gives ${places.join("; ")}.`;
}

// What a model cannot know ----

const listed = (letters) => [...new Set(letters)].map((letter) => `“${letter}”`).join(", ");
const strange = (text, known) => [...text].filter((letter) => !known.includes(letter));

function remarkOfLine(text) {
  const letters = strange(text, Live.PLAYS);
  return letters.length ? `Not in the plays: ${listed(letters)}. The model reads their bytes, and has learned nothing about them.` : "";
}

function remarkOfNumber(text) {
  if (!text || Live.isTrained(text)) return "";
  const letters = strange(text, Live.NUMBER_LETTERS);
  const never = letters.length ? ` It has never read ${listed(letters)}.` : "";
  return `It knows only English numbers in words, such as forty-two: here its answer means nothing.${never}`;
}

/* The measure that stands in the menu is the one that is shown. */
const settled = (state) => (doesApply(state.measure, state.model, state.part) ? state : { ...state, measure: "entropy" });

// The page ----

const [WIDE, EDGE] = [360, 18]; // px of the map, and of the letters beside it
const HINT = "click a letter: it is outlined, and looks at the coloured ones";
const READY = { // when a model has come, and nothing else has changed
  wide: "Now click a letter or a head, or type a line of your own.", narrow: "Now press a row of the map, or a head.",
};
const FAINT = "What is faint, a frame or a tick, is the state before.";

/* The map of one head. Nodes are made for a pair of texts; another head or row changes what is drawn on them.
   The letters beside 40 by 40 cells must stay readable on a phone: cells may be higher than wide. */
function mapOf({ svg, drawing, colour, sign, isNarrow }, { queries, keys, part }, onpick) {
  const wide = Math.min(22, (WIDE - EDGE) / keys.length);
  const tall = isNarrow() ? 13.5 : queries.length <= 30 ? 16 : 14.5;
  const box = (i, j, n, more) =>
    svg("rect", { x: EDGE + j * wide, y: EDGE + i * tall, width: n * wide, height: tall - 1, ...more });
  const letter = (x, y, token) => svg("text", {
    x, y: token === " " ? y - 3 : y, "text-anchor": "middle", class: "live-letter", text: sign(token) });
  const rows = queries.map((token, i) => {
    const cells = keys.map((_, j) => (j < seen({ part, keys }, i) ? box(i, j, 1, { opacity: 0 }) : null));
    const row = svg(
      "g", { fill: colour("weight"), class: "live-row", onclick: () => onpick(i) },
      letter(EDGE / 2, EDGE + (i + 0.5) * tall + 4, token),
      box(i, 0, seen({ part, keys }, i), { fill: "var(--fig-panel)" }), ...cells);
    return { row, cells: cells.filter(Boolean), shown: [], letter: row.firstChild };
  });
  const frame = svg("rect", {
    x: EDGE, height: tall - 1, fill: "none", stroke: "var(--fig-ink)", "stroke-width": 2, "pointer-events": "none" });
  const node = drawing({ width: WIDE, height: EDGE + tall * queries.length, label: "Attention weights, queries by keys" });
  const heads = keys.map((token, j) => letter(EDGE + (j + 0.5) * wide, 12, token));
  node.append(...heads, ...rows.map(({ row }) => row), frame);
  return {
    node,
    set({ weights, at }) {
      rows.forEach(({ letter: one }, i) => one.classList.toggle("live-here", i === at));
      heads.forEach((one, j) => one.classList.toggle("live-here", weights[at][j] >= 0.2)); // what the row looks at
      Live.tween(node, weights.map((row) => Array.from(row)), (now) => now.forEach((row, i) => {
        const { cells, shown } = rows[i];
        cells.forEach((cell, j) => {
          const opacity = row[j] >= 0.005 ? row[j].toFixed(2) : "0";
          if (shown[j] !== opacity) cell.setAttribute("opacity", (shown[j] = opacity));
        });
      }), { step: 1 });
      Live.tween(frame, [EDGE + at * tall, seen({ part, keys }, at) * wide], ([y, width]) => {
        frame.setAttribute("y", y);
        frame.setAttribute("width", width);
      });
    },
  };
}

function build(part, figure) {
  const pick = (changes) => {
    figure.set(changes, Live.QUICK);
    figure.released();
    figure.loadIfAsked(); // another head, or another letter, is not written down
  };
  const onpick = (at) => pick({ at });
  const text = part.tokens({ label: "Pick the letter that looks", onpick });
  const source = part.tokens({ label: "What it looks at" });
  const grid = part.heat({ label: "All heads", plain: true, onpick: (layer, head) => pick({ layer, head }) });
  const against = part.bars({ label: "This head, and even weights", names: ["this head", "even weights"] });
  const numbers = part.numbers({ label: "Means over the line", names: Object.values(WHAT) });
  const [left, right] = [part.titled("", part.html("div")), part.titled("", grid.node)];
  const compared = part.titled("its mean over the line", against.node);
  const means = part.titled("means over the line (in brackets: even weights)", numbers.node);
  means.classList.add("live-extra");
  const faint = part.html("p", { class: "live-title heads-faint" });
  const isNarrow = part.isNarrow();
  const hint = isNarrow ? left.firstChild : part.html("p", { class: "live-title" });
  let [map, drawn, kind] = [null, "", ""];

  /* What was measured otherwise, or of another model, is not what stood here before. */
  function compare(state, { part: of, measure, heads }, pair) {
    const now = [state.model, of, measure].join();
    if (now !== kind) [grid.node, against.node, faint].forEach(Live.forget);
    kind = now;
    if (isNarrow) Live.forget(grid.node); // what explains its frames is not on the screen
    Live.tween(faint, [heads, pair], (_, before) => part.write(faint, before ? FAINT : ""));
  }

  function update(state, found) {
    const { queries, keys, weights, at, layer, head, heads } = found;
    const shade = (j) => ({ shade: weights[at][j], title: `position ${j}: ${short(weights[at][j])}` });
    const across = found.part === "cross";
    text.set(queries.map((token, i) => ({ text: token, mark: i === at, ...(across ? {} : shade(i)) })));
    source.set(across ? keys.map((token, j) => ({ text: token, ...shade(j) })) : []);
    left.hidden = right.hidden = compared.hidden = means.hidden = !queries.length;
    if (!queries.length) return;
    const shape = [found.part, ...queries, "|", ...keys].join(" ");
    if (shape !== drawn) {
      map = mapOf(part, found, onpick);
      left.lastChild.replaceWith(map.node);
      drawn = shape;
    }
    map.set(found);
    part.write(hint, HINT);
    hint.classList.remove("heads-ready");
    part.write(left.firstChild, `layer ${layer + 1}, head ${head + 1}: ${isNarrow ? "press a row or a head" : "rows look at columns"}`);
    left.firstChild.title = `In code: layer ${layer}, head ${head}`; // there both are counted from 0
    const n = Object.keys(WHAT).indexOf(found.measure);
    const pair = [found.means[n], found.even[n]];
    const own = `this head ${short(pair[0])}, even weights ${short(pair[1])}`;
    part.write(right.firstChild, isNarrow ? `${own}: pick another` : `${WHAT[found.measure]}: pick a head`);
    compare(state, found, pair);
    const columns = heads[0].map((_, n) => n + 1);
    const isMarked = (r, c) => r === layer && c === head;
    grid.set(heads, { rows: heads.map((_, n) => `layer ${n + 1}`), columns, isMarked });
    for (const cell of grid.node.querySelectorAll("[role=gridcell]")) cell.title = cell.getAttribute("aria-label");
    against.set(pair.map(Number), { texts: pair.map(short) });
    numbers.set(found.means.map((w, at) => (w === null ? null : `${short(w)} (${short(found.even[at])})`)));
  }

  function arrived() {
    if (figure.see.textContent) return; // a Try says what there is to see
    hint.textContent = READY[isNarrow ? "narrow" : "wide"];
    hint.classList.add("heads-ready");
    figure.status.prepend(`${hint.textContent} `);
  }

  if (isNarrow) // the map and what changes it stand on one screen; its rows are the letters
    return {
      nodes: [left, right], rest: [text.node, source.node, compared, faint, means], update, arrived,
      more: ["Another line or model, all measures", 9, 1],
    };
  const letters = part.html("div", { class: "live-titled" }, hint, text.node);
  const chosen = part.html("div", { class: "live-stacked" }, right, compared, faint);
  return { nodes: [letters, source.node, part.columns(left, chosen)], rest: [means], update, arrived };
}

const text = (label, start, letters, remark) => ({ kind: "text", label, max: MAX, start, letters, remark });
const isNumbers = ({ model }) => model === "numbers";
const hidden = (max, start) => ({ kind: "number", min: 0, max, step: 1, start, hidden: true });

Live.define({
  name: "heads",
  title: "What trained heads look at",
  question: "Which head looks where, and is it more than even weights would give?",
  page: "06_heads",
  heights: [880, 1150],
  scripts: ["heads_start.js"],
  models: ["shakespeare", "numbers"],
  slow: true,
  needs: (state) => state.model,
  more: ["All measures of this head", 9, 9],
  state: {
    measure: { kind: "choice", label: "compare by", of: WHAT, start: "before", applies: (what, { model, part }) => doesApply(what, model, part) },
    model: {
      kind: "choice", label: "model", start: "shakespeare",
      of: { shakespeare: "Shakespeare", numbers: "translator" },
    },
    text: { ...text("line", "Is this a dagger which I see", "aeorst nIT,-’", remarkOfLine), when: ({ model }) => model === "shakespeare" },
    number: { ...text("number in English", "forty-two", "aefhinorstvwy -ü", remarkOfNumber), when: isNumbers },
    part: {
      when: isNumbers, kind: "choice", label: "attention", start: "cross",
      of: { encoder: "encoder, self", decoder: "decoder, self", cross: "cross" },
    },
    layer: hidden(3, 0), head: hidden(7, 7), at: hidden(MAX - 1, 15),
  },
  prepare,
  values,
  settled,
  stored,
  say,
  tries: [
    {
      do: "Find a head for spaces", set: { layer: 1, head: 0, at: 8, measure: "space" },
      see: "The diagonal is gone: this head looks back at spaces. They get 0.55 of its weight; even weights would give them 0.22.",
    },
    {
      do: "Let a space look", set: { at: 16 },
      see: "Every space of this line looks at itself: one reason why the mean is 0.62 and not 1.",
    },
    {
      do: "Find a head for copies",
      set: { text: "To-morrow, and to-morrow", layer: 0, head: 0, at: 22, measure: "same" },
      see: "The last o looks at o’s. Repeated letters give 0.50 to earlier copies; even weights: 0.14.",
    },
    {
      do: "Watch a translator", set: { model: "numbers", layer: 1, head: 3, at: 7, measure: "entropy" },
      see: "German says two-and-forty: this head looks first at the w of two, after und at the f of forty.",
    },
  ],
  build,
});
})();
