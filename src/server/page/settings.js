// The settings form of a conversation, and the theme.
import { byId } from "./dom.js";
import { emptySettings, toolsOf } from "./store.js";

const themes = ["auto", "light", "dark"];

export function startTheme() {
  const show = () => {
    const theme = localStorage.getItem("m3.theme") ?? "auto";
    document.documentElement.dataset.theme = theme;
    byId("theme").title = `Theme: ${theme}`;
    byId("theme").setAttribute("aria-label", `Theme: ${theme}`);
  };
  byId("theme").addEventListener("click", () => {
    const now = themes.indexOf(localStorage.getItem("m3.theme") ?? "auto");
    localStorage.setItem("m3.theme", themes[(now + 1) % themes.length]);
    show();
  });
  show();
}

export class SettingsForm {
  // `changed(settings)` after every change.
  constructor(changed) {
    this.form = byId("settings-form");
    this.form.addEventListener("input", () => {
      this.check();
      changed(this.read());
    });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    byId("reset-settings").addEventListener("click", () => {
      this.show(emptySettings());
      changed(this.read());
    });
  }

  fields() {
    return [...this.form.elements].filter((field) => field.name !== "");
  }

  show(settings) {
    for (const field of this.fields()) field.value = settings[field.name] ?? "";
    this.check();
  }

  read() {
    return Object.fromEntries(this.fields().map((field) => [field.name, field.value]));
  }

  // The first field that is wrong, or null.
  check() {
    const tools = this.form.elements.tools;
    let problem = "";
    try {
      toolsOf(this.read());
    } catch (error) {
      problem = `Not a JSON list: ${error.message}`;
    }
    tools.setCustomValidity(problem);
    byId("tools-error").textContent = problem;
    return this.fields().find((field) => !field.checkValidity()) ?? null;
  }
}
