// Filling blanks: words become buttons that hide them, the model's candidates become buttons that put them in.

import { formatShare, makeButton, makeElement } from "./page/dom.js";
import { showToken } from "./page/tokens.js";
import { postJson } from "./server_api.js";

const BLANK = "___"; // what the server reads as a hidden word, whatever the model's own mask is

export class FillPanel {
  constructor(root, { models, text, showError, setText }) {
    this.root = root;
    this.models = models;
    this.text = text;
    this.showError = showError;
    this.setText = setText;
    this.hidden = new Set();
    this.words = makeElement("div", { class: "pg-card pg-words" });
    this.results = makeElement("div", { class: models.length > 1 ? "pg-columns pg-two" : "pg-columns" });
    this.status = makeElement("p", { class: "pg-status", role: "status", text: text("no_mask_yet") });
    root.replaceChildren(this.words, this.status, this.results);
  }

  // Words and the spaces between them; punctuation stands alone.
  show(value) {
    this.parts = value.match(/\s+|[\p{L}\p{N}\p{M}'’-]+|[^\s\p{L}\p{N}\p{M}]/gu) ?? [];
    this.hidden.clear();
    this.draw();
    this.results.replaceChildren();
    this.status.textContent = this.text("no_mask_yet");
  }

  draw() {
    this.words.replaceChildren(...this.parts.map((part, i) => {
      if (/^\s+$/.test(part)) return document.createTextNode(" ");
      const isHidden = this.hidden.has(i);
      return makeButton(part, () => this.toggle(i), { class: "pg-word", "aria-pressed": String(isHidden), "aria-label": this.text(isHidden ? "unmask_word" : "mask_word", { word: part }) });
    }));
  }

  async toggle(index) {
    if (!this.hidden.delete(index)) this.hidden.add(index);
    this.draw();
    this.words.querySelectorAll("button")[this.parts.slice(0, index).filter((part) => part.trim()).length]?.focus();
    await this.ask();
  }

  async ask() {
    this.abort?.abort();
    const { signal } = (this.abort = new AbortController());
    if (!this.hidden.size) {
      this.results.replaceChildren();
      this.status.textContent = this.text("no_mask_yet");
      return;
    }
    this.status.textContent = this.text("running");
    try {
      const answers = await Promise.all(this.models.map((model) => postJson("fill", { model: model.name, text: this.parts.map((part, i) => (this.hidden.has(i) ? BLANK : part)).join(""), top_k: 8 }, signal)));
      this.status.textContent = "";
      this.results.replaceChildren(...answers.map((answer, m) => this.makeCard(this.models[m], answer)));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.status.textContent = "";
      this.showError(error);
    }
  }

  makeCard(model, { blanks }) {
    const places = [...this.hidden].sort((a, b) => a - b);
    const card = makeElement("div", { class: "pg-card" }, makeElement("h2", { text: model.name }));
    blanks.forEach((guesses, n) => {
      const list = makeElement("ul", { class: "pg-choices" });
      for (const one of guesses) {
        const bar = makeElement("i");
        bar.style.width = `${100 * one.probability}%`;
        const words = showToken({ text: one.token });
        list.append(makeElement("li", {}, makeElement("button", { type: "button", class: "pg-choice", title: this.text("use_candidate", { token: words }), onclick: () => this.putIn(places[n], words) },
          makeElement("b", { text: words }), makeElement("span", { class: "pg-bar" }, bar), makeElement("span", { text: formatShare(one.probability) }))));
      }
      card.append(makeElement("h3", { text: this.text("candidates", { n: n + 1 }) }), list);
    });
    return card;
  }

  async putIn(place, words) {
    this.parts[place] = words.replace(/^##/, "");
    this.hidden.delete(place);
    this.setText(this.parts.join(""));
    this.draw();
    await this.ask();
  }
}
