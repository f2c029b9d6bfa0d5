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
