// What the pages of a server share: how they ask it, their head, and names of results as addresses.

async function ask(path, body) {
  const sent =
    body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, sent);
  } catch {
    throw new Error("The server does not answer; is it still running?");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");
const resultAt = (name) => `/result/${encoded(name)}`;
const fileAt = (name, file) => `/file/${encoded(name)}/${encodeURIComponent(file)}`;
const REPORT = "report.html";
const pageWords = (command) => (command === "sweep" ? "Explore" : "Report");

function back() {
  return el("p", { class: "back screen" }, el("a", { href: "/" }, "← All results"));
}
function head(...children) {
  return el("header", {}, el("div", {}, children), themeButton());
}
function shownAt(...parts) {
  document.getElementById("page").append(...parts.flat(9).filter(Boolean));
  watch();
  redraw();
  document.documentElement.dataset.ready = "true";
}
