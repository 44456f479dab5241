// The form of a run: two files, some options, any key, and the command that they make.

function runForm() {
  const F = DATA.form,
    error = el("p", { class: "error", role: "alert" }),
    command = el("code", {}),
    given = {};
  const chooser = (room, words, wanted) => {
    const names = F[room];
    const select = el(
      "select",
      { id: room, onchange: show },
      names.map((name) => el("option", { value: name, selected: name === wanted }, named(name))),
    );
    return [select, el("label", { class: "field two", for: room }, words, select)];
  };
  const [topology, clusterField] = chooser("topologies", "cluster", "superpod_h100_128");
  const [workload, jobField] = chooser("workloads", "workload", "llama3_70b");
  const field = (option) => {
    const id = `option-${option.name}`;
    const attributes = { id, title: option.what, "aria-label": `${option.flag.slice(2)}: ${option.what}` };
    given[option.name] = option.values.length
      ? el("select", { ...attributes, onchange: show }, [
          el("option", { value: "" }, "as in the file"),
          option.values.map((value) => el("option", { value }, named(value))),
        ])
      : el("input", { ...attributes, type: "text", autocomplete: "off", spellcheck: "false", placeholder: "as in the file", oninput: show });
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
    const words = F.options.filter((o) => chosen[o.name]).flatMap((o) => [o.flag, chosen[o.name]]);
    const keys = lines().flatMap((line) => ["--set", line]);
    command.textContent = named(["clustersim run", ...[topology.value, workload.value, ...words, ...keys].map(quoted)].join(" "), 4000);
  }
  const go = el("button", { class: "main", type: "submit" }, "Simulate");
  const form = el(
    "form",
    {
      id: "run",
      onsubmit: async (event) => {
        event.preventDefault();
        error.textContent = "";
        go.disabled = true;
        try {
          await ask("/api/run", { topology: topology.value, workload: workload.value, options: options(), set: lines() });
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
        el("label", { class: "field all", for: "more" }, "any other key of the files, key=value, one a line", more),
      ),
    ),
    el("pre", { tabindex: 0, "aria-label": "The command of this form" }, command),
    el("div", { class: "go" }, go, el("span", { class: "dim small" }, limitsInWords())),
    error,
  );
  show();
  return section("start", "Simulate a step", form);
}

function limitsInWords() {
  const l = DATA.limits;
  return `${count(l.at_once, "run")} at once, each at most ${l.seconds} s and ${gib(l.memory / 2 ** 20)}`;
}
