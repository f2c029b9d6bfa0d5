"use strict";
/* Chapter 12: a number goes letter by letter from English to German. Where does each letter look, what could
   come next, and what does the cache hold? S: letters of the source, T: positions that the decoder has read
   (the start, and what is written), L: layers, D: width of the stream. */
(() => {
const MAX = 40; // letters of each language; what comes after them is cut off
const BEST = 5; // candidates that are shown
const END = "<eos>";
const NUMBERS = ["forty-two", "twelve", "nine hundred"]; // to press

// Numbers ----

let kept = null; // the last source: its letters, what the encoder made of them, and a reading of the German

const idsOf = (text, model) => model.tokenizer.encode(text).slice(0, MAX);
const isHidden = (hidden, s) => hidden[s] === "1";

/* A letter that is hidden has no key and no value in the memory: that is what a mask comes to. */
function without(encoded, hidden) {
  const seen = [...encoded.ids.keys()].filter((s) => !isHidden(hidden, s));
  const D = encoded.x.length / encoded.ids.length, x = new Float64Array(seen.length * D);
  seen.forEach((s, at) => x.set(encoded.x.subarray(s * D, (s + 1) * D), at * D));
  return { seen, source: { ids: seen.map((s) => encoded.ids[s]), x } };
}

/* What the decoder finds at each position: weights [layer][head] over all S letters, and chances (V,). */
function noteOf(S, seen) {
  const whole = (row) => {
    const all = new Float64Array(S); // what is hidden gets nothing
    seen.forEach((s, at) => (all[s] = row[at]));
    return all;
  };
  return ({ logits, cross_attention }, fresh, row) => fresh.map((_, t) => ({
    weights: cross_attention.map((heads) => heads.map((rows) => whole(rows[t]))),
    chances: Live.tensor.softmax(row(logits, t)),
  }));
}

function readingOf({ text, hidden }, model) {
  const ids = idsOf(text, model), same = kept?.model === model && kept.text === text;
  if (same && kept.hidden === hidden) return kept.reading;
  const encoded = same ? kept.encoded : model.encode(ids);
  const { seen, source } = without(encoded, hidden);
  kept = { model, text, hidden, encoded, reading: new Live.Reading(model, noteOf(ids.length, seen), source) };
  return kept.reading;
}

/* A new source is encoded when what was pressed has been painted. */
function* prepare(state, model) {
  if (!idsOf(state.text, model).length) return;
  if (kept?.text !== state.text) yield;
  yield* readingOf(state, model).inPieces([model.tokenizer.bos, ...idsOf(state.german, model)], 2);
}

const mean = (rows) => rows[0].map((_, s) => rows.reduce((sum, row) => sum + row[s], 0) / rows.length);

function values(state, model) {
  const { tokens, bos } = model.tokenizer;
  const source = idsOf(state.text, model), written = idsOf(state.german, model);
  if (!source.length) return { source: [], written: [], candidates: [] };
  const positions = readingOf(state, model).read([bos, ...written]); // T of them
  const { chances } = positions.at(-1);
  const weights = positions.map(({ weights: all }) => {
    const heads = all[state.layer - 1]; // (H, S)
    return state.head === "mean" ? mean(heads) : heads[state.head - 1];
  });
  const order = Array.from(chances.keys()).sort((a, b) => chances[b] - chances[a]);
  return {
    source: source.map((id) => tokens[id]), written: written.map((id) => tokens[id]),
    hidden: source.map((_, s) => isHidden(state.hidden, s)),
    weights, links: Live.part.strongest(weights.at(-1)), // (T, S): row n was looked at before letter n was written
    candidates: order.slice(0, BEST).map((id) => [tokens[id], chances[id]]),
    room: 2 * model.decoder.stack.blocks.length * model.config.d_model, // numbers in the cache for one place
  };
}

// Words ----

const odds = (share) => (share < 0.005 ? "<1%" : Live.part.percent(share));
const thousands = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

function say({ layer, head }, { source, written, hidden, links, candidates, room }) {
  const { named, number } = Live.part;
  if (!source.length) return "There is no letter yet: type a number.";
  const [[first, chance], [second, less]] = candidates;
  const text = written.length ? `“${written.join("")}”` : "nothing";
  const follows = first === END ? `now the end is likeliest (${odds(chance)})`
    : `the likeliest next letter is ${named(first)} (${odds(chance)})`;
  const who = head === "mean" ? "the mean of its heads" : `head ${head} (in code: ${layer - 1}, ${head - 1})`;
  const veiled = source.filter((_, s) => hidden[s]).map(named);
  const places = links.map(([s, w]) => `${named(source[s])} (${s}) ${number(w)}`).join(", ");
  const where = veiled.length === source.length ? "finds nothing to look at: every letter is hidden."
    : `looks at: ${places}.${veiled.length ? ` Hidden: ${veiled.join(", ")}.` : ""}`;
  const T = written.length + 1;
  return `It has written ${text}; ${follows}, then ${named(second)} (${odds(less)}). ` +
    `Layer ${layer}, ${who}, ${where} ` +
    `The cache holds ${T} ${T === 1 ? "place" : "places"} of its own (${thousands(room * T)} numbers; the next letter ` +
    `adds ${room}), and ${source.length} of the source (${thousands(room * source.length)} numbers, computed once).`;
}

// The picture ----

const [TOP, SIDE] = [44, 28]; // px: where English begins, a letter
const LEAST = 0.02; // weights below that are not drawn
const TRAIL = 0.3; // what was looked at less than that leaves no trail

/* Both languages: the English letters that can be hidden, the German ones, the lines between them. Keys and
   values of the cache stand at their letters. Nodes are made for a width and a number of English letters. */
function deskOf({ svg, colour, sign, named, number }, width, S, onhide) {
  const narrow = width < 480;
  const LOW = narrow ? 131 : 160, FOOT = LOW + SIDE + 48; // where German begins, and where all ends
  const pitch = (T) => Math.min(40, (width - 2) / Math.max(S, T + 1, 16));
  const text = (more) => svg("text", { class: "live-tick", ...more });
  const box = (more) => svg("rect", { height: SIDE, rx: 2, ...more });
  const cell = (kind) => { // keys over values, for one place
    const node = svg("g", {}, ...["key", "value"].map((role, n) => svg("rect", { y: 8 * n, height: 7, fill: colour(role) })));
    return { node, set: (x, wide, y) => {
      node.setAttribute("transform", `translate(${x.toFixed(2)} ${y})`);
      for (const each of node.children) each.setAttribute("width", Math.max(1, wide - 3).toFixed(2));
    } };
  };
  const letters = (n, y, look) => Array.from({ length: n }, (_, at) => {
    const [room, shade] = [box({ y, class: "translate-room" }), box({ y, fill: colour("weight"), opacity: 0 })];
    const letter = svg("text", { y: y + SIDE / 2 + 5, class: "live-letter", "text-anchor": "middle" });
    const places = cell();
    return { room, shade, letter, places, node: svg("g", look(at), room, shade, letter), cache: places.node };
  });
  let place = 0; // the English letter that has the tab stop
  const go = (at, focus) => {
    if (!english[at]) return;
    english[place].node.setAttribute("tabindex", -1);
    english[place = at].node.setAttribute("tabindex", 0);
    if (focus) english[at].node.focus({ preventScroll: true });
  };
  const press = (at) => {
    go(at, false);
    onhide(at);
  };
  const english = letters(S, TOP, (at) => ({
    class: "translate-letter", role: "button", tabindex: at ? -1 : 0, onclick: () => press(at),
    onkeydown: (event) => {
      const act = { Enter: () => press(at), " ": () => press(at), ArrowLeft: () => go(at - 1, true), ArrowRight: () => go(at + 1, true) }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    },
  }));
  const german = letters(MAX + 1, LOW, () => ({}));
  const path = (more) => svg("path", { class: "translate-line", ...more });
  const line = () => path({ stroke: colour("weight") });
  const [ghosts, lines] = [english.map(line), english.map(line)];
  const trail = german.map(() => path({ class: "translate-trail" }));
  const frame = box({ y: LOW, class: "translate-slot" });
  const slot = svg("text", { y: LOW + SIDE / 2 + 5, class: "live-letter translate-next", "text-anchor": "middle" });
  const [top, foot] = [text({ x: 1, y: 13 }), text({ x: 1, y: FOOT - 11 })];
  const most = text({ y: TOP + SIDE + 15, class: "live-tick live-halo translate-most" });
  const node = svg(
    "svg", { class: "live-drawing", role: "group", "aria-label": "English letters, press one to hide it; below them the German ones",
      viewBox: `0 0 ${width} ${FOOT}`, style: `max-width: ${width}px; aspect-ratio: ${width} / ${FOOT}` },
    ...trail, svg("g", { class: "live-ghost" }, ...ghosts), ...lines, ...english.flatMap((one) => [one.cache, one.node]),
    ...german.flatMap((one) => [one.cache, one.node]), frame, slot, most, top, foot);
  const curve = (from, to) => {
    const [low, high] = [LOW - 1, TOP + SIDE + 1], middle = (low + high) / 2;
    return `M${from.toFixed(1)} ${low}C${from.toFixed(1)} ${middle} ${to.toFixed(1)} ${middle} ${to.toFixed(1)} ${high}`;
  };
  const put = (one, w, from, to) => {
    one.setAttribute("d", w >= LEAST ? curve(from, to) : "");
    one.setAttribute("stroke-width", (0.5 + 9 * w).toFixed(2));
  };
  const write = (one, words) => one.textContent !== words && (one.textContent = words);
  return {
    node, width, S,
    set({ source, written, hidden, weights, candidates, room }) {
      const T = written.length + 1, wide = pitch(T), last = weights.at(-1);
      const x = (n) => 1 + (n + 0.5) * wide;
      const many = (n) => `${n} ${n === 1 ? "place" : "places"}`;
      write(top, narrow ? `${many(S)}, computed once: ${thousands(room * S)} numbers`
        : `The source, with its keys and values: ${many(S)}, computed once, ${thousands(room * S)} numbers`);
      write(foot, narrow ? `${many(T)}: ${thousands(room * T)} numbers, ${room} more a letter`
        : `What is written, with its keys and values: ${many(T)}, ${thousands(room * T)} numbers, ${room} more with each letter`);
      node.classList.toggle("translate-large", wide >= 17);
      english.forEach(({ node: one, letter }, s) => {
        write(letter, sign(source[s]));
        one.setAttribute("aria-pressed", hidden[s]);
        one.setAttribute("aria-label", `${named(source[s])}, place ${s}: ${hidden[s] ? "hidden" : `weight ${number(last[s])}`}`);
      });
      german.forEach((one, n) => {
        one.node.style.display = one.cache.style.display = n < T ? "" : "none";
        if (n < T) write(one.letter, n ? sign(written[n - 1]) : "▷");
        one.cache.classList.toggle("translate-new", n === T - 1);
      });
      const strongest = last.indexOf(Math.max(...last));
      most.style.display = last[strongest] >= 0.1 ? "" : "none";
      write(most, number(last[strongest]));
      write(slot, sign(candidates[0][0]));
      const looked = weights.slice(0, -1).map((row) => row.indexOf(Math.max(...row)));
      trail.forEach((one, n) => (one.style.display = n < T - 1 && weights[n][looked[n]] >= TRAIL ? "" : "none"));
      Live.tween(node, { wide, at: T, weights: Array.from(last), read: [...source, ...hidden].join(), german: written.join("") }, (now, before) => {
        const isLike = before?.read === now.read && now.german.startsWith(before.german); // the place from which it looked still stands
        const middle = (n) => 1 + (n + 0.5) * now.wide;
        const set = ({ room: one, shade, letter, places }, n, y) => {
          for (const each of [one, shade]) {
            each.setAttribute("x", (middle(n) - now.wide / 2).toFixed(2));
            each.setAttribute("width", (now.wide - 1).toFixed(2));
          }
          letter.setAttribute("x", middle(n).toFixed(2));
          places.set(middle(n) - now.wide / 2 + 1, now.wide, y);
        };
        english.forEach((one, s) => {
          set(one, s, TOP - 19);
          one.shade.setAttribute("opacity", (0.55 * now.weights[s]).toFixed(2));
          put(lines[s], now.weights[s], middle(now.at), middle(s));
          put(ghosts[s], isLike ? before.weights[s] : 0, middle(before?.at ?? 0), middle(s));
        });
        german.slice(0, T).forEach((one, n) => set(one, n, LOW + SIDE + 4));
        looked.forEach((s, n) => trail[n].setAttribute("d", curve(middle(n + 1), middle(s))));
        frame.setAttribute("x", (middle(now.at) - now.wide / 2).toFixed(2));
        frame.setAttribute("width", (now.wide - 1).toFixed(2));
        slot.setAttribute("x", middle(now.at).toFixed(2));
      });
      const isLeft = x(strongest) > width - 50; // beside the line, where there is room
      most.setAttribute("x", (x(strongest) + (isLeft ? -7 : 7)).toFixed(1));
      most.setAttribute("text-anchor", isLeft ? "end" : "start");
    },
  };
}

const NOTE = "At each letter: its keys (upper bar) and values (lower bar) in the cache, of all layers. Grey: where this head looked " +
  "most before it wrote each letter. Pale: what was there before. ▷ is the start. Trained with label smoothing of 0.1, " +
  "the model is never surer than about 95%.";

function build(part, figure) {
  const { html } = part;
  const set = figure.set.bind(figure);
  figure.set = (changes, how) => set("text" in changes ? { german: "", hidden: "", ...changes } : changes, how);
  let [desk, found] = [null, null];
  const put = (changes, how = Live.QUICK) => {
    figure.set(changes, how);
    figure.released();
    figure.loadIfAsked(); // only the start is written down
  };
  const isOver = () => !found?.candidates.length || found.candidates[0][0] === END || found.written.length >= MAX;
  const step = () => {
    if (figure.work || figure.loading) return true; // another number is still being read, or the model comes
    if (isOver()) return false;
    const german = found.written.join("") + found.candidates[0][0];
    if (figure.isWaiting && figure.state.german === german) return false; // it did not come
    figure.set({ german }, Live.QUICK);
    figure.loadIfAsked();
    return !isOver();
  };
  const flow = part.player(figure, { step, again: () => figure.set({ german: "" }, Live.QUICK), every: 700, names: ["Write all", "Step"], stays: true });
  const button = (text, onclick) => html("button", { type: "button", text, onclick });
  flow.node.append(
    button("Back", () => put({ german: [...figure.state.german].slice(0, -1).join("") })), button("Start over", () => put({ german: "" })));
  const numbers = html("div", { class: "translate-numbers" }, part.isNarrow() ? null : html("span", { text: "or" }), ...NUMBERS.map((text) => button(text, () => put({ text }))));
  const onhide = (at) => {
    const { hidden } = figure.state;
    put({ hidden: found.source.map((_, s) => Number((hidden[s] === "1") !== (s === at))).join("").replace(/0+$/, "") });
  };
  const room = html("div");
  const [heading, next] = [html("p", { class: "live-title", text: "candidates for the next letter" }), part.bars({
    names: Array(BEST).fill(""), label: "Candidates for the next letter",
    onpick: (n) => {
      const [token] = found.candidates[n];
      if ([...token].length === 1) put({ german: found.written.join("") + token });
    },
  })];
  const layOut = part.fitted(figure, {
    make: (width) => {
      desk = deskOf(part, width, found.source.length, onhide);
      room.replaceChildren(desk.node);
    },
    again: () => found?.source.length && desk.set(found),
  });

  function update(state, values) {
    if (found === Live.translateStart) [desk, next].forEach(({ node }) => Live.forget(node)); // what was rounded is no ghost
    found = values;
    const none = !found.source.length;
    part.write(trained, Live.isTrained(state.text) ? "Trained on numbers from 0 to 999,999, written like these."
      : "Not a number from 0 to 999,999 as in training: what it writes is a guess.");
    for (const one of [room, heading, next.node]) one.hidden = none;
    if (none) return;
    layOut(found.source.length !== desk?.S);
    desk.set(found);
    const names = found.candidates.map(([token]) => (token === END ? "end" : part.sign(token)));
    next.set(found.candidates.map(([, chance]) => chance), { names, texts: found.candidates.map(([, chance]) => odds(chance)) });
  }

  const trained = html("p", { class: "live-title translate-trained" });
  const left = html("div", {}, flow.node, numbers, part.isNarrow() ? null : trained), right = html("div", {}, heading, next.node);
  const press = html("p", { class: "live-title live-press", text: `Press ${part.isNarrow() ? "a" : "an English"} letter to hide it, a candidate to write it.` });
  return { nodes: [press, room, html("div", { class: "translate-below" }, right, left)], rest: [part.isNarrow() ? trained : null, html("p", { class: "live-title", text: NOTE })], update };
}

const choice = (label, start, of) => ({ kind: "choice", label, start, of });
const counted = (n) => Object.fromEntries(Array.from({ length: n }, (_, at) => [at + 1, String(at + 1)]));

Live.define({
  name: "translate",
  title: "A translator, letter by letter",
  question: "Where does it look before it writes a letter, and what does it keep?",
  page: "12_decoder",
  heights: [864, 1143],
  scripts: ["translate_start.js"],
  models: ["numbers"],
  needs: () => "numbers",
  state: {
    text: { kind: "text", label: "number in English", max: MAX, start: "forty-two", letters: "aefhinorstvwy -ü" },
    german: { kind: "text", label: "German so far", max: MAX, start: "zwei", letters: "aefhinorstuvwzü" },
    layer: choice("layer", "3", counted(3)),
    head: choice("head", "2", { ...counted(4), mean: "mean" }),
    hidden: { kind: "text", pattern: "[01]*", letters: "0001", max: MAX, start: "", hidden: true },
  },
  prepare,
  values,
  stored: () => Live.translateStart, // a tool has written it down
  say,
  tries: [
    {
      do: "The words turn", set: { german: "zweiund" },
      see: "It says two-and-forty: it looked at the w, then at the hyphen, now at the f. The lines cross.",
    },
    {
      do: "A wrong letter", set: { german: "v" },
      see: "It takes your v for its own, and goes on with i. Write all: vierundvierzig.",
    },
    {
      do: "Hide one letter", set: { german: "", hidden: "00000001" },
      see: "The w is not seen, and e has 60%. Write all: einundvierzig. Press the w again to show it.",
    },
    {
      do: "Hide all", set: { german: "", hidden: "111111111" },
      see: "Nothing to look at, and it still writes German. Write all: zweihunderttausenddreihundert.",
    },
  ],
  build,
});
})();
