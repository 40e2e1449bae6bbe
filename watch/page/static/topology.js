// The nodes in three columns, and the bytes/s between them on the lines.

import { brief, count, rate, share } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const COLUMNS = [["coordinator", "hub", "reader"], ["trainer", "loop"], ["embedding", "sync"]];
const MOST_LABELS = 12;
const LABEL_WIDTH = 64;
// Places along a line where its label may be, the best first; each line has at most one.
const ALONG = [0.58, 0.7, 0.46, 0.82, 0.34, 0.9, 0.22];
const HEAD = 30;
const BOX_HEIGHT = 42;
const ROW_HEIGHT = 58;
const NARROW = 560;

// Pixels of a text of the page's font.
let pen;
function widthOf(text, size, weight = 400) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

// The text, shortened before the number at its end if it is wider: by that nodes of one role differ.
function fitted(text, room, size, weight) {
  if (widthOf(text, size, weight) <= room) return text;
  const end = text.match(/-?\d{0,6}$/)[0];
  for (let kept = text.length - end.length - 1; kept > 0; kept--) {
    const short = `${text.slice(0, kept)}…${end}`;
    if (widthOf(short, size, weight) <= room) return short;
  }
  return `…${end}`;
}

function shape(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const gap = (one, other) => `${Math.min(one, other)}-${Math.max(one, other)}`;

function places(nodes, edges, width) {
  const narrow = width < NARROW;
  const boxWidth = narrow ? Math.min(104, (width - 76) / 3) : 168;
  const columns = COLUMNS.map((roles) => roles.flatMap((role) => nodes.filter((node) => node.role === role)));
  const rows = Math.max(1, ...columns.map((column) => column.length));
  const column = new Map(columns.flatMap((these, place) => these.map((node) => [node.name, place])));
  const lines = new Map();
  for (const { source, target } of edges) {
    const key = gap(column.get(source), column.get(target));
    lines.set(key, (lines.get(key) ?? 0) + 1);
  }
  // No room on the lines between two columns: the sum of what goes over them stands above.
  const summed = ["0-1", "1-2"].filter((key) => narrow || lines.get(key) > MOST_LABELS);
  const crowded = new Set([...lines].filter(([, count]) => narrow || count > MOST_LABELS).map(([key]) => key));
  const head = summed.length ? HEAD : 0;
  const height = rows * ROW_HEIGHT + head;
  const found = new Map();
  columns.forEach((column, place) => {
    const x = place === 0 ? 1 : place === 1 ? (width - boxWidth) / 2 : width - boxWidth - 1;
    const step = (height - head) / Math.max(1, column.length);
    column.forEach((node, row) => found.set(node.name, { node, place, x, y: head + step * (row + 0.5) }));
  });
  return { found, height, boxWidth, narrow, summed, crowded };
}

function subtitle(node, narrow) {
  if (!node.alive) return "died";
  const of = (value, what) => (narrow ? `${brief(value)}/s` : `${count(value)} ${what}/s`);
  if (node.examples_per_second != null) return of(node.examples_per_second, "examples");
  if (node.steps_per_second != null) return of(node.steps_per_second, "steps");
  if (node.requests_per_second != null) {
    return of(node.requests_per_second, node.role === "embedding" ? "lookups" : "slices");
  }
  return node.cpu == null ? "" : `CPU ${share(node.cpu)}`;
}

function thickness(bytes) {
  // From 1 kB/s to 1 GB/s: a pixel to six.
  return bytes < 1 ? 1 : Math.max(1, Math.min(6, 1 + (5 * (Math.log10(bytes) - 3)) / 6));
}

function line(from, to, boxWidth) {
  const curve = (t, [a, b, c, d]) => (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t ** 2 * c + t ** 3 * d;
  const [left, right] = from.place <= to.place ? [from, to] : [to, from];
  const x0 = left.x + boxWidth;
  const same = from.place === to.place;
  const x1 = same ? x0 : right.x;
  const bend = Math.min(26 + Math.abs(from.y - to.y) * 0.12, boxWidth / 3);
  const xs = same ? [x0, x0 + bend, x0 + bend, x0] : [x0, (x0 + x1) / 2, (x0 + x1) / 2, x1];
  const ys = [left.y, left.y, right.y, right.y];
  const path = `M${x0} ${ys[0]} C${xs[1]} ${ys[1]} ${xs[2]} ${ys[2]} ${x1} ${ys[3]}`;
  // A label right of its line, where the line is close to a box.
  const point = (t, width) => [Math.max(curve(t, xs), same ? x0 + width / 2 + 4 : 0), curve(t, ys)];
  return { path, point };
}

const apart = (one, other) =>
  one.x1 <= other.x0 || other.x1 <= one.x0 || one.y1 <= other.y0 || other.y1 <= one.y0;

// The labels of lines that have room, none over another or over a box. The title of a line has its rates, too.
function edgeLabels(edges, layout) {
  const taken = [...layout.found.values()].map(({ x, y }) => ({
    x0: x, x1: x + layout.boxWidth, y0: y - BOX_HEIGHT / 2, y1: y + BOX_HEIGHT / 2,
  }));
  const labels = [];
  for (const edge of edges) {
    const [from, to] = [layout.found.get(edge.source), layout.found.get(edge.target)];
    const bytes = edge.up + edge.down;
    if (!from || !to || bytes < 1 || layout.crowded.has(gap(from.place, to.place))) continue;
    const text = rate(bytes);
    // Rates change each second: a width of their own would have them jump.
    const width = Math.max(LABEL_WIDTH, widthOf(text, 11));
    const { point } = line(from, to, layout.boxWidth);
    for (const t of ALONG) {
      const [x, y] = point(t, width);
      const place = { x0: x - width / 2, x1: x + width / 2, y0: y - 16, y1: y - 1 };
      if (place.y0 < 0 || !taken.every((other) => apart(place, other))) continue;
      taken.push(place);
      labels.push({ x, y, text, ...place });
      break;
    }
  }
  return labels;
}

function drawEdges(svg, edges, layout) {
  for (const edge of edges) {
    const [from, to] = [layout.found.get(edge.source), layout.found.get(edge.target)];
    if (!from || !to) continue;
    const bytes = edge.up + edge.down;
    const { path } = line(from, to, layout.boxWidth);
    const made = shape("path", { d: path, class: bytes < 1 ? "edge idle" : "edge", "stroke-width": thickness(bytes) });
    const title = `${edge.source} to ${edge.target}: ${rate(edge.up)}, back ${rate(edge.down)}`;
    made.append(shape("title", {}, title));
    svg.append(made);
  }
  for (const { x, y, text } of edgeLabels(edges, layout)) {
    svg.append(shape("text", { x, y: y - 4, class: "rate", "text-anchor": "middle" }, text));
  }
}

function drawSums(svg, edges, layout) {
  const columns = [...layout.found.values()].reduce((known, { place, x }) => known.set(place, x), new Map());
  for (const key of layout.summed) {
    const between = edges.filter(({ source, target }) => {
      const [from, to] = [layout.found.get(source), layout.found.get(target)];
      return from && to && gap(from.place, to.place) === key;
    });
    const bytes = between.reduce((sum, { up, down }) => sum + up + down, 0);
    if (bytes < 1) continue;
    const [left, right] = key.split("-").map((place) => columns.get(Number(place)));
    const x = (left + layout.boxWidth + right) / 2;
    const [amount, unit] = rate(bytes).split(" ");
    const lines = layout.narrow ? [amount, unit] : [`${rate(bytes)} in all`];
    lines.forEach((text, row) => {
      svg.append(shape("text", { x, y: 12 + 13 * row, class: "rate", "text-anchor": "middle" }, text));
    });
  }
}

function drawNode(svg, { node, x, y }, { boxWidth, narrow }) {
  const [top, inset, sizes] = [y - BOX_HEIGHT / 2, narrow ? 7 : 12, narrow ? [11, 11] : [13, 12]];
  const name = node.alive ? "box" : "box dead";
  const texts = [[node.name, "name", 18, 600], [subtitle(node, narrow), "what", 34, 400]];
  const group = shape("g", {});
  group.append(shape("title", {}, node.name));
  group.append(shape("rect", { x, y: top, width: boxWidth, height: BOX_HEIGHT, rx: 8, class: name }));
  texts.forEach(([text, kind, below, weight], row) => {
    const shown = fitted(text, boxWidth - 2 * inset, sizes[row], weight);
    group.append(shape("text", { x: x + inset, y: top + below, class: kind }, shown));
  });
  svg.append(group);
}

export function showTopology(container, status) {
  const width = Math.max(300, container.clientWidth);
  const layout = places(status.nodes, status.edges, width);
  const names = `${status.nodes.length} nodes and the rates between them`;
  const box = `0 0 ${width} ${layout.height}`;
  const svg = shape("svg", { viewBox: box, role: "img", "aria-label": names, class: layout.narrow ? "narrow" : "" });
  drawEdges(svg, status.edges, layout);
  for (const place of layout.found.values()) drawNode(svg, place, layout);
  drawSums(svg, status.edges, layout);
  container.replaceChildren(svg);
}
