"use strict";
// The tokenizer that merges bytes, for the one figure that shows it.
(() => {
const { tokenizer, toBytes, SPECIAL, ORDER, NUMBER } = Live.text;

// GPT-2's words: a space goes with the word behind it. (JavaScript's \s differs by two characters.)
const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const BLANK = `[${SPACE}]+(?![^${SPACE}])|[${SPACE}]+`; // the last space goes with the next word
const OTHER = `[^\\p{L}\\p{N}${SPACE}]`;
const WORD = new RegExp(`'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?${OTHER}+|${BLANK}`, "gu");

// Write `merged` wherever the pair stands, from left to right.
function merge(symbols, [first, second], merged) {
  const result = [];
  for (const symbol of symbols) {
    if (result[result.length - 1] === first && symbol === second) result[result.length - 1] = merged;
    else result.push(symbol);
  }
  return result;
}

// Byte-pair encoding. merges: pairs of token numbers; the bytes have 0 to 255, the n-th merge 256 + n.
function bytePairs(merges, special = SPECIAL) {
  const rank = new Map(merges.map(([first, second], n) => [`${first} ${second}`, n]));
  const bytes = ORDER.map((byte) => [byte]);
  for (const [first, second] of merges) bytes.push([...bytes[first], ...bytes[second]]);

  function encodeWord(word, n) {
    let symbols = toBytes(word).map((byte) => NUMBER[byte]);
    for (;;) {
      let best = n; // the pair that was learned first is merged first
      for (let i = 1; i < symbols.length; i++) {
        best = Math.min(best, rank.get(`${symbols[i - 1]} ${symbols[i]}`) ?? n);
      }
      if (best === n) return symbols.map((symbol) => special.length + symbol);
      symbols = merge(symbols, merges[best], 256 + best);
    }
  }

  // With the first n merges only, if n is given.
  function encode(text, n = merges.length) {
    return (text.match(WORD) || []).flatMap((word) => encodeWord(word, Math.min(n, merges.length)));
  }
  // How many merges it takes until the text is cut otherwise than with n; null if it never is.
  function next(text, n) {
    const ids = (text.match(WORD) || []).map((word) => encodeWord(word, n).map((id) => id - special.length));
    const ranks = ids.flatMap((word) => word.slice(1).map((id, at) => rank.get(`${word[at]} ${id}`) ?? Infinity));
    const first = Math.min(...ranks);
    return Number.isFinite(first) ? first + 1 : null;
  }
  return { ...tokenizer(special, bytes.slice(256), encode), next };
}

Live.text.bytePairs = bytePairs;
})();
