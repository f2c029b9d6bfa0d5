"use strict";
/* Chapter 9: four numbers to drag, and what two norms make of them. */
(() => {
const NAMES = ["first", "second", "third", "fourth"];
const START = [3, 9, 11, 17];
const [MOST, SHOWN] = [25, 35]; // of a number; of the picture, which also shows what is added
const ROOM = { left: 34, right: 8, top: 26, bottom: 14 };

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

/* Four bars from zero; lines across them have a name. */
function panel(part, { width, height, most, tick, digits, label, role, marks = [], name = "img", away = 6 }) {
  const { svg } = part;
  const [floor, wide] = [height - ROOM.bottom, (width - ROOM.left - ROOM.right) / 4];
  const up = Object.assign((value) => floor - ((value + most) / (2 * most)) * (floor - ROOM.top), {
    invert: (y) => ((floor - y) / (floor - ROOM.top)) * 2 * most - most });
  const middle = (at) => ROOM.left + (at + 0.5) * wide;
  const drawing = part.drawing({ width, height, label, role: name });
  for (const each of [-tick, 0, tick]) {
    drawing.append(
      svg("path", { class: "live-gridline", d: `M${ROOM.left} ${up(each)}H${width - ROOM.right}` }),
      svg("text", { class: "live-tick", x: ROOM.left - 5, y: up(each) + 4, "text-anchor": "end", text: part.number(each, 0) }));
  }
  const bar = (more) => svg("path", { ...more });
  const bars = NAMES.map(() => bar({ fill: part.colour(role), opacity: 0.85 }));
  const ghosts = NAMES.map(() => bar({ class: "live-ghost", stroke: "var(--fig-ink)", "stroke-width": 2, fill: "none" }));
  const texts = NAMES.map((_, at) => svg("text", { class: "live-halo live-four", x: middle(at), "text-anchor": "middle" }));
  const lines = marks.map((look) => svg("path", { fill: "none", "stroke-width": 2, ...look }));
  drawing.append(...bars, ...ghosts, ...lines);
  const shape = (at, value, x = 0.3 * wide) => `M${middle(at) - x} ${up(0)}V${up(value)}h${2 * x}V${up(0)}Z`;
  return {
    drawing, up, middle, wide, texts,
    set(numbers, across, step) {
      texts.forEach((text, at) => part.write(text, part.number(numbers[at], digits)));
      drawing.setAttribute("aria-label", `${label}: ${numbers.map((each) => part.number(each, digits)).join(", ")}`);
      Live.tween(drawing, { numbers, across }, (now, before) => {
        now.numbers.forEach((value, at) => {
          bars[at].setAttribute("d", shape(at, value));
          ghosts[at].setAttribute("d", before ? `M${middle(at) - 0.3 * wide} ${up(before.numbers[at])}h${0.6 * wide}` : "");
          const px = drawing.px || 1;
          texts[at].setAttribute("y", value < 0 ? Math.min(up(value) + (away + 10) * px, height - 1) : Math.max(up(value) - away * px, 11 * px));
        });
        lines.forEach((line, at) => line.setAttribute("d", `M${ROOM.left} ${up(now.across[at])}H${width - ROOM.right}`));
      }, { step });
    },
  };
}

/* The top of a bar: it moves up and down. */
function grip(part, figure, { drawing, up, middle, wide }, name, at) {
  const spec = figure.figure.state[name];
  const move = (to) => figure.set({ [name]: Live.nearest(spec, to) });
  const node = part.svg("g", {
    class: "live-handle", tabindex: "0", role: "slider", "aria-label": spec.label, "aria-orientation": "vertical",
    "aria-valuemin": -MOST, "aria-valuemax": MOST,
    onkeydown: (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      move(figure.state[name] + by * (event.shiftKey ? 5 : 1));
    },
    onkeyup: (event) => event.key.startsWith("Arrow") && figure.released(),
  }, part.svg("circle", { class: "live-grip", r: 17, fill: "transparent" }), part.svg("g", { class: "live-mark" },
    part.svg("circle", { class: "live-ring", r: 14 }),
    part.svg("circle", { r: 8.5, fill: part.colour("query"), stroke: "var(--fig-paper)", "stroke-width": 2 }),
    part.svg("path", { d: "M0 -5V5M-2.5 -2.5L0 -5L2.5 -2.5M-2.5 2.5L0 5L2.5 2.5", fill: "none", stroke: "var(--fig-paper)", "stroke-width": 1.5 })));
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
    ...(isNarrow ? { width: 330, height: 190 } : { width: 270, height: 240 }), most: SHOWN, tick: 20, digits: 1, name: "group", away: 13,
    label: "Four numbers", role: "query", marks: looks });
  const size = isNarrow ? { width: 160, height: 150 } : { width: 200, height: 240 };
  const norms = ["LayerNorm", "RMSNorm"].map((label) => panel(part, { ...size, most: 2.2, tick: 2, digits: isNarrow ? 1 : 2, label, role: "value" }));
  const grips = NAMES.map((name, at) => grip(part, figure, own, name, at));
  for (const one of [own, ...norms]) one.drawing.append(...one.texts);
  const [title, ...named] = [part.titled("", own.drawing), ...norms.map(({ drawing }, at) => part.titled(["LayerNorm", "RMSNorm"][at], drawing))];
  const sample = (look) => part.svg("svg", { viewBox: "0 0 30 8", width: 30, height: 8, "aria-hidden": "true" }, part.svg("path", { d: "M0 4H30", "stroke-width": 2, ...look }));
  const words = looks.map(() => part.html("i"));
  const legend = part.html("p", { class: "live-legend" }, ...looks.map((look, at) => part.html("span", {}, sample(look), words[at])));
  part.write(title.firstChild, "drag the four numbers");
  return {
    nodes: [part.html("div", { class: "live-fours" }, title, ...named), legend],
    update(state, { mean, deviation, rms, layer, root }) {
      own.set(numbersOf(state), [mean, rms], 0);
      for (const one of grips) one.show(state);
      norms[0].set(Array.from(layer), [], 1);
      norms[1].set(Array.from(root), [], 1);
      part.write(words[0], `mean ${part.number(mean)}, standard deviation ${part.number(deviation)}`);
      part.write(words[1], `rms ${part.number(rms)}`);
    },
  };
}

const all = (numbers) => Object.fromEntries(NAMES.map((name, at) => [name, numbers[at]]));

Live.define({
  name: "four-numbers",
  title: "Four numbers and their norms",
  question: "What does a norm remember of four numbers, and what does it forget?",
  page: "09_norms",
  heights: [522, 785],
  state: {
    ...Object.fromEntries(NAMES.map((name, at) => [
      name, { kind: "number", label: `${name} number`, min: -MOST, max: MOST, step: 0.1, start: START[at], hidden: true }])),
    add: { kind: "number", label: "add\u00a0to\u00a0all", min: -10, max: 10, step: 0.5, start: 0 },
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
