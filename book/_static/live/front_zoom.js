"use strict";
/* The figure of the front page: how one head of an attention comes from scores to shares to a mixture, and
   what all heads then write; what the units of a feed-forward do; and why a write lifts a letter.
   A vector is drawn as a row of bars, up where it is positive, and down where it is negative. */
(() => {
const { FIRST, TOPS, strongest, upTo, seenAt, sign, percent, sumOf, signed, partingHead, caption, END, MIDDLE } = Live.front;

const sum = (list) => list.reduce((all, one) => all + one, 0);

/* A vector as bars, larger than between the lanes. */
const bars_ = ({ svg, colour }, vector, x, py, side, role, tall = 24) => {
  const most = Math.max(1e-9, ...vector.map(Math.abs));
  return svg("g", {}, svg("path", { d: `M${x} ${py}h${vector.length * side}`, class: "live-gridline" }), svg("path", {
    d: vector.map((value, n) => `M${(x + (n + 0.5) * side).toFixed(1)} ${py}v${((-tall * value) / most).toFixed(1)}`).join(""),
    stroke: colour(role), "stroke-width": Math.max(1, side - 1.2),
  }));
};

/* Numbers as cells: blue above zero, orange below, in six shades. */
function shades({ svg, colour }, list, side, most = Math.max(1e-9, ...list.map(([, , value]) => Math.abs(value))), tall = side) {
  const levels = {};
  for (const [x, y, value] of list) (levels[Math.sign(value) * Math.ceil((6 * Math.abs(value)) / most)] ??= []).push(`M${x.toFixed(1)} ${y.toFixed(1)}h${side}v${tall}h${-side}z`);
  return Object.entries(levels).map(([level, d]) => svg("path", { d: d.join(""), style: `fill: ${colour(level < 0 ? "key" : "query")}; fill-opacity: ${Math.max(0.06, Math.abs(level) / 6).toFixed(2)}` }));
}

/* Columns, in px of a picture that is 684 or 316 wide. */
const WIDE = { of: 684, cell: 6, key: 40, query: 122, bar: [208, 288], score: 338, share: [354, 426], percent: 466, value: 480, mix: 606, maps: 598 };
const NARROW = { of: 316, cell: 3, key: 26, query: 54, bar: [84, 118], score: 156, share: [162, 196], percent: 232, value: 240, mix: 286 };

/* Tables that follow each other in one place: none comes before the last one is gone. */
const inTurn = (tables) => (c) => tables.forEach(([node, from, to = from]) => {
  const seen = seenAt(c, from, to);
  node.style.opacity = seen;
  node.style.visibility = seen ? "" : "hidden";
});

/* What the parts of a write do, with bars: by how much each raises or lowers the score of the letter that the lane
   answers in the end, and of a rival. A part has a name, the first numbers of what it writes, and its effects. Below
   them stands how the score came about: as the last table left it, what the norm of the new lane makes of that, all parts
   together, and the sum, which the bars beside show. Of the two scores only the difference counts for these: it comes third. */
function written({ svg, colour, number }, { width, narrow, top, bottom }, { rivals, held, before, sizes, stage, first, at }, those, all, chosen, onpick) {
  const total = rivals.map((_, of) => sum(those.map(({ effects }) => effects[of])));
  const [was, is] = sizes[at - first].slice(stage - 2, stage), last = those.length + 3;
  const parts = [...those, { label: narrow ? "before" : "score before", effects: before },
    { label: narrow ? `÷ ${number(is)}` : `lane ${is < was ? "shrank" : "grew"}: ÷ ${number(is)}, not ${number(was)}`, effects: held },
    { label: `+ all${narrow ? "" : ` ${all}`}`, effects: total }, { label: narrow ? "now" : "score now", effects: total.map((one, of) => one + held[of]) }]
    .map((part) => ({ ...part, effects: [...part.effects, part.effects[0] - part.effects[1]] }));
  const isDrawn = (n) => !narrow && (n < those.length || n === last - 1); // with a bar
  const f = width / (narrow ? NARROW : WIDE).of;
  const step = (bottom - top - 34) / parts.length, middle = (n) => top + 34 + (n + 0.5) * step;
  const words = caption(svg, f);
  const [name, columns, half, ends] = narrow ? [28, [], 0, [118, 166, 214]] : [58, [238, 340, 442], 22, [310, 412, 514]]; // px of the picture
  const most = Math.max(1e-9, ...parts.filter((_, n) => isDrawn(n)).flatMap(({ effects }) => effects.map(Math.abs)));
  const roles = ["weight", "muted", "plain"];
  const bars = [];
  const effect = (n, column, value) => {
    const text = words(signed(value), ends[column], middle(n) + 4.5, { ...END, class: `live-tick front-effect${n === last ? " front-now" : ""}` });
    if (!isDrawn(n)) return text;
    const zero = columns[column] * f, bar = svg("rect", { y: middle(n) - 7, height: 14, rx: 2, fill: colour(roles[column]) });
    bars.push({ bar, zero, long: (half * f * value) / most });
    return svg("g", {}, svg("path", { d: `M${zero} ${middle(n) - step / 2}v${step}`, class: "live-gridline" }), bar, text);
  };
  const rows = parts.map(({ label, write, effects }, n) => svg("g", onpick && write ? { class: "front-row", onclick: () => onpick(n) } : {},
    write && svg("rect", { x: (name - 6) * f, y: middle(n) - step / 2 + 1, width: (ends[2] - name + 10) * f, height: step - 2, rx: 3, class: n === chosen ? "front-mark" : "front-room" }),
    words(label, name, middle(n) + 4.5, { class: n === chosen || n === last ? "live-tick front-now" : "live-tick" }),
    narrow || !write ? null : bars_({ svg, colour }, write, 122 * f, middle(n), 6 * f, "value", Math.min(14, step / 2 - 3)),
    ...effects.map((value, column) => effect(n, column, value))));
  const under = [those.length, last].map((n) => svg("path", { d: `M${(name - 6) * f} ${middle(n) - step / 2}H${(ends[2] + 4) * f}`, class: "live-gridline" }));
  const [answer, rival] = rivals.map(sign);
  const titles = [`${narrow ? "" : "answer "}${answer}`, `${narrow ? "" : "rival "}${rival}`, `${answer} − ${rival}`].map((text, n) => words(text, ends[n], top + 26, { ...END, class: "live-tick front-rival", style: `fill: ${colour(roles[n])}` }));
  const above = narrow ? [words("lifts or lowers the score (above the mean) of", name, top + 6)]
    : [words(`its write: first ${FIRST}`, 122, top + 26), words("lifts or lowers the score (above the mean) of", ends[1], top + 6, END)];
  const node = svg("g", {}, ...above, ...titles, ...rows, ...under);
  return { node, pose: (share) => bars.forEach(({ bar, zero, long }) => {
    bar.setAttribute("x", zero + Math.min(0, long * share));
    bar.setAttribute("width", Math.abs(long * share));
  }) };
}

/* Why a write lifts a letter: all its numbers, those of the letter's vector below them, and their products; the
   largest of these in numbers, their sum, and what the final norm makes of it. On a wide page the rival, too. */
function lifts({ svg, colour, number }, { width, narrow, top }, { rivals, lift: { write, vectors, size, sums, tops } }, whose) {
  const words = caption(svg), left = narrow ? 28 : 48, side = (width - left) / write.length;
  const [gap, tall, high] = narrow ? [34, 11, 14] : [42, 15, 20];
  const row = (n) => top + 12 + n * gap;
  const title = (text, n) => words(text, left, row(n), { class: "live-tick live-halo" });
  const strip = (vector, n) => shades({ svg, colour }, vector.map((one, i) => [left + i * side, row(n) + 6, one]), Number((0.9 * side).toFixed(2)), undefined, tall);
  const products = write.map((one, i) => one * vectors[0][i]), zero = row(2) + 8 + high;
  const guides = tops[0].map(([n]) => `M${(left + (n - 0.5) * side).toFixed(1)} ${row(0) + 6}V${zero + high}`);
  const answer = sign(rivals[0]);
  const step = narrow ? 16.5 : 19, start = zero + high + (narrow ? 20 : 28), line = (n) => start + n * step;
  const table = (of, x) => {
    const [w, v, p] = narrow ? [110, 190, 260] : [134, 212, 270], rest = sums[of] - sum(tops[of].map(([, , , one]) => one));
    const cells = (n, label, values, look = "") => [words(label, x, line(n), { class: `live-tick ${look}` }),
      ...values.map((one, k) => words(one, x + [p, v, w][k], line(n), { ...END, class: `live-tick front-amount ${look}` }))];
    const name = sign(rivals[of]), role = of ? "muted" : "weight";
    return svg("g", {},
      words(narrow ? "largest" : `${of ? "rival" : "answer"} ${name}: largest`, x, line(0)), words("write", x + w, line(0), END),
      words(`× vector ${name}`, x + v, line(0), { ...END, class: "live-tick front-rival", style: `fill: ${colour(role)}` }), words("=", x + p, line(0), END),
      ...tops[of].flatMap(([n, one, other, product], k) => cells(k + 1, `number ${n}`, [signed(product), number(other), number(one)])),
      ...cells(TOPS + 1, `the other ${write.length - TOPS}`, [signed(rest)]),
      svg("path", { d: `M${x} ${line(TOPS + 1) + 5}H${x + p}`, class: "live-gridline" }),
      ...cells(TOPS + 2, "sum", [signed(sums[of])]),
      ...cells(TOPS + 3, `÷ ${number(size)}${narrow ? "" : ", the lane’s size"} (final norm)`, [signed(sums[of] / size)], "front-now"));
  };
  return svg("g", { class: "front-lifts" },
    svg("path", { d: guides.join(""), class: "front-guide" }),
    title(narrow ? `${whose} writes: blue above 0, orange below` : `${whose} writes ${write.length} numbers: blue above 0, orange below`, 0), ...strip(write, 0),
    title(narrow ? `vector of ${answer}, its row of the output table` : `vector of ${answer}: its row of the output table, above the mean row, times the final norm’s weights`, 1), ...strip(vectors[0], 1),
    title(narrow ? "their products: up lifts, down lowers" : `their products: up lifts ${answer}, down lowers it; dotted lines lead to the largest`, 2),
    bars_({ svg, colour }, products, left, zero, side, "weight", high),
    table(0, left), narrow ? null : table(1, width - 270));
}

function zoom({ svg, colour, number }, where, found, onhead) {
  const { width, narrow, pitch, bottom, y } = where, { look, heads, head, first, at, tokens, attention, layer } = found;
  const plan = narrow ? NARROW : WIDE, f = width / plan.of, cells = narrow ? 8 : FIRST, cell = plan.cell * f;
  const rows = found.sizes.length, own = at - first, weights = heads[head];
  const all = (make) => Array.from({ length: rows }, (_, row) => make(row));
  const group = svg.bind(null, "g");
  const words = caption(svg, f);
  const largest = (vectors) => Math.max(1e-9, ...vectors.flatMap((vector) => vector.slice(0, cells).map(Math.abs)));
  const strip = (vector, x, py, most, role) => group({}, svg("path", { d: `M${x * f} ${py}h${cells * cell}`, class: "live-gridline" }), svg("path", {
    d: vector.slice(0, cells).map((value, n) => `M${(x * f + (n + 0.5) * cell).toFixed(1)} ${py}v${((-value / most) * 0.46 * pitch).toFixed(1)}`).join(""),
    stroke: colour(role), "stroke-width": Math.max(2, cell - 1.2),
  }));
  const frame = (x, py, role) => svg("rect", {
    x: x * f - 3, y: py - pitch / 2, width: cells * cell + 6, height: pitch, rx: 3, class: "front-asks", stroke: colour(role),
  });

  // Where query, key and value come from: the lane of the chosen letter times three tables.
  const born = group({}), [left, table, right] = (narrow ? [28, 108, 212] : [48, 196, 330]).map((x) => x * f), side = narrow ? 6 : 7;
  const line = (row) => where.top + (row + 0.5) * pitch, own_ = line(8.5); // in the same place, however many letters there are
  const strip_ = (vector, x, py, role) => bars_({ svg, colour }, vector.slice(0, cells), x, py, side, role);
  born.append(strip_(look.x, left, own_, "plain"), words(`lane of ${sign(tokens[at])}`, left / f, own_ - 40), words("after a norm", left / f, own_ + 46));
  if (head === partingHead(look.effects)) born.append(words(`of all heads, head ${head + 1} lifts ${found.rivals.map(sign).join(" most above ")}`, left / f, line(18)));
  ["query", "key", "value"].forEach((role, n) => {
    const py = line(2.5 + 6 * n), [start, end_] = [left + cells * side + 6, table - 8], half = (start + end_) / 2, box = (cells * side) / 2;
    const tile = look.tables[n].slice(0, cells).flatMap((line, i) => line.slice(0, cells).map((w, j) => [table + j * side, py - box + i * side, w]));
    const first_ = `${sumOf([0, 1].map((i) => [look.x[i], look.tables[n][0][i]]))} = ${number(look.made[n][0])}`;
    born.append(
      svg("path", { d: `M${start} ${own_}C${half} ${own_} ${half} ${py} ${end_} ${py}`, stroke: colour("muted"), "stroke-opacity": 0.6, "stroke-width": 1.5 }),
      ...shades({ svg, colour }, tile, side - 0.6), svg("rect", { x: table - 2, y: py - box - 2, width: 2 * box + 3, height: 2 * box + 3, rx: 3, class: "front-asks", stroke: colour(role) }),
      words(`× ${role} table`, table / f, py - box - 8), words("=", (right - 18) / f, py + 5),
      strip_(look.made[n], right, py, role), svg("text", { x: right, y: py - 30, text: role, class: "front-role", style: `fill: ${colour(role)}` }),
      ...(narrow ? [] : [words(`${look.width} numbers; the first:`, right / f + 94, py - 8), words(first_, right / f + 94, py + 11)]));
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
  const scores = all((row) => words("", plan.score, y(row) + 4.5, END));
  const cross = (row) => svg("path", {
    d: `M${plan.bar[0] * f} ${y(row)}H${plan.score * f - 26}M${plan.bar[0] * f + 8} ${y(row) - 6}l12 12m0 -12l-12 12`, class: "front-cross",
  });
  const hidden = group({}, ...all((row) => (row > own ? cross(row) : null)), cross(rows),
    words("?", (where.x[0] - 3) / 2 / f, y(rows) + 4.5, MIDDLE), words("−∞", plan.score, y(rows) + 4.5, END));

  const wide = (plan.share[1] - plan.share[0]) * f;
  const shares = all((row) => svg("rect", { x: plan.share[0] * f, y: y(row) - pitch * 0.34, height: pitch * 0.68, rx: 2, fill: colour("weight") }));
  const percents = group({}, ...all((row) => words(percent(weights[first + row]), plan.percent, y(row) + 4.5, { ...END, class: "live-tick front-percent" })));

  const tall = largest(look.values), slot = y(rows);
  const values = group({}, ...all((row) => strip(look.values[row], plan.value, y(row), tall, "value")));
  values.childNodes.forEach((node, row) => { node.style.opacity = 0.25 + 0.75 * weights[first + row]; });
  const from = plan.value * f + cells * cell + 3, to = plan.mix * f - 5, bend = (to - from) / 2;
  const flows = group({ class: "front-links" }, ...all((row) => (weights[first + row] < 0.005 ? null : svg("path", {
    d: `M${from} ${y(row)}C${from + bend} ${y(row)} ${to - bend} ${slot} ${to} ${slot}`, pathLength: 1,
    stroke: colour("value"), "stroke-width": 1 + 8 * weights[first + row], opacity: 0.3 + 0.6 * weights[first + row],
  }))));
  const mixture = group({}, strip(look.mixtures[head], plan.mix, slot, tall, "weight"), frame(plan.mix, slot, "weight"), words("mixture", plan.of - 2, bottom + 17, END));

  // All heads beside each other, and the average that the lanes show.
  const mean = attention[layer][own];
  const map = (line, n) => {
    const x = (plan.maps + n * 8.6 + (n === heads.length ? 6 : 0)) * f;
    return group({ class: n === head ? "front-map front-chosen" : "front-map", onclick: () => n < heads.length && onhead(n) },
      svg("rect", { x, y: y(0) - pitch / 2, width: 8.2 * f, height: pitch * rows, class: "front-frame" }),
      ...all((row) => svg("rect", { x: x + 1, y: y(row) - pitch / 2 + 1, width: 8.2 * f - 2, height: pitch - 2, fill: colour("weight"), "fill-opacity": Math.min(1, line[first + row]).toFixed(3) })));
  };
  const above = y(0) - pitch / 2 - 7;
  const maps = narrow ? null : group({}, ...[...heads, mean].map(map), words("heads", plan.maps, above), words("mean", plan.of, above, END));

  const [scoreName, ...names] = [words("", plan.score, above, END), words("softmax", plan.percent, above, END), words("value", plan.value, above)];
  const titles = group({}, words("key", plan.key - (narrow ? 5 : 0), above), words("query", plan.query - 1, above), scoreName, ...names);
  const steps = [[], [0, 1, 2], [2], [2], [3], [3, 4], [], []]; // what each step is about
  const whole = group({}, mark, titles, past, keys, query, ...bars, ...scores, hidden, ...shares, percents, values, flows, mixture, maps);
  const parts = heads.map((_, n) => ({ label: narrow ? n + 1 : `head ${n + 1}`, write: look.writes[n], effects: look.effects.map((each) => each[n]) }));
  const wrote_ = written({ svg, colour, number }, where, found, parts, heads.length, head, onhead);
  const why = lifts({ svg, colour, number }, where, found, `head ${head + 1}`);
  const turn = inTurn([[born, 1], [whole, 2, 6], [wrote_.node, 7], [why, 8]]);
  const node = group({ class: "front-zoom" }, born, whole, wrote_.node, why);
  const scoreNames = ["score", "score", `${narrow ? "" : "score "}÷ √${look.width}`, narrow ? "masked" : "masked score", narrow ? "scaled" : "scaled score"];
  past.setAttribute("pathLength", 1);
  const reveal = (one, share) => { if (one) one.style.opacity = share; };

  /* c: how many of the steps are done. */
  function pose(c) {
    const [seen, scaled, masked, shared, mixed] = [1, 2, 3, 4, 5].map((n) => upTo(0, n > 1 ? c - n : (c - 1.4) / 0.6, 1)); // the first table must have gone
    const step = Math.round(c);
    turn(c);
    wrote_.pose(upTo(0, 2 * c - 13, 1));
    titles.childNodes.forEach((title, n) => title.classList.toggle("front-now", steps[Math.max(1, step) - 1].includes(n)));
    scoreName.textContent = scoreNames[upTo(0, step - 1, 4)];
    names[0].textContent = step < 6 ? "softmax" : "share";
    mark.setAttribute("y", y(step === 4 ? own + 1 : Math.max(0, most - first)) - pitch / 2);
    mark.style.opacity = most < first && step !== 4 ? 0 : 1;
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

/* Where the names of marked cells stand, their middles: beside, below or above each, on none of the others. */
function besides(cells, side, right) {
  const taken = cells.map(([x, y]) => [x + side / 2, y + side / 2]);
  const [across, down] = [side / 2 + 8, side / 2 + 9]; // px to the middle of a name
  const isFree = ([x, y]) => x < right && taken.every(([px, py]) => Math.abs(x - px) > across - 1 || Math.abs(y - py) > down - 1);
  return taken.slice().map(([x, y]) => {
    const places = [[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1], [1, -1], [-1, -1]].map(([dx, dy]) => [x + dx * across, y + dy * down]);
    const place = places.find(isFree) || places[0];
    taken.push(place);
    return place;
  });
}

/* The units of a feed-forward as cells, in the colour of what they do to the answer; those that do most by name, with
   what their gates let through. */
function asked({ svg, colour, number }, { width, narrow, top }, { units, tokens, at, inner, rivals }) {
  const cells = narrow ? 8 : FIRST, columns = narrow ? 32 : 43, side = narrow ? 5.4 : 8, lines = Math.ceil(inner / columns), c = narrow ? 4.5 : 7;
  const [left, grid, high] = narrow ? [28, 78, top + 30] : [48, 168 * (width / 684), top + 44], foot = high + lines * side, middle = (high + foot) / 2;
  const words = caption(svg), [effects] = units.effects, answer = sign(rivals[0]);
  const place = (n) => [grid + (n % columns) * side, high + Math.floor(n / columns) * side];
  const most = Math.max(1e-9, ...effects.map(Math.abs));
  const shade = effects.map((one, n) => [...place(n), Math.sign(one) * Math.sqrt(Math.abs(one) / most)]);
  const into = `M${left + cells * c + 4} ${middle}H${grid - 5}m-5 -4l5 4l-5 4`;
  const names = besides(units.busy.map(([n]) => place(n - 1)), side, grid + columns * side);
  const rings = units.busy.map(([n], at_) => {
    const [x, py] = place(n - 1), [middle_, high_] = names[at_];
    return svg("g", {}, svg("rect", { x: x - 1.5, y: py - 1.5, width: side + 2, height: side + 2, class: "front-asks", stroke: colour("plain") }),
      words(at_ + 1, middle_, high_ + 4.5, { class: "live-tick front-percent live-halo", ...MIDDLE }));
  });
  const [step, x, ends] = narrow ? [17, left, [126, 186, 240, width - 2]] : [21, grid, [150, 236, 336, 430].map((one) => one + grid)];
  const row = (n) => foot + (narrow ? 26 : 30) + step * n;
  const silu = (score) => score / (1 + Math.exp(-score));
  const heads = [narrow ? "gate" : "gate: it answers", "× number", narrow ? "= says" : "= the unit says", `adds to ${answer}`];
  const list = units.busy.map(([unit, score, beside, says], n) => svg("g", {}, words(`${n + 1}: unit ${unit}`, x, row(n + 1)),
    ...[number(silu(score)), number(beside), number(says), signed(effects[unit - 1])].map((text, k) => words(text, ends[k], row(n + 1), { ...END, class: `live-tick front-amount${k > 2 ? " front-now" : ""}` }))));
  return svg("g", {}, bars_({ svg, colour }, units.x.slice(0, cells), left, middle, c, "plain"), words(narrow ? "lane" : `lane of ${sign(tokens[at])}`, left, middle - 34),
    svg("path", { d: into, stroke: colour("muted") }),
    words(narrow ? `${inner} units: blue lifts ${answer}, orange lowers it` : `${inner} units, one cell each: blue lifts the score of ${answer}, orange lowers it, pale does little`, narrow ? left : grid, high - 10),
    ...shades({ svg, colour }, shade, side - 1, 1), ...rings, ...heads.map((text, k) => words(text, ends[k], row(0), END)), ...list);
}

function deep({ svg, colour, number }, where, found) {
  const { units: { busy, writes, effects }, inner } = found, { narrow } = where;
  const parts = busy.map(([unit], n) => ({ label: narrow ? unit : `unit ${unit}`, write: writes[n], effects: effects.map((each) => each[unit - 1]) }));
  const rest = effects.map((each, of) => sum(each) - sum(parts.map((part) => part.effects[of])));
  const first = asked({ svg, colour, number }, where, found), why = lifts({ svg, colour, number }, where, found, "the feed-forward");
  const wrote = written({ svg, colour, number }, where, found, [...parts, { label: narrow ? "rest" : `${inner - busy.length} others`, effects: rest }], inner, 0);
  const turn = inTurn([[first, 1], [wrote.node, 2], [why, 3]]);
  return { node: svg("g", { class: "front-zoom front-deep" }, first, wrote.node, why), pose(c) {
    turn(c);
    wrote.pose(upTo(0, 2 * c - 3, 1));
  } };
}

Object.assign(Live.front, { zoom, deep, besides });
})();
