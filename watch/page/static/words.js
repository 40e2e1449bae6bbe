// Figures as short texts, by the convention of pipeline/text/format.py. What was not measured is a dash.

export const UNKNOWN = "–";
const UNITS = ["kB", "MB", "GB", "TB"];
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => (value == null ? UNKNOWN : whole.format(value));
export const number = (value, digits = 4) =>
  value == null
    ? UNKNOWN
    : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const share = (value, digits = 0) => (value == null ? UNKNOWN : `${number(value * 100, digits)}%`);

// As metric_name in pipeline/report/rendering/wording.py.
const METRICS = { ne: "NE", auc: "AUC", pr_auc: "PR-AUC", calibration_error: "calibration error" };
export const metricName = (name) => {
  const [metric, ...label] = name.split("/");
  return `${METRICS[metric] ?? metric}${label.length ? ` of ${label.join("/")}` : ""}`;
};
// Of a further label only these have room.
export const isShown = (name) => !name.includes("/") || /^(ne|auc)\//.test(name);

export function size(value) {
  if (value == null) return UNKNOWN;
  if (value < 999.5) return `${Math.round(value)} B`;
  let [scaled, unit] = [value / 1e3, 0];
  // What rounds to 1000 of a unit is 1.00 of the next.
  for (; scaled >= 999.5 && unit + 1 < UNITS.length; unit++) scaled /= 1e3;
  return `${scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0)} ${UNITS[unit]}`;
}

// Of an axis, as matplotlib's EngFormatter has it in the pictures.
export function mark(value) {
  const size = Math.abs(value);
  for (const [unit, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${+(value / unit).toPrecision(6)} ${prefix}`;
  }
  // Marks of small figures differ in their first digits only.
  return `${+value.toPrecision(6)}`;
}

// Where there is little room.
export const brief = (value) => mark(Number(value.toPrecision(3)));

export const rate = (value) => (value == null ? UNKNOWN : `${size(value)}/s`);

// NE of the latest hours, the present one last.
export const byTheHour = (hours) =>
  hours?.length ? `; by the hour ${hours.slice(-4).map(({ ne }) => number(ne)).join(", ")}` : "";

export function duration(seconds) {
  if (seconds == null) return UNKNOWN;
  if (seconds > 0 && seconds < 0.9995) return `${+(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < 59.95) return `${+seconds.toPrecision(3)} s`;
  const all = Math.round(seconds);
  const minutes = Math.floor(all / 60);
  const parts = all < 3600 ? [[minutes, "min"], [all % 60, "s"]] : [[Math.floor(minutes / 60), "h"], [minutes % 60, "min"]];
  return parts.filter(([value]) => value).map(([value, unit]) => `${value} ${unit}`).join(" ");
}
