"use strict";
/* The figure of the front page: its moving picture, and what is inside each part. Before the model is there
   nobody needs it. */
(() => {
const { LAYERS, ANSWER, WRITE, ROWS, BEST, FIRST, sign, named, percent, upTo, caption, MIDDLE } = Live.front;

const thick = (size) => Math.min(14, 1.2 + 0.94 * size); // px: of a lane, and of what is added to it

/* Where everything stands in a picture of this width. x[k]: where stage k has done its work. */
function plan(width) {
  const narrow = width < 480;
  const [pitch, top, left, cell] = narrow ? [16, 48, 22, 2.5] : [19, 52, 32, 3.5];
  const cells = narrow ? 8 : FIRST;
  const panel = narrow ? 94 : 160;
  const end = width - panel - (narrow ? 12 : 26);
  const from = left + 6 + cells * cell; // here the lanes begin
  const x = [left, from];
  for (let stage = 2; stage < ANSWER; stage++) x.push(from + ((stage - 1) * (end - 6 - from)) / (2 * LAYERS));
  x.push(end, end);
  const where = {
    width, narrow, pitch, top, left, cell, cells, panel, end, from, x, gap: 0, // rows above a short line
    bottom: top + (ROWS + 1) * pitch, height: top + (ROWS + 1) * pitch + 26,
    y: (row) => top + (where.gap + row + 0.5) * pitch, // the last letter always stands in the same place
  };
  return where;
}

/* A lane: as thick as its vector is large, after each stage. */
function ribbon({ x, end, y }, row, sizes) {
  const half = sizes.map((size) => thick(size) / 2);
  const slope = Math.min(10, (x[3] - x[2]) / 2);
  const knots = [[x[1], half[0]]];
  for (let n = 1; n < half.length; n++) knots.push([x[n + 1] - slope, half[n - 1]], [x[n + 1], half[n]]);
  knots.push([end, half.at(-1)]);
  const edge = (points, side) => points.map(([px, h]) => `${px.toFixed(1)} ${(y(row) + side * h).toFixed(2)}`).join("L");
  return `M${edge(knots, -1)}L${edge(knots.reverse(), 1)}Z`;
}

/* From the lane of one letter to that of another, or along its own. */
const link = ({ x, y, top }, stage, source, target) => {
  const [from, to] = [x[stage] - 0.8 * (x[stage] - x[stage - 1]), x[stage]];
  const [high, low] = [source < 0 ? top - 6 : y(source), y(target)]; // letters before the first lane come from above
  const bend = 0.55 * (to - from);
  return `M${from.toFixed(1)} ${high}C${(from + bend).toFixed(1)} ${high} ${(to - bend).toFixed(1)} ${low} ${to.toFixed(1)} ${low}`;
};

/* Out of a lane and back into it. */
const bump = ({ x, y, pitch }, stage, row) => {
  const [from, to] = [x[stage] - 0.75 * (x[stage] - x[stage - 1]), x[stage]];
  return `M${from.toFixed(1)} ${y(row)}C${from.toFixed(1)} ${y(row) - 1.1 * pitch} ${to.toFixed(1)} ${y(row) - 1.1 * pitch} ${to.toFixed(1)} ${y(row)}`;
};

const LEAST = 0.03, STRONG = 0.2; // weights that are drawn, for the chosen letter and for the others

/* [source row, target row, weight] of the links that a layer's picture shows; -1 is all that has no lane. */
function links({ attention, first, at }, layer) {
  return attention[layer].flatMap((weights, target) => {
    const rows = weights.slice(first).map((w, source) => [source, target, w]);
    const early = weights.slice(0, first).reduce((sum, w) => sum + w, 0);
    const least = target === at - first ? LEAST : STRONG;
    return [[-1, target, early], ...rows].filter(([, , w]) => w >= least);
  });
}

/* The sign of attention, of feed-forward, and of a lane. */
const sample = (role, x, y) => ({
  query: `M${x - 8} ${y - 5}C${x + 2} ${y - 5} ${x - 2} ${y + 5} ${x + 8} ${y + 5}`,
  value: `M${x - 6} ${y + 6}C${x - 5} ${y - 9} ${x + 5} ${y - 9} ${x + 6} ${y + 6}`,
  muted: `M${x - 8} ${y}L${x + 8} ${y - 4}V${y + 4}Z`,
})[role];

const ROLE = (stage) => (stage % 2 ? "value" : "query");

/* The lanes, what is added to them, and the letters; `pose` shows how far the line has come. */
function scene({ svg, colour, soft }, where, found, onpick, onstage) {
  const { tokens, ids, typed, first, at, embedded, sizes, added, best } = found;
  const { width, narrow, pitch, top, bottom, left, cell, cells, end, from, x, y } = where;
  const rows = sizes.length, own = at - first;
  const words = caption(svg);
  const group = svg.bind(null, "g");
  const all = (make) => sizes.map((_, row) => make(row));

  // Columns: one for each stage, with its name; they can be clicked.
  const bands = x.slice(0, ANSWER).map((right, stage) => {
    const [low, high] = stage ? [x[stage - 1] + 4, right + 4] : [0, left + 4];
    return svg("rect", {
      x: low, y: top - 22, width: high - low, height: bottom - top + 46, rx: 4, class: "front-band",
      style: `--soft: ${stage > 1 ? soft(ROLE(stage)) : "var(--fig-panel)"}`, onclick: () => onstage(stage),
    });
  });
  const icon = (stage) => svg("path", {
    d: sample(ROLE(stage), (x[stage - 1] + x[stage]) / 2 + 4, 34), class: "front-icon", stroke: colour(ROLE(stage)),
  });
  const heads = [];
  for (let stage = 2; stage < ANSWER; stage += 2) {
    heads.push(words(`${narrow ? "" : "layer "}${stage / 2}`, x[stage] + 4, 13, MIDDLE),
      svg("path", { d: `M${x[stage - 1] + 7} 19H${x[stage + 1] + 1}`, class: "live-gridline" }), icon(stage), icon(stage + 1));
  }
  if (narrow) heads.push(words("layer", 0, 13));
  const side = width - where.panel;
  const legend = [["query", narrow ? "attention" : "attention: looks back"], ["value", narrow ? "feed-forward" : "feed-forward: alone"], ["muted", narrow ? "size" : "thicker: larger vector"]];
  legend.forEach(([role, text], n) => heads.push(
    svg("path", { d: sample(role, side + 8, top + 8 + 20 * n), class: "front-icon", stroke: colour(role), fill: role === "muted" ? colour(role) : null }),
    words(text, side + 22, top + 12 + 20 * n)));
  // Letters: a group of which one is chosen.
  const letters = all((row) => group(
    {
      role: "radio", "aria-checked": String(row === own), tabindex: row === own ? 0 : -1, class: "front-letter", "data-row": row,
      "aria-label": `token ${first + row + 1}: ${named(tokens[first + row])}`, onclick: () => onpick(row),
    },
    svg("rect", { x: 0, y: y(row) - pitch / 2, width: x[0] - 3, height: pitch, rx: 3 }),
    words(sign(tokens[first + row]), (x[0] - 3) / 2, y(row) + (tokens[first + row] === " " ? 2 : 5), { ...MIDDLE, class: first + row < typed ? "" : "front-written" }),
  ));
  const tracks = all((row) => svg("path", { d: `M${left + 4} ${y(row)}H${end}`, class: "live-gridline" }));
  const numbers = group({}, ...all((row) => words(ids[first + row], left + 6, y(row) + 4.5)));
  const codes = group({}, ...all((row) => group({}, ...embedded[row].slice(0, cells).map((value, n) => svg("rect", {
    x: left + 6 + n * cell, y: y(row) - 5, width: cell - 0.5, height: 10,
    fill: colour(value < 0 ? "key" : "query"), opacity: upTo(0.12, Math.abs(value) * 5, 1).toFixed(2),
  })))));
  const past = svg("rect", { x: 0, y: 0, width: 0, height: bottom });
  const clip = svg("clipPath", { id: "front-past" }, past);
  const lanes = group({ "clip-path": "url(#front-past)" }, ...all((row) =>
    svg("path", { d: ribbon(where, row, sizes[row]), class: row === own ? "front-lane front-own" : "front-lane" })));

  // What each stage adds: who looks at whom, who works on itself, and the size of the result.
  const drop = (stage, row) => svg("circle", {
    cx: x[stage], cy: y(row), r: (1.2 + thick(added[row][stage - 2]) / 2).toFixed(2), fill: colour(ROLE(stage)),
  });
  const line = (d, w, isOwn, role) => svg("path", {
    d, pathLength: 1, stroke: colour(role), "stroke-width": ((isOwn ? 1 : 0.6) + (isOwn ? 8 : 3) * w).toFixed(2),
    opacity: (isOwn ? 0.35 + 0.6 * w : 0.12 + 0.25 * w).toFixed(2),
  });
  const stages = [];
  for (let stage = 2; stage < ANSWER; stage++) {
    const lines = stage % 2 ? all((row) => [row, line(bump(where, stage, row), row === own ? 0.15 : 0.2, row === own, "value")])
      : links(found, stage / 2 - 1).map(([source, row, w]) => [row, line(link(where, stage, source, row), w, row === own, "query")]);
    const [mine, others] = [true, false].map((is) => group({ class: "front-links" }, ...lines.filter(([row]) => (row === own) === is).map(([, node]) => node)));
    const drops = group({}, ...all((row) => drop(stage, row)));
    drops.childNodes[own].setAttribute("class", "front-own");
    stages.push({ stage, mine, others, drops, node: group({}, others, mine, drops) });
  }

  // The best guess after each stage, and the way from the chosen lane to the list of guesses.
  const hints = best.map(([token, , chance], n) => words(sign(token), x[n + 1], bottom + 17, {
    ...MIDDLE, class: "front-hint", style: `fill-opacity: ${(0.4 + 0.6 * chance).toFixed(2)}`,
  }));
  const beam = svg("path", { class: "front-beam" });
  const flying = words("", 0, 0, { class: "front-written", ...MIDDLE });
  const choice = group({ role: "radiogroup", "aria-label": "The letter that is watched" }, ...letters);
  const hintsName = words("guess", 0, bottom + 17);
  const codesName = words("", (left + 6 + from) / 2, 38, MIDDLE);
  const moved = group({}, choice, first ? words(`+ ${first}`, 0, top - 4) : null);
  const under = group({}, ...bands, ...tracks);
  const over = group({}, ...heads, numbers, lanes, codes, codesName, ...stages.map((each) => each.node), hintsName, ...hints, beam, flying);
  const node = group({}, clip, under, moved, over);

  function pose(now, where_) {
    const c = upTo(-1, now, WRITE);
    const stage = upTo(0, Math.ceil(c - 1e-6), WRITE);
    const share = c - Math.floor(c);
    const column = Math.floor(upTo(0, c, ANSWER)), after = Math.min(ANSWER, column + 1);
    const reached = c <= 0 ? left : x[column] + (x[after] - x[column]) * (c >= ANSWER ? 0 : share);
    past.setAttribute("width", reached + (c > 1 && c < ANSWER ? 2 : 0));
    bands.forEach((band, n) => band.classList.toggle("front-here", n === stage));
    numbers.style.opacity = upTo(0, 1 - c, 1) * (c < 0 ? 1 + c : 1);
    codes.style.opacity = upTo(0, c, 1);
    codesName.textContent = narrow ? "" : c < 0.5 ? "number" : "vector";
    hintsName.style.opacity = upTo(0, c, 1);
    for (const each of stages) {
      const done = upTo(0, c - each.stage + 1, 2); // 1: it has come, 2: the next one has
      if (each.done === done) continue;
      each.done = done;
      each.node.style.display = done ? "" : "none";
      each.mine.style.strokeDashoffset = each.others.style.strokeDashoffset = 1 - upTo(0, done * 1.4, 1);
      each.drops.style.opacity = upTo(0, (done - 0.6) / 0.4, 1);
      each.mine.style.opacity = 1 - 0.3 * upTo(0, done - 1, 1);
      each.others.style.opacity = upTo(0, 3 - 2 * done, 1);
    }
    hints.forEach((hint, n) => { hint.style.opacity = upTo(0, (c - n - 0.5) * 2, 1); });
    const { px, py, letter, next } = where_;
    beam.setAttribute("d", `M${reached} ${y(own)}L${end} ${y(own)}C${end + 14} ${y(own)} ${px - 14} ${py} ${px} ${py}`);
    beam.classList.toggle("front-solid", c >= ANSWER);
    beam.style.opacity = c < 1 ? 0 : 1;
    const fly = upTo(0, c - ANSWER, 1);
    const slot = y(rows);
    const [bx, by] = letter;
    const one = 1 - fly;
    flying.textContent = fly ? sign(next) : "";
    flying.setAttribute("x", one * one * bx + 2 * one * fly * (bx - 60) + fly * fly * (x[0] - 3) / 2);
    flying.setAttribute("y", one * one * by + 2 * one * fly * (bottom + 10) + fly * fly * (slot + 5));
    moved.setAttribute("transform", c < 0 ? `translate(0 ${-c * pitch})` : "");
  }
  return { node, letters, pose, parts: [under, over] };
}

/* The list of the likeliest letters. */
function board({ svg, colour }, found, where) {
  const { panel, width, narrow, y, top, bottom } = where;
  const step = narrow ? 21 : 24;
  const bar = panel - (narrow ? 18 + 34 : 26 + 42);
  const text = (px, more) => svg("text", { x: px, ...more });
  const heading = [text(0, { y: 12, class: "live-tick" }), text(0, { y: 28, class: "live-tick" })];
  const lines = Array.from({ length: BEST }, (_, n) => {
    const middle = 48 + n * step;
    const [letter, share] = [text(8, { y: middle + 5, ...MIDDLE, class: "front-sign" }), text(panel, { y: middle + 5, "text-anchor": "end", class: "front-share" })];
    const shape = { x: narrow ? 18 : 22, y: middle - 7, height: 14, rx: 2, width: 0 };
    const [now, before] = [svg("rect", { ...shape, fill: colour("weight") }), svg("rect", { ...shape, class: "front-before" })];
    return { letter, share, now, before, node: svg("g", {}, now, before, letter, share) };
  });
  const mark = svg("rect", { x: -2, width: panel + 4, height: step - 2, rx: 3, class: "front-mark" }); // the letter that is chosen
  const node = svg("g", {}, mark, ...heading, ...lines.map((each) => each.node));
  return {
    node, step, height: 48 + BEST * step, bar,
    show(list, title, chosen) {
      mark.setAttribute("y", 49 + (chosen - 0.5) * step);
      mark.style.display = chosen < 0 ? "none" : "";
      title.forEach((words, n) => { heading[n].textContent = words; });
      lines.forEach(({ letter, share, node: one }, n) => {
        one.style.display = list[n] ? "" : "none";
        letter.textContent = list[n] ? sign(list[n][0]) : "";
        share.textContent = list[n] ? percent(list[n][2]) : "";
      });
    },
    draw: (widths) => lines.forEach(({ now, before }, n) => {
      now.setAttribute("width", bar * widths[n][0]);
      before.setAttribute("width", bar * widths[n][1]);
    }),
  };
}

// What is inside a part ----

const DROP = ["blocks", "x = x + self.dropout(update)", "models", "models.blocks"];
const PARTS = { // name; shape; lines of the library, each with its file and its place in the API; chapters
  tokens: ["the tokens", "T whole numbers",
    [["tokenizers", "return [self._ids[part] for part in parts]", "text", "text.tokenizers"]], "02_tokens"],
  embedding: ["the embedding", "(V, D) table, T rows of it: (T, D)",
    [["embeddings", "x = self.tokens(ids)  # (B, T, D)", "layers", "layers.embeddings.Embedding"]], "02b_embeddings 07_positions"],
  attention: ["attention", "(T, D) → H maps (T, T) → (T, D)",
    [["attention", "scores = scale * (q @ k.mT)  # (..., T, S)", "layers", "layers.attention.attention"],
      ["attention", "return mixing @ v, weights  # (..., T, Dv), (..., T, S)", "layers", "layers.attention.attention"], DROP],
    "03_attention 05_masks 06_heads 10_residuals"],
  feed_forward: ["feed-forward", "(T, D) → (T, F) → (T, D)",
    [["feedforward", "active = self.activation(wide if self.gate is None else self.gate(x))", "layers", "layers.feedforward.FeedForward"],
      ["feedforward", "narrow: Tensor = self.down(active if self.gate is None else active * wide)", "layers", "layers.feedforward.FeedForward"], DROP],
    "08_feedforward 09_norms 10_residuals"],
  answer: ["the answer", "(D,) → (V,)",
    [["language_models", "logits: Tensor = self.projection(self.scaled(x))", "models", "models.language_models.CausalLM"]], "12_decoder 04_scaling"],
  letter: ["the next letter", "(V,) → one token",
    [["sampling", "return logits.argmax(dim=-1)", "generation", "generation.sampling.draw_token"]], "16_generation"],
  drawn: ["the next letter", "(V,) → one token",
    [["sampling", "return (probabilities / waiting).argmax(dim=-1)", "generation", "generation.sampling.draw_token"]], "16_generation"],
};
const KINDS = ["tokens", "embedding", ...Array(LAYERS).fill(["attention", "feed_forward"]).flat(), "answer", "letter"];

function inside({ html, number }, { pick }, found) {
  const { stage, first, at, sizes, added, stream, write, guesses: list, tokens, ids } = found;
  const kind = stage === WRITE && pick !== "likeliest" ? "drawn" : KINDS[stage], [, shape, code, chapters] = PARTS[kind];
  const row = at - first, isLayer = stage > 1 && stage < ANSWER;
  const few = (vector) => `${vector.slice(0, 6).map((value) => number(value)).join("  ")}  …`;
  const facts = [["shape", `${shape}   T = ${tokens.length}, D = ${found.width}${kind === "attention" ? `, H = ${found.heads.length}` : ""}`]];
  if (!stage) facts.push(["numbers", ids.join(" ")]);
  if (stage === 1) facts.push([`vector of ${named(tokens[at])}`, few(stream)], ["its size", number(sizes[row][0])]);
  if (isLayer) facts.push(
    ["lane before", `${few(stream)}  size ${number(sizes[row][stage - 2])}`],
    ["is added", `${few(write)}  size ${number(added[row][stage - 2])}`],
    ["lane after", `size ${number(sizes[row][stage - 1])}`]);
  if (stage >= ANSWER) facts.push(["scores (logits)", list.map(([token, logit]) => `${sign(token)} ${number(logit)}`).join("   ")],
    ["probabilities", list.map(([token, , chance]) => `${sign(token)} ${number(chance, 4)}`).join("   ")]);
  const address = (page, name) => `api/${page}.html#${/\.[A-Z]|attention\.attention|draw_token/.test(name) ? "" : "module-"}transformer_lib.${name}`;
  const lines = code.map(([file, text, page, name]) => html("div", { class: "front-code" },
    html("code", { text }),
    html("a", { href: address(page, name), text: `${file}.py` })));
  const link = (chapter, n) => [n ? ", " : "", html("a", { href: `${chapter}.html`, text: chapter.split("_")[0].replace(/^0(?=\d)/, "") })];
  return [
    html("dl", {}, ...facts.flatMap(([name, text]) => [html("dt", { text: name }), html("dd", { text })])),
    ...lines,
    html("p", {}, "Taught in chapter ", ...chapters.split(" ").flatMap(link), "."),
  ];
}

Object.assign(Live.front, { plan, scene, board, inside });
})();
