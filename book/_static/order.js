/* The menu shows where the reader is: when a page opens, and when the menu opens on a phone. */
(() => {
  function showCurrentPage() {
    const entry = document.querySelector("nav.bd-links a[aria-current=page]");
    const menu = entry?.closest(".bd-sidebar-primary");
    if (!menu) return;
    const place = entry.getBoundingClientRect();
    const frame = menu.getBoundingClientRect();
    if (place.top < frame.top || place.bottom > Math.min(frame.bottom, innerHeight)) {
      menu.scrollTop += place.top - frame.top - menu.clientHeight / 3;
    }
  }

  // After the theme, which puts the menu back to where it stood on the page before.
  window.addEventListener("load", showCurrentPage);
  document
    .querySelectorAll("button.primary-toggle")
    .forEach((button) => button.addEventListener("click", () => setTimeout(showCurrentPage)));
})();

/* "On this page" marks the part that is being read. The theme marks a heading that it sees in the upper part
   of the screen; a jump, or a fast wheel, goes past it. */
(() => {
  const nav = document.getElementById("pst-page-toc-nav");
  const links = [...(nav?.querySelectorAll("a[href^='#']") ?? [])];
  const parts = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
  if (!links.length) return;

  function mark() {
    const left = document.documentElement.scrollHeight - innerHeight - scrollY;
    // Near the end of the page the line sinks: the last parts never come up to it.
    const line = Math.max(0.3 * innerHeight, innerHeight - left);
    const here = links[parts.findLastIndex((part) => part?.getBoundingClientRect().top <= line)];
    for (const link of links) {
      link.classList.toggle("active", link === here);
      if (link === here) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    for (const entry of nav.querySelectorAll(".toc-entry"))
      entry.classList.toggle("active", entry.contains(here ?? null));
  }

  let next = 0, last = 0;
  window.addEventListener("scroll", () => {
    cancelAnimationFrame(next);
    clearTimeout(last);
    next = requestAnimationFrame(mark);
    last = setTimeout(mark, 120); // after the theme has said what it saw
  }, { passive: true });
})();

/* The menu is one stop of Tab: inside, the arrow keys go from page to page. Tab went through 80 links. */
(() => {
  const menu = document.querySelector("nav.bd-links");
  if (!menu) return;
  const all = [...menu.querySelectorAll("a[href], summary")];

  function stopAt(stop) {
    for (const link of all) link.tabIndex = link === stop ? 0 : -1;
  }

  stopAt(menu.querySelector("a[aria-current=page]") ?? all[0]);
  menu.addEventListener("focusin", ({ target }) => all.includes(target) && stopAt(target));
  menu.addEventListener("toggle", ({ target }) => stopAt(target.querySelector("summary")), true);
  menu.addEventListener("keydown", (event) => {
    const shown = all.filter((link) => link.checkVisibility());
    const at = shown.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (at < 0 || to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    shown[to]?.focus();
  });
})();
