"use strict";
/* Chapter 1: a first input of 1, then n steps of silence. How much of it is left, and of its gradient? */
(() => {
const LONGEST = 200;
const SMALLEST = 1e-300; // float64 has not much below; what is smaller counts as nothing
const NAMES = ["RNN", "LSTM", "attention"];
const ROLES = ["key", "query", "value"];
const [LOW, HIGH] = [1e-12, 1e4]; // of the chart

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

/* Three digits, far ones as a power of ten. */
function short(x) {
  if (x === 0) return "0";
  const up = x * (1 + 1e-9); // so that a tie is rounded up, here and in Python
  const [digits, exponent] = up.toExponential(2).split("e");
  if (Math.abs(exponent) < 4) return up.toFixed(Math.max(0, 2 - exponent));
  const raise = (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)];
  const raised = exponent.replace("+", "").replace(/./g, raise);
  return `${digits}\u00a0×\u00a010${raised}`;
}

function say({ distance }, { input, gradient }) {
  const steps = distance === 1 ? "1 step" : `${distance} steps`;
  return `After ${steps} the RNN’s state is ${short(input[0])}, its gradient ${short(gradient[0])}; ` +
    `the LSTM’s cell has ${short(input[1])} of both. ` +
    `Attention gives it a weight of ${short(input[2])} in one step; a plain mean gives 1/${distance + 1}.`;
}

// Drawing ----

const isShown = (x) => x >= LOW && x <= HIGH;

/* The points of a curve up to where it leaves the chart. */
function inside(powers) {
  const points = [0, ...powers].map((each, n) => [n, each === null ? 0 : 10 ** each]);
  const outside = points.findIndex(([, left]) => !isShown(left));
  return outside < 0 ? points : points.slice(0, outside + 1); // the chart cuts the last one off
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
      texts.forEach((text, row) => (rows[row].children[column + 1].textContent = text))),
  };
}

function build(part) {
  const chart = part.lines({
    label: "What is left of the first input, against the distance", xLabel: "distance n", yLabel: "share left",
    x: [0, LONGEST], y: [LOW, HIGH], logY: true,
  });
  const mark = chart.drawing.appendChild(
    part.svg("path", { stroke: "var(--fig-muted)", "stroke-dasharray": "3 3", fill: "none" }));
  const numbers = table(part);
  const [charted, counted] = [part.titled("", chart.node), part.titled("", numbers.node)];
  return {
    nodes: [part.columns(charted, counted)],
    update(state, found) {
      const curves = NAMES.map((name, at) => ({ name, role: ROLES[at], points: inside(found.inputs[at]) }));
      const learnt = { name: "RNN’s gradient", role: "key", points: inside(found.gradients) };
      const dots = found.input.map((x, at) => ({ role: ROLES[at], points: [[state.distance, x]] }));
      chart.set([...curves, learnt, ...dots.filter(({ points }) => isShown(points[0][1]))]);
      mark.setAttribute("d", `M${chart.across(state.distance)} ${chart.up(HIGH)}V${chart.up(LOW)}`);
      const step = state.tanh ? "h ← tanh(w h)" : "h ← w h";
      charted.firstChild.textContent = `first a 1, then zeros: ${step}, c ← f c, weight eˢ/(eˢ + n)`;
      counted.firstChild.textContent = `left at distance ${state.distance}`;
      numbers.set([found.input.map(short), found.gradient.map(short), found.steps]);
    },
  };
}

Live.define({
  name: "recurrence",
  title: "What is left of the first input",
  question: "How much of the first token reaches a reader n steps later, and how much of its gradient?",
  page: "01_recurrence",
  heights: [755, 1125],
  state: {
    distance: { kind: "number", label: "distance\u00a0n", min: 1, max: LONGEST, step: 1, start: 50 },
    weight: { kind: "number", label: "RNN:\u00a0weight\u00a0w", min: 0, max: 1.5, step: 0.01, start: 0.9 },
    tanh: { kind: "toggle", label: "tanh around the state", start: true },
    gate: {
      kind: "number", label: "LSTM:\u00a0forget\u00a0gate\u00a0f",
      min: 0.5, max: 1, step: 0.01, start: 0.95,
    },
    score: { kind: "number", label: "attention:\u00a0score\u00a0s", min: 0, max: 10, step: 0.1, start: 4 },
  },
  values,
  say,
  tries: [
    {
      do: "Open the forget gate, at distance 100", set: { gate: 0.99, distance: 100 },
      see: "The LSTM keeps 0.366: a third survives a hundred steps. At f = 0.95 it was 0.00592.",
    },
    {
      do: "Make the RNN a switch", set: { weight: 1.5, tanh: true },
      see: "The state stays at 0.859, however large the input was, and the gradient dies: one bit is remembered, and could not be learned. " +
        "Take the tanh away, and both explode.",
    },
    {
      do: "Give all tokens the same score", set: { score: 0, distance: 200 },
      see: "A plain mean: 1/201. Each step adds a token here, and that is what dilutes attention; " +
        "the RNN has 3.56 × 10⁻¹⁰ left.",
    },
  ],
  build,
});
})();
