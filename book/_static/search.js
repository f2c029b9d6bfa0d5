/* The search: which sections answer a query, best first. Only the search's own page loads it.

   A query is cut into units. A unit is a term of the glossary, by any of its names ("prenorm" is
   "pre-norm"), or else one word. A section scores by how rare a unit is in the book, and by where
   it stands: in the page's title, in the heading, in bold (where terms are defined), in the text,
   in code. A page scores by its best section and by how much it speaks of the matter in all.
   The home of a term, of a question or of a line of code, the place that answers it, comes first
   wherever it stands. A name of the library, spelled as in code, leads to where it is documented.
   If nothing is found, the nearest words of the book are suggested. */
const BookSearch = (() => {
  const EMPTY = new Set(
    (
      "a an and are as at be by can do does for from how i if import in is it my of on or own so that the " +
      "this to use versus vs was we what when where which who why with you"
    ).split(" "),
  );
  const IN_TITLE = 4;
  const IN_HEADING = 3;
  const IN_BOLD = 0.4;
  const IN_TEXT = 1.5;
  const IN_CODE = 0.4;
  const SINGLY = 0.4; // the words of a term one by one: "the cache" for "KV cache"
  const COMMON = 0.6; // a section that many pages have, such as "What breaks", or an exercise
  const ON_PAGE = 3;
  const NEAR = 1; // the units of a query side by side, as they were typed
  const AT_HOME = 3; // what is asked for, in the place that answers it, whatever kind of page that is
  const ENOUGH = 0.6; // of a query's rarity; a section with less does not answer it
  const SECTIONS = 3; // shown of a page
  const AROUND = 110; // characters before and after what was found
  const CLEAR = 3; // letters; a shorter synonym (LN) is a word of its own elsewhere (ln, the logarithm)
  const OF_CODE = /\b(class|import)\b/i; // with these a reader asks for code
  const CODE_NAME = /[a-z][A-Z]|\w_\w/; // MultiHeadAttention, causal_mask: not a plain word

  const WORDS = /√|[\p{L}\p{N}]+/gu;

  // Endings, and the fewest letters that must be left: notes are no knots.
  const ENDINGS = [[/(ations?|ings?|(?<=iz)ers?|ed|es|e)$/, 4], [/(?<![aius])s$/, 3]];

  /* One spelling for the forms of a word: masks, masked, masking; normalise, normalization. */
  function stem(word) {
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

  const stems = (text) => (text.match(WORDS) ?? []).map(stem);
  const line = (text) => ` ${stems(text).join(" ")} `;
  const isFull = (word) => !EMPTY.has(word.toLowerCase());
  const compact = (text) => (text.match(WORDS) ?? []).filter(isFull).map(stem).join("");

  function count(within, phrases) {
    let found = 0;
    for (const phrase of phrases)
      for (let at = within.indexOf(phrase); at >= 0; at = within.indexOf(phrase, at + 1)) found++;
    return found;
  }

  const has = ({ head, bold, body, code }, phrases) => count(head + bold + body + code, phrases) > 0;

  /* Make the index ready: each text as one line of stems, each name with all names of its thing. */
  function prepare(index) {
    const names = new Map();
    const homes = new Map();
    index.names.forEach((group, i) => {
      for (const name of group) {
        names.set(compact(name), [...(names.get(compact(name)) ?? []), ...group]);
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
    const pages = index.pages.map(([address, title, weight, part, rows], order) => {
      const sections = rows.map(([anchor, heading, text = "", bold = "", code = ""]) => ({
        ...{ anchor, heading, text },
        ...{ head: line(heading), bold: line(bold), body: line(text), code: line(code) },
      }));
      const all = sections.map((section) => section.head + section.body).join("");
      return { address, title, weight, part, order, sections, head: line(subject(title)), all };
    });
    const sections = pages.flatMap((page) => page.sections);
    const often = new Map();
    for (const { heading } of sections) often.set(heading, (often.get(heading) ?? 0) + 1);
    for (const section of sections)
      section.weight =
        often.get(section.heading) > 4 || section.heading.startsWith("Exercise ") ? COMMON : 1;
    return { names, homes, code, terms: new Set(index.names.flat()), pages, sections };
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

  /* Cut a query into units, the longest names first. */
  function unitsOf(ready, query) {
    const typed = query.match(WORDS) ?? [];
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
    return units;
  }

  function unit(ready, names) {
    let phrases = [...new Set(names.map(line))];
    const hits = () => ready.sections.filter((section) => has(section, phrases)).length;
    if (!hits()) phrases = phrases.map((phrase) => phrase.trimEnd()); // perhaps not yet all typed
    return { phrases, singly: names.map(stems), rarity: Math.log(1 + ready.sections.length / (hits() + 1)) };
  }

  /* How much of a heading a unit is: all of it counts more than a word among many. */
  function share(head, { phrases, singly }) {
    const length = (text) => text.trim().split(" ").length;
    const within = phrases.filter((phrase) => head.includes(phrase)).map(length);
    if (within.length) return 0.4 + 0.6 * (Math.max(...within) / length(head));
    const shares = singly.map((words) => {
      const there = words.filter((word) => head.includes(` ${word} `)).length;
      return there / Math.max(length(head), words.length);
    });
    return SINGLY * Math.max(...shares);
  }

  /* Where a name of the code is documented, if the query spells it so, or asks for code. "RMSNorm" is
     a term as well: alone, it leads to the place that teaches it; and a "class token" is no code. */
  function codeHome(ready, query) {
    const isAsked = OF_CODE.test(query) && !ready.names.has(stems(query).join(""));
    const name = (isAsked ? query.replace(OF_CODE, "") : query).trim();
    if (isAsked) return ready.code.get(name) ?? ready.code.get(compact(name));
    return CODE_NAME.test(name) && !ready.terms.has(name) ? ready.code.get(name) : undefined;
  }

  /* The places that answer a query, and how much that counts: of the whole, or of each of its units. */
  function homesOf(ready, query, units) {
    const code = codeHome(ready, query);
    const home = ready.homes.get(compact(query));
    const rarity = units.reduce((sum, unit) => sum + unit.rarity, 0);
    const taught = home ? [{ home, rarity }] : units.filter((unit) => unit.home);
    return code ? [{ home: code, rarity: Infinity }, ...taught.filter((one) => one.home !== code)] : taught;
  }

  /* Whether a section is such a place; a place without a section is a whole page. */
  function isHome(page, section, home) {
    const [name, anchor] = (home ?? "").split("#");
    if (!name || !page.address.endsWith(`/${name}.html`)) return false;
    return !anchor || section.anchor === anchor;
  }

  /* How a page as a whole answers: for each unit, its title and how often it says it. */
  function pageScores(page, units) {
    return units.map((unit) => {
      const often = count(page.all, unit.phrases);
      return IN_TITLE * share(page.head, unit) + (ON_PAGE * often) / (often + 20);
    });
  }

  function atHome(page, section, homes) {
    const here = homes.filter(({ home }) => isHome(page, section, home));
    return AT_HOME * here.reduce((sum, { rarity }) => sum + rarity, 0);
  }

  function sectionScore(section, page, units, whole, ofPage) {
    let score = 0;
    let covered = 0;
    let rarity = 0;
    units.forEach((unit, i) => {
      const often = count(section.body, unit.phrases);
      const place =
        IN_HEADING * share(section.head, unit) +
        (count(section.bold, unit.phrases) ? IN_BOLD : 0) +
        (IN_TEXT * often) / (often + 1 + section.body.length / 2000) +
        (count(section.code, unit.phrases) ? IN_CODE : 0);
      score += unit.rarity * (place + ofPage[i]);
      rarity += unit.rarity;
      if (has(section, unit.phrases) || count(page.head, unit.phrases)) covered += unit.rarity;
    });
    if (covered < ENOUGH * rarity) return 0;
    if (units.length > 1 && count(section.head + section.body, [whole])) score += NEAR * rarity;
    return score * section.weight * (covered / rarity);
  }

  /* The pages that answer a query, best first; each with its best sections. */
  function find(ready, query) {
    const units = unitsOf(ready, query);
    const homes = homesOf(ready, query, units);
    const whole = line(query);
    const found = [];
    for (const page of ready.pages) {
      const ofPage = pageScores(page, units);
      const scored = page.sections
        .map((section) => {
          const said = page.weight * sectionScore(section, page, units, whole, ofPage);
          const answers = atHome(page, section, homes);
          const leads = said > 0 || answers === Infinity;
          return { section, said, answers, leads, score: said + answers };
        })
        .filter(({ score }) => score > 0);
      if (!scored.length) continue;
      const most = (of) => Math.max(...scored.map(of));
      // A home that does not say the words lifts its page; the reader is led to where they stand, and
      // the home is shown with them.
      const heard = ({ section }) => units.filter(({ phrases }) => has(section, phrases)).length;
      scored.sort((a, b) => b.leads - a.leads || b.score - a.score || heard(b) - heard(a));
      const shown = scored.slice(0, SECTIONS);
      const answered = most(({ answers }) => answers);
      const home = scored.find(({ answers }) => answers === answered);
      if (answered && !shown.includes(home)) shown[SECTIONS - 1] = home;
      const score = most(({ said }) => said) + answered;
      found.push({ page, sections: shown.map((one) => one.section), score });
    }
    found.sort((a, b) => b.score - a.score || a.page.order - b.page.order);
    return { units, found };
  }

  /* Where the units stand in a text: [start, end], in order. */
  function spans(text, units) {
    const words = [...text.matchAll(WORDS)];
    const spelled = words.map((word) => stem(word[0]));
    const phrases = units
      .flatMap((unit) => unit.phrases)
      .map((phrase) => ({ parts: phrase.trim().split(" "), open: !phrase.endsWith(" ") }))
      .sort((a, b) => b.parts.length - a.parts.length);
    const found = [];
    for (let at = 0; at < words.length; at++) {
      const hit = phrases.find(({ parts, open }) =>
        parts.every((part, i) =>
          open ? spelled[at + i]?.startsWith(part) : spelled[at + i] === part,
        ),
      );
      if (!hit) continue;
      const last = words[at + hit.parts.length - 1];
      found.push([words[at].index, last.index + last[0].length]);
      at += hit.parts.length - 1;
    }
    return found;
  }

  /* The part of a text around the first thing found, and what was found in it. */
  function excerpt(text, units) {
    const all = spans(text, units);
    const middle = all.length ? all[0][0] : 0;
    let start = Math.max(0, middle - AROUND);
    let end = Math.min(text.length, middle + AROUND);
    if (start > 0) start = text.indexOf(" ", start) + 1;
    if (end < text.length) end = Math.max(text.lastIndexOf(" ", end), all[0]?.[1] ?? 0);
    const within = all.filter(([from, to]) => from >= start && to <= end);
    return { before: start > 0, after: end < text.length, text: text.slice(start, end),
      marks: within.map(([from, to]) => [from - start, to - start]) };
  }

  /* The words to mark on the page of a result: as they stand there, each once. */
  function wordsIn(text, units) {
    const found = spans(text, units).map(([start, end]) => text.slice(start, end).toLowerCase());
    return [...new Set(found)].filter((word) => word.length > 1).slice(0, 8);
  }

  /* How many slips of the keys make one word of another: a letter more, less, another, or two swapped. */
  function slips(one, other) {
    const rows = [[...Array(other.length + 1).keys()]];
    for (let i = 1; i <= one.length; i++) {
      const [row, last] = [[i], rows[i - 1]];
      for (let j = 1; j <= other.length; j++) {
        row[j] = Math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (one[i - 1] !== other[j - 1]));
        const areSwapped = i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1];
        if (areSwapped) row[j] = Math.min(row[j], rows[i - 2][j - 2] + 1);
      }
      rows.push(row);
    }
    return rows[one.length][other.length];
  }

  /* The query with each word that the book does not have as the nearest word of its titles and terms;
     null if there is none. A short word may have one slip, a long one two. */
  function suggest(ready, query) {
    const words = (texts) => texts.flatMap((text) => text.toLowerCase().match(WORDS) ?? []);
    const terms = [...ready.names.values()].flat();
    const known = new Set(words([...ready.pages.map(({ title }) => subject(title)), ...terms]));
    const near = (word) => {
      const isSaid = ready.sections.some((section) => has(section, [line(word)]));
      if (!isFull(word) || isSaid) return word;
      const most = word.length > 5 ? 2 : word.length > 3 ? 1 : 0;
      const ranked = [...known].map((other) => [slips(word.toLowerCase(), other), other]);
      const [[least, best]] = ranked.sort((a, b) => a[0] - b[0]);
      return least <= most ? best : word;
    };
    const meant = query.trim().replace(WORDS, near);
    return meant === query.trim() ? null : meant;
  }

  return { stem, prepare, find, suggest, excerpt, wordsIn };
})();

/* The search's page: the address holds the query, the list follows what is typed. */
(() => {
  const list = globalThis.document?.getElementById("search-results");
  if (!list) return;
  const field = document.querySelector("main form.bd-search input");
  const SHOWN = 20;
  let ready = null;
  const index = { script: null }; // large: it comes when somebody searches

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

  function link(page, section, units, shown) {
    const words = BookSearch.wordsIn(`${section.heading} . ${section.text}`, units);
    const mark = words.length ? `?mark=${encodeURIComponent(words.join("|"))}` : "";
    return element("a", { href: `${page.address}${mark}#${section.anchor}` }, shown);
  }

  function result({ page, sections }, units) {
    const [best, ...others] = sections;
    const excerpt = BookSearch.excerpt(best.text, units);
    const text = [excerpt.before ? "… " : "", ...marked(excerpt.text, excerpt.marks)];
    const item = element("li", {}, link(page, best, units, page.title));
    const way = [page.part, best === page.sections[0] ? "" : best.heading].filter(Boolean);
    item.append(element("span", { className: "search-section" }, way.join(" › ")));
    item.append(element("p", {}, ...text, excerpt.after ? " …" : ""));
    if (others.length) {
      const called = (section) =>
        section === page.sections[0] ? "the beginning of the page" : section.heading;
      const links = others.flatMap((section) => [" · ", link(page, section, units, called(section))]);
      item.append(element("p", { className: "search-others" }, "Also: ", ...links.slice(1)));
    }
    return item;
  }

  function withIndex(then) {
    index.script ??= document.head.appendChild(element("script", { src: "searchindex.js" }));
    index.script.addEventListener("load", () => {
      ready = BookSearch.prepare(BOOK_INDEX);
      then();
    });
  }

  function suggestion(query) {
    const meant = BookSearch.suggest(ready, query);
    if (!meant) return [];
    const link = element("a", { href: `?q=${encodeURIComponent(meant)}` }, meant);
    return [" Did you mean ", link, "?"];
  }

  function show() {
    const query = field.value;
    if (!query.trim()) return list.replaceChildren();
    if (!ready) return withIndex(show);
    const { units, found } = BookSearch.find(ready, query);
    const shown = found.slice(0, SHOWN);
    const more = found.length > SHOWN ? ` The best ${SHOWN} are listed.` : "";
    const pages = found.length === 1 ? "One page" : `${found.length || "No"} pages`;
    const said = [`${pages} found for “${query}”.${more}`, ...(found.length ? [] : suggestion(query))];
    list.replaceChildren(
      element("p", { className: "search-summary", role: "status" }, ...said),
      element("ol", {}, ...shown.map((answer) => result(answer, units))),
    );
  }

  /* Up and down go through the field and the results. */
  function step(event) {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way) return;
    const stops = [field, ...list.querySelectorAll("li > a, .search-summary a")];
    const at = stops.indexOf(document.activeElement);
    const next = stops[at + way];
    if (at < 0 || !next) return;
    event.preventDefault();
    next.focus();
  }

  function start() {
    field.value = new URLSearchParams(location.search).get("q") ?? "";
    field.focus();
    show();
    field.addEventListener("input", () => {
      // A page on the reader's disk may not change its address.
      const address = `?q=${encodeURIComponent(field.value)}`;
      if (location.protocol !== "file:") history.replaceState(null, "", address);
      show();
    });
    document.addEventListener("keydown", step);
  }
  document.addEventListener("DOMContentLoaded", start);
})();
