"use strict";
/* Chapter 5: which query may see which key, with which weights, and who hears of whom after L layers. */
(() => {
const N = 8; // positions: T queries, S keys
const WORDS = "we saw her go home late last night".split(" ");
const PLACES = WORDS.map((_, at) => at);
const SEED = 5; // always the same scores
const table = (cell) => PLACES.map((i) => PLACES.map((j) => Number(cell(i, j)))); // (T, S), 1 = yes
const many = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
const total = (row) => row.reduce((sum, each) => sum + each, 0);

const isReal = ({ padding, pads }, at) =>
  padding === "none" || (padding === "start" ? at >= pads : at < N - pads);

/* May query i see key j? Rules are joined by "and"; only the prefix is an "or", within the causal rule. */
const rules = (state, mistake) => {
  const { causal, window, prefix } = state;
  const ahead = mistake === "next" ? 1 : 0;
  return table((i, j) =>
    (!causal || j <= i + ahead || j < prefix) &&
    (window === 0 || Math.abs(i - j) < window) &&
    isReal(state, mistake === "queries" ? i : j));
};

const byHand = (one, cell) => ({ 1: 1, 2: 0 })[cell] ?? one; // 1 allows, 2 forbids, whatever the rules say
const cut = ({ cells, mistake, ...state }) => {
  const made = rules(state, mistake);
  return { made, mask: table((i, j) => byHand(made[i][j], cells[N * i + j])) };
};

const flip = (state, i, j) => { // one cell over; what the rules make is 0, and zeros at the end are left out
  const { made, mask } = cut(state);
  const all = [...state.cells.padEnd(N * N, "0")];
  const wanted = 1 - mask[i][j];
  all[N * i + j] = wanted === made[i][j] ? "0" : wanted ? "1" : "2";
  return all.join("").replace(/0+$/, "");
};

function weigh(mask, late) {
  const { normals, softmax } = Live.tensor;
  const scores = normals(SEED, N * N); // (T, S)
  return mask.map((row, i) => {
    const own = scores.slice(N * i, N * i + N); // (S,)
    if (late) return Array.from(softmax(own), (weight, j) => weight * row[j]);
    return Array.from(softmax(own.map((score, j) => (row[j] ? score : -Infinity))));
  });
}

/* In one layer a position hears those it sees, and itself by the residual connection. Masked after the
   softmax, a row with any key hears all: it divides by them. In more, i hears j through any k it sees. */
function hears(mask, late, layers) {
  const once = table((i, j) => mask[i][j] || i === j || (late && mask[i].includes(1)));
  let heard = once;
  for (let layer = 2; layer <= layers; layer++) {
    const before = heard;
    heard = table((i, j) => once[i].some((seen, k) => seen && before[k][j]));
  }
  return heard;
}

function values(state) {
  const { mistake, layers } = state;
  const [late, meant, { made, mask }] = [mistake === "late", rules(state), cut(state)];
  const weights = weigh(mask, late);
  const [heard, wanted] = [hears(mask, late, layers), hears(meant, false, layers)];
  const steps = Array.from({ length: layers }, (_, before) => hears(mask, late, before + 1));
  const stray = table((i, j) => heard[i][j] && !wanted[i][j]);
  const real = PLACES.filter((at) => isReal(state, at));
  const onPads = real.map((i) => total(weights[i].filter((_, j) => !real.includes(j))));
  const later = (rows) => total(rows.map((row, i) => total(row.slice(i + 1)))); // pairs j > i
  return {
    tokens: WORDS.map((word, at) => (real.includes(at) ? word : "<pad>")),
    mask, weights, heard, stray, // each (T, S)
    first: table((i, j) => steps.findIndex((step) => step[i][j]) + 1), // the layer after which i hears j; 0: never
    wrong: table((i, j) => mask[i][j] !== meant[i][j]),
    allowed: total(mask.map(total)),
    empty: PLACES.filter((i) => !mask[i].includes(1)),
    sums: weights.map(total),
    counts: heard.map(total),
    onPads: Math.max(...onPads),
    ahead: later(heard),
    leaks: later(stray),
    shows: late ? mask.some((row) => row.includes(0) && row.includes(1)) : String(made) !== String(meant),
  };
}

function saySums({ mistake }, { sums, empty, shows }) {
  if (mistake === "late" && shows) {
    const least = Math.min(...sums.filter((_, i) => !empty.includes(i)));
    return `, but rows sum to as little as ${Live.part.number(least)}: the softmax came before the mask`;
  }
  const nothing = mistake !== "none" && !shows ? "; the mistake changes nothing here" : "";
  if (!empty.length) return nothing;
  const rows = empty.length === 1 ? `row ${empty[0]} has` : `rows ${empty.join(", ")} have`;
  return `; ${rows} no key (weights of 0 here, NaN in code without a guard)${nothing}`;
}

function say(state, found) {
  const { allowed, tokens, counts, ahead, leaks, onPads } = found, at = state.focus;
  const future = !ahead ? "nothing of the future comes through"
    : !state.causal ? "no rule hides the future"
      : leaks ? `the future leaks in ${many(leaks, "pair")}` : "only the prefix hears ahead, as meant";
  const share = onPads ? `up to ${Live.part.number(onPads)} of their` : "no";
  return `${allowed} of 64 pairs are allowed${saySums(state, found)}. ` +
    `After ${many(state.layers, "layer")}, ${tokens[at]} ${at} has heard of ${counts[at]} of the 8; ${future}.` +
    (state.padding === "none" ? "" : ` Real tokens give padding ${share} weight.`);
}

// Drawing ----

const LEGEND = "Rows look at columns. Hatched: no. Orange: against the rules. Framed: changed. " +
  "Numbers: the layer after which it is heard. n: how many, itself included.";
const MOST_LAYERS = 6;
const LATER = 0.16; // by so much a cell is paler for each layer that it took

/* A map, with a column of results: both maps have one, so that their rows stand at one height. */
function map(part, label, options, results) {
  const { node, set } = part.heat({ label, last: true, ...options });
  const columns = [...PLACES, results];
  return {
    node: part.titled(label, node),
    set({ tokens }, shown, { numbers = shown, shades, outlined, ends, step }) {
      const fill = (row, i) => row.map((each, j) => (shown[i][j] ? each : null)).concat(ends[i]);
      const rows = tokens.map((token, at) => `${token} ${at}`);
      set(numbers.map(fill), { rows, columns, max: 1, shades, step, isMarked: (i, j) => j < N && outlined?.[i][j] });
    },
  };
}

/* The words as they stand below all layers, and how each layer hands on what it sees. What reaches the one word
   that listens, at the top, is drawn strongly; what the mask keeps from it stays pale. */
function network(part, onfocus) {
  const [width, height, left, top, foot] = [330, 232, 44, 30, 200];
  const node = part.drawing({ width, height, label: "" });
  const x = (at) => left + ((at + 0.5) * (width - left - 4)) / N;
  const LAYERS = Array.from({ length: MOST_LAYERS }, (_, layer) => layer);
  const add = (tag, more) => node.appendChild(part.svg(tag, more));
  const words = (more) => add("text", { class: "live-tick", ...more });
  const names = [...LAYERS, MOST_LAYERS].map((layer) => words({ x: left - 6, "text-anchor": "end", text: layer ? `layer ${layer}` : "words" }));
  const lines = LAYERS.map(() => PLACES.map((i) => PLACES.map((j) => ({ node: add("path", { "stroke-width": 1.6 }), from: x(j), to: x(i) }))));
  const dots = [...LAYERS, MOST_LAYERS].map(() => PLACES.map((at) => add("circle", { r: 5.5, cx: x(at), "stroke-width": 1.5 })));
  const below = PLACES.map((at) => words({ x: x(at), y: foot + 21, "text-anchor": "middle" }));
  const listens = words({ y: 13, "text-anchor": "middle", class: "live-tick live-listens" });
  const ring = add("circle", { r: 10, fill: "none", stroke: part.colour("plain"), "stroke-width": 2 });
  for (const at of PLACES) add("rect", { x: x(at) - 17, y: 0, width: 34, height, fill: "transparent", class: "live-pick", onclick: () => onfocus(String(at)) });
  const shown = part.titled("", node);
  return {
    node: part.html("div", {}, shown, part.html("p", { class: "live-title", text: "filled: on a way to the listener; empty: not" })),
    set({ layers, focus }, { first, wrong, stray, tokens, counts }) {
      const own = Number(focus), once = first.map((row) => row.map((layer) => layer === 1));
      const reached = [PLACES.map((at) => at === own)]; // by layers, from the top
      for (let n = 0; n < layers; n++) reached.unshift(PLACES.map((j) => PLACES.some((i) => reached[0][i] && once[i][j])));
      const orange = (yes) => part.colour(yes ? "key" : "weight");
      part.write(shown.firstChild, `what reaches “${tokens[own]}” in ${many(layers, "layer")}: ${counts[own]} of 8`);
      node.setAttribute("aria-label", `${tokens[own]} hears of ${tokens.filter((_, at) => reached[0][at]).join(", ")}; click a word`);
      lines.forEach((table) => table.forEach((row, i) => row.forEach((line, j) => {
        if (line.wrong !== wrong[i][j]) line.node.setAttribute("stroke", orange((line.wrong = wrong[i][j])));
      })));
      dots.forEach((row, layer) => row.forEach((dot, at) => dot.setAttribute("stroke", layer && layer < layers ? part.colour("muted") : orange(!layer && stray[own][at]))));
      dots[0].forEach((dot, at) => dot.setAttribute("fill", orange(stray[own][at])));
      for (const row of dots.slice(1)) row.forEach((dot) => dot.setAttribute("fill", part.colour("weight")));
      below.forEach((word, at) => {
        part.write(word, tokens[at] === "<pad>" ? "pad" : tokens[at]);
        word.classList.toggle("live-unheard", !reached[0][at]);
      });
      part.write(listens, tokens[own]);
      const there = LAYERS.map((layer) => Number(layer < layers));
      const seen = LAYERS.map((layer) => once.map((row, i) => row.map((yes, j) =>
        (layer >= layers || !yes ? 0 : reached[layer + 1][i] ? 0.9 : 0.13))));
      const lit = [...LAYERS, MOST_LAYERS].map((layer) => PLACES.map((at) => Number(Boolean(reached[layer]?.[at]))));
      Live.tween(node, { layers, own: x(own), seen, lit, there }, (now) => {
        const y = (layer) => foot - (Math.min(layer, now.layers) * (foot - top)) / now.layers;
        names.forEach((name, layer) => {
          name.setAttribute("y", y(layer) + 4);
          name.style.opacity = layer ? now.there[layer - 1] : 1;
        });
        lines.forEach((table, layer) => table.forEach((row, i) => row.forEach((line, j) => {
          const opacity = now.seen[layer][i][j].toFixed(2), d = opacity > 0 ? `M${line.from} ${y(layer).toFixed(1)}L${line.to} ${y(layer + 1).toFixed(1)}` : "";
          if (line.d !== d) line.node.setAttribute("d", (line.d = d));
          if (line.opacity !== opacity) line.node.setAttribute("stroke-opacity", (line.opacity = opacity));
        })));
        dots.forEach((row, layer) => row.forEach((dot, at) => {
          dot.setAttribute("cy", y(layer));
          dot.setAttribute("fill-opacity", now.lit[layer][at]);
          dot.style.opacity = layer ? now.there[layer - 1] : 1;
        }));
        ring.setAttribute("cx", now.own);
        ring.setAttribute("cy", top);
        listens.setAttribute("x", now.own);
      }, { step: 1 });
    },
  };
}

function build(part, figure) {
  const onpick = (i, j) => {
    if (j === N) return;
    figure.set({ cells: flip(figure.state, i, j), focus: String(i) }, Live.QUICK);
    figure.released();
  };
  const onfocus = (focus) => {
    figure.set({ focus }, Live.QUICK);
    figure.released();
  };
  const reach = network(part, onfocus);
  const mask = map(part, "mask: click a cell, or use arrows and Space", { digits: 0, onpick, plain: true }, "n");
  const weights = map(part, "weights of random scores", {}, "sum");
  const heard = map(part, "who hears of whom, and after which layer", { digits: 0 }, "n");
  return {
    nodes: [part.columns(mask.node, reach.node)],
    rest: [part.columns(heard.node, part.html("div", { class: part.isNarrow() ? "live-extra" : null }, weights.node)), part.html("p", { class: "live-title", text: LEGEND })],
    update(state, found) {
      mask.set(found, found.mask, { outlined: found.wrong, ends: found.mask.map(total), step: 0 });
      reach.set(state, found);
      weights.set(found, found.mask, { numbers: found.weights, ends: found.sums, step: 1 });
      const shades = found.first.map((row) => row.map((layer) => (layer ? 1 - LATER * (layer - 1) : 0)));
      heard.set(found, found.heard, { numbers: found.first, shades, outlined: found.stray, ends: found.counts, step: 2 });
    },
  };
}

Live.define({
  name: "mask-lab",
  title: "A laboratory for masks",
  question: "Who may look at whom, and what comes through after several layers?",
  page: "05_masks",
  heights: [881, 1275],
  state: {
    causal: { kind: "toggle", label: "causal: hide the future", start: true },
    layers: { kind: "number", label: "layers", min: 1, max: 6, step: 1, start: 1 },
    focus: { kind: "choice", label: "who listens", start: "4", of: Object.fromEntries(WORDS.map((word, at) => [at, `${word} ${at}`])) },
    window: { kind: "number", label: "window (0: off)", min: 0, max: N, step: 1, start: 0 },
    prefix: { kind: "number", label: "prefix (if causal)", min: 0, max: N, step: 1, start: 0 },
    padding: {
      kind: "choice", label: "padding", start: "none",
      of: { none: "none", end: "at the end", start: "at the start" },
    },
    pads: { kind: "number", label: "padding tokens", min: 1, max: 6, step: 1, start: 2 },
    mistake: {
      kind: "choice", label: "mistake", start: "none",
      of: {
        none: "none", next: "the next token is seen", late: "masked after the softmax",
        queries: "padding hidden as queries",
      },
    },
    cells: { kind: "text", pattern: "[012]*", letters: "00000012", max: N * N, start: "", hidden: true },
  },
  values,
  say,
  more: ["More rules and mistakes", 1, 3],
  tries: [
    {
      do: "One wrong cell, more layers", set: { cells: "00000001", layers: 3, focus: "3" },
      see: "All hear of all: every word looks at “we”, “we” at “night”, and “night” at all.",
    },
    {
      do: "Mask after the softmax", set: { window: 3, mistake: "late" },
      see: "Forbidden weights are 0, but no row sums to 1, and all hear of all, through the denominator.",
    },
    {
      do: "Hide padding on the wrong axis", set: { causal: false, padding: "end", mistake: "queries" },
      see: "Real tokens give padding up to 0.39 of their weight.",
    },
  ],
  build,
});
})();
