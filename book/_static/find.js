/* The search comes when somebody opens its field: the page itself is lighter without it. */
(() => {
  const { content_root: root } = document.documentElement.dataset;
  const load = () => document.head.append(
    Object.assign(document.createElement("script"), { src: `${root}_static/search.js` }));
  if (!document.querySelector("main #search-results"))
    document.getElementById("pst-search-dialog")?.addEventListener("focusin", load, { once: true });
})();
