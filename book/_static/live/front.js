"use strict";
/* The front page: a line goes through the Shakespeare model and comes back one letter longer. T: letters
   read, D: width of a lane, L: layers, H: heads, V: tokens that can be written.
   Stages: 0 tokens, 1 embedding, then attention and feed-forward of each layer, the answer, the letter.
   Attention opens (`zoom`): 1 query, key and value, 2 scores, 3 scale, 4 mask, 5 softmax, 6 mixture of one head,
   7 what every head writes, and what that does to the answer, 8 why it does that.
   Feed-forward opens: 1 its units, 2 what they write, 3 why that lifts the answer. */
(() => {
const softmax = (scores) => Live.tensor.softmax(scores);
const TYPED = 40, MOST = 60; // tokens of the line that is typed, and of the answer
const ROWS = 18; // lanes in the picture: the last letters
const LAYERS = 4, ANSWER = 2 * LAYERS + 2, WRITE = ANSWER + 1;
const HEADS = 8, ZOOMS = 8, DEEPS = 3; // steps of an open attention, and of an open feed-forward
const BUSY = 6, TOPS = 5; // units, and products, that are named
const TEMPERATURES = { cool: 0.5, drawn: 1, warm: 1.5 };
const PIECE = 2; // letters of a new line that are read at a time
const BEST = 6, FIRST = 12; // candidates, and numbers of a vector, that are shown
const FIRST_SEED = 1000, DRAWS = 1000; // of the letters that are drawn; so often a draw can be repeated

// Numbers ----

let kept = null; // the last line: a reading, with an entry for each letter

/* What the model makes of each letter. */
const readingOf = (model) => (kept?.model === model ? kept : (kept = new Live.Reading(model, (found, fresh, row) =>
  fresh.map((_, t) => ({
    stream: found.stream.map(({ x }) => row(x, t)), // after the embedding and each sublayer, (D,) each
    writes: found.stream.slice(1).map(({ update }) => row(update, t)), // what each sublayer adds, (D,) each
    weights: found.attention.map((heads) => heads.map((rows) => rows[t])), // [layer][head], each (S,)
    logits: row(found.logits, t), // (V,)
  })))));

/* As many letters of a line as fit: one that the model never saw takes several tokens, its bytes. */
function readOf(text, model) {
  let [room, read] = [TYPED, ""];
  for (const letter of text) {
    if ((room -= model.tokenizer.encode(letter).length) < 0) break;
    read += letter;
  }
  return read;
}

const idsOf = (text, model) => model.tokenizer.encode(readOf(text, model));

function* prepare({ text }, model) {
  yield* readingOf(model).inPieces(idsOf(text, model), PIECE);
}

const peak = (list) => list.indexOf(Math.max(...list)); // where the largest stands
/* The head whose write parts the answer most from its rival: only differences of scores count. */
const partingHead = ([answers, rivals]) => peak(answers.map((one, n) => one - rivals[n]));
const ranked = (list) => Array.from(list.keys()).sort((a, b) => list[b] - list[a]); // places, the largest first

/* Scores as probabilities; a temperature divides the scores first. */
const chancesOf = (logits, pick) => softmax(logits.map((score) => score / (TEMPERATURES[pick] || 1)));

function choose(logits, pick, n, draw) {
  const chances = chancesOf(logits, pick);
  if (pick === "likeliest") return peak(chances);
  let left = Live.tensor.uniform(FIRST_SEED + n + (MOST + 1) * draw)();
  for (let id = 0; id < chances.length; id++) if ((left -= chances[id]) < 0) return id;
  return chances.length - 1;
}

/* The letters that were written before the way of choosing was set anew, (N,). */
const fixedOf = (fixed, { tokenizer }) => (fixed.match(/\d+/g) || []).map(Number).filter((id) => id < tokenizer.tokens.length);

/* The stream read as an answer: the likeliest tokens, each with its logit, its probability, and the
   probability that it had one stage before; where a letter is chosen, before the temperature.
   `must`: tokens that are among them in any case. */
function guesses(model, at, stage, pick, must = []) {
  const after = (n) => model.logits(at.stream[n]);
  const place = Math.min(stage, ANSWER - 1) - 1; // in the stream
  if (place < 0) return [];
  const logits = after(place), isLast = stage === WRITE;
  const chances = isLast ? chancesOf(logits, pick) : softmax(logits);
  const before = softmax(isLast ? logits : after(Math.max(0, place - 1)));
  const order = ranked(chances), others = order.filter((id) => !must.includes(id)).slice(0, BEST - must.length);
  return order.filter((id) => must.includes(id) || others.includes(id)).map((id) => [model.tokenizer.tokens[id], logits[id], chances[id], before[id]]);
}

/* How one head comes from scores to a mixture. Queries are not kept: that of the chosen letter is made again. */
function lookOf({ cache, model }, stream, { layer, head, first, at }) {
  const { config, decoder } = model, { rmsNorm, matmulT, rotate, dot } = Live.tensor;
  const { attention, attention_norm } = decoder.stack.blocks[layer], { keys, values } = cache.memories[layer].self;
  const D = stream.length, width = D / config.n_heads;
  const row = ({ data }, s) => data.subarray(s * D + head * width, s * D + (head + 1) * width); // (Dk,)
  const x = rmsNorm(stream, attention_norm.weight.data, config.norm_eps);
  const made = ["query", "key", "value"].map((name) => matmulT(x, attention[name].weight.data, 1, D, D)); // (D,) each
  const q = rotate(made[0], at, width, config.rope_theta);
  const query = row({ data: q }, 0);
  const raw = Array.from({ length: keys.length }, (_, s) => dot(query, row(keys, s))); // (T,): also what the mask will hide
  const few = (rows) => raw.slice(first).map((_, s) => Array.from(row(rows, first + s).slice(0, FIRST)));
  const corner = ({ weight }) => Array.from({ length: FIRST }, (_, i) => Array.from(weight.data.slice((head * width + i) * D, (head * width + i) * D + FIRST)));
  return {
    x: Array.from(x.slice(0, FIRST)), tables: [attention.query, attention.key, attention.value].map(corner),
    made: made.map((data) => Array.from(row({ data }, 0).slice(0, FIRST))), // not turned yet
    width, query: Array.from(query.slice(0, FIRST)), keys: few(keys), raw, scores: raw.map((score) => score / Math.sqrt(width)),
    values: few(values),
  };
}

/* What all heads of an attention write onto a lane: their mixtures, each times its part of the output table.
   And what that does, by itself, to the scores of two letters, whose `ways` are given. What later layers make
   of a write is not in it. */
function writesOf({ cache, model: { decoder } }, { weights }, layer, ways) {
  const { data, width: D, length: T } = cache.memories[layer].self.values;
  const table = decoder.stack.blocks[layer].attention.output.weight.data; // (D, D)
  const heads = weights[layer], Dk = D / heads.length;
  const mixtures = heads.map((shares, head) => Float64Array.from({ length: Dk }, (_, i) =>
    shares.reduce((sum, w, s) => sum + (s < T ? w * data[s * D + head * Dk + i] : 0), 0)));
  const writes = mixtures.map((mixture, head) => Float64Array.from({ length: D }, (_, i) =>
    mixture.reduce((sum, value, j) => sum + table[i * D + head * Dk + j] * value, 0)));
  return { mixtures, writes, effects: ways.map((way) => writes.map((write) => Live.tensor.dot(write, way))) }; // (2, H)
}

/* Why a write (D,) lifts the score of a letter: it is the sum of its numbers, each times that of the letter's
   vector, through the final norm, which divides by `size`. The largest products: [place, write, vector, product]. */
function liftOf(write, ways, size) {
  const vectors = ways.map((way) => Array.from(way, (one) => one * size)); // (2, D)
  const products = vectors.map((vector) => Array.from(write, (one, i) => [i + 1, one, vector[i], one * vector[i]]));
  return {
    write: Array.from(write), vectors, size, sums: products.map((all) => all.reduce((sum, one) => sum + one[3], 0)),
    tops: products.map((all) => all.sort((a, b) => Math.abs(b[3]) - Math.abs(a[3])).slice(0, TOPS)),
  };
}

/* What each unit of a feed-forward does to the logits of two letters, and those that do most to the first one:
   [place, score of its gate, number beside it, product]. */
function unitsOf({ decoder, config }, stream, layer, ways) {
  const { rmsNorm, matmulT, silu } = Live.tensor;
  const { feed_forward: { gate, up, down }, feed_forward_norm } = decoder.stack.blocks[layer], F = config.d_ff, D = stream.length;
  const x = rmsNorm(stream, feed_forward_norm.weight.data, config.norm_eps);
  const [g, u] = [gate, up].map(({ weight }) => matmulT(x, weight.data, 1, D, F)); // (F,) each
  const answers = Array.from(silu(g), (one, n) => one * u[n]), vectors = down.weight.data; // (F,), (D, F)
  const effects = ways.map((way) => answers.map((answer, n) => answer * way.reduce((sum, one, i) => sum + one * vectors[i * F + n], 0))); // (2, F)
  const busy = answers.map((_, n) => n).sort((a, b) => Math.abs(effects[0][b]) - Math.abs(effects[0][a])).slice(0, BUSY);
  return {
    x: Array.from(x.slice(0, FIRST)), effects, shut: g.filter((score) => score < 0).length,
    busy: busy.map((n) => [n + 1, g[n], u[n], answers[n]]),
    writes: busy.map((n) => Array.from({ length: FIRST }, (_, i) => answers[n] * vectors[i * F + n])),
  };
}

/* Everything that the picture and its words say. `at`: the chosen letter, the last one when the next is
   written; `first`: the first one with a lane. */
function values({ text, pick, written, stage, back, zoom, head, draw, fixed }, model) {
  const { tokenizer } = model;
  const ids = idsOf(text, model);
  const typed = ids.length;
  if (!typed) return { tokens: [] };
  const reading = readingOf(model);
  const stays = fixedOf(fixed, model), nextOf = (logits, n) => stays[n] ?? choose(logits, pick, n, draw);
  for (let n = 0; n < written; n++) ids.push(nextOf(reading.read(ids)[ids.length - 1].logits, n));
  const letters = reading.read(ids);
  const T = ids.length, first = Math.max(0, T - ROWS), at = stage === WRITE ? T - 1 : Math.max(first, T - 1 - back);
  const shown = letters.slice(first), own = letters[at];
  const line = (weights) => Array.from({ length: T }, (_, s) => weights[s] ?? 0); // (T,): none of what comes later
  const mean = (heads) => line(heads[0]).map((_, s) => heads.reduce((sum, w) => sum + (w[s] ?? 0), 0) / heads.length);
  const isLayer = stage > 1 && stage < ANSWER, layer = isLayer ? Math.floor(stage / 2) - 1 : -1;
  const looks = isLayer && stage % 2 === 0;
  const numbers = (x) => Array.from(x.slice(0, FIRST));
  const next = nextOf(letters[T - 1].logits, written);
  const pair = ranked(own.logits).slice(0, 2), [answer] = pair; // and its rival: the second in the end
  const chances = own.stream.map((x) => softmax(model.logits(x))[answer]);
  const now = own.stream[isLayer ? stage - 1 : 0]; // the lane as this stage leaves it
  const ways = isLayer ? Live.directions(model, now, pair, tokenizer.encode(Live.PLAYS)) : [];
  const size = (x) => Live.sizeOf(x, model.config), sizes = shown.map(({ stream }) => stream.map(size));
  const held = ways.map((way) => Live.tensor.dot(own.stream[stage - 2], way)); // what the lane brought, by the new norm
  const grown = isLayer ? size(now) / size(own.stream[stage - 2]) : 1;
  const wrote = looks ? writesOf(kept, own, layer, ways) : null;
  const chosen = looks && head === HEADS ? partingHead(wrote.effects) : head;
  return {
    tokens: ids.map((id) => tokenizer.tokens[id]), ids, typed, read: readOf(text, model), stage, layer, first, at,
    width: own.stream[0].length, inner: model.config.d_ff,
    embedded: shown.map(({ stream }) => numbers(stream[0])),
    sizes, // (shown, 2L + 1)
    added: shown.map(({ writes }) => writes.map(size)), // (shown, 2L)
    attention: own.weights.map((_, n) => shown.map(({ weights }) => mean(weights[n]))), // (L, shown, T)
    heads: looks ? own.weights[layer].map(line) : [], // (H, T)
    zoom: isLayer ? Math.min(zoom, stepsOf(stage)) : 0, head: chosen,
    opens: 2 + 2 * peak(own.weights.map((_, n) => chances[2 * n + 1] - chances[2 * n])), // the attention that raises the answer most
    look: looks ? { ...lookOf(kept, own.stream[stage - 2], { layer, head: chosen, first, at }),
      mixtures: wrote.mixtures.map(numbers), writes: wrote.writes.map(numbers), effects: wrote.effects } : null,
    units: isLayer && !looks ? unitsOf(model, own.stream[stage - 2], layer, ways) : null,
    rivals: isLayer ? pair.map((id) => tokenizer.tokens[id]) : [],
    lift: isLayer ? liftOf(looks ? wrote.writes[chosen] : own.writes[stage - 2], ways, size(now)) : null,
    held, before: held.map((one) => one * grown), // and by the norm of the lane as it was
    stream: numbers(own.stream[stage < 2 ? 0 : Math.min(stage, ANSWER) - 2]), // that the stage finds
    write: isLayer ? numbers(own.writes[stage - 2]) : [],
    best: own.stream.map((_, n) => guesses(model, own, n + 1)[0]),
    guesses: guesses(model, own, stage, pick, isLayer ? pair : stage === WRITE ? [next] : []),
    isFixed: written < stays.length,
    next: [tokenizer.tokens[next], chancesOf(letters[T - 1].logits, pick)[next], softmax(letters[T - 1].logits)[next]],
  };
}

// Words ----

const sign = (token) => ({ " ": "␣", "\n": "⏎" })[token] || (isByte(token) ? "▫" : token); // ▫ is a byte
const named = (token) => ({ " ": "the space", "\n": "the line break" })[token]
  || (isByte(token) ? "a byte" : `“${token}”`);
const percent = (share) => {
  const text = Live.part.number(100 * share, 0);
  return share > 0 && text === "0" ? "<1%" : `${text}%`;
};
const upper = (text) => text.replace(/^./, (letter) => letter.toUpperCase());
const ordinal = (n) => `${n}${(n % 100 > 10 && n % 100 < 14 ? "" : ["", "st", "nd", "rd"][n % 10]) || "th"}`;
const signed = (value) => Live.part.number(value).replace(/^(?!−)/, "+");
const counted = (n) => `${n} ${n > 1 ? "tokens" : "token"}`;
const isByte = (token) => [...token].length > 1;

/* Small words in a picture, their places in units of f px. */
const caption = (svg, f = 1) => (text, x, y, more) => svg("text", { x: x * f, y, text, class: "live-tick", ...more });
const [END, MIDDLE] = ["end", "middle"].map((at) => ({ "text-anchor": at }));

/* The two letters that get most weight; those that look alike when rounded, in the order of the line. */
const strongest = (weights) =>
  weights.map((w, s) => [s, Math.round(100 * w)]).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 2)
    .filter(([, share]) => share);

const seenAs = ({ tokens, at }, s) => {
  const name = named(tokens[s]), until = (end) => tokens.slice(0, end + 1).filter((token) => token === tokens[s]).length;
  return s === at ? "itself" : until(at) > 1 ? `the ${ordinal(until(s))} ${name.replace(/^(the|a) /, "")}` : name;
};

const looksAt = (found, weights) => strongest(weights).map(([s, share]) => `${seenAs(found, s)} (${share}%)`).join(" and ");

/* Products that are added; what is negative, and not the first, stands in brackets. */
const bracketed = (value) => Live.part.number(value).replace(/^−.*/, "($&)");
const sumOf = (pairs) => pairs.map((pair, n) => pair
  .map((value, m) => (n || m ? bracketed(value) : Live.part.number(value))).join("·")).join(" + ") + " + …";

/* From the lead of the answer over its rival before a write to the one after it: in words, and as a sum. */
function ledger({ rivals, before, sizes, stage, first, at, held, look, units, guesses: list }) {
  const { number } = Live.part, [answer, rival] = rivals.map(named), above = ([one, other]) => one - other;
  const sums = (look || units).effects.map((each) => each.reduce((sum, one) => sum + one)), write = above(sums);
  const [was, is] = sizes[at - first].slice(stage - 2, stage), now = above(held) + write, far = Math.abs(now), times = Math.exp(far);
  const second = `${rival}, second in the end,`, over = `is ${number(far)} above`;
  const lead = now < 0 ? `${second} ${over} ${answer},` : `${answer} ${over} ${second}`;
  return [`Only the lead counts: ${lead} and so ${number(times, times < 10 ? 1 : 0)} times as likely.${sums[0] > 0 ? fallen(list, rivals[0], was, is) : ""}`,
    `${rivals.map(sign).join(" − ")}: ${number(above(before))} · ${number(was)} / ${number(is)} + ${bracketed(write)} = ${number(now)}; exp(${number(far)}) = ${number(times, 1)}`];
}

/* Why a letter became less likely though a write lifts it: the one that gains most is lifted by more, or the final norm
   leaves less of what the letter had ahead of that one. */
function fallen(list, answer, was, is) {
  const [, , now, before] = list.find(([token]) => token === answer);
  const [other, , gained, had] = list.reduce((most, one) => (one[2] - one[3] > most[2] - most[3] ? one : most));
  if (now > before || percent(now) === percent(before) || gained < had) return "";
  const { number } = Live.part, isWrite = Math.log(now / gained) < (Math.log(before / had) * was) / is;
  const why = isWrite ? `${named(other)} is lifted by more` : `the final norm divides by ${number(is)}, not ${number(was)}; ${named(other)} gains`;
  return ` Yet ${named(answer)} falls (${percent(before)} to ${percent(now)}): ${why}.`;
}

/* Why a write lifts the answer: in words, and in numbers. */
function lifted({ rivals: [token], lift: { size, sums: [sum], tops: [top], write } }) {
  const { number } = Live.part, first = top.slice(0, 3).map(([, , , one], n) => (n ? bracketed(one) : number(one)));
  return [`what it does to ${named(token)}: ${write.length} products, added up: its numbers times those of the letter’s vector. Equal signs lift the score, different ones lower it. The final norm divides by ${number(size)}.`,
    `${first.join(" + ")} + … = ${number(sum)}; ${number(sum)} / ${number(size)} = ${signed(sum / size)}`];
}

/* What one head does, a step at a time; behind a line break the same in numbers. */
function zoomed(found) {
  const { tokens, layer, first, at, heads, head, zoom, look } = found;
  const who = named(tokens[at]), weights = heads[head], best = strongest(weights), [[most, share]] = best;
  const { number } = Live.part, { width } = look, [parted, ledgers] = ledger(found), other = most === at ? `${who} itself` : seenAs({ tokens, at }, most);
  const raw = number(look.raw[most]), score = number(look.scores[most]), later = tokens.length - 1 - at;
  const key = look.keys[most - first], seen = best.filter(([s]) => s >= first);
  const [hidden, sums] = later
    ? [`The ${counted(later)} after it ${later > 1 ? "are" : "is"}`, `score of ${named(tokens[at + 1])}: ${number(look.scores[at + 1])} → −∞`]
    : ["After the last letter that is only the place of the next one; it is", `score of what comes after ${who}: −∞`];
  const [what, line] = [
    [`query, key and value: three learned tables turn the lane of ${who}, after a norm, into three vectors of ${width} numbers: what it asks for, what it offers, what it passes on. So with every letter.`,
      `first number of the query: ${sumOf([0, 1].map((i) => [look.x[i], look.tables[0][0][i]]))} = ${number(look.made[0][0])}`],
    [`scores: ${who} asks with a query, and each letter offers a key: ${width} numbers each, turned by its place in the line. Multiplied pair by pair and added up, they say how well the two fit.`,
      `score of ${other}: ${key ? `${sumOf([0, 1].map((i) => [look.query[i], key[i]]))} = ` : ""}${raw}`],
    [`scale: a sum of ${width} products can be large, so every score is divided by the root of ${width}. Unscaled, softmax would give ${other} ${percent(softmax(look.raw.slice(0, at + 1))[most])}; scaled, ${share}%.`,
      `score of ${other}: ${raw} / √${width} = ${raw} / ${number(Math.sqrt(width))} = ${score}`],
    [`mask: a letter may look back, never ahead, or in training it would copy what it has to guess. ${hidden} crossed out.`, sums],
    [`softmax: e to the power of each score, divided by the sum of all. Now they are shares of a whole: ${who} looks at ${looksAt({ tokens, at }, weights)}.`,
      `share of ${other}: e^${score} / (e^${score}${best[1] ? ` + e^${number(look.scores[best[1][0]])}` : ""} + …) = ${share}%`],
    [`mixture: each letter offers a value, too. Each value times its share, added up, is what this head copies.`,
      `its first number: ${seen.length ? `${sumOf(seen.map(([s]) => [weights[s], look.values[s - first][0]]))} = ` : ""}${number(look.mixtures[head][0])}`],
    [`write: a fourth table makes each mixture a write onto the lane. It lifts letters whose vectors point its way. ${parted}`, ledgers],
    lifted(found),
  ][zoom - 1];
  return `Layer ${layer + 1}, head ${head + 1}, ${what}\n${line}`;
}

/* What the units of a feed-forward do, in three steps. */
function deepened(found) {
  const { tokens, layer, at, zoom, units } = found;
  const { number } = Live.part, who = named(tokens[at]), [[n, g, u, answer]] = units.busy, [parted, ledgers] = ledger(found);
  const [what, line] = [
    [`units: each compares the lane of ${who} with a learned pattern. Its gate (SiLU) is how much it answers: nearly 0 for ${units.shut} units here. Gate times a second number: what the unit says.`,
      `unit ${n}: SiLU(${number(g)}) · ${bracketed(u)} = ${number(answer)}`],
    [`write: each unit adds its own vector, times what it says, and so changes the scores. ${parted}`, ledgers],
    lifted(found),
  ][zoom - 1];
  return `Layer ${layer + 1}, feed-forward, ${what}\n${line}`;
}

const say = ({ pick, back, draw }, found) => {
  const { tokens, ids, stage, layer, first, at, sizes, guesses: list, next, width } = found;
  const T = tokens.length, heat = TEMPERATURES[pick];
  if (!T) return "There is no letter yet: type a line.";
  const who = named(tokens[at]);
  if (stage === 0) {
    const each = tokens.some(isByte) ? "one for each letter, or several, its bytes, for one that the model never saw" : "one for each letter";
    return `Tokens: the line has ${counted(T)}, ${each}. A model can only calculate, so each token becomes its number in a list: ${who} is ${ids[at]}.${heat ? ` The next letter will be drawn, at temperature ${heat}.` : ""}`;
  }
  if (stage === 1) return `Embedding: each number picks its row of a learned table. ${upper(who)} becomes a vector of ${width} numbers, typically ${Live.part.number(sizes[at - first][0])} away from zero: room for all that the layers will find out. Its place in the line is not in it; attention sees to that.`;
  if (stage === ANSWER) {
    const lane = back ? `The lane of ${who} is` : "The last lane is";
    const least = back ? " In training every lane has to guess the letter after it; here only the last lane is used." : "";
    return `Answer: ${lane} compared with the vector of every token. Each gets a score, and softmax turns scores into probabilities: ` +
      `${named(list[0][0])} ${percent(list[0][2])}, ${named(list[1][0])} ${percent(list[1][2])}.${least}`;
  }
  if (stage === WRITE) {
    const drawn = heat === 1 ? `its probability: ${percent(next[1])}` : `${percent(next[1])}, as every score is divided by ${heat} first; at temperature 1: ${percent(next[2])}`;
    const why = found.isFixed ? "is written already" : heat ? `was drawn (${draw ? `draw ${draw}: ` : ""}${drawn}); another press draws anew, from the same probabilities` : `has the highest probability (${percent(next[1])})`;
    return `Next letter: ${named(next[0])} ${why}. It joins the line, and everything begins again, with ${T + 1} tokens: this is how a model writes.`;
  }
  const now = `If it answered now: ${named(list[0][0])} (${percent(list[0][2])}).`;
  if (found.zoom) return stage % 2 ? deepened(found) : zoomed(found);
  if (stage % 2) return `Layer ${layer + 1}, feed-forward: every letter by itself. ${found.inner} units look for patterns in what the lane of ${who} holds now, and add what they find. ${now}`;
  const why = stage === found.opens ? ` No other attention makes ${named(found.rivals[0])} so much likelier: the tour looks inside.` : "";
  return `Layer ${layer + 1}, attention: the only way from lane to lane. ${upper(who)} looks mostly at ` +
    `${looksAt(found, found.attention[layer][at - first])}, on average over ${found.heads.length} heads, and adds what they copy there. ${now}${why}`;
};

// On the page ----

const NAMES = ["the tokens", "the embedding", ...Array(LAYERS).fill(["attention", "feed-forward"]).flat(), "the answer", "the next letter"];
const stepsOf = (stage) => (stage % 2 ? DEEPS : ZOOMS); // of an open part
const titleOf = (stage) => (stage > 1 && stage < ANSWER ? `layer ${Math.floor(stage / 2)}, ` : "") + NAMES[stage];
const isPart = (stage) => stage > 1 && stage < ANSWER; // of a layer: it opens
const upTo = (low, value, high) => Math.min(high, Math.max(low, value));
/* How far something that stands from one step to another is seen at c steps: what is before it leaves in the first quarter
   of a step, and it comes in the second. */
const seenAt = (c, from, to) => upTo(0, Math.min(4 * (c - from) + 3, 1 - 4 * (c - to)), 1);
Live.front = { LAYERS, ANSWER, WRITE, ROWS, BEST, FIRST, TOPS, sign, named, percent, strongest, sumOf, signed, partingHead, upTo, seenAt, caption, END, MIDDLE }; // front_picture.js and front_zoom.js add to it

const SLOW = { ms: 1100 }, QUICK = { ms: 260, hold: 160 }; // what is read, and what flies
const WORD = 1000 / 3, LEAST = 2500, AWAY = 300; // ms: to read a word, for a stage, and until it is looked at again

function build(part, figure) {
  const { html, svg } = part;
  const set = figure.set.bind(figure), replace = figure.replace.bind(figure);
  figure.set = (changes, how) => {
    if (!isOurs) stop(); // whatever the reader sets stops what plays
    const isOther = "text" in changes, isLonger = "written" in changes;
    set({ ...changes, ...(isOther && { written: 0, fixed: "" }), ...((isOther || isLonger) && { back: 0 }), ...(("stage" in changes || isLonger) && { zoom: 0 }), ...("zoom" in changes && { zoom: changes.zoom }) }, how);
  };
  figure.replace = (next, how) => {
    stop();
    replace(next, how);
  };

  const input = html("input", {
    type: "text", spellcheck: "false", autocomplete: "off", "aria-label": "your line",
    oninput: () => {
      whole = input.value.toWellFormed?.() ?? input.value; // no half of an emoji
      figure.set({ text: firstOf(whole) });
    },
    onchange: () => figure.released(),
  });
  let whole = ""; // what was typed, also what is too long
  const firstOf = (text) => [...text].slice(0, TYPED).join("");
  const cut = html("small", { class: "live-cut", role: "status" });
  const written = html("mark");
  const line = html("div", { class: "front-line" }, input, written, html("span", { class: "front-caret" }));
  const showLine = ({ text }, tokens, read = text) => {
    const left = (firstOf(whole) === text ? whole : text).slice(read.length);
    const lost = left && `A line has at most ${TYPED} tokens here. Left out: “${left.length > 30 ? `${left.slice(0, 30)}…` : left}”.`;
    if (cut.textContent !== lost) cut.textContent = lost;
    if (input.value !== read) {
      const caret = input.selectionStart;
      input.value = read;
      if (document.activeElement === input) input.setSelectionRange(caret, caret);
    }
    input.style.width = `${Math.max(2, [...read].length + 0.3)}ch`;
    written.textContent = tokens.map(sign).join("").replace(/␣/g, " ");
    line.scrollLeft = line.scrollWidth;
  };
  const picture = svg("svg", { class: "live-drawing front-picture", role: "group", "aria-label": "The line on its way through the model" });
  const start = html("button", { type: "button", class: "front-start", onclick: () => load() });
  const card = html("div", { class: "front-card" }, start, html("p", { text: "Each row is a letter of this line. From left to right, a Transformer trained on Shakespeare finds the next letter." }));
  const peek = html("button", { type: "button", class: "front-peek", onclick: look });
  const chips = Array.from({ length: HEADS }, (_, head) => html("button", { type: "button", text: String(head + 1), "aria-label": `head ${head + 1}`, onclick: () => onhead(head) }));
  const choice = html("div", { class: "front-chips", role: "group", "aria-label": "Head" }, "head", ...chips);
  const picks = Object.entries(figure.figure.state.pick.of).map(([pick, text]) => [pick, html("button", {
    type: "button", text, "aria-label": TEMPERATURES[pick] ? `temperature ${text}` : null, onclick: () => redraw(pick),
  })]);
  const [likeliest, ...others] = picks.map(([, node]) => node);
  const heat = html("div", { class: "front-heat", role: "group", "aria-label": "How the next letter is chosen" }, likeliest, html("span", { text: "temperature" }), ...others);
  const box = html("div", { class: "front-box" }, picture, peek, choice, heat);
  const still = html("div", { class: "front-still" }, ...figure.place.childNodes, card);
  const button = (text, label, onclick) => html("button", { type: "button", text, "aria-label": label, title: label, onclick });
  const back = button("◀ Back", "One step back", () => by(-1));
  const play = button("▶ Play", "Play", () => (playing ? pause() : run(SLOW)));
  const step = button("Step ▶", "One step forward", () => by(1));
  const letter = button("Next letter ▶▶", "Run until the next letter is found", onemore);
  const track = html("input", {
    type: "range", min: 0, max: WRITE, step: 1, "aria-label": "Place in the model",
    oninput: () => figure.set({ stage: Number(track.value) }), onchange: () => figure.released(),
  });
  const transport = html("div", { class: "front-transport" }, back, play, step, letter, track);
  const name = html("summary");
  const open = html("div");
  const words = html("p", { class: "live-words front-words" });
  const details = html("details", { class: "front-inside", ontoggle: show }, name, open);

  let [state, found, where, drawn, list, key, pace] = [null, null, null, null, null, "", SLOW.ms];
  let [lens, lensKey, shownZoom, opener, cameFrom] = [null, "", 0, null, null];
  let [playing, timer, load, touched, isOurs, heard] = [null, 0, null, false, false, false];

  /* What happens here, its name first. */
  function tell(text) {
    const [said, sums] = text.split("\n"), [title, ...rest] = said.split(": ");
    words.replaceChildren(...(rest.length ? [html("strong", { text: `${title}: ` }), rest.join(": ")] : [text]),
      ...(sums ? [" ", html("code", { class: "front-sums", text: sums })] : []));
  }

  // Playing ----

  /* Both parts of the layer that matters most are opened, and wherever the reader has opened one, but not while letters fly. */
  function after(by, isQuick) {
    const { stage, written } = figure.state, { zoom, opens } = found, isOpened = (n) => n >> 1 === opens >> 1;
    if (by < 0 && zoom) return { zoom: zoom - 1 };
    if (by < 0) return stage ? { stage: stage - 1, zoom: isOpened(stage - 1) ? stepsOf(stage - 1) : 0 } : written ? { written: written - 1, stage: WRITE } : null;
    if (!isQuick && zoom < stepsOf(stage) && (zoom || isOpened(stage))) return { zoom: zoom + 1 };
    return stage < WRITE ? { stage: stage + 1 } : written < MOST ? { written: written + 1, stage: 0 } : null;
  }

  function move(by, ms) {
    const changes = after(by, ms === QUICK.ms);
    pace = ms;
    isOurs = true;
    if (changes) figure.set(changes, Live.QUICK);
    isOurs = false;
    return changes;
  }

  function by(step) {
    if (!found) return load();
    stop();
    if (move(step, 600)) figure.released();
  }

  function stop() {
    clearTimeout(timer);
    playing = null;
    label();
  }

  function pause() {
    stop();
    figure.released();
  }

  const reading = () => Math.max(LEAST, WORD * words.textContent.split(/\s+/).length);

  /* Play: slowly, until a letter is found. Or quickly, until so many are: each is written before the next one is sought. */
  function run(speed, letters = Infinity, wait = 0) {
    if (!found) return load();
    stop();
    playing = { speed, left: letters };
    label();
    timer = setTimeout(tick, wait);
  }

  /* A press while letters are sought asks for one more: none is lost. */
  function onemore() {
    if (Number.isFinite(playing?.left)) playing.left += 1;
    else run(QUICK, 1);
  }

  function tick() {
    const { speed } = playing;
    const seen = !document.hidden && picture.getBoundingClientRect().bottom > 0;
    const changes = seen ? move(1, speed.ms) : {};
    if (changes?.stage === WRITE) playing.left -= 1;
    if (!changes || (changes.stage === WRITE && (speed === SLOW || !playing.left))) return pause();
    if (changes.stage === 0) figure.status.textContent = `The line is now: ${found.tokens.join("")}`;
    const { left } = playing, queue = left > 1 && left < Infinity ? `; ${left} letters to come` : "";
    if (speed === QUICK) tell(`Quickly, with ${counted(found.tokens.length)}${queue}. Pause, or step, to see what happens where.`);
    timer = setTimeout(tick, seen ? speed.ms + (speed.hold ?? reading()) : AWAY);
  }

  /* From the beginning of the line. */
  function begin() {
    reveal();
    if (Live.prefersCalm()) return figure.set({ stage: ANSWER });
    figure.set({ stage: 0 });
    run(SLOW, Infinity, reading());
  }

  /* What is watched and what is pressed stand on one screen. */
  function reveal() {
    const [{ top }, { bottom }] = [line, words].map((one) => one.getBoundingClientRect());
    if (top < 0 || bottom > innerHeight) (where?.narrow ? line : figure.place).scrollIntoView({ block: "start", behavior: Live.prefersCalm() ? "instant" : "smooth" });
  }

  /* Into a part, and out of it, to the stage from which it was opened. */
  function look() {
    if (!found) return load();
    const { stage, zoom } = figure.state;
    if (zoom) leave();
    else if (isPart(stage)) go({ zoom: 1 });
    else {
      cameFrom = stage;
      go({ stage: found.opens, zoom: 1 });
    }
    reveal();
  }

  function leave() {
    go({ stage: cameFrom ?? figure.state.stage, zoom: 0 });
  }

  /* The next letter is chosen in this way, and drawn anew; those that were written stay. */
  function redraw(pick) {
    const { draw } = figure.state, fixed = found.ids.slice(found.typed).join();
    go({ pick, fixed, ...(TEMPERATURES[pick] && { draw: (draw + 1) % DRAWS }) });
  }

  function go(changes) {
    pace = 600;
    figure.set(changes, Live.QUICK);
    figure.released();
  }

  const onhead = (head) => go({ head });

  function label() {
    const [sign, name] = playing ? ["❚❚", "Pause"] : ["▶", "Play"];
    play.textContent = `${sign} ${name}`;
    play.setAttribute("aria-label", (play.title = name));
  }

  // Drawing ----

  const onpick = (row) => {
    const { stage } = figure.state; // the next letter comes from the last lane: any other has an answer at most
    figure.set({ back: found.sizes.length - 1 - row, ...(stage === WRITE && { stage: ANSWER }) });
    figure.released();
    drawn.letters[row].focus({ preventScroll: true });
  };
  const onstage = (stage) => {
    if (stage === figure.state.stage) details.open = !details.open;
    else go({ stage });
  };
  /* Escape leaves what is open, for the place from which it was opened. */
  figure.place.addEventListener("keydown", ({ key: name_, target }) => {
    if (name_ !== "Escape") return;
    if (details.open && details.contains(target)) {
      details.open = false;
      name.focus();
    } else if (found?.zoom) {
      leave();
      opener.focus({ preventScroll: true });
    }
  });
  picture.addEventListener("pointermove", () => picture.classList.add("front-pointed"), { once: true });
  picture.addEventListener("keydown", (event) => {
    const rows = found.sizes.length;
    const row = Number(event.target.closest("[data-row]")?.dataset.row ?? NaN);
    const next = { ArrowUp: row - 1, ArrowLeft: row - 1, ArrowDown: row + 1, ArrowRight: row + 1 }[event.key];
    if (next === undefined || Number.isNaN(row)) return;
    event.preventDefault();
    onpick((next + rows) % rows);
  });

  function layOut() {
    const width = Math.round(figure.place.clientWidth - 2 * parseFloat(getComputedStyle(figure.place).paddingLeft)) || 640;
    where = Live.front.plan(upTo(260, width, 760));
    picture.setAttribute("viewBox", `0 0 ${where.width} ${where.height}`);
    picture.style.cssText = `max-width: ${where.width}px; aspect-ratio: ${where.width} / ${where.height}`;
    box.style.maxWidth = `${where.width}px`;
    key = lensKey = "";
  }

  function draw() {
    const text = JSON.stringify([where.width, found.ids, found.at]);
    if (text !== key) {
      const same = key && found.ids.join().startsWith(JSON.parse(key)[1].slice(0, found.typed).join());
      if (!same) Live.forget(picture);
      key = text;
      where.gap = ROWS - found.sizes.length;
      drawn = Live.front.scene(part, where, found, onpick, onstage);
      list = Live.front.board(part, found, where);
      const [low, high] = [where.top + 62, where.bottom - list.height];
      const at = upTo(low, where.y(found.at - found.first) - list.height / 2, high);
      list.node.setAttribute("transform", `translate(${where.width - where.panel} ${at})`);
      list.at = at;
      picture.replaceChildren(drawn.node, list.node);
      lensKey = "";
    }
    const { stage } = found, isHeated = stage === WRITE && (TEMPERATURES[state.pick] ?? 1) !== 1;
    const title = found.zoom && found.zoom === stepsOf(stage) - 1 ? [where.narrow ? "read now" : "if read now", "(dashed: before)"]
      : isHeated ? ["the next letter", "(dashed: at 1)"] : stage >= ANSWER ? ["the answer:", state.back && stage === ANSWER ? "its next letter" : "the next letter"]
      : [where.narrow ? "answer if" : "if the answer", where.narrow ? "read now:" : "were read now:"];
    list.node.style.display = stage ? "" : "none";
    heat.hidden = stage !== WRITE && (stage || state.pick === "likeliest"); // where a letter is chosen, and where the next one begins
    heat.style.cssText = `top: ${list.at - 70}px; width: ${where.panel}px`;
    for (const [pick, node] of picks) node.setAttribute("aria-pressed", pick === state.pick);
    const slot = stage === WRITE ? found.guesses.findIndex(([token]) => token === found.next[0]) : -1;
    list.show(found.guesses, title, slot);
    const widths = Array.from({ length: BEST }, (_, n) => {
      const [, , now = 0, before = 0] = found.guesses[n] ?? [];
      return [now, stage === WRITE && !isHeated ? 0 : before];
    });
    Live.tween(list.node, widths, (now) => list.draw(now), { ms: Math.min(pace, 500) });
    const py = list.at + 48 + Math.max(0, slot) * list.step;
    const spot = { px: where.width - where.panel - 4, py, letter: [where.width - where.panel + 8, py + 5], next: found.next[0] };
    const base = state.written * (WRITE + 1);
    Live.tween(picture, base + stage, (now) => drawn.pose(now - base, spot), { ms: pace });
  }

  /* The lanes make room for one part of a layer, and come back. */
  function drawZoom() {
    const { zoom, stage, head, units } = found, isOpening = zoom && !shownZoom, name = units ? "feed-forward" : "attention";
    const text = JSON.stringify([key, stage, head]);
    if (zoom && (text !== lensKey || !lens)) {
      lens?.node.remove();
      lens = Live.front[units ? "deep" : "zoom"](part, where, found, onhead);
      picture.append(lens.node);
      lensKey = text;
    }
    const inside = isPart(stage) ? `Look inside ${name}` : `Into layer ${found.opens / 2}`;
    peek.textContent = zoom ? "◀ Lanes" : where.narrow && isPart(stage) ? "Look inside" : inside;
    peek.setAttribute("aria-label", zoom ? "◀ Lanes: all of them" : inside);
    if (!zoom) cameFrom = null;
    peek.title = zoom ? "Esc" : "";
    choice.hidden = !zoom || Boolean(units);
    chips.forEach((chip, n) => chip.setAttribute("aria-pressed", n === head));
    const at = zoom || shownZoom;
    shownZoom = zoom;
    if (isOpening) opener = transport.contains(document.activeElement) ? document.activeElement : peek;
    Live.tween(box, { at, open: zoom ? 1 : 0 }, (now) => {
      const step = stepsOf(stage) - 1, away = seenAt(now.open, 0, 0), listed = seenAt(now.at, step, step); // beside what is written: what it does to the answer
      for (const [one, seen] of [...drawn.parts.map((node) => [node, away]), [list.node, Math.max(away, listed)]]) {
        one.style.opacity = seen < 1 ? seen : "";
        one.style.visibility = seen ? "" : "hidden";
      }
      if (!lens) return;
      lens.node.style.opacity = seenAt(now.open, 1, 1);
      lens.pose(now.at);
      if (now.open || shownZoom) return; // it is open, or about to be
      lens.node.remove();
      lens = null;
    }, { ms: pace, ...(isOpening && { from: { at, open: 0 } }) });
  }

  function drawAll() {
    draw();
    drawZoom();
  }

  function show() {
    const some = found?.tokens.length;
    name.textContent = some ? `Open this part: ${titleOf(found.stage)}` : "Open this part";
    if (details.open && !found) return load();
    if (details.open) open.replaceChildren(...(some ? Live.front.inside(part, state, found) : []));
  }

  /* A try begins to play. */
  function listen() {
    if (heard) return;
    heard = true;
    figure.hint.textContent = "Guess how one of these lines goes on, then press the line.";
    for (const { node } of figure.buttons) node.addEventListener("click", () => found && begin());
  }

  function update(now, values) {
    listen();
    [state, found] = [{ ...now }, values];
    if (!where) layOut();
    still.hidden = true;
    if (!box.isConnected) still.after(box);
    track.value = state.stage;
    track.setAttribute("aria-valuetext", titleOf(state.stage));
    const none = !found.tokens.length;
    for (const one of [box, transport, details]) one.style.visibility = none ? "hidden" : "";
    showLine(state, none ? [] : found.tokens.slice(found.typed), found.read);
    if (!none) drawAll();
    show();
  }

  // Before the model is there ----

  /* Nothing is loaded before the reader touches the figure: the still picture waits. */
  function wait(now, size) {
    listen();
    load = now;
    start.textContent = `▶ Watch it run (${size})`;
    words.textContent = "You may also write a line of your own, above the picture. The model, which is loaded first, then runs in your browser: nothing is sent anywhere.";
    showLine(figure.state, []);
    show();
    if (touched) load();
  }
  for (const event of ["pointerdown", "keydown", "input"]) figure.place.addEventListener(event, () => { touched = true; }, true);

  function arrived() {
    reveal();
    if (document.activeElement === start || document.activeElement === document.body) play.focus({ preventScroll: true });
    if ([0, ANSWER].includes(figure.state.stage)) begin(); // no other place was asked for
  }

  addEventListener("resize", () => {
    if (!found) return;
    const before = where.width;
    layOut();
    if (where.width !== before && found.tokens.length) drawAll();
  });

  return { nodes: [line, cut, still, transport, words], rest: [details], words, tell, update, wait, arrived };
}

const hidden = (max, start) => ({ kind: "number", min: 0, max, step: 1, start, hidden: true });

Live.define({
  name: "front",
  title: "One line, all the way through a Transformer",
  question: "How does a Transformer find the next letter?",
  page: "index",
  pictures: ["front.svg", "front-narrow.svg"],
  heights: [830, 933],
  drawings: false, // it draws all by itself
  later: ["front_picture.js", "front_zoom.js"], // comes with the model
  models: ["shakespeare"],
  slow: true,
  needs: () => "shakespeare",
  state: {
    text: { kind: "text", label: "your line", max: TYPED, start: "To be, or not to b", letters: "aeorst nIT,-’", hidden: true },
    pick: {
      kind: "choice", start: "likeliest", hidden: true,
      of: { likeliest: "the likeliest", cool: "0.5", drawn: "1", warm: "1.5" },
    },
    written: hidden(MOST, 0), stage: hidden(WRITE, ANSWER), back: hidden(ROWS - 1, 0),
    zoom: hidden(ZOOMS, 0), head: hidden(HEADS, HEADS), // none chosen: the one that lifts the answer most above its rival
    draw: hidden(DRAWS - 1, 0), // how often a letter was drawn anew
    fixed: { kind: "text", max: 4 * MOST, start: "", pattern: "[\\d,]*", letters: "0123456789,", hidden: true }, // letters that stay then
  },
  same: ["text", "pick", "written"], // a try stays the same try while its line goes its way, but not when it has grown
  prepare,
  values,
  say,
  tries: [
    {
      do: "To be, or not to b", set: { stage: 0 },
      see: "Before the first layer the best guess is b again. Layer 1 makes it e, and the attention of layer 4 takes e from 43% to 80%.",
    },
    {
      do: "Speak, spe", set: { text: "Speak, spe", stage: 0 },
      see: "After layers 1 and 2 the best guess is r. The feed-forward of layer 3 finds a, and layer 4 makes it almost certain.",
    },
    {
      do: "My lord, the ki", set: { text: "My lord, the ki", stage: 0 },
      see: "From the feed-forward of layer 1 on, n leads. Each press of Next letter writes the one that was found, and finds another: ng and a space, and the word is whole.",
    },
  ],
  build,
});
})();
