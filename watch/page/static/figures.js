// Everything that is text: the header, the figures, the ledger, incidents, and the table of processes.

import { byTheHour, count, duration, isShown, metricName, number, rate, share, size } from "./words.js";

const at = (id) => document.getElementById(id);

function element(kind, text = "", name = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

export function showHeader(status) {
  const { progress } = status;
  document.title = `${status.run} – shadowsync`;
  at("run").textContent = status.run;
  at("phase").textContent = status.ended ? "ended" : status.phase;
  at("phase").className = `pill ${status.phase === "training" && !status.ended ? "training" : ""}`;
  const ways = { shadow: "in the background", fixed: "at a fixed rate" };
  at("way").textContent = ways[status.mode] ? `${status.algorithm} ${ways[status.mode]}` : "no synchronization";
  at("elapsed").textContent = duration(status.seconds);
  const fraction = progress.total ? Math.min(1, progress.distinct / progress.total) : null;
  at("bar").style.width = `${(fraction ?? 0) * 100}%`;
  at("bar").parentElement.setAttribute("aria-valuenow", String(Math.round((fraction ?? 0) * 100)));
  const of = progress.total ? ` of ${progress.exact ? "" : "about "}${count(progress.total)}` : "";
  const epochs = progress.epochs > 1 ? `, ${progress.epochs} epochs` : "";
  const examples = `${count(progress.distinct)}${of} examples${epochs}`;
  at("done").textContent = status.loops ? `${count(status.loops.steps)} steps of ${count(status.loops.members)} loops` : examples;
  const left = status.ended || progress.seconds_left == null ? "" : `${duration(progress.seconds_left)} left`;
  at("left").textContent = [fraction == null ? "" : share(fraction), left].filter(Boolean).join(", ");
}

export function showNotice(text, bad = false) {
  at("notice").hidden = !text;
  at("notice").textContent = text;
  at("notice").className = bad ? "bad" : "";
}

export function showFigures(status) {
  const { speed, quality, sync, embedding, loops } = status;
  const last = status.validation.at(-1);
  const metric = status.validation_metric;
  const others = Object.entries(last?.metrics ?? {}).filter(([name]) => name !== metric && isShown(name));
  const validated = others.map(([name, value]) => `${metricName(name)} ${number(value)}`).join(", ");
  const labels = Object.entries(quality.labels ?? {}).slice(1);
  const further = labels.map(([name, one]) => `; ${name} ${number(one.ne)}`).join("");
  const recent = `${number(quality.ne_recent)}${byTheHour(quality.hours)}`;
  const synchronized = [
    ["Sync gap", number(sync.gap_mean, 1), `iterations; open ${count(sync.gap_open)}`],
    ["Divergence", number(sync.divergence), "of the replicas"],
    ["Rounds", count(sync.rounds), `${count(sync.incomplete_rounds)} incomplete`],
    ["Synchronization", rate(sync.sent_bytes_per_second), `back ${rate(sync.received_bytes_per_second)}`],
  ];
  const ofJob = () => [
    ["Examples/s", count(speed.now), `mean ${count(speed.mean)}`],
    // Scores that are no probabilities have none.
    ...(quality.ne == null && metric !== "ne"
      ? []
      : [["NE in training", number(quality.ne), `recently ${recent}; before each step${further}`]]),
    ...(last ? [[`${metricName(metric)} in validation`, number(last.value), validated]] : []),
    ...synchronized,
    ["Lookups/s", count(embedding.lookups_per_second), `pushes/s ${count(embedding.pushes_per_second)}`],
    ["Staleness", number(embedding.staleness_mean, 1), `pushes; at most ${count(embedding.staleness_max)}`],
    ...(embedding.memory_share == null
      ? []
      : [
          [
            "Rows found in memory",
            share(embedding.memory_share, 1),
            `${count(embedding.disk_reads_per_second)} rows/s from disk; nodes wait for it ${share(embedding.disk_wait_share)} of the time`,
          ],
        ]),
    ["Ids that share rows", share(embedding.sharing_examples, 1), `of examples; none where a table is "growing"`],
  ];
  const cells = loops ? [["Steps/s", count(loops.per_second), "of all loops"], ...synchronized] : ofJob();
  at("figures").replaceChildren(
    ...cells.map(([name, value, more]) => {
      const cell = element("div");
      cell.append(element("dt", name), element("dd", value), element("div", more, "more"));
      return cell;
    }),
  );
}

const dim = (text) => element("span", text, "dim");

function term(name, value) {
  const made = element("span", `${name} `);
  made.append(element("b", count(value)));
  return made;
}

function ofLoops({ steps, synchronized, open, lost, samples }) {
  const book = [term("steps", steps), dim("="), term("synchronized", synchronized), term("open", open), term("lost", lost)];
  const shared = samples.flatMap((one) => [
    dim("·"), dim(one.stream), term("granted", one.granted), dim("="), term("finished", one.finished),
    term("returned", one.returned), term("held", one.held),
  ]);
  return [...book, ...shared];
}

export function showLedger({ ledger, loops, ended }) {
  const terms = () => [
    term("read", ledger.read), term("trained", ledger.trained), term("returned", ledger.returned),
    term("in flight", ledger.in_flight), dim("·"), term("distinct", ledger.distinct),
    term("replayed", ledger.replayed), term("bad rows", ledger.bad_rows), term("left out", ledger.left_out),
    dim(ended ? "" : '"read" lags by up to a second.'),
  ];
  at("ledger").replaceChildren(...(loops ? ofLoops(loops) : terms()));
}

export function showIncidents(incidents) {
  if (!incidents.length) {
    at("incidents").replaceChildren(element("li", "None.", "none"));
    return;
  }
  at("incidents").replaceChildren(
    ...[...incidents].reverse().map((incident) => {
      const item = element("li");
      item.append(element("time", duration(incident.seconds)), element("b", incident.node), element("span", incident.what));
      return item;
    }),
  );
}

const COLUMNS = ["node", "host", "pid", "CPU", "CPU time", "memory", "peak memory"];
const RATES = ["waits", "gap", ""];

const perSecond = (node) => (node.role === "loop" ? node.steps_per_second : node.examples_per_second);

function doing(node) {
  if (!node.alive) return node.why;
  if (!node.ready) return "getting ready";
  if (node.queued != null) return `${node.queued} batches queued, ${size(node.retained_bytes)} kept`;
  if (node.requests_per_second != null) {
    return `${count(node.requests_per_second)} ${node.role === "embedding" ? "lookups" : "slices"}/s`;
  }
  const rounds = node.rounds == null ? "" : `${count(node.rounds)} rounds`;
  const steps = node.steps == null ? "" : `${count(node.steps)} steps, ${count(node.synchronized)} synchronized`;
  const merges = node.merge_share == null ? "" : `in ${share(node.merge_share)} of merges`;
  const late = node.late == null ? "" : `late ${share(node.late)} of the time`;
  return [steps, rounds, merges, late].filter(Boolean).join(", ");
}

// With its column's name, which is before it where rows are stacked; a long one is cut, and whole when pointed at.
function cell(column, text) {
  const made = element("td", text);
  if (column && text) made.dataset.title = column;
  if (column === "host") made.title = text;
  return made;
}

export function showNodes({ nodes, loops }) {
  const table = at("nodes");
  const head = element("tr");
  const columns = [...COLUMNS, loops ? "steps/s" : "examples/s", ...RATES];
  head.append(...columns.map((name) => element("th", name)));
  table.tHead.replaceChildren(head);
  const blank = (value, words) => (value == null ? "" : words(value));
  table.tBodies[0].replaceChildren(
    ...nodes.map((node) => {
      const row = element("tr", "", node.alive ? "" : "dead");
      const cells = [
        node.name, node.host, node.pid ? String(node.pid) : "", blank(node.cpu, share),
        blank(node.cpu_seconds, duration), blank(node.memory_bytes, size), blank(node.peak_memory_bytes, size),
        blank(perSecond(node), count), blank(node.wait, share), blank(node.gap_open, count), doing(node),
      ];
      row.append(...cells.map((text, at) => cell(columns[at], text)));
      return row;
    }),
  );
}
