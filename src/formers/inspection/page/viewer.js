// The viewer: tabs, controls, one stage for each document, a data table, and files to save.

import { Palette } from "./colours.js";
import { addRovingFocus, downloadFile, formatCount, makeButton, makeElement, makeSelect } from "./dom.js";
import { attributionView, headsView } from "./attribution_views.js";
import { headView, limitChoice, modelView, neuronView, tokenView } from "./attention_views.js";
import { changesView, differenceView, mixView, ngramsView, positionsView, routingView } from "./extra_views.js";
import { listKinds } from "./attention_data.js";
import { objectivesView } from "./objectives_view.js";
import { overviewView } from "./overview_view.js";
import { layersView, predictionView } from "./prediction_views.js";
import { Stage } from "./stage.js";
import { statesView } from "./states_view.js";
import { makeTranslator } from "./strings.js";

export const VIEWS = [
  overviewView, headView, modelView, tokenView, neuronView, predictionView, layersView, attributionView, headsView, statesView,
  objectivesView, ngramsView, mixView, routingView, positionsView, changesView, differenceView,
];
const MOST_TABLE_ROWS = 600;

export function getTheme(root) {
  const chosen = root.closest("[data-theme]")?.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export class Viewer {
  // `add` computes a part that the document does not have, and `chooseWindow` shows another part of a long text; a page
  // without a server has neither.
  constructor(root, document, { language = "en", state = {}, only = null, add = null, chooseWindow = null } = {}) {
    this.root = root;
    this.language = language;
    this.only = only;
    this.add = add;
    this.chooseWindow = chooseWindow;
    this.state = {
      view: null, kind: null, measure: "weights", layer: 0, head: -1, token: 0, form: "matrix", zoom: 0, threshold: 0.03,
      direction: "reads", neuron: "product", objective: 0, step: 0, isPlaying: false, map: 0, ...state,
    };
    this.timer = null;
    this.frame = 0;
    this.setDocument(document);
    this.observer = new ResizeObserver(() => this.handleResize());
    this.observer.observe(root);
    this.scheme = window.matchMedia("(prefers-color-scheme: dark)");
    this.handleScheme = () => this.refresh();
    this.scheme.addEventListener("change", this.handleScheme);
  }

  close() {
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.handleScheme);
    this.root.replaceChildren();
  }

  setDocument(document) {
    this.document = document;
    this.documents = document.compare ?? [document];
    const sides = Object.keys(this.documents[0].sides ?? {}).join();
    if (this.state.sides !== sides) Object.assign(this.state, { sides, token: chooseFirstToken(document) }); // another kind of model
    const offered = this.only ? VIEWS.filter((view) => this.only.includes(view.id)) : VIEWS;
    this.views = offered.filter((view) => (view.isShared ? view.has(document) : this.documents.some((one) => view.has(one))));
    if (!this.views.some((view) => view.id === this.state.view)) this.state.view = this.views[0].id;
    if (this.state.view === "objectives" && this.only) this.state.isPlaying = true;
    this.build();
  }

  setLanguage(language) {
    this.language = language;
    this.build();
  }

  get view() {
    return this.views.find((view) => view.id === this.state.view);
  }

  // The page around the stages.
  build() {
    const text = (this.text = makeTranslator(this.language));
    this.root.classList.add("formers-view");
    this.root.lang = this.language;
    this.tabs = makeElement("div", { class: "fv-tabs", role: "tablist", "aria-label": text("views") });
    for (const view of this.views) {
      this.tabs.append(makeButton(text(`tab_${view.id}`), () => this.update({ view: view.id }), { role: "tab", id: `fv-tab-${view.id}`, "aria-controls": "fv-panel" }));
    }
    this.tabs.hidden = this.views.length === 1;
    addRovingFocus(this.tabs, '[role="tab"]');
    this.sentence = makeElement("p", { class: "fv-explain" });
    this.controls = makeElement("div", { class: "fv-controls" });
    this.stages = makeElement("div", { class: "fv-stages" });
    this.live = makeElement("div", { class: "fv-live", "aria-live": "polite" });
    this.table = makeElement("details", { class: "fv-table", ontoggle: () => this.fillTable() }, makeElement("summary", { text: text("data_table") }));
    const files = makeElement("div", { class: "fv-buttons fv-files", role: "group", "aria-label": text("save") });
    files.append(
      makeButton("SVG", () => this.save("svg"), { "aria-label": text("save_as", { kind: "SVG" }) }),
      makeButton("PNG", () => this.save("png"), { "aria-label": text("save_as", { kind: "PNG" }) }),
      makeButton("JSON", () => this.save("json"), { "aria-label": text("save_as", { kind: "JSON" }) }),
    );
    this.panel = makeElement("div", { role: "tabpanel", id: "fv-panel" }, this.sentence, makeElement("div", { class: "fv-bar" }, this.controls, files), this.stages, this.live, this.table);
    this.root.replaceChildren(...this.makeWindowNotes(), this.tabs, this.panel);
    const leftOut = this.makeLeftOutNote();
    if (leftOut) this.root.append(leftOut);
    const notes = [...new Set(this.documents.map((one) => one.note).filter(Boolean))];
    if (notes.length) this.root.append(makeElement("p", { class: "fv-note", text: this.language === "en" ? notes[0] : text("note_attention") }));
    this.shownStages = null;
    this.refresh();
  }

  // Sentences about texts that are longer than the model reads, with the windows to choose from.
  makeWindowNotes() {
    const { text } = this;
    const sides = this.documents.flatMap((one) => Object.entries(one.sides ?? {}).filter(([, side]) => side.window).map(([name, side]) => ({ model: one.model.name, name, part: side.window })));
    const isSame = (a, b) => a.name === b.name && ["first", "last", "tokens", "count"].every((key) => a.part[key] === b.part[key]);
    const shown = sides.filter((one, i) => sides.findIndex((other) => isSame(one, other)) === i);
    return shown.map(({ model, name, part }) => {
      const sentence = text("window_note", { side: text(`side_${name}`), first: part.first, last: part.last - 1, tokens: part.tokens });
      const words = shown.filter((one) => one.name === name).length > 1 ? `${model}: ${sentence}` : sentence;
      const note = makeElement("p", { class: "fv-window", role: "note" }, makeElement("span", { text: words }));
      if (this.chooseWindow && name !== "target") {
        const options = Array.from({ length: part.count }, (_, i) => [i, `${i + 1} / ${part.count}`]);
        note.append(makeSelect(text("window"), options, part.index, (value) => this.chooseWindow(Number(value))));
      } else if (part.count > 1 && name !== "target") note.append(makeElement("span", { class: "fv-soft", text: text("window_option", { count: part.count - 1 }) }));
      return note;
    });
  }

  // What was not computed, and how to get it: by a button where there is a server, else by an option.
  makeLeftOutNote() {
    const { text } = this;
    const parts = new Map(this.documents.flatMap((one) => one.left_out ?? []).map((one) => [one.name, one]));
    const shown = [...parts.values()].filter((one) => !this.only && (one.reason === "size" || !this.add));
    if (!shown.length) return null;
    const items = shown.map((one) => {
      const words = text(`left_out_${one.name}`);
      const slow = one.reason === "size" ? ` ${text("left_out_slow")}` : "";
      if (this.add) return makeElement("li", {}, makeButton(text("left_out_add", { name: words }), () => this.add(one.name)), makeElement("span", { class: "fv-soft", text: slow }));
      return makeElement("li", {}, `${words}${slow}: `, makeElement("code", { text: one.option }));
    });
    return makeElement("div", { class: "fv-left-out" }, makeElement("p", { text: text("left_out") }), makeElement("ul", {}, ...items));
  }

  // Change what is chosen. `redraw` keeps the controls, for those that are being dragged.
  update(patch, { redraw = false } = {}) {
    const before = this.state.view;
    Object.assign(this.state, patch);
    if (patch.view && patch.view !== before) {
      this.state.isPlaying = patch.view === "objectives" && (patch.isPlaying ?? true);
      if (patch.view === "objectives") this.state.step = patch.step ?? 0;
    }
    this.refresh({ redraw });
  }

  makeContext(document, stage) {
    return { document, state: this.state, palette: this.palette, text: this.text, language: this.language, width: stage ? stage.width : 800, update: (patch, options) => this.update(patch, options) };
  }

  // The documents that the current view shows, each on its stage.
  listShown() {
    if (this.view.isShared) return [this.document];
    return this.documents.filter((one) => this.view.has(one));
  }

  refresh({ redraw = false } = {}) {
    clearTimeout(this.timer);
    this.palette = new Palette(this.root, getTheme(this.root));
    const { view, text } = this;
    const shown = this.listShown();
    const focused = document.activeElement?.closest?.(".fv-controls") ? [...this.controls.querySelectorAll("select, input, button")].indexOf(document.activeElement) : -1;
    for (const tab of this.tabs.children) {
      const isCurrent = tab.id === `fv-tab-${view.id}`;
      tab.setAttribute("aria-selected", String(isCurrent));
      tab.tabIndex = isCurrent ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `fv-tab-${view.id}`);
    const lead = this.makeContext(shown[0], null);
    this.sentence.textContent = view.explain(lead);
    if (!redraw) {
      this.controls.replaceChildren(...view.controls(lead));
      if (focused >= 0) this.controls.querySelectorAll("select, input, button")[focused]?.focus();
    }
    const layout = `${view.isShared ? "shared" : shown.length}.${this.language}`;
    if (this.shownStages?.layout !== layout) {
      this.stages.replaceChildren();
      this.stages.classList.toggle("fv-two", shown.length > 1);
      const list = shown.map((one) => {
        const box = makeElement("figure", { class: "fv-figure" });
        const caption = makeElement("figcaption", {});
        box.append(caption);
        this.stages.append(box);
        const stage = new Stage(box, { label: "", announce: (words) => this.announce(words), move: (event) => this.handleKey(event) });
        return { stage, caption };
      });
      this.shownStages = { layout, list };
    }
    shown.forEach((one, i) => {
      const { stage, caption } = this.shownStages.list[i];
      const context = this.makeContext(one, stage);
      caption.textContent = one.model ? describeModel(one, text) : this.documents.map((each) => each.model.name).join(" → ");
      stage.show(view.build(context), `${text(`tab_${view.id}`)}: ${view.label(context)}`);
    });
    if (this.table.open) this.fillTable();
    this.animate();
    const wait = view.wait?.(lead);
    if (wait) this.timer = setTimeout(() => this.update(wait[1]), wait[0]);
  }

  // Redraw while the pictures say that something moves.
  animate() {
    cancelAnimationFrame(this.frame);
    const stages = this.shownStages.list.map((one) => one.stage);
    const end = performance.now() + Math.max(0, ...stages.map((stage) => stage.picture.duration ?? 0));
    const step = () => {
      stages.forEach((stage) => stage.draw());
      if (performance.now() < end) this.frame = requestAnimationFrame(step);
      else stages.forEach((stage) => stage.draw());
    };
    if (end > performance.now()) this.frame = requestAnimationFrame(step);
  }

  handleResize() {
    const width = Math.round(this.root.clientWidth);
    if (width === this.lastWidth) return;
    this.lastWidth = width;
    this.refresh({ redraw: true });
  }

  // Arrows move through layers and heads, with shift through the tokens.
  handleKey(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return false;
    const document = this.listShown()[0].compare?.[0] ?? this.listShown()[0];
    if (this.view.id === "objectives") {
      this.update({ step: Math.max(0, this.state.step + step[0] + step[1]), isPlaying: false });
      return true;
    }
    if (event.shiftKey || !["head", "model", "token", "difference"].includes(this.view.id)) {
      if (!["head", "token", "overview", "states", "neuron", "difference"].includes(this.view.id)) return false;
      this.update({ token: Math.max(0, this.state.token + step[0] + step[1]) });
    } else {
      if (!listKinds(document).length) return false;
      const { data, layer, head } = limitChoice({ document, state: this.state });
      this.update({ layer: Math.max(0, Math.min(data.layers - 1, layer + step[0])), head: Math.max(-1, Math.min(data.heads - 1, head + step[1])) });
    }
    this.announce(this.describeChoice(document));
    return true;
  }

  describeChoice(document) {
    if (!listKinds(document).length) return "";
    const { data, layer, head, token, measure } = limitChoice({ document, state: this.state });
    const row = data.readQuery(measure, layer, head, token);
    const best = row.indexOf(Math.max(...row));
    const name = head < 0 ? this.text("layer_mean", { layer: layer + 1 }) : this.text("layer_head", { layer: layer + 1, head: head + 1 });
    return `${name}: ${this.text("reads_most", { token: data.queries[token], other: data.keys[best] })}`;
  }

  announce(words) {
    this.live.textContent = words;
  }

  fillTable() {
    if (!this.table.open) return;
    const { view, text } = this;
    while (this.table.children.length > 1) this.table.lastChild.remove();
    const scroll = makeElement("div", { class: "fv-scroll", tabindex: "0", role: "region", "aria-label": text("data_table") });
    for (const one of this.listShown()) {
      const { caption, head, rows } = view.table(this.makeContext(one, null));
      const table = makeElement("table", {}, makeElement("caption", { text: this.documents.length > 1 && one.model ? `${one.model.name}: ${caption}` : caption }));
      table.append(makeElement("thead", {}, makeElement("tr", {}, ...head.map((words) => makeElement("th", { scope: "col", text: words })))));
      table.append(makeElement("tbody", {}, ...rows.slice(0, MOST_TABLE_ROWS).map((row) => makeElement("tr", {}, ...row.map((words) => makeElement("td", { text: words }))))));
      scroll.append(table);
      if (rows.length > MOST_TABLE_ROWS) scroll.append(makeElement("p", { class: "fv-soft", text: text("more_rows", { count: rows.length - MOST_TABLE_ROWS }) }));
    }
    this.table.append(scroll);
  }

  async save(kind) {
    const name = `${this.documents[0].model.name.replace(/[^\w.-]+/g, "-")}-${this.view.id}`;
    if (kind === "json") return downloadFile(`${name}.json`, JSON.stringify(this.document), "application/json");
    for (const [i, { stage }] of this.shownStages.list.entries()) {
      const part = this.shownStages.list.length > 1 ? `${name}-${i + 1}` : name;
      if (kind === "svg") downloadFile(`${part}.svg`, stage.exportSvg(this.palette), "image/svg+xml");
      else downloadFile(`${part}.png`, await stage.exportPng(this.palette), "image/png");
    }
  }
}

// A token in the middle says more about attention than the first one, which often has nothing to read. Of two sides, one
// of the first tokens of the target, so that its source is in sight.
function chooseFirstToken(document) {
  const first = document.compare?.[0] ?? document;
  const side = first.sides?.[first.prediction?.side] ?? Object.values(first.sides ?? {}).at(-1);
  if (!side) return 0;
  return Math.min(Math.floor(side.tokens.length / 2), Object.keys(first.sides).length > 1 ? 2 : Infinity);
}

export function describeModel({ model }, text) {
  const count = (name, number) => text(number === 1 ? `${name}_one` : name, { count: number });
  const parts = [model.name, model.family !== model.name ? model.family : null];
  if (model.kind === "convolution") parts.push(text("count_widths", { count: model.layers })); // they stand side by side
  else if (model.layers) parts.push(count("count_layers", model.layers));
  if (model.heads) parts.push(count("count_heads", model.heads));
  parts.push(text("count_dim", { count: model.dim }), text("count_parameters", { count: formatCount(model.parameters) }));
  return parts.filter(Boolean).join(" · ");
}

// The page's own switches: language and theme.
export function makeSwitches(text, language, { setLanguage, root }) {
  return makeElement("div", { class: "fv-switches" },
    makeSelect(text("language"), [["en", "English"], ["ko", "한국어"]], language, setLanguage),
    makeSelect(text("theme"), [["auto", text("theme_auto")], ["light", text("theme_light")], ["dark", text("theme_dark")]], root.dataset.theme ?? "auto", (theme) => {
      root.dataset.theme = theme;
      root.dispatchEvent(new CustomEvent("themechange"));
    }));
}

// A page of its own (view.html): a title, the switches, the viewer.
export function mountPage(root, document_, language = "en") {
  const page = document.documentElement;
  const begin = (lang) => {
    const text = makeTranslator(lang);
    page.lang = lang;
    const first = document_.compare?.[0] ?? document_;
    const title = document_.compare ? document_.compare.map((one) => one.model.name).join(" | ") : first.model.name;
    document.title = `${title} · formers`;
    const header = makeElement("header", { class: "fv-header" }, makeElement("h1", { text: title }), makeSwitches(text, lang, { root: page, setLanguage: begin }));
    const main = makeElement("main", {});
    window.formersViewer?.close();
    root.replaceChildren(header, main);
    window.formersViewer = new Viewer(main, document_, { language: lang, state: window.formersViewer?.state });
  };
  page.addEventListener("themechange", () => window.formersViewer.refresh());
  begin(language);
}
