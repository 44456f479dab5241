// Runs under way: what each is doing, for how long, and a button that stops it.

const live = { children: DATA.children, results: DATA.results || [], lost: "", changed: [] };
const ACTIVE = ["waiting", "running"];
const SHARES = { load: 0.04, build: 0.1, predict: 0.2, plan: 0.4, simulate: 0.45, summarize: 0.88, save: 0.92, draw: 0.95 };
function progressOf(step) {
  // of one: what comes before the step, and how far it is itself
  const [, done, all] = step.match(/^simulate: ([\d,]+) of ([\d,]+)/) || [];
  if (done) return parseFloat(done.replaceAll(",", "")) / parseFloat(all.replaceAll(",", ""));
  const [word, share] = step.split(" ");
  if (word.endsWith(":") || word === "look") return null; // a search, whose end nobody knows
  const begun = SHARES[word] || 0;
  return word === "simulate" ? begun + 0.4 * (parseFloat(share) / 100 || 0) : begun;
}

async function poll() {
  try {
    Object.assign(live, await ask("/api/state"), { lost: "" });
  } catch (error) {
    live.lost = error.message;
  }
  for (const draw of live.changed) draw();
  pollLater();
}
let timer = 0;
function pollLater() {
  // soon while anything runs; one that is polled at once is not waited for
  const busy = live.children.some((child) => ACTIVE.includes(child.state));
  clearTimeout(timer);
  timer = setTimeout(() => (document.hidden ? pollLater() : poll()), busy ? 500 : 5000);
}

const WORDS = { waiting: "waits for its turn", running: "starts", done: "done", failed: "no result", stopped: "stopped" };
function childRow(child) {
  const bar = el("progress", { max: 1, "aria-label": `Progress of ${child.command}` });
  const words = el("span", { role: "status" });
  const took = el("span", { class: "dim" });
  const link = el("span", {});
  const error = el("div", { class: "error" });
  const answer = el("pre", { tabindex: 0, "aria-label": `Answer of ${child.command}` });
  const stop = el(
    "button",
    {
      type: "button",
      "aria-label": `Stop ${child.command}`,
      onclick: async () => {
        stop.disabled = true;
        await ask("/api/stop", { number: child.number }).catch(() => null);
        poll();
      },
    },
    "Stop",
  );
  const node = el(
    "div",
    { class: "child", "data-number": child.number },
    el("code", {}, named(child.command, 2000)),
    stop,
    el("div", { class: "said" }, bar, words, took, link),
    error,
    answer,
  );
  function show(now) {
    const active = ACTIVE.includes(now.state);
    stop.hidden = !active;
    bar.hidden = now.state !== "running";
    const share = progressOf(now.step);
    if (share === null) bar.removeAttribute("value");
    else bar.value = share;
    const row = now.result && live.results.find((one) => one.name === now.result);
    const ended = now.state === "done" && row && row.step_time_s ? `done: a step takes ${seconds(expectedStep(row))}` : ["stopped", "failed"].includes(now.state) && now.answer ? "stopped: the best so far" : WORDS[now.state];
    const said = now.state === "running" && now.step ? now.step : ended;
    if (words.textContent !== said) words.textContent = said;
    took.textContent = now.took_s === null ? "" : `${active ? "" : "after "}${now.took_s.toFixed(1)} s`;
    error.textContent = now.error;
    error.hidden = !now.error;
    answer.hidden = active || !now.answer;
    const lines = now.answer.split("\n").map((line) => named(line, 400));
    if (!answer.hidden && !answer.firstChild) answer.append(lines.join("\n").trimEnd());
    if (now.result && !link.firstChild) {
      if (!row || row.report) link.append(el("a", { href: fileAt(now.result, REPORT) }, "Open the page"), " of ");
      link.append(el("a", { href: resultAt(now.result) }, named(now.result)));
    }
  }
  return { node, show };
}

function childList(of = () => true, none = "") {
  const rows = new Map();
  const list = el("div", {});
  const lost = el("p", { class: "error", role: "alert" });
  function draw() {
    lost.textContent = live.lost;
    const some = live.children.filter(of).reverse(); // each that is new comes on top, the newest last
    for (const child of some) {
      if (!rows.has(child.number)) {
        const row = childRow(child);
        rows.set(child.number, row);
        list.prepend(row.node);
      }
      rows.get(child.number).show(child);
    }
    for (const [number, row] of rows)
      if (!some.some((child) => child.number === number)) {
        row.node.remove();
        rows.delete(number);
      }
    empty.hidden = rows.size > 0;
  }
  const empty = el("p", { class: "dim" }, none);
  live.changed.push(draw);
  draw();
  return el("div", {}, lost, empty, list);
}
