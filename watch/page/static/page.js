// Takes the coordinator's events and shows them. After the job's end everything stays as it was.

import { Charts, validationCurves } from "./charts.js";
import { showFigures, showHeader, showIncidents, showLedger, showNodes, showNotice } from "./figures.js";
import { openRuns } from "./runs.js";
import { showTopology } from "./topology.js";

const REOPEN_MILLISECONDS = 5000;

const charts = new Charts();
let status = null;
let curves = new Map();
let steps = new Map();
let incidents = new Map();
let heard = null;
let drawing = false;

function merge(part) {
  for (const [name, { step, start, points }] of Object.entries(part.curves)) {
    const before = steps.get(name) === step ? (curves.get(name) ?? []).slice(0, start) : [];
    steps.set(name, step);
    curves.set(name, [...before, ...points]);
  }
  for (const incident of part.incidents) incidents.set(incident.number, incident);
  for (const [name, points] of validationCurves(part)) curves.set(name, points);
  status = part;
}

function draw() {
  drawing = false;
  if (status === null) return;
  document.body.classList.toggle("hub", Boolean(status.loops));
  showHeader(status);
  showFigures(status);
  showLedger(status);
  showIncidents([...incidents.values()]);
  showNodes(status);
  showTopology(document.getElementById("topology"), status);
  charts.show(curves);
  document.body.dataset.ready = "yes";
}

function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function take(part) {
  if (part === null) return;
  merge(part);
  heard = new Date();
  showNotice(part.ended ? `The job has ended: ${part.outcome}. This page shows its final state.` : "");
  drawSoon();
}

function open() {
  const source = new EventSource("/events");
  const receive = (part) => {
    take(part);
    if (part?.ended) source.close();
  };
  source.addEventListener("whole", (event) => {
    [curves, steps, incidents] = [new Map(), new Map(), new Map()];
    receive(JSON.parse(event.data));
  });
  source.addEventListener("status", (event) => receive(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    const since = heard ? ` since ${heard.toLocaleTimeString()}` : "";
    showNotice(`No connection to the coordinator${since}. Showing the last status received.`, true);
    document.getElementById("phase").className = "pill bad";
    document.getElementById("phase").textContent = "not connected";
    // Refused, for too many pages: the browser does not try again by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(open, REOPEN_MILLISECONDS);
  });
}

// The cookie has the token from here on; the address, which may be shown or copied, does without.
if (location.search) history.replaceState(null, "", location.pathname);
addEventListener("resize", drawSoon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  charts.renew();
  drawSoon();
});
openRuns(document.getElementById("runs"));
open();
