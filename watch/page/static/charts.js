// The curves, drawn by uPlot; made anew when series come or go, the width changes, or the colours do.

import { count, mark, number } from "./words.js";

const HEIGHT = 210;
// The first tenth of a curve; how many times the span of the others is far above them; how many say where they are.
const [EARLY, FAR, ENOUGH] = [0.1, 3, 8];
// How many times the usual step between two points is a pause.
const PAUSE = 3;
const CHARTS = {
  ne: { curves: (name) => name === "ne" || isValidation(name), x: "examples", digits: 4, zero: false },
  throughput: { curves: (name) => name.startsWith("throughput/"), x: "seconds", digits: 0, zero: true },
  gap: { curves: (name) => name.startsWith("gap/"), x: "seconds", digits: 1, zero: true },
  divergence: { curves: (name) => name === "divergence", x: "seconds", digits: 4, zero: true },
};
const NAMES = { ne: "training", validation: "validation", divergence: "divergence" };

const isValidation = (name) => name.split("/")[0] === "validation";
const label = (name) => {
  const [first, ...rest] = name.split("/");
  return NAMES[name] ?? (isValidation(name) ? `${first} of ${rest.join("/")}` : rest[0]);
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// NE of the scored checkpoints by curve; of a further label the curve is "validation/LABEL".
export function validationCurves({ validation, validation_metric: metric }) {
  const found = new Map();
  const add = (name, examples, value) => found.set(name, [...(found.get(name) ?? []), [examples, value]]);
  for (const { examples, value, metrics } of validation) {
    if (metric === "ne") add("validation", examples, value);
    for (const [key, one] of Object.entries(metrics)) {
      if (key.startsWith("ne/")) add(`validation/${key.slice(3)}`, examples, one);
    }
  }
  return found;
}

// Before training there is nothing, not a line at zero.
function begun(points) {
  const first = points.findIndex((point) => point[1] !== 0);
  return first < 1 ? points : points.slice(first - 1);
}

// The points with a null after each place where nothing was measured for much longer than between most others:
// a pause. As `with_breaks` in pipeline/report/rendering/curves.py.
export function withBreaks(points) {
  const steps = points.slice(1).map(([x], at) => x - points[at][0]);
  const usual = [...steps].sort((a, b) => a - b)[Math.floor(steps.length / 4)];
  return points.flatMap((point, at) => (usual > 0 && steps[at] > PAUSE * usual ? [point, [point[0] + usual, null]] : [point]));
}

// Places of points that have no neighbour, through which no line goes.
const alone = (values) => {
  const known = [...values.keys()].filter((at) => values[at] !== undefined);
  return known.filter((at, place) => {
    const [before, after] = [known[place - 1], known[place + 1]].map((other) => values[other] ?? null);
    return values[at] !== null && before === null && after === null;
  });
};

// The highest value that an axis needs: first points far above all others would squash the curve. As
// `readable_top` in pipeline/report/rendering/curves.py.
export function readableTop([places, ...curves], high) {
  const early = places[0] + EARLY * (places[places.length - 1] - places[0]);
  const later = curves.flatMap((values) => values.filter((value, at) => value != null && places[at] > early));
  const [least, most] = [Math.min(...later), Math.max(...later)];
  return later.length >= ENOUGH && most > least && high > most + FAR * (most - least) ? 2 * most - least : high;
}

const yRange = (chart) =>
  chart.zero
    ? (_, low, high) => [0, high > 0 ? high * 1.08 : 1]
    : ({ data }, low, high) => (low == null ? [null, null] : uPlot.rangeNum(low, readableTop(data, high), 0.1, true));

function options(chart, names, width) {
  const axis = {
    stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui, sans-serif", values: (_, marks) => marks.map(mark),
  };
  const series = names.map((name, place) => ({
    label: label(name),
    stroke: colour(`--c${place % 8}`),
    width: isValidation(name) ? 0 : 1.5,
    points: isValidation(name)
      ? { show: true, size: 7, fill: colour(`--c${place % 8}`) }
      : { show: false, size: 4, filter: (plot, at) => alone(plot.data[at]) },
    // What other curves have points for is undefined and spanned; null is a pause.
    spanGaps: false,
    value: (_, value) => number(value, chart.digits),
  }));
  return {
    width, height: HEIGHT,
    scales: { x: { time: false }, y: { range: yRange(chart) } },
    axes: [{ ...axis, size: 28 }, { ...axis, size: 48 }],
    series: [{ label: chart.x, value: (_, value) => count(value) }, ...series],
    legend: { show: true, live: true },
    cursor: { points: { size: 6 }, drag: { x: false, y: false } },
  };
}

export class Charts {
  #made = new Map();

  show(curves) {
    for (const [id, chart] of Object.entries(CHARTS)) {
      const names = [...curves.keys()].filter((name) => chart.curves(name) && curves.get(name).length > 1);
      // A name with a later number, trainer-10 after trainer-2.
      names.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      this.#draw(id, chart, names, curves);
    }
  }

  renew() {
    for (const { plot } of this.#made.values()) plot.destroy();
    this.#made.clear();
  }

  #draw(id, chart, names, curves) {
    const container = document.getElementById(id);
    const old = this.#made.get(id);
    if (!names.length) {
      old?.plot.destroy();
      this.#made.delete(id);
      const empty = document.createElement("div");
      empty.className = "empty";
      empty.textContent = "nothing yet";
      container.replaceChildren(empty);
      return;
    }
    const tables = names.map((name) => {
      const known = chart.zero ? begun(curves.get(name)) : curves.get(name);
      const points = isValidation(name) ? known : withBreaks(known);
      return [points.map((point) => point[0]), points.map((point) => point[1])];
    });
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const key = `${names.join()} ${container.clientWidth}`;
    if (old?.key === key) {
      old.plot.setData(data);
      return;
    }
    old?.plot.destroy();
    container.replaceChildren();
    const plot = new uPlot(options(chart, names, container.clientWidth), data, container);
    this.#made.set(id, { plot, key });
  }
}
