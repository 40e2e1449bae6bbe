// The table of the runs in this run's folder, read when it is opened.

export function openRuns(details) {
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    const answer = await fetch("/runs.json");
    if (answer.ok) show(details.querySelector("table"), await answer.json());
  });
}

function show(table, rows) {
  const names = Object.keys(rows[0] ?? { "no run can be read": "" });
  table.tHead.replaceChildren(row(names, "th"));
  table.tBodies[0].replaceChildren(...rows.map((values) => row(names.map((name) => values[name]), "td")));
}

function row(texts, kind) {
  const line = document.createElement("tr");
  for (const text of texts) {
    const cell = document.createElement(kind);
    cell.textContent = text;
    line.append(cell);
  }
  return line;
}
