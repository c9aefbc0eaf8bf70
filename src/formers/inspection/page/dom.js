// Small helpers for the page around the canvas.

// Make an element: attributes by name, `on…` listeners, `text`, and children.
export function makeElement(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function makeOption(value, words, selected) {
  return makeElement("option", { value, text: words, selected });
}

// A labelled select; `choose` gets the value.
export function makeSelect(label, options, value, choose) {
  const select = makeElement("select", { onchange: () => choose(select.value) });
  for (const [option, words] of options) select.append(makeOption(option, words, String(option) === String(value)));
  return makeElement("label", { class: "fv-field" }, makeElement("span", { text: label }), select);
}

const MOST_OPTIONS = 120;

// A choice of one token: a list, or in a long text its number with the word beside it, since a list of 512 is slow.
// `places` are the tokens that can be chosen.
export function makeTokenField(label, words, value, choose, places = words.map((_, i) => i)) {
  if (places.length <= MOST_OPTIONS) return makeSelect(label, places.map((i) => [i, `${i} ${words[i]}`]), value, (given) => choose(Number(given)));
  const nearest = (wanted) => places.reduce((best, i) => (Math.abs(i - wanted) < Math.abs(best - wanted) ? i : best), places[0]);
  const field = makeElement("input", { type: "number", min: places[0], max: places.at(-1), value, onchange: () => choose(nearest(Number(field.value))) });
  return makeElement("label", { class: "fv-field" }, makeElement("span", { text: label }), field, makeElement("output", { text: words[value] ?? "" }));
}

export function makeRange(label, { min, max, step, value, format = String }, choose) {
  const shown = makeElement("output", { text: format(value) });
  const range = makeElement("input", {
    type: "range", min, max, step, value,
    oninput: () => {
      shown.textContent = format(Number(range.value));
      choose(Number(range.value));
    },
  });
  return makeElement("label", { class: "fv-field" }, makeElement("span", { text: label }), range, shown);
}

export function makeButton(words, press, attributes = {}) {
  return makeElement("button", { type: "button", text: words, onclick: press, ...attributes });
}

export function downloadFile(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = makeElement("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Give a list of tabs its keyboard: one stop of the tab key, arrows move inside.
export function addRovingFocus(list, selector) {
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const items = [...list.querySelectorAll(selector)];
    const at = items.indexOf(document.activeElement);
    if (at < 0) return;
    let next = null;
    if (step) next = items[(at + step + items.length) % items.length];
    if (event.key === "Home") next = items[0];
    if (event.key === "End") next = items[items.length - 1];
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
}

export function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1000) return String(value);
  const size = Math.abs(value);
  return size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : size < 0.001 ? value.toExponential(1) : value.toFixed(size >= 100 ? 0 : size >= 10 ? Math.min(1, digits) : digits);
}

export function formatShare(value) {
  const percent = 100 * value;
  return percent >= 99.95 ? "100 %" : percent >= 10 ? `${percent.toFixed(0)} %` : percent >= 0.1 ? `${percent.toFixed(1)} %` : "< 0.1 %";
}

export function formatCount(value) {
  return Number(value).toLocaleString("en");
}
