// The forms of commands: files, some options, any key, and the command that they make. One is shown at a time.

const CHOSEN = { topologies: "superpod_h100_128", workloads: "llama3_70b" }; // kept from one form to the next

function runForm() {
  const body = el("div", {});
  const tabs = DATA.form.commands.map((spec) =>
    el("button", { type: "button", id: `form-${spec.command}`, onclick: () => open(spec) }, spec.title),
  );
  function open(spec) {
    DATA.form.commands.forEach((one, i) => tabs[i].setAttribute("aria-pressed", one === spec));
    body.replaceChildren(commandForm(spec));
  }
  open(DATA.form.commands[0]);
  return section("start", "Start", el("div", { class: "tools", role: "group", "aria-label": "Command" }, tabs), body);
}

function commandForm(F) {
  const error = el("p", { class: "error", role: "alert" }),
    command = el("code", {}),
    given = {};
  const chooser = (room, words) => {
    const select = el(
      "select",
      { id: room, onchange: show },
      DATA.form[room].map((name) => el("option", { value: name, selected: name === CHOSEN[room] }, named(name))),
    );
    return [select, el("label", { class: "field two", for: room }, words, select)];
  };
  const [topology, clusterField] = F.command === "plan" ? [null, null] : chooser("topologies", "cluster");
  const [workload, jobField] = chooser("workloads", "workload");
  const field = (option) => {
    const id = `option-${option.name}`;
    const attributes = { id, title: option.what, "aria-label": `${option.flag.slice(2)}: ${option.what}` };
    const values = option.switch ? ["yes"] : option.values,
      open = option.switch ? "no" : F.command === "run" ? "as in the file" : "not set";
    given[option.name] = values.length
      ? el("select", { ...attributes, onchange: show }, [
          el("option", { value: "" }, open),
          values.map((value) => el("option", { value }, named(value))),
        ])
      : el("input", { ...attributes, type: "text", autocomplete: "off", spellcheck: "false", placeholder: /[a-z0-9]/.test(option.example || "") ? `such as ${option.example}` : open, oninput: show });
    return el("label", { class: "field", for: id }, option.flag.slice(2).replaceAll("-", " "), given[option.name]);
  };
  const more = el("textarea", {
    id: "more",
    rows: 2,
    spellcheck: "false",
    placeholder: "training.clip_gradients=false",
    oninput: show,
  });
  const lines = () =>
    more.value
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
  const options = () =>
    Object.fromEntries(
      F.options.map((option) => [option.name, given[option.name].value.trim()]).filter(([, value]) => value),
    );
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
  function show() {
    const chosen = options();
    const words = F.options.filter((o) => chosen[o.name]).flatMap((o) => (o.switch ? [o.flag] : [o.flag, chosen[o.name]]));
    const keys = lines().flatMap((line) => ["--set", line]);
    const files = [topology, workload].filter(Boolean);
    for (const one of files) CHOSEN[one.id] = one.value;
    command.textContent = named([`clustersim ${F.command}`, ...[...files.map((one) => one.value), ...words, ...keys].map(quoted)].join(" "), 4000);
  }
  const go = el("button", { class: "main", type: "submit" }, F.command === "run" ? "Simulate" : "Start");
  const form = el(
    "form",
    {
      id: "run",
      onsubmit: async (event) => {
        event.preventDefault();
        error.textContent = "";
        go.disabled = true;
        try {
          await ask("/api/run", { command: F.command, topology: topology?.value, workload: workload.value, options: options(), set: lines() });
          await poll();
        } catch (wrong) {
          error.textContent = wrong.message;
        }
        go.disabled = false;
      },
    },
    el("div", { class: "form" }, clusterField, jobField, F.options.slice(0, F.first).map(field)),
    el(
      "details",
      { style: "margin-top:12px" },
      el("summary", {}, "More keys"),
      el(
        "div",
        { class: "form" },
        F.options.slice(F.first).map(field),
        el("label", { class: "field all", for: "more" }, `any other key of the files, key=value${["run", "plan"].includes(F.command) ? "" : " or several values with commas between"}, one a line`, more),
      ),
    ),
    el("pre", { tabindex: 0, "aria-label": "The command of this form" }, command),
    el("div", { class: "go" }, go, el("span", { class: "dim small" }, limitsInWords())),
    error,
  );
  show();
  return form;
}

function limitsInWords() {
  const l = DATA.limits;
  return `${count(l.at_once, "run")} at once, each at most ${l.seconds} s, each process at most ${gib(l.memory / 2 ** 20)}`;
}
