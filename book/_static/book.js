/* A region that scrolls sideways must be reachable with the keyboard, and only while it scrolls. */
(() => {
  const SCROLLERS =
    "pre, .figure-scroll, div.math, .cell_output > .output, .pst-scrollable-table-container, " +
    "dl.py > dt.sig";

  const names = [
    [".figure-scroll", "Figure, scrolls sideways"],
    ["div.math", "Formula, scrolls sideways"],
    [".pst-scrollable-table-container", "Table, scrolls sideways"],
  ];

  function update(region) {
    const scrolls = region.scrollWidth > region.clientWidth + 1;
    if (!scrolls) {
      if (region.dataset.scrolls) {
        region.removeAttribute("tabindex");
        region.removeAttribute("role");
        region.removeAttribute("aria-label");
        delete region.dataset.scrolls;
      }
      return;
    }
    region.dataset.scrolls = "yes";
    region.tabIndex = 0;
    const named = names.find(([selector]) => region.matches(selector));
    if (named) {
      region.setAttribute("role", "group");
      region.setAttribute("aria-label", named[1]);
    }
  }

  function watch() {
    const observer = new ResizeObserver((entries) => entries.forEach((e) => update(e.target)));
    document.querySelectorAll(SCROLLERS).forEach((region) => {
      observer.observe(region);
      update(region);
    });
  }

  watch();
  document.fonts.ready.then(() => document.querySelectorAll(SCROLLERS).forEach(update));
})();
