"use strict";
/* Chapter 4: what width, divisor and number of keys do to scores, weights and gradient. */
(() => {
const WIDTHS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const [ROWS, KEYS, WIDEST] = [31, 64, 1024]; // queries and keys of a draw; an odd number has one median
const DIVISORS = { none: () => 1, root: Math.sqrt, width: (d) => d };
const NAMES = { none: "nothing", root: "√d", width: "d" };

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

/* The Frobenius norm of diag(p) − p pᵀ, which is the root of Σp² − 2 Σp³ + (Σp²)². */
function jacobianSize(p) {
  let [squares, cubes] = [0, 0];
  for (const each of p) {
    squares += each * each;
    cubes += each * each * each;
  }
  return Math.sqrt(Math.max(0, squares - 2 * cubes + squares ** 2)); // rounding may leave −1e-17
}

const median = (list) => Float64Array.from(list).sort()[(ROWS - 1) / 2];

/* The largest weight of the median query: [none, root, width][at each width]. */
const laws = (draw, n) => Object.keys(DIVISORS).map((by) => WIDTHS.map((d) =>
  median(scoresOf(draw, d, n, by).map((scores) => Math.max(...Live.tensor.softmax(scores))))));

function values({ width, keys, by, draw }) {
  const scores = scoresOf(draw, width, keys, by)[0].sort().reverse(); // (n,): the first query's
  const weights = Live.tensor.softmax(scores); // (n,)
  const entropy = weights.reduce((sum, p) => sum - (p > 0 ? p * Math.log(p) : 0), 0);
  return {
    scores, weights, // largest first
    spread: deviation(scores),
    expected: Math.sqrt(width) / DIVISORS[by](width),
    largest: weights[0],
    effective: Math.exp(entropy),
    jacobian: jacobianSize(weights),
    even: Math.sqrt(keys - 1) / keys,
    typical: once(`${draw}, ${keys} keys`, () => laws(draw, keys)),
  };
}

function say({ keys }, found) {
  const short = (value) => Live.part.number(value, value < 9.995 ? 2 : 1);
  return `The scores spread by ${short(found.spread)}; ${short(found.expected)} is expected. ` +
    `The largest of ${keys} weights is ${short(found.largest)}: ` +
    `the query is as undecided as among ${short(found.effective)} keys. ` +
    `The softmax lets a gradient of ${short(found.jacobian)} through; even weights: ${short(found.even)}.`;
}

// The page ----

const [LEFT, RIGHT, TOP, FLOOR] = [30, 342, 14, 164]; // of the two drawings, which are 360 by 210
const BEHIND = 10; // how far behind the best score the drawing reaches
const up = (share) => FLOOR - share * (FLOOR - TOP);
const across = (behind) => RIGHT + (behind / BEHIND) * (RIGHT - LEFT); // behind is 0 or less
const tip = (behind) => up(0.7 * Math.exp(behind)); // above it is room for the spread

function build(part) {
  const { colour, number } = part;
  const path = (d, role, more) =>
    part.svg("path", { d, stroke: colour(role), fill: "none", "stroke-width": 1.6, ...more });
  const filled = (d, fill) => part.svg("path", { d, fill });
  const words = (x, y, anchor, text) =>
    part.svg("text", { class: "live-tick", x, y, "text-anchor": anchor, text });

  /* A drawing with an axis, and a layer that is drawn anew after every change. */
  function layered(label, xLabel, still, change) {
    const node = part.drawing({ width: 360, height: 210, label });
    node.append(...still, path(`M${LEFT} ${FLOOR}H${RIGHT}`, "muted"), words(186, 204, "middle", xLabel));
    const layer = node.appendChild(part.svg("g"));
    return { node: part.titled(label, node), set: (found) => layer.replaceChildren(...change(found)) };
  }

  /* The softmax sees how far a score lies behind the best: its weight is the best's, times e to this. */
  function scoreLayer({ scores, expected }) {
    const near = [...scores].map((score) => score - scores[0]).filter((behind) => behind >= -BEHIND);
    const rest = scores.length - near.length;
    const cap = expected > BEHIND ? "l7 -5m-7 5l7 5" : "m0 -5v10"; // an arrow: it goes on
    const dot = { cy: FLOOR, r: 4.5, fill: colour("key"), "fill-opacity": 0.6 };
    return [
      path(`M${RIGHT} 9v10m0 -5H${across(-Math.min(expected, BEHIND))}${cap}`, "plain"),
      words(LEFT, 36, "start", `expected spread: ${number(expected)}`),
      path(near.map((behind) => `M${across(behind)} ${FLOOR}V${tip(behind)}`).join(""), "weight"),
      ...near.map((behind) => part.svg("circle", { cx: across(behind), ...dot })),
      words(LEFT, FLOOR - 12, "start", rest ? `← ${rest} further behind` : ""),
    ];
  }

  function weightLayer({ weights }) {
    const wide = (RIGHT - LEFT) / weights.length;
    const even = up(1 / weights.length);
    const bar = (p, at) => `M${LEFT + (at + 0.1) * wide} ${FLOOR}V${up(p)}h${0.8 * wide}V${FLOOR}Z`;
    return [
      filled([...weights].map(bar).join(""), colour("weight")),
      path(`M${LEFT} ${even}H${RIGHT}`, "plain", { "stroke-dasharray": "4 3" }),
      words(RIGHT, even - 6, "end", `even: 1/${weights.length}`),
    ];
  }

  const curve = Array.from({ length: 101 }, (_, at) => `L${across(-at / 10)} ${tip(-at / 10)}`).join("");
  const scores = layered("Scores, as the softmax sees them", "score − largest score", [
    filled(`M${RIGHT} ${FLOOR}${curve}V${FLOOR}Z`, part.soft("weight")),
    words(across(-1), tip(-0.5), "end", "height: e to this power"),
    ...[-10, -5, 0].map((tick) => words(across(tick), FLOOR + 20, "middle", number(tick, 0))),
  ], scoreLayer);
  const weights = layered("Weights", "keys, largest weight first", [0, 0.5, 1].flatMap((tick) => [
    part.svg("path", { class: "live-gridline", d: `M${LEFT} ${up(tick)}H${RIGHT}` }),
    words(LEFT - 6, up(tick) + 5, "end", tick),
  ]), weightLayer);
  const numbers = part.numbers({ label: "This query", names: [
    "standard deviation of the scores", "expected", "largest weight", "effective number of keys, e to the entropy",
    "gradient let through (norm of the Jacobian)", "the same with even weights"] });
  const chart = part.lines({
    label: "Largest weight at each width", xLabel: "width d", yLabel: "largest weight",
    x: [1, 1024], y: [0, 1], logX: true });

  function drawLaws([none, root, width], { by, width: d }, now) {
    const roles = { root: "weight", none: "plain", width: "muted" };
    const law = ([each, ys]) =>
      ({ name: `by ${NAMES[each]}`, role: roles[each], points: ys.map((y, at) => [WIDTHS[at], y]) });
    chart.set([...Object.entries({ root, none, width }).map(law), { role: roles[by], points: [[d, now]] }]);
  }

  return {
    nodes: [
      part.columns(scores.node, weights.node),
      part.columns(numbers.node,
        part.titled(`lines: the median of ${ROWS} queries; dot: this query`, chart.node)),
    ],
    update(state, found) {
      for (const layer of [scores, weights]) layer.set(found);
      const { spread, expected, largest, effective, jacobian, even } = found;
      numbers.set([
        number(spread), number(expected), number(largest), `${number(effective)} of ${state.keys}`,
        number(jacobian), number(even)]);
      drawLaws(found.typical, state, largest);
    },
  };
}

Live.define({
  name: "scale",
  title: "Scores and their scale",
  question: "Why divide the scores by √d?",
  page: "04_scaling",
  heights: [879, 1542],
  state: {
    width: { kind: "number", label: "width\u00a0d", steps: WIDTHS, start: 64 },
    keys: { kind: "number", label: "keys", steps: [2, 4, 8, 16, 32, 64], start: 32 },
    by: { kind: "choice", label: "divide by", of: NAMES, start: "none" },
    draw: { kind: "number", label: "random draw", min: 1, max: 9, step: 1, start: 7 },
  },
  values, say, build,
  tries: [
    {
      do: "Divide by √d", set: { by: "root" },
      see: "The largest weight is 0.11, not 0.84, and the scores spread by about 1 at every width.",
    },
    {
      do: "Widen to d = 1024", set: { width: 1024 },
      see: "One key takes all, here and in the median, and almost no gradient gets through.",
    },
    {
      do: "Draw other vectors (draw 1)", set: { draw: 1 },
      see: "Not every row is decided: four scores lie close together here, and much gradient gets through.",
    },
    {
      do: "Divide by √d, with 64 keys", set: { by: "root", keys: 64 },
      see: "The largest weight is 0.07, not 0.11. The root makes up for the width, not for more keys.",
    },
  ],
});
})();
