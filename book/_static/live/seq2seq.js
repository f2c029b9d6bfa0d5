"use strict";
// The number translator: an encoder beside the decoder, and letters written one after the other. Only the
// figures with the translator load it. T: positions read, S: positions attended to, D: width of the stream.
(() => {
const { classes, Decoder, checkIds, embed, runStack, memoryOf, keeper } = Live.model;

function largest(logits) {
  let best = 0;
  logits.forEach((logit, id) => { if (logit > logits[best]) best = id; });
  return best;
}

// At most n ids, each the likeliest after those before it; `stop` ends them and is left out.
Decoder.prototype.greedy = function greedy(ids, n, { cache = this.cache(), stop = null } = {}) {
  const written = [];
  for (let next = ids; written.length < n; ) {
    const id = largest(this.run(next, cache).logits);
    if (id === stop) break;
    written.push(id);
    next = [id];
  }
  return written;
};

class Seq2SeqLM extends Decoder {
  constructor(header, tensors) {
    const { encoder, decoder } = tensors.body;
    super(header, decoder, encoder.embedding.tokens.weight); // one table for both
    this.encoder = encoder;
  }

  // Every position sees every other. Returns `ids`, `x` (S, D), and with `keep` `attention` and `stream`.
  encode(ids, { keep = false } = {}) {
    checkIds(ids, 0, this.config);
    const start = embed(ids, this.table, 0, this.config);
    const kept = keep ? keeper(start) : null;
    const { stack } = this.encoder;
    const memories = stack.blocks.map(() => ({ self: memoryOf(ids.length, this.config.d_model) }));
    const x = runStack(start, stack, memories, this.config, kept, false);
    return { ids, x, ...kept };
  }

  translate(text) {
    const { tokenizer, config } = this;
    const cache = this.cache(this.encode(tokenizer.encode(text)));
    return tokenizer.decode(this.greedy([tokenizer.bos], config.max_len, { cache, stop: tokenizer.eos }));
  }
}

// What the translator was trained on: 0 to 999,999, written like this; and the letters of these words.
const ONE = "(?:one|two|three|four|five|six|seven|eight|nine)";
const SMALL = `(?:${ONE}|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|` +
  `(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:-${ONE})?)`;
const HUNDREDS = `${ONE} hundred(?: and ${SMALL})?`, BELOW = `(?:${HUNDREDS}|${SMALL})`;
const TRAINED = new RegExp(`^(?:zero|${BELOW}|${BELOW} thousand(?:, ${HUNDREDS}| and ${SMALL})?)$`);
const isTrained = (text) => TRAINED.test(text);
const NUMBER_LETTERS = "adefghilnorstuvwxyz -,";

classes.Seq2SeqLM = Seq2SeqLM;
Object.assign(Live, { isTrained, NUMBER_LETTERS });
})();
