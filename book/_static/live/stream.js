"use strict";
/* Chapter 10: the residual stream of a trained model as a bus. At one position: the embedding, what each
   sublayer writes onto it, and what the model would answer if it stopped there (the logit lens).
   Stops: 0 the embedding, 2n - 1 the attention and 2n the feed-forward network of block n.
   T: letters read, D: width of the stream, V: tokens that can be written. */
(() => {
const softmax = (scores) => Live.tensor.softmax(scores);
const MAX = 24; // letters of the line
const BLOCKS = 4, STOPS = 2 * BLOCKS + 1, D = 256;
const PIECE = 2; // letters of a new line that are read at a time
const MOST = 3; // letters that a write lifts or lowers most
const LETTERS = Live.PLAYS;

// Numbers ----

let kept = null; // the last line: a reading, with an entry for each letter

const best = (scores) => scores.indexOf(Math.max(...scores));

/* What the model makes of each letter. */
const readingOf = (model) => (kept?.model === model ? kept : (kept = new Live.Reading(model, ({ stream }, fresh, row) => {
  const lens = stream.map(({ x }) => model.logits(x)); // the stream at each stop, read as an answer: (T, V)
  return fresh.map((_, t) => {
    const chances = lens.map((logits) => softmax(row(logits, t)));
    return {
      stream: stream.map(({ x }) => row(x, t)), // (D,) at each stop
      parts: stream.map(({ x, update = x }) => row(update, t)), // the embedding and the writes, (D,) each
      chances, // (V,) at each stop
      answers: chances.map((each) => [best(each), Math.max(...each)]),
      logits: row(lens.at(-1), t), // (V,)
    };
  });
})));

const idsOf = (text, model) => model.tokenizer.encode(text).slice(0, MAX);

function* prepare({ text }, model) {
  yield* readingOf(model).inPieces(idsOf(text, model), PIECE);
}

const length = (x) => Math.sqrt(x.reduce((sum, one) => sum + one * one, 0));
const mean = (list) => list.reduce((sum, one) => sum + one, 0) / list.length;

/* What the picture and its words say of one position; all of it is under the names of the twin in Python. */
function values({ text, at: asked, stop, letter }, model) {
  const { tokenizer } = model;
  const ids = idsOf(text, model);
  if (!ids.length) return { tokens: [] };
  const line = readingOf(model).read(ids);
  const at = Math.min(asked, ids.length - 1);
  const { stream, parts, chances, answers, logits } = line[at];
  const letters = tokenizer.encode(LETTERS), typed = tokenizer.encode(letter);
  const id = typed.length === 1 ? typed[0] : best(logits);
  const [own, ...all] = Live.directions(model, stream.at(-1), [id, ...letters], letters);
  const named = ([token, chance]) => [tokenizer.tokens[token], chance];
  const moved = all.map((way, n) => [letters[n], Live.tensor.dot(parts[stop], way)]);
  const order = [...moved].sort((a, b) => b[1] - a[1]).map(named);
  return {
    tokens: ids.map((each) => tokenizer.tokens[each]), at, stop, letter: tokenizer.tokens[id],
    strange: Boolean(letter) && typed.length !== 1,
    effects: parts.map((part) => Live.tensor.dot(part, own)), // (STOPS,)
    total: logits[id] - mean(letters.map((each) => logits[each])), // what the effects add up to
    written: parts.map(length), // (STOPS,)
    lengths: stream.map(length), // (STOPS,)
    answers: answers.map(named), // at each stop
    chances: chances.map((each) => each[id]), // of the letter, at each stop
    lens: Array.from({ length: BLOCKS + 1 }, (_, n) => line.map((each) => named(each.answers[2 * n]))), // (L + 1, T)
    lifted: order.slice(0, MOST), lowered: order.slice(-MOST).reverse(),
  };
}

// Words ----

const [number, sign, named, percent] = ["number", "sign", "named", "percent"].map((one) => (...given) => Live.part[one](...given));
const nameOf = (stop) => (stop ? `block ${Math.ceil(stop / 2)}, ${stop % 2 ? "attention" : "feed-forward"}` : "embedding");
const upper = (text) => text.replace(/^./, (letter) => letter.toUpperCase());

function say(state, found) {
  const { tokens, at, stop, letter, strange, effects, total, written, lengths, answers, chances } = found;
  if (!tokens.length) return "There is no letter yet: type some.";
  const [last, chance] = answers.at(-1);
  const hers = strange ? " (The letter that was asked for is none of the model’s tokens.)" : "";
  const [most, next] = Array.from(effects.keys()).sort((a, b) => effects[b] - effects[a]);
  const size = stop ? `a write of length ${number(written[stop], 1)}; with it the stream has ${number(lengths[stop], 1)}`
    : `the stream begins with length ${number(lengths[0], 1)}`;
  return `Position ${at}, ${named(tokens[at])}: the model’s answer is ${named(last)} (${percent(chance)}).${hers} ` +
    `The logit of ${named(letter)} is ${number(total)} above the mean letter’s. Of the nine direct effects that add up to it, ` +
    `the largest are ${number(effects[most])} (${nameOf(most)}) and ${number(effects[next])} (${nameOf(next)}). ` +
    `${upper(nameOf(stop))}: ${size}. Stopped there, the model would answer ${named(answers[stop][0])} ` +
    `(${percent(answers[stop][1])})${answers[stop][0] === letter ? "" : `, and ${named(letter)} would have ${percent(chances[stop])}`}.`;
}

// The picture ----

const key = (event, found) => {
  const action = found[event.key];
  if (!action) return;
  event.preventDefault();
  action();
};

/* Where things stand, in px: the drawing is as wide as the figure, so that letters keep their size. */
function plan(width) {
  const narrow = width < 560;
  const [name, arrow, band, size, answer] = narrow ? [50, 46, 20, 40, 55] : width < 620 ? [146, 76, 34, 58, 84] : [160, 82, 40, 66, 96];
  const bus = name + arrow, effect = bus + band + size, end = width - answer;
  const middle = effect + (narrow ? 24 : 0.3 * (end - effect));
  return { width, narrow, bus, band, effect, end, middle, long: narrow ? 14 : 26, sizes: effect - (narrow ? 3 : 6), tall: 24, top: 32 };
}

/* The bus: a row for each stop. Nodes are made for a width; a change writes what differs. */
function busOf({ svg, colour }, where, { onstop }) {
  const { width, narrow, bus, band, effect, end, middle, long, sizes, tall, top } = where;
  const y = (stop) => top + (stop + 0.5) * tall;
  const height = top + STOPS * tall + 26;
  const text = (x, at, words, more) => svg("text", { x, y: at + 4.5, text: words, ...more });
  const right = { "text-anchor": "end" };
  const head = (x, words, more) => text(x, top - 14, words, { class: "live-tick", ...more });
  const title = narrow ? head(end - 4, "", right) : head(sizes + 14, "");
  const frame = svg("rect", { x: 1, width: width - 2, height: tall, rx: 3, class: "stream-frame" });
  const pipe = svg("path", { class: "stream-pipe" });
  const rows = Array.from({ length: STOPS }, (_, stop) => {
    const short = stop ? `${Math.ceil(stop / 2)} ${stop % 2 ? "attn" : "ffwd"}` : "embed";
    const [into, size, effected, answer, share] = [
      text(bus - long - 4, y(stop), "", { ...right, class: "stream-number" }), text(sizes, y(stop), "", { ...right, class: "stream-number" }),
      text(0, y(stop), "", { class: "stream-number" }), text(end + (narrow ? 2 : 12), y(stop), "", { class: "stream-letter" }), text(width - 4, y(stop), "", { ...right, class: "stream-number" }),
    ];
    const arrow = svg("path", { class: "stream-arrow" }); // a write joins the stream
    const bar = svg("rect", { height: tall - 10, y: y(stop) - tall / 2 + 5, fill: colour("weight") });
    const node = svg("g", {
      class: "stream-row", role: "button", tabindex: 0, onclick: () => onstop(stop),
      onkeydown: (event) => key(event, {
        Enter: () => onstop(stop), " ": () => onstop(stop),
        ArrowUp: () => onstop(Math.max(0, stop - 1)), ArrowDown: () => onstop(Math.min(STOPS - 1, stop + 1)),
      }),
    }, svg("rect", { x: 1, y: y(stop) - tall / 2, width: width - 2, height: tall, class: "stream-room" }),
    text(6, y(stop), narrow ? short : nameOf(stop)), arrow, into, size, bar, effected, answer, share);
    return { node, arrow, into, size, bar, effected, answer, share };
  });
  const sumOf = svg("tspan"); // why the mean, and then the sum
  const total = svg("text", { x: end - 4, y: top + STOPS * tall + 16.5, ...right, class: "stream-number stream-total" },
    narrow ? null : svg("tspan", { "font-weight": 400, text: "lifting all alike changes nothing: " }), sumOf);
  const node = svg(
    "svg", { class: "live-drawing stream-bus", role: "group", "aria-label": "The residual stream as a bus",
      viewBox: `0 0 ${width} ${height}`, style: `max-width: ${width}px; aspect-ratio: ${width} / ${height}` },
    head(bus - long - 4, narrow ? "write" : "length of the write", right), head(sizes, "stream", right), title,
    head(width - 4, narrow ? "stopped" : "stopped here", right),
    svg("path", { d: `M${middle} ${top - 2}V${top + STOPS * tall}`, class: "live-gridline" }), pipe,
    ...rows.map((row) => row.node), svg("path", { d: `M${effect + 4} ${top + STOPS * tall}H${end - 4}`, class: "stream-line" }), total, frame);
  const write = (one, words) => one.textContent !== words && (one.textContent = words);
  const wide = (size, most) => 3 + (band - 3) * (size / most);
  return {
    node, rows,
    set({ stop, letter, effects, total: sum, written, lengths, answers }) {
      const most = Math.max(...lengths), heavy = Math.max(...written);
      const [left, rest] = [middle - effect - (narrow ? 6 : 40), end - middle - 44]; // px on both sides of 0: numbers stand beside
      const unit = Math.min(left / Math.max(1e-9, -Math.min(...effects)), rest / Math.max(1e-9, Math.max(...effects)));
      write(title, `${narrow ? "" : "direct "}effect on ${sign(letter)}`);
      write(sumOf, `${narrow ? "sum" : `sum = logit of ${named(letter)} − mean logit =`} ${number(sum)}`);
      rows.forEach((row, n) => {
        const [token, chance] = answers[n];
        write(row.into, number(written[n], 1));
        write(row.size, number(lengths[n], 1));
        write(row.effected, number(effects[n]));
        write(row.answer, sign(token));
        write(row.share, percent(chance));
        row.node.setAttribute("aria-pressed", n === stop);
        row.node.setAttribute("aria-description", `${nameOf(n)}: write ${number(written[n], 1)}, stream ${number(lengths[n], 1)}, ` +
          `direct effect on ${named(letter)} ${number(effects[n])}, if it stopped here ${named(token)} ${percent(chance)}`);
      });
      Live.tween(frame, y(stop) - tall / 2, (at) => frame.setAttribute("y", at));
      Live.tween(node, {
        pipe: lengths.map((each) => wide(each, most)), arrows: written.map((each) => 1 + 8 * (each / heavy)), bars: effects.map((each) => each * unit),
      }, (now) => { // no ghost: what was there is of another line, letter or place, and compares nothing
        const edge = now.pipe.map((each, n) => [bus + each, y(n)]);
        pipe.setAttribute("d", `M${bus} ${y(0)}L${edge.map((each) => each.map((one) => one.toFixed(1)).join(" ")).join("L")}V${top + STOPS * tall}H${bus}Z`);
        rows.forEach(({ arrow, bar, effected }, n) => {
          const half = now.arrows[n] / 2;
          arrow.setAttribute("d", `M${bus - long} ${(y(n) - half).toFixed(1)}h${long - 6}v-3L${bus} ${y(n)}L${bus - 6} ${(y(n) + half + 3).toFixed(1)}v-3h${6 - long}Z`);
          bar.setAttribute("x", (middle + Math.min(0, now.bars[n])).toFixed(1));
          bar.setAttribute("width", Math.abs(now.bars[n]).toFixed(1));
          const isLeft = !narrow && now.bars[n] < 0;
          effected.setAttribute("x", narrow ? end - 4 : (middle + now.bars[n] + (isLeft ? -5 : 5)).toFixed(1));
          effected.setAttribute("text-anchor", narrow || isLeft ? "end" : "start");
        });
      });
    },
  };
}

/* The lens: a column for each letter of the line, a row for the embedding and for each block. */
function lensOf({ svg, colour }, { width, narrow }, { onpick }) {
  const [left, tall, top] = [narrow ? 26 : 86, 20, 21], wide = (width - left - 2) / MAX;
  const x = (t) => left + t * wide, y = (n) => top + n * tall;
  const letter = (t, at, more) => svg("text", { x: x(t) + wide / 2, y: at, "text-anchor": "middle", class: "live-letter", ...more });
  let [place, marks] = [[0, 0], []];
  const go = (n, t, focus) => {
    const next = cells[n]?.[t];
    if (!next || next.node.style.display) return;
    cells[place[0]][place[1]].node.setAttribute("tabindex", -1);
    place = [n, t];
    next.node.setAttribute("tabindex", 0);
    if (focus) next.node.focus({ preventScroll: true });
  };
  const pick = (n, t) => {
    go(n, t, false);
    onpick(n, t);
  };
  const heads = Array.from({ length: MAX }, (_, t) => letter(t, 15, { class: "live-letter stream-read", onclick: () => pick(BLOCKS, t) }));
  const cells = Array.from({ length: BLOCKS + 1 }, (_, n) => Array.from({ length: MAX }, (_, t) => {
    const [shade, sure, said] = [
      svg("rect", { x: x(t), y: y(n), width: wide, height: tall, fill: colour("weight") }),
      svg("path", { d: `M${x(t) + 2} ${y(n) + tall - 2.5}H${x(t) + wide - 2}`, class: "stream-right" }), letter(t, y(n) + tall / 2 + 4),
    ];
    const node = svg("g", {
      class: "stream-cell", role: "gridcell", tabindex: n || t ? -1 : 0, onclick: () => pick(n, t),
      onkeydown: (event) => key(event, {
        Enter: () => pick(n, t), " ": () => pick(n, t), ArrowUp: () => go(n - 1, t, true), ArrowDown: () => go(n + 1, t, true),
        ArrowLeft: () => go(n, t - 1, true), ArrowRight: () => go(n, t + 1, true),
      }),
    }, svg("rect", { x: x(t), y: y(n), width: wide, height: tall, class: "stream-cell-room" }), shade, said, sure);
    return { node, shade, said, sure };
  }));
  const names = cells.map((_, n) => svg("text", {
    x: left - 6, y: y(n) + tall / 2 + 4.5, "text-anchor": "end", class: "live-tick", text: n ? (narrow ? n : `block ${n}`) : narrow ? "e" : "embedding" }));
  const column = svg("rect", { y: 1, width: wide, height: top + (BLOCKS + 1) * tall - 1, class: "stream-frame" });
  const height = top + (BLOCKS + 1) * tall + 2;
  const node = svg(
    "svg", { class: "live-drawing stream-lens", role: "grid", "aria-label": "What the model would answer after each block, at each letter",
      viewBox: `0 0 ${width} ${height}`, style: `max-width: ${width}px; aspect-ratio: ${width} / ${height}` },
    svg("g", { "aria-hidden": "true" }, ...heads, ...names), ...cells.map((row) => svg("g", { role: "row" }, ...row.map((one) => one.node))), column);
  return {
    node,
    set({ tokens, at, lens }) {
      const T = tokens.length;
      const shown = JSON.stringify([tokens, lens]);
      if (shown !== marks) {
        marks = shown;
        if (place[1] >= T) go(place[0], T - 1, false);
        heads.forEach((one, t) => (one.textContent = t < T ? sign(tokens[t]) : ""));
        cells.forEach((row, n) => row.forEach(({ node: one, shade, said, sure }, t) => {
          one.style.display = t < T ? "" : "none";
          if (t >= T) return;
          const [token, chance] = lens[n][t];
          const isRight = token === tokens[t + 1];
          said.textContent = sign(token);
          shade.setAttribute("opacity", (0.55 * chance).toFixed(2));
          sure.style.display = isRight ? "" : "none";
          one.setAttribute("aria-label", `position ${t}, ${named(tokens[t])}, ${n ? `block ${n}` : "embedding"}: ${named(token)} ${percent(chance)}${isRight ? ", right" : ""}`);
        }));
      }
      Live.tween(column, x(at), (now) => column.setAttribute("x", now));
    },
  };
}

/* What an arrow and a bar are. */
const barsOf = ({ tokens, at, letter }) =>
  `After “${sign(tokens[at])}”: a row adds its arrow to the blue stream. Bar: what this alone adds to the logit of “${sign(letter)}”.`;

/* Why a direct effect may be small where the answer is sure: the norm divides by another number. */
function scaleOf({ stop, lengths }) {
  const [whole, here] = [lengths.at(-1), lengths[stop]];
  const times = number(whole / here, whole / here < 10 ? 1 : 0);
  const [end, now] = [whole, here].map((each) => number(each / Math.sqrt(D)));
  return `The norm divides by the root mean square: at the end ${end}` +
    (stop === STOPS - 1 ? "." : `, here ${now} (these would weigh × ${times}).`);
}

const NOTE = "Direct effect: a part of the stream, divided by the root mean square of the whole final stream (its length / √256) and " +
  "multiplied by the final norm’s gains, then its product with the letter’s output row minus the mean row of the 66 letters. " +
  "The nine effects add up to the letter’s logit minus the mean logit: to raise all logits alike changes no probability. " +
  "Stopped there: the final norm and the output layer read the stream as it is at that place.";
const LENS = "Column: a letter of the line. Row: how far the model has come. Cell: the letter that it would write next " +
  "if it stopped there (darker: surer; underlined: right).";
const PRESS = { wide: "Press a cell, a row, or a letter that is lifted or lowered.", narrow: "Press a letter or a row." };

function build(part, figure) {
  const { html } = part;
  const set = figure.set.bind(figure);
  figure.set = (changes, how) => set("text" in changes ? { at: MAX - 1, letter: "", ...changes } : changes, how);
  const pick = (changes) => {
    figure.set(changes, Live.QUICK);
    figure.released();
    figure.loadIfAsked(); // another place of the line is not written down
  };
  let [where, bus, lens, found] = [null, null, null, null];
  const onstop = (stop) => {
    pick({ stop });
    bus.rows[stop].node.focus({ preventScroll: true });
  };
  const onpick = (n, at) => pick({ at, stop: 2 * n });
  const narrow = part.isNarrow();
  const strip = part.tokens({ label: "Pick a position", onpick: (at) => pick({ at }) });
  const chips = (label, does) => {
    const [word, { node, set: put }] = [html("span"), part.tokens({ label, onpick: (n) => pick({ letter: found[label][n][0] }) })];
    const set = (all) => {
      const isNone = all.every(([, effect]) => !Number(effect.toFixed(1)));
      part.write(word, isNone ? `${does} no letter` : does);
      node.style.visibility = isNone ? "hidden" : ""; // it keeps its room
      put(all.map(chip));
    };
    return { word, node, set };
  };
  const [lifted, lowered] = [chips("lifted", "lifts"), chips("lowered", "lowers")];
  const heading = html("p", { class: "live-title" });
  const scale = html("p", { class: "live-title" });
  const panel = html("div", { class: "stream-panel" }, heading, html("div", {}, lifted.word, lifted.node, lowered.word, lowered.node), narrow ? null : scale); // a phone’s screen is short
  const [busRoom, lensRoom] = [html("div"), html("div")];
  const [bars, table] = [part.titled("", busRoom), part.titled(LENS, lensRoom)];
  const press = html("p", { class: "live-title live-press", text: narrow ? PRESS.narrow : PRESS.wide });
  const note = html("details", {}, html("summary", { text: "How a direct effect is computed" }), html("p", { class: "live-title", text: NOTE }));

  const layOut = part.fitted(figure, {
    make: (width) => {
      where = plan(width);
      [bus, lens] = [busOf(part, where, { onstop }), lensOf(part, where, { onpick })];
      busRoom.replaceChildren(bus.node);
      lensRoom.replaceChildren(lens.node);
    },
    again: () => found.tokens.length && update(figure.state, found),
  });

  const chip = ([token, effect]) => ({ text: `${sign(token)}\u00a0${number(effect, 1)}`, mark: token === found.letter, shade: 0 });

  function update(state, values) {
    found = values;
    layOut();
    const none = !found.tokens.length;
    for (const one of [bars, panel, table]) one.hidden = none;
    if (narrow) strip.set(found.tokens.map((text, at) => ({ text, mark: at === found.at })));
    if (none) return;
    bus.set(found);
    lens.set(found);
    part.write(bars.firstChild, barsOf(found));
    part.write(heading, `what ${nameOf(found.stop)} moves most`);
    part.write(scale, scaleOf(found));
    lifted.set(found.lifted);
    lowered.set(found.lowered);
  }

  return narrow
    ? { nodes: [press, strip.node, bars, panel], rest: [scale, table, note], update }
    : { nodes: [press, table, bars, panel], rest: [note], update };
}

const hidden = (max, start) => ({ kind: "number", min: 0, max, step: 1, start, hidden: true });

Live.define({
  name: "stream",
  title: "The residual stream of a trained model",
  question: "Which part finds the next letter, and after which block can one read it?",
  intro: "At each letter a vector runs through the model, the residual stream. Every sublayer adds to it; at the end " +
    "it is read as logits for the next letter. Here it is read earlier, too.",
  page: "10_residuals",
  heights: [1012, 1423],
  scripts: ["stream_start.js"],
  models: ["shakespeare"],
  slow: true,
  needs: () => "shakespeare",
  state: {
    text: { kind: "text", label: "line", max: MAX, start: "Speak, good Horatio: spe", letters: "aeorst nIT,-’" },
    letter: { kind: "text", label: "letter to explain", max: 1, start: "", letters: "aeorst q’" },
    at: hidden(MAX - 1, MAX - 1), stop: hidden(STOPS - 1, 6),
  },
  prepare,
  values,
  stored: () => Live.streamStart, // a tool has written it down
  say,
  tries: [
    {
      do: "Stop at once", set: { stop: 0 },
      see: "Read after the embedding, every column answers with the letter that it has just read: one table reads letters in and out.",
    },
    {
      do: "A long arrow, no bar", set: { stop: 5 },
      see: "Block 3’s attention adds a vector of length 24.0, with a bar of −0.08. What it does for a, it does through later sublayers.",
    },
    {
      do: "After a q", set: { text: "The king and the q", at: 17, stop: 2 },
      see: "Stopped after block 1, the model answers u with 95%. Every feed-forward network lifts u again, by 2.94 to 3.79.",
    },
    {
      do: "A long bar, less sure", set: { text: "To be, or not to b", at: 17, stop: 8 },
      see: "The last row has the longest bar for e, 6.76. But it lifts i and r about as much, and the probability of e falls from 80% to 76%.",
    },
  ],
  build,
});
})();
