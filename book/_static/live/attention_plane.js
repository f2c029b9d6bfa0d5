"use strict";
/* Chapter 3 in the plane: one query, five keys and their values; drag them, and see what comes back. */
(() => {
const WORDS = ["The", "quick", "brown", "fox", "jumps"];
const SIZE = 300; // px of a drawing
const RANGE = { keys: [-4, 4], values: [-1.5, 1.5] };
const point = (label, start, range, step = 0.05) =>
  ({ kind: "point", label, min: range[0], max: range[1], step, start });

const KEYS = { key0: [0, 0], key1: [0, 1], key2: [0, 1], key3: [1, 0], key4: [0, 0] };
const VALUES = { value0: [0, 0], value1: [1, 0], value2: [0, 1], value3: [0, 0], value4: [0, 0] };
const keyNames = Object.keys(KEYS);
const valueNames = Object.keys(VALUES);
const points = (starts, kind, range, step) =>
  Object.fromEntries(Object.entries(starts).map(([name, start], at) =>
    [name, point(`${kind} of ${WORDS[at]}`, start, range, step)]));

/* The gradient of the answer's part along `toward` (here: its length, |answer|) on query and keys:
   d answer / d score_j = w_j (value_j − answer), and d score_j / d query = key_j / √2. */
function gradients(query, keys, values, weights, answer) {
  const length = Math.hypot(...answer);
  const pull = values.map((value, j) =>
    length === 0 ? 0 : (weights[j] * Live.tensor.dot(value.map((v, axis) => v - answer[axis]), answer)) / length);
  const root = Math.sqrt(2);
  return {
    query: [0, 1].map((axis) => pull.reduce((sum, p, j) => sum + (p * keys[j][axis]) / root, 0)),
    keys: pull.map((p) => query.map((each) => (p * each) / root)),
  };
}

function values(state) {
  const keys = keyNames.map((name) => state[name]); // (S, 2)
  const theirs = valueNames.map((name) => state[name]); // (S, 2)
  const scores = keys.map((key) => Live.tensor.dot(key, state.query) / Math.sqrt(2)); // (S)
  const weights = Array.from(Live.tensor.softmax(scores)); // (S), sums to 1
  const answer = [0, 1].map((axis) => weights.reduce((sum, w, j) => sum + w * theirs[j][axis], 0));
  return { scores, weights, answer, ...gradients(state.query, keys, theirs, weights, answer) };
}

const pair = (point) => `(${point.map((each) => Live.part.number(each)).join(", ")})`;

function say(state, { weights, answer, query, keys }) {
  const shares = WORDS.map((word, j) => `${word} ${Live.part.number(weights[j])}`).join(", ");
  const length = Live.part.number(Math.hypot(...state.query));
  const pushed = Live.part.number(Math.hypot(...keys.flat()));
  const gradient = state.gradient
    ? ` The gradient of the answer’s length: ${Live.part.number(Math.hypot(...query))} on the query, ${pushed} on all keys.`
    : "";
  return `The query ${pair(state.query)} has the length ${length}. Weights: ${shares}. Answer: ${pair(answer)}.${gradient}`;
}

// Drawing ----

const placer = ([low, high]) => ({
  at: ([x, y]) => [(SIZE * (x - low)) / (high - low), (SIZE * (high - y)) / (high - low)],
  value: (px, py) => [low + (px / SIZE) * (high - low), high - (py / SIZE) * (high - low)],
});

function plane(part, label, range, [across, up]) {
  const { at, value } = placer(range);
  const drawing = part.drawing({ width: SIZE, height: SIZE, label, role: "group" });
  const [zero] = at([0, 0]);
  drawing.append(part.svg("rect", { width: SIZE, height: SIZE, fill: "none", stroke: "var(--fig-grid)" }));
  for (let tick = Math.ceil(range[0]); tick <= range[1]; tick += 1) {
    const [x] = at([tick, 0]);
    drawing.append(part.svg("path", { d: `M${x} 0V${SIZE}M0 ${x}H${SIZE}`, class: "live-gridline", opacity: 0.55 }));
    if (tick === -2 || (tick === -1 && range[0] > -2)) {
      drawing.append(part.svg("text", { class: "live-tick", x: x + 3, y: zero - 4, text: part.number(tick, 0) }));
    }
  }
  drawing.append(
    part.svg("path", { d: `M${zero} 0V${SIZE}M0 ${zero}H${SIZE}`, stroke: "var(--fig-muted)" }),
    part.svg("text", { class: "live-tick", x: SIZE - 5, y: zero + 17, text: `${across} →`, "text-anchor": "end" }),
    part.svg("text", { class: "live-tick", x: zero + 7, y: 15, text: `↑ ${up}` }));
  return { drawing, at, value, back: drawing.appendChild(part.svg("g")) };
}

const arrow = (part, [x, y], [dx, dy], role, width = 2.5, dash = "none") => {
  const length = Math.hypot(dx, dy);
  if (length < 4) return part.svg("g");
  const [ux, uy] = [dx / length, dy / length];
  const [tx, ty] = [x + dx, y + dy];
  const head = `M${tx - 9 * ux - 4 * uy} ${ty - 9 * uy + 4 * ux}L${tx} ${ty}L${tx - 9 * ux + 4 * uy} ${ty - 9 * uy - 4 * ux}`;
  return part.svg(
    "g", { stroke: part.colour(role), "stroke-width": width, fill: "none", "pointer-events": "none" },
    part.svg("path", { d: `M${x} ${y}L${tx} ${ty}`, "stroke-dasharray": dash }), part.svg("path", { d: head }));
};

const ASIDE = [[12, 18], [12, -10], [-12, -10], [12, -10], [-12, 18]]; // where each word's name stands

function shape(part, word, at, role) {
  const [x, y] = ASIDE[at];
  return part.svg(
    "g", {},
    role === "key"
      ? part.svg("rect", { x: -7, y: -7, width: 14, height: 14, fill: part.colour(role), stroke: "var(--fig-paper)", "stroke-width": 2 })
      : part.svg("circle", { r: 8, fill: part.colour(role), stroke: "var(--fig-paper)", "stroke-width": 2 }),
    part.svg("text", { x, y, text: word, "text-anchor": x < 0 ? "end" : "start" }));
}

function build(part, figure) {
  const left = plane(part, "Query and keys in the plane", RANGE.keys, ["noun", "adjective"]);
  const right = plane(part, "Values and the answer in the plane", RANGE.values, ["fast", "brown"]);
  const make = (where, name, role, drawn) =>
    part.handle({ drawing: where.drawing, name, role, figure, at: where.at, value: where.value, shape: drawn });
  const handles = [
    ...keyNames.map((name, at) => make(left, name, "key", shape(part, WORDS[at], at, "key"))),
    make(left, "query", "query"),
    ...valueNames.map((name, at) => make(right, name, "value", shape(part, WORDS[at], at, "value"))),
  ];
  const scores = part.bars({ names: WORDS, label: "Scores", max: 6, role: "key" });
  const weights = part.bars({ names: WORDS, label: "Weights" });
  const update = (state, found) => {
    for (const one of handles) one.show(state);
    drawQuery(part, left, state, found);
    drawAnswer(part, right, state, found);
    scores.set(found.scores);
    weights.set(found.weights);
  };
  return {
    nodes: [
      part.columns(part.titled("query (arrow) and keys (squares): drag them", left.drawing), part.titled("values (dots), convex hull, answer (ring)", right.drawing)),
      part.columns(part.titled("scores, query · key / √2", scores.node), part.titled("weights, softmax of the scores", weights.node)),
    ],
    update,
  };
}

function drawQuery(part, left, state, found) {
  const [x, y] = left.at([0, 0]);
  const [qx, qy] = left.at(state.query);
  const scaled = (gradient) => [gradient[0] * 120, -gradient[1] * 120];
  const pushes = state.gradient
    ? [arrow(part, [qx, qy], scaled(found.query), "weight", 2.5, "4 3"),
      ...keyNames.map((name, j) => arrow(part, left.at(state[name]), scaled(found.keys[j]), "weight", 2.5, "4 3"))]
    : [];
  left.back.replaceChildren(arrow(part, [x, y], [qx - x, qy - y], "query", 3), ...pushes);
}

/* The corners of the region between the points, in order (Andrew's monotone chain). */
function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const turns = ([ax, ay], [bx, by], [cx, cy]) => (bx - ax) * (cy - ay) - (by - ay) * (cx - ax);
  const chain = (list) => list.reduce((kept, next) => {
    while (kept.length > 1 && turns(kept.at(-2), kept.at(-1), next) <= 0) kept.pop();
    return [...kept, next];
  }, []);
  return [...chain(sorted), ...chain(sorted.reverse())];
}

function drawAnswer(part, right, state, found) {
  const corners = hull(valueNames.map((name) => right.at(state[name])));
  const [ax, ay] = right.at(found.answer);
  const pulls = valueNames.map((name, j) => {
    const [vx, vy] = right.at(state[name]);
    return part.svg("path", { d: `M${vx} ${vy}L${ax} ${ay}`, stroke: part.colour("weight"), "stroke-width": 0.5 + 12 * found.weights[j], opacity: 0.45 });
  });
  right.back.replaceChildren(
    part.svg("path", { d: `M${corners.join("L")}Z`, fill: part.soft("value"), stroke: part.soft("value"), "stroke-width": 6 }),
    ...pulls,
    part.svg("circle", { cx: ax, cy: ay, r: 11, fill: "var(--fig-paper)", stroke: part.colour("weight"), "stroke-width": 4 }));
}

Live.define({
  name: "attention-plane",
  title: "A query among keys",
  question: "What does one query get back, and what changes it?",
  page: "03_attention",
  heights: [843, 1548],
  state: {
    query: point("query of fox", [0, 3], RANGE.keys),
    ...points(KEYS, "key", RANGE.keys),
    ...points(VALUES, "value", RANGE.values),
    gradient: { kind: "toggle", label: "show the gradient of the answer’s length (dashed arrows)", start: false },
  },
  values,
  say,
  tries: [
    { do: "Ask for nothing", set: { query: [0, 0] }, see: "All scores are 0, all weights 0.20: the answer is the plain mean of the values." },
    { do: "Turn the query to the noun", set: { query: [3, 0] }, see: "fox, whose key is (1, 0), now gets 0.68, and its value is (0, 0): the answer shrinks." },
    { do: "Make the key of brown longer", set: { key2: [0, 3] }, see: "brown takes 0.98 and the answer moves almost onto its value. It never leaves the region between the values." },
    { do: "Let The win by far, gradient on", set: { query: [0, 4], key0: [0, 4], gradient: true }, see: "The takes all the weight, and the answer shrinks to its value, (0, 0). A longer answer exists, but the softmax is saturated: almost no gradient is left to find it." },
  ],
  build,
});
})();
