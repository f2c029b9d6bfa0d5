"use strict";
/* The building blocks of all live figures. Each gives a `node`, and a function that sets what it shows. */
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
const DASHES = ["none", "7 4", "2 4", "9 3 2 3"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const MOST_RADIOS = 5; // a longer list is a menu
let count = 0;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const number = (value, digits = 2) => {
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text;
};
const colour = (role) => COLOURS[role];
const soft = (role) => SOFT[role];

// Controls: one for each setting ----

function slider(figure, name, spec) {
  const index = spec.steps ? (value) => spec.steps.indexOf(value) : Number;
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
      input.value = index(state[name]);
      input.setAttribute("aria-valuetext", text(state[name]));
      shown.textContent = text(state[name]);
    },
  };
}

const pick = (figure, name, value) => {
  figure.set({ [name]: value });
  figure.released();
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

function menu(figure, name, spec) {
  const options = Object.entries(spec.of).map(([key, text]) => html("option", { value: key, text }));
  const select = html("select", { onchange: () => pick(figure, name, select.value) }, ...options);
  return {
    node: html("label", { class: "live-control" }, html("span", { text: spec.label }), select),
    show: (state) => (select.value = state[name]),
  };
}

function toggle(figure, name, spec) {
  const input = html("input", { type: "checkbox", onchange: () => pick(figure, name, input.checked) });
  return {
    node: html("label", { class: "live-toggle" }, input, html("span", { text: spec.label })),
    show: (state) => (input.checked = state[name]),
  };
}

function textBox(figure, name, spec) {
  const whole = (text) => (text.toWellFormed ? text.toWellFormed() : text); // no half of an emoji
  const input = html("input", {
    type: "text", spellcheck: "false", autocomplete: "off",
    oninput: () => {
      const text = [...whole(input.value)].slice(0, spec.max).join("");
      if (Live.fits.text(spec, text) !== undefined) figure.set({ [name]: text });
    },
    onchange: () => figure.released(),
  });
  return {
    node: html("label", { class: "live-control live-text" }, html("span", { text: spec.label }), input),
    show: (state) => input.value !== state[name] && (input.value = state[name]),
  };
}

function control(figure, name, spec) {
  const isMenu = spec.kind === "choice" && Object.keys(spec.of).length > MOST_RADIOS;
  const make = { number: slider, choice: isMenu ? menu : radios, toggle, text: textBox };
  return make[spec.kind](figure, name, spec);
}

/* A point of a drawing that can be dragged, or moved with the arrow keys. */
function handle({ drawing, name, role, figure, at, value, shape }) {
  const spec = figure.figure.state[name];
  const move = (point) => figure.set({ [name]: point.map((each) => Live.nearest(spec, each)) });
  const node = svg(
    "g", {
      class: "live-handle", tabindex: "0", role: "slider", "aria-label": spec.label,
      "aria-valuemin": spec.min, "aria-valuemax": spec.max, "aria-roledescription": "point in the plane",
      onpointerdown: (event) => {
        node.setPointerCapture(event.pointerId);
        event.preventDefault();
        node.focus({ preventScroll: true });
      },
      onpointermove: (event) => {
        if (!node.hasPointerCapture(event.pointerId)) return;
        const inside = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
        move(value(inside.x, inside.y));
      },
      onpointerup: () => figure.released(),
      onkeydown: (event) => {
        const arrow = ARROWS[event.key];
        if (!arrow) return;
        event.preventDefault();
        const step = spec.step * (event.shiftKey ? 20 : 5);
        move(figure.state[name].map((each, axis) => each + step * arrow[axis]));
      },
      onkeyup: (event) => ARROWS[event.key] && figure.released(),
    },
    svg("circle", { r: 17, fill: "transparent" }),
    shape || svg("circle", { r: 8, fill: colour(role), stroke: "var(--fig-paper)", "stroke-width": 2 }),
  );
  drawing.append(node);
  return {
    node,
    show(state) {
      const [x, y] = at(state[name]);
      node.setAttribute("transform", `translate(${x} ${y})`);
      node.setAttribute("aria-valuenow", state[name][0]);
      node.setAttribute("aria-valuetext", state[name].map((each) => number(each)).join(", "));
    },
  };
}

// Layout and drawings ----

const columns = (...nodes) => html("div", { class: "live-columns" }, ...nodes);
const titled = (text, node) => html("div", { class: "live-titled" }, html("p", { class: "live-title", text }), node);

/* With controls inside, a drawing is a group: screen readers do not look into an image. */
const drawing = ({ width, height, label, role = "img" }) =>
  svg("svg", {
    class: "live-drawing", viewBox: `0 0 ${width} ${height}`, role, "aria-label": label,
    style: `max-width: ${width}px; aspect-ratio: ${width} / ${height}`,
  });

function numbers({ label, names }) {
  const shown = names.map(() => html("dd"));
  const rows = names.map((name, at) => html("div", {}, html("dt", { text: name }), shown[at]));
  return {
    node: html("dl", { class: "live-numbers", "aria-label": label }, ...rows),
    set: (texts) => texts.forEach((text, at) => {
      rows[at].hidden = text === null; // does not apply
      shown[at].textContent = text;
    }),
  };
}

function bars({ names, label, max = 1, digits = 2, role = "weight" }) {
  const node = html("div", { class: "live-bars", role: "img", "aria-label": label });
  const row = (name, value, top) => {
    const share = (100 * Math.abs(value)) / top;
    return [
      html("span", { text: name }),
      html("span", { class: "live-bar" }, html("span", { style: `width: ${share}%; background: ${colour(role)}` })),
      html("span", { class: "live-bar-number", text: number(value, digits) }),
    ];
  };
  return {
    node,
    set(values, named = names) {
      const top = Math.max(max, ...values.map(Math.abs)); // a longer bar makes the others shorter
      node.replaceChildren(...[...values].flatMap((value, at) => row(named[at], value, top)));
      node.setAttribute("aria-label", `${label}: ${named.map((n, at) => `${n} ${number(values[at], digits)}`).join(", ")}`);
    },
  };
}

function tokens({ label, onpick }) {
  const node = html("div", { class: "live-tokens", role: onpick ? "group" : "img", "aria-label": label });
  const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎");
  const one = (token, at) =>
    html(onpick ? "button" : "span", {
      class: token.mark ? "live-token live-marked" : "live-token", text: visible(token.text), title: token.title,
      type: onpick ? "button" : null, "aria-pressed": onpick ? String(Boolean(token.mark)) : null,
      style: `--shade: ${token.shade || 0}; --role: ${colour(token.role || "weight")}`,
      onclick: onpick ? () => onpick(at) : null,
    });
  return {
    node,
    set(list) {
      const focused = [...node.children].indexOf(document.activeElement);
      node.replaceChildren(...list.map(one));
      if (focused >= 0 && node.children[focused]) node.children[focused].focus();
      if (!onpick) node.setAttribute("aria-label", `${label}: ${list.map((each) => visible(each.text)).join(" | ")}`);
    },
  };
}

/* A map of cells. With `onpick` it is a grid with one tab stop, in which the arrow keys move. */
function heat({ label, digits = 2, role = "weight", onpick }) {
  const node = html("div", { class: "live-heat", role: onpick ? "grid" : "img", "aria-label": label });
  let place = [0, 0];
  const cellAt = (row, column) => node.querySelector(`[data-cell="${row},${column}"]`);
  const goTo = (row, column, focus) => {
    const next = cellAt(row, column);
    if (!next) return;
    const before = cellAt(...place);
    if (before) before.tabIndex = -1;
    place = [row, column];
    next.tabIndex = 0;
    if (focus) next.focus();
  };
  const cell = (value, row, column, names, top, marked) => {
    const text = value === null ? "" : number(value, digits).replace(/^0\./, "."); // cells are narrow
    const words = value === null ? "forbidden" : number(value, digits);
    return html("span", {
      class: `live-cell${value === null ? " live-forbidden" : ""}${marked ? " live-marked" : ""}`,
      role: onpick ? "gridcell" : null, "data-cell": `${row},${column}`, text,
      tabindex: onpick ? (row === place[0] && column === place[1] ? 0 : -1) : null,
      "aria-label": onpick ? `${names.rows[row]}, ${names.columns[column]}: ${words}` : null,
      style: `--shade: ${value === null ? 0 : Math.min(1, Math.abs(value) / (top || 1))}`,
      onclick: onpick ? () => { goTo(row, column, true); onpick(row, column); } : null,
      onkeydown: onpick ? (event) => {
        const arrow = ARROWS[event.key];
        if (arrow) goTo(row - arrow[1], column + arrow[0], true);
        else if (event.key === "Enter" || event.key === " ") onpick(row, column);
        else return;
        event.preventDefault();
      } : null,
    });
  };
  return {
    node,
    set(matrix, { rows, columns: across, max, mark }) {
      const names = { rows, columns: across };
      const top = max || Math.max(...matrix.flat().map((value) => Math.abs(value || 0)));
      const hadFocus = node.contains(document.activeElement);
      const isMarked = (r, c) => mark && mark[0] === r && mark[1] === c;
      const head = html(
        "div", { class: "live-heat-head", role: onpick ? "row" : null },
        html("span", { role: onpick ? "columnheader" : null }),
        ...across.map((name) => html("span", { role: onpick ? "columnheader" : null, text: name, title: name })));
      const lines = matrix.map((line, r) => html(
        "div", { role: onpick ? "row" : null },
        html("span", { class: "live-row-name", role: onpick ? "rowheader" : null, text: rows[r] }),
        ...line.map((value, c) => cell(value, r, c, names, top, isMarked(r, c)))));
      node.style.setProperty("--columns", across.length);
      node.replaceChildren(head, ...lines);
      if (hadFocus) cellAt(...place)?.focus();
    },
  };
}

// A chart of lines ----

const PLOT = { width: 400, height: 250, left: 52, right: 12, top: 12, bottom: 44 };

function ticksOf([low, high], isLog) {
  if (isLog) {
    const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
    const every = Math.max(1, Math.ceil((last - first) / 5));
    const powers = [];
    for (let power = last; power >= first; power -= every) powers.push(10 ** power);
    return powers;
  }
  const rough = (high - low) / 4;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * unit).find((each) => each >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + 1e-9; tick += step) ticks.push(Number(tick.toFixed(9)));
  return ticks;
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const tickText = (tick, isLog) =>
  isLog && (tick < 0.01 || tick > 1000)
    ? `10${[...String(Math.round(Math.log10(tick)))].map((letter) => RAISED[letter]).join("")}`
    : String(tick).replace("-", "−");

function lines({ label, xLabel, yLabel, x, y, logX = false, logY = false }) {
  const { width, height, left, right, top, bottom } = PLOT;
  const scale = ([low, high], from, to, isLog) => {
    const place = isLog ? (value) => Math.log(Math.max(value, low)) : (value) => value;
    return (value) => from + ((to - from) * (place(value) - place(low))) / (place(high) - place(low));
  };
  const across = scale(x, left, width - right, logX);
  const up = scale(y, height - bottom, top, logY);
  const node = drawing({ width, height, label });
  const label_ = (at, attributes) => svg("text", { class: "live-tick", ...attributes, text: at });
  for (const tick of ticksOf(y, logY))
    node.append(
      svg("path", { d: `M${left} ${up(tick)}H${width - right}`, class: "live-gridline" }),
      label_(tickText(tick, logY), { x: left - 6, y: up(tick) + 4, "text-anchor": "end" }));
  for (const tick of ticksOf(x, logX))
    node.append(label_(tickText(tick, logX), { x: across(tick), y: height - bottom + 17, "text-anchor": "middle" }));
  node.append(
    label_(xLabel, { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }),
    label_(yLabel, { x: 14, y: (top + height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(top + height - bottom) / 2})` }));
  const curves = node.appendChild(svg("g"));
  const legend = html("p", { class: "live-legend" });
  const draw = (line, at) => {
    const path = line.points.map(([px, py]) => `${across(px).toFixed(1)} ${up(Math.min(Math.max(py, y[0]), y[1])).toFixed(1)}`);
    const look = { stroke: colour(line.role), "stroke-dasharray": line.dashed ? DASHES[1] : DASHES[at % DASHES.length], fill: "none", "stroke-width": 2.2 };
    const one = line.points.length === 1; // a point that marks a setting
    curves.append(one
      ? svg("circle", { cx: path[0].split(" ")[0], cy: path[0].split(" ")[1], r: 5.5, fill: colour(line.role), stroke: "var(--fig-paper)", "stroke-width": 2 })
      : svg("path", { d: `M${path.join("L")}`, ...look }));
    if (line.name)
      legend.append(html("span", {}, svg("svg", { viewBox: "0 0 30 8", width: 30, height: 8, "aria-hidden": "true" }, svg("path", { d: "M0 4H30", ...look })), line.name));
  };
  return {
    node: html("div", { class: "live-chart" }, node, legend),
    across, up, drawing: node,
    set(list) {
      curves.replaceChildren();
      legend.replaceChildren();
      list.forEach(draw);
    },
  };
}

Live.part = {
  html, svg, number, colour, soft, control, handle, columns, titled, drawing, numbers, bars, tokens, heat, lines,
};
})();
