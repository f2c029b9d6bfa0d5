"use strict";
/* Chapter 3 in the plane: one query, five keys and their values; drag them, and see what comes back. */
(() => {
const WORDS = ["The", "quick", "brown", "fox", "jumps"];
const [SIZE, EDGE] = [300, 20]; // px of a drawing, and of its margin
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

/* A point at the end of the range stands with its handle and its name inside the frame. */
const placer = ([low, high]) => {
  const unit = (SIZE - 2 * EDGE) / (high - low);
  return {
    unit,
    at: ([x, y]) => [EDGE + (x - low) * unit, EDGE + (high - y) * unit],
    value: (px, py) => [low + (px - EDGE) / unit, high - (py - EDGE) / unit],
  };
};

function plane(part, label, range, [across, up]) {
  const { at, value, unit } = placer(range);
  const drawing = part.drawing({ width: SIZE, height: SIZE, label, role: "group" });
  const [zero] = at([0, 0]);
  drawing.append(part.svg("rect", { width: SIZE, height: SIZE, rx: 8, fill: "var(--fig-paper)", stroke: "var(--fig-grid)" }));
  for (let tick = Math.ceil(range[0]); tick <= range[1]; tick += 1) {
    const [x] = at([tick, 0]);
    drawing.append(part.svg("path", { d: `M${x} 0V${SIZE}M0 ${x}H${SIZE}`, class: "live-gridline", opacity: 0.45 }));
    if (tick === -3 || (tick === -1 && range[0] > -2)) {
      drawing.append(part.svg("text", { class: "live-tick", x: x + 3, y: zero - 4, text: part.number(tick, 0) }));
    }
  }
  drawing.append(
    part.svg("path", { d: `M${zero} 0V${SIZE}M0 ${zero}H${SIZE}`, stroke: "var(--fig-muted)", opacity: 0.6 }),
    part.svg("text", { class: "live-tick", x: SIZE - 5, y: zero + 17, text: `${across} →`, "text-anchor": "end" }),
    part.svg("text", { class: "live-tick", x: zero + 7, y: 15, text: `↑ ${up}` }));
  return { drawing, at, value, unit, back: drawing.appendChild(part.svg("g")) };
}

/* An arrow that stays: its ends are set again and again. */
function arrow(part, role, width, dash = "none") {
  const path = part.svg("path", { stroke: part.colour(role), "stroke-width": width, "stroke-dasharray": dash, fill: "none", "pointer-events": "none" });
  return {
    node: path,
    set([x, y], [dx, dy]) {
      const length = Math.hypot(dx, dy);
      const [ux, uy] = [dx / length, dy / length];
      const [tx, ty] = [x + dx, y + dy];
      path.setAttribute("d", length < 4 ? "" : `M${x} ${y}L${tx} ${ty}` +
        `M${tx - 9 * ux - 5 * uy} ${ty - 9 * uy + 5 * ux}L${tx} ${ty}L${tx - 9 * ux + 5 * uy} ${ty - 9 * uy - 5 * ux}`);
    },
  };
}

const ASIDE = { // of each word: where it goes in a crowd, and where its name stands
  keys: [[0.5, 0.87], [1, 0], [-0.5, -0.87], [0.5, -0.87], [-0.5, 0.87]], // 60° apart, the query on the left
  values: [[0.59, 0.81], [0, -1], [-0.95, -0.31], [0.95, -0.31], [-0.59, 0.81]], // 72° apart
};
const GRADIENT = { longest: 80, shortest: 0.005 }; // px; what is smaller is printed as 0.00

function build(part, figure) {
  const left = plane(part, "Query and keys in the plane", RANGE.keys, ["noun", "adjective"]);
  const right = plane(part, "Values and the answer in the plane", RANGE.values, ["fast", "brown"]);
  const square = () => part.svg("rect", { x: -6.5, y: -6.5, width: 13, height: 13, rx: 3.5, fill: part.colour("key"), stroke: "var(--fig-paper)", "stroke-width": 2 });
  const make = ({ drawing, at, value }, name, role, label, towards, shape) =>
    part.handle({ drawing, name, role, figure, at, value, label, towards, shape, isTip: role === "query" });
  const asked = [
    ...keyNames.map((name, at) => make(left, name, "key", WORDS[at], ASIDE.keys[at], square())),
    make(left, "query", "query", "query", [-1, 0]),
  ];
  const given = valueNames.map((name, at) => make(right, name, "value", WORDS[at], ASIDE.values[at]));
  const [fit, query, gradient, answer] = [fitOf(part, left, asked), queryOf(part, left), gradientOf(part, left), answerOf(part, right, given)];
  const scores = part.bars({ names: WORDS, label: "Scores", max: 6, role: "key" });
  const weights = part.bars({ names: WORDS, label: "Weights" });
  const beside = (plane, bars) => part.html("div", { class: "live-beside" }, plane, bars);
  return {
    nodes: [part.columns(
      beside(part.titled("query and keys: drag them", left.drawing), part.titled("scores: q · k / √2", scores.node)),
      beside(part.titled("values and answer (ring)", right.drawing), part.titled("weights: softmax", weights.node)))],
    update(state, found) {
      part.spread(asked, state);
      part.spread(given, state);
      fit(state, found);
      query(state);
      gradient(state, found);
      scores.set(found.scores, { step: 1 });
      weights.set(found.weights, { step: 2 });
      answer(state, found);
    },
  };
}

/* How far a key lies along the line of the query says how well it fits: a dotted line leads from each key to
   that place. A band from the query to each key is as thick as its weight; it ends where the key is drawn. */
function fitOf(part, { at, back }, handles) {
  const line = part.svg("path", { stroke: part.colour("query"), opacity: 0.35 });
  const feet = part.svg("path", { stroke: part.colour("key"), "stroke-dasharray": "2 3", fill: "none" });
  const bands = keyNames.map(() => part.svg("path", { stroke: part.colour("weight"), opacity: 0.3, "stroke-linecap": "round" }));
  back.append(line, ...bands, feet);
  const [x0, y0] = at([0, 0]);
  return (state, { weights }) => {
    const to = { query: at(state.query), keys: keyNames.map((name) => at(state[name])) };
    Live.tween(line, to, ({ query: [qx, qy], keys }) => {
      const [dx, dy] = [qx - x0, qy - y0], long = Math.hypot(dx, dy), [ux, uy] = [dx / long, dy / long];
      const far = SIZE / 2 / Math.max(Math.abs(ux), Math.abs(uy));
      const along = ([x, y]) => (x - x0) * ux + (y - y0) * uy;
      const isOff = ([x, y]) => Math.hypot(x0 + ux * along([x, y]) - x, y0 + uy * along([x, y]) - y) > 2;
      line.setAttribute("d", long < 1 ? "" : `M${x0 - ux * far} ${y0 - uy * far}L${x0 + ux * far} ${y0 + uy * far}`);
      feet.setAttribute("d", long < 1 ? "" : keys.filter(isOff).map((key) =>
        `M${key}L${x0 + ux * along(key)} ${y0 + uy * along(key)}`).join(""));
    });
    Live.tween(feet, { ...to, weights }, (now) => bands.forEach((band, j) => {
      band.setAttribute("d", `M${now.query}L${handles[j].drawn.x} ${handles[j].drawn.y}`);
      band.setAttribute("stroke-width", 0.5 + 14 * now.weights[j]);
    }), { step: 2 });
  };
}

function queryOf(part, { at, back }) {
  const [was, is] = [arrow(part, "query", 3), arrow(part, "query", 3)];
  was.node.classList.add("live-ghost");
  back.append(was.node, is.node);
  const [x, y] = at([0, 0]);
  const from = ([qx, qy]) => [[x, y], [qx - x, qy - y]];
  return (state) => Live.tween(is.node, at(state.query), (now, before) => {
    is.set(...from(now));
    was.set(...from(before || [x, y]));
  });
}

/* Gradients are small: they are drawn longer by a factor of 1, 2, 5, 10, ..., which is printed. */
function gradientOf(part, { at, back, drawing, unit }) {
  const arrows = [...keyNames, "query"].map(() => arrow(part, "weight", 2.5, "4 3"));
  back.append(...arrows.map(({ node }) => node));
  const note = drawing.appendChild(part.svg("text", { class: "live-tick live-halo", x: 5, y: SIZE - 7 }));
  const factorFor = (most) => {
    const power = 10 ** Math.floor(Math.log10(GRADIENT.longest / (most * unit)));
    return [5, 2, 1].map((each) => each * power).find((each) => each * most * unit <= GRADIENT.longest);
  };
  return (state, found) => {
    const all = [...found.keys, found.query];
    const most = Math.max(...all.map((each) => Math.hypot(...each)));
    const isZero = most < GRADIENT.shortest;
    const factor = isZero ? 0 : factorFor(most);
    part.write(note, !state.gradient ? "" : isZero ? "gradient: 0.00 everywhere, no arrow"
      : `arrows: gradient × ${Number(factor.toPrecision(1))}, longest ${part.number(most, 3)}`);
    const to = [...keyNames, "query"].map((name, j) => {
      const scale = state.gradient ? factor * unit : 0;
      return { from: at(state[name]), by: [all[j][0] * scale, -all[j][1] * scale] };
    });
    Live.tween(note, to, (now) => now.forEach(({ from, by }, j) => arrows[j].set(from, by)), { step: 3 });
  };
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

/* Around the answer, the side on which its name stands farthest from all points and their names. */
const SIDES = [[44, 5], [-44, 5], [0, -18], [0, 29], [36, -16], [-36, -16], [36, 27], [-36, 27]];

function sideOf([x, y], handles, px) {
  const taken = handles.flatMap(({ drawn, towards: [dx, dy] }) => [[drawn.x, drawn.y], [drawn.x + 30 * px * dx, drawn.y + 20 * px * dy]]);
  const places = SIDES.map(([dx, dy]) => [x + dx * px, y + dy * px]).filter(([px_, py]) => px_ > 30 * px && px_ < SIZE - 30 * px && py > 14 * px && py < SIZE - 4);
  const room = ([px_, py]) => Math.min(...taken.map(([tx, ty]) => Math.hypot(0.6 * (tx - px_), ty - py + 5)));
  return places.reduce((best, one) => (room(one) > room(best) + 1 ? one : best));
}

function answerOf(part, { at, back, drawing }, handles) {
  const region = part.svg("path", { fill: part.soft("value"), stroke: part.soft("value"), "stroke-width": 6 });
  const pulls = valueNames.map(() => part.svg("path", { stroke: part.colour("weight"), opacity: 0.45 }));
  const ring = () => part.svg("circle", { r: 11, fill: "var(--fig-paper)", stroke: part.colour("weight"), "stroke-width": 4 });
  const [was, is] = [ring(), ring()];
  was.classList.add("live-ghost");
  const name = part.svg("text", { class: "live-halo", text: "answer", "text-anchor": "middle", style: `fill: ${part.colour("weight")}; font-weight: 600`, "pointer-events": "none" });
  const shares = part.svg("g", { opacity: 0.25 }, ...valueNames.map(() =>
    part.svg("path", { stroke: part.colour("weight"), "stroke-linecap": "round" }))); // a spot behind each value
  back.append(region, shares, ...pulls, was, is, name);
  const put = (circle, [x, y]) => [circle.cx.baseVal.value, circle.cy.baseVal.value] = [x, y];
  return (state, found) => {
    const values = valueNames.map((name) => at(state[name]));
    const to = { values, answer: at(found.answer), weights: found.weights };
    Live.tween(is, to, (now, before) => {
      region.setAttribute("d", `M${hull(now.values).join("L")}Z`);
      now.values.forEach(([x, y], j) => {
        pulls[j].setAttribute("d", `M${x} ${y}L${now.answer}`);
        pulls[j].setAttribute("stroke-width", 0.5 + 14 * now.weights[j]);
        shares.children[j].setAttribute("d", `M${x} ${y}h0`);
        shares.children[j].setAttribute("stroke-width", 52 * Math.sqrt(now.weights[j]));
      });
      put(is, now.answer);
      const [x, y] = sideOf(now.answer, handles, drawing.px || 1);
      name.setAttribute("x", x);
      name.setAttribute("y", y);
      put(was, (before || now).answer);
    }, { step: 3 });
  };
}

Live.define({
  name: "attention-plane",
  title: "A query among keys",
  question: "What does one query get back, and what changes it?",
  page: "03_attention",
  heights: [778, 909],
  state: {
    query: point("query of fox", [0, 3], RANGE.keys),
    ...points(KEYS, "key", RANGE.keys),
    ...points(VALUES, "value", RANGE.values),
    gradient: { kind: "toggle", label: "gradient of the answer’s length (dashed arrows)", start: false },
  },
  values,
  say,
  tries: [
    { do: "Ask for nothing", set: { query: [0, 0] }, see: "All scores are 0, all weights 0.20: the answer is the plain mean of the values." },
    { do: "Turn the query to the noun", set: { query: [3, 0] }, see: "fox, whose key is (1, 0), now gets 0.68, and its value is (0, 0): the answer shrinks." },
    { do: "Make brown’s key longer", set: { key2: [0, 3] }, see: "brown takes 0.98 and the answer moves almost onto its value. It never leaves the region between the values." },
    { do: "Let The win, gradient on", set: { query: [0, 4], key0: [0, 4], gradient: true }, see: "The takes all the weight, and the answer shrinks to its value, (0, 0). A longer answer exists, but the softmax is saturated: almost no gradient is left to find it." },
  ],
  build,
});
})();
