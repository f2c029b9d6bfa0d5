"use strict";
// The book's two saved models: a decoder (RoPE, RMSNorm before each sublayer, SwiGLU), and an encoder with a
// decoder (sinusoidal positions, LayerNorm behind each sublayer, ReLU), of which seq2seq.js has the part that no
// other needs. T: positions read, S: positions attended to, D: width of the stream, Dk: of a head, F: of the inner layer, V: size of the vocabulary.
(() => {
const Live = (globalThis.Live = globalThis.Live || {});
const { softmax, matmulT, layerNorm, rmsNorm, relu, silu, sinusoid, rotate } = Live.tensor;

const add = (a, b) => a.map((value, i) => value + b[i]);

// (T, inputs) -> (T, outputs)
function linear(x, { weight, bias }) {
  const [outputs, inputs] = weight.shape;
  const y = matmulT(x, weight.data, x.length / inputs, inputs, outputs);
  if (bias) for (let i = 0; i < y.length; i++) y[i] += bias.data[i % outputs];
  return y;
}

function norm(x, { weight, bias }, config) {
  if (config.norm === "rms") return rmsNorm(x, weight.data, config.norm_eps);
  return layerNorm(x, weight.data, bias.data, config.norm_eps);
}

// down(relu(up(x))), or with a gate down(silu(gate(x)) * up(x)).
function feedForward(x, { up, gate, down }) { // (T, D) -> (T, D)
  const wide = linear(x, up); // (T, F)
  if (!gate) return linear(relu(wide), down);
  const open = silu(linear(x, gate)); // (T, F)
  return linear(wide.map((value, i) => value * open[i]), down);
}

// Every head looks the queries q (T, D) up among S keys. If causal, the queries are the last T of the S
// positions, and none sees what comes after it.
function attend(q, { keys, values }, n_heads, causal) {
  const { length: S, width: D } = keys;
  const T = q.length / D, Dk = D / n_heads;
  const found = new Float64Array(T * D); // the heads side by side
  const weights = Array.from({ length: n_heads }, () => []); // [head][query], each (S,)
  for (let head = 0; head < n_heads; head++) {
    for (let t = 0; t < T; t++) {
      const seen = causal ? S - T + t + 1 : S;
      const at = t * D + head * Dk;
      const row = softmax(scoresOf(q.subarray(at, at + Dk), keys, head * Dk, seen));
      mix(row, values, head * Dk, seen, found.subarray(at, at + Dk));
      weights[head].push(row);
    }
  }
  return { found, weights };
}

// A query (Dk,) with the same features, from `start` on, of each key; forbidden keys get -Infinity.
function scoresOf(query, { data, length, width }, start, seen) {
  const scores = new Float64Array(length).fill(-Infinity);
  for (let s = 0; s < seen; s++) {
    let sum = 0;
    for (let i = 0; i < query.length; i++) sum += query[i] * data[s * width + start + i];
    scores[s] = sum / Math.sqrt(query.length);
  }
  return scores;
}

function mix(weights, { data, width }, start, seen, found) { // adds to found (Dk,)
  for (let s = 0; s < seen; s++) {
    for (let i = 0; i < found.length; i++) found[i] += weights[s] * data[s * width + start + i];
  }
}

// Room for vectors that come one after the other: the keys or the values of one layer.
class Rows {
  constructor(room, width) {
    Object.assign(this, { width, length: 0, data: new Float64Array(room * width) });
  }
  append(x) { // (T, D)
    this.data.set(x, this.length * this.width);
    this.length += x.length / this.width;
  }
}

const memoryOf = (room, width) => ({ keys: new Rows(room, width), values: new Rows(room, width) });

// RoPE for the rows of x, the first at `position`.
function rotateRows(x, position, { d_model, n_heads, rope_theta }) {
  const turned = new Float64Array(x.length);
  for (let at = 0; at < x.length; at += d_model, position++) {
    turned.set(rotate(x.subarray(at, at + d_model), position, d_model / n_heads, rope_theta), at);
  }
  return turned;
}

// Keys and values of x join those in the memory, then the queries of x look among all of them.
function selfAttention(x, layer, memory, config, causal) {
  const turn = (rows) => (config.position === "rope" ? rotateRows(rows, memory.keys.length, config) : rows);
  const q = turn(linear(x, layer.query)), k = turn(linear(x, layer.key)); // (T, D) each
  memory.keys.append(k);
  memory.values.append(linear(x, layer.value));
  const { found, weights } = attend(q, memory, config.n_heads, causal);
  return { update: linear(found, layer.output), weights };
}

function crossAttention(x, layer, memory, config) {
  const { found, weights } = attend(linear(x, layer.query), memory, config.n_heads, false);
  return { update: linear(found, layer.output), weights };
}

// What a run keeps for the figures, if it is asked to.
const keeper = (x) => ({
  attention: [], // [layer][head][query], each (S,)
  cross_attention: [], // the same, to the source
  stream: [{ name: "embedding", x }], // then x after each sublayer, and its update, (T, D) each
});

// Read the stream, say something, add it; the norm stands before the sublayer or behind the sum.
function sublayer(x, layers, name, config, kept, work) {
  const before = config.norm_position === "pre";
  const normed = (y) => norm(y, layers[name + "_norm"], config);
  const { update, weights } = work(before ? normed(x) : x, layers[name]); // (T, D)
  const sum = add(x, update);
  const after = before ? sum : normed(sum);
  if (kept) kept.stream.push({ name, x: after, update });
  if (kept && weights) kept[name].push(weights);
  return after;
}

// The stream x (T, D) through all blocks; `memories` has one entry for each.
function runStack(x, stack, memories, config, kept, causal) {
  stack.blocks.forEach((layers, i) => {
    const { self, source } = memories[i];
    const through = (name, work) => { x = sublayer(x, layers, name, config, kept, work); };
    through("attention", (read, layer) => selfAttention(read, layer, self, config, causal));
    if (source) through("cross_attention", (read, layer) => crossAttention(read, layer, source, config));
    through("feed_forward", (read, layer) => ({ update: feedForward(read, layer) }));
  });
  return x;
}

// Token ids to vectors (T, D), the first at `position`.
function embed(ids, table, position, config) {
  const D = config.d_model;
  const x = new Float64Array(ids.length * D);
  ids.forEach((id, t) => {
    const place = config.position === "sinusoidal" ? sinusoid(position + t, D) : null;
    const scale = config.scale_embeddings ? Math.sqrt(D) : 1;
    for (let i = 0; i < D; i++) x[t * D + i] = scale * table.data[id * D + i] + (place ? place[i] : 0);
  });
  return x;
}

function checkIds(ids, before, config) {
  if (!ids.length) throw new RangeError("there is no token to read");
  const strange = ids.filter((id) => !(id >= 0 && id < config.vocab_size));
  if (strange.length) throw new RangeError(`the id ${strange[0]} is not one of ${config.vocab_size}`);
  const sum = before + ids.length;
  if (sum > config.max_len) throw new RangeError(`${sum} tokens: the model reads ${config.max_len}`);
}

// What both models do: read tokens, and score the next one.
class Decoder {
  constructor(header, decoder, table) {
    const tokenizer = Live.text.characters(header.tokenizer);
    Object.assign(this, { config: header.config, decoder, table, tokenizer });
  }

  // Keys and values of what was read so far, and of the source, if there is one (from `encode`).
  cache(source) {
    const { max_len, d_model } = this.config;
    const memories = this.decoder.stack.blocks.map(({ cross_attention }) => {
      const memory = { self: memoryOf(max_len, d_model) };
      if (!cross_attention) return memory;
      memory.source = memoryOf(source.ids.length, d_model);
      memory.source.keys.append(linear(source.x, cross_attention.key)); // once, for all steps
      memory.source.values.append(linear(source.x, cross_attention.value));
      return memory;
    });
    return { length: 0, memories };
  }

  // Reads ids behind what is in the cache. `logits`: of the token after the last one, (V,), or with `all`
  // after each, (T, V). With `keep` also `attention`, `cross_attention` and `stream`.
  run(ids, cache = this.cache(), { all = false, keep = false } = {}) {
    checkIds(ids, cache.length, this.config);
    const start = embed(ids, this.table, cache.length, this.config);
    const kept = keep ? keeper(start) : null;
    const x = runStack(start, this.decoder.stack, cache.memories, this.config, kept, true);
    cache.length += ids.length;
    return { logits: this.logits(all ? x : x.subarray(-this.config.d_model)), ...kept };
  }

  // The stream (T, D), wherever it is read, as scores of the next token (T, V).
  logits(x) {
    const last = this.decoder.stack.final_norm;
    return linear(last ? norm(x, last, this.config) : x, { weight: this.table });
  }
}

class CausalLM extends Decoder {
  constructor(header, tensors) {
    super(header, tensors.decoder, tensors.decoder.embedding.tokens.weight);
  }
}

// ---- weights: one byte a number, with a scale for each row

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

function fromBase64(text) {
  const value = new Uint8Array(128); // an equals sign counts as 0
  for (let i = 0; i < 64; i++) value[LETTERS.charCodeAt(i)] = i;
  const bytes = new Uint8Array((text.length / 4) * 3);
  for (let i = 0, at = 0; i < text.length; i += 4, at += 3) {
    let three = 0;
    for (let j = 0; j < 4; j++) three = (three << 6) | value[text.charCodeAt(i + j)];
    bytes[at] = three >> 16;
    bytes[at + 1] = three >> 8;
    bytes[at + 2] = three;
  }
  return bytes;
}

// A matrix: whole numbers from -127 to 127, each times the scale of its row.
function dequantise(numbers, scales, columns) {
  const data = new Float32Array(numbers.length);
  for (let row = 0; row < scales.length; row++) {
    for (let i = row * columns; i < (row + 1) * columns; i++) data[i] = numbers[i] * scales[row];
  }
  return data;
}

// All tensors, "decoder.stack.blocks.0..." as decoder.stack.blocks[0]... The bytes hold first header.floats
// float32 numbers (scales, norms and biases), then the matrices.
function decode(header, base64) {
  const { buffer } = fromBase64(base64);
  const floats = new Float32Array(buffer, 0, header.floats); // little-endian, as all machines with a browser are
  const whole = new Int8Array(buffer, 4 * header.floats);
  const tensors = {};
  for (const [name, { shape, float, byte }] of Object.entries(header.tensors)) {
    const [rows, columns] = shape;
    const few = floats.subarray(float, float + rows);
    const data = columns ? dequantise(whole.subarray(byte, byte + rows * columns), few, columns) : few;
    place(tensors, name.split("."), { shape, data });
  }
  return tensors;
}

function place(tree, [name, ...rest], tensor) {
  if (!rest.length) tree[name] = tensor;
  else place((tree[name] ??= /^\d+$/.test(rest[0]) ? [] : {}), rest, tensor);
}

// ---- where models come from

const PARTS = 8; // scripts with the weights of a model
const registered = {}; // name: parts, [base64, header of the first]
const models = {}; // name: model
const loading = {}; // name: promise that its weights are registered

Live.register = (name, part, ...content) => { (registered[name] ??= {})[part] = content; };

const arrived = (name) => Object.values(registered[name] ?? {}); // in their order

// The model, or null if its weights have not been loaded.
function read(name) {
  const parts = arrived(name);
  if (parts.length === PARTS) {
    const [, header] = parts[0];
    const tensors = decode(header, parts.map((part) => part[0]).join(""));
    models[name] = new classes[header.class](header, tensors);
    delete registered[name]; // megabytes of text
  }
  return models[name] ?? null;
}

// A script: a page opened as a file may load nothing else.
const include = (file, isThere = () => true) => new Promise((resolve, reject) => {
  const script = document.createElement("script");
  script.src = Live.here + file;
  const end = (fine) => {
    script.remove();
    if (fine) resolve();
    else reject(new Error(`${file} could not be loaded. Try again; in a book that you built, \`make book\` writes it.`));
  };
  script.onload = () => end(isThere());
  script.onerror = () => end(false);
  document.head.append(script);
});

// `progress` is told which share of the weights is there.
async function load(name, progress = () => {}) {
  if (read(name)) return models[name];
  const tell = () => progress(arrived(name).length / PARTS);
  const isThere = (part) => registered[name]?.[part];
  const bring = (part) => isThere(part) || include(`weights/${name}-${part}.js`, () => isThere(part)).then(tell);
  loading[name] ??= Promise.all([...Array(PARTS).keys()].map(bring));
  await loading[name].finally(() => delete loading[name]); // one can try again
  return read(name);
}

const classes = { CausalLM }; // seq2seq.js adds the other one
Live.model = { load, read, include, classes, Decoder, checkIds, embed, runStack, memoryOf, keeper };
})();
