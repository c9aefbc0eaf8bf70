// The whole way in one picture: text → tokens → layers → probabilities, with what the chosen token reads in each layer.

import { findLargest } from "./arrays.js";
import { getAttention, listKinds } from "./attention_data.js";
import { formatShare, makeSelect, makeTokenField } from "./dom.js";
import { fitText, measureWidth } from "./surfaces.js";
import { listTokens, showToken } from "./tokens.js";

const ROW = 58; // pixels a layer
const GAP = 96; // between the two sides of an encoder-decoder, for the names of the second one's layers

function listSides(document) {
  const order = ["source", "text", "target"].filter((side) => document.sides[side]);
  return order.length ? order : Object.keys(document.sides);
}

// What a side's tokens read: inside their own side, and on the other one.
function findKinds(document, side) {
  const kinds = listKinds(document);
  const isOf = (kind, keys) => document.attention[kind].queries === side && (document.attention[kind].keys === side) === keys;
  return { own: kinds.find((kind) => isOf(kind, true)), other: kinds.find((kind) => isOf(kind, false)) };
}

function layoutSides(context) {
  const { document, width } = context;
  const parts = [];
  let x = 88;
  const sides = listSides(document);
  const total = sides.reduce((sum, side) => sum + document.sides[side].tokens.length + (document.sides[side].memory ?? 0), 0);
  const column = Math.max(46, Math.min(104, (width - 110 - GAP * (sides.length - 1)) / total));
  for (const side of sides) {
    const kinds = findKinds(document, side);
    const memory = document.sides[side].memory ?? 0;
    const tokens = listTokens(document, side, memory);
    const own = kinds.own ? getAttention(document, kinds.own) : null;
    const other = kinds.other ? getAttention(document, kinds.other) : null;
    const isRecurrent = document.model.kind === "recurrent"; // its alignment belongs to no layer
    const layers = document.model.kind === "convolution" ? 1 : own || (other && !isRecurrent) ? Math.max(own?.layers ?? 0, other?.layers ?? 0) : document.model.layers || 1;
    parts.push({ side, tokens, memory, words: tokens.map(showToken), own, other, layers, x, column, width: tokens.length * column, y: 0 });
    x += tokens.length * column + GAP;
  }
  // The decoder stands below the encoder, so that what it reads there flows down.
  if (parts.length > 1 && parts.at(-1).other) parts.at(-1).y = parts[0].layers * ROW;
  return { parts, column, width: x - GAP + 16 };
}

function pickToken({ state, document }, parts) {
  const side = parts.find((part) => part.side === state.side) ?? parts.find((part) => part.side === document.prediction?.side) ?? parts[parts.length - 1];
  return { part: side, token: Math.min(state.token, side.tokens.length - side.memory - 1) };
}

export const overviewView = {
  id: "overview",
  has: () => true,
  controls(context) {
    const { text, state, update } = context;
    const { parts } = layoutSides(context);
    const { part, token } = pickToken(context, parts);
    const controls = [];
    if (parts.length > 1) controls.push(makeSelect(text("side"), parts.map((one) => [one.side, text(`side_${one.side}`)]), part.side, (side) => update({ side, token: 0 })));
    controls.push(makeTokenField(text("token"), part.words.slice(part.memory), token, (value) => update({ side: part.side, token: value })));
    const heads = Math.max(...parts.map((one) => Math.max(one.own?.heads ?? 0, one.other?.heads ?? 0)));
    if (heads > 1) controls.push(makeSelect(text("head"), [[-1, text("mean_of_heads")], ...Array.from({ length: heads }, (_, i) => [i, String(i + 1)])], Math.min(state.head, heads - 1), (value) => update({ head: Number(value) })));
    return controls;
  },
  explain: ({ text }) => text("explain_overview"),
  build(context) {
    const { document, palette, text, state, update } = context;
    const { parts, column, width } = layoutSides(context);
    const chosen = pickToken(context, parts);
    const prediction = document.prediction;
    const tokenTop = 74;
    const layerTop = tokenTop + 74;
    const deepest = Math.max(...parts.map((part) => part.y + part.layers * ROW));
    const probabilityTop = layerTop + deepest + 34;
    const centre = (part, index) => part.x + (index + 0.5) * column;
    const nodeY = (part, layer) => layerTop + part.y + layer * ROW;
    const source = parts[0];
    const shownSide = parts.find((part) => part.side === prediction?.side) ?? parts[parts.length - 1];
    const slots = new Map((prediction?.positions ?? []).map((position, i) => [position, i]));
    const nextSlot = shownSide.tokens.length - shownSide.memory - 1;
    const listTop = (position) => (prediction?.next && position === nextSlot ? prediction.next : prediction?.top?.[slots.get(position)]);
    const lens = new Map((prediction?.layers ?? []).map((layer) => [layer.layer, layer]));
    const readRow = (data, layer) => data.readQuery("weights", Math.min(layer, data.layers - 1), Math.min(state.head, data.heads - 1), chosen.token);

    function drawReads(surface, part, layer) {
      const index = chosen.token + part.memory;
      const to = [centre(part, index), nodeY(part, layer + 1)];
      const drawLines = (data, from, fromY, colour) => {
        const row = readRow(data, layer);
        const largest = findLargest(row) || 1;
        row.forEach((value, k) => {
          if (value < 0.01) return;
          surface.curve(centre(from, k), fromY, to[0], to[1] - 5, { stroke: colour, width: 0.6 + 5 * value, alpha: Math.min(1, 0.12 + (0.85 * value) / largest), upright: true });
        });
      };
      if (part.own && layer < part.own.layers) drawLines(part.own, part, nodeY(part, layer) + 5, palette.accent);
      if (part.other && (part.other.layers > 1 ? layer < part.other.layers : layer === part.layers - 1)) drawLines(part.other, source, nodeY(source, source.layers) + 5, "#c76a00");
    }

    return {
      width: Math.max(width, 320), height: probabilityTop + (prediction ? (prediction.labels ? 30 + prediction.labels.length * 22 : 86) : 6),
      selectedPlace: { x: centre(chosen.part, chosen.token + chosen.part.memory) - column / 2, width: column },
      draw(surface, view, hover) {
        for (const part of parts) {
          const first = Math.max(0, Math.floor((view.x - part.x) / column) - 1);
          const last = Math.min(part.tokens.length, Math.ceil((view.x + view.width - part.x) / column) + 1);
          if (parts.length > 1) surface.text(part.x, part.y + 14, text(`side_${part.side}`), { size: 11, fill: palette.soft });
          const running = document.sides[part.side].text ?? "";
          surface.clip(part.x, part.y + 18, Math.max(column, part.width), 26, () => {
            const x = Math.max(part.x, Math.min(view.x + 88, part.x + part.width - measureWidth(running.slice(0, 400), 15)));
            surface.text(Math.max(part.x, x), part.y + 36, running.replace(/\n/g, " ⏎ ").slice(0, 400), { size: 15, fill: palette.ink });
          });
          for (let i = first; i < last; i++) {
            const x = part.x + i * column;
            const y0 = part.y + tokenTop;
            const isChosen = part === chosen.part && i === chosen.token + part.memory;
            const isHovered = hover?.side === part.side && hover.token === i;
            const token = part.tokens[i];
            surface.line([[centre(part, i), part.y + 46], [centre(part, i), y0]], { stroke: palette.line });
            surface.rect(x + 2, y0, column - 4, 26, { fill: token.remembered ? palette.wash : palette.paper, stroke: isChosen ? palette.accent : isHovered ? palette.ink : palette.line, line: isChosen ? 2.5 : 1, radius: 4 });
            surface.text(x + column / 2, y0 + 18, fitText(part.words[i], column - 8, 13), { size: 13, fill: token.special || token.remembered ? palette.soft : palette.ink, anchor: "middle", weight: isChosen ? 700 : 400 });
            if (token.id >= 0 && column > 40) surface.text(x + column / 2, y0 + 40, String(token.id), { size: 10, fill: palette.soft, anchor: "middle" });
            surface.line([[centre(part, i), y0 + 46], [centre(part, i), nodeY(part, part.layers)]], { stroke: palette.line });
            for (let layer = 0; layer <= part.layers; layer++) {
              const y = nodeY(part, layer);
              surface.circle(centre(part, i), y, isChosen ? 6 : 4, { fill: isChosen ? palette.accent : palette.paper, stroke: isChosen ? palette.accent : palette.soft });
              const at = part === shownSide && !token.remembered ? slots.get(i - part.memory) : undefined;
              const guess = at === undefined || layer === 0 || layer === part.layers ? null : lens.get(layer)?.top[at]?.[0];
              if (guess && column >= 48) surface.text(centre(part, i) + 8, y - 6, fitText(showToken({ text: guess.text }), column - 18, 11), { size: 11, fill: isChosen ? palette.accent : palette.soft });
            }
          }
          if (document.model.kind === "recurrent" && !part.own) {
            for (let layer = 1; layer <= part.layers; layer++) {
              for (let i = Math.max(first, 1); i < last; i++) surface.line([[centre(part, i - 1) + 5, nodeY(part, layer)], [centre(part, i) - 5, nodeY(part, layer)]], { stroke: palette.soft, alpha: 0.6 });
            }
          }
          if (part === chosen.part) for (let layer = 0; layer < part.layers; layer++) drawReads(surface, part, layer);
        }
        if (prediction && !prediction.labels) {
          const first = Math.max(0, Math.floor((view.x - shownSide.x) / column) - 1);
          const last = Math.min(shownSide.tokens.length, Math.ceil((view.x + view.width - shownSide.x) / column) + 1);
          for (let i = Math.max(first, shownSide.memory); i < last; i++) {
            const top = listTop(i - shownSide.memory);
            const x = shownSide.x + i * column;
            if (nodeY(shownSide, shownSide.layers) < probabilityTop - 34) surface.line([[centre(shownSide, i), nodeY(shownSide, shownSide.layers)], [centre(shownSide, i), probabilityTop - 10]], { stroke: palette.line });
            (top ?? []).slice(0, 3).forEach((one, r) => {
              const y = probabilityTop + r * 25;
              surface.rect(x + 3, y + 14, column - 6, 5, { fill: palette.wash });
              surface.rect(x + 3, y + 14, Math.max(1, (column - 6) * one.p), 5, { fill: palette.accent });
              surface.text(x + 4, y + 10, fitText(showToken({ text: one.text }), column - 8, 12), { size: 12, fill: r ? palette.soft : palette.ink });
            });
          }
        }
        if (prediction?.labels) {
          const x = Math.max(parts[0].x, view.x + 88); // labels belong to the whole text: they stay in sight
          prediction.labels.forEach((one, r) => {
            const y = probabilityTop + r * 22;
            surface.text(x + 120, y + 13, fitText(one.text, 110, 13), { size: 13, fill: palette.ink, anchor: "end" });
            surface.rect(x + 128, y + 3, 220, 12, { fill: palette.wash });
            surface.rect(x + 128, y + 3, 220 * one.p, 12, { fill: palette.accent });
            surface.text(x + 356, y + 13, formatShare(one.p), { size: 12, fill: palette.soft });
          });
        }
        surface.rect(view.x, view.y, 82, view.height, { fill: palette.paper });
        const writeName = (x, y, words) => {
          const shown = fitText(words, 76, 11);
          const room = measureWidth(shown, 11);
          surface.rect(x - room - 3, y - 10, room + 6, 14, { fill: palette.paper }); // lines may cross this place
          surface.text(x, y, shown, { size: 11, fill: palette.soft, anchor: "end" });
        };
        parts.forEach((part, i) => {
          if (i && !part.y) return;
          if (!i && parts.length > 1 && parts[1].y && view.x + 82 > part.x + part.width) return; // scrolled out of sight
          const x = i ? Math.max(part.x - 12, view.x + 74) : view.x + 74;
          writeName(x, part.y + 36, text("stage_text"));
          writeName(x, part.y + tokenTop + 18, text("stage_tokens"));
          writeName(x, nodeY(part, 0) + 4, text("embeddings_short"));
          for (let layer = 1; layer <= part.layers; layer++) writeName(x, nodeY(part, layer) + 4, document.model.kind === "convolution" ? text("stage_filters") : text("layer_n", { layer }));
        });
        if (prediction) writeName(shownSide.y ? Math.max(shownSide.x - 12, view.x + 74) : view.x + 74, probabilityTop + 10, text("stage_probabilities"));
      },
      pick(x, y) {
        for (const part of parts) {
          const i = Math.floor((x - part.x) / column);
          if (i >= 0 && i < part.tokens.length && y > part.y + tokenTop - 20) return { side: part.side, token: i, layer: Math.max(0, Math.min(part.layers, Math.round((y - part.y - layerTop) / ROW))) };
        }
        return null;
      },
      describe(hit) {
        const part = parts.find((one) => one.side === hit.side);
        const slot = slots.get(hit.token - part.memory);
        const guess = part === shownSide && hit.layer > 0 ? lens.get(hit.layer)?.top[slot] : null;
        const top = part === shownSide ? listTop(hit.token - part.memory) : null;
        const best = (list) => list.slice(0, 3).map((one) => `${showToken({ text: one.text })} ${formatShare(one.p)}`).join(", ");
        return [`${part.words[hit.token]} (${hit.token - part.memory})`, guess ? `${text("layer_n", { layer: hit.layer })}: ${best(guess)}` : null, !guess && top ? best(top) : null].filter(Boolean).join(" · ");
      },
      choose(hit) {
        const part = parts.find((one) => one.side === hit.side);
        if (hit.token >= part.memory) update({ side: hit.side, token: hit.token - part.memory });
      },
    };
  },
  table(context) {
    const { document, text } = context;
    const rows = listSides(document).flatMap((side) => listTokens(document, side).map((token, i) => [text(`side_${side}`), String(i), showToken(token), token.piece ?? "", token.id >= 0 ? String(token.id) : "–"]));
    return { caption: text("stage_tokens"), head: [text("side"), text("position"), text("token"), text("piece"), "id"], rows };
  },
  label: (context) => context.text("tab_overview"),
};
