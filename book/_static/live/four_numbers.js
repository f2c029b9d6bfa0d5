"use strict";
/* Chapter 9: four numbers to drag, and what two norms make of them. */
(() => {
const NAMES = ["first", "second", "third", "fourth"];
const START = [3, 9, 11, 17];
const [LEAST, MOST, ADDED] = [-10, 25, 10]; // of a number; what is added to it
const EPS = 1e-5; // of both norms, as in tensor.js
const ROOM = { left: 28, right: 4, top: 26, bottom: 14 };

const numbersOf = (state) => NAMES.map((name) => state[name] + state.add);

function values(state) {
  const x = numbersOf(state);
  const ones = [1, 1, 1, 1];
  const mean = x.reduce((sum, each) => sum + each / x.length, 0);
  return {
    mean,
    deviation: Math.sqrt(x.reduce((sum, each) => sum + (each - mean) ** 2 / x.length, 0)),
    rms: Math.sqrt(x.reduce((sum, each) => sum + each ** 2 / x.length, 0)),
    layer: Live.tensor.layerNorm(x, ones), root: Live.tensor.rmsNorm(x, ones),
  };
}

function say(state, { mean, deviation, rms, layer, root }) {
  const { number } = Live.part;
  const list = (numbers) => Array.from(numbers, (each) => number(each)).join(", ");
  return `Mean ${number(mean)}, standard deviation ${number(deviation)}, rms ${number(rms)}. ` +
    `LayerNorm gives ${list(layer)}. RMSNorm gives ${list(root)}.`;
}

/* Four bars from zero; lines across them have a name at their end, and a band may lie behind. */
function panel(part, { width, height, low, high, tick, digits, label, role, marks = [], name = "img", away = 6, right = ROOM.right }) {
  const { svg } = part;
  const [floor, wide, end] = [height - ROOM.bottom, (width - ROOM.left - right) / 4, width - right];
  const up = Object.assign((value) => floor - ((value - low) / (high - low)) * (floor - ROOM.top), {
    invert: (y) => ((floor - y) / (floor - ROOM.top)) * (high - low) + low });
  const middle = (at) => ROOM.left + (at + 0.5) * wide;
  const drawing = part.drawing({ width, height, label, role: name });
  const band = drawing.appendChild(svg("rect", { x: ROOM.left, width: end - ROOM.left, fill: part.colour("weight"), opacity: 0.14 }));
  for (const each of [-tick, 0, tick]) {
    drawing.append(
      svg("path", { class: "live-gridline", d: `M${ROOM.left} ${up(each)}H${end}` }),
      svg("text", { class: "live-tick", x: ROOM.left - 5, y: up(each) + 4, "text-anchor": "end", text: part.number(each, 0) }));
  }
  const bar = (more) => svg("path", { ...more });
  const bars = NAMES.map(() => bar({ fill: part.colour(role), opacity: 0.85 }));
  const ghosts = NAMES.map(() => bar({ class: "live-ghost", stroke: "var(--fig-ink)", "stroke-width": 2, fill: "none" }));
  const texts = NAMES.map((_, at) => svg("text", { class: "live-halo live-four", x: middle(at), "text-anchor": "middle" }));
  const lines = marks.map((look) => svg("path", { fill: "none", "stroke-width": 2, ...look }));
  const names = marks.map(({ stroke }) => svg("text", { class: "live-four live-level", x: end + 5, style: `fill: ${stroke}` }));
  drawing.append(...bars, ...ghosts, ...lines, ...names);
  const shape = (at, value, x = 0.3 * wide) => `M${middle(at) - x} ${up(0)}V${up(value)}h${2 * x}V${up(0)}Z`;
  return {
    drawing, up, middle, wide, texts,
    set(numbers, { across = [], named = [], from = 0, to = 0, step }) {
      named.forEach((text, at) => part.write(names[at], text));
      texts.forEach((text, at) => part.write(text, part.number(numbers[at], digits)));
      drawing.setAttribute("aria-label", `${label}: ${numbers.map((each) => part.number(each, digits)).join(", ")}`);
      const levels = part.apart(across.map(up), 16, ROOM.top - 10, floor);
      Live.tween(drawing, { numbers, across, levels, from, to }, (now, before) => {
        band.setAttribute("y", up(now.to));
        band.setAttribute("height", Math.max(0, up(now.from) - up(now.to)));
        names.forEach((text, at) => text.setAttribute("y", now.levels[at] + 4));
        now.numbers.forEach((value, at) => {
          bars[at].setAttribute("d", shape(at, value));
          ghosts[at].setAttribute("d", before ? `M${middle(at) - 0.3 * wide} ${up(before.numbers[at])}h${0.6 * wide}` : "");
          const px = drawing.px || 1;
          texts[at].setAttribute("y", value < 0 ? Math.min(up(value) + (away + 10) * px, height - 1) : Math.max(up(value) - away * px, 11 * px));
        });
        lines.forEach((line, at) => line.setAttribute("d", `M${ROOM.left} ${up(now.across[at])}H${end}`));
      }, { step });
    },
  };
}

/* The top of a bar: it moves up and down. */
function grip(part, figure, { drawing, up, middle, wide }, name, at) {
  const spec = figure.figure.state[name];
  const move = (to) => figure.set({ [name]: Live.nearest(spec, to) });
  const cap = (more, around) => part.svg("rect", { // a flat one: it does not hide the bar
    x: -0.38 * wide - around, y: -5 - around, width: 0.76 * wide + 2 * around, height: 10 + 2 * around, rx: 5 + around, ...more });
  const node = part.svg("g", {
    class: "live-handle", tabindex: "0", role: "slider", "aria-label": spec.label, "aria-orientation": "vertical",
    "aria-valuemin": LEAST, "aria-valuemax": MOST,
    ...part.sliderKeys(figure, [5, 10], (by) => move(figure.state[name] + by)),
  }, part.svg("circle", { class: "live-grip", r: 17, fill: "transparent" }), part.svg("g", { class: "live-mark" },
    cap({ class: "live-ring" }, 4), cap({ fill: part.colour("query"), stroke: "var(--fig-paper)", "stroke-width": 1.5 }, 0),
    part.svg("path", { d: "M-5 -1.5H5M-5 1.5H5", stroke: "var(--fig-paper)", "stroke-width": 1.2 })));
  drawing.append(node);
  const one = {
    node, name, wide: Math.max(1, wide / 60), drawn: { x: middle(at), y: 0 }, px: () => drawing.px || 1,
    at: () => [middle(at), up(figure.state[name] + figure.state.add)],
    dragTo: ([, y]) => move(Math.round(2 * up.invert(y)) / 2 - figure.state.add),
    show(state) {
      node.setAttribute("aria-valuenow", state[name]);
      node.setAttribute("aria-valuetext", part.number(state[name] + state.add, 1));
      one.drawn.y = up(state[name] + state.add);
      Live.tween(node, one.drawn.y, (y) => node.setAttribute("transform", `translate(${middle(at)} ${y})`));
    },
  };
  part.draggable(drawing, figure, one);
  return one;
}

function build(part, figure) {
  const isNarrow = part.isNarrow();
  const looks = [
    { stroke: part.colour("weight"), "stroke-dasharray": part.dashes[1] }, // the mean
    { stroke: part.colour("key"), "stroke-dasharray": part.dashes[2] }, // the rms
  ];
  const own = panel(part, {
    ...(isNarrow ? { width: 304, height: 190 } : { width: 230, height: 240 }), low: LEAST - ADDED, high: MOST + ADDED, tick: 20, digits: 1, name: "group", away: 10,
    label: "Four numbers", role: "query", marks: looks, right: 74 });
  const size = isNarrow ? { width: 145, height: 150 } : { width: 170, height: 240 };
  const norms = ["LayerNorm", "RMSNorm"].map((label) => panel(part, { ...size, low: -1.9, high: 2.1, tick: 1, digits: isNarrow ? 1 : 2, label, role: "value" }));
  const grips = NAMES.map((name, at) => grip(part, figure, own, name, at));
  for (const one of [own, ...norms]) one.drawing.append(...one.texts);
  const how = [0, 1, 2].map(() => part.html("span"));
  const why = how.map(() => part.html("small")); // from where the divisor comes
  const heads = ["drag the four numbers", "LayerNorm", "RMSNorm"].map((text, at) =>
    part.html("p", { class: "live-title" }, part.html("strong", { text }), part.html("br"), how[at], part.html("br"), why[at]));
  const nodes = [own, ...norms].map(({ drawing }, at) => part.html("div", { class: "live-titled" }, heads[at], drawing));
  part.write(how[0], "shaded: mean ± standard deviation");
  part.write(why[0], `ε = ${EPS.toFixed(5)}: nothing is divided by 0`);
  return {
    nodes: [part.html("div", { class: "live-fours" }, ...nodes)],
    update(state, { mean, deviation, rms, layer, root }) {
      const { number, write } = part;
      own.set(numbersOf(state), {
        across: [mean, rms], named: [`mean ${number(mean)}`, `rms ${number(rms)}`], from: mean - deviation, to: mean + deviation, step: 0 });
      for (const one of grips) one.show(state);
      norms[0].set(Array.from(layer), { from: -1, to: 1, step: 1 });
      norms[1].set(Array.from(root), { step: 1 });
      const divisors = [deviation, rms].map((each) => Math.sqrt(each ** 2 + EPS));
      const [layerBy, rootBy] = divisors.map((each) => (each < 0.1 ? part.short(each) : number(each)));
      write(how[1], `(x ${mean < 0 ? "+" : "−"} ${number(Math.abs(mean))}) ÷ ${layerBy}`);
      write(how[2], `x ÷ ${rootBy}`);
      write(why[1], `${layerBy} = √(${number(deviation)}² + ε)`);
      write(why[2], `${rootBy} = √(${number(rms)}² + ε)`);
    },
  };
}

const all = (numbers) => Object.fromEntries(NAMES.map((name, at) => [name, numbers[at]]));

Live.define({
  name: "four-numbers",
  title: "Four numbers and their norms",
  question: "What does a norm remember of four numbers, and what does it forget?",
  page: "09_norms",
  heights: [566, 839],
  scripts: ["handles.js"],
  state: {
    ...Object.fromEntries(NAMES.map((name, at) => [
      name, { kind: "number", label: `${name} number`, min: LEAST, max: MOST, step: 0.1, start: START[at], hidden: true }])),
    add: { kind: "number", label: "add\u00a0to\u00a0all", min: -ADDED, max: ADDED, step: 0.5, start: 0 },
  },
  values, say, build,
  tries: [
    {
      do: "Add 5 to all", set: { add: 5 },
      see: "LayerNorm gives the same four numbers as before: it subtracts the mean, so what was added to all is gone. " +
        "RMSNorm gives others: 0.51, 0.89, 1.01, 1.39.",
    },
    {
      do: "Divide all by ten", set: all([0.3, 0.9, 1.1, 1.7]),
      see: "Both norms give the same four numbers as before. Neither knows how large its numbers were.",
    },
    {
      do: "All equal", set: all([10, 10, 10, 10]),
      see: "LayerNorm gives 0 four times: nothing differs from the mean. RMSNorm gives 1.00 four times.",
    },
    {
      do: "One large", set: all([1, 2, 3, 25]),
      see: "The large number takes the room. LayerNorm gives it 1.73, and the other three lie close together.",
    },
  ],
});
})();
