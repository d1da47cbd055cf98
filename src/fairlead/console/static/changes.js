// What changed between two looks at the server: processes that came and went, groups led by somebody else. The drawing lets the old
// ones fade and the new ones light up, and the list beneath it says it in words.

const SEEN_MS = 9000; // for how long a change is pointed out
const KEPT = 40;

export class Changes {
  constructor() {
    this.processes = null; // by pid
    this.gone = new Map(); // pid → {process, atMs}
    this.fresh = new Map(); // pid → atMs
    this.leaders = null; // group → {primary, epoch}
    this.nodes = new Map(); // all that were ever seen: name → node, `lost` while it does not answer
    this.moved = new Map(); // group → atMs
    this.lines = []; // the newest first
  }

  onOverview(overview, nowMs) {
    const now = new Map(overview.processes.map((one) => [one.pid, one]));
    if (this.processes) {
      for (const [pid, one] of this.processes) {
        if (!now.has(pid)) this.gone.set(pid, { process: one, atMs: nowMs });
      }
      for (const [pid, one] of now) {
        const before = this.processes.get(pid);
        if (!before) {
          this.fresh.set(pid, nowMs);
          if (one.state !== "standby")
            this.say(
              nowMs,
              "ok",
              `${one.name} started: process ${pid}${one.version ? `, version ${one.version}` : ""}.`,
            );
        } else if (before.state !== one.state && one.state === "active") {
          this.fresh.set(pid, nowMs);
          this.say(nowMs, "ok", `${one.name}: process ${pid} is ${one.state} now (it was ${before.state}).`);
        } else if (before.state === "active" && one.state !== "active") {
          this.say(nowMs, "warn", `${one.name}: process ${pid} is ${one.state} now.`);
        }
      }
      for (const [pid, one] of this.processes) {
        if (!now.has(pid) && one.state !== "standby") this.say(nowMs, "warn", `${one.name}: process ${pid} is gone.`);
      }
    }
    this.processes = now;
    forget(this.gone, nowMs, (one) => one.atMs);
    forget(this.fresh, nowMs, (at) => at);
    forget(this.moved, nowMs, (at) => at);
  }

  onCluster(cluster, nowMs) {
    if (!cluster.clustered) return;
    this.onNodes(cluster, nowMs);
    const now = new Map(cluster.groups.map((one) => [one.group, { primary: one.primary, epoch: one.epoch }]));
    for (const [group, { primary, epoch }] of now) {
      const before = this.leaders?.get(group);
      if (!before || (before.primary === primary && before.epoch === epoch)) continue;
      this.moved.set(group, nowMs);
      if (!primary) this.say(nowMs, "bad", `Group ${group}: nobody leads it (before: ${before.primary}).`);
      else if (primary !== before.primary)
        this.say(
          nowMs,
          "warn",
          `Group ${group}: ${primary} leads at epoch ${epoch}${before.primary ? ` (before: ${before.primary})` : ""}.`,
        );
      else this.say(nowMs, "ok", `Group ${group}: ${primary} leads on at epoch ${epoch}.`);
    }
    this.leaders = now;
  }

  onNodes(cluster, nowMs) {
    const here = new Map(cluster.nodes.map((one) => [one.node, one]));
    for (const [name, before] of this.nodes) {
      if (here.has(name) || before.lost) continue;
      this.nodes.set(name, { ...before, lost: true });
      this.say(nowMs, "bad", `Node ${name} does not answer.`);
    }
    for (const [name, one] of here) {
      const before = this.nodes.get(name);
      if (before?.lost) this.say(nowMs, "ok", `Node ${name} is there again: process ${one.pid}.`);
      else if (before && before.pid !== one.pid)
        this.say(nowMs, "warn", `Node ${name}: process ${one.pid} in place of ${before.pid}.`);
      this.nodes.set(name, one);
    }
  }

  say(ms, level, text) {
    this.lines.unshift({ ms, level, text });
    this.lines.length = Math.min(this.lines.length, KEPT);
  }
}

function forget(map, nowMs, at) {
  for (const [key, one] of map) if (nowMs - at(one) > SEEN_MS) map.delete(key);
}
