"use strict";
// A line that a model reads again and again while it is changed: letters that stay the same are not read again.
// And what a part of its stream does to an answer.
(() => {
const Live = (globalThis.Live = globalThis.Live || {});

// `note(found, fresh, row)` gives what to keep of each of the fresh ids: `found` is what the model's run gave,
// and row(x, t) of (T, ...) numbers those of one letter. `source`: what the encoder gave, if there is one.
class Reading {
  constructor(model, note, source) {
    Object.assign(this, { model, note, ids: [], letters: [], cache: model.cache(source) });
  }

  // How many of these ids it has read already.
  known(ids) {
    const other = ids.findIndex((id, t) => id !== this.ids[t]);
    return other < 0 ? ids.length : other;
  }

  // Forgets what differs (keys and values of the letters before it stay as they are), and reads the rest.
  read(ids) {
    const n = this.known(ids);
    this.ids.length = this.letters.length = this.cache.length = n;
    for (const { self } of this.cache.memories) self.keys.length = self.values.length = n;
    const fresh = ids.slice(n);
    if (!fresh.length) return this.letters;
    const row = (x, t) => x.slice((t * x.length) / fresh.length, ((t + 1) * x.length) / fresh.length);
    const found = this.model.run(fresh, this.cache, { all: true, keep: true });
    this.letters.push(...this.note(found, fresh, row));
    this.ids.push(...fresh);
    return this.letters;
  }

  // Reads so many ids at a time; nothing to wait for if they are no more than that.
  *inPieces(ids, piece) {
    const start = this.known(ids);
    if (ids.length - start <= piece) return;
    for (let n = start + piece; ; n += piece) {
      yield;
      this.read(ids.slice(0, n));
      if (n >= ids.length) return;
    }
  }
}

const PLAYS = "\n !\"&',-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz"; // all letters of the plays

// By what the final norm divides a stream (D,).
const sizeOf = (final, { norm_eps }) => Math.sqrt(Live.tensor.dot(final, final) / final.length + norm_eps);

// Which way the stream has to go for each of these tokens, (D,) each: a part of it, times this, is its direct
// effect on the token's logit above the mean of the letters. The final norm divides the whole stream by one
// number. That number and the gains are kept as they are, so that the effects of all parts can be added.
function directions(model, final, ids, letters) {
  const { table: { data }, config } = model, D = final.length;
  const gain = model.decoder.stack.final_norm.weight.data;
  const size = sizeOf(final, config);
  const middle = Float64Array.from(final, (_, i) => letters.reduce((sum, id) => sum + data[id * D + i], 0) / letters.length);
  return ids.map((id) => middle.map((each, i) => ((data[id * D + i] - each) * gain[i]) / size));
}

Object.assign(Live, { Reading, directions, sizeOf, PLAYS });
})();
