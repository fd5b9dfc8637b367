// The live panel: what the server does now, asked once a second while the page is seen.
import { byId } from "./dom.js";
import { getJson } from "./api.js";

const period = 1000;

export class Panel {
  // `changed(state, problem)`: the server's state, or why it is not known.
  constructor(changed) {
    this.changed = changed;
    this.last = null;
    this.poll();
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.refresh();
    });
  }

  // Asks now, for instance with another key.
  refresh() {
    clearTimeout(this.timer);
    this.poll();
  }

  async poll() {
    if (document.hidden) return;
    const asked = (this.asked = Symbol());
    let wait = period;
    try {
      const state = await getJson("page/state");
      if (asked !== this.asked) return;
      this.show(state);
      this.changed(state, null);
    } catch (problem) {
      if (asked !== this.asked) return;
      this.last = null;
      this.changed(null, problem);
      wait = 3 * period;
    }
    this.timer = setTimeout(() => this.poll(), wait);
  }

  show(state) {
    const now = performance.now();
    if (state.status === "loading") return;
    let rate = 0;
    if (this.last && state.generated_tokens >= this.last.generated) {
      rate = (state.generated_tokens - this.last.generated) / ((now - this.last.at) / 1000);
    }
    this.last = { at: now, generated: state.generated_tokens };
    const cache = state.cache_pages > 0 ? state.cache_pages_used / state.cache_pages : 0;
    const percent = cache > 0 && cache < 0.01 ? "<1 %" : `${Math.round(cache * 100)} %`;
    const speed = rate > 0 && rate < 10 ? rate.toFixed(1) : String(Math.round(rate));
    byId("panel-rate").textContent = speed;
    byId("panel-running").textContent = state.running;
    byId("panel-waiting").textContent = state.waiting;
    byId("panel-cache").value = cache;
    byId("panel-cache-text").textContent = percent;
    byId("panel-server").textContent = `${state.backend} · context ${state.max_model_len.toLocaleString("en")}`;
    byId("strip").textContent = `${speed} tok/s · ${percent} cache · ${state.running}+${state.waiting}`;
  }
}
