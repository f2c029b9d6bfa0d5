"use strict";
/* Chapter 1: a first input of 1, then n steps of silence. How much of it is left, and of its gradient? */
(() => {
const { short } = Live.part;
const LONGEST = 200;
const SMALLEST = 1e-300; // float64 has not much below; what is smaller counts as nothing
const NAMES = ["RNN", "LSTM", "attention"];
const ROLES = ["key", "query", "value"];
const AXES = { share: [[0, 1], false], tens: [[1e-12, 1e4], true] }; // what the chart shows

/* A state is handed on from step to step, and the gradient is multiplied by the slope of each step. */
function carried(next, slope) {
  const left = { input: [], gradient: [] };
  for (let t = 1, state = 1, gradient = 1; t <= LONGEST; t++) {
    state = next(state);
    gradient *= slope(state);
    left.input.push(state);
    left.gradient.push(gradient);
  }
  return left;
}

const rnn = (w, tanh) =>
  tanh ? carried((h) => Math.tanh(w * h), (h) => w * (1 - h * h)) : carried((h) => w * h, () => w);

const lstm = (f) => carried((c) => f * c, () => f); // the cell: no matrix, no tanh

/* One step at any distance. What arrives is the weight, and so is the gradient on the first value. */
function attention(score) {
  const left = Array.from({ length: LONGEST }, (_, at) => {
    const scores = new Float64Array(at + 2); // n + 1 tokens; the others have the score 0
    scores[0] = score;
    return Live.tensor.softmax(scores)[0];
  });
  return { input: left, gradient: left };
}

const known = (x) => (x >= SMALLEST ? x : 0);
const power = (x) => (x >= SMALLEST ? Math.log10(x) : null);

function values({ distance, weight, tanh, gate, score }) {
  const left = [rnn(weight, tanh), lstm(gate), attention(score)];
  return {
    input: left.map(({ input }) => known(input[distance - 1])),
    gradient: left.map(({ gradient }) => known(gradient[distance - 1])),
    steps: [distance, distance, 1],
    inputs: left.map(({ input }) => input.map(power)), // (3, 200): powers of ten at 1, 2, ... steps
    gradients: left[0].gradient.map(power), // (200,): the RNN's; those of the others are as their inputs
  };
}

/* One sentence; the RNN's gradient stands beside its line. */
const say = ({ distance }, { input: [rnn_, lstm_, attended] }) =>
  `After ${distance === 1 ? "1 step" : `${distance} steps`} attention has ${short(attended)} of the first input left, ` +
  `the LSTM ${short(lstm_)} and the RNN ${short(rnn_)}.`;

// Drawing ----

const points = (powers) => [0, ...powers].map((each, n) => [n, each === null ? 0 : 10 ** each]);

/* Beside the chart the name of each line and what is left at the distance; a dotted line leads there from the
   line's point at that distance, or from an arrow where that lies beyond the axis. Texts that would touch move apart. */
function labels(part, chart) {
  const { top, bottom, right } = chart.frame;
  const role = (at) => part.colour(ROLES[at] || "key");
  const leads = chart.drawing.insertBefore(part.svg("g"), chart.drawing.querySelector("g[clip-path]"));
  const all = chart.drawing.appendChild(part.svg("g"));
  const texts = [...NAMES, "RNN’s gradient"].map((name, at) => {
    const x = right + 18;
    const value = part.svg("tspan", { x });
    const lead = part.svg("path", { class: "live-reading", fill: "none", stroke: role(at), "stroke-width": 1.2, "stroke-dasharray": "1.5 3" });
    const text = part.svg("text", { x, style: `fill: ${role(at)}` }, part.svg("tspan", { text: `${name} `, style: "font-weight: 650" }), value);
    const arrow = part.svg("path", { class: "live-off", fill: role(at) });
    leads.append(lead);
    all.append(text, arrow);
    return { text, lead, value, arrow };
  });
  const within = (y) => Math.min(Math.max(y, top), bottom);
  return (left, distance) => {
    const px = chart.drawing.px || 1;
    const [line, high] = [16 * px, 38 * px];
    const from = left.map((share) => within(chart.up(share)));
    const to = part.apart(from, high, top, bottom + 4);
    const x = chart.across(distance);
    texts.forEach(({ value, arrow }, at) => {
      part.write(value, short(left[at]));
      value.setAttribute("dy", line);
      const beyond = chart.up(left[at]) - from[at]; // above the chart or below it
      const isFar = Math.abs(beyond) > 0.5;
      arrow.setAttribute("d", isFar ? `M${x} ${from[at]}l${-6 * px} ${-11 * px * Math.sign(beyond)}h${12 * px}z` : "");
    });
    Live.tween(all, { x, from, to }, (now) => texts.forEach(({ text, lead }, at) => {
      text.setAttribute("y", now.to[at] - 2);
      lead.setAttribute("d", `M${now.x} ${now.from[at]}H${right + 2}C${right + 10} ${now.from[at]} ${right + 6} ${now.to[at]} ${right + 15} ${now.to[at]}`);
    }));
  };
}

/* What arrives from so many steps back, as a trail of cells: the fainter, the less. */
const CELLS = 50;

function trails(part, { frame, drawing: chart }) {
  const [high, gap] = [17, 5];
  const { width } = chart.viewBox.baseVal;
  const drawing = part.drawing({ width, height: 3 * (high + gap), label: "What is left of the first input, a row each" });
  const wide = (frame.right - frame.left) / CELLS;
  const rows = NAMES.map((name, row) => {
    const y = row * (high + gap);
    drawing.append(part.svg("text", {
      class: "live-tick", x: frame.left - 6, y: y + high - 4, "text-anchor": "end", text: name, style: `fill: ${part.colour(ROLES[row])}` }));
    const cell = (at) => part.svg("rect", {
      x: frame.left + at * wide, y, width: wide - (wide < 6 ? 0.3 : 1.2), height: high, rx: wide < 6 ? 0 : 2, fill: part.colour(ROLES[row]) });
    drawing.append(part.svg("rect", { x: frame.left, y, width: frame.right - frame.left - 1.2, height: high, rx: 2, fill: "var(--fig-panel)" }));
    const cells = Array.from({ length: CELLS }, (_, at) => drawing.appendChild(cell(at)));
    return { cells, shown: [] };
  });
  const shade = (axis) => (power) => {
    if (power === null) return 0;
    const [low, high] = [-12, 0];
    return Math.min(1, axis === "tens" ? Math.max(0, (power - low) / (high - low)) : 10 ** power);
  };
  return {
    node: drawing,
    set({ axis }, { inputs }) {
      const middle = (at) => Math.round(((at + 0.5) * LONGEST) / CELLS) - 1;
      const to = inputs.map((powers) => Array.from({ length: CELLS }, (_, at) => shade(axis)(powers[middle(at)])));
      Live.tween(drawing, to, (now) => now.forEach((list, row) => list.forEach((each, at) => {
        const { cells, shown } = rows[row];
        const opacity = each.toFixed(3);
        if (shown[at] !== opacity) cells[at].setAttribute("opacity", (shown[at] = opacity));
      })));
    },
  };
}

function table(part) {
  const style = "padding: 0.2rem 0; text-align: right; white-space: nowrap; width: ";
  const head = ["24%", "30%", "30%", "16%"].map((width, at) =>
    part.html(at ? "th" : "td", { text: ["", "input", "gradient", "steps"][at], style: style + width }));
  const rows = NAMES.map((name, at) => {
    const look = `color: ${part.colour(ROLES[at])}; text-align: left; white-space: nowrap`;
    const cells = [1, 2, 3].map(() => part.html("td", { style: style + "auto" }));
    return part.html("tr", {}, part.html("th", { scope: "row", text: name, style: look }), ...cells);
  });
  const fixed = "font-size: 0.9rem; font-variant-numeric: tabular-nums; table-layout: fixed; width: 100%";
  return {
    node: part.html("table", { style: fixed }, part.html("tr", {}, ...head), ...rows),
    set: (columns) => columns.forEach((texts, column) =>
      texts.forEach((text, row) => part.write(rows[row].children[column + 1], text))),
  };
}

/* The distance, held by its name: it is dragged along the chart and its trails, or moved with keys. */
function ruler(part, figure, chart, trail) {
  const { left, right, top, bottom } = chart.frame;
  const spec = figure.figure.state.distance;
  const move = (to) => figure.set({ distance: Live.nearest(spec, to) });
  const line = (look) => part.svg("path", { fill: "none", ...look });
  const dots = [0, 1].map(() => line({ stroke: "var(--fig-muted)", "stroke-dasharray": "3 3" }));
  const reach = [0, 1].map(() => line({ class: "live-handle", stroke: "transparent", "stroke-width": 30 }));
  const words = part.svg("text", { class: "live-tick", "text-anchor": "middle", y: 4.5, style: "fill: var(--fig-ink); font-weight: 600" });
  const name = part.svg("g", { class: "live-mark" },
    part.svg("rect", { class: "live-ring", x: -45, y: -13, width: 90, height: 26, rx: 13 }),
    part.svg("rect", { x: -42, y: -10, width: 84, height: 20, rx: 10, fill: "var(--fig-panel)", stroke: "var(--fig-muted)" }),
    part.svg("path", { d: "M-34 0l5 -4v8zM34 0l-5 -4v8z", fill: "var(--fig-ink)" }), words);
  const node = part.svg("g", {
    class: "live-handle", tabindex: "0", role: "slider", "aria-label": "distance n, in the chart", "aria-valuemin": spec.min, "aria-valuemax": spec.max,
    ...part.sliderKeys(figure, [10, 20], (by) => move(figure.state.distance + by)),
  }, name);
  chart.drawing.append(dots[0], reach[0], node);
  trail.append(dots[1], reach[1]);
  const one = {
    node, name: "distance", tall: Infinity, drawn: { x: 0, y: 0 }, px: () => chart.drawing.px || 1,
    at: (distance) => [chart.across(distance), 0],
    dragTo: ([x]) => move((LONGEST * (x - left)) / (right - left)),
  };
  const held = { ...one, wide: 2.2, tall: 1, drawn: { x: 0, y: top - 12 } }; // its name, which stays within the chart
  for (const [drawing, handle] of [[chart.drawing, one], [chart.drawing, held], [trail, one]]) {
    part.draggable(drawing, figure, handle);
    drawing.style.touchAction = "pan-y"; // it goes to the sides only: a finger can scroll the page here
  }
  chart.drawing.setAttribute("role", "group"); // there is a control in it
  const within = (x) => Math.min(Math.max(x, left + 38), right - 32); // there are words on both sides
  return (distance) => {
    part.write(words, `n = ${distance}`);
    node.setAttribute("aria-valuenow", distance);
    node.setAttribute("aria-valuetext", `${distance} steps`);
    one.drawn.x = chart.across(distance);
    held.drawn.x = within(one.drawn.x);
    const high = [`${top}V${bottom}`, `0V${trail.viewBox.baseVal.height}`];
    Live.tween(node, one.drawn.x, (x) => {
      [dots, reach].forEach((lines) => lines.forEach((each, at) => each.setAttribute("d", `M${x} ${high[at]}`)));
      node.setAttribute("transform", `translate(${within(x)} ${held.drawn.y})`);
    });
  };
}

function build(part, figure) {
  const chart = part.lines({
    label: "What is left of the first input, against the distance", xLabel: "distance n, in steps", yLabel: "share left",
    x: [0, LONGEST], y: AXES.share[0], yText: (tick) => ({ 0: "nothing", 0.5: "half", 1: "all" })[tick],
    ...(part.isNarrow() ? { width: 330, height: 236, room: { left: 62, right: 126, top: 22 } }
      : { width: 600, height: 290, room: { left: 68, right: 118, top: 24 } }) });
  const [write, numbers, trail] = [labels(part, chart), table(part), trails(part, chart)];
  const mark = ruler(part, figure, chart, trail.node);
  const charted = part.titled("the first input is 1, and all later ones are 0", chart.node);
  const counted = part.titled("", numbers.node);
  counted.classList.add("live-extra"); // folded at first
  let axis = "share";
  return {
    nodes: [charted, trail.node],
    rest: [counted],
    update(state, found) {
      if (state.axis !== axis) chart.axis(...AXES[(axis = state.axis)]);
      const curves = NAMES.map((_, at) => ({ role: ROLES[at], dash: 0, points: points(found.inputs[at]) }));
      const learnt = { role: "key", dash: 1, points: points(found.gradients) };
      const shares = [...found.input, found.gradient[0]];
      const dots = shares.map((x, at) => ({ role: ROLES[at] || "key", points: [[state.distance, x]] }));
      chart.set([...curves, learnt, ...dots]);
      write(shares, state.distance);
      trail.set(state, found);
      mark(state.distance);
      const step = state.tanh ? "h ← tanh(w h)" : "h ← w h";
      part.write(counted.firstChild, `left at distance ${state.distance}, where a step is ${step} and c ← f c, and a weight eˢ/(eˢ + n)`);
      numbers.set([found.input.map(short), found.gradient.map(short), found.steps.map(String)]);
    },
  };
}

Live.define({
  name: "recurrence",
  title: "What is left of the first input",
  question: "How much of the first input is left n steps later?",
  page: "01_recurrence",
  heights: [735, 846],
  scripts: ["handles.js"],
  state: {
    distance: { kind: "number", label: "distance\u00a0n", min: 1, max: LONGEST, step: 1, start: 50 },
    weight: { kind: "number", label: "RNN:\u00a0weight\u00a0w", min: 0, max: 1.5, step: 0.01, start: 0.9 },
    gate: {
      kind: "number", label: "LSTM:\u00a0forget\u00a0gate\u00a0f",
      min: 0.5, max: 1, step: 0.01, start: 0.95,
    },
    score: { kind: "number", label: "attention:\u00a0score\u00a0s", min: 0, max: 10, step: 0.1, start: 4 },
    tanh: { kind: "toggle", label: "tanh around the state", start: true },
    axis: { kind: "choice", label: "axis", start: "share", of: { share: "share", tens: "powers of ten" } },
  },
  values,
  say,
  more: ["The tanh, another axis, all numbers", 3, 4],
  tries: [
    {
      do: "Open the forget gate", set: { gate: 0.99, distance: 100 },
      see: "The LSTM keeps 0.366: a third survives a hundred steps. At f = 0.95 only 0.00592 did.",
    },
    {
      do: "Make the RNN a switch", set: { weight: 1.5, tanh: true },
      see: "The state stays at 0.859, however large the input was, and the gradient dies: one bit is remembered, and could not be learned. " +
        "Without the tanh both would explode.",
    },
    {
      do: "Same score for all", set: { score: 0, distance: 200 },
      see: "A plain mean: 1/201. Each step adds a token here, and that is what dilutes attention; " +
        "the RNN has 3.56 × 10⁻¹⁰ left.",
    },
  ],
  build,
});
})();
