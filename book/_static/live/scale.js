"use strict";
/* Chapter 4: the weights of one query without the root and with it, as width and number of keys change. */
(() => {
const WIDTHS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const [ROWS, KEYS, WIDEST] = [31, 64, 1024]; // queries and keys of a draw; an odd number has one median
const DIVISORS = { none: () => 1, root: Math.sqrt };
const POINTS = Array.from({ length: 65 }, (_, i) => Math.floor((i * i) / 4)); // features added up, along a walk

const kept = {};
const once = (name, make) => (kept[name] ??= make()); // a slider asks for the same numbers again and again

/* The features of 64 keys, then of 31 queries. */
const numbersOf = (draw) => once(`numbers ${draw}`, () => Live.tensor.normals(draw, (KEYS + ROWS) * WIDEST));

/* All dot products of a draw, a (31, 64) table for each width. A head of width d has the first d features
   of the same vectors: moving the slider adds features, or takes them away. */
function products(draw) {
  const numbers = numbersOf(draw);
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

/* How the scores of the first query grow, product by product: a walk for each key, (64, 65). */
function walksOf(draw) {
  const numbers = numbersOf(draw), q = KEYS * WIDEST;
  return Array.from({ length: KEYS }, (_, key) => {
    let [feature, sum] = [0, 0];
    return POINTS.map((end) => {
      for (; feature < end; feature++) sum += numbers[q + feature] * numbers[key * WIDEST + feature];
      return sum;
    });
  });
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

/* The first query: its weights, largest first, and how far its scores lie apart. */
function query(draw, width, n, by) {
  const scores = scoresOf(draw, width, n, by)[0];
  const weights = Live.tensor.softmax(scores).sort().reverse(); // (n,)
  return { weights, spread: deviation(scores), largest: weights[0] };
}

const values = ({ width, keys, draw }) => ({
  none: query(draw, width, keys, "none"),
  root: query(draw, width, keys, "root"),
  walks: once(`walks ${draw}`, () => walksOf(draw)).slice(0, keys),
  ends: scoresOf(draw, width, keys, "none")[0], // where the walks are after d steps
  typical: once(`${draw}, ${keys} keys`, () => laws(draw, keys)),
});

/* One sentence: what follows for the one query that is drawn. */
function say({ width, keys }, { none, root }) {
  const { number } = Live.part;
  return `Of ${keys} keys, the best one gets ${number(none.largest)} of the weight if its score stays as it is, ` +
    `and ${number(root.largest)} if all scores are divided by √${width}.`;
}

/* Beside the picture: how far the scores spread, what the root makes of it, and how it was before. */
function aside({ width, draw }, { none, root }, was) {
  const { number } = Live.part;
  const before = none.spread === was.values.none.spread ? "" : ` (before: ${number(was.values.none.spread, 1)})`;
  return (draw === was.state.draw ? "T" : "Other vectors: t") +
    `he scores’ standard deviation is ${number(none.spread, 1)}${before}, and √${width} is ${number(Math.sqrt(width), 1)}; ` +
    `divided, it is ${number(root.spread, 1)}.`;
}

// The page ----

/* A walk for each key: as many steps up and down as features. Its end is the score. Steps are drawn closer and
   closer, so that what is typical, ±√d, grows as straight lines. */
function fan(part) {
  const [width, height] = part.isNarrow() ? [330, 200] : [600, 250];
  const [left, right, top, floor] = [40, width - (part.isNarrow() ? 38 : 66), 14, height - 40], MOST_ = 70;
  const node = part.drawing({ width, height, label: "How scores grow: walks of d steps" });
  const across = (d) => left + (Math.sqrt(d / WIDEST)) * (right - left);
  const up = (score) => (top + floor) / 2 - (score / MOST_) * ((floor - top) / 2);
  const add = (tag, more, inside = node) => inside.appendChild(part.svg(tag, more));
  const words = (x, y, anchor, text, more) => add("text", { class: "live-tick", x, y, "text-anchor": anchor, text, ...more });
  for (const tick of [-50, 0, 50]) {
    add("path", { class: "live-gridline", d: `M${left} ${up(tick)}H${right}` });
    words(left - 6, up(tick) + 4, "end", part.number(tick, 0));
  }
  for (const tick of [4, 16, 64, 256, WIDEST]) words(across(tick), floor + 17, "middle", tick);
  words((left + right) / 2, height - 5, "middle", "features d: four times as many, twice the spread");
  words(13, (top + floor) / 2, "middle", "score", { transform: `rotate(-90 13 ${(top + floor) / 2})` });
  const edge = Math.sqrt(WIDEST);
  add("path", { d: `M${left} ${up(0)}L${right} ${up(edge)}V${up(-edge)}Z`, style: "fill: var(--fig-w-soft)", opacity: 0.7 });
  const clip = (id) => add("rect", { y: top - 8, height: floor - top + 12 }, add("clipPath", { id }));
  const [all, past] = [clip("live-walks"), clip("live-walked")];
  all.setAttribute("x", left - 8);
  all.setAttribute("width", right - left + 12);
  const lines = (more) => add("path", { fill: "none", "stroke-linejoin": "round", ...more }, add("g", { "clip-path": "url(#live-walks)" }));
  const faint = lines({ stroke: part.colour("muted"), opacity: 0.12 });
  const walked = lines({ stroke: part.colour("plain"), opacity: 0.5, "clip-path": "url(#live-walked)" });
  const best = lines({ stroke: part.colour("key"), "stroke-width": 2.4, "clip-path": "url(#live-walked)" });
  const mark = add("path", { stroke: "var(--fig-muted)", "stroke-dasharray": "3 3" });
  const dots = add("path", { stroke: part.colour("plain"), "stroke-width": 3.6, "stroke-linecap": "round", opacity: 0.7, "clip-path": "url(#live-walks)" });
  const top_ = add("circle", { r: 5.5, fill: part.colour("key"), stroke: "var(--fig-paper)", "stroke-width": 2 });
  const sides = [1, -1].map((sign) => words(right + 6, up(sign * edge) + 4, "start", sign < 0 ? "−√d" : part.isNarrow() ? "+√d" : "+√d = 32"));
  sides.forEach((side) => (side.style.fill = part.colour("weight")));
  const won = add("text", { class: "live-halo", style: `fill: ${part.colour("key")}; font-weight: 600` });
  const wide = add("text", { class: "live-halo live-tick" });
  const path = (walk) => `M${walk.map((score, at) => `${across(POINTS[at]).toFixed(1)} ${up(score).toFixed(1)}`).join("L")}`;
  let [shown, paths] = [[], []];
  return {
    node: part.titled("a walk for each key: every product is a step, and where it ends is the score", node),
    set({ width: d }, { walks, ends, none }) {
      const deviated = `standard deviation ${part.number(none.spread, 1)}`;
      part.write(wide, deviated);
      node.setAttribute("aria-label", `Scores of ${walks.length} keys as walks of ${d} steps: ${deviated}, √d = ${part.number(Math.sqrt(d), 1)}`);
      const winner = ends.indexOf(Math.max(...ends));
      const [x, y] = [across(d), up(Math.min(ends[winner], MOST_))];
      if (shown[0] !== walks[0] || shown.length !== walks.length) {
        if (shown[0] !== walks[0]) paths = [];
        shown = walks;
        const all = walks.map((walk, key) => (paths[key] ??= path(walk))).join("");
        for (const one of [faint, walked]) one.setAttribute("d", all);
      }
      best.setAttribute("d", paths[winner]);
      part.write(won, ends[winner] > MOST_ ? `best key: ${part.number(ends[winner], 0)} ↑` : "best key"); // beyond the chart
      const isLeft = x < (left + right) / 2;
      for (const text of [won, wide]) text.setAttribute("text-anchor", isLeft ? "start" : "end");
      const low = up(Math.min(...ends)); // below all of them there is room
      Live.tween(node, { x, y, low, ends: Array.from(ends, up) }, (now) => {
        past.setAttribute("x", left - 8);
        past.setAttribute("width", Math.max(0, now.x - left + 8));
        mark.setAttribute("d", `M${now.x} ${top}V${floor}`);
        dots.setAttribute("d", now.ends.map((end) => `M${now.x} ${end}h0`).join(""));
        [top_.cx.baseVal.value, top_.cy.baseVal.value] = [now.x, now.y];
        for (const text of [won, wide]) text.setAttribute("x", now.x + (isLeft ? 10 : -10));
        wide.setAttribute("y", Math.min(floor - 4, now.low + 18 * (node.px || 1)));
        won.setAttribute("y", Math.max(top + 10, now.y + 1));
      });
    },
  };
}

/* The weights of one query, largest first; the best key is that of the walks. A line where even weights would be. */
function bars(part, title, label, role) {
  const [width, height] = part.isNarrow() ? [152, 128] : [320, 176];
  const [left, right, top, floor] = [28, width - 6, 22, height - 26];
  const up = (share) => floor - share * (floor - top);
  const words = (x, y, anchor, text) => part.svg("text", { class: "live-tick", x, y, "text-anchor": anchor, text });
  const node = part.drawing({ width, height, label });
  const path = (more) => node.appendChild(part.svg("path", more));
  for (const tick of [0, 0.5, 1]) {
    path({ class: "live-gridline", d: `M${left} ${up(tick)}H${right}` });
    node.append(words(left - 6, up(tick) + 4, "end", tick));
  }
  node.append(words((left + right) / 2, height - 7, "middle", part.isNarrow() ? "keys, sorted" : "keys, largest weight first"));
  const [best, is] = [path({ fill: part.colour("key") }), path({ fill: part.colour(role) })];
  const was = path({ class: "live-ghost", fill: "none", stroke: part.colour("plain"), "stroke-width": 1.5 });
  const even = path({ stroke: part.colour("plain"), "stroke-width": 1.6, "stroke-dasharray": "4 3" });
  const [note, most] = [words(right, 0, "end", ""), words(left + 2, 0, "start", "")].map((one) => node.appendChild(one));
  note.classList.add("live-halo");
  most.setAttribute("class", "live-halo");
  most.setAttribute("style", `fill: ${part.colour("key")}; font-weight: 600`);
  const outline = ({ weights, n }, from = 0, to = n) => weights.slice(from, Math.ceil(to)).map((p, at) => {
    const wide = (right - left) / n;
    return `M${left + (from + at + 0.1) * wide} ${floor}V${up(p)}h${0.8 * wide}V${floor}`;
  }).join("");
  return {
    node: part.titled(title, node),
    set({ weights: found, largest }, step) {
      const n = found.length;
      part.write(note, `even: 1/${n}`);
      part.write(most, part.number(largest));
      node.setAttribute("aria-label", `${label}: the largest is ${part.number(largest)}, even weights are 1/${n}`);
      const weights = Array.from({ length: KEYS }, (_, at) => found[at] || 0);
      Live.tween(node, { weights, n }, (now, before) => {
        best.setAttribute("d", outline(now, 0, 1));
        is.setAttribute("d", outline(now, 1));
        was.setAttribute("d", before ? outline(before) : "");
        even.setAttribute("d", `M${left} ${up(1 / now.n)}H${right}`);
        note.setAttribute("y", up(1 / now.n) - 6);
        most.setAttribute("y", up(now.weights[0]) - 5);
      }, { step });
    },
  };
}

/* The width as a line, the names of both lines, and the weights beside the dots. Below the lower line there is
   room for its name, or for a number where two dots are close. */
const RISE = 3; // of WIDTHS: left of the rising line there is room for its name
const BELOW = -0.2; // of the chart, below 0

function namesOf(part, chart) {
  const { across, up, frame, drawing } = chart;
  const mark = part.svg("path", { stroke: "var(--fig-muted)", "stroke-dasharray": "3 3", fill: "none" });
  drawing.insertBefore(mark, drawing.querySelector("g:last-of-type").previousSibling);
  const words = (role, text) => drawing.appendChild(part.svg("text", {
    class: "live-halo", style: `fill: ${part.colour(role)}; font-weight: 600`, "text-anchor": "end", x: frame.right, text }));
  const names = [words("plain", "as they are"), words("weight", "divided by √d")];
  const shown = [words("plain", ""), words("weight", "")];
  return (width, typical, largest) => {
    const px = drawing.px || 1;
    const isBoth = Math.abs(up(largest[0]) - up(largest[1])) < 48 * px;
    const isLate = width > 64; // names stand where the numbers do not
    const ends = [isLate ? up(typical[0][RISE]) - 8 * px : up(typical[0].at(-1)) + 20 * px,
      up(typical[1].at(isLate ? 0 : -1)) + 20 * px];
    names[0].setAttribute("x", isLate ? across(WIDTHS[RISE]) - 8 * px : frame.right);
    names[1].setAttribute("x", isLate ? frame.left + 4 : frame.right);
    names[1].setAttribute("text-anchor", isLate ? "start" : "end");
    largest.forEach((each, at) => {
      part.write(shown[at], part.number(each));
      shown[at].setAttribute("text-anchor", width < 4 ? "start" : width > 256 ? "end" : "middle");
    });
    const below = [!isBoth, isBoth];
    Live.tween(mark, { x: across(width), dots: largest.map(up), ends }, ({ x, dots, ends: heights }) => {
      mark.setAttribute("d", `M${x} ${frame.top}V${up(0)}`);
      names.forEach((name, at) => name.setAttribute("y", heights[at]));
      dots.forEach((y, at) => {
        shown[at].setAttribute("x", x);
        shown[at].setAttribute("y", y + (below[at] ? 21 : -11) * px);
      });
    });
  };
}

function build(part) {
  const weights = part.isNarrow() ? "weights:" : "weights of the scores";
  const raw = bars(part, `${weights} as they are`, "Weights, scores as they are", "plain");
  const scaled = bars(part, part.isNarrow() ? "weights: ÷ √d" : `${weights} divided by √d`, "Weights, scores divided by √d", "weight");
  const walks = fan(part);
  const chart = part.lines({
    label: "Largest weight at each width", xLabel: "width d", yLabel: "largest weight",
    x: [1, 1024], y: [BELOW, 1], logX: true, xTicks: [1, 4, 16, 64, 256, 1024],
    ...(part.isNarrow() ? { width: 330, height: 210 } : { width: 600, height: 224 }), room: { top: 24 } });
  const names = namesOf(part, chart);
  const law = part.titled(`largest weight at each width; lines: the median of ${ROWS} queries, dots: this one`, chart.node);
  law.classList.add("live-extra"); // folded at first
  return {
    nodes: [
      walks.node,
      part.html("div", { class: "live-pair" }, raw.node, scaled.node),
    ],
    rest: [law],
    update({ width }, found) {
      const { none, root, typical } = found;
      walks.set({ width }, found);
      const line = (role, ys, dash) => ({ role, dash, points: ys.map((y, at) => [WIDTHS[at], y]) });
      names(width, typical, [none.largest, root.largest]);
      chart.set([
        line("plain", typical[0], 1), line("weight", typical[1], 0),
        { role: "plain", points: [[width, none.largest]] }, { role: "weight", points: [[width, root.largest]] }]);
      raw.set(none, 1);
      scaled.set(root, 2);
    },
  };
}

Live.define({
  name: "scale",
  title: "Scores and their scale",
  question: "Why divide the scores by √d?",
  page: "04_scaling",
  heights: [779, 760],
  state: {
    width: { kind: "number", label: "width\u00a0d", steps: WIDTHS, start: 64 },
    keys: { kind: "number", label: "keys", steps: [2, 4, 8, 16, 32, 64], start: 32 },
    draw: { kind: "number", label: "random draw", min: 1, max: 9, step: 1, start: 9 },
  },
  values, say, aside, build,
  more: ["More keys, other vectors, all widths", 2, 1],
  tries: [
    {
      do: "Narrow to d = 1", set: { width: 1 },
      see: "Now both rows are the same: the root of 1 is 1. It was the width that gave one key nearly everything.",
    },
    {
      do: "Widen to d = 1024", set: { width: 1024 },
      see: "The walks end far apart. As they are, one key gets 0.99 of the weight; divided, the best key gets 0.09.",
    },
    {
      do: "Take 64 keys", set: { keys: 64 },
      see: "Divided, the largest weight falls from 0.16 to 0.08. The root makes up for the width, not for more keys.",
    },
    {
      do: "Draw other vectors", set: { draw: 1 }, next: "draw",
      see: "Four scores happen to lie close together here, so even without the root four keys share 0.94 of the weight.",
    },
  ],
});
})();
