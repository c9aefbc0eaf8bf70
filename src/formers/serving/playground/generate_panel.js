// Writing: a stream of tokens, each with its alternatives; an alternative starts a new continuation from its place.

import { formatShare, makeButton, makeElement } from "./page/dom.js";
import { streamEvents } from "./server_api.js";

// One model's continuation of a text.
export class GeneratePanel {
  constructor(root, { model, text, showError, inspect, changed }) {
    this.root = root;
    this.model = model;
    this.text = text;
    this.showError = showError;
    this.inspect = inspect;
    this.changed = changed; // called when it begins and when it ends
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
    this.look = makeButton(text("look_at_text"), () => {
      const written = this.tokens.map((one) => one.piece).join("");
      if (this.model.encoder_decoder) this.inspect(this.prompt, written.trim());
      else this.inspect(this.prompt + written, "");
    }, { disabled: true });
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
    this.status.textContent = "";
    this.drawAll();
    this.changed();
    const started = performance.now();
    let reason = "stop";
    let written = 0;
    try {
      const ids = kept.map((one) => one.id);
      const body = { model: this.model.name, text: prompt, ...settings, ...(ids.length ? { ids } : {}), max_new_tokens: Math.max(1, (settings.max_new_tokens ?? 40) - kept.length) };
      for await (const event of streamEvents("generate", body, abort.signal)) {
        if (event.finish_reason) {
          reason = event.finish_reason === "length" ? "length" : "end";
          break;
        }
        if (event.id === undefined) {
          // The end of a character whose first bytes were earlier tokens.
          if (this.tokens.length) this.tokens.at(-1).piece += event.piece;
          continue;
        }
        this.tokens.push(event);
        written += 1;
        this.written.append(this.makeToken(this.tokens.length - 1));
        this.status.textContent = this.text("count_tokens", { count: this.tokens.length, speed: (written / Math.max(0.001, (performance.now() - started) / 1000)).toFixed(1) });
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        reason = null; // the error says why
        this.showError(error);
      }
    }
    if (this.abort === abort) {
      this.abort = null;
      this.look.disabled = false;
      this.changed();
      if (reason) this.status.textContent += `${this.status.textContent ? " · " : ""}${this.text(`done_${reason}`)}`;
    }
  }

  stop() {
    this.abort?.abort();
  }

  // Stop for good: the page shows something else now.
  close() {
    this.changed = () => {};
    this.stop();
  }

  drawAll() {
    this.written.replaceChildren(makeElement("span", { class: "fv-soft", text: this.model.encoder_decoder ? `${this.prompt} → ` : this.prompt }), ...this.tokens.map((_, i) => this.makeToken(i)));
    this.choices.replaceChildren(makeElement("p", { class: "fv-soft", text: this.text("alternatives_help") }));
  }

  makeToken(index) {
    const token = this.tokens[index];
    const button = makeButton(showWritten(token), () => this.choose(index), {
      class: "pg-token", "aria-pressed": String(index === this.chosen), "aria-label": this.text("token_button", { token: showWritten(token).trim() || "␣", p: formatShare(token.probability) }),
    });
    // Certain tokens have a strong line, unsure ones a faint one.
    button.style.borderBottomColor = `color-mix(in srgb, var(--accent) ${Math.round(15 + 85 * token.probability)}%, transparent)`;
    return button;
  }

  choose(index) {
    this.chosen = index;
    this.written.querySelectorAll(".pg-token").forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    const token = this.tokens[index];
    const { text } = this;
    const list = makeElement("ul", { class: "pg-choices" });
    for (const one of token.alternatives) {
      const isChosen = one.id === token.id;
      const words = showWritten(one).trim() || "␣";
      const bar = makeElement("i");
      bar.style.width = `${100 * one.probability}%`;
      const button = makeElement("button", {
        type: "button", class: "pg-choice", disabled: isChosen, title: isChosen ? text("chosen") : text("choose_alternative", { token: words }),
        onclick: () => this.run(this.prompt, this.settings, [...this.tokens.slice(0, index), { ...one, piece: one.text, alternatives: token.alternatives }]),
      }, makeElement("b", { text: words }), makeElement("span", { class: "pg-bar" }, bar), makeElement("span", { text: formatShare(one.probability) }));
      list.append(makeElement("li", {}, button));
    }
    this.choices.replaceChildren(makeElement("h3", { text: text("alternatives_of", { token: showWritten(token).trim(), position: index + 1 }) }), list);
  }
}

// A token's words, with a space for SentencePiece's mark; a piece of a character is a dot until it is complete.
function showWritten(token) {
  if (!token.text.includes("\ufffd") && token.text !== "") return token.text.replaceAll("▁", " ").replace(/\n/g, "⏎\n");
  return token.piece || "·";
}
