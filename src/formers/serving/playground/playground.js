// The playground: pick a model and a verb, type, and see.

import { Palette } from "./page/colours.js";
import { addRovingFocus, makeButton, makeElement, makeSelect } from "./page/dom.js";
import { makeTranslator } from "./page/strings.js";
import { getTheme, makeSwitches, Viewer } from "./page/viewer.js";
import { FamilyPanel } from "./family_panel.js";
import { FillPanel } from "./fill_panel.js";
import { GeneratePanel } from "./generate_panel.js";
import { getJson, postJson } from "./server_api.js";
import { STRINGS } from "./strings.js";

const VERBS = ["inspect", "generate", "fill", "objectives", "family"];
const METHODS = ["input_x_gradient", "integrated_gradients", "occlusion", "value_zeroing"];
const TYPING_PAUSE = 500; // milliseconds after the last key before the picture follows
const LONGEST_FOLLOWED = 400; // characters that are followed while typing; longer texts wait for the button

// Settings that outlive a visit; a browser that forbids storage forgets them.
function recall(name) {
  try {
    return localStorage.getItem(`formers.${name}`);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`formers.${name}`, value);
  } catch {
    // The setting then lasts for this visit only.
  }
}

class Playground {
  constructor(root) {
    this.root = root;
    this.page = document.documentElement;
    this.page.dataset.theme = recall("theme") ?? "auto";
    this.language = recall("language") ?? (navigator.language.startsWith("ko") ? "ko" : "en");
    this.verb = VERBS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "inspect";
    this.models = [];
    this.value = null;
    this.second = "";
    this.extra = new Set();
    this.window = 0; // the part of a long text that is shown
    this.generation = { max_new_tokens: 40, temperature: 0.8, top_k: 0, top_p: 1, seed: null };
    this.page.addEventListener("themechange", () => {
      remember("theme", this.page.dataset.theme);
      this.redraw();
    });
  }

  async start() {
    try {
      this.models = (await getJson("models")).models;
    } catch (error) {
      this.failure = error;
    }
    this.first = this.models[0]?.name;
    this.beside = "";
    this.build();
  }

  get text() {
    return this.translate;
  }

  findModel(name) {
    return this.models.find((one) => one.name === name);
  }

  // The models that the current verb shows: one, or two side by side.
  listChosen() {
    return [this.first, this.beside].filter(Boolean).map((name) => this.findModel(name));
  }

  build() {
    this.translate = makeTranslator(this.language, STRINGS);
    const { text } = this;
    this.page.lang = this.language;
    document.title = text("title");
    this.viewer?.close();
    this.viewer = null;
    this.value ??= this.language === "ko" ? text("first_text_ko") : text("first_text");
    const header = makeElement("header", { class: "pg-top" }, makeElement("h1", { text: text("title") }),
      makeSwitches(text, this.language, { root: this.page, setLanguage: (language) => this.setLanguage(language) }));
    const names = this.models.map((one) => [one.name, one.name === one.family ? one.name : `${one.name} (${one.family})`]);
    const models = makeElement("div", { class: "pg-models" },
      makeSelect(text("model"), names, this.first, (name) => this.setModels({ first: name })),
      makeSelect(text("second_model"), [["", text("none")], ...names], this.beside, (name) => this.setModels({ beside: name })));
    const verbs = makeElement("div", { class: "pg-verbs", role: "tablist", "aria-label": text("verbs") });
    for (const verb of VERBS) {
      verbs.append(makeButton(text(`verb_${verb}`), () => this.setVerb(verb), { role: "tab", id: `pg-verb-${verb}`, "aria-selected": String(verb === this.verb), "aria-controls": "pg-panel", tabindex: verb === this.verb ? "0" : "-1" }));
    }
    addRovingFocus(verbs, '[role="tab"]');
    this.errors = makeElement("div", { role: "alert" });
    this.panel = makeElement("section", { id: "pg-panel", role: "tabpanel", "aria-labelledby": `pg-verb-${this.verb}` });
    const main = makeElement("main", {}, this.models.length ? models : null, verbs, this.errors, this.panel);
    this.root.replaceChildren(makeElement("div", { class: "pg" }, header, main));
    if (this.failure) this.showError(this.failure);
    else if (!this.models.length && this.verb !== "family") this.showError(new Error(text("no_models")));
    else this.showVerb();
  }

  setLanguage(language) {
    const isUntouched = this.value === this.text("first_text") || this.value === this.text("first_text_ko");
    this.language = language;
    remember("language", language);
    if (isUntouched) this.value = null;
    this.build();
    this.root.querySelector(".fv-switches select")?.focus();
  }

  setModels(change) {
    Object.assign(this, change);
    this.showVerb();
  }

  setVerb(verb) {
    this.verb = verb;
    history.replaceState(null, "", `#${verb}`);
    for (const tab of this.root.querySelectorAll(".pg-verbs [role=tab]")) {
      const isCurrent = tab.id === `pg-verb-${verb}`;
      tab.setAttribute("aria-selected", String(isCurrent));
      tab.tabIndex = isCurrent ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `pg-verb-${verb}`);
    this.showVerb();
  }

  showError(error) {
    const parts = [makeElement("p", { text: error.message })];
    if (error.fix) parts.push(makeElement("p", { class: "fv-soft", text: error.fix }));
    this.errors.replaceChildren(makeElement("div", { class: "pg-error" }, ...parts));
  }

  redraw() {
    this.viewer?.refresh();
    this.family?.draw();
  }

  showVerb() {
    this.abort?.abort();
    clearTimeout(this.timer);
    this.writers?.forEach((writer) => writer.close());
    this.viewer?.close();
    this.viewer = null;
    this.family = null;
    this.writers = null;
    this.errors.replaceChildren();
    const { text } = this;
    this.panel.replaceChildren(makeElement("p", { class: "pg-lead", text: text(`lead_${this.verb}`) }));
    if (this.verb === "family") return this.showFamily();
    const able = this.listChosen().filter((model) => this.canDo(model));
    for (const model of this.listChosen()) {
      if (!able.includes(model)) this.panel.append(makeElement("p", { class: "pg-error", text: text("cannot", { model: model.name, reason: text("reason_no_verb") }) }));
    }
    if (!able.length) return this.offerModels();
    this.able = able;
    return { inspect: () => this.showInspect(), generate: () => this.showGenerate(), fill: () => this.showFill(), objectives: () => this.showObjectives() }[this.verb]();
  }

  canDo(model) {
    return model.verbs.includes(this.verb === "objectives" ? "inspect" : this.verb);
  }

  // The models that can do what the chosen ones cannot.
  offerModels() {
    const others = this.models.filter((model) => this.canDo(model));
    const buttons = others.map((model) => makeButton(model.name, () => {
      this.root.querySelector(".pg-models select").value = model.name;
      this.setModels({ first: model.name });
    }));
    if (buttons.length) this.panel.append(makeElement("div", { class: "pg-actions" }, makeElement("span", { class: "fv-soft", text: this.text("others_can") }), ...buttons));
  }

  makeTextArea(changed, rows = 2) {
    const area = makeElement("textarea", { rows, spellcheck: "false", oninput: () => {
      this.value = area.value;
      this.forgetOnDemand();
      changed();
    } });
    area.value = this.value;
    this.area = area;
    return makeElement("div", { class: "pg-input" }, makeElement("label", {}, makeElement("span", { text: this.text("text") }), area));
  }

  // Look inside -------------------------------------------------------------------------------------------------

  showInspect() {
    const { text } = this;
    const follow = () => {
      clearTimeout(this.timer);
      if (this.value.length <= LONGEST_FOLLOWED) this.timer = setTimeout(() => this.inspect(), TYPING_PAUSE);
    };
    const input = this.makeTextArea(follow);
    const second = makeElement("input", { type: "text", value: this.second, oninput: () => {
      this.second = second.value;
      follow();
    } });
    input.append(makeElement("label", {}, makeElement("span", { text: text("second_text") }), second));
    const checks = ["attribution", "heads", "neuron"].map((name) => {
      const box = makeElement("input", { type: "checkbox", checked: this.extra.has(name), onchange: () => {
        if (box.checked) this.extra.add(name);
        else this.extra.delete(name);
        this.inspect();
      } });
      return makeElement("label", { class: "pg-check" }, box, makeElement("span", { text: text(`view_${name}`) }));
    });
    this.status = makeElement("span", { class: "pg-status", role: "status" });
    this.pinned = null;
    const pin = makeButton(text("pin"), () => {
      this.pinned = this.pinned ? null : this.viewer?.documents[0] ?? null;
      pin.textContent = text(this.pinned ? "unpin" : "pin");
      this.inspect();
    }, { title: text("pin_help") });
    const actions = makeElement("div", { class: "pg-actions" }, makeButton(text("run"), () => this.inspect(), { class: "pg-main" }), this.able.length > 1 ? null : pin,
      makeElement("span", { class: "fv-soft", text: `${text("more_views")}:` }), ...checks, this.status);
    this.result = makeElement("div");
    this.panel.append(input, actions, this.result);
    return this.inspect();
  }

  // Another text begins small again: what takes long was asked for the text before.
  forgetOnDemand() {
    this.window = 0;
    for (const name of ["layers", "masked", ...METHODS]) this.extra.delete(name);
  }

  // Say that something is computed, and after two seconds for how long.
  showWaiting(signal) {
    const { status } = this;
    const started = performance.now();
    status.textContent = this.text("running");
    const timer = setInterval(() => {
      const seconds = Math.round((performance.now() - started) / 1000);
      if (signal.aborted) clearInterval(timer);
      else if (seconds >= 2) status.textContent = this.text("running_for", { seconds });
    }, 1000);
    return () => {
      clearInterval(timer);
      if (!signal.aborted) status.textContent = "";
    };
  }

  async inspect() {
    clearTimeout(this.timer);
    this.abort?.abort();
    const { signal } = (this.abort = new AbortController());
    if (!this.value.trim()) {
      this.viewer?.close(); // a picture of another text would mislead
      this.viewer = null;
      this.errors.replaceChildren();
      this.status.textContent = this.text("type_text");
      return;
    }
    const stopWaiting = this.showWaiting(signal);
    const state = this.viewer?.state ?? this.viewState ?? {};
    const layer = this.extra.has("neuron") && state.layer !== undefined ? { layer: state.layer, head: Math.max(0, state.head) } : {};
    const asked = [...this.extra];
    const methods = asked.filter((name) => METHODS.includes(name));
    const body = {
      text: this.value, ...(this.second.trim() ? { second: this.second } : {}), views: ["default", ...asked.filter((name) => name !== "masked" && !METHODS.includes(name))], ...layer,
      ...(this.window ? { window: this.window } : {}), ...(this.extra.has("masked") ? { masked: true } : {}), ...(methods.length ? { methods: [METHODS[0], ...methods] } : {}),
    };
    try {
      const documents = await Promise.all(this.able.map((model) => postJson("inspect", { model: model.name, ...body }, signal)));
      this.errors.replaceChildren();
      if (this.pinned) documents.unshift(this.pinned);
      this.showDocument(documents.length > 1 ? { format: 1, compare: documents } : documents[0]);
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error);
    }
    stopWaiting();
  }

  showDocument(document, only = null) {
    if (this.viewer) {
      this.viewer.setDocument(document);
      return;
    }
    const add = (name) => {
      this.extra.add(name);
      this.inspect();
    };
    const chooseWindow = (index) => {
      this.window = index;
      this.inspect();
    };
    this.viewer = new Viewer(this.result, document, { language: this.language, state: this.viewState ?? {}, only, add, chooseWindow });
    if (!only) this.viewState = this.viewer.state;
  }

  // Write -------------------------------------------------------------------------------------------------------

  // Settings without those that are left open, which the server would refuse as null or as 0.
  listGenerationSettings() {
    const given = Object.entries(this.generation).filter(([name, value]) => value !== null && !(name === "top_k" && value === 0) && !(name === "top_p" && value >= 1));
    return { ...Object.fromEntries(given), alternatives: 6 };
  }

  showGenerate() {
    const { text, generation } = this;
    const input = this.makeTextArea(() => {});
    const numbers = [["max_new_tokens", 1, 400, 1], ["temperature", 0, 2, 0.1], ["top_k", 0, 1000, 1], ["top_p", 0.05, 1, 0.05], ["seed", 0, 1e9, 1]].map(([name, min, max, step]) => {
      const field = makeElement("input", { type: "number", min, max, step, value: generation[name] ?? "", placeholder: name === "seed" ? text("seed_any") : null, onchange: () => {
        generation[name] = field.value === "" ? null : Number(field.value);
      } });
      return makeElement("label", { class: "fv-field" }, makeElement("span", { text: text(name) }), field);
    });
    const columns = makeElement("div", { class: this.able.length > 1 ? "pg-columns pg-two" : "pg-columns" });
    const stop = makeButton(text("stop"), () => this.writers.forEach((writer) => writer.stop()), { disabled: true });
    const write = makeButton(text("write"), () => this.writers.forEach((writer) => writer.run(this.value, this.listGenerationSettings())), { class: "pg-main" });
    this.panel.append(input, makeElement("div", { class: "pg-actions" }, write, stop, ...numbers), columns);
    this.writers = this.able.map((model) => {
      const card = makeElement("div", { class: "pg-card" });
      columns.append(card);
      return new GeneratePanel(card, {
        model, text, showError: (error) => this.showError(error),
        changed: () => {
          const isBusy = this.writers.some((writer) => writer.isRunning);
          if (isBusy) this.errors.replaceChildren();
          write.disabled = isBusy;
          stop.disabled = !isBusy;
        },
        inspect: (value, second) => {
          this.forgetOnDemand();
          Object.assign(this, { value, second });
          this.setVerb("inspect");
        },
      });
    });
  }

  // Fill blanks -------------------------------------------------------------------------------------------------

  showFill() {
    const input = this.makeTextArea(() => this.fill.show(this.value));
    const place = makeElement("div");
    this.panel.append(input, place);
    this.fill = new FillPanel(place, {
      models: this.able, text: this.text, showError: (error) => this.showError(error),
      setText: (value) => {
        this.value = value;
        this.area.value = value;
      },
    });
    this.fill.show(this.value);
  }

  // Objectives --------------------------------------------------------------------------------------------------

  showObjectives() {
    const { text } = this;
    const follow = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.drawObjectives(), TYPING_PAUSE);
    };
    this.seed ??= 0;
    this.status = makeElement("span", { class: "pg-status", role: "status" });
    this.result = makeElement("div");
    const again = makeButton(text("again"), () => {
      this.seed += 1;
      this.drawObjectives();
    }, { class: "pg-main" });
    this.panel.append(this.makeTextArea(follow), makeElement("div", { class: "pg-actions" }, again, this.status), this.result);
    return this.drawObjectives();
  }

  async drawObjectives() {
    this.abort?.abort();
    const { signal } = (this.abort = new AbortController());
    if (!this.value.trim()) return;
    this.status.textContent = this.text("running");
    try {
      const documents = await Promise.all(this.able.map(async (model) => {
        const { objectives } = await postJson("objectives", { model: model.name, text: this.value, seed: this.seed }, signal);
        return { format: 1, model, sides: { text: { text: this.value, tokens: [] } }, objectives };
      }));
      this.errors.replaceChildren();
      if (this.viewer) Object.assign(this.viewer.state, { step: 0, isPlaying: true });
      this.showDocument(documents.length > 1 ? { format: 1, compare: documents } : documents[0], ["objectives"]);
    } catch (error) {
      if (error.name !== "AbortError") this.showError(error);
    }
    if (!signal.aborted) this.status.textContent = "";
  }

  // Family ------------------------------------------------------------------------------------------------------

  async showFamily() {
    const place = makeElement("div", { class: "formers-view" });
    const status = makeElement("p", { class: "pg-status", role: "status", text: this.text("running") });
    this.panel.append(status, place);
    try {
      this.members ??= (await getJson("family")).members;
    } catch (error) {
      status.textContent = "";
      this.showError(error);
      return;
    }
    if (this.verb !== "family") return;
    status.remove();
    this.family = new FamilyPanel(place, {
      members: this.members, text: this.text, language: this.language, chosen: this.findModel(this.first)?.family,
      makePalette: () => new Palette(place, getTheme(place)),
    });
  }
}

const playground = new Playground(document.getElementById("root"));
window.formersPlayground = playground;
playground.start();
