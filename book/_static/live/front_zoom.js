"use strict";
/* The figure of the front page: how one head of an attention comes from scores to shares to a mixture.
   A vector is drawn as a row of bars, up where it is positive, and down where it is negative. */
(() => {
const { FIRST, strongest, upTo } = Live.front;

/* Columns, in px of a picture that is 684 or 316 wide. */
const WIDE = { of: 684, cell: 6, key: 40, query: 122, bar: [208, 288], score: 338, share: [354, 426], percent: 466, value: 480, mix: 606, maps: 598 };
const NARROW = { of: 316, cell: 3, key: 26, query: 54, bar: [84, 118], score: 156, share: [162, 196], percent: 232, value: 240, mix: 290 };

function zoom({ svg, colour, number }, where, found, onhead) {
  const { width, narrow, pitch, bottom, y } = where, { look, heads, head, first, at, tokens, attention, layer } = found;
  const plan = narrow ? NARROW : WIDE, f = width / plan.of, cells = narrow ? 8 : FIRST, cell = plan.cell * f;
  const rows = found.lengths.length, own = at - first, weights = heads[head];
  const all = (make) => Array.from({ length: rows }, (_, row) => make(row));
  const group = (more, ...children) => svg("g", more, ...children);
  const words = (text, x, py, more) => svg("text", { x: x * f, y: py, text, class: "live-tick", ...more });
  const end = { "text-anchor": "end" };
  const largest = (vectors) => Math.max(1e-9, ...vectors.flatMap((vector) => vector.slice(0, cells).map(Math.abs)));
  const strip = (vector, x, py, most, role) => group({}, svg("path", { d: `M${x * f} ${py}h${cells * cell}`, class: "live-gridline" }), svg("path", {
    d: vector.slice(0, cells).map((value, n) => `M${(x * f + (n + 0.5) * cell).toFixed(1)} ${py}v${((-value / most) * 0.46 * pitch).toFixed(1)}`).join(""),
    stroke: colour(role), "stroke-width": Math.max(2, cell - 1.2),
  }));
  const frame = (x, py, role) => svg("rect", {
    x: x * f - 3, y: py - pitch / 2, width: cells * cell + 6, height: pitch, rx: 3, class: "front-asks", stroke: colour(role),
  });

  // The letter that the line below the picture spells out: the one with the largest share, or what is hidden.
  const [[most]] = strongest(weights);
  const mark = svg("rect", { x: where.left, width: (plan.value - 4) * f - where.left, height: pitch, class: "front-mark" });

  const keys = group({}, ...all((row) => strip(look.keys[row], plan.key, y(row), largest(look.keys), "key")));
  const query = group({},
    strip(look.query, plan.query, 0, largest([look.query]), "query"),
    frame(plan.query, 0, "query"));
  const middle = plan.query * f + (cells * cell) / 2; // with each key, one after the other
  const past = svg("path", { d: `M${middle} ${y(0) - pitch / 2}V${y(own)}`, class: "front-past" });

  const shown = look.raw.slice(first), low = Math.min(0, ...shown), high = Math.max(0, ...shown);
  const long = ((plan.bar[1] - plan.bar[0]) * f) / (high - low || 1), zero = plan.bar[0] * f - low * long;
  const bars = all((row) => svg("rect", { y: y(row) - pitch * 0.3, height: pitch * 0.6, fill: colour("plain") }));
  const scores = all((row) => words("", plan.score, y(row) + 4.5, end));
  const cross = (row) => svg("path", {
    d: `M${plan.bar[0] * f} ${y(row)}H${plan.score * f - 26}M${plan.bar[0] * f + 8} ${y(row) - 6}l12 12m0 -12l-12 12`, class: "front-cross",
  });
  const hidden = group({}, ...all((row) => (row > own ? cross(row) : null)), cross(rows),
    words("?", (where.x[0] - 3) / 2 / f, y(rows) + 4.5, { "text-anchor": "middle" }), words("−∞", plan.score, y(rows) + 4.5, end));

  const wide = (plan.share[1] - plan.share[0]) * f;
  const shares = all((row) => svg("rect", { x: plan.share[0] * f, y: y(row) - pitch * 0.34, height: pitch * 0.68, rx: 2, fill: colour("weight") }));
  const percents = group({}, ...all((row) => words(`${number(100 * weights[first + row], 0)}%`, plan.percent, y(row) + 4.5, { ...end, class: "live-tick front-percent" })));

  const tall = largest(look.values), slot = y(rows);
  const values = group({}, ...all((row) => strip(look.values[row], plan.value, y(row), tall, "value")));
  values.childNodes.forEach((node, row) => { node.style.opacity = 0.25 + 0.75 * weights[first + row]; });
  const from = plan.value * f + cells * cell + 3, to = plan.mix * f - 5, bend = (to - from) / 2;
  const flows = group({ class: "front-links" }, ...all((row) => (weights[first + row] < 0.005 ? null : svg("path", {
    d: `M${from} ${y(row)}C${from + bend} ${y(row)} ${to - bend} ${slot} ${to} ${slot}`, pathLength: 1,
    stroke: colour("value"), "stroke-width": 1 + 8 * weights[first + row], opacity: 0.3 + 0.6 * weights[first + row],
  }))));
  const mixture = group({}, strip(look.mixture, plan.mix, slot, tall, "weight"), frame(plan.mix, slot, "weight"), words("mixture", plan.of - 2, bottom + 17, end));

  // All heads beside each other, and the average that the lanes show.
  const mean = attention[layer][own];
  const map = (line, n) => {
    const x = (plan.maps + n * 8.6 + (n === heads.length ? 6 : 0)) * f;
    return group({ class: n === head ? "front-map front-chosen" : "front-map", onclick: () => n < heads.length && onhead(n) },
      svg("rect", { x, y: y(0) - pitch / 2, width: 8.2 * f, height: pitch * rows, class: "front-frame" }),
      ...all((row) => svg("rect", { x: x + 1, y: y(row) - pitch / 2 + 1, width: 8.2 * f - 2, height: pitch - 2, fill: colour("weight"), "fill-opacity": Math.min(1, line[first + row]).toFixed(3) })));
  };
  const above = y(0) - pitch / 2 - 7;
  const maps = narrow ? null : group({}, ...[...heads, mean].map(map), words("heads", plan.maps, above), words("mean", plan.of, above, end));

  const [scoreName, ...names] = [words("", plan.score, above, end), words("softmax", plan.percent, above, end), words("value", plan.value, above)];
  const titles = group({}, words("key", plan.key - (narrow ? 5 : 0), above), words("query", plan.query - 1, above), scoreName, ...names);
  const steps = [[0, 1, 2], [2], [2], [3], [4]]; // what each step is about
  const node = group({ class: "front-zoom" }, mark, titles, past, keys, query, ...bars, ...scores, hidden, ...shares, percents, values, flows, mixture, maps);
  past.setAttribute("pathLength", 1);
  const reveal = (one, share) => { if (one) one.style.opacity = share; };

  /* c: how many of the five steps are done. */
  function pose(c) {
    const [seen, scaled, masked, shared, mixed] = [0, 1, 2, 3, 4].map((n) => upTo(0, c - n, 1));
    const step = Math.round(c);
    titles.childNodes.forEach((title, n) => title.classList.toggle("front-now", steps[Math.max(1, step) - 1].includes(n)));
    scoreName.textContent = ["score", "score", `÷ √${look.width}`, "mask"][Math.min(3, step)];
    mark.setAttribute("y", y(step === 3 ? own + 1 : Math.max(0, most - first)) - pitch / 2);
    mark.style.opacity = most < first && step !== 3 ? 0 : upTo(0, c * 3, 1);
    past.style.strokeDashoffset = 1 - seen;
    query.setAttribute("transform", `translate(0 ${y(0) + (y(own) - y(0)) * seen})`);
    all((row) => {
      const here = own ? upTo(0, seen * (rows + 1) - row, 1) : seen, isHidden = row > own;
      const raw = look.raw[first + row], score = raw + (look.scores[first + row] - raw) * scaled;
      bars[row].setAttribute("x", zero + Math.min(0, score * long));
      bars[row].setAttribute("width", Math.abs(score * long));
      bars[row].style.opacity = here * (isHidden ? 1 - 0.85 * masked : 1) * (1 - 0.6 * shared);
      scores[row].textContent = isHidden && masked > 0.5 ? "−∞" : number(score, 1);
      scores[row].style.opacity = here;
      shares[row].setAttribute("width", wide * weights[first + row] * shared);
    });
    for (const one of [keys, query, past]) reveal(one, 1 - 0.6 * shared);
    reveal(hidden, masked);
    reveal(percents, shared);
    reveal(names[0], shared);
    reveal(maps, shared);
    for (const one of [values, mixture, names[1]]) reveal(one, mixed);
    flows.style.strokeDashoffset = 1 - mixed;
    flows.style.display = mixed ? "" : "none";
  }
  return { node, pose };
}

Object.assign(Live.front, { zoom });
})();
