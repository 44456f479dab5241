// What a browser sees that has not shown the token.

const error = el("p", { class: "error", role: "alert" });
const token = el("input", { type: "password", id: "token", autocomplete: "current-password" });
shownAt(
  head(el("h1", {}, "clustersim"), el("p", { class: "dim" }, "This server asks for the token that it was started with.")),
  el(
    "form",
    {
      class: "go",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await ask("/login", { token: token.value });
          location.reload();
        } catch (wrong) {
          error.textContent = wrong.message;
        }
      },
    },
    el("input", { type: "text", autocomplete: "username", value: "clustersim", hidden: true }), // for keepers of passwords
    el("label", { class: "field", for: "token" }, "token", token),
    el("button", { class: "main", type: "submit" }, "Open"),
  ),
  error,
);
token.focus();
