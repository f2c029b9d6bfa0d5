"use strict";
// The library's tokenizers: text to ids and back, without any loss.
(() => {
const Live = (globalThis.Live = globalThis.Live || {});
const SPECIAL = ["<pad>", "<bos>", "<eos>"];

// Bytes are numbered as in GPT-2: first those that Latin-1 shows, then 0 to 32, 127 to 160 and 173.
const isShown = (byte) => byte > 32 && byte !== 173 && (byte < 127 || byte > 160);
const every = Array.from({ length: 256 }, (_, byte) => byte);
const ORDER = [...every.filter(isShown), ...every.filter((byte) => !isShown(byte))];
const NUMBER = ORDER.reduce((numbers, byte, number) => ((numbers[byte] = number), numbers), []);

// UTF-8. Half a surrogate pair is no character: encodeURIComponent refuses it.
function toBytes(text) {
  const bytes = encodeURIComponent(text).match(/%..|[^%]/g) || [];
  return bytes.map((part) => (part.length === 3 ? parseInt(part.slice(1), 16) : part.charCodeAt(0)));
}

// How many bytes a character has, by its first byte, and between which numbers its second byte lies.
function shape(first) {
  if (first < 0x80) return [1];
  if (first < 0xc2 || first > 0xf4) return [0]; // no character begins so
  if (first < 0xe0) return [2, 0x80, 0xbf];
  if (first < 0xf0) return [3, first === 0xe0 ? 0xa0 : 0x80, first === 0xed ? 0x9f : 0xbf];
  return [4, first === 0xf0 ? 0x90 : 0x80, first === 0xf4 ? 0x8f : 0xbf];
}

// Bytes to text. What is no UTF-8, as a model may write it, is shown by `broken`.
function fromBytes(bytes, broken = () => "\ufffd") {
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const [length, low, high] = shape(bytes[at]);
    let end = at + 1;
    if (length > 1 && bytes[end] >= low && bytes[end] <= high) {
      for (end++; end < at + length && bytes[end] >> 6 === 2; ) end++;
    }
    const part = bytes.slice(at, end);
    text += part.length === length ? decodeURIComponent(part.map(percent).join("")) : broken(part);
    at = end;
  }
  return text;
}

const hex = (byte) => byte.toString(16).padStart(2, "0");
const percent = (byte) => "%" + hex(byte);
const named = (bytes) => fromBytes(bytes, (part) => part.map((byte) => "\\x" + hex(byte)).join(""));

// What all kinds have in common. Ids: special tokens, the 256 bytes, what was learned (given as bytes).
function tokenizer(special, learned, encode) {
  const bytes = [...special.map(toBytes), ...ORDER.map((byte) => [byte]), ...learned];

  function decode(ids) { // special tokens are left out
    const strange = ids.filter((id) => !(id in bytes));
    if (strange.length) throw new RangeError(`the id ${strange[0]} is not one of ${bytes.length}`);
    return fromBytes(ids.flatMap((id) => (id < special.length ? [] : bytes[id])));
  }

  return {
    special,
    size: bytes.length,
    lengths: bytes.map((each) => each.length),
    tokens: bytes.map(named), // as text; a byte that is no character looks like \xe2
    pad: special.indexOf("<pad>"),
    bos: special.indexOf("<bos>"),
    eos: special.indexOf("<eos>"),
    encode,
    decode,
  };
}

// Every character is a token; one that was not learned is written as its bytes.
function characters({ special = SPECIAL, learned = [] } = {}) {
  const spell = (text) => toBytes(text).map((byte) => special.length + NUMBER[byte]);
  const known = new Map(learned.map((text, n) => [text, special.length + 256 + n]));
  const encode = (text) => Array.from(text).flatMap((letter) => known.get(letter) ?? spell(letter));
  return tokenizer(special, learned.map(toBytes), encode);
}

Live.text = { characters, tokenizer, toBytes, SPECIAL, ORDER, NUMBER };
})();
