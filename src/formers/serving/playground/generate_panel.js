// Writing: a stream of tokens, each with its alternatives; an alternative starts a new continuation from its place.

import { formatShare, makeButton, makeElement } from "./page/dom.js";
import { showToken } from "./page/tokens.js";
import { streamEvents } from "./server_api.js";

// One model's continuation of a text.
export class GeneratePanel {
  constructor(root, { model, text, showError, inspect }) {
    this.root = root;
    this.model = model;
    this.text = text;
    this.showError = showError;
    this.inspect = inspect;
    this.tokens = [];
    this.chosen = -1;
    this.abort = null;
    this.build();
  }

  build() {
    const { text } = this;
    this.status = makeElement("p", { class: "pg-status", role: "status" });
    this.written = makeElement("div", { class: "pg-written", role: "group", "aria-label": text("written") });
    this.choices = makeElement("div", { class: "pg-alternatives" }, makeElement("p", { class: "fv-soft", text: text("alternatives_help") }));
    this.look = makeButton(text("look_at_text"), () => this.inspect(this.prompt + this.tokens.map((one) => one.token.text).join("")), { disabled: true });
    this.root.replaceChildren(makeElement("h2", { text: this.model.name }), this.written, this.status, this.choices, this.look);
  }

  get isRunning() {
    return this.abort !== null;
  }

  // Write from the prompt, or from `kept` tokens after it.
  async run(prompt, settings, kept = []) {
    this.stop();
    const abort = (this.abort = new AbortController());
    this.prompt = prompt;
    this.settings = settings;
    this.tokens = kept;
    this.chosen = -1;
    this.drawAll();
    const started = performance.now();
    let reason = "stop";
    let written = 0;
    try {
      const body = { model: this.model.name, text: prompt, forced: kept.map((one) => one.token.id), ...settings, max_new_tokens: Math.max(1, settings.max_new_tokens - kept.length) };
      for await (const event of streamEvents("generate", body, abort.signal)) {
        if (event.done) {
          reason = event.reason ?? "length";
          break;
        }
        this.tokens.push(event);
        written += 1;
        this.written.append(this.makeToken(this.tokens.length - 1));
        this.status.textContent = this.text("count_tokens", { count: this.tokens.length, speed: (written / Math.max(0.001, (performance.now() - started) / 1000)).toFixed(1) });
      }
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error);
    }
    if (this.abort === abort) {
      this.abort = null;
      this.look.disabled = false;
      this.status.textContent += `${this.status.textContent ? " · " : ""}${this.text(`done_${reason}`)}`;
    }
  }

  stop() {
    this.abort?.abort();
  }

  drawAll() {
    this.written.replaceChildren(makeElement("span", { class: "fv-soft", text: this.prompt }), ...this.tokens.map((_, i) => this.makeToken(i)));
    this.choices.replaceChildren(makeElement("p", { class: "fv-soft", text: this.text("alternatives_help") }));
  }

  makeToken(index) {
    const { token } = this.tokens[index];
    const words = token.text === "" ? "·" : token.text;
    const button = makeButton(words, () => this.choose(index), {
      class: "pg-token", "aria-pressed": String(index === this.chosen), "aria-label": this.text("token_button", { token: showToken(token), p: formatShare(token.p) }),
    });
    // Certain tokens have a strong line, unsure ones a faint one.
    button.style.borderBottomColor = `color-mix(in srgb, var(--accent) ${Math.round(15 + 85 * token.p)}%, transparent)`;
    return button;
  }

  choose(index) {
    this.chosen = index;
    this.written.querySelectorAll(".pg-token").forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    const { token, alternatives } = this.tokens[index];
    const { text } = this;
    const list = makeElement("ul", { class: "pg-choices" });
    for (const one of alternatives) {
      const isChosen = one.id === token.id;
      const bar = makeElement("i");
      bar.style.width = `${100 * one.p}%`;
      const button = makeElement("button", {
        type: "button", class: "pg-choice", disabled: isChosen, title: isChosen ? text("chosen") : text("choose_alternative", { token: showToken(one) }),
        onclick: () => this.run(this.prompt, this.settings, [...this.tokens.slice(0, index), { token: one, alternatives }]),
      }, makeElement("b", { text: one.text === "" ? "·" : showToken(one) }), makeElement("span", { class: "pg-bar" }, bar), makeElement("span", { text: formatShare(one.p) }));
      list.append(makeElement("li", {}, button));
    }
    this.choices.replaceChildren(makeElement("h3", { text: text("alternatives_of", { token: showToken(token), position: index + 1 }) }), list);
  }
}
