"use strict";
/* What figures draw with: charts, bars, maps of cells, tokens, a player. Each gives a `node`, and a function that
   sets what it shows. A figure that draws all by itself says `drawings: false`, and its page does not load this
   file. Points that can be dragged: handles.js. */
(() => {
const { html, svg, number, colour } = Live.part;
const DASHES = ["none", "7 4", "2 4", "9 3 2 3", "14 4", "4 2"];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
let count = 0;

/* Play and Step: `step(how)` goes one step on and says whether there is another; `again()` goes back
   to the beginning. Anything else that the reader does stops the play. Who prefers reduced motion sees
   where it ends. With `stays`, one step after the last one does nothing. `every`: ms, or what gives them. With
   `isPaced`, the play can be made slower and faster. */
const PACES = [["½×", 2], ["1×", 1], ["2×", 0.5], ["4×", 0.25]];
function player(figure, { step, again, every = 800, names: [play, one] = ["Play", "One step"], stays = false, isPaced = false }) {
  let [timer, pace] = [0, 1];
  const set = (isOn) => {
    clearInterval(timer);
    timer = isOn ? setInterval(() => advance() || set(false), PACES[pace][1] * (typeof every === "function" ? every() : every)) : 0;
    start.textContent = isOn ? "Pause" : play;
  };
  const advance = () => {
    const isMore = Live.moving(Live.QUICK, () => step());
    Live.acted();
    return isMore;
  };
  const begin = () => {
    if (timer) return set(false);
    if (Live.prefersCalm()) {
      for (let steps = 0; steps < 500 && advance(); steps++);
      return figure.released();
    }
    if (!advance()) again();
    return set(true);
  };
  const start = html("button", { type: "button", text: play, onclick: begin, class: "live-play" });
  const next = html("button", { type: "button", text: one, onclick: () => {
    set(false);
    if (!advance() && !stays) again();
    figure.released();
  } });
  const turn = (by) => {
    pace = Math.min(PACES.length - 1, Math.max(0, pace + by));
    shown.textContent = PACES[pace][0];
    [slower, faster].forEach((each, n) => each.setAttribute("aria-disabled", pace === n * (PACES.length - 1)));
    if (timer) set(true);
  };
  const shown = html("output");
  const [slower, faster] = [["−", "slower", -1], ["+", "faster", 1]].map(([text, label, by]) =>
    html("button", { type: "button", text, "aria-label": label, title: label, onclick: () => turn(by) }));
  turn(0);
  const paces = isPaced ? html("span", { class: "live-pace", role: "group", "aria-label": "speed" }, slower, shown, faster) : null;
  const node = html("span", { class: "live-player" }, start, next, paces);
  const stop = (event) => timer && !node.contains(event.target) && set(false);
  for (const act of ["pointerdown", "keydown", "input"]) figure.place.addEventListener(act, stop);
  return { node, stop: () => set(false) };
}

// Layout and drawings ----

const columns = (...nodes) => html("div", { class: "live-columns" }, ...nodes);
const titled = (text, node) => html("div", { class: "live-titled" }, html("p", { class: "live-title", text }), node);

/* A drawing may be shown smaller than it is: `--px` (and node.px) says how many of its units one pixel
   of the screen takes, so that letters and handles keep their size.
   With controls inside, a drawing is a group: screen readers do not look into an image. */
const sizes = globalThis.ResizeObserver && new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (!contentRect.width) continue;
    const before = target.px || 1;
    target.px = Math.max(1, target.viewBox.baseVal.width / contentRect.width);
    target.style.setProperty("--px", target.px.toFixed(3));
    if (target.px !== before) target.again?.();
  }
});

function drawing({ width, height, label, role = "img" }) {
  const node = svg("svg", {
    class: "live-drawing", viewBox: `0 0 ${width} ${height}`, role, "aria-label": label,
    style: `max-width: ${width}px; aspect-ratio: ${width} / ${height}`,
  });
  sizes.observe(node);
  return node;
}

/* Writes only what differs: a node that stays as it is costs nothing. */
const write = (node, text) => node.textContent !== text && (node.textContent = text);
const label = (node, text) => node.getAttribute("aria-label") !== text && node.setAttribute("aria-label", text);

/* As many children as there are things to show; those that are there are kept. */
function fit(node, count, make) {
  while (node.childElementCount > count) node.lastElementChild.remove();
  while (node.childElementCount < count) node.append(make(node.childElementCount));
}

function numbers({ label: words, names }) {
  const shown = names.map(() => html("dd"));
  const rows = names.map((name, at) => html("div", {}, html("dt", { text: name }), shown[at]));
  return {
    node: html("dl", { class: "live-numbers", "aria-label": words }, ...rows),
    set: (texts) => texts.forEach((text, at) => {
      rows[at].hidden = text === null; // does not apply
      write(shown[at], String(text));
    }),
  };
}

/* A bar for each name, from the middle if there are negative values (`isSigned`); the outline is where it ended before. With `onpick` the names are buttons; `set` may
   give other names, and texts in place of the numbers. */
function bars({ names, label: words, max = 1, digits = 2, role = "weight", onpick, isSigned = false }) {
  const rows = names.map((name, at) => {
    const title = onpick ? html("button", { type: "button", text: name, onclick: () => onpick(at) }) : html("span", { text: name });
    const [bar, was] = [html("span", { style: `background: ${colour(role)}` }), html("i", { class: "live-was" })];
    const text = html("span", { class: "live-bar-number" });
    return { title, bar, was, text, nodes: [title, html("span", { class: "live-bar" }, bar, was), text] };
  });
  const node = html("div", { class: isSigned ? "live-bars live-signed" : "live-bars", role: onpick ? "group" : "img" }, ...rows.flatMap(({ nodes }) => nodes));
  return {
    node,
    set(values, { step = 0, names: now = names, texts = values.map((value) => number(value, digits)) } = {}) {
      const top = Math.max(max, ...values.map(Math.abs)); // a longer bar makes the others shorter
      texts.forEach((text, at) => {
        write(rows[at].text, text);
        write(rows[at].title, now[at]);
      });
      label(node, `${words}: ${now.map((n, at) => `${n} ${texts[at]}`).join(", ")}`);
      const whole = isSigned ? 50 : 100; // percent
      const put = (one, share) => {
        one.style.width = `${Math.abs(share)}%`;
        if (isSigned) one.style.left = `${50 + Math.min(0, share)}%`;
      };
      Live.tween(node, values.map((value) => (whole * (isSigned ? value : Math.abs(value))) / top), (now, before) => rows.forEach((row, at) => {
        put(row.bar, now[at]);
        if (before) put(row.was, before[at]);
        else row.was.style.width = 0;
        if (isSigned) row.was.style.transform = before?.[at] < 0 ? "scaleX(-1)" : ""; // its end is on the left
      }), { step });
    },
  };
}

// Letters that a model reads and writes ----

const SIGNS = { " ": "␣", "\n": "⏎", "<bos>": "▷", "<eos>": "■" };
const NAMES = { " ": "the space", "\n": "the line break", "<bos>": "the start", "<eos>": "the end" };
const sign = (token) => SIGNS[token] || ([...token].length > 1 ? "▫" : token); // ▫ is a byte
const named = (token) => NAMES[token] || ([...token].length > 1 ? "a byte" : `“${token}”`);
const percent = (share) => (share > 0.995 ? ">99%" : `${number(100 * share, 0)}%`);

/* The three strongest weights of a row, [place, weight]. Those that look alike when rounded come in the order
   of the text; what is shown as 0.00 is no link. */
const strongest = (row) =>
  Array.from(row, (w, j) => [j, w, Math.round(100 * w)]).filter(([, w]) => w >= 0.005)
    .sort((a, b) => b[2] - a[2]).slice(0, 3).map(([j, w]) => [j, w]);

/* A drawing as wide as the figure, so that its letters keep their size: `make(width)` is called again when
   the width is another one, and then `again()`. */
function fitted(figure, { least = 280, most = 760, make, again }) {
  let width = 0;
  const room = () => {
    const inside = figure.place.clientWidth - 2 * parseFloat(getComputedStyle(figure.place).paddingLeft);
    return Math.min(most, Math.max(least, Math.round(inside || 640)));
  };
  const layOut = (isOther = false) => { // other things are drawn: make it anew
    if (!isOther && room() === width) return false;
    make((width = room()));
    return true;
  };
  addEventListener("resize", () => width && layOut() && again());
  return layOut;
}

const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎");

function tokens({ label: words, onpick }) {
  const node = html("div", { class: "live-tokens", role: onpick ? "group" : "img", "aria-label": words });
  const make = (at) => html(onpick ? "button" : "span", {
    class: "live-token", type: onpick ? "button" : null, onclick: onpick ? () => onpick(at) : null });
  return {
    node,
    set(list) {
      fit(node, list.length, make);
      list.forEach((token, at) => {
        const one = node.children[at];
        write(one, visible(token.text));
        one.title = token.title || "";
        one.classList.toggle("live-marked", Boolean(token.mark));
        if (onpick) one.setAttribute("aria-pressed", String(Boolean(token.mark)));
        one.style.setProperty("--role", colour(token.role || "weight"));
      });
      if (!onpick) label(node, `${words}: ${list.map((each) => visible(each.text)).join(" | ")}`);
      Live.tween(node, list.map(({ shade }) => shade || 0), (now) =>
        now.forEach((shade, at) => node.children[at].style.setProperty("--shade", shade.toFixed(3))));
    },
  };
}

/* A map of cells. With `onpick` it is a grid with one tab stop, in which the arrow keys move. Nodes are
   made for a shape of the map, once; a change touches the cells that change. */
function heat({ label: words, digits = 2, role = "weight", onpick, last = false, plain = false }) {
  const isResult = (column) => last && column === shape.width - 1; // no cell, but what a row comes to

  const node = html("div", { class: "live-heat", role: onpick ? "grid" : "img", "aria-label": words,
    style: `--role: ${colour(role)}` });
  let [cells, names, shape, place] = [[], {}, {}, [0, 0]]; // cells: { node, key, shade } in rows
  const goTo = (row, column, focus) => {
    const next = cells[row]?.[column];
    if (!next || isResult(column)) return;
    const before = cells[place[0]]?.[place[1]];
    if (before) before.node.tabIndex = -1;
    place = [row, column];
    next.node.tabIndex = 0;
    if (focus) next.node.focus();
  };
  const cell = (row, column) => ({ key: "", shade: null, isResult: isResult(column), node: isResult(column) ? html("span", {
    class: "live-result", role: onpick ? "gridcell" : null }) : html("span", {
    class: "live-cell", role: onpick ? "gridcell" : null,
    tabindex: onpick ? (row === place[0] && column === place[1] ? 0 : -1) : null,
    onclick: onpick ? () => { goTo(row, column, true); onpick(row, column); } : null,
    onkeydown: onpick ? (event) => {
      const arrow = ARROWS[event.key];
      if (arrow) goTo(row - arrow[1], column + arrow[0], true);
      else if (event.key === "Enter" || event.key === " ") onpick(row, column);
      else return;
      event.preventDefault();
    } : null,
  }) });
  function make(height, width) {
    const head = html(
      "div", { class: "live-heat-head", role: onpick ? "row" : null }, html("span", { role: onpick ? "columnheader" : null }),
      ...Array.from({ length: width }, () => html("span", { role: onpick ? "columnheader" : null })));
    place = [0, 0];
    cells = Array.from({ length: height }, (_, r) => Array.from({ length: width }, (_, c) => cell(r, c)));
    const lines = cells.map((line) => html(
      "div", { role: onpick ? "row" : null }, html("span", { class: "live-row-name", role: onpick ? "rowheader" : null }),
      ...line.map((each) => each.node)));
    node.style.setProperty("--columns", width);
    node.replaceChildren(head, ...lines);
  }
  function fill(one, value, name, isMarked) {
    const key = `${value === null ? null : number(value, digits)}|${name}|${isMarked}`;
    if (one.key === key) return;
    one.key = key;
    const isBare = value === null || (plain && !one.isResult); // `plain`: its shade says it all
    write(one.node, isBare ? "" : number(value, digits).replace(/^0\./, ".")); // cells are narrow
    one.node.classList.toggle("live-forbidden", value === null);
    one.node.classList.toggle("live-marked", isMarked);
    if (onpick) label(one.node, `${name}: ${value === null ? "forbidden" : number(value, digits)}`);
  }
  return {
    node,
    /* `isMarked(row, column)`: outlined. A cell that changed keeps a frame of its former shade.
       `shades` are those of the cells, where they are not as strong as their numbers. */
    set(matrix, { rows, columns: across, max, shades: given, isMarked = () => false, step = 0 }) {
      const [height, width] = [matrix.length, across.length];
      if (height !== shape.height || width !== shape.width) {
        shape = { height, width };
        make(height, width);
      }
      names = { rows, columns: across.map(String) };
      const [head, ...lines] = node.children;
      names.columns.forEach((name, at) => {
        write(head.children[at + 1], name);
        head.children[at + 1].title = name;
      });
      names.rows.forEach((name, at) => write(lines[at].firstChild, name));
      matrix.forEach((line, r) => line.forEach((value, c) =>
        fill(cells[r][c], value, `${names.rows[r]}, ${names.columns[c]}`, Boolean(isMarked(r, c)))));
      const top = max || Math.max(...matrix.flat().map((value) => Math.abs(value || 0))) || 1;
      const shades = matrix.map((line, r) => line.map((value, c) => (isResult(c) ? 0 : given ? given[r][c] : Math.min(1, Math.abs(value || 0) / top))));
      Live.tween(node, shades, (shown, before) => shown.forEach((line, r) => line.forEach((shade, c) => {
        const one = cells[r][c];
        const was = before?.[r]?.[c] ?? null;
        const look = `${shade.toFixed(3)}|${was !== null && Math.abs(was - shades[r][c]) > 0.05 ? was.toFixed(3) : ""}`;
        if (one.shade === look) return;
        one.shade = look;
        const [own, former] = look.split("|");
        one.node.style.setProperty("--shade", own);
        one.node.classList.toggle("live-changed", former !== "");
        if (former) one.node.style.setProperty("--was", former);
      })), { step });
    },
  };
}

// A chart of lines ----

const ROOM = { left: 54, right: 14, top: 12, bottom: 44 };

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

/* Three digits, far ones as a power of ten. */
function short(x) {
  if (x === 0) return "0";
  const up = x * (1 + 1e-9); // so that a tie is rounded up, here and in Python
  const [digits, exponent] = up.toExponential(2).split("e");
  if (Math.abs(exponent) < 4) return up.toFixed(Math.max(0, 2 - exponent));
  return `${digits}\u00a0×\u00a010${[...exponent.replace("+", "")].map((letter) => RAISED[letter]).join("")}`;
}

/* Lines and single points in a chart. The faint ones are where they were before. `room` is that beside the
   lines, `yText` says some ticks of the upright axis in words. */
function lines({
  label: words, xLabel, yLabel, x, y, xTicks, logX = false, logY = false, height = 250, width = 400, room = {}, yText = () => null }) {
  const { left, right, top, bottom } = { ...ROOM, ...room };
  const scale = ([low, high], from, to, isLog) => {
    const place = isLog ? (value) => Math.log(Math.max(value, 1e-300)) : (value) => value;
    return (value) => from + ((to - from) * (place(value) - place(low))) / (place(high) - place(low));
  };
  const across = scale(x, left, width - right, logX);
  const node = drawing({ width, height, label: words });
  const tick_ = (text, attributes) => svg("text", { class: "live-tick", ...attributes, text });
  for (const tick of xTicks || ticksOf(x, logX))
    node.append(tick_(xTicks ? String(tick) : tickText(tick, logX), { x: across(tick), y: height - bottom + 18, "text-anchor": "middle" }));
  const middle = (top + height - bottom) / 2;
  node.append(
    tick_(xLabel, { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }),
    tick_(yLabel, { x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }));
  const ruled = node.appendChild(svg("g"));
  let up; // from a share to its height, by the axis
  const axis = (range, isLog) => {
    up = scale(range, height - bottom, top, isLog);
    ruled.replaceChildren(...ticksOf(range, isLog).flatMap((tick) => [
      svg("path", { d: `M${left} ${up(tick)}H${width - right}`, class: "live-gridline" }),
      tick_(yText(tick) ?? tickText(tick, isLog), { x: left - 6, y: up(tick) + 4, "text-anchor": "end" })]));
  };
  axis(y, logY);
  const clip = `live-clip-${(count += 1)}`; // lines leave the chart, and do not run along its edge
  node.append(svg("clipPath", { id: clip }, svg("rect", {
    x: left - 8, y: top - 8, width: width - left - right + 16, height: height - top - bottom + 16 })));
  const layer = (more) => node.appendChild(svg("g", { "clip-path": `url(#${clip})`, ...more }));
  const [ghosts, curves] = [layer({ class: "live-ghost" }), layer()];
  const legend = html("p", { class: "live-legend" });
  const shares = new WeakMap(); // places -> of what: a ghost is drawn on the axis of today
  const look = (line, at) => ({
    stroke: colour(line.role), "stroke-dasharray": DASHES[line.dash ?? at % DASHES.length], fill: "none", "stroke-width": 2.4 });
  const make = (line, at) => (line.points.length === 1 // a point that marks a setting
    ? svg("circle", { r: 6, fill: colour(line.role), stroke: "var(--fig-paper)", "stroke-width": 2 })
    : svg("path", look(line, at)));
  const put = (one, points) => {
    if (one.tagName === "path") one.setAttribute("d", points ? `M${points.map((p) => `${p[0].toFixed(1)} ${p[1].toFixed(1)}`).join("L")}` : "");
    else {
      one.setAttribute("visibility", points ? "visible" : "hidden");
      if (points) [one.cx.baseVal.value, one.cy.baseVal.value] = points[0];
    }
  };
  const named = (line, at) => html(
    "span", {}, svg("svg", { viewBox: "0 0 30 8", width: 30, height: 8, "aria-hidden": "true" }, svg("path", { d: "M0 4H30", ...look(line, at) })), html("i"));
  let made = "";
  return {
    node: html("div", { class: "live-chart" }, node, legend),
    across, axis, drawing: node, frame: { left, right: width - right, top, bottom: height - bottom },
    /* The height of a value, at most a little outside of the frame. */
    up: (value) => Math.min(Math.max(up(value), -height), 2 * height),
    /* Always as many lines, each with its role; a line with a `name` stands in the legend. One that is
       `faint` steps back, and has no ghost. */
    set(list, { step = 0 } = {}) {
      const shape = list.map(({ role, points }) => `${role}${points.length > 1}`).join();
      if (shape !== made) {
        ghosts.replaceChildren(...list.map(make));
        curves.replaceChildren(...list.map(make));
        legend.replaceChildren(...list.map((line, at) => (line.name ? named(line, at) : null)).filter(Boolean));
        made = shape;
      }
      list.filter(({ name }) => name).forEach(({ name }, at) => write(legend.children[at].lastChild, name));
      for (const layer of [curves, ghosts])
        list.forEach(({ faint = false }, at) => layer.children[at].classList.toggle("live-faint", faint));
      const placed = (lines) => lines?.map((points) => points.map(([px, py]) => [across(px), this.up(py)]));
      const given = list.map(({ points }) => points);
      const to = placed(given);
      shares.set(to, given);
      let was;
      Live.tween(curves, to, (now, before) => {
        now.forEach((points, at) => put(curves.children[at], points));
        was ??= placed(shares.get(before));
        to.forEach((_, at) => put(ghosts.children[at], was?.[at]));
      }, { step });
    },
  };
}

/* Names beside lines: heights that are at least so far apart, in their order, and within the chart. */
function apart(heights, least, low, high) {
  const order = heights.map((_, n) => n).sort((a, b) => heights[a] - heights[b]);
  const placed = [...heights];
  order.forEach((n, at) => { placed[n] = Math.max(placed[n], at ? placed[order[at - 1]] + least : low); });
  order.toReversed().forEach((n, at, back) => { placed[n] = Math.min(placed[n], at ? placed[back[at - 1]] - least : high); });
  return placed;
}

Object.assign(Live.part, {
  apart, player, dashes: DASHES, columns, titled, drawing, numbers, bars, tokens, heat, lines, fit, write,
  visible, short, sign, named, percent, strongest, fitted, arrows: ARROWS,
});
})();
