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
  return { x: after.hat, found, back: { up, down, own, path, read, hidden, after } };
}

function backwards({ up, down, own, path, read, hidden, after }, gradient) {
  const ofSum = after.by ? normBack(after, gradient) : gradient;
  const ofHidden = Live.tensor.matmul(ofSum, down, TOKENS, D, F).map((each, i) => (hidden[i] > 0 ? own * each : 0));
  const ofRead = Live.tensor.matmul(ofHidden, up, TOKENS, F, D);
  const ofBranch = read.by ? normBack(read, ofRead) : ofRead;
  return path ? plus(ofSum, ofBranch) : ofBranch;
}

/* How long the stream and its gradient are after 0, 1, ... blocks, what the last f reads and writes, what leaves the
   stack, and how much of the stream is each token's own. */
function run(order, state) {
  const { start, direction, blocks } = (drawn[state.draw] ??= weightsOf(state.draw));
  const [steps, stream] = [[], [start]];
  let written;
  for (const block of blocks.slice(0, state.depth)) {
    const { x, found, back } = forwards(stream.at(-1), block, order, state);
    steps.push(back);
    stream.push(x);
    written = found;
  }
  const last = state.final ? norm(stream.at(-1)) : { hat: stream.at(-1) };
  const gradient = [last.by ? normBack(last, direction) : direction];
  for (const back of steps.toReversed()) gradient.unshift(backwards(back, gradient[0]));
  const powers = (list) => list.map((each) => Math.log10(lengthOf(each)));
  const [reads, writes, end] = powers([steps.at(-1).read.hat, written, last.hat]);
  return { stream: powers(stream), gradient: powers(gradient), reads, writes, end, own: ownShare(stream.at(-1)) };
}

function ownShare(x) {
  const mean = new Float64Array(D);
  x.forEach((each, i) => (mean[i % D] += each / TOKENS));
  return lengthOf(x.map((each, i) => each - mean[i % D])) / lengthOf(x);
}

const values = (state) => Object.fromEntries(Object.keys(ORDERS).map((order) => [order, run(order, state)]));

/* One sentence; what is the same for all tokens hides a second one: how little of the stream is left to each. */
function say({ order, depth, alike, final }, found) {
  const { short, number } = Live.part;
  const { stream, gradient, end, own } = found[order];
  return `With ${ORDERS[order]} the stream’s length goes from 1 to ${short(10 ** stream.at(-1))} in ${depth} blocks, ` +
    (final ? `the norm at the end makes it ${short(10 ** end)}, ` : "") +
    `and a gradient of length 1 arrives at the bottom with ${short(10 ** gradient[0])}.` +
    (alike ? ` Of the stream at the end, ${number(own)} is each token’s own.` : "");
}

/* Beside the picture: what this order does, and what the reader's last change did. */
const WHY = {
  none: "A longer stream makes longer writes.",
  post: "Norms hold the stream and scale the gradient.",
  pre: "f reads length 1, however long the stream is.",
  final: "The new norm divides the stream, and the gradient as well.",
};

function aside({ order, final }, found, was) {
  const name = ORDERS[order][0].toUpperCase() + ORDERS[order].slice(1);
  const [now, before] = [found[order], was.values[was.state.order]].map(({ end, gradient }) => [end, gradient[0]].map((each) => Live.part.short(10 ** each)));
  return (order === was.state.order ? "Length" : `${name} instead of ${ORDERS[was.state.order]}: length`) +
    ` ${now[0]} at the end (before: ${before[0]}), gradient ${now[1]} at the bottom (before: ${before[1]}). ` +
    WHY[final && !was.state.final ? "final" : order];
}

// The page ----

const WORDS = { 1e6: "a million", 1e3: "a thousand", 1: "1", 1e-3: "a 1,000th", 1e-6: "a millionth" }; // of the axis
const [EXPLODED, DEAD] = [1e3, 1e-3]; // from here on the charts say so
const ROWS = { "f reads": "plain", "f writes": "weight", "the same for all": "muted" }; // lengths, in the last block

/* One of the blocks, with what the reader has set: where a norm stands, and whether there is a path around. The
   cards behind it are the other blocks. Beside it, how long are what the last one reads and writes. */
function blockOf(part, isNarrow) {
  const { svg, colour } = part;
  const [width, height, line, low] = isNarrow ? [304, 131, 31, 56] : [594, 92, 36, 68];
  const at = isNarrow
    ? { from: 26, split: 42, pre: 58, f: 112, sum: 156, post: 172, to: 222, last: 240, name: 0, bar: 160, row: 91, box: 42 }
    : { from: 26, split: 44, pre: 66, f: 128, sum: 178, post: 198, to: 256, last: 272, name: 356, bar: 508, row: 34, box: 46 };
  const [unit, apart] = isNarrow ? [55, 14] : [33, 17]; // px for the length 1, and from bar to bar
  const drawing = part.drawing({ width, height, label: "One block" });
  const add = (tag, more) => drawing.appendChild(svg(tag, more));
  const path = (d, more) => add("path", { d, fill: "none", stroke: "var(--fig-ink)", "stroke-width": 2, ...more });
  const words = (x, y, text, more) => add("text", { class: "live-tick", x, y, text, ...more });
  const cards = [4, 3, 2, 1].map((n) => add("rect", {
    class: "live-card-behind", x: at.from + 3 * n, y: 15 - 3 * n, width: at.to - at.from, height: low, rx: 6 }));
  add("rect", { x: at.from, y: 15, width: at.to - at.from, height: low, rx: 6, fill: "var(--fig-paper)", stroke: "var(--fig-muted)" });
  path(`M2 ${line}H${at.split}`);
  const around = path(`M${at.split} ${line}H${at.sum}`);
  path(`M${at.split} ${line}V${low}H${at.sum}V${line + 9}m-4 6l4 -6l4 6`, { class: "live-write" });
  path(`M${at.sum} ${line}H${at.last + at.box + 20}m-7 -4l7 4l-7 4`);
  add("circle", { cx: at.split, cy: line, r: 3, fill: "var(--fig-ink)" });
  add("circle", { cx: at.sum, cy: line, r: 9, fill: "var(--fig-paper)", stroke: "var(--fig-ink)", "stroke-width": 2 });
  const plusSign = path(`M${at.sum - 5} ${line}h10m-5 -5v10`);
  const box = (x, y, wide, text, more) => {
    const node = drawing.appendChild(svg("g", {}, svg("rect", { x, y: y - 11, width: wide, height: 22, rx: 4, "stroke-width": 1.5, ...more }),
      svg("text", { x: x + wide / 2, y: y + 4.5, "text-anchor": "middle", text, class: "live-in-box" })));
    return node;
  };
  const norms = { pre: box(at.pre, low, at.box, "norm"), post: box(at.post, line, at.box, "norm"), final: box(at.last, line, at.box, "norm") };
  box(at.f, low, 28, "f", { fill: "var(--fig-panel)", stroke: "var(--fig-ink)" });
  const many = words(at.to + 18, isNarrow ? 60 : 74, "");
  words(at.name, at.row - 8, "lengths in the last block");
  path(`M${at.bar + unit} ${at.row - 4}v${3 * apart + 4}`, { stroke: "var(--fig-muted)", "stroke-width": 1.5, "stroke-dasharray": "3 3" });
  words(at.bar + unit, at.row - 8, "1", { "text-anchor": "middle" });
  const most = width - at.bar - 12; // a longer bar ends at an arrow
  const bars = Object.entries(ROWS).map(([text, role], n) => {
    const y = at.row + apart * n;
    return {
      texts: [words(at.name, y + 11, text), words(at.bar - 8, y + 11, "", { "text-anchor": "end" })],
      bar: add("rect", { x: at.bar, y: y + 1, height: 11, fill: colour(role) }),
      on: path("", { class: "live-off", fill: colour(role), stroke: "none" }),
      was: path("", { class: "live-ghost" }), y,
    };
  });
  return {
    drawing,
    set({ order, depth, write, alike, path: isOpen, final }, found) {
      cards.forEach((card, n) => card.setAttribute("visibility", depth > [48, 32, 16, 2][n] ? "visible" : "hidden"));
      around.setAttribute("stroke-dasharray", isOpen ? "none" : "1 7");
      plusSign.setAttribute("visibility", isOpen ? "visible" : "hidden");
      for (const [where, node] of Object.entries(norms)) {
        node.style.display = where === order || (where === "final" && final) ? "" : "none";
        node.firstChild.setAttribute("fill", part.soft(ROLES[order]));
        node.firstChild.setAttribute("stroke", colour(ROLES[order]));
      }
      part.write(many, `× ${depth}`);
      const lengths = [10 ** found[order].reads, 10 ** found[order].writes, write * alike];
      const told = lengths.map(part.short);
      const inner = order === "pre" ? "f(norm(x))" : "f(x)";
      const sum = isOpen ? `x + ${inner}` : inner;
      drawing.setAttribute("aria-label", `One of ${depth} blocks: ${order === "post" ? `norm(${sum})` : sum}. ` +
        `The last f reads a vector of length ${told[0]} and writes one of ${told[1]}; a part of length ${told[2]} is the same for all tokens.${final ? " One more norm stands at the end." : ""}`);
      bars.forEach(({ texts }, n) => {
        texts[0].setAttribute("visibility", n < 2 || alike ? "visible" : "hidden"); // of nothing, nothing is said
        part.write(texts[1], n < 2 || alike ? told[n] : "");
      });
      Live.tween(drawing, lengths.map((each) => Math.min(each * unit, most)), (now, before) => bars.forEach(({ bar, on, was, y }, n) => {
        bar.setAttribute("width", now[n]);
        on.setAttribute("d", now[n] < most ? "" : `M${at.bar + most} ${y + 1}l10 5.5l-10 5.5z`);
        was.setAttribute("d", before?.[n] ? `M${at.bar + before[n]} ${y - 1}v15` : "");
      }));
    },
  };
}

/* A length at each depth. Lines have their names where they end; what explodes and what dies is said. */
function chartOf(part, which, isNarrow) {
  const { svg, colour } = part;
  const isStream = which === "stream"; // it runs to the right, the gradient to the left
  const [axis, named] = [70, 82]; // px for the words of the axis, and for the names of the lines
  const hasWords = isStream || isNarrow;
  const room = { left: isStream ? axis : named + (hasWords ? axis : 0), right: isStream ? named : 12, top: 10, bottom: isNarrow && isStream ? 24 : 38 }; // on a phone the lower axis names both
  const chart = part.lines({
    label: `${CHARTS[which]} at each depth`, xLabel: isNarrow && isStream ? "" : "after block", yLabel: "", x: [0, DEEPEST], y: RANGE, logY: true,
    width: isNarrow ? 304 : isStream ? 332 : 262, height: !isNarrow ? 236 : isStream ? 126 : 140, room,
    yText: (tick) => (hasWords && (!isNarrow || Math.abs(Math.log10(tick)) < 4) ? WORDS[tick] ?? WORDS[Number(tick.toPrecision(1))] : "") });
  const { drawing, frame, across } = chart;
  const put = (tag, more) => svg(tag, more);
  if (!isStream && isNarrow) for (const text of drawing.querySelectorAll("g > .live-tick")) text.setAttribute("x", axis - 6);
  const band = (from, to) => put("rect", {
    class: "live-too-far", x: frame.left, width: frame.right - frame.left, y: chart.up(from), height: chart.up(to) - chart.up(from) });
  const fates = [[chart.up(RANGE[1]) + 14, "explodes"], [chart.up(RANGE[0]) - 6, "dies"]].map(([y, text]) => put("text", {
    class: "live-tick live-far", y, text }));
  drawing.prepend(band(RANGE[1], EXPLODED), band(DEAD, RANGE[0]), ...fates);
  const depthLine = drawing.appendChild(put("path", { class: "live-depth" }));
  /* The line in question has its length below its name; so has one that ends outside of the chart, at an arrow. */
  const beside = (order, more) => drawing.appendChild(put("text", {
    class: "live-beyond live-halo", style: `fill: ${colour(ROLES[order])}`, "text-anchor": isStream ? "start" : "end", ...more }));
  const names = Object.entries(ORDERS).map(([order, text]) => beside(order, { class: "live-end live-halo", text }));
  const lengths = Object.keys(ORDERS).map((order) => beside(order, {}));
  const unnormed = beside("none", {}); // how long the stream was before the norm at the end
  const arrows = Object.keys(ORDERS).map((order) => drawing.appendChild(put("path", { class: "live-off", fill: colour(ROLES[order]) })));
  return {
    chart,
    set(state, found) {
      const [from, to] = isStream ? [0, state.depth] : [state.depth, 0]; // where a line begins, and where it ends
      const orders = Object.keys(ORDERS);
      /* A norm at the end: there the stream falls to what leaves the stack, and the gradient from what enters it. */
      const isNormed = (order) => isStream && state.final && order === state.order;
      const points = (order) => [...found[order][which], isNormed(order) ? found[order].end : isStream ? found[order].stream.at(-1) : 0]
        .map((power, at) => [Math.min(at, state.depth), 10 ** power]);
      const line = (order, dash) => ({ role: ROLES[order], dash, faint: order !== state.order, points: points(order) });
      const end = (order) => ({ role: ROLES[order], faint: order !== state.order, points: [points(order).at(isStream ? -1 : 0)] });
      const step = isStream ? 1 : 2;
      chart.set([...orders.map(line), ...orders.map(end)], { step });
      const last = orders.map((order) => 10 ** found[order][which][to]);
      const chosen = orders.indexOf(state.order), isSunk = isNormed(state.order);
      const tail = orders.map((order) => end(order).points[0][1]);
      const isOff = last.map((length) => length < RANGE[0] || length > RANGE[1]);
      const isTold = isOff.map((isOne, n) => isOne || orders[n] === state.order);
      orders.forEach((order, n) => {
        names[n].classList.toggle("live-chosen", order === state.order);
        part.write(lengths[n], isTold[n] ? part.short(tail[n]) : "");
        arrows[n].classList.toggle("live-faint", order !== state.order);
      });
      part.write(unnormed, isSunk ? part.short(last[chosen]) : "");
      unnormed.style.fill = colour(ROLES[state.order]);
      const px = drawing.px || 1;
      const [ends, marks] = [last, [...tail, last[chosen]]].map((list) => list.map((length) => chart.up(upTo(RANGE[0], length, RANGE[1]))));
      const rows = orders.flatMap((_, n) => (isTold[n] ? [n, n] : [n])); // of the texts beside the ends
      if (isSunk) rows.push(orders.length);
      const heights = part.apart(rows.map((n) => marks[n]), 15 * px, frame.top + 4, frame.bottom - 2);
      const y = marks.map((_, n) => [heights[rows.indexOf(n)], heights[rows.lastIndexOf(n)]].map((each) => each ?? 0));
      const off = orders.filter((_, n) => isOff[n]); // arrows stand beside each other
      orders.forEach((order, n) => {
        const isUp = last[n] > 1;
        const x = across(to) + (isStream ? -13 : 13) * px * off.filter((each, at) => at < off.indexOf(order) && last[orders.indexOf(each)] > 1 === isUp).length;
        arrows[n].setAttribute("d", isOff[n] ? `M${x} ${ends[n]}l${-6 * px} ${(isUp ? 11 : -11) * px}h${12 * px}z` : "");
      });
      const isAtLeft = isStream === state.depth > DEEPEST / 3; // where no names stand
      for (const fate of fates) {
        fate.setAttribute("x", isAtLeft ? frame.left + 6 : frame.right - 6);
        fate.setAttribute("text-anchor", isAtLeft ? "start" : "end");
      }
      Live.tween(depthLine, { depth: across(state.depth), end: across(to), y }, (now) => {
        depthLine.setAttribute("d", `M${now.depth} ${chart.up(EXPLODED)}V${chart.up(DEAD)}`);
        [[...names, unnormed], lengths].forEach((texts, row) => texts.forEach((text, n) => {
          text.setAttribute("x", now.end + (isStream ? 11 : -11));
          text.setAttribute("y", now.y[n][row] + 4);
        }));
      }, { step });
    },
  };
}

const CHARTS = { stream: "length of the stream on its way up", gradient: "length of the gradient on its way down" };

function build(part) {
  const isNarrow = part.isNarrow();
  const block = blockOf(part, isNarrow);
  const charts = Object.keys(CHARTS).map((which) => {
    const one = chartOf(part, which, isNarrow);
    return { ...one, titled: part.titled(CHARTS[which], one.chart.node) };
  });
  const blockTitle = part.titled("", block.drawing);
  return {
    nodes: [blockTitle, part.html("div", { class: "live-norms" }, ...charts.map(({ titled }) => titled))],
    update(state, found) {
      const inner = state.order === "pre" ? "f(norm(x))" : "f(x)";
      const sum = state.path ? `x + ${inner}` : inner;
      part.write(blockTitle.firstChild, `one of your ${state.depth} blocks: x ← ${state.order === "post" ? `norm(${sum})` : sum}`);
      block.set(state, found);
      for (const one of charts) one.set(state, found);
    },
  };
}

Live.define({
  name: "norms",
  title: "A stack that grows, dies or holds",
  question: "After many blocks, how long is the stream, and does a gradient still arrive?",
  page: "09_norms",
  heights: [766, 978],
  state: {
    order: { kind: "choice", label: "order", start: "none", of: { none: "none", post: "post-norm", pre: "pre-norm" } },
    depth: { kind: "number", label: "blocks", min: 2, max: DEEPEST, step: 1, start: 48 },
    write: { kind: "number", label: "size\u00a0of\u00a0a\u00a0write", min: 0.1, max: 2, step: 0.1, start: 0.7 },
    alike: { kind: "number", label: "the\u00a0same\u00a0for\u00a0all\u00a0tokens", min: 0, max: 0.95, step: 0.05, start: 0 },
    path: { kind: "toggle", label: "residual path (x + …)", start: true },
    final: { kind: "toggle", label: "one more norm at the end", start: false },
    draw: { kind: "number", label: "draw\u00a0of\u00a0weights", min: 1, max: 9, step: 1, start: 1 },
  },
  values, say, aside, build,
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
      see: "f reads length 1 in every block: the stream is a plain sum and grows slowly, to 5.10. The gradient does as well, to 4.76: its way around the norms is open.",
    },
    {
      do: "Same for all tokens", set: { order: "post", alike: 0.9, path: true },
      see: "The stream still looks healthy: its length is 1. But only 0.00120 of the gradient arrives. With pre-norm 1.39 arrives: switch the order.",
    },
  ],
});
})();
