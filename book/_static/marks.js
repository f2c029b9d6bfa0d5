/* After a search: mark what was found on the page, and show the first place. Escape takes it off. */
(() => {
  const NOT_TEXT = "svg, script, style, .katex, button, .headerlink, mark";

  // Between the words of a term stands a space, a hyphen or a line's end.
  const escaped = (word) =>
    word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "[^\\p{L}\\p{N}]{1,3}");

  function patternFor(words) {
    const longestFirst = [...words].sort((a, b) => b.length - a.length);
    const any = longestFirst.map(escaped).join("|");
    return new RegExp(`(?<![\\p{L}\\p{N}])(?:${any})(?![\\p{L}\\p{N}])`, "giu");
  }

  function textsOf(article) {
    const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode())
      if (!walker.currentNode.parentElement.closest(NOT_TEXT)) texts.push(walker.currentNode);
    return texts;
  }

  function markIn(article, words) {
    const pattern = patternFor(words);
    for (const text of textsOf(article)) {
      for (const match of [...text.data.matchAll(pattern)].reverse()) {
        const found = text.splitText(match.index);
        found.splitText(match[0].length);
        const mark = document.createElement("mark");
        mark.className = "search-mark";
        found.replaceWith(mark);
        mark.append(found);
      }
    }
    return [...article.querySelectorAll("mark.search-mark")];
  }

  /* The first mark from the section on that the result named; one in sight before one in a fold. */
  function firstFrom(place, marks) {
    const follows = (mark) =>
      place.contains(mark) ||
      place.compareDocumentPosition(mark) & Node.DOCUMENT_POSITION_FOLLOWING;
    const after = place ? marks.filter(follows) : marks;
    return after.find((mark) => mark.checkVisibility()) ?? after[0] ?? marks[0];
  }

  function takeOff(event) {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    for (const mark of document.querySelectorAll("mark.search-mark"))
      mark.replaceWith(...mark.childNodes);
    const { protocol, pathname, hash } = location;
    if (protocol !== "file:") history.replaceState(null, "", `${pathname}${hash}`);
    document.removeEventListener("keydown", takeOff);
  }

  const article = document.querySelector("article.bd-article");
  const words = new URLSearchParams(location.search).get("mark")?.split("|").filter(Boolean) ?? [];
  if (!article || !words.length) return;
  // A term may be parted by a link or by italics on the page: then its words are marked singly.
  let marks = markIn(article, words);
  const isMarked = (word) => marks.some((mark) => patternFor([word]).test(mark.textContent));
  const singly = words.filter((word) => !isMarked(word)).flatMap((word) => word.split(/[^\p{L}\p{N}]+/u));
  if (singly.length) {
    markIn(article, singly.filter((word) => word.length > 2));
    marks = [...article.querySelectorAll("mark.search-mark")];
  }
  document.addEventListener("keydown", takeOff);

  function arrive() {
    const first = firstFrom(document.getElementById(location.hash.slice(1)), marks);
    if (!first) return;
    for (let fold = first.closest("details"); fold; fold = fold.parentElement.closest("details"))
      fold.open = true;
    first.classList.add("search-first");
    const heading = first.closest("section")?.querySelector(":scope > h1, :scope > h2, :scope > h3");
    const near = heading && first.getBoundingClientRect().top - heading.getBoundingClientRect().top;
    if (near !== null && near < innerHeight / 2) heading.scrollIntoView();
    else first.scrollIntoView({ block: "center" });
  }
  // After the browser's own jump to the section; fonts may still move the text.
  addEventListener("load", () => document.fonts.ready.then(() => requestAnimationFrame(arrive)));
})();
