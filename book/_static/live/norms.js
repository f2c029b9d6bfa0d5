"use strict";
/* Chapter 9: a stack of blocks that each add a write. How long is the stream, and the gradient, at each depth? */
(() => {
const [D, F, TOKENS, DEEPEST] = [16, 32, 8, 64]; // width, hidden units of a block, rows of the stream, blocks
const EPS = 1e-5;
const ORDERS = { none: "no norm", post: "post-norm", pre: "pre-norm" };
const ROLES = { none: "key", post: "value", pre: "query" };
const RANGE = [1e-6, 1e6]; // what the charts show; the numbers say the rest

// Forwards, and backwards ----

const drawn = {};
const lengthOf = (x) => Math.sqrt(Live.tensor.dot(x, x) / x.length); // rms, over all tokens and features

/* All weights of a draw: the start (8, 16), a direction for the gradient, and for each block two matrices, and
   what it says to every token alike. With these sizes a write is about as long as what its block reads. */
function weightsOf(draw) {
  const numbers = Live.tensor.normals(draw, 2 * TOKENS * D + DEEPEST * (2 * F * D + D));
  let at = 0;
  const next = (n, scale) => numbers.slice(at, (at += n)).map((each) => each * scale);
  const even = (x) => x.map((each) => each / lengthOf(x));
  const [start, direction] = [norm(next(TOKENS * D, 1)).hat, even(next(TOKENS * D, 1))];
  const block = () => ({ up: next(F * D, Math.sqrt(2 / D)), down: next(D * F, Math.sqrt(1 / F)), alike: even(next(D, 1)) });
  return { start, direction, blocks: Array.from({ length: DEEPEST }, block) };
}

/* LayerNorm without weight and bias; by what each token was divided is kept for the way back. */
function norm(x) {
  const [hat, by] = [new Float64Array(x.length), []];
  for (let start = 0; start < x.length; start += D) {
    let mean = 0, variance = 0;
    for (let i = 0; i < D; i++) mean += x[start + i] / D;
    for (let i = 0; i < D; i++) variance += (x[start + i] - mean) ** 2 / D;
    const deviation = Math.sqrt(variance + EPS);
    for (let i = 0; i < D; i++) hat[start + i] = (x[start + i] - mean) / deviation;
    by.push(deviation);
  }
  return { hat, by };
}

/* The gradient before a norm, from the one after it: two directions are taken away, the rest is divided. */
function normBack({ hat, by }, gradient) {
  const before = new Float64Array(gradient.length);
  by.forEach((deviation, token) => {
    let mean = 0, along = 0;
    for (let i = token * D; i < token * D + D; i++) {
      mean += gradient[i] / D;
      along += (gradient[i] * hat[i]) / D;
    }
    for (let i = token * D; i < token * D + D; i++) before[i] = (gradient[i] - mean - hat[i] * along) / deviation;
  });
  return before;
}

const upTo = (low, value, high) => Math.min(Math.max(value, low), high);
const plus = (x, y) => x.map((each, i) => each + y[i]);

/* x ← norm(x + f(x)), or x + f(norm(x)), or x + f(x). */
function forwards(x, { up, down, alike }, order, { write, alike: share, path }) {
  const own = write * Math.sqrt(1 - share ** 2); // of the write, what depends on the token
  const read = order === "pre" ? norm(x) : { hat: x };
  const hidden = Live.tensor.relu(Live.tensor.matmulT(read.hat, up, TOKENS, D, F)); // (8, 32)
  const found = Live.tensor.matmulT(hidden, down, TOKENS, F, D).map((each, i) => own * each + write * share * alike[i % D]);
  const sum = path ? plus(x, found) : found;
  const after = order === "post" ? norm(sum) : { hat: sum };
  return { x: after.hat, back: { up, down, own, path, read, hidden, after } };
}

function backwards({ up, down, own, path, read, hidden, after }, gradient) {
  const ofSum = after.by ? normBack(after, gradient) : gradient;
  const ofHidden = Live.tensor.matmul(ofSum, down, TOKENS, D, F).map((each, i) => (hidden[i] > 0 ? own * each : 0));
  const ofRead = Live.tensor.matmul(ofHidden, up, TOKENS, F, D);
  const ofBranch = read.by ? normBack(read, ofRead) : ofRead;
  return path ? plus(ofSum, ofBranch) : ofBranch;
}

/* How long the stream and its gradient are after 0, 1, ... blocks, and how much of the stream is each token's own. */
function run(order, state) {
  const { start, direction, blocks } = (drawn[state.draw] ??= weightsOf(state.draw));
  const [steps, stream] = [[], [start]];
  for (const block of blocks.slice(0, state.depth)) {
    const { x, back } = forwards(stream.at(-1), block, order, state);
    steps.push(back);
    stream.push(x);
  }
  const gradient = [state.final ? normBack(norm(stream.at(-1)), direction) : direction];
  for (const back of steps.toReversed()) gradient.unshift(backwards(back, gradient[0]));
  const powers = (list) => list.map((each) => Math.log10(lengthOf(each)));
  return { stream: powers(stream), gradient: powers(gradient), own: ownShare(stream.at(-1)) };
}

function ownShare(x) {
  const mean = new Float64Array(D);
  x.forEach((each, i) => (mean[i % D] += each / TOKENS));
  return lengthOf(x.map((each, i) => each - mean[i % D])) / lengthOf(x);
}

const values = (state) => Object.fromEntries(Object.keys(ORDERS).map((order) => [order, run(order, state)]));

function say({ order, depth }, found) {
  const { short, number } = Live.part;
  const { stream, gradient, own } = found[order];
  return `${ORDERS[order][0].toUpperCase()}${ORDERS[order].slice(1)}, ${depth} blocks: the stream’s length goes from 1 to ` +
    `${short(10 ** stream.at(-1))}; of a gradient of length 1 at the end, ${short(10 ** gradient[0])} arrives at the bottom. ` +
    `At the end the tokens’ own part is ${number(own)} of the stream.`;
}

// The page ----

function build(part) {
  const size = part.isNarrow() ? { width: 330, height: 142 } : { width: 330, height: 250 };
  const charts = { stream: "length of the stream", gradient: "length of the gradient" };
  const drawnCharts = Object.entries(charts).map(([which, words]) => {
    const chart = part.lines({
      label: `${words} at each depth`, xLabel: "after block", yLabel: part.isNarrow() ? "" : "length",
      x: [0, DEEPEST], y: RANGE, logY: true, ...size });
    return { which, words, chart, titled: part.titled("", chart.node) };
  });
  const legend = drawnCharts[0].chart.node.lastChild;
  const names = Object.entries(ORDERS);
  return {
    nodes: [part.html("div", { class: "live-norms" }, ...drawnCharts.map(({ titled }) => titled)), legend],
    update(state, found) {
      for (const { which, words, chart, titled } of drawnCharts) {
        const powers = found[state.order][which];
        const ends = [powers[0], powers.at(-1)].map((power) => part.short(10 ** power));
        part.write(titled.firstChild, which === "stream" ? `${words}: ${ends[0]} → ${ends[1]}` : `${words}: ${ends[0]} ← ${ends[1]}`);
        const line = ([order, name], dash) => ({
          name: which === "stream" ? name : undefined, role: ROLES[order], dash, faint: order !== state.order,
          points: found[order][which].map((power, at) => [at, 10 ** power]),
        });
        const from = which === "stream" ? 0 : state.depth; // where it begins
        const to = state.depth - from;
        // Where each line ends; one that has left the chart ends at its edge.
        const end = ([order]) => ({
          role: ROLES[order], faint: order !== state.order, points: [[to, upTo(RANGE[0], 10 ** found[order][which][to], RANGE[1])]] });
        chart.set([...names.map(line), ...names.map(end)], { step: which === "stream" ? 0 : 1 });
      }
    },
  };
}

Live.define({
  name: "norms",
  title: "A stack that grows, dies or holds",
  question: "After many blocks, how long is the stream, and does a gradient still arrive?",
  page: "09_norms",
  heights: [655, 880],
  state: {
    order: { kind: "choice", label: "order", start: "none", of: { none: "none", post: "post-norm", pre: "pre-norm" } },
    depth: { kind: "number", label: "blocks", min: 2, max: DEEPEST, step: 1, start: 48 },
    write: { kind: "number", label: "size\u00a0of\u00a0a\u00a0write", min: 0.1, max: 2, step: 0.1, start: 0.7 },
    alike: { kind: "number", label: "the\u00a0same\u00a0for\u00a0all\u00a0tokens", min: 0, max: 0.95, step: 0.05, start: 0 },
    path: { kind: "toggle", label: "residual path (x + …)", start: true },
    final: { kind: "toggle", label: "one more norm at the end", start: false },
    draw: { kind: "number", label: "draw\u00a0of\u00a0weights", min: 1, max: 9, step: 1, start: 1 },
  },
  values, say, build,
  more: ["What else can be broken", 9, 3],
  tries: [
    {
      do: "No residual path", set: { order: "none", alike: 0, path: false },
      see: "Now each write takes the stream’s place, and the stream dies: 9.89\u00a0×\u00a010⁻⁹ of it is left. The gradient dies with it. " +
        "Writes of size 1.5 make both explode instead.",
    },
    {
      do: "Post-norm", set: { order: "post", alike: 0, path: true },
      see: "A norm follows every sum, so the length is 1 at every depth. The gradient passes all those norms, and 0.897 of it arrives.",
    },
    {
      do: "Pre-norm", set: { order: "pre", alike: 0, path: true },
      see: "The stream is a plain sum and grows slowly, to 5.10. The gradient grows slowly as well, to 4.76: its way around the norms is open.",
    },
    {
      do: "Same for all tokens", set: { order: "post", alike: 0.9, path: true },
      see: "The stream still looks healthy: its length is 1. But only 0.00120 of the gradient arrives. With pre-norm 1.39 arrives: switch the order.",
    },
  ],
});
})();
