// What was measured, as charts want it.

/** The moment so many seconds ago, in milliseconds; rounded, so that asking again finds the same steps. */
export const since = (seconds) => Math.floor((Date.now() - seconds * 1000) / 1000) * 1000;

/** {times, from, to, of(name), names} of an answer of GET /history; empty until there is one. */
export function pick(history) {
  if (!history) return { times: [], from: undefined, to: undefined, of: () => [], names: [], series: [] };
  const longest = Math.max(0, ...history.series.map((one) => one.values.length));
  const times = Array.from({ length: longest }, (_, i) => history.start_ms + i * history.step_ms);
  const named = new Map(history.series.map((one) => [one.name, one]));
  return {
    times,
    from: history.start_ms,
    to: Math.max(history.now_ms, times.at(-1) ?? 0),
    of: (name) => named.get(name)?.values ?? [],
    names: history.names,
    series: history.series,
  };
}
