// Tables whose rows are of a kind can be sorted by a column, and long ones filtered.
"use strict";
(() => {
  const UNITS = { "\u00b5s": 1e-6, ms: 1e-3, kB: 1e3, MB: 1e6, GB: 1e9, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9 };
  const FEW_ROWS = 10;
  const NUMBER = /^([-\u2212+]?\d[\d\u202f]*(?:\.\d+)?(?:e[-+]?\d+)?)(?:[\u00a0 ](\S+))?/;

  // What a cell says, without what stands behind it in brackets and the mark of a note.
  function text(cell) {
    return [...cell.childNodes]
      .filter((each) => !(each.matches && each.matches(".detail, sup")))
      .map((each) => each.textContent).join("").trim();
  }

  function value(words) {
    const found = NUMBER.exec(words);
    return found ? Number(found[1].replaceAll("\u202f", "").replace("\u2212", "-")) * (UNITS[found[2]] || 1) : null;
  }

  function sortable(table) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const buttons = heads.map((head) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      return button;
    });
    buttons.forEach((button, column) => button.addEventListener("click", () => {
      const order = { ascending: "descending", descending: null }[heads[column].getAttribute("aria-sort")];
      const now = order === undefined ? "ascending" : order;
      for (const head of heads) head.removeAttribute("aria-sort");
      if (now === null) { body.append(...rows); return; }
      heads[column].setAttribute("aria-sort", now);
      const sign = now === "ascending" ? 1 : -1;
      const keyed = rows.map((row) => { const words = text(row.cells[column]); return { row, words, number: value(words) }; });
      const numbers = keyed.every(({ words, number }) => number !== null || words === "\u2014" || words === "");
      keyed.sort((one, two) => {
        if (!numbers) return sign * one.words.localeCompare(two.words, "en", { numeric: true });
        if (one.number === null || two.number === null) return (one.number === null) - (two.number === null);
        return sign * (one.number - two.number);
      });
      body.append(...keyed.map(({ row }) => row));
    }));
  }

  function filterable(box, table) {
    const rows = [...table.tBodies[0].rows], words = rows.map((row) => row.textContent.toLowerCase());
    const bar = document.createElement("p"), label = document.createElement("label");
    const input = document.createElement("input"), count = document.createElement("output");
    bar.className = "filter";
    input.type = "search";
    input.placeholder = "words, in any order";
    label.append("Rows with ", input);
    bar.append(label, " ", count);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      rows.forEach((row, each) => {
        row.hidden = !wanted.every((word) => words[each].includes(word));
        left += !row.hidden;
      });
      count.textContent = wanted.length ? left + " of " + rows.length : "";
    });
    box.before(bar);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const rows = table.tBodies[0].rows.length;
    if (rows > 1) sortable(table);
    if (rows > FEW_ROWS) filterable(table.parentElement, table);
  }

  // Paper shows what is folded away on a screen.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  window.addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
