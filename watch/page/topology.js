// The nodes in three columns, and the bytes/s between them on the lines.

import { count, rate, share } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const COLUMNS = [["coordinator", "hub", "reader"], ["trainer", "loop"], ["embedding", "sync"]];
const MOST_LABELS = 12;
const LABEL_WIDTH = 64;
const NARROW_HEAD = 30;
const BOX_HEIGHT = 42;
const ROW_HEIGHT = 58;

function shape(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function places(nodes, width) {
  const boxWidth = width < 560 ? Math.min(104, (width - 64) / 3) : 168;
  const columns = COLUMNS.map((roles) => roles.flatMap((role) => nodes.filter((node) => node.role === role)));
  const rows = Math.max(1, ...columns.map((column) => column.length));
  const head = width < 560 ? NARROW_HEAD : 0;
  const height = rows * ROW_HEIGHT + head;
  const found = new Map();
  columns.forEach((column, place) => {
    const x = place === 0 ? 1 : place === 1 ? (width - boxWidth) / 2 : width - boxWidth - 1;
    const step = (height - head) / Math.max(1, column.length);
    column.forEach((node, row) => found.set(node.name, { node, place, x, y: head + step * (row + 0.5) }));
  });
  return { found, height, boxWidth };
}

function subtitle(node, narrow) {
  if (!node.alive) return "died";
  if (node.examples_per_second != null) return `${count(node.examples_per_second)}${narrow ? "/s" : " examples/s"}`;
  if (node.steps_per_second != null) return `${count(node.steps_per_second)} steps/s`;
  if (node.requests_per_second != null) {
    return `${count(node.requests_per_second)} ${node.role === "embedding" ? "lookups" : "slices"}/s`;
  }
  return node.cpu == null ? "" : `CPU ${share(node.cpu)}`;
}

function thickness(bytes) {
  // From 1 kB/s to 1 GB/s: a pixel to six.
  return bytes < 1 ? 1 : Math.max(1, Math.min(6, 1 + (5 * (Math.log10(bytes) - 3)) / 6));
}

function line(from, to, boxWidth) {
  if (from.place === to.place) {
    const x = from.x + boxWidth;
    const bend = Math.min(26 + Math.abs(from.y - to.y) * 0.12, boxWidth / 3);
    const path = `M${x} ${from.y} C${x + bend} ${from.y} ${x + bend} ${to.y} ${x} ${to.y}`;
    return { path, point: () => [x + bend * 0.75, (from.y + to.y) / 2] };
  }
  const [left, right] = from.place < to.place ? [from, to] : [to, from];
  const [x0, x1] = [left.x + boxWidth, right.x];
  const middle = (x0 + x1) / 2;
  const path = `M${x0} ${left.y} C${middle} ${left.y} ${middle} ${right.y} ${x1} ${right.y}`;
  const bezier = (t, a, b, c, d) => (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t ** 2 * c + t ** 3 * d;
  const point = (t) => [bezier(t, x0, middle, middle, x1), bezier(t, left.y, left.y, right.y, right.y)];
  return { path, point };
}

function drawEdges(svg, edges, layout, narrow) {
  const drawn = edges
    .map((edge) => ({ ...edge, from: layout.found.get(edge.source), to: layout.found.get(edge.target) }))
    .filter((edge) => edge.from && edge.to);
  const perGap = new Map();
  for (const edge of drawn) {
    const gap = `${Math.min(edge.from.place, edge.to.place)}-${Math.max(edge.from.place, edge.to.place)}`;
    edge.gap = gap;
    perGap.set(gap, (perGap.get(gap) ?? 0) + 1);
  }
  const placed = new Map();
  const labels = [];
  for (const edge of drawn) {
    const bytes = edge.up + edge.down;
    const { path, point } = line(edge.from, edge.to, layout.boxWidth);
    const made = shape("path", { d: path, class: bytes < 1 ? "edge idle" : "edge", "stroke-width": thickness(bytes) });
    const coded = edge.codec ? `, as ${edge.codec}` : "";
    const title = `${edge.source} to ${edge.target}: ${rate(edge.up)}, back ${rate(edge.down)}${coded}`;
    made.append(shape("title", {}, title));
    svg.append(made);
    if (bytes < 1 || narrow || perGap.get(edge.gap) > MOST_LABELS) continue;
    // Lines of one node spread upward and downward; each node's labels have a place of their own along them.
    const sources = placed.get(edge.gap) ?? [];
    const left = edge.from.place <= edge.to.place ? edge.source : edge.target;
    if (!sources.includes(left)) placed.set(edge.gap, [...sources, left]);
    const number = placed.get(edge.gap).indexOf(left);
    const room = Math.abs(edge.to.x - edge.from.x) - layout.boxWidth;
    const t = 0.58 + (number * LABEL_WIDTH) / Math.max(room, 1);
    if (t > 0.92) continue;
    const [x, y] = point(t);
    labels.push(shape("text", { x, y: y - 4, class: "rate", "text-anchor": "middle" }, rate(bytes)));
    if (edge.codec) labels.push(shape("text", { x, y: y + 9, class: "rate", "text-anchor": "middle" }, edge.codec));
  }
  svg.append(...labels);
}

function drawNarrowRates(svg, edges, layout) {
  // No room on the lines: the sum of what goes between two columns stands over each gap.
  const sums = [0, 0];
  for (const edge of edges) {
    const from = layout.found.get(edge.source);
    const to = layout.found.get(edge.target);
    if (from && to && from.place !== to.place) sums[Math.min(from.place, to.place)] += edge.up + edge.down;
  }
  const columns = [...new Set([...layout.found.values()].map((place) => place.x))].sort((a, b) => a - b);
  sums.forEach((bytes, gap) => {
    if (columns[gap + 1] === undefined || bytes < 1) return;
    const x = (columns[gap] + layout.boxWidth + columns[gap + 1]) / 2;
    const [amount, unit] = rate(bytes).split(" ");
    svg.append(shape("text", { x, y: 12, class: "rate", "text-anchor": "middle" }, amount));
    svg.append(shape("text", { x, y: 25, class: "rate", "text-anchor": "middle" }, unit ?? ""));
  });
}

export function showTopology(container, status) {
  const width = Math.max(300, container.clientWidth);
  const narrow = width < 560;
  const layout = places(status.nodes, width);
  const names = `${status.nodes.length} nodes and the rates between them`;
  const box = `0 0 ${width} ${layout.height}`;
  const svg = shape("svg", { viewBox: box, role: "img", "aria-label": names, class: narrow ? "narrow" : "" });
  drawEdges(svg, status.edges, layout, narrow);
  for (const { node, x, y } of layout.found.values()) {
    const top = y - BOX_HEIGHT / 2;
    const name = node.alive ? "box" : "box dead";
    svg.append(shape("rect", { x, y: top, width: layout.boxWidth, height: BOX_HEIGHT, rx: 8, class: name }));
    const inset = narrow ? 8 : 12;
    svg.append(shape("text", { x: x + inset, y: top + 18, class: "name" }, node.name));
    svg.append(shape("text", { x: x + inset, y: top + 34, class: "what" }, subtitle(node, narrow)));
  }
  if (narrow) drawNarrowRates(svg, status.edges, layout);
  container.replaceChildren(svg);
}
