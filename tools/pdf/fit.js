/* Runs in the document before it is printed, laid out as on paper. Makes what is too wide for the
   column smaller, and returns what it did and what would still be cut. Nothing scrolls on paper. */
({ pageHeight, smallest, figureScale, figureHeight }) => {
  const scaled = { formula: 0, table: 0, code: 0, figure: 0 };
  const cut = [];
  const column = document.querySelector("main").getBoundingClientRect();
  const sheets = [...document.querySelectorAll("main > section")];
  const SLACK = 4; // pixels: a subscript's invisible end may stick out of its cell
  const LONG = 200; // pixels: a block of code of about 14 lines
  const tooWide = (box, slack = 0) =>
    box.clientWidth > 0 && box.scrollWidth > box.clientWidth + slack;

  function report(sheet, element, why) {
    const words = (element.getAttribute("aria-label") || element.textContent).trim();
    const kind = `<${element.localName} class="${element.getAttribute("class") || ""}">`;
    const page = sheet.id || sheet.className;
    cut.push(`${page}: ${why}: ${kind} ${words.replace(/\s+/g, " ").slice(0, 80)}`);
  }

  /* Shrink the letters of `element` until `box` holds it; in steps, since not all of it shrinks. */
  function shrink(kind, box, element) {
    if (!tooWide(box)) return;
    const size = parseFloat(getComputedStyle(element).fontSize);
    let factor = 1;
    while (tooWide(box) && factor > smallest) {
      factor = Math.max(smallest, factor * Math.min(0.98, box.clientWidth / box.scrollWidth));
      element.style.fontSize = `${size * factor}px`;
    }
    scaled[kind] += 1;
  }

  /* A figure is as large, beside the text, as on the site, but with its caption on one page. */
  function fitFigure(picture) {
    const natural = parseFloat(picture.getAttribute("width"));
    if (natural) picture.style.width = `${natural * figureScale}px`;
    const whole = (picture.closest("figure") || picture).getBoundingClientRect();
    if (whole.height <= figureHeight) return;
    const own = picture.getBoundingClientRect();
    const room = figureHeight - (whole.height - own.height);
    picture.style.width = `${(own.width * room) / own.height}px`;
    scaled.figure += 1;
  }

  function fit(sheet) {
    for (const box of sheet.querySelectorAll("div.math"))
      shrink("formula", box, box.querySelector(".katex-display") || box);
    for (const box of sheet.querySelectorAll(".pst-scrollable-table-container"))
      shrink("table", box, box.querySelector("table") || box);
    for (const box of sheet.querySelectorAll("pre")) {
      shrink("code", box, box);
      if (tooWide(box)) Object.assign(box.style, { fontSize: "", whiteSpace: "pre-wrap" });
      if (box.clientHeight > LONG) box.closest(".cell_input, .output")?.classList.add("long");
    }
    sheet.querySelectorAll(".figure-scroll > svg").forEach(fitFigure);
  }

  /* Elements to measure: what lies inside a drawing or a part of a formula is its own affair. */
  function* measured(sheet) {
    const walker = document.createTreeWalker(sheet, NodeFilter.SHOW_ELEMENT, (element) =>
      element.parentElement.matches("svg, .katex-base")
        ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    while (walker.nextNode()) yield walker.currentNode;
  }

  function look(sheet) {
    const before = cut.length;
    for (const element of measured(sheet)) {
      const rect = element.getBoundingClientRect();
      if (rect.width === 0 || rect.height === 0) continue;
      if (rect.right > column.right + 1 || rect.left < column.left - 1)
        report(sheet, element, "wider than the column");
      else if (element.matches("p, pre, td, dt, div.math, figcaption") &&
               tooWide(element, SLACK))
        report(sheet, element, "wider than its box");
      if (element.matches("figure, svg, tr, div.math") && rect.height > pageHeight)
        report(sheet, element, "higher than a page");
    }
    /* The browser would make all pages smaller to hold it. */
    if (cut.length === before && tooWide(sheet, 1)) report(sheet, sheet, "wider than the column");
  }

  sheets.forEach(fit);
  sheets.forEach(look);
  return { scaled, cut };
}
