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

const GRADIENT = { longest: 80, shortest: 1e-6 }; // px of the longest arrow; what is smaller counts as 0

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
  const size = (all) => (Math.hypot(...all) < GRADIENT.shortest ? "0" : Live.part.short(Math.hypot(...all)));
  const gradient = state.gradient
    ? ` The gradient of the answer’s length: ${size(query)} on the query, ${size(keys.flat())} on all keys.`
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

function plane(part, label, range, tick, [across, up]) {
  const { at, value, unit } = placer(range);
  const drawing = part.drawing({ width: SIZE, height: SIZE, label, role: "group" });
  const [zero] = at([0, 0]);
  drawing.append(part.svg("rect", { width: SIZE, height: SIZE, rx: 8, fill: "var(--fig-paper)", stroke: "var(--fig-grid)" }));
  const lines = drawing.appendChild(part.svg("g"));
  const [x, y] = at([tick, tick]);
  lines.append(part.svg("path", { d: `M${x} ${zero - 3}v6M${zero - 3} ${y}h6`, stroke: "var(--fig-muted)" }));
  const name = { class: "live-tick", text: part.number(tick, 0) };
  drawing.append(
    part.svg("text", { ...name, x, y: zero + 17, "text-anchor": "middle" }),
    part.svg("text", { ...name, x: zero - 7, y: y + 4, "text-anchor": "end" }),
    part.svg("path", { d: `M${zero} 0V${SIZE}M0 ${zero}H${SIZE}`, stroke: "var(--fig-muted)", opacity: 0.6 }),
    part.svg("text", { class: "live-tick", x: SIZE - 5, y: zero - 7, text: `${across} →`, "text-anchor": "end" }),
    part.svg("text", { class: "live-tick", x: zero + 7, y: 15, text: `↑ ${up}` }));
  return { drawing, at, value, unit, lines, back: drawing.appendChild(part.svg("g")) };
}

/* An arrow that stays: its ends are set again and again. */
function arrow(part, role, width, dash = "none") {
  const line = (more) => part.svg("path", { stroke: part.colour(role), "stroke-width": width, fill: "none", ...more });
  const [shaft, tip] = [line({ "stroke-dasharray": dash }), line()];
  return {
    node: part.svg("g", { "pointer-events": "none" }, shaft, tip),
    set([x, y], [dx, dy]) {
      const length = Math.hypot(dx, dy);
      const [ux, uy] = [dx / length, dy / length];
      const [tx, ty] = [x + dx, y + dy];
      shaft.setAttribute("d", length < 4 ? "" : `M${x} ${y}L${tx} ${ty}`);
      tip.setAttribute("d", length < 4 ? "" : `M${tx - 9 * ux - 5 * uy} ${ty - 9 * uy + 5 * ux}L${tx} ${ty}L${tx - 9 * ux + 5 * uy} ${ty - 9 * uy - 5 * ux}`);
    },
  };
}

const ASIDE = { // of each word: where it goes in a crowd, and where its name stands
  keys: [[0.5, 0.87], [1, 0], [-0.5, -0.87], [0.5, -0.87], [-0.5, 0.87]], // 60° apart, the query on the left
  values: [[0.59, 0.81], [0, -1], [-0.95, -0.31], [0.95, -0.31], [-0.59, 0.81]], // 72° apart
};
const LEVELS = { most: 11, apart: 24, steps: [1, 2, 5, 10, 20] }; // lines on each side of 0; px between them, at least
const CAPTION = "Blue lines: keys there have this score. Bands and spots: the larger, the more weight. " +
  "Points that would lie on each other are drawn beside their place, ×.";
let count = 0; // of planes, for names of their parts

function build(part, figure) {
  const left = plane(part, "Query and keys in the plane", RANGE.keys, -2, ["noun", "adjective"]);
  const right = plane(part, "Values and the answer in the plane", RANGE.values, -1, ["fast", "brown"]);
  const square = () => part.svg("rect", { x: -6.5, y: -6.5, width: 13, height: 13, rx: 3.5, fill: part.colour("key"), stroke: "var(--fig-paper)", "stroke-width": 2 });
  const make = ({ drawing, at, value }, name, role, label, towards, shape) =>
    part.handle({ drawing, name, role, figure, at, value, label, towards, shape, isTip: role === "query" });
  const asked = [
    ...keyNames.map((name, at) => make(left, name, "key", WORDS[at], ASIDE.keys[at], square())),
    make(left, "query", "query", "query", [-1, 0]),
  ];
  const given = valueNames.map((name, at) => make(right, name, "value", WORDS[at], ASIDE.values[at]));
  const [levels, bands, query, gradient, answer] = [levelsOf(part, left, asked), bandsOf(part, left, asked), queryOf(part, left), gradientOf(part, left), answerOf(part, right, given)];
  const scores = part.bars({ names: WORDS, label: "Scores", max: 6, role: "key", isSigned: true });
  const weights = part.bars({ names: WORDS, label: "Weights" });
  const caption = [part.html("p", { class: "live-title", text: CAPTION })];
  const isNarrow = part.isNarrow(); // there the buttons come first: they stand on one screen with the picture
  const beside = (plane, bars) => part.html("div", { class: "live-beside" }, plane, bars);
  return {
    nodes: [part.columns(
      beside(part.titled("query of “fox”, and keys: drag them", left.drawing), part.titled("scores: q · k / √2", scores.node)),
      beside(part.titled("values and answer (ring)", right.drawing), part.titled("weights: softmax", weights.node))),
    ...(isNarrow ? [] : caption)],
    rest: isNarrow ? caption : null,
    update(state, found) {
      const lay = ({ drawing }, handles, rooms, more) => {
        part.spread(handles, state, rooms);
        drawing.again = () => { // it has another size on the screen
          lay({ drawing }, handles, rooms, more);
          more();
        };
      };
      gradient(state, found); // what it says takes room
      lay(left, asked, [], levels.again);
      lay(right, given, [part.around(right.at(found.answer), 1)], answer.again);
      levels(state);
      bands(state, found);
      query(state);
      scores.set(found.scores, { step: 1 });
      weights.set(found.weights, { step: 2 });
      answer(state, found);
    },
  };
}

/* Keys with equal scores lie on a line across the query: how far along it a key lies says how well it fits.
   The longer the query, the closer these lines. Always as many nodes; those that are not needed are empty. */
function levelsOf(part, { at, lines, unit, drawing }, handles) {
  const [clip, tint] = [`levels-${(count += 1)}`, "var(--fig-q)"];
  const frame = { width: SIZE, height: SIZE, rx: 8 };
  const [low, high] = [0, 0.2].map((opacity) => part.svg("stop", { "stop-color": tint, "stop-opacity": opacity, offset: opacity ? 1 : 0 }));
  const slope = part.svg("linearGradient", { id: `${clip}-slope`, gradientUnits: "userSpaceOnUse" }, low, high);
  const shade = part.svg("rect", { ...frame, fill: `url(#${clip}-slope)` });
  const all = Array.from({ length: 2 * LEVELS.most + 1 }, () => part.svg("path", { stroke: tint, "stroke-width": 1 }));
  const names = all.map(() => part.svg("text", { style: `fill: ${tint}`, class: "live-tick live-halo" }));
  lines.prepend(slope, shade, part.svg("clipPath", { id: clip }, part.svg("rect", frame)), part.svg("g", { "clip-path": `url(#${clip})`, opacity: 0.4 }, ...all), ...names);
  const [x0, y0] = at([0, 0]), reach = SIZE / Math.SQRT2; // from the middle to a corner
  let last;
  const draw = ([x, y]) => {
    last = [x, y];
    const [dx, dy] = [x - x0, y - y0], long = Math.hypot(dx, dy), [ux, uy] = long < 1 ? [0, 0] : [dx / long, dy / long];
    const apart = (Math.SQRT2 * unit * unit) / Math.max(1, long); // px from a score of 0 to one of 1
    const step = LEVELS.steps.find((each) => each * apart >= LEVELS.apart * (drawing.px || 1)) ?? LEVELS.steps.at(-1);
    high.setAttribute("stop-opacity", long < 1 ? 0 : 0.06 + (0.2 * long) / SIZE);
    for (const [name, sign, axis] of [["1", -1, 0], ["2", 1, 1]])
      [slope[`x${name}`], slope[`y${name}`]].forEach((one, n) => one.baseVal.newValueSpecifiedUnits(1, [x0 + sign * reach * ux, y0 + sign * reach * uy][n]));
    const isFlat = Math.abs(uy) >= Math.abs(ux); // the lines run across: their numbers stand on the right
    all.forEach((line, n) => {
      const score = (n - LEVELS.most) * step, far = score * apart;
      const [px, py] = [x0 + far * ux, y0 + far * uy];
      const isSeen = long >= 1 && Math.abs(far) < reach;
      line.setAttribute("d", isSeen ? `M${px - 2 * SIZE * uy} ${py + 2 * SIZE * ux}L${px + 2 * SIZE * uy} ${py - 2 * SIZE * ux}` : "");
      const [tx, ty] = isFlat ? [SIZE - 5, py - ((SIZE - 5 - px) * ux) / uy + 4] : [px - ((SIZE - 30 - py) * uy) / ux, SIZE - 30];
      const isNamed = isSeen && score && tx > 12 && tx <= SIZE - (isFlat ? 5 : 15) && ty > 12 && ty < SIZE - 24 && (!isFlat || Math.abs(ty - y0) > 24 * (drawing.px || 1))
        && handles.every(({ room }) => !part.shared(room, part.roomOf(tx, ty, String(score), isFlat ? "end" : "middle", drawing.px || 1)));
      part.write(names[n], isNamed ? part.number(score, 0) : "");
      if (!isNamed) return;
      names[n].setAttribute("x", tx.toFixed(1));
      names[n].setAttribute("y", ty.toFixed(1));
      names[n].setAttribute("text-anchor", isFlat ? "end" : "middle");
    });
  };
  return Object.assign((state) => Live.tween(shade, at(state.query), draw), { again: () => draw(last) });
}

/* A band from the query to each key is as thick as its weight; it ends where the key is drawn. */
function bandsOf(part, { at, back }, handles) {
  const bands = keyNames.map(() => part.svg("path", { stroke: part.colour("weight"), opacity: 0.3, "stroke-linecap": "round" }));
  const all = part.svg("g", {}, ...bands);
  back.append(all);
  return (state, { weights }) => Live.tween(all, { query: at(state.query), keys: keyNames.map((name) => at(state[name])), weights }, (now) => bands.forEach((band, j) => {
    band.setAttribute("d", `M${now.query}L${handles[j].drawn.x} ${handles[j].drawn.y}`);
    band.setAttribute("stroke-width", 0.5 + 14 * now.weights[j]);
  }), { step: 2 });
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
    const isNone = most < GRADIENT.shortest;
    const factor = isNone ? 0 : factorFor(most);
    const times = String(Number(factor.toPrecision(1))).replace(/\B(?=(\d{3})+$)/g, ",");
    part.write(note, !state.gradient ? "" : isNone ? "gradient: 0, no arrow" : `arrows: gradient × ${times}`);
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

/* Around the answer, the side on which its name lies on no point and on no other name. */
const BESIDE = [[44, 5], [-44, 5], [0, -18], [0, 29], [36, -16], [-36, -16], [36, 27], [-36, 27]];
const SIDES = [1, 1.6, 2.2, 2.8, 3.4].flatMap((far) => BESIDE.map(([x, y]) => [far * x, far * y]));
const CLOSE = 26; // px: a name farther away has a line to its ring

function sideOf(part, [x, y], handles, drawing, px) {
  const taken = [...part.ticksOn(drawing), ...handles.flatMap(({ drawn, room }) => [room, part.around([drawn.x, drawn.y], px)])];
  const places = SIDES.map(([dx, dy]) => [x + dx * px, y + dy * px]).filter(([px_, py]) => px_ > 30 * px && px_ < SIZE - 30 * px && py > 14 * px && py < SIZE - 4);
  return places[part.freest(places.map(([px_, py]) => [part.roomOf(px_, py, "answer", "middle", px)]), taken)];
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
  const tie = part.svg("path", { class: "live-lead live-tie" });
  back.append(region, shares, ...pulls, tie, was, is, name);
  const put = (circle, [x, y]) => [circle.cx.baseVal.value, circle.cy.baseVal.value] = [x, y];
  let last;
  const again = () => { // what keeps its size on the screen
    const px = drawing.px || 1, [x, y] = sideOf(part, last, handles, drawing, px);
    part.tieTo(tie, last, part.roomOf(x, y, "answer", "middle", px), CLOSE * px, last);
    name.setAttribute("x", x);
    name.setAttribute("y", y);
    for (const circle of [was, is]) circle.setAttribute("style", `r: ${11 * px}px; stroke-width: ${4 * px}`);
  };
  const show = (state, found) => {
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
      last = now.answer;
      again();
      put(was, (before || now).answer);
    }, { step: 3 });
  };
  return Object.assign(show, { again });
}

Live.define({
  name: "attention-plane",
  title: "A query among keys",
  question: "What does one query get back, and what changes it?",
  page: "03_attention",
  heights: [855, 1025],
  scripts: ["handles.js"],
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
    { do: "Turn the query to the noun", set: { query: [3, 0] }, see: "“fox”, whose key is (1, 0), now gets 0.68, and its value is (0, 0): the answer shrinks." },
    { do: "Make brown’s key longer", set: { key2: [0, 3] }, see: "“brown” takes 0.98 and the answer moves almost onto its value. It never leaves the region between the values." },
    { do: "Let “The” win, gradient on", set: { query: [2.5, 3], key0: [3.5, 2.5], gradient: true }, see: "“The” takes all the weight, and the answer shrinks to its value, (0, 0). A longer answer exists, but softmax is saturated: the gradient towards it is drawn thousands of times longer." },
  ],
  build,
});
})();
