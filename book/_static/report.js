/* A quiet link at each cell and figure: it opens a report that names page, place and version. Only where
   the pages know their repository (book/_ext/book_launch.py); the foot of the page has the address. */
(() => {
  const foot = document.querySelector(".page-foot a[href*='/issues/new?']");
  if (!foot) return;
  for (const place of document.querySelectorAll("article .cell[id], article figure[id]")) {
    const address = new URL(foot.href);
    const [page, ...question] = address.searchParams.get("body").split("\n");
    const where = `Place: ${place.id}\nVersion: ${foot.dataset.version}`;
    address.searchParams.set("title", `${address.searchParams.get("title")}${place.id}: `);
    address.searchParams.set("body", [page, where, ...question].join("\n"));
    const link = document.createElement("a");
    Object.assign(link, { className: "report-this", href: address, rel: "noopener", textContent: "Report this" });
    link.setAttribute("aria-label", `Report an error in ${place.id}`);
    place.append(link);
  }
})();
