"use strict";
/* Chapter 8: four phrases, and ReLU units that fold the plane in which they lie. */
(() => {
const PHRASES = { "very good": [1, 1], "very bad": [1, -1], "not good": [-1, 1], "not bad": [-1, -1] };
const NAMES = Object.keys(PHRASES);
const POINTS = Object.values(PHRASES); // (4, 2)
const TASKS = { xor: [1, 0, 0, 1], and: [1, 0, 0, 0] };
const [MOST, REACH, CELLS] = [6, 2, 15]; // units; the plane that is drawn; squares of it that are compared
const [DECAY, UNDECIDED] = [1e-3, 0.05];
const STARTS = { // a point of the unit's line, and its weights: where the arrow points, the unit is on
  1: [[0.8, -0.2], [1, 1]], 2: [[-0.8, 0.2], [-1, -1]], 3: [[0.4, 0.6], [0.5, 1.2]],
  4: [[0, 0.5], [0, 1]], 5: [[-1.3, -0.5], [-0.6, 0.3]], 6: [[0, -1.3], [0.3, -0.6]],
};
const KS = Array.from({ length: MOST }, (_, k) => k + 1);

/* Which two units the picture shows: two that are there, each once. The choice that was not touched makes way. */
function settled(state, before) {
  const most = Math.max(2, state.width);
  if (state.width === 1) return { ...state, across: 1, up: 2 }; // there is nothing upwards
  const [across, up] = [Math.min(state.across, most), Math.min(state.up, most)];
  if (across !== up) return { ...state, across, up };
  const free = [before.across, before.up, most, most - 1].find((k) => k <= most && k !== up);
  return state.up !== before.up && state.across === before.across ? { ...state, across: free, up } : { ...state, across, up: free };
}

// One hidden layer, one output ----

/* The units at a point (a, b): w · (point − at), silent below 0. */
const unitsOf = (state) => KS.slice(0, state.width).map((k) => ({ at: state[`at_${k}`], to: state[`to_${k}`] }));
const hiddenAt = (units, relu, [a, b]) => units.map(({ at, to }) => {
  const before = to[0] * (a - at[0]) + to[1] * (b - at[1]);
  return relu ? Math.max(0, before) : before;
});

const sigmoid = (score) => 1 / (1 + Math.exp(-score));

/* x with m x = y: elimination, the largest pivot first. */
function solve(m, y) {
  const rows = m.map((row, i) => [...row, y[i]]);
  const n = rows.length;
  for (let column = 0; column < n; column++) {
    const best = rows.reduce((top, row, i) => (i >= column && Math.abs(row[column]) > Math.abs(rows[top][column]) ? i : top), column);
    [rows[column], rows[best]] = [rows[best], rows[column]];
    for (let i = column + 1; i < n; i++) {
      const factor = rows[i][column] / rows[column][column];
      for (let j = column; j <= n; j++) rows[i][j] -= factor * rows[column][j];
    }
  }
  const x = new Array(n).fill(0);
  for (let i = n - 1; i >= 0; i--) x[i] = (rows[i][n] - Live.tensor.dot(rows[i].slice(i + 1, n), x.slice(i + 1))) / rows[i][i];
  return x;
}

/* The cross-entropy of a layer, with its decay; log(1 + eˢ) without overflow. */
const lossOf = (layer, inputs, wanted) => inputs.reduce((sum, input, i) => {
  const score = Live.tensor.dot(input, layer);
  return sum + (Math.max(score, 0) - wanted[i] * score + Math.log1p(Math.exp(-Math.abs(score)))) / inputs.length;
}, (DECAY / 2) * Live.tensor.dot(layer, layer));

/* The output layer with the least cross-entropy: Newton's steps, halved while they do not help. */
function fitted(hidden, wanted) {
  const inputs = hidden.map((h) => [...h, 1]); // (4, F + 1): the last weight is the bias
  let layer = inputs[0].map(() => 0);
  for (let step = 0; step < 60; step++) {
    const shares = inputs.map((input) => sigmoid(Live.tensor.dot(input, layer)));
    const over = (at) => inputs.reduce((sum, input, i) => sum + at(input, i), 0) / inputs.length;
    const slope = layer.map((each, j) => DECAY * each + over((input, i) => (shares[i] - wanted[i]) * input[j]));
    if (Math.hypot(...slope) < 1e-13) break;
    const bend = layer.map((_, j) => layer.map((_, k) =>
      (j === k ? DECAY : 0) + over((input, i) => shares[i] * (1 - shares[i]) * input[j] * input[k])));
    const move = solve(bend, slope);
    const moved = (size) => layer.map((each, j) => each - size * move[j]);
    let size = 1;
    while (size > 1e-6 && lossOf(moved(size), inputs, wanted) > lossOf(layer, inputs, wanted)) size /= 2;
    layer = moved(size);
  }
  return { weights: layer.slice(0, -1), bias: layer.at(-1) };
}

/* Squares of the plane, row by row from the lower left. */
function fieldOf(state, { weights, bias }, cells) {
  const units = unitsOf(state);
  const middle = (at) => REACH * ((2 * at + 1) / cells - 1);
  return Array.from({ length: cells * cells }, (_, at) =>
    sigmoid(Live.tensor.dot(hiddenAt(units, state.relu, [middle(at % cells), middle(Math.floor(at / cells))]), weights) + bias));
}

function values(state) {
  const units = unitsOf(state);
  const wanted = TASKS[state.task];
  const hidden = POINTS.map((point) => hiddenAt(units, state.relu, point)); // (4, F)
  const layer = fitted(hidden, wanted);
  const shares = hidden.map((h) => sigmoid(Live.tensor.dot(h, layer.weights) + layer.bias));
  const isOpen = (share) => Math.abs(share - 0.5) < UNDECIDED;
  return {
    hidden, ...layer, shares,
    right: shares.filter((share, i) => !isOpen(share) && share > 0.5 === Boolean(wanted[i])).length,
    undecided: shares.filter(isOpen).length,
    field: fieldOf(state, layer, CELLS),
  };
}

const LABELS = { xor: "XOR (praise)", and: "AND" };

function say(state, { hidden, shares, right, undecided }) {
  const { number } = Live.part;
  const on = KS.slice(0, state.width).map((k) => {
    const names = NAMES.filter((_, i) => hidden[i][k - 1] > 1e-9);
    return `unit ${k} is on for ${names.length ? names.join(", ") : "none of them"}`;
  });
  const first = state.relu ? `${on.join("; ")}.` : "Without ReLU no unit is ever off, and nothing folds.";
  const open = undecided ? `, ${undecided} undecided` : "";
  return `${first[0].toUpperCase()}${first.slice(1)} ${LABELS[state.task]}: ` +
    `${NAMES.map((name, i) => `${name} ${number(shares[i])}`).join(", ")}. ${right} of 4 right${open}.`;
}

// Drawing ----

const [SIZE, EDGE] = [300, 3];
const RANGES = { plane: [-REACH, REACH], units: [-3.2, 4] };
const [LOWEST, FARTHEST] = [-2.7, 3.5]; // of what a phrase's units say: beyond, all of it is drawn smaller

function frame(part, label, [low, high], role) {
  const unit = (SIZE - 2 * EDGE) / (high - low);
  const at = ([x, y]) => [EDGE + (x - low) * unit, EDGE + (high - y) * unit];
  const value = (px, py) => [low + (px - EDGE) / unit, high - (py - EDGE) / unit];
  const drawing = part.drawing({ width: SIZE, height: SIZE, label, role });
  const id = `live-fold-${role}`;
  drawing.append(
    part.svg("clipPath", { id }, part.svg("rect", { x: EDGE, y: EDGE, width: SIZE - 2 * EDGE, height: SIZE - 2 * EDGE })),
    part.svg("rect", { x: EDGE, y: EDGE, width: SIZE - 2 * EDGE, height: SIZE - 2 * EDGE, fill: "var(--fig-paper)", stroke: "var(--fig-grid)" }));
  const inside = drawing.appendChild(part.svg("g", { "clip-path": `url(#${id})` }));
  return { drawing, inside, at, value, unit };
}

/* A phrase: round where the answer is yes, square where it is no. */
function mark(part, more = {}) {
  const round = part.svg("circle", { r: 7.5, fill: part.colour("value") });
  const square = part.svg("rect", { x: -7, y: -7, width: 14, height: 14, fill: part.colour("key") });
  const node = part.svg("g", { stroke: "var(--fig-paper)", "stroke-width": 2, ...more }, part.svg("g", { class: "live-mark-size" }, round, square));
  return {
    node,
    set: (isYes) => [round, square].forEach((shape, at) => shape.setAttribute("visibility", (at === 0) === isYes ? "inherit" : "hidden")),
    put: ([x, y]) => node.setAttribute("transform", `translate(${x} ${y})`),
  };
}

/* A name stands beside a point, as many px of the screen away however small the drawing is shown. */
const beside = (text, [x, y], [right, down]) => {
  const far = (at, by) => `calc(${at.toFixed(1)}px + ${by}px * var(--px, 1))`;
  text.style.transform = `translate(${far(x, right)}, ${far(y, down)})`;
};

/* Where the names of points stand: those of one spot (`heads`) below each other, that of a single one above it;
   or elsewhere, if something (`rooms`, too) stands there. A place is what `beside` takes, with its anchor. */
function placesOf(part, spots, marks, heads, px, rooms) {
  const place = (anchor, right, down) => ({ anchor, by: [right, down] });
  const boxOf = (i, { anchor, by: [right, down] }) => {
    const wide = 6.6 * NAMES[i].length;
    const left = right - { start: 0, middle: wide / 2, end: wide }[anchor];
    const [x, y] = spots[i];
    return [x + left * px, y + (down - 12) * px, x + (left + wide) * px, y + (down + 3) * px];
  };
  const isInside = ([a, b, c, d]) => a >= 0 && c <= SIZE && b >= 0 && d <= SIZE;
  const single = [["middle", 0, -12], ["middle", 0, 22], ["start", 12, 5], ["end", -12, 5],
    ["start", -8, -12], ["end", 8, -12], ["start", -8, 22], ["end", 8, 22],
    ...[38, 54].flatMap((far) => [["middle", 0, far], ["middle", 0, 10 - far], ["start", -8, far], ["end", 8, far], ["start", -8, 10 - far], ["end", 8, 10 - far]])];
  const choicesFor = (group) => {
    if (group.length === 1) return single.map((one) => [place(...one)]);
    const below = Math.min(22, (SIZE - 8 - spots[group[0]][1]) / px - 15 * (group.length - 1)); // within the frame
    return [below, 3 - 15 * group.length].flatMap((first) => [["start", 14], ["end", -14]].map(([anchor, right]) =>
      group.map((_, row) => place(anchor, right, first + 15 * row))));
  };
  const groups = [...new Set(heads)].map((head) => NAMES.map((_, i) => i).filter((i) => heads[i] === head));
  const [taken, found] = [[...rooms], []];
  for (const group of groups.sort((one, other) => other.length - one.length)) { // the largest chooses first
    const stones = marks.filter((_, i) => !group.includes(i)).map((spot) => part.around(spot, px));
    const boxes = (choice) => choice.map((one, n) => boxOf(group[n], one));
    const all = choicesFor(group), inside = all.filter((choice) => boxes(choice).every(isInside));
    const choices = inside.length ? inside : all;
    const best = choices[part.freest(choices.map(boxes), [...taken, ...stones])];
    taken.push(...boxes(best));
    group.forEach((i, n) => (found[i] = { ...best[n], room: group.length === 1 ? boxes(best)[n] : null }));
  }
  return found;
}

/* The names of the phrases in a drawing, on lines to those that stand farther away. */
function namesIn(part, room) {
  const ties = NAMES.map(() => room.appendChild(part.svg("path", { class: "live-lead live-tie" })));
  const names = NAMES.map((text) => room.appendChild(part.svg("text", { class: "live-halo live-name", text })));
  return (spots, px, places) => places.forEach(({ anchor, by, room: taken }, i) => {
    names[i].setAttribute("text-anchor", anchor);
    beside(names[i], spots[i], by);
    part.tieTo(ties[i], spots[i], taken || [...spots[i], ...spots[i]], 16 * px, spots[i]);
  });
}

const FINE = 60; // squares of the plane as they are drawn
const LEVELS = [0.05, 0.2, 0.35, 0.45]; // how far from one half a square is, to be shaded so strongly

/* By how many px each unit's line is drawn to the side where it is on, because another line lies on it; and
   the first two units of which that is true. */
function besides(units) {
  const lines = units.map(({ at, to }) => {
    const size = Math.hypot(...to);
    return { n: to.map((each) => each / size), far: (at[0] * to[0] + at[1] * to[1]) / size, size };
  });
  const isSame = (one, other) => { // one line, though it may be on at the other side
    const turned = Math.sign(one.n[0] * other.n[0] + one.n[1] * other.n[1]);
    return one.size > 0.02 && other.size > 0.02 && Math.abs(one.n[0] * other.n[1] - one.n[1] * other.n[0]) < 0.03 && Math.abs(one.far - turned * other.far) < 0.06;
  };
  const isAlike = (one, other) => one.n[0] * other.n[0] + one.n[1] * other.n[1] > 0;
  const shared = lines.map((one, i) => lines.findIndex((other, j) => i !== j && isSame(one, other)));
  const shifts = lines.map((one, i) => (shared[i] < 0 ? 0 : 3 + 6 * lines.slice(0, i).filter((other) => isSame(one, other) && isAlike(one, other)).length));
  const first = shared.findIndex((each) => each >= 0);
  return { shifts, pair: first < 0 ? null : [first + 1, shared[first] + 1] };
}

function plane(part, figure) {
  const { drawing, inside, at, value, unit } = frame(part, "The plane of four phrases, and the line of each unit", RANGES.plane, "group");
  const shades = ["key", "value"].flatMap((role) => LEVELS.map((_, level) =>
    part.svg("path", { fill: part.colour(role), opacity: 0.08 + 0.09 * level, "shape-rendering": "crispEdges" })));
  inside.append(...shades);
  const [zero] = at([0, 0]);
  inside.append(part.svg("path", { d: `M${zero} 0V${SIZE}M0 ${zero}H${SIZE}`, class: "live-gridline" }));
  const line = (more) => inside.appendChild(part.svg("path", { fill: "none", stroke: "var(--fig-ink)", ...more }));
  const lines = KS.map(() => ({
    was: line({ class: "live-ghost", "stroke-width": 2 }), is: line({ "stroke-width": 2, class: "live-fold-line" }), comb: line({ "stroke-width": 1.2, opacity: 0.55 }), arrow: line({ "stroke-width": 2 }),
  }));
  const points = NAMES.map((name, i) => {
    const one = mark(part);
    one.put(at(POINTS[i]));
    inside.append(one.node);
    return one;
  });
  const corners = POINTS.map(at), putNames = namesIn(part, inside);
  const plus = (k, to) => figure.state[`at_${k}`].map((each, axis) => each + to[axis]);
  const handles = KS.map((k) => [
    part.handle({ drawing, name: `at_${k}`, role: "query", figure, at, value, label: String(k), towards: [0, -0.1],
      shape: part.svg("circle", { r: 9.5, fill: "var(--fig-q)", stroke: "var(--fig-paper)", "stroke-width": 2 }) }),
    part.handle({ drawing, name: `to_${k}`, role: "query", figure, at: (to) => at(plus(k, to)), label: "", towards: [0.7, -0.7],
      value: (x, y) => value(x, y).map((each, axis) => each - figure.state[`at_${k}`][axis]),
      shape: part.svg("circle", { r: 5.5, fill: "var(--fig-paper)", stroke: "var(--fig-q)", "stroke-width": 2.5 }) }),
  ]);
  for (const [one] of handles) one.node.classList.add("live-unit");
  const note = drawing.appendChild(part.svg("text", { class: "live-tick live-halo", x: EDGE + 5, y: SIZE - EDGE - 7 }));
  const squares = (field) => {
    const paths = shades.map(() => "");
    const side = (2 * REACH * unit) / FINE;
    const levelOf = (share) => LEVELS.findLastIndex((least) => Math.abs(share - 0.5) >= least) + (share > 0.5 ? LEVELS.length : 0);
    const isBlank = (share) => Math.abs(share - 0.5) < LEVELS[0];
    for (let row = 0; row < FINE; row++) {
      for (let column = 0, end = 0; column < FINE; column = end) { // neighbours of one shade are one piece
        const share = field[row * FINE + column];
        const shade = isBlank(share) ? null : levelOf(share);
        for (end = column + 1; end < FINE; end++) {
          const next = field[row * FINE + end];
          if ((isBlank(next) ? null : levelOf(next)) !== shade) break;
        }
        if (shade === null) continue;
        const [x, y] = [EDGE + column * side, SIZE - EDGE - row * side];
        paths[shade] += `M${x.toFixed(1)} ${y.toFixed(1)}h${((end - column) * side).toFixed(1)}v${-side.toFixed(1)}h${-((end - column) * side).toFixed(1)}z`;
      }
    }
    return paths;
  };
  const drawLine = (one, { from, by, shift }) => {
    const length = Math.hypot(...by);
    if (length < 1) return ["is", "comb", "arrow"].forEach((each) => one[each].setAttribute("d", ""));
    const [nx, ny] = by.map((each) => each / length);
    const [x, y] = from.map((each, axis) => each + shift * [nx, ny][axis]);
    one.is.setAttribute("d", `M${x - 900 * ny} ${y + 900 * nx}L${x + 900 * ny} ${y - 900 * nx}`);
    let comb = "";
    for (let along = -30; along <= 30; along++) comb += `M${x + 14 * along * ny} ${y - 14 * along * nx}l${7 * nx} ${7 * ny}`;
    one.comb.setAttribute("d", comb);
    const [tx, ty] = [from[0] + by[0], from[1] + by[1]];
    one.arrow.setAttribute("d", `M${from}L${tx - 6 * nx} ${ty - 6 * ny}`);
  };
  const side = (d) => (d ? `M${d.from[0] - 9 * d.by[1]} ${d.from[1] + 9 * d.by[0]}L${d.from[0] + 9 * d.by[1]} ${d.from[1] - 9 * d.by[0]}` : "");
  return {
    drawing,
    set(state, found) {
      const shown = handles.slice(0, state.width).flat();
      handles.forEach(([one, tip], k) => {
        const isThere = k < state.width;
        for (const each of [one, tip]) {
          each.node.style.display = isThere ? "" : "none";
          if (!isThere) each.drawn.x = 1e6; // out of reach
        }
        for (const each of Object.values(lines[k])) each.style.display = isThere ? "" : "none";
      });
      const { shifts, pair } = besides(unitsOf(state));
      part.write(note, pair ? `the lines of ${pair[0]} and ${pair[1]} lie on each other` : "");
      const lay = () => { // again, when its size on the screen is known
        const px = drawing.px || 1, spots = part.spread(shown, state);
        const rooms = [...part.ticksOn(drawing), ...spots.map((spot) => part.around(spot, px))];
        putNames(corners, px, placesOf(part, corners, corners, [0, 1, 2, 3], px, rooms));
        drawing.again = lay;
      };
      lay();
      points.forEach((point, i) => point.set(Boolean(TASKS[state.task][i])));
      Live.tween(inside, fieldOf(state, found, FINE), (now) =>
        squares(now).forEach((d, i) => shades[i].getAttribute("d") !== d && shades[i].setAttribute("d", d)), { step: 2 });
      const to = KS.map((k) => ({ shift: shifts[k - 1] || 0, from: at(state[`at_${k}`]), by: [state[`to_${k}`][0] * unit, -state[`to_${k}`][1] * unit] }));
      Live.tween(drawing, to, (now, before) => now.forEach((each, i) => {
        drawLine(lines[i], each);
        const old = before?.[i];
        const isOther = old && Math.hypot(old.from[0] - to[i].from[0], old.from[1] - to[i].from[1], old.by[0] - to[i].by[0], old.by[1] - to[i].by[1]) > 1;
        lines[i].was.setAttribute("d", isOther ? side(old) : "");
      }));
    },
  };
}

/* The plane as the units see it: a sheet of paper, folded. */
const SHEET = Array.from({ length: 9 }, (_, at) => (at - 4) / 2);
const ALONG = Array.from({ length: 41 }, (_, at) => (at - 20) / 10);
const CREASES = [...SHEET.map((a) => ALONG.map((b) => [a, b])), ...SHEET.map((b) => ALONG.map((a) => [a, b]))];

function foldedSheet(part) {
  const { drawing, inside, at } = frame(part, "The four phrases, as two units see them", RANGES.units, "img");
  const half = inside.appendChild(part.svg("path", { fill: part.colour("value"), opacity: 0.16 }));
  const [zero] = at([0, 0]);
  const [, floor] = at([0, 0]);
  inside.append(part.svg("path", { d: `M${zero} 0V${SIZE}M0 ${floor}H${SIZE}`, stroke: "var(--fig-muted)" }));
  const sheet = inside.appendChild(part.svg("path", { fill: "none", stroke: "var(--fig-q)", "stroke-width": 1.3, opacity: 0.7 }));
  const line = inside.appendChild(part.svg("path", { fill: "none", stroke: part.colour("weight"), "stroke-width": 3 }));
  const words = (more) => drawing.appendChild(part.svg("text", { class: "live-tick live-halo", ...more }));
  const right = SIZE - EDGE - 4;
  const axes = [ // what the axes are: where neither a phrase nor the line stands
    { text: words(), places: [[right, floor + 16, "end"], [right, floor - 7, "end"], [right, SIZE - EDGE - 6, "end"]] },
    { text: words(), places: [[zero + 6, EDGE + 14, "start"], [zero - 6, EDGE + 14, "end"]] }];
  const note = words({ x: EDGE + 5, y: SIZE - EDGE - 7 });
  const isNarrow = part.isNarrow(); // no room for words at the axes: the title has them
  /* The line where the output is one half: (a, b) is a along it and b to the side of yes. None, if nothing turns. */
  const turnOf = ([v, w, c], smaller) => {
    const length = Math.hypot(v, w);
    if (length < 0.02) return null;
    const foot = [(-c * v) / length ** 2, (-c * w) / length ** 2].map((each) => smaller * each);
    const [n, along] = [[(9 * v) / length, (9 * w) / length], [(-9 * w) / length, (9 * v) / length]];
    return (a, b) => at([foot[0] + a * along[0] + b * n[0], foot[1] + a * along[1] + b * n[1]]);
  };
  const ghosts = NAMES.map(() => mark(part, { class: "live-ghost" }));
  const points = NAMES.map(() => mark(part));
  inside.append(...ghosts.map(({ node }) => node), ...points.map(({ node }) => node));
  const putNames = namesIn(part, drawing);
  return {
    drawing,
    set(state, found) {
      drawing.again = () => Live.moving(Live.STILL, () => this.set(state, found)); // when its size on the screen is known
      const px = drawing.px || 1;
      const units = unitsOf(state);
      const isWhole = KS.slice(0, state.width).every((k) => k === state.across || k === state.up || Math.abs(found.weights[k - 1]) < 0.005);
      const chosen = found.hidden.flatMap((h) => [h[state.across - 1], h[state.up - 1] ?? 0]);
      const smaller = 1 / Math.max(1, Math.max(...chosen) / FARTHEST, Math.min(...chosen) / LOWEST);
      const seen = (h) => at([state.across, state.up].map((k) => smaller * (k <= state.width ? h[k - 1] : 0)));
      const spots = found.hidden.map(seen);
      const heads = spots.map(([x, y], i) => spots.findIndex(([u, v]) => Math.hypot(x - u, y - v) < 3));
      const isHidden = heads.some((head, i) => // another unit tells them apart
        found.hidden[i].some((each, k) => Math.abs(each - found.hidden[head][k]) > 0.05));
      part.write(note, isWhole || !isHidden ? "" : isNarrow ? "told apart by others" : "other units tell these apart");
      if (isNarrow) note.setAttribute("y", EDGE + 13 * px);
      const places = heads.map((head, i) => { // phrases of one spot stand around it
        const row = heads.slice(0, i).filter((each) => each === head).length;
        const crowd = heads.filter((each) => each === head).length;
        const turn = 2 * Math.PI * (row / crowd + 0.5);
        const far = crowd > 1 ? 5 + crowd : 0;
        return [spots[i][0] + far * px * Math.cos(turn), spots[i][1] + far * px * Math.sin(turn)];
      });
      const weightOf = (k) => (k <= state.width ? found.weights[k - 1] : 0);
      const layer = isWhole ? [weightOf(state.across), state.up === state.across ? 0 : weightOf(state.up), found.bias] : [0, 0, 0];
      const turn = turnOf(layer, smaller);
      const along = turn ? Array.from({ length: 241 }, (_, n) => part.around(turn(n / 120 - 1, 0), 0.3 * px)) : [];
      const rooms = [part.roomOf(EDGE + 5, Number(note.getAttribute("y")), note.textContent, "start", px), ...(isNarrow ? [] : along)];
      const titles = isNarrow ? ["", ""] : [`unit ${state.across} →`, state.width === 1 ? "" : `↑ unit ${state.up}`];
      axes.forEach(({ text, places: all }, n) => {
        const taken = all.map(([x, y, anchor]) => part.roomOf(x, y, titles[n], anchor, px));
        const best = part.freest(taken.map((room) => [room]), [...along, ...places.map((spot) => part.around(spot, px))]);
        const [x, y, anchor] = all[best];
        part.write(text, titles[n]);
        for (const [name, value] of Object.entries({ x, y, "text-anchor": anchor })) text.setAttribute(name, value);
        if (titles[n]) rooms.push(taken[best]);
      });
      putNames(spots, px, placesOf(part, spots, places, heads, px, rooms));
      [...points, ...ghosts].forEach((one, i) => one.set(Boolean(TASKS[state.task][i % 4])));
      const to = {
        sheet: CREASES.map((crease) => crease.map((point) => seen(hiddenAt(units, state.relu, point)))),
        places, layer,
      };
      Live.tween(drawing, to, (now, before) => {
        sheet.setAttribute("d", now.sheet.map((crease) => `M${crease.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`).join(""));
        points.forEach((one, i) => one.put(now.places[i]));
        ghosts.forEach((one, i) => one.put((before || now).places[i]));
        const corner = turnOf(now.layer, smaller);
        if (!corner) return [half, line].forEach((each) => each.setAttribute("d", ""));
        line.setAttribute("d", `M${corner(-1, 0)}L${corner(1, 0)}`);
        half.setAttribute("d", `M${corner(-1, 0)}L${corner(1, 0)}L${corner(1, 1)}L${corner(-1, 1)}Z`);
      }, { step: 1 });
    },
  };
}

/* What the shapes, shades and lines are. */
function legendOf(part) {
  const { svg, colour } = part;
  const sample = (words, ...shapes) => part.html(
    "span", {}, svg("svg", { viewBox: "0 0 22 16", width: 22, height: 16, "aria-hidden": "true" }, ...shapes), part.html("i", { text: words }));
  const path = (d, stroke, more) => svg("path", { d, stroke, fill: "none", "stroke-width": 2, ...more });
  const shade = (role) => svg("rect", { width: 22, height: 16, fill: colour(role), opacity: 0.35 });
  return part.html(
    "p", { class: "live-legend live-fold-legend" },
    sample("wanted: yes", svg("circle", { cx: 11, cy: 8, r: 6, fill: colour("value") })),
    sample("wanted: no", svg("rect", { x: 5, y: 2, width: 12, height: 12, fill: colour("key") })),
    sample("the network says yes", shade("value")), sample("says no", shade("key")),
    sample("a unit’s line: teeth where it is on", path("M0 12H22", "var(--fig-ink)"), path("M3 12V6M9 12V6M15 12V6M21 12V6", "var(--fig-ink)", { "stroke-width": 1.2 })),
    sample("the plane, folded", path("M1 2V14H21", colour("query"), { "stroke-width": 1.3 })),
    sample("where the answer turns", path("M1 14L21 2", colour("weight"), { "stroke-width": 3 })));
}

function build(part, figure) {
  const [left, right] = [plane(part, figure), foldedSheet(part)];
  const bars = part.bars({ names: NAMES, label: "Output", role: "value" });
  const output = part.titled("", bars.node);
  const legend = legendOf(part);
  const isNarrow = part.isNarrow(); // a screen is short: there the legend comes after what is pressed
  const folded = part.titled("", right.drawing);
  const titleOf = ({ width, across, up }) => {
    if (width === 1) return `what the one unit says${isNarrow ? ": 1 →" : ""}`;
    const many = width > 2 ? `two of ${width} units say` : "the units say";
    return `what ${many}${isNarrow ? `: ${across}\u00a0→,\u00a0${up}\u00a0↑` : ""}`;
  };
  return {
    rest: isNarrow ? [legend] : null,
    nodes: [part.html(
      "div", { class: "live-fold live-beside" },
      part.titled("drag units and arrows", left.drawing), folded, isNarrow ? null : legend, output)],
    update(state, found) {
      left.set(state, found);
      right.set(state, found);
      part.write(folded.firstChild, titleOf(state));
      bars.set(found.shares, { step: 2 });
      part.write(output.firstChild, `output layer${isNarrow ? "" : " trained for them"}: ${found.right} of 4 right${found.undecided ? `, ${found.undecided} undecided` : ""}`);
    },
  };
}

const point = (label, start) => ({ kind: "point", label, min: -REACH, max: REACH, step: 0.05, start });

Live.define({
  name: "fold",
  title: "Units that fold the plane",
  question: "No straight line parts praise from the rest. What do two ReLU units do?",
  page: "08_feedforward",
  heights: [856, 1090],
  scripts: ["handles.js"],
  state: {
    width: { kind: "number", label: "units", min: 1, max: MOST, step: 1, start: 2 },
    relu: { kind: "toggle", label: "ReLU", start: true },
    task: { kind: "choice", label: "task", start: "xor", of: LABELS },
    across: { kind: "number", label: "across:\u00a0unit", min: 1, max: MOST, step: 1, start: 1, most: ({ width }) => width },
    up: {
      kind: "number", label: "up:\u00a0unit", min: 1, max: MOST, step: 1, start: 2,
      most: ({ width }) => width, when: ({ width }) => width > 1,
    },
    ...Object.fromEntries(Object.entries(STARTS).flatMap(([k, [at, to]]) => [
      [`at_${k}`, point(`line of unit ${k}`, at)], [`to_${k}`, point(`arrow of unit ${k}`, to)]])),
  },
  values, say, build, settled,
  more: ["Which units the picture shows", 9, 3],
  tries: [
    {
      do: "Switch ReLU off", set: { relu: false },
      see: "Unfolded, the squares lie between the circles, and every phrase gets 0.50. Six units without ReLU do no better.",
    },
    {
      do: "Drag unit 1 away", set: { at_1: [1.6, 0.6] },
      see: "Unit 1 is off for all four phrases, and very good lies where very bad lies: 3 of 4 right.",
    },
    {
      do: "Add a unit", set: { at_1: [1.6, 0.6], width: 3, across: 3 },
      see: "Unit 3 is on for very good alone and does what unit 1 did: 4 of 4 right again. More units, more chances.",
    },
    {
      do: "Ask for AND", set: { task: "and", relu: false },
      see: "Only very good counts now. One straight line is enough, even without ReLU: 4 of 4 right.",
    },
  ],
});
})();
