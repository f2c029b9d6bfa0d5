/* The search: which sections answer a query, best first. It is loaded when somebody searches.

   A query is cut into units. A unit is a term of the glossary, by any of its names ("prenorm" is
   "pre-norm"), or else one word. A section scores by how rare a unit is in the book, by where it
   stands (in the page's title, in the heading, in bold, where terms are defined, in the text, in
   code), and by how near the units stand to each other. A page scores by its best section and by how
   much it speaks of the matter in all. The home of a term, of a question, of an intention or of a
   line of code, the place that answers it, comes first wherever it stands. A name of the library,
   spelled as in code, leads to where it is documented.
   The last word may be the beginning of one. A word that the book does not have becomes the nearest
   one that it has; if there is none, the others are searched for. */
const BookSearch = (() => {
  // Words that say nothing, or that a reader asks for an explanation, which is what a book is.
  const EMPTY = new Set(
    (
      "a about am an and any are as at be been being but by can did do does done for from get gets had has have " +
      "how i if import in into is it its just many me much my no of on one or our own same should so some such " +
      "than that the their them then there these they this those through to too use used uses using very vs " +
      "versus was we were what when where which while who why will with would you your " +
      "basics beginner between concept definition difference differences different eli5 example " +
      "exactly explain explained explaining explanation guide idea intro introduction intuition intuitive " +
      "intuitively please really simple simply tell tutorial understand understanding works working"
    ).split(" "),
  );
  // What the whole book is about tells its pages apart the least.
  const EVERYWHERE = new Set(
    ("ai code deep implement implementation learning llm machine mean meaning means model network neural paper python " +
      "pytorch torch transformer work").split(" "),
  );
  const WEAK = 0.3;
  const IN_TITLE = 4;
  const IN_HEADING = 3;
  const IN_BOLD = 0.4;
  const IN_TEXT = 1.5;
  const IN_CODE = 0.4;
  const SINGLY = 0.4; // the words of a term one by one: "the cache" for "KV cache"
  const COMMON = 0.6; // a section that many pages have, such as "What breaks", or an exercise
  const ON_PAGE = 3;
  const NEAR = 0.8; // the units of a query side by side, as they were typed
  const CLOSE = 12; // words; units that stand so near to each other say something together
  const ELSEWHERE = 0.5; // a unit that another section of the page speaks of
  const AT_HOME = 3.5; // what is asked for, in the place that answers it, whatever kind of page that is
  const LEAST = 3; // what an intention weighs, however common its words are
  const ENOUGH = 0.55; // of a query's rarity; a section with less does not answer it
  const SECTIONS = 3; // shown of a page
  const LENGTH = 230; // characters of an excerpt
  const CLEAR = 3; // letters; a shorter synonym (LN) is a word of its own elsewhere (ln, the logarithm)
  const BEGUN = 20; // words that a beginning may stand for, the most frequent ones
  const MARKED = 24; // forms of words marked on the page of a result
  const OF_CODE = /\b(class|import)\b/i; // with these a reader asks for code
  const CODE_NAME = /[a-z][A-Z]|\w_\w/; // MultiHeadAttention, causal_mask: not a plain word

  const WORDS = /√|[\p{L}\p{N}]+/gu;
  const A_WORD = /^(?:√|[\p{L}\p{N}])/u;

  // Endings, and the fewest letters that must be left: notes are no knots.
  const ENDINGS = [[/(ations?|ings?|(?<=iz)ers?|ed|es|e)$/, 4], [/(?<![aius])s$/, 3]];

  /* One spelling for the forms of a word: masks, masked, masking; normalise, normalization. */
  function newStem(word) {
    word = word.toLowerCase();
    if (word === "√") return "sqrt";
    if (word.length < 4) return word;
    word = word.replace(/is(e[drs]?|ers|ing|ations?)$/, "iz$1").replace(/ies$/, "y").replace(/(oid|ion)al$/, "$1");
    for (const [ending, least] of ENDINGS) {
      const cut = word.replace(ending, "");
      if (cut !== word && cut.length >= least) return cut.replace(/([bdgmnprt])\1$/, "$1");
    }
    return word;
  }

  const wordsOf = (text) => text.match(WORDS) ?? [];
  const known = new Map();
  const stem = (word) => known.get(word) ?? known.set(word, newStem(word)).get(word);

  const stems = (text) => wordsOf(text).map(stem);
  const line = (text) => ` ${stems(text).join(" ")} `;
  const isFull = (word) => !EMPTY.has(word.toLowerCase());
  const compact = (text) => wordsOf(text).filter(isFull).map(stem).join("");
  const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

  /* The words of a text, as numbers: see `number` in book_search.py. */
  function decoder({ signs, one, two }) {
    const place = new Map([...signs].map((sign, i) => [sign, i]));
    return (coded) => {
      const found = [];
      for (let at = 0; at < coded.length; ) {
        let number = place.get(coded[at++]);
        if (number >= one) {
          const isLong = number >= one + two;
          number = isLong ? (number - one - two) * signs.length + place.get(coded[at++]) + two : number - one;
          number = number * signs.length + place.get(coded[at++]) + one;
        }
        found.push(number);
      }
      return found;
    };
  }

  /* All stems of the book in one line, and for each stem the places where it stands. */
  class Stream {
    constructor(stemOf) {
      this.numbers = new Map([["", 0]]); // nothing stands between two fields
      this.stems = [""];
      this.line = [];
      this.known = stemOf.map((word) => (A_WORD.test(word) ? this.numberOf(stem(word)) : -1));
      this.seen = new Map();
    }

    numberOf(stemmed) {
      if (!this.numbers.has(stemmed)) {
        this.numbers.set(stemmed, this.stems.length);
        this.stems.push(stemmed);
      }
      return this.numbers.get(stemmed);
    }

    addPlain(text) {
      for (const word of wordsOf(text)) {
        if (!this.seen.has(word)) this.seen.set(word, this.numberOf(stem(word)));
        this.line.push(this.seen.get(word));
      }
      this.line.push(0);
      return this.line.length;
    }

    addNumbers(words) {
      for (const word of words) if (this.known[word] >= 0) this.line.push(this.known[word]);
      this.line.push(0);
      return this.line.length;
    }

    /* Count each stem, then note its places. */
    finish() {
      this.line = Int32Array.from(this.line);
      const starts = new Int32Array(this.stems.length + 1);
      for (const one of this.line) starts[one + 1]++;
      for (let i = 0; i < this.stems.length; i++) starts[i + 1] += starts[i];
      const next = starts.slice();
      this.places = new Int32Array(this.line.length);
      for (let at = 0; at < this.line.length; at++) this.places[next[this.line[at]]++] = at;
      this.starts = starts;
    }

    often(stemmed) {
      const number = this.numbers.get(stemmed);
      return number ? this.starts[number + 1] - this.starts[number] : 0;
    }

    /* Where stems stand one after the other. */
    find(phrase) {
      const [first, ...rest] = phrase.map((stemmed) => this.numbers.get(stemmed));
      if (!first || rest.some((one) => !one)) return [];
      const all = this.places.subarray(this.starts[first], this.starts[first + 1]);
      if (!rest.length) return all;
      return all.filter((at) => rest.every((one, i) => this.line[at + 1 + i] === one));
    }
  }

  /* Make the index ready: each text as a row of stems, each name with all names of its thing. */
  function prepare(index) {
    const words = index.words.split("\n");
    const decode = decoder(index);
    const stream = new Stream(words);
    const names = new Map();
    const homes = new Map();
    const addTo = (name, group) => names.set(compact(name), [...(names.get(compact(name)) ?? []), ...group]);
    index.names.forEach((group, i) => {
      for (const name of group) {
        addTo(name, group);
        if (index.homes?.[i]) homes.set(compact(name), index.homes[i]);
      }
    });
    for (const [home, questions] of Object.entries(index.asked ?? {}))
      for (const question of questions) homes.set(compact(question), home);
    const code = new Map();
    for (const [name, home] of documented(index.pages)) {
      const short = name.split(".").at(-1);
      for (const key of [short, stems(short).join("")]) if (!code.has(key)) code.set(key, home);
      if (names.has(compact(name))) continue;
      names.set(compact(name), [name]);
      homes.set(compact(name), home);
    }
    // The parts of a name that are often written as one: "multihead" for "multi-head".
    for (const [part] of index.names.flat().join(" ").matchAll(/\p{L}+(-\p{L}+)+/gu))
      if (!names.has(compact(part))) names.set(compact(part), [part]);
    const sections = [];
    const pages = index.pages.map(([address, title, weight, part, rows], order) => {
      const own = rows.map(([anchor, heading, text = "", bold = "", code = ""]) => {
        const coded = decode(text);
        const start = stream.line.length;
        const ends = [stream.addPlain(heading), stream.addNumbers(coded), stream.addPlain(bold), stream.addPlain(code)];
        const section = { anchor, heading, bold, code, head: line(heading), coded, start, ends, order: sections.length };
        sections.push(section);
        return section;
      });
      return { address, title, weight, part, order, sections: own, head: line(subject(title)) };
    });
    stream.finish();
    const sectionAt = new Uint16Array(stream.line.length);
    for (const { start, ends, order } of sections) sectionAt.fill(order, start, ends[3]);
    const often = new Map();
    for (const { heading } of sections) often.set(heading, (often.get(heading) ?? 0) + 1);
    for (const section of sections)
      section.weight =
        often.get(section.heading) > 4 || section.heading.startsWith("Exercise ") ? COMMON : 1;
    const intents = (index.intents ?? []).map(([home, slots]) => [home, slots.map((slot) => slot.map(line))]);
    const terms = new Set(index.names.flat());
    const near = new Map();
    return { words, stream, sectionAt, names, homes, intents, code, terms, pages, sections, near };
  }

  /* Names of the code, as they are imported, and where they are documented. Only their anchors have
     dots: `transformer_lib.models.language_models.CausalLM`, which `from transformer_lib import CausalLM` means, too.
     Classes and functions come first, then modules, and the members of a class last. */
  function documented(pages) {
    const found = pages.flatMap(([address, , , , rows]) =>
      rows.filter(([anchor]) => anchor.includes(".")).flatMap(([anchor, heading]) => {
        const home = `${address.replace(/^book\/|\.html$/g, "")}#${anchor}`;
        if (anchor.startsWith("module-")) return [[anchor.replace("module-", ""), home, 1.5]];
        const names = [anchor, `${anchor.split(".")[0]}.${heading}`];
        return names.map((name) => [name, home, heading.split(".").length]);
      }),
    );
    return found.sort(([, , a], [, , b]) => a - b);
  }

  /* What a title names: "5 · Masks: who may look at whom" is about masks. */
  const subject = (title) => title.replace(/^.* · /, "").split(":")[0];

  /* The text of a section; between two words stands a space, if nothing else does. A root is a sign. */
  function textOf(ready, section) {
    let text = "";
    let wasWord = false;
    for (const number of section.coded) {
      const word = ready.words[number];
      const isWord = A_WORD.test(word) && word !== "√";
      text += wasWord && isWord ? ` ${word}` : word;
      wasWord = isWord;
    }
    return text;
  }

  /* Cut a query into units, the longest names first. */
  function unitsOf(ready, query) {
    const typed = wordsOf(query);
    const full = typed.filter(isFull);
    const words = full.length ? full : typed;
    const units = [];
    for (let start = 0; start < words.length; ) {
      let end = words.length;
      while (end > start + 1 && !ready.names.has(compact(words.slice(start, end).join(" ")))) end--;
      const phrase = words.slice(start, end).join(" ");
      const known = (ready.names.get(compact(phrase)) ?? []).filter((name) => name.length >= CLEAR);
      units.push({ ...unit(ready, [phrase, ...known]), home: ready.homes.get(compact(phrase)) });
      start = end;
    }
    const areAllWeak = units.every(({ isWeak }) => isWeak);
    for (const one of units) if (one.isWeak && !areAllWeak) one.rarity *= WEAK;
    return units;
  }

  function unit(ready, names) {
    const lines = [...new Set(names.map(line))];
    let phrases = lines.map((phrase) => phrase.trim().split(" "));
    let hits = hitsOf(ready, phrases);
    if (!hits.size && names.length === 1 && phrases[0].length === 1) {
      phrases = begunBy(ready, names[0].toLowerCase()).map((stemmed) => [stemmed]);
      hits = hitsOf(ready, phrases);
    }
    const rarity = Math.log(1 + ready.sections.length / (hits.size + 1));
    const isWeak = EVERYWHERE.has(names[0].toLowerCase());
    return { phrases, lines: phrases.map((phrase) => ` ${phrase.join(" ")} `), hits, rarity, isWeak, isLong: phrases.some((phrase) => phrase.length > 1), typed: names[0] };
  }

  /* The words that begin so, if the last one is not yet all typed; the most frequent ones. */
  function begunBy(ready, start) {
    if (start.length < 2) return [];
    const begun = ready.stream.stems.filter((stemmed) => stemmed.startsWith(start));
    return begun.sort((a, b) => ready.stream.often(b) - ready.stream.often(a)).slice(0, BEGUN);
  }

  /* In which sections phrases stand: how often in each of their fields, and where. */
  function hitsOf({ stream, sections, sectionAt }, phrases) {
    const hits = new Map();
    for (const phrase of phrases)
      for (const at of stream.find(phrase)) {
        const section = sections[sectionAt[at]];
        if (!hits.has(section.order)) hits.set(section.order, { often: [0, 0, 0, 0], at: [], size: [] });
        const hit = hits.get(section.order);
        hit.often[section.ends.findIndex((end) => at < end)]++;
        hit.at.push(at);
        hit.size.push(phrase.length);
      }
    return hits;
  }

  const has = (head, lines) => lines.some((phrase) => head.includes(phrase));

  /* How much of a heading a unit is: all of it counts more than a word among many. */
  function share(head, { lines, phrases }) {
    const length = head.trim().split(" ").length;
    const within = phrases.filter((_, i) => head.includes(lines[i])).map((phrase) => phrase.length);
    if (within.length) return 0.4 + 0.6 * (Math.max(...within) / length);
    const shares = phrases.map((words) => {
      const there = words.length > 1 ? words.filter((word) => head.includes(` ${word} `)).length : 0;
      return there / Math.max(length, words.length);
    });
    return SINGLY * Math.max(0, ...shares);
  }

  /* Where a name of the code is documented, if the query spells it so, or asks for code. "RMSNorm" is
     a term as well: alone, it leads to the place that teaches it; and a "class token" is no code. */
  function codeHome(ready, query) {
    const isAsked = OF_CODE.test(query) && !ready.names.has(stems(query).join(""));
    const name = (isAsked ? query.replace(OF_CODE, "") : query).trim();
    if (isAsked) return ready.code.get(name) ?? ready.code.get(compact(name));
    return CODE_NAME.test(name) && !ready.terms.has(name) ? ready.code.get(name) : undefined;
  }

  /* The intentions that a query has: of each one its home, and how much of the query it explains. */
  function intended(ready, query) {
    const said = line(query);
    const full = stems(wordsOf(query).filter(isFull).join(" "));
    return ready.intents.flatMap(([home, slots]) => {
      const found = slots.map((slot) => slot.filter((phrase) => said.includes(phrase)));
      if (found.some((one) => !one.length)) return [];
      const used = new Set(found.flat().flatMap((phrase) => phrase.trim().split(" ")));
      const part = full.filter((word) => used.has(word)).length / Math.max(1, full.length);
      return [{ home, part: full.length ? part : 1 }];
    });
  }

  /* The places that answer a query, and how much that counts: of the whole, or of each of its units. */
  function homesOf(ready, query, units) {
    const code = codeHome(ready, query);
    const home = ready.homes.get(compact(query));
    const rarity = sum(units.map((one) => one.rarity));
    const taught = home ? [{ home, rarity }] : units.filter((one) => one.home);
    const [meant] = intended(ready, query).sort((a, b) => b.part - a.part);
    if (meant?.part >= 0.5) taught.push({ home: meant.home, rarity: Math.max(rarity, LEAST) * (0.5 + meant.part) });
    return code ? [{ home: code, rarity: Infinity }, ...taught.filter((one) => one.home !== code)] : taught;
  }

  /* Which of these places are on a page; a place without a section is a whole page. */
  function homesOn(page, homes) {
    return homes.flatMap(({ home, rarity }) => {
      const [name, anchor] = home.split("#");
      return page.address.endsWith(`/${name}.html`) ? [{ anchor, rarity }] : [];
    });
  }

  /* How a page as a whole answers: for each unit, its title and how often it says it. */
  function pageScores(page, units) {
    return units.map((one) => {
      const hits = page.sections.flatMap(({ order }) => one.hits.get(order) ?? []);
      const often = sum(hits.map((hit) => hit.often[0] + hit.often[1]));
      const inTitle = has(page.head, one.lines);
      const score = IN_TITLE * share(page.head, one) + (ON_PAGE * often) / (often + 20);
      return { score, inTitle, isSaid: inTitle || often > 0, isThere: hits.length > 0 };
    });
  }

  const atHome = (section, here) =>
    AT_HOME * sum(here.filter(({ anchor }) => !anchor || anchor === section.anchor).map(({ rarity }) => rarity));

  function sectionScore(section, units, ofPage) {
    let score = 0;
    let covered = 0;
    let rarity = 0;
    const words = (section.ends[1] - section.ends[0]) * 6;
    units.forEach((one, i) => {
      const [inHeading = 0, inText = 0, inBold = 0, inCode = 0] = one.hits.get(section.order)?.often ?? [];
      const place =
        (inHeading || one.isLong ? IN_HEADING * share(section.head, one) : 0) +
        (inBold ? IN_BOLD : 0) +
        (IN_TEXT * inText) / (inText + 1 + words / 2000) +
        (inCode ? IN_CODE : 0);
      score += one.rarity * (place + ofPage[i].score);
      rarity += one.rarity;
      const isHere = one.hits.has(section.order) || ofPage[i].inTitle;
      covered += one.rarity * (isHere ? 1 : ofPage[i].isSaid ? ELSEWHERE : 0);
    });
    if (!covered || covered < ENOUGH * rarity) return 0;
    score += NEAR * nearness(section, units);
    return score * section.weight * (covered / rarity);
  }

  /* How near neighbours in a query are in a section, weighed by the rarer one. */
  function nearness(section, units) {
    let near = 0;
    for (let i = 1; i < units.length; i++) {
      const [one, two] = [units[i - 1], units[i]].map(({ hits }) => hits.get(section.order)?.at ?? []);
      let least = Infinity;
      for (const a of one) for (const b of two) least = Math.min(least, Math.abs(a - b));
      if (least <= CLOSE) near += (units[i - 1].rarity + units[i].rarity) / (least <= 2 ? 1 : 1 + least / 4);
    }
    return near;
  }

  /* The pages that answer a query, best first; each with its best sections. `meant` is the query as it
     was understood, its misspelled words corrected; `unknown` are words that are not in the book. */
  function find(ready, query) {
    const { meant, unknown } = corrected(ready, query);
    const units = unitsOf(ready, meant).filter(({ hits, home }) => hits.size || home);
    const homes = homesOf(ready, meant, units);
    const found = [];
    for (const page of units.length || homes.length ? ready.pages : []) {
      const ofPage = pageScores(page, units);
      const here = homesOn(page, homes);
      if (!here.length && !ofPage.some(({ isThere, score }) => isThere || score)) continue;
      const scored = page.sections
        .map((section) => {
          const said = page.weight * sectionScore(section, units, ofPage);
          const answers = atHome(section, here);
          const leads = said > 0 || answers === Infinity;
          return { section, said, answers, leads, score: said + answers };
        })
        .filter(({ score }) => score > 0);
      if (!scored.length) continue;
      const most = (of) => Math.max(...scored.map(of));
      // A home that does not say the words lifts its page; the reader is led to where they stand, and
      // the home is shown with them.
      const heard = ({ section }) => units.filter(({ hits }) => hits.has(section.order)).length;
      scored.sort((a, b) => b.leads - a.leads || b.score - a.score || heard(b) - heard(a));
      const shown = scored.slice(0, SECTIONS);
      const answered = most(({ answers }) => answers);
      const home = scored.find(({ answers }) => answers === answered);
      if (answered && !shown.includes(home)) shown[SECTIONS - 1] = home;
      const score = most(({ said }) => said) + answered;
      found.push({ page, sections: shown.map((one) => one.section), score });
    }
    found.sort((a, b) => b.score - a.score || a.page.order - b.page.order);
    return { units, found, meant, unknown };
  }

  /* Where the units stand in a text: [start, end, which unit], in order. */
  function spans(text, units) {
    const words = [...text.matchAll(WORDS)];
    const spelled = words.map((word) => stem(word[0]));
    const phrases = units
      .flatMap(({ phrases }, which) => phrases.map((parts) => ({ parts, which })))
      .sort((a, b) => b.parts.length - a.parts.length);
    const first = new Map();
    for (const phrase of phrases) first.set(phrase.parts[0], [...(first.get(phrase.parts[0]) ?? []), phrase]);
    const found = [];
    for (let at = 0; at < words.length; at++) {
      const hit = first.get(spelled[at])?.find(({ parts }) => parts.every((part, i) => spelled[at + i] === part));
      if (!hit) continue;
      const last = words[at + hit.parts.length - 1];
      found.push([words[at].index, last.index + last[0].length, hit.which]);
      at += hit.parts.length - 1;
    }
    return found;
  }

  /* The sentences of a text that say most of what was asked, and what was found in them. */
  function excerpt(text, units) {
    const all = spans(text, units);
    const ends = [...text.matchAll(/[.!?:]["”’)]* (?=["“(]?[\p{Lu}\p{N}])/gu)].map((end) => end.index + end[0].length);
    const starts = [0, ...ends];
    let best = { start: 0, score: -1 };
    for (const start of starts) {
      const within = all.filter(([from, to]) => from >= start && to <= start + LENGTH);
      const which = [...new Set(within.map((one) => one[2]))];
      const early = within.length ? 0.3 * (1 - (within[0][0] - start) / LENGTH) : 0;
      const score = sum(which.map((one) => units[one].rarity)) + 0.1 * Math.min(within.length, 3) + early;
      if (score > best.score + 1e-9) best = { start, score };
    }
    // A long sentence says it in its middle.
    const hit = all.find(([from]) => from >= best.start);
    let { start } = best;
    if (hit && hit[1] > start + LENGTH) start = text.indexOf(" ", hit[0] - LENGTH / 2) + 1;
    let end = Math.min(text.length, start + LENGTH);
    const full = ends.filter((one) => one <= end && one > start + LENGTH / 2).at(-1);
    const holds = (until) => all.every(([from, to]) => from < start || to > end || to <= until);
    if (end < text.length) end = full && holds(full) ? full - 1 : Math.max(text.lastIndexOf(" ", end), hit?.[1] ?? 0);
    const within = all.filter(([from, to]) => from >= start && to <= end);
    const isCut = end < text.length && !/[.!?:]["”’)]*$/.test(text.slice(start, end));
    return { before: start > 0 && !starts.includes(start), after: isCut, text: text.slice(start, end),
      marks: within.map(([from, to]) => [from - start, to - start]) };
  }

  /* The words to mark on the page of a result: all forms of all units, as the page has them. Between the
     words of a term stands a space, whatever stands there on the page. */
  function wordsIn(ready, page, units) {
    const found = units.map(() => new Set());
    units.forEach(({ hits, typed }, which) => {
      for (const section of page.sections) {
        const { at = [], size = [] } = hits.get(section.order) ?? {};
        at.forEach((place, i) => found[which].add(formAt(ready, section, place, size[i])));
      }
      if (found[which].size) return;
      const [first, last] = [page.sections[0].order, page.sections.at(-1).order];
      for (const word of wordsOf(typed).filter(isFull)) // a term that is not on the page: its words
        for (const place of ready.stream.find([stem(word)])) {
          const order = ready.sectionAt[place];
          if (order >= first && order <= last) found[which].add(formAt(ready, ready.sections[order], place, 1));
        }
    });
    const words = new Set();
    const queues = found.map((forms) => [...forms].filter((word) => word.length > 1));
    while (words.size < MARKED && queues.some((queue) => queue.length)) // in turn: no unit takes all the room
      for (const queue of queues) if (queue.length && words.size < MARKED) words.add(queue.shift());
    return [...words];
  }

  function formAt(ready, section, place, size) {
    const field = section.ends.findIndex((end) => place < end);
    section.fields ??= [];
    section.fields[field] ??= fieldOf(ready, section, field);
    const start = place - (field ? section.ends[field - 1] : section.start);
    return section.fields[field].slice(start, start + size).join(" ").toLowerCase();
  }

  function fieldOf({ words, stream }, { heading, coded, bold, code }, field) {
    if (field === 1) return coded.filter((word) => stream.known[word] >= 0).map((word) => words[word]);
    return wordsOf([heading, "", bold, code][field]);
  }

  const isVowel = (letter) => "aeiouy".includes(letter);

  /* How far two spellings are apart: a letter more, less, another, or two swapped is one slip; a letter
     doubled, or a vowel for a vowel, half of one. More than `most` is not told apart. */
  function slips(one, other, most) {
    if (Math.abs(one.length - other.length) > most) return Infinity;
    let [before, last] = [[], Array.from(other, (_, j) => j + 1)];
    last.unshift(0);
    for (let i = 1; i <= one.length; i++) {
      const row = [i];
      for (let j = 1; j <= other.length; j++) {
        const [a, b] = [one[i - 1], other[j - 1]];
        const change = a === b ? 0 : isVowel(a) && isVowel(b) ? 0.5 : 1;
        const more = a === one[i - 2] ? 0.5 : 1;
        const less = b === other[j - 2] ? 0.5 : 1;
        row[j] = Math.min(last[j] + more, row[j - 1] + less, last[j - 1] + change);
        if (i > 1 && j > 1 && a === other[j - 2] && one[i - 2] === b) row[j] = Math.min(row[j], before[j - 2] + 1);
      }
      if (Math.min(...row) > most) return Infinity;
      [before, last] = [last, row];
    }
    return last[other.length];
  }

  /* The words that a misspelled one may be, with how often the book has them. Those of titles and terms
     are looked for before others, and may be further away. */
  function vocabulary(ready) {
    if (ready.vocabulary) return ready.vocabulary;
    const often = new Map();
    for (const word of ready.words)
      if (/^\p{L}{4,}$/u.test(word)) often.set(word.toLowerCase(), ready.stream.often(stem(word)));
    const told = [...ready.pages.map(({ title }) => subject(title)), ...ready.terms].join(" ").toLowerCase();
    const terms = new Set(wordsOf(told).filter((word) => /^\p{L}{3,}$/u.test(word)));
    for (const term of terms) often.set(term, (often.get(term) ?? 0) + 50);
    ready.vocabulary = [...often].filter(([, count]) => count > 2).map(([word, count]) => [word, count, terms.has(word)]);
    return ready.vocabulary;
  }

  /* How many slips a word of so many letters may have. */
  const patience = (length, isTerm) =>
    length < 4 ? 0 : length < 6 ? 1 : length < 9 ? (isTerm ? 1.5 : 1) : isTerm ? 2.5 : 1.5;

  function nearest(ready, word) {
    let best = { cost: Infinity };
    for (const [other, count, isTerm] of word.length < 4 ? [] : vocabulary(ready)) {
      const first = word[0] === other[0] ? 0 : 0.5;
      const most = patience(word.length, isTerm) - first;
      const distance = slips(word, other, most);
      const cost = distance + first - 0.12 * Math.log(count);
      if (distance <= most && cost < best.cost) best = { cost, other };
    }
    return best.other;
  }

  /* Whether the book has a word: in its texts, as the beginning of a word there, or as a name written as one. */
  const isSaid = (ready, word, isLast) =>
    ready.stream.often(stem(word)) > 0 || ready.names.has(compact(word)) ||
    (isLast && begunBy(ready, word.toLowerCase()).length > 0);

  /* A name of two words and more with one slip in it, where each of its words is a word: "bite pair
     encoding"; null if there is none. */
  function nearestName(ready, query) {
    const typed = compact(query);
    const full = wordsOf(query).filter(isFull);
    const isPart = full.some((_, i) => i && ready.names.has(compact(`${full[i - 1]} ${full[i]}`)));
    if (full.length < 2 || typed.length < 9 || isPart) return null;
    for (const [name, group] of ready.names)
      if (slips(typed, name, 1) <= 1) return group.find((one) => compact(one) === name);
    return null;
  }

  /* The query with each word that the book does not have as the nearest one that it has; and those words
     for which there is none. */
  function corrected(ready, query) {
    const unknown = [];
    if (ready.names.has(compact(query))) return { meant: query.trim(), unknown }; // "layernorm"
    const typed = [...query.matchAll(WORDS)];
    const near = (word, at) => {
      if (!isFull(word) || isSaid(ready, word, at === typed.at(-1).index)) return word;
      const small = word.toLowerCase();
      if (!ready.near.has(small)) ready.near.set(small, nearest(ready, small)); // asked at each key
      const other = ready.near.get(small);
      if (!other) unknown.push(word);
      return other ?? word;
    };
    const meant = query.replace(WORDS, near).trim();
    return { meant: nearestName(ready, meant) ?? meant, unknown };
  }

  return { stem, prepare, find, textOf, excerpt, wordsIn };
})();

/* The search's page and the dialog of all other pages: the list follows what is typed. */
(() => {
  if (!globalThis.document) return;
  const ROOT = (document.documentElement.dataset.content_root ?? "").replace(/^\.\//, "");
  const ON_ITS_PAGE = 20;
  const IN_DIALOG = 6;
  const index = { script: null, ready: null, waiting: new Set() }; // large: it comes when somebody searches

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function marked(text, marks) {
    const pieces = [];
    let end = 0;
    for (const [from, to] of marks) {
      pieces.push(text.slice(end, from), element("mark", {}, text.slice(from, to)));
      end = to;
    }
    return [...pieces, text.slice(end)];
  }

  function withIndex(then) {
    if (index.ready) return then();
    index.waiting.add(then);
    if (index.script) return;
    index.script = document.head.appendChild(element("script", { src: `${ROOT}searchindex.js` }));
    index.script.addEventListener("load", () => {
      index.ready = BookSearch.prepare(BOOK_INDEX);
      index.waiting.forEach((waiting) => waiting());
    });
  }

  function result({ page, sections }, units) {
    const words = BookSearch.wordsIn(index.ready, page, units);
    const mark = words.length ? `?mark=${encodeURIComponent(words.join("|"))}` : "";
    const link = (section, shown) =>
      element("a", { href: `${ROOT}${page.address}${mark}#${section.anchor}` }, shown);
    const [best, ...others] = sections;
    const excerpt = BookSearch.excerpt(BookSearch.textOf(index.ready, best), units);
    const text = [excerpt.before ? "… " : "", ...marked(excerpt.text, excerpt.marks)];
    const item = element("li", {}, link(best, page.title));
    const way = [page.part, best === page.sections[0] ? "" : best.heading].filter(Boolean);
    item.append(element("span", { className: "search-section" }, way.join(" › ")));
    item.append(element("p", {}, ...text, excerpt.after ? " …" : ""));
    if (others.length) {
      const called = (section) =>
        section === page.sections[0] ? "the beginning of the page" : section.heading;
      const links = others.flatMap((section) => [" · ", link(section, called(section))]);
      item.append(element("p", { className: "search-others" }, "Also: ", ...links.slice(1)));
    }
    return item;
  }

  function summary(query, { found, meant, unknown }, shown) {
    const pages = found.length === 1 ? "One page" : `${found.length || "No"} pages`;
    const more = found.length > shown ? ` The best ${shown} are listed.` : "";
    const missing = unknown.filter(() => found.length).map((word) => `“${word}”`).join(", ");
    const without = missing ? ` The book does not have ${missing}.` : "";
    const same = meant === query.trim();
    return same
      ? `${pages} found for “${query.trim()}”.${more}${without}`
      : `Showing results for “${meant}”: ${pages.toLowerCase()} found.${more}${without}`;
  }

  /* Let a list follow a field. */
  function attach(field, list, shown) {
    const said = element("p", { className: "search-summary", role: "status" });
    const results = element("ol");
    function show() {
      const query = field.value;
      if (!query.trim()) return list.replaceChildren();
      if (!list.contains(said)) list.replaceChildren(said, results);
      if (!index.ready) return withIndex(show);
      const answer = BookSearch.find(index.ready, query);
      said.textContent = summary(query, answer, shown);
      results.replaceChildren(...answer.found.slice(0, shown).map((one) => result(one, answer.units)));
    }
    /* Up and down go through the field and the results. */
    function step(event) {
      const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!way) return;
      const stops = [field, ...list.querySelectorAll("li > a")];
      const at = stops.indexOf(document.activeElement);
      const next = stops[at + way];
      if (at < 0 || !next) return;
      event.preventDefault();
      next.focus();
    }
    field.addEventListener("input", show);
    document.addEventListener("keydown", step);
    show();
  }

  function startPage(list) {
    const field = document.querySelector("main form.bd-search input");
    field.value = new URLSearchParams(location.search).get("q") ?? "";
    field.focus();
    attach(field, list, ON_ITS_PAGE);
    withIndex(() => {});
    field.addEventListener("input", () => {
      // A page on the reader's disk may not change its address.
      const address = `?q=${encodeURIComponent(field.value)}`;
      if (location.protocol !== "file:") history.replaceState(null, "", address);
    });
  }

  function startDialog() {
    const dialog = document.getElementById("pst-search-dialog");
    if (!dialog) return;
    const list = dialog.appendChild(element("div", { className: "search-live" }));
    attach(dialog.querySelector("input"), list, IN_DIALOG);
    withIndex(() => {});
  }

  function start() {
    const list = document.querySelector("main #search-results");
    if (list) startPage(list);
    else startDialog();
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
