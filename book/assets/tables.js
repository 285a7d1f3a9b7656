// Sortable tables, the ledger's filter, and column titles for the phone layout. Without this script the tables are whole.
(() => {
  "use strict";
  const text = (cell) => cell.textContent.trim();
  const rowsOf = (table) => Array.from(table.tBodies[0].rows);

  function labelCells(table) {
    const titles = Array.from(table.tHead.rows[0].cells, text);
    for (const row of rowsOf(table)) {
      Array.from(row.cells).forEach((cell, i) => {
        cell.dataset.label = titles[i];
        if (text(cell) === "") cell.dataset.empty = "";
      });
    }
  }

  function compare(a, b) {
    const x = Number.parseFloat(a.replace(/[,\u00a0]/g, "")), y = Number.parseFloat(b.replace(/[,\u00a0]/g, ""));
    const numbers = /^[\d.,+-]/.test(a) && /^[\d.,+-]/.test(b) && !Number.isNaN(x) && !Number.isNaN(y);
    return numbers && x !== y ? x - y : a.localeCompare(b, "en", { numeric: true });
  }

  function makeSortable(table) {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const sorted = rowsOf(table).sort((r, s) => compare(text(r.cells[column]), text(s.cells[column])));
        table.tBodies[0].append(...(down ? sorted.reverse() : sorted));
      });
    });
  }

  function control(title, element) {
    const label = document.createElement("label");
    label.append(title, element);
    return label;
  }

  function makeFilter(table) {
    const names = ["source", "kind", "status"].filter((name) => table.querySelector(`.lk-f-${name}`));
    const rows = rowsOf(table);
    const tools = document.createElement("div");
    tools.className = "lk-tools";
    tools.setAttribute("role", "search");
    const box = document.createElement("input");
    box.type = "search";
    box.placeholder = "words or an id";
    tools.append(control("contains", box));
    const selects = names.map((name) => {
      const select = document.createElement("select");
      select.name = name;
      const value = (row) => text(row.querySelector(`.lk-f-${name}`));
      select.append(new Option("all", ""));
      for (const item of new Set(rows.map(value))) select.append(new Option(item, item));
      tools.append(control(name, select));
      return { select, value };
    });
    const count = document.createElement("output");
    tools.append(count);
    const words = rows.map((row) => row.textContent.toLowerCase());
    const apply = () => {
      const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        const ok = wanted.every((word) => words[i].includes(word)) &&
          selects.every(({ select, value }) => !select.value || value(row) === select.value);
        row.hidden = !ok;
        shown += ok ? 1 : 0;
      });
      count.textContent = `${shown} of ${rows.length} claims`;
    };
    tools.addEventListener("input", apply);
    (table.closest(".pst-scrollable-table-container") || table).before(tools);
    apply();
    // A link to a row must show it whatever the filter says.
    const reveal = () => {
      const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (row && table.contains(row) && row.hidden) {
        box.value = "";
        selects.forEach(({ select }) => { select.value = ""; });
        apply();
        row.scrollIntoView();
      }
    };
    addEventListener("hashchange", reveal);
    table.dataset.ready = "";
  }

  // A table that pandas printed: numbers to the right, texts to the left, no counting index, a dash for an unknown.
  function tidyFrame(table) {
    const rows = rowsOf(table);
    const width = Math.max(0, ...rows.map((row) => row.cells.length));
    const counted = rows.length && rows.every((row, i) => row.cells[0].tagName === "TH" && text(row.cells[0]) === String(i));
    for (const row of table.rows) {
      if (counted && row.cells.length === width) row.cells[0].hidden = true;
    }
    for (let column = 0; column < width; column += 1) {
      const cells = rows.map((row) => row.cells[column]).filter(Boolean);
      for (const cell of cells) if (/^(NaN|None|NaT|<NA>)$/.test(text(cell))) cell.textContent = "\u2013";
      const number = cells.every((cell) => /^(\u2013|[-+]?[\d.,]+(e[-+]?\d+)?%?)$/.test(text(cell)));
      const head = table.tHead?.rows.length === 1 ? table.tHead.rows[0].cells[column] : undefined;
      const long = cells.some((cell) => text(cell).length > 30);
      for (const cell of head ? [...cells, head] : cells) {
        cell.classList.add(number ? "lk-right" : "lk-left");
        cell.classList.toggle("lk-long", long);
      }
    }
  }

  for (const table of document.querySelectorAll(".cell_output table.dataframe")) {
    if (table.tBodies.length) tidyFrame(table);
  }
  for (const table of document.querySelectorAll("table.lk-table")) {
    if (table.classList.contains("lk-cards")) labelCells(table);
    if (table.classList.contains("lk-filter")) makeFilter(table);
    if (table.classList.contains("lk-sortable")) makeSortable(table);
  }
})();
