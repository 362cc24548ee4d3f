"use strict";
(() => {
  const root = document.documentElement;
  const radios = [...document.querySelectorAll('input[name="theme"]')];
  const use = (theme) => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const radio of radios) radio.checked = radio.value === theme;
  };
  // A page opened from disk may not be allowed to remember anything.
  let kept = null;
  try { kept = localStorage.getItem("streammiml-theme"); } catch { /* not remembered */ }
  if (["auto", "light", "dark"].includes(kept)) use(kept);
  for (const radio of radios) radio.addEventListener("change", () => {
    use(radio.value);
    try { localStorage.setItem("streammiml-theme", radio.value); } catch { /* not remembered */ }
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
      const made = document.createElement(i ? "td" : "th");
      if (i) made.className = "number"; else made.scope = "row";
      const kind = heads[i].dataset.kind;
      made.textContent = kind === "text" ? value : kind === "count" ? count.format(value) : value.toFixed(3);
      return made;
    };
    const draw = () => {
      const part = shown.slice(first, first + PAGE).map((row) => {
        const line = document.createElement("tr");
        line.append(...row.map(cell));
        return line;
      });
      body.replaceChildren(...part);
      box.querySelector(".place").textContent = shown.length === 0 ? "no label fits"
        : `${count.format(first + 1)} to ${count.format(Math.min(first + PAGE, shown.length))} of ${count.format(shown.length)}`;
      back.disabled = first === 0;
      on.disabled = first + PAGE >= shown.length;
      back.hidden = on.hidden = shown.length <= PAGE;
    };
    const choose = () => {
      const part = byName.value.trim().toLowerCase();
      const least = Number(byBags.value) || 0;
      const compare = column ? (a, b) => a[column] - b[column] : (a, b) => words.compare(a[0], b[0]);
      shown = rows
        .filter((row) => row[1] >= least && row[0].toLowerCase().includes(part))
        .sort((a, b) => direction * compare(a, b));
      first = 0;
      draw();
    };
    heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
      // Names begin with A, numbers with the highest; the same again turns round.
      direction = i === column ? -direction : i ? -1 : 1;
      column = i;
      for (const each of heads) each.setAttribute("aria-sort", "none");
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
