// Before the first paint: the theme somebody chose, so that the page does not flash in the other one.
"use strict";
try {
  const chosen = localStorage.getItem("fairlead-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  /* storage is switched off: the system's theme it is */
}
