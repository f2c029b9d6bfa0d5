"use strict";
/* What every live figure needs: nodes, numbers, colours, and a control for each setting. */
(() => {
const Live = (globalThis.Live = globalThis.Live || {});
const COLOURS = {
  query: "var(--fig-q)", key: "var(--fig-k)", value: "var(--fig-v)", weight: "var(--fig-w)",
  plain: "var(--fig-ink)", muted: "var(--fig-muted)",
};
const SOFT = {
  query: "var(--fig-q-soft)", key: "var(--fig-k-soft)", value: "var(--fig-v-soft)", weight: "var(--fig-w-soft)",
  plain: "var(--fig-panel)", muted: "var(--fig-panel)",
};
const MOST_RADIOS = 5; // a longer list is a menu
let count = 0;

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const html = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const number = (value, digits = 2) => {
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text;
};
const colour = (role) => COLOURS[role];
const soft = (role) => SOFT[role];

const isNarrow = () => matchMedia("(max-width: 30rem)").matches;

// Controls: one for each setting ----

function slider(figure, name, spec) {
  const index = spec.steps ? (value) => spec.steps.findLastIndex((step) => step <= value) : Number;
  const value = spec.steps ? (at) => spec.steps[at] : Number;
  const range = spec.steps ? [0, spec.steps.length - 1, 1] : [spec.min, spec.max, spec.step];
  const digits = spec.steps ? 0 : (String(spec.step).split(".")[1] || "").length;
  const text = (one) => (spec.steps ? String(one) : number(one, digits));
  const widest = (spec.steps || [spec.min, spec.max]).reduce((w, one) => Math.max(w, text(one).length), 0);
  const shown = html("output", { style: `min-width: ${widest}ch` });
  const input = html("input", {
    type: "range", min: range[0], max: range[1], step: range[2],
    oninput: () => figure.set({ [name]: value(Number(input.value)) }),
    onchange: () => figure.released(),
  });
  return {
    node: html("label", { class: "live-control" }, html("span", { text: spec.label }), input, shown),
    show(state) {
      if (spec.most) input.max = spec.most(state); // another setting limits it
      input.disabled = input.max === input.min;
      input.value = index(state[name]);
      input.setAttribute("aria-valuetext", text(state[name]));
      shown.textContent = text(state[name]);
    },
  };
}

const pick = (figure, name, value) => {
  figure.set({ [name]: value }, Live.QUICK);
  figure.released();
  figure.loadIfAsked();
};

function radios(figure, name, spec) {
  const group = `live-${(count += 1)}`;
  const inputs = Object.keys(spec.of).map((key) =>
    html("input", { type: "radio", name: group, value: key, onchange: () => pick(figure, name, key) }));
  const labels = inputs.map((input) => html("label", {}, input, html("span", { text: spec.of[input.value] })));
  return {
    node: html("fieldset", { class: "live-choice" }, html("legend", { text: spec.label }), ...labels),
    show: (state) => inputs.forEach((input) => (input.checked = input.value === state[name])),
  };
}

const makers = { number: slider, choice: radios }; // more_controls.js adds others

function control(figure, name, spec) {
  const isMenu = spec.kind === "choice" && Object.keys(spec.of).length > MOST_RADIOS;
  return makers[isMenu ? "menu" : spec.kind](figure, name, spec);
}

Live.part = { html, svg, number, colour, soft, control, makers, pick, isNarrow };
})();
