"use strict";
/* Chapter 4: the weights of one query without the root and with it, as width and number of keys change. */
(() => {
const WIDTHS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const [ROWS, KEYS, WIDEST] = [31, 64, 1024]; // queries and keys of a draw; an odd number has one median
const DIVISORS = { none: () => 1, root: Math.sqrt };
const MOST = 0.9; // of the weight

const kept = {};
const once = (name, make) => (kept[name] ??= make()); // a slider asks for the same numbers again and again

/* All dot products of a draw, a (31, 64) table for each width. A head of width d has the first d features
   of the same vectors: moving the slider adds features, or takes them away. */
function products(draw) {
  const numbers = Live.tensor.normals(draw, (KEYS + ROWS) * WIDEST); // 64 keys, then 31 queries
  const tables = WIDTHS.map(() => new Float64Array(ROWS * KEYS));
  for (let pair = 0; pair < ROWS * KEYS; pair++) {
    const q = (KEYS + Math.floor(pair / KEYS)) * WIDEST;
    const k = (pair % KEYS) * WIDEST;
    for (let at = 0, feature = 0, sum = 0; at < WIDTHS.length; at++) {
      for (; feature < WIDTHS[at]; feature++) sum += numbers[q + feature] * numbers[k + feature];
      tables[at][pair] = sum;
    }
  }
  return tables;
}

/* The scaled scores of the first n keys, an array for each query. */
function scoresOf(draw, width, n, by) {
  const table = once(draw, () => products(draw))[WIDTHS.indexOf(width)];
  const divisor = DIVISORS[by](width);
  const row = (_, at) => table.slice(at * KEYS, at * KEYS + n).map((product) => product / divisor);
  return Array.from({ length: ROWS }, row);
}

function deviation(list) {
  const mean = list.reduce((sum, each) => sum + each) / list.length;
  return Math.sqrt(list.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (list.length - 1));
}

const median = (list) => Float64Array.from(list).sort()[(ROWS - 1) / 2];

/* The largest weight of the median query: [none, root][at each width]. */
const laws = (draw, n) => Object.keys(DIVISORS).map((by) => WIDTHS.map((d) =>
  median(scoresOf(draw, d, n, by).map((scores) => Math.max(...Live.tensor.softmax(scores))))));

/* The first query: its weights, largest first, and how many of them make up nine tenths. */
function query(draw, width, n, by) {
  const scores = scoresOf(draw, width, n, by)[0];
  const weights = Live.tensor.softmax(scores).sort().reverse(); // (n,)
  let [holders, sum] = [0, 0];
  while (sum < MOST) sum += weights[holders++];
  return { weights, spread: deviation(scores), largest: weights[0], holders };
}

const values = ({ width, keys, draw }) => ({
  none: query(draw, width, keys, "none"),
  root: query(draw, width, keys, "root"),
  typical: once(`${draw}, ${keys} keys`, () => laws(draw, keys)),
});

function say({ width, keys }, { none, root }) {
  const { number } = Live.part;
  return `As they are, the scores have a standard deviation of ${number(none.spread)}, the largest of ${keys} ` +
    `weights is ${number(none.largest)}, and nine tenths of the weight go to ${none.holders} of the keys. ` +
    `Divided by √${width}, these three are ${number(root.spread)}, ${number(root.largest)} and ${root.holders}.`;
}

// The page ----

const [LEFT, RIGHT, TOP, FLOOR] = [30, 342, 14, 164]; // of the two drawings, which are 360 by 190
const up = (share) => FLOOR - share * (FLOOR - TOP);

function build(part) {
  const { colour, number } = part;
  const words = (x, y, anchor, text) =>
    part.svg("text", { class: "live-tick", x, y, "text-anchor": anchor, text });

  /* Bars from 0 to 1 that are drawn anew after every change, and a line where even weights would be. */
  function bars(label, role) {
    const node = part.drawing({ width: 360, height: 190, label });
    node.append(...[0, 0.5, 1].flatMap((tick) => [
      part.svg("path", { class: "live-gridline", d: `M${LEFT} ${up(tick)}H${RIGHT}` }),
      words(LEFT - 6, up(tick) + 5, "end", tick),
    ]), words(186, 184, "middle", "keys, largest weight first"));
    const layer = node.appendChild(part.svg("g"));
    const set = (weights) => {
      const wide = (RIGHT - LEFT) / weights.length;
      const even = up(1 / weights.length);
      const bar = (p, at) => `M${LEFT + (at + 0.1) * wide} ${FLOOR}V${up(p)}h${0.8 * wide}V${FLOOR}Z`;
      layer.replaceChildren(
        part.svg("path", { d: [...weights].map(bar).join(""), fill: colour(role) }),
        part.svg("path", { d: `M${LEFT} ${even}H${RIGHT}`, stroke: colour("plain"), "stroke-width": 1.6, "stroke-dasharray": "4 3" }),
        words(RIGHT, even - 6, "end", `even: 1/${weights.length}`));
    };
    return { node: part.titled(label, node), set };
  }

  const raw = bars("Weights, scores as they are", "plain");
  const scaled = bars("Weights, scores divided by √d", "weight");
  const numbers = part.numbers({ label: "This query, without the root and with it", names: [
    "standard deviation of the scores", "largest weight", "keys that hold 90% of the weight"] });
  const chart = part.lines({
    label: "Largest weight at each width", xLabel: "width d", yLabel: "largest weight",
    x: [1, 1024], y: [0, 1], logX: true });

  return {
    nodes: [
      part.columns(raw.node, scaled.node),
      part.columns(part.titled("this query: as it is → divided by √d", numbers.node),
        part.titled(`lines: the median of ${ROWS} queries; dots: this one`, chart.node)),
    ],
    update({ width }, { none, root, typical }) {
      raw.set(none.weights);
      scaled.set(root.weights);
      const both = (write) => `${write(none)}\u00a0→\u00a0${write(root)}`;
      numbers.set([
        both(({ spread }) => number(spread)), both(({ largest }) => number(largest)), both(({ holders }) => holders)]);
      const line = (name, role, ys) => ({ name, role, points: ys.map((y, at) => [WIDTHS[at], y]) });
      chart.set([
        line("divided by √d", "weight", typical[1]), line("as they are", "plain", typical[0]),
        { role: "weight", points: [[width, root.largest]] }, { role: "plain", points: [[width, none.largest]] }]);
    },
  };
}

Live.define({
  name: "scale",
  title: "Scores and their scale",
  question: "Why divide the scores by √d?",
  page: "04_scaling",
  heights: [840, 1399],
  state: {
    width: { kind: "number", label: "width\u00a0d", steps: WIDTHS, start: 64 },
    keys: { kind: "number", label: "keys", steps: [2, 4, 8, 16, 32, 64], start: 32 },
    draw: { kind: "number", label: "random draw", min: 1, max: 9, step: 1, start: 9 },
  },
  values, say, build,
  tries: [
    {
      do: "Widen to d = 1024", set: { width: 1024 },
      see: "As they are, the scores give one key 0.99 of the weight. Divided, the largest weight is 0.09.",
    },
    {
      do: "Narrow to d = 1", set: { width: 1 },
      see: "The root of 1 is 1: both rows are the same.",
    },
    {
      do: "Draw other vectors (draw 1)", set: { draw: 1 },
      see: "Four scores happen to lie close together here, so even without the root four keys share 0.94 of the weight.",
    },
    {
      do: "Take 64 keys", set: { keys: 64 },
      see: "Divided, the largest weight falls from 0.16 to 0.08. The root makes up for the width, not for more keys.",
    },
  ],
});
})();
