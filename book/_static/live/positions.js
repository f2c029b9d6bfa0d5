"use strict";
/* Chapter 7: two words carry their vectors along a text; how each scheme's score follows where they stand. */
(() => {
const [PAIRS, WIDTH] = [4, 8]; // of the head
const [PLACES, FARTHEST] = [40, 24]; // of the text; how far after the key the query may stand
const ROWS = PLACES + FARTHEST; // of the learned table: the curve goes on beyond the text
const [SEED, LEARNED] = [4874, 0.5]; // of all vectors; the spread of what is learned: a table, and T5's biases
const SLOPE = 2 ** -4; // ALiBi's head 4 of 8
const [BUCKETS, MOST_DISTANCE] = [16, 128]; // T5's, on one side of the query
const SCHEMES = {
  none: "none", learned: "learned", sinusoidal: "sinusoidal", rope: "RoPE", alibi: "ALiBi", t5: "T5 bias",
};
const DASHES = { none: 2, learned: 1, sinusoidal: 3, rope: 0, alibi: 4, t5: 5 };
const ROLES = { none: "plain", learned: "key", sinusoidal: "value", rope: "weight", alibi: "query", t5: "muted" };
const WORDS = { query: "runs", key: "man" };

/* The same in Python: the query, the key, the learned table (64, 8), T5's biases (16). */
let kept;
function drawn() {
  if (kept) return kept;
  const all = Live.tensor.normals(SEED, 2 * WIDTH + ROWS * WIDTH + BUCKETS);
  const learned = (...range) => all.slice(...range).map((each) => LEARNED * each);
  return (kept = {
    query: all.slice(0, WIDTH), key: all.slice(WIDTH, 2 * WIDTH), table: learned(2 * WIDTH, -BUCKETS), biases: learned(-BUCKETS),
  });
}

const plus = (x, y) => x.map((each, i) => each + y[i]);

/* A query or key at a place, as it is multiplied. */
const PLACED = {
  learned: (x, place) => plus(x, drawn().table.subarray(place * WIDTH, (place + 1) * WIDTH)),
  sinusoidal: (x, place) => plus(x, Live.tensor.sinusoid(place, WIDTH)),
  rope: (x, place, { theta, stretch }) => Live.tensor.rotate(x, place / stretch, WIDTH, theta),
};

/* Near distances have a bucket each; far ones share buckets that grow. */
function bucket(distance) {
  const near = BUCKETS / 2;
  if (distance < near) return distance;
  const far = Math.log(distance / near) / Math.log(MOST_DISTANCE / near);
  return Math.min(BUCKETS - 1, near + Math.floor(far * (BUCKETS - near)));
}

/* What a scheme adds to the score. */
const BIAS = { alibi: (distance) => -SLOPE * distance, t5: (distance) => drawn().biases[bucket(distance)] };

function multiplied(state, scheme, distance) {
  const placed = PLACED[scheme] || ((x) => x);
  const query = placed(drawn().query, state.key + distance, state); // (8)
  const key = placed(drawn().key, state.key, state); // (8)
  return { query, key, bias: BIAS[scheme] ? BIAS[scheme](distance) : 0 };
}

const score = ({ query, key, bias }) => Live.tensor.dot(query, key) / Math.sqrt(WIDTH) + bias;

/* The angle between two hands, as a share of a full turn: 0 to ½. */
const turn = ([x, y], [u, v]) => Math.atan2(Math.abs(x * v - y * u), x * u + y * v) / (2 * Math.PI);

function values(state) {
  const curve = (scheme) => Array.from({ length: FARTHEST + 1 }, (_, distance) => score(multiplied(state, scheme, distance)));
  const now = multiplied(state, state.scheme, state.distance);
  const pairs = (x) => Array.from({ length: PAIRS }, (_, pair) => Array.from(x.slice(2 * pair, 2 * pair + 2)));
  const [query, key] = [pairs(now.query), pairs(now.key)]; // (4, 2) each
  return {
    query, key, bias: now.bias, score: score(now),
    parts: query.map((hand, pair) => Live.tensor.dot(hand, key[pair]) / Math.sqrt(WIDTH)),
    turns: query.map((hand, pair) => turn(hand, key[pair])),
    curves: Object.fromEntries(Object.keys(SCHEMES).map((scheme) => [scheme, curve(scheme)])),
  };
}

/* One sentence: where the two stand, and the score of the scheme in question. The others stand in the list. */
const say = ({ scheme, key, distance }, { score: found }) =>
  `The key ${WORDS.key} stands at place ${key}, the query ${WORDS.query} at place ${key + distance}: at distance ${distance} ` +
  `${scheme === "none" ? "no scheme" : SCHEMES[scheme]} gives the score ${Live.part.number(found)}.`;

// The text ----

const [CELL, ROW] = [16, { query: 14, both: 47, key: 80 }]; // px: a cell's height, and where the handles stand

/* A handle that moves along the text: `get` gives its place, `put` the settings for a new one. */
function runner(part, figure, drawing, { name, label, y, least = () => 0, most, get, put, place, shape, x, drawnAt = x }) {
  const move = (to) => figure.set(put(figure.state, Math.min(Math.max(Math.round(to), least(figure.state)), most(figure.state))));
  const node = part.svg("g", {
    class: "live-handle", tabindex: "0", role: "slider", "aria-label": label, "aria-roledescription": "word of the text",
    ...part.sliderKeys(figure, [3, 10], (by) => move(get(figure.state) + by)),
  }, ...shape);
  drawing.append(node);
  const one = {
    node, name, wide: 1.8, drawn: { x: 0, y }, px: () => drawing.px || 1,
    at: () => [x(place(figure.state)), y],
    dragTo: ([to]) => move(get(figure.state) + x.invert(to) - place(figure.state)),
    show(state) {
      node.setAttribute("aria-valuemin", least(state));
      node.setAttribute("aria-valuemax", most(state));
      node.setAttribute("aria-valuenow", get(state));
      one.drawn.x = drawnAt(place(state));
    },
  };
  part.draggable(drawing, figure, one);
  return one;
}

function text(part, figure) {
  const isNarrow = part.isNarrow();
  const [width, height] = [isNarrow ? 330 : 640, 95];
  const unit = width / PLACES;
  const x = Object.assign((place) => (place + 0.5) * unit, { invert: (at) => at / unit - 0.5 });
  const drawing = part.drawing({ width, height, label: "Two words of a text of 40 places", role: "group" });
  const { svg } = part;
  const cell = (place, more) => svg("rect", { x: x(place) - unit / 2 + 1, y: ROW.both - CELL / 2, width: unit - 2, height: CELL, rx: 2, ...more });
  for (let place = 0; place < PLACES; place++) drawing.append(cell(place, { class: "live-place" }));
  const ticks = [0, 10, 20, 30, PLACES - 1].map((place) =>
    drawing.appendChild(svg("text", { class: "live-tick", x: x(place), y: ROW.both + 24, "text-anchor": "middle", text: place })));
  const own = (role) => cell(0, { fill: part.colour(role) });
  const [keyCell, queryCell] = [own("key"), own("query")];
  const stem = (role) => svg("path", { stroke: part.colour(role), "stroke-width": 2 });
  const pill = (role) => {
    const words = svg("text", { "text-anchor": "middle", y: 5, class: "live-pill" });
    const shape = svg("rect", { class: "live-ring", x: -42, y: -15, width: 84, height: 30, rx: 15 });
    const face = svg("rect", { x: -38, y: -12, width: 76, height: 24, rx: 12, fill: part.colour(role) });
    return { words, shape: [svg("g", { class: "live-mark" }, shape, face, words)] };
  };
  const [queryStem, keyStem] = [stem("query"), stem("key")];
  const [queryPill, keyPill] = [pill("query"), pill("key")];
  const band = svg("rect", { class: "live-band", y: ROW.both - 12, height: 24, rx: 12 });
  const grip = svg(
    "g", { class: "live-mark" }, svg("circle", { class: "live-ring", r: 14 }),
    svg("circle", { r: 9.5, fill: "var(--fig-paper)", stroke: part.colour("weight"), "stroke-width": 2 }),
    svg("path", { d: "M-5.5 0H5.5M-3 -2.5L-5.5 0L-3 2.5M3 -2.5L5.5 0L3 2.5", stroke: part.colour("weight"), "stroke-width": 1.6, fill: "none" }));
  drawing.append(queryStem, keyStem, band, keyCell, queryCell);
  const within = (at) => Math.min(Math.max(at, 40), width - 40);
  const keyOf = (state) => state.key;
  const queryOf = (state) => state.key + state.distance;
  const drawnAt = (place) => within(x(place));
  const handles = [ // each word draws the other along when it gets too far from it
    runner(part, figure, drawing, {
      x, drawnAt, name: "query", label: `query: ${WORDS.query}`, y: ROW.query, shape: queryPill.shape,
      least: keyOf, most: () => PLACES - 1, get: queryOf, place: queryOf,
      put: ({ key }, query) => ({ key: Math.max(key, query - FARTHEST), distance: Math.min(query - key, FARTHEST) }),
    }),
    runner(part, figure, drawing, {
      x, drawnAt, name: "key", label: `key: ${WORDS.key}`, y: ROW.key, shape: keyPill.shape,
      most: queryOf, get: keyOf, place: keyOf, put: (state, key) => ({ key, distance: Math.min(queryOf(state) - key, FARTHEST) }),
    }),
    runner(part, figure, drawing, {
      x, name: "both", label: "both words", y: ROW.both, shape: [grip], most: ({ distance }) => PLACES - 1 - distance,
      get: keyOf, place: (state) => state.key + state.distance / 2, put: (_, key) => ({ key }),
    }),
  ];
  const ghosts = [svg("path", { class: "live-ghost", stroke: part.colour("query"), "stroke-width": 2 }), svg("path", { class: "live-ghost", stroke: part.colour("key"), "stroke-width": 2 })];
  drawing.insertBefore(band, handles[0].node);
  drawing.prepend(...ghosts);
  const moved = (node, at, y) => node.setAttribute("transform", `translate(${at} ${y})`);
  return {
    drawing,
    set(state) {
      const query = queryOf(state);
      for (const one of handles) one.show(state);
      part.write(queryPill.words, `${WORDS.query} ${query}`);
      part.write(keyPill.words, `${WORDS.key} ${state.key}`);
      handles[0].node.setAttribute("aria-valuetext", `place ${query}, distance ${state.distance}`);
      handles[1].node.setAttribute("aria-valuetext", `place ${state.key}, distance ${state.distance}`);
      handles[2].node.setAttribute("aria-valuetext", `places ${state.key} and ${query}`);
      handles[2].wide = Math.max(1, (state.distance * unit) / 40);
      Live.tween(drawing, { key: x(state.key), query: x(query) }, (now, before) => {
        const [left, right] = [now.key, now.query];
        keyCell.setAttribute("x", left - unit / 2 + 1);
        queryCell.setAttribute("x", right - unit / 2 + 1);
        band.setAttribute("x", left - unit / 2 - 3);
        band.setAttribute("width", right - left + unit + 6);
        moved(handles[0].node, within(right), ROW.query);
        moved(handles[1].node, within(left), ROW.key);
        for (const tick of ticks) // not behind the word below
          tick.setAttribute("visibility", Math.abs(tick.x.baseVal[0].value - within(left)) < 52 ? "hidden" : "visible");
        moved(handles[2].node, (left + right) / 2, ROW.both);
        queryStem.setAttribute("d", `M${right} ${ROW.query + 10}V${ROW.both - CELL / 2}`);
        keyStem.setAttribute("d", `M${left} ${ROW.both + CELL / 2}V${ROW.key - 10}`);
        ghosts[0].setAttribute("d", before ? `M${before.query} ${ROW.query - 10}V${ROW.both}` : "");
        ghosts[1].setAttribute("d", before ? `M${before.key} ${ROW.both}V${ROW.key + 12}` : "");
      });
    },
  };
}

// Pairs as hands ----

const degrees = (turns) => {
  const found = 360 * turns;
  return `${Live.part.number(found, found >= 10 ? 0 : found >= 1 ? 1 : 2)}°`;
};

/* By how much each pair turns from one place to the next, in full turns. */
const rates = ({ theta, stretch }) =>
  Array.from({ length: PAIRS }, (_, pair) => theta ** ((-2 * pair) / WIDTH) / stretch / (2 * Math.PI));

const polar = ([x, y]) => ({ r: Math.hypot(x, y), angle: Math.atan2(y, x) });

/* Where the hands stand. With RoPE an angle goes on and on, so that a hand that moves turns. */
function handsOf(state, found) {
  const isRope = state.scheme === "rope";
  const share = isRope || !PLACED[state.scheme] ? 1 / 1.45 : 1 / 2.9; // of the circle; what is added makes hands longer
  const hand = (x, given, place) => given.map((now, pair) => {
    const first = polar(Array.from(x.slice(2 * pair, 2 * pair + 2)));
    const turned = 2 * Math.PI * place * rates(state)[pair];
    return isRope ? { r: share * first.r, angle: first.angle + turned } : { r: share * polar(now).r, angle: polar(now).angle };
  });
  return { query: hand(drawn().query, found.query, state.key + state.distance), key: hand(drawn().key, found.key, state.key) };
}

function clocks(part) {
  const { svg } = part;
  const isNarrow = part.isNarrow();
  const [width, radius] = isNarrow ? [330, 31] : [640, 56];
  const column = width / (PAIRS + 1);
  const [centre, foot] = [22 + radius, 22 + 2 * radius];
  const drawing = part.drawing({ width, height: foot + 30, label: "Pairs of features as arrows" });
  const words = (x, y, more) => drawing.appendChild(svg("text", { x, y, "text-anchor": "middle", ...more }));
  const hand = (role, more) => ["none", part.colour(role)].map((fill, isTip) => // a shaft and its tip
    svg("path", { stroke: part.colour(role), "stroke-width": isTip ? 1 : 3, fill, ...more, ...(isTip ? { "stroke-dasharray": "none" } : {}) }));
  const faces = Array.from({ length: PAIRS }, (_, pair) => {
    const x = column * (pair + 0.5);
    const told = svg("title"); // how the two arrows make the number below them
    drawing.append(svg("circle", { cx: x, cy: centre, r: radius, fill: "var(--fig-panel)", stroke: "var(--fig-grid)" }));
    const one = {
      x, told, wedge: svg("path", { fill: part.colour("weight"), opacity: 0.3 }),
      was: [hand("query", { class: "live-ghost" }), hand("key", { class: "live-ghost" })],
      is: [hand("query"), hand("key", { "stroke-dasharray": "5 3" })],
      dot: svg("circle", { cx: x, cy: centre, r: 3, fill: "var(--fig-ink)" }),
      rate: words(x, 14, { class: "live-tick" }), part: words(x, foot + 24, { class: "live-sum" }),
    };
    drawing.append(one.wedge, ...one.was.flat(), ...one.is.flat(), one.dot, svg("circle", { cx: x, cy: centre, r: radius, fill: "transparent" }, told));
    if (pair) words(column * pair, foot + 24, { class: "live-sum", text: "+" });
    return one;
  });
  const last = column * (PAIRS + 0.5);
  words(last, centre - 12, { text: "score", class: "live-tick" });
  const total = words(last, centre + 12, { class: "live-total" });
  const added = words(column * PAIRS, foot + 24, { class: "live-sum" });
  const bias = words(last, foot + 24, { class: "live-sum" });
  const unit = isNarrow ? "" : " a step";
  if (isNarrow) words(last, 14, { class: "live-tick", text: "a step" });
  const tip = (x, { r, angle }) => [x + r * radius * Math.cos(angle), centre - r * radius * Math.sin(angle)];
  const put = ([shaft, head], x, one) => {
    const long = one ? one.r * radius : 0;
    shaft.setAttribute("d", long > 8 ? `M${x} ${centre}L${tip(x, { ...one, r: one.r - 7 / radius })}` : "");
    const at = (r, aside) => {
      const [cos, sin] = [Math.cos(one.angle), Math.sin(one.angle)];
      return `${(x + r * cos - aside * sin).toFixed(1)} ${(centre - r * sin - aside * cos).toFixed(1)}`;
    };
    const back = Math.min(9, long);
    head.setAttribute("d", one ? `M${at(long, 0)}L${at(long - back, 4.5)}L${at(long - back, -4.5)}Z` : "");
  };
  return {
    drawing,
    set(state, found) {
      const { number, write } = part;
      const rate = rates(state).map((each) => `${degrees(each)}${unit}`);
      const how = state.scheme === "rope" ? null : PLACED[state.scheme] ? "added" : "as it is";
      const told = found.turns.map((turns, pair) => {
        const [query, key] = [found.query[pair], found.key[pair]].map((hand) => number(Math.hypot(...hand)));
        return `lengths ${query} and ${key}, ${number(360 * turns, 0)}° apart: ${query} × ${key} × cos ${number(360 * turns, 0)}° ÷ √8 = ${number(found.parts[pair])}`;
      });
      faces.forEach((face, pair) => {
        write(face.rate, how || rate[pair]);
        write(face.told, `pair ${pair + 1}: ${told[pair]}`);
        write(face.part, number(found.parts[pair]));
      });
      write(total, number(found.score));
      const hasBias = Boolean(BIAS[state.scheme]);
      write(added, hasBias ? "+" : "");
      write(bias, hasBias ? `${isNarrow ? "" : "bias "}${number(found.bias)}` : "");
      drawing.setAttribute("aria-label", `Pairs of features as arrows. ${told.map((each, pair) => `Pair ${pair + 1}: ${each}`).join("; ")}. ` +
        `${hasBias ? `Bias ${number(found.bias)}, score` : "Score"} ${number(found.score)}`);
      Live.tween(drawing, handsOf(state, found), (now, before) => faces.forEach(({ x, wedge, was, is }, pair) => {
        const [query, key] = [now.query[pair], now.key[pair]];
        put(is[0], x, query);
        put(is[1], x, key);
        put(was[0], x, before?.query[pair]);
        put(was[1], x, before?.key[pair]);
        const open = Math.sin(query.angle - key.angle) > 0; // counterclockwise from key to query
        const [from, to] = [{ r: 0.45, angle: key.angle }, { r: 0.45, angle: query.angle }].map((each) => tip(x, each));
        wedge.setAttribute("d", `M${x} ${centre}L${from}A${0.45 * radius} ${0.45 * radius} 0 0 ${open ? 0 : 1} ${to}Z`);
      }), { step: 1 });
    },
  };
}

// The schemes ----

let group = 0;
function chooser(part, figure, touch) {
  const wasText = part.isNarrow() ? (score) => `was ${score}` : (score) => `${score} →`; // below the score, or before it
  const name = `live-scheme-${(group += 1)}`;
  const rows = Object.entries(SCHEMES).map(([scheme, words], at) => {
    const input = part.html("input", { type: "radio", name, value: scheme, onchange: () => {
      figure.set({ scheme }, Live.QUICK);
      figure.released();
    } });
    const sample = part.svg("svg", { viewBox: "0 0 30 8", width: 30, height: 8, "aria-hidden": "true" }, part.svg("path", {
      d: "M0 4H30", stroke: part.colour(ROLES[scheme]), "stroke-width": 2.6, "stroke-dasharray": part.dashes[DASHES[scheme]] }));
    const [shown, was] = [part.html("output"), part.html("small", { "aria-hidden": "true" })];
    const touched = { onpointerenter: () => touch(at, true), onpointerleave: () => touch(at, false) };
    return { scheme, input, shown, was, node: part.html("label", touched, input, sample, part.html("span", { text: words }), was, shown) };
  });
  const node = part.html("fieldset", { class: "live-schemes" }, part.html("legend", { text: "scheme, and its score now" }), ...rows.map((row) => row.node));
  return {
    node,
    /* Beside each score stands what it was before, or that it stays. */
    set(state, { curves }) {
      const { number, write } = part;
      const scores = rows.map(({ scheme }) => number(curves[scheme][state.distance]));
      rows.forEach(({ scheme, input, shown }, at) => {
        input.checked = scheme === state.scheme;
        write(shown, scores[at]);
      });
      Live.tween(node, rows.map(({ scheme }) => curves[scheme][state.distance]), (_, before) => rows.forEach(({ was }, at) => {
        const old = before && number(before[at]);
        write(was, !old ? "" : old === scores[at] ? "stays" : wasText(old));
      }));
    },
  };
}

function build(part, figure) {
  const isNarrow = part.isNarrow();
  const touch = (at, isTouched) => chart.drawing.querySelector(".live-ghost + g").children[at].classList.toggle("live-touched", isTouched);
  const [strip, faces, schemes] = [text(part, figure), clocks(part), chooser(part, figure, touch)];
  const chart = part.lines({
    label: "Score at each distance, for each scheme", xLabel: "distance from key to query", yLabel: "score",
    x: [0, FARTHEST], y: [-2, 4.5], ...(isNarrow ? { width: 330, height: 146 } : { width: 400, height: 236 }) });
  const stripTitle = part.titled("", strip.drawing);
  return {
    nodes: [
      stripTitle,
      part.titled(isNarrow ? "their pairs of features; below, what each adds" : "their pairs of features, the key’s dashed; below, what each pair adds to the score", faces.drawing),
      part.html("div", { class: "live-positions" }, part.titled("score at every distance (learned, T5: random)", chart.node), schemes.node),
    ],
    update(state, found) {
      part.write(stripTitle.firstChild, `drag a word of this text, or both; distance ${state.distance}`);
      strip.set(state);
      faces.set(state, found);
      schemes.set(state, found);
      const all = Object.keys(SCHEMES);
      chart.set([
        ...all.map((scheme) => ({
          role: ROLES[scheme], dash: DASHES[scheme], faint: scheme !== state.scheme, points: found.curves[scheme].map((y, distance) => [distance, y]) })),
        { role: "plain", points: [[state.distance, found.score]] },
      ], { step: 2 });
    },
  };
}

Live.define({
  name: "positions",
  title: "Where two words stand",
  question: "Two words keep their distance and move along the text. Whose score stays?",
  page: "07_positions",
  heights: [806, 847],
  scripts: ["handles.js"],
  state: {
    scheme: { kind: "choice", label: "scheme", start: "rope", of: SCHEMES, hidden: true },
    key: { kind: "number", label: "place of the key", min: 0, max: PLACES - 1, step: 1, start: 4, hidden: true },
    distance: { kind: "number", label: "distance", min: 0, max: FARTHEST, step: 1, start: 4, hidden: true },
    theta: { kind: "number", label: "RoPE:\u00a0base\u00a0θ", steps: [10, 100, 1000, 10000, 100000], start: 10000 },
    stretch: { kind: "number", label: "RoPE:\u00a0stretch", steps: [1, 2, 4, 8], start: 1 },
  },
  settled: (state) => ({ ...state, distance: Math.min(state.distance, PLACES - 1 - state.key) }), // both stand in the text
  values, say, build,
  more: ["RoPE: another base, or a longer text", 2, 0],
  tries: [
    {
      do: "Move both", set: { key: 7 },
      see: "Three places on, RoPE has turned both arrows of a pair alike, so its score stays. Sinusoidal goes from 1.91 to 3.00.",
    },
    {
      do: "No positions", set: { scheme: "none", distance: 12 },
      see: "A flat line: 1.31 at every distance. Attention by itself does not know where a word stands.",
    },
    {
      do: "Base 10", set: { theta: 10 },
      see: "All four pairs turn in sight, and the score falls from 0.31 to −0.44. At 10,000 two of them hardly move.",
    },
    {
      do: "Stretch 2", set: { stretch: 2, distance: 8 },
      see: "Distance 8, and each pair is as far apart as it was at 4: the score is 0.31 again. A text twice as long meets no new angle.",
    },
  ],
});
})();
