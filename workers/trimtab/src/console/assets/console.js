// Adds to pages that are whole without it: acts as they happen, and questions before buttons.
"use strict";
(() => {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    const asks = form.dataset.confirm;
    if (asks && !window.confirm(asks)) {
      event.preventDefault();
      return;
    }
    // Pressed twice is sent once. Not before the browser has taken down which button it was.
    setTimeout(() => form.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
  });
  // A page that the browser kept is not one that was just sent.
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) document.querySelectorAll("button").forEach((button) => { button.disabled = false; });
  });

  const ticks = [...document.querySelectorAll("input[name=ticked]")];
  if (ticks.length > 1) {
    const place = document.querySelector("[data-ticks]");
    for (const [label, checked] of [["Tick all of this page", true], ["Untick all of this page", false]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => ticks.forEach((tick) => { tick.checked = checked; }));
      place?.append(button);
    }
  }

  const rows = document.querySelector("tbody[data-live]");
  if (!rows || !window.EventSource) return;
  const said = document.querySelector("[data-said]");
  const most = Number(rows.dataset.live);
  const source = new EventSource("/live");
  source.addEventListener("open", () => { said.textContent = "Live: new acts appear by themselves."; });
  source.addEventListener("error", () => { said.textContent = "Not live at the moment; trying again."; });
  source.addEventListener("missed", () => { said.textContent = "More happened than could be shown; load the page again."; });
  source.addEventListener("act", (event) => {
    const made = document.createElement("template");
    // A row that the server made and escaped, from this origin alone.
    made.innerHTML = event.data;
    const row = made.content.querySelector("tr");
    if (!row) return;
    document.getElementById(row.id)?.remove();
    document.querySelector("[data-nothing]")?.remove();
    row.classList.add("new");
    setTimeout(() => row.classList.remove("new"), 3000);
    rows.prepend(row);
    while (rows.rows.length > most) rows.rows[rows.rows.length - 1].remove();
  });
  window.addEventListener("pagehide", () => source.close());
})();
