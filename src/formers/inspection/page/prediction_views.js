// Predictions: probability and surprisal of each token, and what each layer would predict.

import { formatNumber, formatShare, makeButton, makeTokenField } from "./dom.js";
import { drawBars, drawLegend } from "./pictures.js";
import { fitText } from "./surfaces.js";
import { drawToken, findBox, isVisible, layoutFlow, listTokens, showToken } from "./tokens.js";

function readPrediction(document) {
  const part = document.prediction;
  const tokens = listTokens(document, part.side ?? Object.keys(document.sides)[0]);
  const slots = new Map((part.targets ?? part.positions ?? []).map((target, i) => [target, i]));
  return { part, tokens, words: tokens.map(showToken), slots };
}

function showWords(text) {
  return showToken({ text });
}

function listTop(top) {
  return top.map((one) => ({ words: showWords(one.text), value: one.p, note: formatShare(one.p) }));
}

const HIGHEST_SURPRISAL = 12; // bits at which the colour is full

// Labels of each token (a tagger), not of the whole text.
function hasTags(part) {
  return part.method === "labels" && !part.labels;
}

export const predictionView = {
  id: "prediction",
  has: (document) => Boolean(document.prediction),
  controls(context) {
    const { words, slots, part } = readPrediction(context.document);
    if (part.labels) return [];
    const places = [...slots.keys()];
    const choose = (target) => context.update({ target });
    const chosen = pickTarget(context, slots, part);
    const field = makeTokenField(context.text("token"), words, chosen, choose, places);
    return part.next ? [field, makeButton(context.text("next_token"), () => choose(-1), { "aria-pressed": String(chosen < 0) })] : [field];
  },
  explain: ({ text, document }) => (hasTags(document.prediction) ? text("explain_tags") : text(`explain_prediction_${document.prediction.method ?? "causal"}`)),
  build(context) {
    const { palette, text, update } = context;
    const { part, words, slots } = readPrediction(context.document);
    if (part.labels) return makeLabelsPicture(context, part.labels);
    const target = pickTarget(context, slots, part);
    const surprisal = part.surprisal ?? null;
    const shown = part.next ? [...words, "?"] : words;
    const flow = layoutFlow(shown, context.width - 16, { left: 8, top: 32, height: 34, gap: 4 });
    const listTopAt = 32 + flow.height + 54;
    const top = target < 0 ? part.next : part.top[slots.get(target)];
    return {
      width: context.width, height: listTopAt + top.length * 22 + 14,
      draw(surface, view, hover) {
        if (surprisal) drawLegend(surface, 8, 8, { palette, low: `0 ${text("bits")}`, high: `${HIGHEST_SURPRISAL}+ ${text("bits")}`, title: text("surprisal") });
        flow.boxes.forEach((box, i) => {
          if (!isVisible(box, view)) return;
          const slot = slots.get(i);
          const value = slot === undefined ? null : surprisal ? surprisal[slot] : (1 - part.top[slot][0].p) * HIGHEST_SURPRISAL;
          const fill = value === null ? palette.paper : palette.pickShare(Math.min(0.85, value / HIGHEST_SURPRISAL));
          const isChosen = i === target || (target < 0 && i === words.length);
          drawToken(surface, { ...box, height: 26 }, { fill, ink: value === null ? palette.soft : palette.pickInk(fill), stroke: isChosen ? palette.accent : hover?.token === i ? palette.ink : palette.line, line: isChosen ? 2.5 : 1 });
          if (slot !== undefined && part.probability) {
            surface.rect(box.x, box.y + 29, box.width, 4, { fill: palette.wash });
            surface.rect(box.x, box.y + 29, box.width * part.probability[slot], 4, { fill: palette.accent });
          }
        });
        const actual = target < 0 ? null : words[target];
        const title = target < 0 ? text("next_title") : hasTags(part) ? text("tags_title", { token: actual, position: target }) : text("top_title", { token: actual, position: target });
        surface.text(8, listTopAt - 28, title, { size: 13, fill: palette.ink, weight: 600 });
        if (target >= 0 && part.probability) {
          const slot = slots.get(target);
          surface.text(8, listTopAt - 10, text("own_probability", { p: formatShare(part.probability[slot]), bits: formatNumber(surprisal[slot], 2) }), { size: 12, fill: palette.soft });
        }
        drawBars(surface, { x: 8, y: listTopAt, width: Math.min(560, context.width - 24) }, listTop(top), { palette, marked: top.findIndex((one) => showWords(one.text) === actual) });
      },
      pick(x, y) {
        const token = findBox(flow.boxes, x, y);
        return token >= 0 ? { token } : null;
      },
      describe({ token }) {
        if (token === words.length) return text("next_title");
        const slot = slots.get(token);
        if (slot === undefined) return `${words[token]} (${token}): ${text("not_predicted")}`;
        const own = part.probability ? ` ${formatShare(part.probability[slot])}, ${formatNumber(surprisal[slot], 2)} ${text("bits")}` : "";
        return `${words[token]} (${token}):${own} · ${part.top[slot].slice(0, 3).map((one) => `${showWords(one.text)} ${formatShare(one.p)}`).join(", ")}`;
      },
      choose({ token }) {
        if (token === words.length) update({ target: -1 });
        else if (slots.has(token)) update({ target: token });
      },
    };
  },
  table(context) {
    const { text } = context;
    const { part, words, slots } = readPrediction(context.document);
    if (part.labels) return { caption: text("tab_prediction"), head: [text("label"), text("probability")], rows: part.labels.map((one) => [one.text, formatShare(one.p)]) };
    const rows = [...slots].map(([target, slot]) => [String(target), words[target], part.probability ? formatShare(part.probability[slot]) : "–", formatNumber(part.surprisal?.[slot], 2), part.top[slot].slice(0, 3).map((one) => `${showWords(one.text)} ${formatShare(one.p)}`).join(", ")]);
    return { caption: text("tab_prediction"), head: [text("position"), text("token"), text("probability"), `${text("surprisal")} (${text("bits")})`, text("most_probable")], rows };
  },
  label: (context) => context.text("tab_prediction"),
};

function pickTarget({ state }, slots, part) {
  if (slots.has(state.target)) return state.target;
  if (state.target < 0 && part.next) return -1;
  return part.next && state.target === undefined ? -1 : slots.keys().next().value ?? -1;
}

function makeLabelsPicture({ palette, text, width }, labels) {
  const items = labels.map((one) => ({ words: one.text, value: one.p, note: formatShare(one.p) }));
  return {
    width, height: 44 + items.length * 24,
    draw(surface) {
      surface.text(8, 22, text("labels_title"), { size: 13, fill: palette.ink, weight: 600 });
      drawBars(surface, { x: 8, y: 36, width: Math.min(620, width - 24) }, items, { palette, row: 24, labelWidth: 150 });
    },
  };
}

// Layers × positions: the token that the model's own head reads off each layer.
export const layersView = {
  id: "layers",
  has: (document) => (document.prediction?.layers ?? []).length > 0,
  controls: () => [],
  explain: ({ text }) => text("explain_layers"),
  build(context) {
    const { palette, text } = context;
    const { part, words } = readPrediction(context.document);
    const layers = [...part.layers].reverse();
    const column = 84;
    const row = 34;
    const left = 96;
    const top = 58;
    const count = part.positions.length;
    return {
      width: left + count * column + 12, height: top + layers.length * row + 20,
      draw(surface, view, hover) {
        const first = Math.max(0, Math.floor((view.x - left) / column));
        const last = Math.min(count, Math.ceil((view.x + view.width - left) / column) + 1);
        surface.clip(view.x + left, view.y + top - 2, Math.max(0, view.width - left), Math.max(0, view.height - top + 2), () => {
          layers.forEach((layer, r) => {
            const y = top + r * row;
            for (let i = first; i < last; i++) {
              const best = layer.top[i][0];
              const fill = palette.pickShare(Math.sqrt(best.p) * 0.9);
              const x = left + i * column;
              surface.rect(x + 1, y + 1, column - 2, row - 2, { fill, radius: 3 });
              if (layer.changed?.[i]) surface.rect(x + 2, y + 2, column - 4, row - 4, { stroke: "#d98324", radius: 3, line: 2 });
              if (hover?.column === i && hover?.row === r) surface.rect(x + 1, y + 1, column - 2, row - 2, { stroke: palette.ink, radius: 3, line: 1.5 });
              surface.text(x + column / 2, y + 15, fitText(showWords(best.text), column - 10, 13), { size: 13, fill: palette.pickInk(fill), anchor: "middle" });
              surface.text(x + column / 2, y + 28, formatShare(best.p), { size: 10, fill: palette.pickInk(fill), anchor: "middle" });
            }
          });
        });
        surface.rect(view.x, view.y, view.width, top - 2, { fill: palette.paper });
        surface.rect(view.x, view.y, left - 2, view.height, { fill: palette.paper });
        surface.clip(view.x + left, view.y, Math.max(0, view.width - left), top, () => {
          for (let i = first; i < last; i++) {
            const x = left + (i + 0.5) * column;
            const isMasked = part.targets[i] === part.positions[i];
            surface.text(x, view.y + 18, isMasked ? "" : fitText(words[part.positions[i]], column - 8, 12), { size: 12, fill: palette.soft, anchor: "middle" });
            surface.text(x, view.y + 36, (isMasked ? "" : "→ ") + fitText(words[part.targets[i]], column - 20, 13), { size: 13, fill: hover?.column === i ? palette.accent : palette.ink, anchor: "middle", weight: 600 });
          }
        });
        surface.text(view.x + 8, view.y + 36, text("actual_token"), { size: 11, fill: palette.soft });
        surface.clip(view.x, view.y + top, left, Math.max(0, view.height - top), () => {
          layers.forEach((layer, r) => {
            const name = layer.layer === 0 ? text("embeddings") : text("layer_n", { layer: layer.layer });
            surface.text(view.x + left - 10, top + r * row + row / 2 + 4, name, { size: 12, fill: hover?.row === r ? palette.accent : palette.soft, anchor: "end" });
          });
        });
      },
      pick(x, y) {
        const i = Math.floor((x - left) / column);
        const r = Math.floor((y - top) / row);
        return i >= 0 && i < count && r >= 0 && r < layers.length ? { row: r, column: i } : null;
      },
      describe(hit) {
        const layer = layers[hit.row];
        const best = layer.top[hit.column].slice(0, 4).map((one) => `${showWords(one.text)} ${formatShare(one.p)}`).join(", ");
        return `${best} · ${text("of_actual", { token: words[part.targets[hit.column]], p: formatShare(layer.probability[hit.column]) })} · ${text("kl_bits", { value: formatNumber(layer.kl_to_final[hit.column], 2) })}`;
      },
      choose: (hit) => context.update({ target: part.targets[hit.column], view: "prediction" }),
    };
  },
  table(context) {
    const { text } = context;
    const { part, words } = readPrediction(context.document);
    const head = [text("token"), ...part.layers.map((layer) => (layer.layer === 0 ? text("embeddings") : text("layer_n", { layer: layer.layer })))];
    const rows = part.targets.map((target, i) => [words[target], ...part.layers.map((layer) => `${showWords(layer.top[i][0].text)} ${formatShare(layer.top[i][0].p)}`)]);
    return { caption: text("tab_layers"), head, rows };
  },
  label: (context) => context.text("tab_layers"),
};
