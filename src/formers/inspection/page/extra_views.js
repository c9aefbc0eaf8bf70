// What only some families have: TextCNN's n-grams, ELMo's layer mix, Switch's routing, position maps; and what changed
// between two documents.

import { decodeArray, findExtent } from "./arrays.js";
import { getAttention, listKinds } from "./attention_data.js";
import { limitChoice, makeAttentionControls } from "./attention_views.js";
import { CATEGORIES } from "./colours.js";
import { formatNumber, formatShare, makeSelect } from "./dom.js";
import { drawBars, drawChart, makeMatrixPicture } from "./pictures.js";
import { fitText, shiftSurface } from "./surfaces.js";
import { layoutFlow, listTokens, showToken } from "./tokens.js";

export const ngramsView = {
  id: "ngrams",
  has: (document) => (document.extra?.ngrams ?? []).length > 0,
  controls: () => [],
  explain: ({ text }) => text("explain_ngrams"),
  build(context) {
    const { document, palette, width, text } = context;
    const ngrams = document.extra.ngrams;
    const words = listTokens(document, Object.keys(document.sides)[0]).map(showToken);
    const flow = layoutFlow(words, width - 16, { left: 8, top: 10 });
    const top = flow.height + 52;
    const row = 26;
    const largest = Math.max(...ngrams.map((one) => one.score), 0) || 1;
    return {
      width, height: top + ngrams.length * row + 12,
      draw(surface, view, hover) {
        const marked = ngrams[hover?.row ?? -1];
        flow.boxes.forEach((box, i) => {
          const isMarked = marked && i >= marked.first && i <= marked.last;
          surface.rect(box.x, box.y, box.width, box.height, { fill: isMarked ? palette.pickShare(0.25) : palette.paper, stroke: isMarked ? palette.accent : palette.line, radius: 4 });
          surface.text(box.x + box.width / 2, box.y + 18, box.words, { size: 14, fill: palette.ink, anchor: "middle" });
        });
        surface.text(8, top - 10, text("ngrams_head"), { size: 12, fill: palette.soft });
        drawBars(surface, { x: 8, y: top, width: Math.min(760, width - 24) }, ngrams.map((one) => ({
          words: `${one.text}`, value: one.score, note: one.contribution == null ? formatNumber(one.score, 2) : `${formatNumber(one.score, 2)} / ${formatNumber(one.contribution, 2)}`,
        })), { palette, largest, row, labelWidth: 240, noteWidth: 96, marked: hover?.row ?? -1 });
      },
      pick: (x, y) => (y >= top && y < top + ngrams.length * row ? { row: Math.floor((y - top) / row) } : null),
      describe: (hit) => `${ngrams[hit.row].text} · ${text("filter_of_width", { filter: ngrams[hit.row].filter, width: ngrams[hit.row].width })} · ${formatNumber(ngrams[hit.row].score, 3)}`,
    };
  },
  table: ({ document, text }) => ({
    caption: text("tab_ngrams"), head: ["n-gram", text("filter"), text("score"), text("contribution")],
    rows: document.extra.ngrams.map((one) => [one.text, `${one.filter} (${one.width})`, formatNumber(one.score), formatNumber(one.contribution)]),
  }),
  label: (context) => context.text("tab_ngrams"),
};

export const mixView = {
  id: "mix",
  has: (document) => (document.extra?.mix ?? []).length > 0,
  controls: () => [],
  explain: ({ text }) => text("explain_mix"),
  build({ document, palette, width, text }) {
    const mix = document.extra.mix;
    return {
      width, height: 30 + mix.length * 30,
      draw(surface) {
        drawBars(surface, { x: 8, y: 12, width: Math.min(640, width - 24) }, mix.map((one) => ({ words: one.layer === 0 ? text("embeddings") : text("layer_n", { layer: one.layer }), value: one.weight, note: formatNumber(one.weight) })), { palette, row: 30, labelWidth: 130 });
      },
    };
  },
  table: ({ document, text }) => ({ caption: text("tab_mix"), head: [text("layer"), text("weight")], rows: document.extra.mix.map((one) => [String(one.layer), formatNumber(one.weight)]) }),
  label: (context) => context.text("tab_mix"),
};

export const routingView = {
  id: "routing",
  has: (document) => (document.extra?.routing ?? []).length > 0,
  controls: () => [],
  explain: ({ text }) => text("explain_routing"),
  build(context) {
    const { document, palette, text } = context;
    const layers = document.extra.routing;
    const column = 46;
    const row = 30;
    const left = 130;
    const groups = [...new Set(layers.map((one) => one.side))].map((side) => ({ side, words: listTokens(document, side).map(showToken), layers: layers.filter((one) => one.side === side) }));
    let y = 8;
    for (const group of groups) {
      group.y = y;
      y += 34 + group.layers.length * row + 22;
    }
    return {
      width: left + Math.max(...groups.map((group) => group.words.length)) * column + 12, height: y,
      draw(surface, view, hover) {
        for (const [g, group] of groups.entries()) {
          const first = Math.max(0, Math.floor((view.x - left) / column));
          const last = Math.min(group.words.length, Math.ceil((view.x + view.width - left) / column) + 1);
          for (let i = first; i < last; i++) surface.text(left + (i + 0.5) * column, group.y + 22, fitText(group.words[i], column - 4, 12), { size: 12, fill: palette.ink, anchor: "middle" });
          group.layers.forEach((layer, r) => {
            for (let i = first; i < last; i++) {
              const box = { x: left + i * column + 1, y: group.y + 34 + r * row, width: column - 2, height: row - 3 };
              const colour = CATEGORIES[layer.expert[i] % CATEGORIES.length];
              const isHovered = hover?.group === g && hover.row === r && hover.token === i;
              if (layer.dropped[i]) surface.rect(box.x, box.y, box.width, box.height, { stroke: palette.soft, radius: 3 });
              else surface.rect(box.x, box.y, box.width, box.height, { fill: colour, alpha: 0.25 + 0.75 * layer.probability[i], radius: 3 });
              if (isHovered) surface.rect(box.x, box.y, box.width, box.height, { stroke: palette.ink, radius: 3, line: 2 });
              const onDark = !layer.dropped[i] && layer.probability[i] > 0.5;
              surface.text(box.x + box.width / 2, box.y + 18, layer.dropped[i] ? "×" : String(layer.expert[i] + 1), { size: 13, fill: onDark ? "#ffffff" : palette.ink, anchor: "middle", weight: 600 });
            }
          });
          surface.rect(view.x, group.y, left - 4, 34 + group.layers.length * row, { fill: palette.paper });
          surface.text(view.x + 8, group.y + 22, text(`side_${group.side}`), { size: 12, fill: palette.ink, weight: 600 });
          group.layers.forEach((layer, r) => surface.text(view.x + left - 12, group.y + 34 + r * row + 18, text("layer_n", { layer: layer.layer + 1 }), { size: 12, fill: palette.soft, anchor: "end" }));
        }
      },
      pick(x, py) {
        for (const [g, group] of groups.entries()) {
          const r = Math.floor((py - group.y - 34) / row);
          const token = Math.floor((x - left) / column);
          if (r >= 0 && r < group.layers.length && token >= 0 && token < group.words.length) return { group: g, row: r, token };
        }
        return null;
      },
      describe(hit) {
        const layer = groups[hit.group].layers[hit.row];
        const share = formatShare(layer.probability[hit.token]);
        return `${groups[hit.group].words[hit.token]}: ${layer.dropped[hit.token] ? text("dropped_expert", { expert: layer.expert[hit.token] + 1 }) : text("chosen_expert", { expert: layer.expert[hit.token] + 1, count: layer.experts })} ${share}`;
      },
    };
  },
  table({ document, text }) {
    const rows = document.extra.routing.flatMap((layer) => listTokens(document, layer.side).map((token, i) => [text(`side_${layer.side}`), String(layer.layer + 1), showToken(token), String(layer.expert[i] + 1), formatShare(layer.probability[i]), layer.dropped[i] ? "×" : ""]));
    return { caption: text("tab_routing"), head: [text("side"), text("layer"), text("token"), text("expert"), text("probability"), text("dropped")], rows };
  },
  label: (context) => context.text("tab_routing"),
};

const maps = new WeakMap();

function readMap({ document, state }) {
  const at = Math.min(state.map, document.extra.positions.length - 1);
  const part = document.extra.positions[at];
  if (!maps.has(part)) maps.set(part, decodeArray(part.values));
  return { at, part, values: maps.get(part) };
}

export const positionsView = {
  id: "positions",
  has: (document) => (document.extra?.positions ?? []).length > 0,
  controls(context) {
    const { document, text, state, update } = context;
    const { at, values, part } = readMap(context);
    const controls = [];
    if (document.extra.positions.length > 1) controls.push(makeSelect(text("map"), document.extra.positions.map((one, i) => [i, `${text(`map_${one.name}`)} (${text(`side_${one.side}`)})`]), at, (value) => update({ map: Number(value) })));
    if (part.kind !== "similarity" && values.shape[0] > 1) controls.push(makeSelect(text("layer"), Array.from({ length: values.shape[0] }, (_, i) => [i, String(i + 1)]), Math.min(state.layer, values.shape[0] - 1), (value) => update({ layer: Number(value) })));
    return controls;
  },
  explain: ({ text, ...context }) => text(`explain_positions_${readMap(context).part.kind}`),
  build(context) {
    const { palette, text, state, width } = context;
    const { part, values } = readMap(context);
    if (part.kind === "similarity") {
      const names = Array.from({ length: values.columns }, (_, i) => String(i));
      const matrix = values.readMatrix(0);
      return makeMatrixPicture({ values: matrix, rows: names, columns: names, palette, width: Math.min(width, 640), signed: true, largest: 1, rowTitle: text("position"), columnTitle: text("position") });
    }
    const heads = values.shape[values.shape.length - 2];
    const layer = Math.min(state.layer, values.shape[0] - 1);
    const series = Array.from({ length: heads }, (_, h) => ({ name: `${text("head")} ${h + 1}`, colour: CATEGORIES[h % CATEGORIES.length], points: Array.from(values.readRow(layer * heads + h), (value, i) => [part.distances[i], value]) }));
    const matrix = makeMatrixPicture({
      values: values.shape.length === 3 ? values.readMatrix(layer) : values.readMatrix(0), rows: series.map((one) => one.name), columns: part.distances.map(String),
      palette, width, signed: true, cellHeight: 22, largestCell: 20, columnTitle: text("distance_axis"), isNumeric: true,
    });
    const shown = series.length > 6 ? [series[0], series[Math.floor(heads / 3)], series[Math.floor((2 * heads) / 3)], series[heads - 1]] : series;
    return {
      ...matrix, width: Math.max(matrix.width, Math.min(width, 640)), height: matrix.height + 240,
      draw(surface, view, hover) {
        drawChart(surface, { x: 8, y: 4, width: Math.min(width, 640) - 16, height: 220 }, { series: shown, palette, title: text(`map_${part.name}`), xTitle: text("distance_axis") });
        const shifted = { x: view.x, y: 0, width: view.width, height: matrix.height };
        matrix.draw(shiftSurface(surface, 0, 236), shifted, hover);
      },
      pick: (x, y) => matrix.pick(x, y - 236),
    };
  },
  table(context) {
    const { text } = context;
    const { part, values } = readMap(context);
    const head = part.kind === "similarity" ? [text("position"), ...Array.from({ length: Math.min(16, values.columns) }, (_, i) => String(i))] : [text("head"), ...part.distances.slice(0, 32).map(String)];
    const rows = Array.from({ length: Math.min(64, values.rows) }, (_, r) => [String(r + 1), ...Array.from(values.readRow(r).subarray(0, head.length - 1), (value) => formatNumber(value, 2))]);
    return { caption: text(`map_${part.name}`), head, rows };
  },
  label: (context) => context.text("tab_positions"),
};

// Two documents that have the same tokens: what one head's weights gained or lost.
export const differenceView = {
  id: "difference",
  isShared: true,
  has: ({ compare }) => Boolean(compare) && listCommonKinds(compare).length > 0,
  controls: (context) => makeAttentionControls({ ...context, document: context.document.compare[0] }),
  explain: ({ text }) => text("explain_difference"),
  build(context) {
    const [first, second] = context.document.compare;
    const chosen = limitChoice({ ...context, document: first });
    const { data, measure, layer, head } = chosen;
    const other = getAttention(second, chosen.kind);
    const before = data.readMatrix(measure, layer, head);
    const after = other.readMatrix(measure, Math.min(layer, other.layers - 1), Math.min(head, other.heads - 1));
    const values = before.map((value, i) => after[i] - value);
    return makeMatrixPicture({
      values, signed: true, rows: data.queries, columns: data.keys, palette: context.palette, width: context.width, zoom: context.state.zoom, selected: chosen.token,
      rowTitle: context.text("reads"), columnTitle: context.text("is_read"), largest: Math.max(0.05, findExtent(values)), choose: (hit) => context.update({ token: hit.row }),
    });
  },
  table(context) {
    const [first, second] = context.document.compare;
    const { data, measure, layer, head, kind } = limitChoice({ ...context, document: first });
    const other = getAttention(second, kind);
    const after = other.readMatrix(measure, Math.min(layer, other.layers - 1), Math.min(head, other.heads - 1));
    const before = data.readMatrix(measure, layer, head);
    const rows = data.queries.map((word, q) => {
      let best = 0;
      for (let k = 0; k < data.keys.length; k++) if (Math.abs(after[q * data.keys.length + k] - before[q * data.keys.length + k]) > Math.abs(after[q * data.keys.length + best] - before[q * data.keys.length + best])) best = k;
      return [word, data.keys[best], formatNumber(after[q * data.keys.length + best] - before[q * data.keys.length + best])];
    });
    return { caption: context.text("tab_difference"), head: [context.text("reads"), context.text("is_read"), context.text("change")], rows };
  },
  label: (context) => context.text("tab_difference"),
};

function listCommonKinds([first, second]) {
  return listKinds(first).filter((kind) => {
    if (!second.attention?.[kind]) return false;
    const [a, b] = [getAttention(first, kind), getAttention(second, kind)];
    return a.queries.length === b.queries.length && a.keys.length === b.keys.length;
  });
}

// What an edit changed: how far each common token's state moved, layer by layer, and its surprisal.
export const changesView = {
  id: "changes",
  isShared: true,
  has: (document) => Boolean(document.compare && document.changes?.pairs?.length && (document.changes.cosine || document.changes.surprisal)),
  controls: () => [],
  explain: ({ text }) => text("explain_changes"),
  build(context) {
    const { document, palette, text, width } = context;
    const { pairs, cosine, surprisal, side } = document.changes;
    const words = pairs.map(([i]) => showToken(listTokens(document.compare[0], side)[i]));
    const parts = [];
    let y = 0;
    const add = (title, values, rows) => {
      const picture = makeMatrixPicture({ values, rows, columns: words, palette, width, signed: true, cellHeight: 24, largestCell: 60 });
      parts.push({ title, picture, y: y + 26 });
      y += picture.height + 34;
    };
    if (cosine) add(text("changes_states"), Float32Array.from(cosine.flat(), (value) => value - 1), cosine.map((_, l) => (l === 0 ? text("embeddings") : text("layer_n", { layer: l }))));
    if (surprisal) add(text("changes_surprisal"), Float32Array.from(surprisal), [text("surprisal")]);
    return {
      width: Math.max(...parts.map((part) => part.picture.width)), height: y + 8,
      draw(surface, view, hover) {
        parts.forEach((part, p) => {
          surface.text(view.x + 8, part.y - 8, part.title, { size: 13, fill: palette.ink, weight: 600 });
          part.picture.draw(shiftSurface(surface, 0, part.y), { x: view.x, y: 0, width: view.width, height: part.picture.height }, hover?.part === p ? hover : null);
        });
      },
      pick(x, py) {
        for (const [part, one] of parts.entries()) {
          const hit = one.picture.pick(x, py - one.y);
          if (hit) return { part, ...hit };
        }
        return null;
      },
      describe: (hit) => parts[hit.part].picture.describe(hit),
    };
  },
  table(context) {
    const { document, text } = context;
    const { pairs, cosine, surprisal, side } = document.changes;
    const words = listTokens(document.compare[0], side).map(showToken);
    return { caption: text("tab_changes"), head: [text("token"), text("changes_last_layer"), text("changes_surprisal")], rows: pairs.map(([i], p) => [words[i], formatNumber(cosine?.[cosine.length - 1]?.[p]), formatNumber(surprisal?.[p])]) };
  },
  label: (context) => context.text("tab_changes"),
};

