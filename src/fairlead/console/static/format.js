// Figures as people read them: aligned, short, with their unit.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1,234,567; a dash where nothing is known. */
export function count(value) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : WHOLE.format(value);
}

/** 12.3k: for places where there is no room. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return trim(value / 1e9) + "G";
  if (size >= 1e6) return trim(value / 1e6) + "M";
  if (size >= 1e4) return trim(value / 1e3) + "k";
  if (size >= 100 || Number.isInteger(value)) return WHOLE.format(value);
  return size >= 10 ? value.toFixed(1) : String(Number(value.toPrecision(2)));
}

function trim(value) {
  return String(Number(value.toPrecision(3)));
}

/** Messages a second. */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : short(Math.round(value));
}

/** 4.0 MiB */
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(size) < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** 3 s, 4 min, 2 h, 5 d */
export function span(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** 0.42 ms: what took so long. */
export function millis(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 100 ? Math.round(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

/** 73 % */
export function percent(share) {
  return share === null || share === undefined || Number.isNaN(share) ? "–" : `${Math.round(share * 100)} %`;
}

const two = (value) => String(value).padStart(2, "0");

/** 14:03:22, and the day before it unless that is today. */
export function clock(ms, { date = false } = {}) {
  if (!ms) return "–";
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const today = at.toDateString() === new Date().toDateString();
  return today && !date ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** "1 message", "3 messages" */
export function many(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** The head of a long id; the whole of it belongs into a title. */
export function brief(id, length = 12) {
  const text = String(id ?? "");
  return text.length > length ? `${text.slice(0, length)}…` : text;
}
