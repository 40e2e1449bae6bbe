// Figures as short texts. What was not measured is a dash.

export const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => (value == null ? UNKNOWN : whole.format(value));
export const number = (value, digits = 4) => (value == null ? UNKNOWN : value.toFixed(digits));
export const share = (value) => (value == null ? UNKNOWN : `${Math.round(value * 100)}%`);

export function size(value) {
  if (value == null) return UNKNOWN;
  for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= factor) return `${(value / factor).toFixed(value / factor >= 10 ? 0 : 1)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export const rate = (value) => (value == null ? UNKNOWN : `${size(value)}/s`);

export function duration(seconds) {
  if (seconds == null) return UNKNOWN;
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  return `${Math.floor(all / 3600)} h ${Math.floor((all % 3600) / 60)} min`;
}
