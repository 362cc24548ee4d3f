"use strict";
(() => {
  const root = document.documentElement;
  const radios = [...document.querySelectorAll('input[name="theme"]')];
  const showTheme = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const radio of radios) radio.checked = radio.value === theme;
  };
  // The browser may not let a page opened from disk use its storage.
  let saved = null;
  try { saved = localStorage.getItem("streammiml-theme"); } catch { /* no storage */ }
  if (["auto", "light", "dark"].includes(saved)) showTheme(saved);
  for (const radio of radios) radio.addEventListener("change", () => {
    showTheme(radio.value);
    try { localStorage.setItem("streammiml-theme", radio.value); } catch { /* no storage */ }
  });

  const PAGE = {{ rows_a_page }};
  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const count = new Intl.NumberFormat("en");

  const labels = (box) => {
    const rows = JSON.parse(box.querySelector("script.rows").textContent);
    const heads = [...box.querySelectorAll("thead th")];
    const body = box.querySelector("tbody");
    const byName = box.querySelector(".by-name");
    const byBags = box.querySelector(".by-bags");
    const [back, on] = [box.querySelector(".back"), box.querySelector(".on")];
    let column = 1, direction = -1, first = 0, shown = rows;

    const cell = (value, i) => {
      const element = document.createElement(i ? "td" : "th");
      if (i) element.className = "number"; else element.scope = "row";
      const kind = heads[i].dataset.kind;
      element.textContent = kind === "text" ? value : value === null ? "–" : kind === "count" ? count.format(value) : value.toFixed(3);
      return element;
    };
    const draw = () => {
      const lines = shown.slice(first, first + PAGE).map((row) => {
        const line = document.createElement("tr");
        line.append(...row.map(cell));
        return line;
      });
      body.replaceChildren(...lines);
      box.querySelector(".place").textContent = shown.length === 0 ? "no label matches"
        : `${count.format(first + 1)} to ${count.format(Math.min(first + PAGE, shown.length))} of ${count.format(shown.length)}`;
      back.disabled = first === 0;
      on.disabled = first + PAGE >= shown.length;
      back.hidden = on.hidden = shown.length <= PAGE;
    };
    const choose = () => {
      const part = byName.value.trim().toLowerCase();
      const least = Number(byBags.value) || 0;
      // Undefined figures (null) sort below all others.
      const number = (value) => value ?? -1;
      const compare = column ? (a, b) => number(a[column]) - number(b[column]) : (a, b) => words.compare(a[0], b[0]);
      shown = rows
        .filter((row) => row[1] >= least && row[0].toLowerCase().includes(part))
        .sort((a, b) => direction * compare(a, b));
      first = 0;
      draw();
    };
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
      // Names sort from A, numbers from the highest; a second click on a column reverses the order.
      direction = i === column ? -direction : i ? -1 : 1;
      column = i;
      for (const th of heads) th.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      choose();
    }));
    byName.addEventListener("input", choose);
    byBags.addEventListener("input", choose);
    box.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    back.addEventListener("click", () => { first = Math.max(0, first - PAGE); draw(); });
    on.addEventListener("click", () => { first += PAGE; draw(); });
    box.querySelector(".filters").hidden = false;
    box.querySelector(".pager").hidden = false;
    draw();
  };
  document.querySelectorAll(".labels").forEach(labels);

  for (const button of document.querySelectorAll(".copy")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
        button.textContent = "Copied";
      } catch { button.textContent = "Not allowed"; }
    });
  }
})();
