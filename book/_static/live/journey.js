"use strict";
/* The whole model in one picture. Boxes and formulas come from `journey_data.js`, which the library's
   trace wrote; this file evaluates them, draws the boxes, and says what each one does. */
(() => {
const { sizes: LETTERS, words, boxes, orders, models, presets, number: travelling } = Live.journey;
const NUMBERS = "numbers"; // the model through which a real number travels
const { html, svg, colour, soft } = Live.part;
const WORDS = ["", " thousand", " million", " billion", " trillion"];
const FLOPS = ["", "k", "M", "G", "T", "P"].map((unit) => ` ${unit}FLOPs`);
const ROLES = { attention: "query", cross_attention: "key", feed_forward: "value", output: "weight" };
const ABOUT = { // what a box does; chapters; the module with its code
  tokens: ["Looks up a learned vector for each token id.", "02b_embeddings", "layers.embeddings"],
  positions: ["Adds a vector that says where each token stands.", "07_positions", "layers.positions"],
  segments: ["Adds a vector that says which text a token is from.", "02b_embeddings", "layers.embeddings"],
  patches: ["Cuts the image into squares, a vector for each.", "18b_beyond_text", "layers.embeddings"],
  class_token: ["Puts a learned vector in front, to speak for the image.", "18b_beyond_text", "models.language_models"],
  bias: ["A learned number for each head and range of distances.", "07_positions", "layers.positions"],
  attention: ["Each position asks all of them and takes a weighted mean of their values, in H heads.",
    "03_attention 06_heads", "layers.attention"],
  masked: ["Each position asks itself and the earlier ones, in H heads; the future is masked.",
    "05_masks 06_heads", "layers.attention"],
  cross_attention: ["Queries from the decoder; keys and values from the encoder’s result, the memory.",
    "12_decoder", "layers.attention"],
  feed_forward: ["Works on each position alone: expand, bend, contract.", "08_feedforward", "layers.feedforward"],
  add: ["Adds what the sublayer found to the stream that flowed past it.", "10_residuals", "models.blocks"],
  norm: ["Normalises each vector (see chapter 9), then rescales its features.",
    "09_norms 09b_before_or_after", "layers.norms"],
  output: ["Scores every token of the vocabulary as the next one.", "12_decoder 13_transformer", "models.language_models"],
  pooler: ["Makes one vector for the text from that of its first token.", "15b_objectives", "models.language_models"],
  classifier: ["Scores every class from the class token’s vector.", "18b_beyond_text", "models.language_models"],
};

// Numbers ----

const factor = (text, sizes) => (text.endsWith("²") ? sizes[text.slice(0, -1)] ** 2 : sizes[text] ?? Number(text));
const product = (text, sizes) => text.split("·").reduce((all, one) => all * factor(one, sizes), 1);
const evaluate = (formula, sizes) =>
  formula ? formula.split(" + ").reduce((sum, term) => sum + product(term, sizes), 0) : 0;
const whole = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const inNumbers = (shape, sizes) => shape.replace(/[A-Z\d][^ ]*/g, (one) => whole(product(one, sizes)))
  .replace(/(\d) (?=\d)/g, "$1 × ");

/* The boxes of a preset in the order in which they run. */
function partsOf(preset) {
  const [order, ...numbers] = models[presets[preset][1]];
  const parts = [];
  let [tower, stage] = ["", ""];
  for (const name of orders[order].split(" ")) {
    if (/coder$/.test(name)) tower = name;
    else if (/^(in|block|out)$/.test(name)) stage = name;
    else {
      const [label, from, to, parameters, flops, steps] = boxes[numbers[parts.length]].split("|");
      parts.push({ id: `${tower}.${name}`, tower, stage, name, label, from, to, parameters, flops, steps });
    }
  }
  return parts;
}

/* A number for each letter: one sequence, source as long as target, as long as there is room for. The number
   that travels has its own letters, and what is written behind the start. */
function sizesOf({ preset, T }) {
  const [, , ...numbers] = presets[preset];
  const sizes = Object.fromEntries(LETTERS.split(" ").map((letter, at) => [letter, numbers[at]]));
  const length = sizes.I ? sizes.M : Math.min(T, sizes.M);
  if (preset === NUMBERS) return { ...sizes, B: 1, T: travelling.written.length + 1, S: travelling.source.length };
  return { ...sizes, B: 1, T: length, S: length };
}

/* What the letters of shapes and formulas stand for; a figure names those that its model has. */
const MEANINGS = {
  B: "sequences", S: "source tokens", T: "tokens", D: "width", H: "heads", G: "heads of keys and values", Dk: "width of a head",
  F: "inner width", V: "vocabulary", M: "longest text", N: "patches", P: "numbers in a patch", C: "classes", I: "pixels across",
};
function lettersOf(parts) {
  const used = parts.map(({ from, to, parameters, flops, steps }) => [from, to, parameters, flops, steps.replace(/\d+ /g, "")].join(" ")).join(" ");
  const found = new Set(used.match(/[A-Z]k?/g));
  return Object.keys(MEANINGS).filter((letter) => found.has(letter));
}

/* The box of that name; if the model has none, one that does the same in the other tower. */
function chosen(parts, box) {
  const at = parts.findIndex((part) => part.id === box);
  return at < 0 ? Math.max(0, parts.findIndex((part) => part.name === box.split(".")[1])) : at;
}

function values(state) {
  const [parts, sizes] = [partsOf(state.preset), sizesOf(state)];
  const copies = parts.map((part) => (part.stage === "block" ? sizes.L : 1));
  const counts = ["parameters", "flops"].map((what) => parts.map((part) => evaluate(part[what], sizes)));
  const totals = counts.map((each) => each.reduce((sum, one, at) => sum + copies[at] * one, 0));
  const at = chosen(parts, state.box);
  const { id, from, to, parameters, flops, steps } = parts[at];
  const isNumber = state.preset === NUMBERS;
  const told = isNumber ? travelling.told[id] : [""], layer = Math.min(state.layer, told.length) - 1;
  const sums = (isNumber ? travelling.sums[id][layer] : "").split(";");
  return {
    model: presets[state.preset][0], length: sizes.T, source: sizes.S, copies, totals, at,
    told: filled(told[layer]), // what the box did to the number
    drawn: isNumber ? travelling.drawn[id][layer].map((row) => travelling.vectors[row] ?? row) : null,
    letters: lettersOf(parts),
    parameters: counts[0], flops: counts[1], formulas: [parameters, flops],
    boxes: parts.map((part) => part.id), names: parts.map((part) => part.label),
    shapes: parts.map((part) => `${part.from} → ${part.to}`),
    sizes: `${inNumbers(from, sizes)} → ${inNumbers(to, sizes)}`,
    shares: counts.map((each, which) => (copies[at] * each[at]) / totals[which]),
    steps: steps.split(";").map((step, n) => {
      const [, word, shape] = /(\d+) (.*)/.exec(step);
      return [words[word], shape, inNumbers(shape, sizes), filled(sums[n] || "")];
    }),
  };
}

function short(value, units) {
  if (value < 10000) return whole(value) + units[0];
  let at = 0;
  for (; value >= 999.5 && at < units.length - 1; at += 1) value /= 1000;
  return value.toFixed(Math.max(0, 3 - String(Math.trunc(value)).length)) + units[at];
}

/* A text of the number's: what it has in common with others, with its own letters and numbers for each #. */
function filled(packed) {
  const [n, ...own] = packed.split("|");
  return packed && travelling.texts[n].replace(/#/g, () => own.shift().replace(/^-(?=[ \d])/, "−"));
}

const title = (label) => (label === "add" ? "residual sum" : label.replace("+ ", ""))
  .replace(/^./, (letter) => letter.toUpperCase());

const percent = (share) => (share >= 0.0005 ? `${(100 * share).toFixed(1)}%` : "less than 0.1%");

function say({ T, layer }, { model, length, source, told, names, shapes, copies, parameters, flops, totals, shares, at }) {
  const most = length < T ? " (all it has room for)" : length > T ? " (what an image makes)" : "";
  const layers = copies[at] > 1 ? ` in each of ${copies[at]} layers` : "";
  const own = (which, count, units) =>
    `${count ? `${short(count, units)}${layers}, ${percent(shares[which])}` : ["none", "no matrix product"][which]} ` +
    `of the ${short(totals[which], units)}`;
  if (told) { // what it costs is not the question now
    const where = copies[at] > 1 ? `, layer ${layer}` : "";
    return `${told} ${model}, S = ${source}, T = ${length}${where}. ${title(names[at])}: ${shapes[at]}.`;
  }
  return `${model}, T = ${whole(length)}${most}. ${title(names[at])}: ${shapes[at]}. ` +
    `Parameters of its own: ${own(0, parameters[at], WORDS)} in the model. ` +
    `Work: ${own(1, flops[at], FLOPS)} of one pass.`;
}

// The picture: y = 0 is the foot, towers grow upwards. It always has the same size ----

const [WIDTH, HEIGHT, LANE, FOOT] = [362, 490, 18, 22]; // LANE, beside the boxes: there the stream flows past
const attends = (box) => box.name.endsWith("attention");
const isAdd = (box) => box.label === "add";
const isNorm = (box) => box.label.endsWith("Norm");
const text = (x, y, words, more) => svg("text", { x, y, "text-anchor": "middle", text: words, ...more });
const arrow = (d, x, y, turn, role) => [
  svg("path", { d, fill: "none", stroke: colour(role), "stroke-width": 1.7 }),
  svg("path", { d: "M0 0l-4 7h8z", fill: colour(role), transform: `translate(${x} ${y}) rotate(${turn})` }),
];

/* Gives each box its place, and returns where the tower ends. */
function stack(tower, middle, width, side) {
  let y = -14;
  tower.forEach((box, at) => {
    const enters = at && tower[at - 1].stage !== box.stage; // or leaves the blocks
    const h = isAdd(box) ? 16 : isNorm(box) ? 21 : 26;
    const aside = box.name === "bias" ? width / 4 + 4 : 0; // it is not on the stream
    y -= 10 + 11 * attends(box) + 16 * enters + h;
    Object.assign(box, { h, w: width - 2 * aside, x: middle - side * aside, y: y + h / 2, foot: y + h, side });
  });
  return y - 18;
}

/* The frame of what is repeated, the stream, the way past each sublayer, what attention is given. */
function lines(tower, top, side, layers) {
  const { x, w } = tower[0];
  const [lane, near, inner] = [x + side * (w / 2 + LANE - 9), x + side * 8, x - (side * w) / 2];
  const inside = tower.filter((box) => box.stage === "block");
  const y = inside.at(-1).y - inside.at(-1).h / 2 - 7;
  const look = { fill: "none", stroke: colour("muted"), "stroke-dasharray": "2 3" };
  const [edge, foot] = [inner - side * 8, inside[0].foot + 8 + 13 * attends(inside[0])];
  const found = [
    svg("path", { d: `M${edge} ${y}H${lane + side * 5}V${foot}H${edge}Z`, ...look }),
    text(x + side * (w / 2 - 8), y - 4, `× ${layers}`, { class: "live-tick", "font-weight": 600 }),
    ...arrow(`M${x} -10V${top}`, x, top, 0, "muted"),
  ];
  for (const box of tower) {
    const given = { attention: ["key", "query", "value"], cross_attention: ["query"] }[box.name] || [];
    given.forEach((role, i) => {
      const to = x + (i - (given.length - 1) / 2) * 28;
      found.push(...arrow(`M${x} ${box.foot + 11}H${to}V${box.foot}`, to, box.foot, 0, role));
    });
    if (box.name === "bias") {
      const { y: to } = tower.find((one) => one.name === "attention");
      found.push(
        ...arrow(`M${inner} ${box.y}h${-side * 7}V${to}H${inner}`, inner, to, 90 * side, "weight"));
    }
    if (isAdd(box)) {
      const first = tower.find((one) => one.name.startsWith(box.name.slice(0, -4)));
      const start = first.foot + (attends(first) ? 15 : 5);
      found.push(...arrow(`M${x} ${start}H${lane}V${box.y}H${near}`, near, box.y, -90 * side, "plain"));
    }
  }
  return found;
}

/* A box looks like what it is: a button with an edge below it, which it loses when it is chosen. */
function button(box, label, onclick, onkeydown) {
  const role = ROLES[box.name] || "plain";
  const shape = (more) => (isAdd(box) ? svg("circle", { r: 8, ...more })
    : svg("rect", { x: -box.w / 2, y: -box.h / 2, width: box.w, height: box.h, rx: 7, ...more }));
  return svg("g", {
    class: "live-box", role: "button", "aria-label": label, transform: `translate(${box.x} ${box.y})`, onclick, onkeydown,
  },
  shape({ class: "live-edge", fill: colour(role) }),
  svg("g", { class: "live-face" },
    shape({ fill: soft(role), stroke: colour(role) }),
    text(0, 4.5, isAdd(box) ? "+" : box.label.replace("distance ", ""), { class: "live-tick", style: `fill: ${colour(role)}` })));
}

const SENTENCES = { B_S: ["the", "cat sleeps"], B_T: ["die", "Katze schläft"] };
const sentence = ([first, ...rest], length) => `“${[first, ...(length > 1 ? [...rest, "…"] : [])].join(" ")}”`;
const counted = (length) => (length === 1 ? "1 token" : `the first 3 of ${whole(length)} tokens`);

function draw(figure, { preset }, found, onpick) {
  const parts = partsOf(preset);
  const two = parts[0].tower !== parts.at(-1).tower;
  const towers = (two ? ["encoder", "decoder"] : [parts[0].tower])
    .map((name) => parts.filter((one) => one.tower === name));
  const [w, gap] = two ? [150, WIDTH - 2 * (150 + LANE)] : [190, 0];
  const left = two ? LANE : (WIDTH - w) / 2;
  const tops = towers.map((tower, at) => stack(tower, left + w / 2 + at * (w + gap), w, at ? 1 : -1));
  const needed = FOOT + 20 - Math.min(...tops);
  const scale = Math.min(1, HEIGHT / needed);
  const drawing = Live.part.drawing({
    width: WIDTH, height: HEIGHT, role: "group",
    label: `${found.model}, box by box; arrow keys move, Enter chooses`,
  });
  const place = `translate(${(WIDTH * (1 - scale)) / 2} ${(HEIGHT + needed * scale) / 2 - FOOT * scale}) scale(${scale})`;
  const all = drawing.appendChild(svg("g", { transform: place, style: `--fit: ${1 / scale}` }));
  const given = towers.map((tower, at) => { // what goes in, and how many tokens that makes
    const { x, from } = tower[0];
    const isImage = from.includes("C") || from.includes("I");
    const [line, count] = [text(x, 4, "", { class: "live-tick" }), text(x, 19, "", { class: "live-tick" })];
    all.append(
      ...lines(tower, tops[at], at ? 1 : -1, Math.max(...found.copies)), line, count,
      text(x, tops[at] - 7, `${two && !at ? "memory: " : ""}${tower.at(-1).to}`, { class: "live-tick" }));
    return (length) => {
      if (preset === NUMBERS) {
        Live.part.write(line, at ? `▷${travelling.written}` : travelling.source);
        return Live.part.write(count, `${found[at ? "length" : "source"]} tokens`);
      }
      Live.part.write(line, isImage ? "an image" : sentence(SENTENCES[(two && from.replace(" ", "_")) || "B_S"], length));
      return Live.part.write(count, isImage ? `${whole(length)} tokens` : counted(length));
    };
  });
  if (two) { // keys and values for cross-attention
    const to = parts.find((one) => one.name === "cross_attention");
    const edge = to.x - w / 2;
    for (const [role, by] of [["key", -3], ["value", 3]]) {
      const d = `M${towers[0][0].x} ${tops[0] + by}H${edge - gap / 2 - by}V${to.y + by}H${edge}`;
      all.append(...arrow(d, edge, to.y + by, 90, role));
    }
  }
  const nodes = parts.map((box, at) => {
    const pick = () => { figure.set({ box: box.id }, Live.QUICK); figure.released(); onpick(); };
    const across = parts.findIndex((one) => one.name === box.name && one.tower !== box.tower);
    const label = `${title(box.label)}, ${box.tower}: ${found.shapes[at]}`;
    return button(box, label, pick, (event) => {
      const to = { ArrowUp: at + 1, ArrowDown: at - 1, ArrowLeft: across, ArrowRight: across }[event.key];
      if (event.key === "Enter" || event.key === " ") pick();
      else if (nodes[to]) nodes[to].focus();
      else return;
      event.preventDefault();
    });
  });
  all.append(...nodes);
  const views = drawing.appendChild(svg("g"));
  const isWritten = writing(all, parts);
  return { drawing, nodes, parts, views, isWritten, card: cards(all, parts), read: (length) => given.forEach((each) => each(length)) };
}

/* The letter that the output chose goes down past the boxes, and joins what the decoder reads. */
function writing(all, parts) {
  const { x, y, w } = parts.at(-1), side = x + w / 2 + 9, way = [[x, y], [side, y], [side, 4], [x + 28, 4]];
  const letter = text(0, 0, travelling.drawn["decoder.output"][0][0][0], { class: "live-written" });
  return (isWritten) => {
    letter.remove();
    Live.forget(letter);
    if (!isWritten) return;
    all.append(letter);
    Live.tween(letter, [3], ([now]) => {
      const leg = Math.min(2, Math.floor(now));
      letter.setAttribute("transform", `translate(${Live.between(way[leg], way[leg + 1], now - leg)})`);
    }, { from: [0], ms: 1500 });
  };
}

/* What is in a box while the number is there, in the corner that the lower tower leaves free: vectors as bars
   (up: above zero), weights of heads and open units as cells, letters with their chances. */
function views({ drawn, at }, { parts }) {
  const { tower, name } = parts[at], inEncoder = tower === "encoder";
  const who = inEncoder ? travelling.followed : travelling.written.at(-1);
  const words = (x, y, text, more) => svg("text", { x, y, text, class: "live-tick", ...more });
  const cell = (x, y, w, h, share, role) => svg("rect", { x, y, width: w - 1, height: h - 1, fill: colour(role), "fill-opacity": Math.max(0.07, share) });
  const [left, top] = [54, 30];
  if (!drawn) return [words(0, 12, "Shapes only. Real numbers:"), words(0, 28, "choose the number translator.")];
  if (name.endsWith("attention")) {
    const keys = name === "attention" && !inEncoder ? `▷${travelling.written}` : travelling.source, wide = 114 / Math.max(8, keys.length);
    return [
      words(0, 12, `where the heads of “${who}” look`),
      ...[...keys].map((key, s) => words(left + (s + 0.5) * wide, top, key, { "text-anchor": "middle" })),
      ...drawn.flatMap((row, n) => [words(0, top + 19 + 22 * n, `head ${n + 1}`), ...row.map((share, s) => cell(left + s * wide, top + 5 + 22 * n, wide, 21, share / 100, "weight"))]),
    ];
  }
  if (name === "feed_forward") {
    const columns = 32, side = 5.2, units = [...drawn[0]].flatMap((four) => [8, 4, 2, 1].map((bit) => Math.sign(parseInt(four, 16) & bit)));
    return [words(0, 12, `${units.filter(Boolean).length} of ${units.length} units open for “${who}”`), ...units.map((isOpen, n) =>
      cell((n % columns) * side, 20 + Math.floor(n / columns) * side, side, side, isOpen, "value"))];
  }
  if (name === "output")
    return [words(0, 12, "the next letter"), ...drawn.flatMap(([token, share], n) => [
      words(4, top + 10 + 24 * n, Live.part.sign(token)), svg("rect", { x: 22, y: top - 1 + 24 * n, width: Math.max(0.5, share), height: 14, rx: 2, fill: colour("weight") }),
      words(168, top + 10 + 24 * n, `${share}%`, { "text-anchor": "end" })])];
  const names = isAdd(parts[at]) ? ["stream", "+ write", "= sum"] : isNorm(parts[at]) ? ["before", "after"] : ["the row", "+ place", "= sum"];
  const most = Math.max(...drawn.flat().map(Math.abs)), side = 114 / drawn[0].length;
  return [words(0, 12, `“${who}”: its first ${drawn[0].length} numbers`), ...drawn.flatMap((vector, n) => {
    const y = top + 12 + 36 * n;
    return [words(0, y + 4, names[n]), svg("path", { d: `M${left} ${y}h114`, class: "live-gridline" }), svg("path", {
      d: vector.map((value, i) => `M${(left + (i + 0.5) * side).toFixed(1)} ${y}v${((-17 * value) / most).toFixed(1)}`).join(""),
      stroke: colour(n === drawn.length - 1 ? "weight" : "muted"), "stroke-width": side - 1.5 })];
  })];
}

/* The sentence on its way: a card with a column for each of four tokens (and dots for the others). A column is
   as high as a token is long: an id is a square, a vector of D numbers a bar, V scores a longer one. */
function cards(all, parts) {
  const make = (role) => {
    const bars = [0, 1, 2, 3].map((at) => svg("rect", { x: -10 + 5.2 * at, width: 3.8, fill: colour(role) }));
    const back = svg("rect", { rx: 4, x: -14, width: 28, fill: "var(--fig-paper)", stroke: colour(role), "stroke-width": 1.6 });
    const node = svg("g", { class: "live-card", "pointer-events": "none" }, back, ...bars);
    all.append(node);
    return (x, y, high) => {
      node.setAttribute("transform", `translate(${x} ${y})`);
      back.setAttribute("y", -high / 2 - 4);
      back.setAttribute("height", high + 8);
      for (const bar of bars) {
        bar.setAttribute("y", -high / 2);
        bar.setAttribute("height", high);
      }
    };
  };
  const [memory, was, own] = [make("key"), make("muted"), make("weight")];
  const [memoryNode, wasNode, node] = [...all.children].slice(-3);
  wasNode.classList.add("live-ghost");
  const tall = (shape) => (shape.endsWith("V") ? 24 : / D$/.test(shape) ? 15 : 4);
  const beside = (box) => [box.x - (box.side * box.w) / 2 - box.side * 1, box.y];
  const encoded = parts.filter((box) => box.tower === "encoder").at(-1);
  return (at) => {
    const box = parts[at];
    Live.tween(node, [...beside(box), tall(box.to)], (now, before) => {
      own(...now);
      wasNode.setAttribute("visibility", before ? "visible" : "hidden");
      if (before) was(...before);
    });
    // The memory comes to cross-attention.
    const isCross = box.name === "cross_attention";
    memoryNode.setAttribute("visibility", isCross ? "visible" : "hidden");
    if (!isCross) return Live.forget(memoryNode);
    const [x, y] = beside(box);
    Live.tween(memoryNode, [x - 14, y - 22, 15], (now) => memory(...now), {
      from: [encoded.x, encoded.y - encoded.h / 2 - 14, 15], step: 1 });
  };
}

/* A shape in words. */
function inWords(shape, sizes) {
  if (shape.includes(" and ")) return shape.split(" and ").map((each) => inWords(each, sizes)).join(", with ");
  const length = { S: sizes.S, T: sizes.T }[shape.split(" ")[1]];
  if (/^B [ST]$/.test(shape)) return `${whole(length)} token ids`;
  if (/^B [ST] D$/.test(shape)) return `${whole(length)} vectors of ${whole(sizes.D)} numbers`;
  if (/^B [ST] V$/.test(shape)) return `${whole(length)} × ${whole(sizes.V)} scores`;
  return inNumbers(shape, sizes);
}

function details({ preset }, { at, copies, shapes, sizes, formulas, parameters, flops, steps, letters: used }) {
  const box = partsOf(preset)[at];
  const masked = box.label.startsWith("masked") && "masked";
  const [does, pages, module] = ABOUT[masked || (isAdd(box) && "add") || (isNorm(box) ? "norm" : box.name)];
  const row = (name, words, sum) => html("div", {}, html("dt", { text: name }), html("dd", { text: words }),
    sum && html("dd", { class: "live-sum", text: sum }));
  const list = (label, ...rows) =>
    html("dl", { class: "live-numbers", "aria-label": label }, ...rows);
  const counted = (name, formula, number) => [
    row(name, formula ? `${formula} = ${whole(number)}` : "none"),
    formula && copies[at] > 1 ? row(`in ${copies[at]} layers`, whole(copies[at] * number)) : null,
  ];
  const letters = used.map((letter) => `${letter} ${letter === "T" && used.includes("S") ? "target " : ""}${MEANINGS[letter]}`).join(", ");
  const link = (href, words) => html("a", { href, text: words });
  const code = `api/${module.split(".")[0]}.html#module-transformer_lib.${module}`;
  const tied = steps.some(([what]) => what.endsWith("(tied)")) ? " It shares the first table of tokens." : "";
  return [
    list("its steps", ...steps.map(([what, shape, numbers, sum]) => row(what, `${shape} = ${numbers}`, sum))),
    list("its costs", ...counted("parameters", formulas[0], parameters[at]),
      ...counted("FLOPs (matrix products)", formulas[1], flops[at])),
    html("p", {}, html("strong", { text: title(box.label) }), ` (${box.tower}). ${does}${tied} Read: `,
      ...pages.split(" ").flatMap((page) =>
        [link(`${page}.html`, `chapter ${page.split("_")[0].replace(/^0/, "")}`), ", "]),
      link(code, "its code"), "."),
    list("the chosen box", row("shape", shapes[at]), row("here", sizes)),
    letters,
  ];
}

/* The next box, or the one before (`by` is -1). The number passes the blocks of a tower once for each layer. */
function beside({ preset, box, layer }, by) {
  const parts = partsOf(preset), at = chosen(parts, box);
  const isInside = (one) => one?.stage === "block" && one.tower === parts[at].tower;
  const layers = preset === NUMBERS ? sizesOf({ preset }).L : 1;
  const now = Math.min(layer, layers), round = now + by;
  const next = parts[at + by];
  if (isInside(parts[at]) && !isInside(next) && round >= 1 && round <= layers) {
    const inside = parts.filter(isInside);
    return { box: inside.at(by > 0 ? 0 : -1).id, layer: round };
  }
  if (!next) return null;
  const enters = next.stage === "block" && !(isInside(parts[at]) && isInside(next));
  return { box: next.id, layer: !enters ? now : by > 0 ? 1 : layers };
}

/* An image always makes as many tokens: then the slider says so, and cannot be moved. */
function fix(node, { I, N }, length) {
  const [name, input, output] = node.children, text = I ? `tokens T: ${N} patches + ${length - N}` : "tokens T";
  Live.part.write(name, text);
  input.disabled = Boolean(I);
  if (!I) return;
  input.setAttribute("aria-valuetext", String(length));
  output.textContent = length;
}

function build(part, figure) {
  const [info, inside, costs] = [0, 1, 2].map(() => html("div"));
  const picture = html("div", { class: "live-picture" });
  const caption = html("p", { class: "live-caption" });
  const names = ["parameters", "FLOPs"];
  const bars = part.bars({ names, label: "share of the whole, percent", max: 100, digits: 1 });
  const total = part.numbers({ label: "the whole model", names: names.map((name) => `${name} in all`) });
  const fold = (text, ...nodes) => html("details", {}, html("summary", { text }), ...nodes);
  const player = part.player(figure, {
    names: [part.isNarrow() ? "Send a sentence" : "Send a sentence through", "One box"], isPaced: true,
    every: () => (figure.state.preset === NUMBERS ? 2600 : 900), // there is a sentence to read
    step() {
      const next = beside(figure.state, 1);
      if (next) figure.set(next, Live.QUICK);
      return Boolean(next);
    },
    again: () => figure.set({ box: partsOf(figure.state.preset)[0].id, layer: 1 }, Live.QUICK),
  });
  player.node.firstChild.addEventListener("click", () => (about.open = false)); // it travels: nothing is to be looked up
  player.node.lastChild.before(html("button", { type: "button", text: "Back", onclick: () => {
    const last = beside(figure.state, -1);
    if (!last) return;
    player.stop();
    figure.set(last, Live.QUICK);
    figure.released();
  } }));
  let [drawn, shown] = [null, {}];
  const about = fold("What this box does", info); // opens when a box is pressed
  const letters = html("p", { class: "live-title" });
  const hint = html("p", { class: "live-title", text: "Press a box, and its card opens." });
  const folds = html("div", { class: "live-folds" }, fold("Inside, step by step", inside, letters),
    fold("What it costs", costs, part.titled("share of the whole model, %", bars.node), total.node));
  return {
    nodes: part.isNarrow() ? [caption, picture, player.node] : [caption, html("div", { class: "live-split" }, picture, html("div", {}, player.node, hint, letters, about)), folds],
    rest: part.isNarrow() ? [about, folds] : null,
    update(state, found) {
      const hadFocus = picture.contains(document.activeElement);
      const isSame = shown.preset === state.preset;
      if (!isSame) {
        drawn = draw(figure, state, found, () => (about.open = true));
        picture.replaceChildren(drawn.drawing);
      }
      drawn.nodes.forEach((node, at) => {
        const isChosen = String(at === found.at);
        if (node.getAttribute("aria-pressed") === isChosen) return;
        node.setAttribute("aria-pressed", isChosen);
        node.tabIndex = at === found.at ? 0 : -1;
      });
      if (hadFocus) drawn.nodes[found.at].focus({ preventScroll: true });
      drawn.card(found.at);
      drawn.read(found.length);
      const { label, name, tower, from, to } = drawn.parts[found.at];
      const sizes = sizesOf(state), isNumber = state.preset === NUMBERS;
      const [, length, layer] = figure.controls;
      [length.node.style.display, layer.node.style.display] = isNumber ? ["none", ""] : ["", "none"];
      fix(length.node, sizes, found.length);
      const where = isNumber && found.copies[found.at] > 1 ? `${tower}, layer ${state.layer}` : tower;
      const [gets, gives] = [from, to].map((shape) => inWords(shape, sizes));
      const words = gets === gives ? `${gives}, changed` : `${gets} → ${gives}`;
      caption.replaceChildren(html("strong", { text: title(label) }), ` (${where}): ${words}`);
      if (!isSame || shown.T !== state.T || shown.at !== found.at || shown.layer !== state.layer) {
        const [steps, counts, ...words] = details(state, found);
        Live.part.write(letters, words.pop());
        info.replaceChildren(...words);
        inside.replaceChildren(steps);
        costs.replaceChildren(counts);
      }
      if (!isSame || shown.at !== found.at || shown.layer !== state.layer) {
        drawn.views.replaceChildren(svg("g", {}, ...views(found, drawn)));
        drawn.isWritten(isNumber && name === "output");
      }
      shown = { preset: state.preset, T: state.T, at: found.at, layer: state.layer };
      bars.set(found.shares.map((share) => 100 * share));
      total.set(found.totals.map(whole));
    },
  };
}

Live.define({
  name: "journey",
  title: "The whole model, box by box",
  question: "What happens in each box of a Transformer?",
  page: "00_reading_this_book",
  heights: [870, 1033],
  scripts: ["journey_data.js", "journey_number.js"],
  state: {
    preset: {
      kind: "choice", label: "model", start: "transformer-base",
      of: Object.fromEntries(Object.entries(presets).map(([key, [name]]) => [key, name])),
    },
    T: {
      kind: "number", label: "tokens T", start: 64,
      steps: [1, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768],
    },
    layer: { kind: "number", label: "layer", min: 1, max: 3, step: 1, start: 1 },
    box: {
      kind: "choice", label: "box", start: "encoder.tokens", hidden: true,
      of: Object.fromEntries(
        Object.keys(presets).flatMap(partsOf).map(({ id, label }) => [id, title(label)])),
    },
  },
  values,
  say,
  tries: [
    {
      do: "A real number", set: { preset: "numbers", box: "decoder.cross_attention", layer: 3 },
      see: "The translator has written zwei. Three heads look at the hyphen. Press One box: what they read joins the stream, 14.2 long.",
    },
    {
      do: "GPT-2’s tokens", set: { preset: "gpt2", box: "decoder.tokens" },
      see: "31.0% of all parameters and no matrix product: a lookup. The output layer shares the table.",
    },
    {
      do: "LLaMA, long text",
      set: { preset: "llama-3.1-8b", T: 32768, box: "decoder.attention" },
      see: "At 32,768 tokens attention does 61.7% of the work (masked scores counted, too); with 64 tokens it does 18.1%.",
    },
    {
      do: "GPT-2’s norms", set: { preset: "gpt2", box: "decoder.attention_norm" },
      see: "Pre-norm: inside each branch, and once at the end. In Transformer base (post-norm) it stands after each sum.",
    },
  ],
  build,
});
})();
