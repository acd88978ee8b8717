"use strict";
// Everything works without this: it adds the arrow keys in charts, the line under a chart, and sorting of tables.
for (const chart of document.querySelectorAll("svg[data-readout]")) {
  const points = [...chart.querySelectorAll("[data-point]")];
  const readout = document.getElementById(chart.dataset.readout);
  const hint = readout.textContent;
  const show = (point) => { readout.textContent = point ? point.getAttribute("aria-label") : hint; };
  chart.addEventListener("pointerover", (event) => {
    const point = event.target.closest("[data-point]");
    if (point) show(point);
  });
  chart.addEventListener("focusin", (event) => show(event.target.closest("[data-point]")));
  chart.addEventListener("keydown", (event) => {
    const at = points.indexOf(event.target.closest("[data-point]"));
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: points.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    const point = points[Math.min(Math.max(next, 0), points.length - 1)];
    points[at].setAttribute("tabindex", "-1");
    point.setAttribute("tabindex", "0");
    point.focus();
  });
}
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const upward = head.getAttribute("aria-sort") !== "ascending";
      const numeric = head.classList.contains("number");
      const value = (row) => {
        const text = row.cells[column].textContent;
        return numeric ? parseFloat(text.replaceAll(",", "")) : text;
      };
      const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0) * (upward ? 1 : -1);
      body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", upward ? "ascending" : "descending");
    });
  });
}
