// Attention: one head as a matrix or as lines, all heads, one token in all heads, and one head's dimensions.

import { decodeArray, findExtent, findLargest, findTop } from "./arrays.js";
import { getAttention, listKinds } from "./attention_data.js";
import { formatNumber, formatShare, makeRange, makeSelect, makeTokenField } from "./dom.js";
import { drawBars, drawLegend, makeMatrixPicture } from "./pictures.js";
import { fitText, measureWidth } from "./surfaces.js";
import { drawToken, findBox, isVisible, layoutFlow } from "./tokens.js";

// What is chosen, within what this document has.
export function limitChoice({ document, state }) {
  const kinds = listKinds(document);
  const kind = kinds.includes(state.kind) ? state.kind : kinds[0];
  const data = getAttention(document, kind);
  const measure = data.listMeasures().includes(state.measure) ? state.measure : "weights";
  return {
    kind, data, measure,
    layer: Math.min(state.layer, data.layers - 1),
    head: data.hasHeads(measure) ? Math.min(state.head, data.heads - 1) : -1,
    token: Math.min(state.token, data.queries.length - 1),
  };
}

function nameHead({ text }, { measure, layer, head, data }) {
  if (!data.hasHeads(measure)) return text("layer_n", { layer: layer + 1 });
  return head < 0 ? text("layer_mean", { layer: layer + 1 }) : text("layer_head", { layer: layer + 1, head: head + 1 });
}

function formatWeight(measure, value) {
  return measure === "norms" ? formatNumber(value, 2) : formatShare(value);
}

export function makeAttentionControls(context, { withHead = true, withLayer = true, withMeasure = true } = {}) {
  const { document, text, update } = context;
  const chosen = limitChoice(context);
  const { data } = chosen;
  const parts = [];
  const kinds = listKinds(document);
  if (kinds.length > 1) parts.push(makeSelect(text("kind"), kinds.map((kind) => [kind, text(`kind_${kind}`)]), chosen.kind, (kind) => update({ kind, token: 0 })));
  const measures = data.listMeasures();
  if (withMeasure && measures.length > 1) parts.push(makeSelect(text("measure"), measures.map((name) => [name, text(`measure_${name}`)]), chosen.measure, (measure) => update({ measure })));
  const count = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
  if (withLayer) parts.push(makeSelect(text("layer"), count(data.layers), chosen.layer, (value) => update({ layer: Number(value) })));
  if (withHead && data.hasHeads(chosen.measure) && data.heads > 1) {
    parts.push(makeSelect(text("head"), [[-1, text("mean_of_heads")], ...count(data.heads)], chosen.head, (value) => update({ head: Number(value) })));
  }
  return parts;
}

// The strongest keys of each query of the chosen head, as a table for screen readers and copying.
function makeHeadTable(context) {
  const { text } = context;
  const chosen = limitChoice(context);
  const { data, measure, layer, head } = chosen;
  const matrix = data.readMatrix(measure, layer, head);
  const rows = data.queries.map((word, q) => {
    const row = matrix.subarray(q * data.keys.length, (q + 1) * data.keys.length);
    return [String(q), word, ...findTop(row, 5).map((k) => (row[k] > 0 ? `${data.keys[k]} (${k}) ${formatWeight(measure, row[k])}` : ""))];
  });
  return {
    caption: `${text(`kind_${chosen.kind}`)}, ${nameHead(context, chosen)}: ${text(`measure_${measure}`)}`,
    head: [text("position"), text("token"), ...[1, 2, 3, 4, 5].map((n) => text("strongest_n", { n }))],
    rows,
  };
}

function describePair(context, chosen, matrix, query, key) {
  const value = matrix[query * chosen.data.keys.length + key];
  return `${chosen.data.queries[query]} (${query}) → ${chosen.data.keys[key]} (${key}): ${formatWeight(chosen.measure, value)}`;
}

// The head's matrix: a row for each token that reads, a column for each token that is read.
export const headView = {
  id: "head",
  has: (document) => listKinds(document).length > 0,
  controls(context) {
    const { text, state, update } = context;
    const zooms = [[0, text("zoom_fit")], [4, "4 px"], [10, "10 px"], [18, "18 px"], [30, "30 px"]];
    return [
      ...makeAttentionControls(context),
      makeSelect(text("form"), [["matrix", text("form_matrix")], ["lines", text("form_lines")]], state.form, (form) => update({ form })),
      state.form === "matrix"
        ? makeSelect(text("zoom"), zooms, state.zoom, (value) => update({ zoom: Number(value) }))
        : makeRange(text("threshold"), { min: 0, max: 0.5, step: 0.01, value: state.threshold, format: (v) => formatShare(v) }, (threshold) => update({ threshold }, { redraw: true })),
    ];
  },
  explain: ({ text, ...rest }) => {
    const { kind, measure } = limitChoice(rest);
    const isBetweenSides = measure === "weights" && (kind === "cross" || kind === "alignment");
    const name = isBetweenSides ? kind : measure;
    return text(`explain_${name}`);
  },
  build(context) {
    const chosen = limitChoice(context);
    const { data, measure, layer, head, token } = chosen;
    const matrix = data.readMatrix(measure, layer, head);
    if (context.state.form === "lines") return makeLinesPicture(context, chosen, matrix);
    const picture = makeMatrixPicture({
      values: matrix, rows: data.queries, columns: data.keys, palette: context.palette, width: context.width, zoom: context.state.zoom,
      selected: token, rowTitle: context.text("reads"), columnTitle: context.text("is_read"), largest: measure === "norms" ? findLargest(matrix) : 1,
      describe: (hit) => describePair(context, chosen, matrix, hit.row, hit.column),
      choose: (hit) => context.update({ token: hit.row }),
    });
    return addRowBars(context, chosen, matrix, picture);
  },
  table: makeHeadTable,
  label: (context) => `${nameHead(context, limitChoice(context))}. ${context.text("keys_help")}`,
};

// Beside a matrix that leaves room: the strongest keys of the chosen row, or of the row under the pointer.
function addRowBars({ palette, text, width }, { data, measure, token }, matrix, picture) {
  const room = width - picture.width;
  if (room < 260) return picture;
  const keys = data.keys.length;
  const at = picture.width + 24;
  return {
    ...picture, width, height: Math.max(picture.height, 330),
    draw(surface, view, hover) {
      picture.draw(surface, { ...view, width: picture.width }, hover);
      const query = hover?.row ?? token;
      const row = matrix.subarray(query * keys, (query + 1) * keys);
      const top = findTop(row, 12).filter((k) => row[k] > 0);
      surface.text(at, view.y + 24, text("reads_what", { token: fitText(data.queries[query], 120, 13), position: query }), { size: 13, fill: palette.ink, weight: 600 });
      drawBars(surface, { x: at - 8, y: view.y + 38, width: Math.min(430, room - 36) }, top.map((k) => ({ words: data.keys[k], value: row[k], note: formatWeight(measure, row[k]) })), { palette, largest: measure === "norms" ? row[top[0]] : 1, marked: top.indexOf(hover?.column ?? -1) });
    },
  };
}

const LINE_ROW = 20;

// Tokens that read on the left, tokens that are read on the right, a line for each weight above the threshold.
function makeLinesPicture(context, { data, measure, token }, matrix) {
  const { palette, text, state } = context;
  const width = Math.min(context.width, 860);
  const column = Math.min(200, Math.max(70, ...data.queries.concat(data.keys).slice(0, 600).map((word) => measureWidth(word, 13) + 20)));
  const left = column + 16;
  const right = width - column - 16;
  const top = 34;
  const largest = findLargest(matrix) || 1;
  const keys = data.keys.length;
  return {
    width, height: top + LINE_ROW * Math.max(data.queries.length, keys) + 12,
    selectedPlace: { y: top + token * LINE_ROW, height: LINE_ROW, margin: top },
    draw(surface, view, hover) {
      const focus = hover?.query ?? null;
      const focusKey = hover?.key ?? null;
      const first = Math.max(0, Math.floor((view.y - top) / LINE_ROW));
      const last = Math.ceil((view.y + view.height - top) / LINE_ROW);
      for (let q = 0; q < data.queries.length; q++) {
        if (focus !== null && q !== focus) continue;
        const y1 = top + (q + 0.5) * LINE_ROW;
        for (let k = 0; k < keys; k++) {
          const value = matrix[q * keys + k];
          if (value < (state.threshold || 0.002) * (measure === "norms" ? largest : 1)) continue;
          if (focusKey !== null && k !== focusKey) continue;
          if ((q < first && k < first) || (q > last && k > last)) continue;
          const share = value / largest;
          const isChosen = focus !== null || focusKey !== null || q === token;
          surface.curve(left, y1, right, top + (k + 0.5) * LINE_ROW, {
            stroke: isChosen ? palette.accent : palette.soft, width: 0.5 + 3 * share, alpha: Math.min(1, (isChosen ? 0.25 : 0.06) + 0.75 * share),
          });
        }
      }
      const strongest = (list, at, side) => {
        for (let i = Math.max(0, first); i < Math.min(list.length, last + 1); i++) {
          const isMarked = side === "query" ? i === token || i === focus : i === focusKey;
          let fill = null;
          if (side === "key" && (focus ?? token) >= 0 && focusKey === null) fill = palette.pickRising(matrix[(focus ?? token) * keys + i], largest);
          if (side === "query" && focusKey !== null) fill = palette.pickRising(matrix[i * keys + focusKey], largest);
          const y = top + i * LINE_ROW;
          if (fill) surface.rect(at === left ? 4 : right + 4, y + 1, column + 8, LINE_ROW - 2, { fill, radius: 3 });
          const ink = fill ? palette.pickInk(fill) : isMarked ? palette.accent : palette.ink;
          const words = fitText(list[i], column - 4, 13);
          surface.text(at === left ? left - 8 : right + 10, y + 14, words, { size: 13, fill: ink, anchor: at === left ? "end" : "start", weight: isMarked ? 700 : 400 });
        }
      };
      strongest(data.queries, left, "query");
      strongest(data.keys, right, "key");
      surface.rect(view.x, view.y, view.width, 24, { fill: palette.paper });
      surface.text(left - 8, view.y + 15, text("reads"), { size: 11, fill: palette.soft, anchor: "end" });
      surface.text(right + 10, view.y + 15, text("is_read"), { size: 11, fill: palette.soft });
    },
    pick(x, y) {
      const i = Math.floor((y - top) / LINE_ROW);
      if (i < 0) return null;
      if (x < left + 4 && i < data.queries.length) return { query: i };
      if (x > right - 4 && i < keys) return { key: i };
      return null;
    },
    describe(hit) {
      if (hit.key !== undefined) return text("token_is_read", { token: data.keys[hit.key], position: hit.key });
      const row = matrix.subarray(hit.query * keys, (hit.query + 1) * keys);
      return `${data.queries[hit.query]} → ${findTop(row, 3).map((k) => `${data.keys[k]} ${formatWeight(measure, row[k])}`).join(", ")}`;
    },
    choose: (hit) => hit.query !== undefined && context.update({ token: hit.query }),
  };
}

const thumbnails = new WeakMap();

// All layers × heads, each as a small matrix.
export const modelView = {
  id: "model",
  has: (document) => listKinds(document).some((kind) => document.attention[kind].layers * document.attention[kind].heads > 1),
  controls: (context) => makeAttentionControls(context, { withHead: false, withLayer: false }),
  explain: ({ text }) => text("explain_model"),
  build(context) {
    const { palette, text } = context;
    const chosen = limitChoice(context);
    const { data, measure, layer, head } = chosen;
    const heads = data.hasHeads(measure) ? data.heads : 1;
    const left = 64;
    const top = 30;
    const pitch = Math.max(34, Math.min(heads > 4 ? 120 : 180, (context.width - left - 8) / heads));
    const size = Math.floor(pitch - 6);
    const detail = Math.max(8, Math.min(Math.max(data.queries.length, data.keys.length), Math.round(size * Math.min(2, window.devicePixelRatio || 1))));
    const paint = (l, h) => {
      let painted = thumbnails.get(data);
      if (!painted) thumbnails.set(data, (painted = new Map()));
      const key = `${measure}.${l}.${h}.${detail}.${palette.theme}`;
      if (!painted.has(key)) {
        const values = data.poolMatrix(measure, l, h, detail);
        painted.set(key, palette.paintMatrix(values, detail, detail, findLargest(values)));
      }
      return painted.get(key);
    };
    return {
      width: left + heads * pitch + 4, height: top + data.layers * pitch + 8,
      selectedPlace: { y: top + layer * pitch, height: pitch, margin: top },
      draw(surface, view, hover) {
        for (let l = 0; l < data.layers; l++) {
          const y = top + l * pitch;
          if (y > view.y + view.height || y + pitch < view.y) continue;
          for (let h = 0; h < heads; h++) {
            const x = left + h * pitch;
            surface.image(paint(l, h), x, y, size, size);
            const isChosen = l === layer && (h === head || heads === 1);
            const isHovered = hover?.layer === l && hover?.head === h;
            surface.rect(x - 0.5, y - 0.5, size + 1, size + 1, { stroke: isChosen ? palette.accent : isHovered ? palette.ink : palette.line, line: isChosen ? 2.5 : 1 });
          }
          surface.text(left - 8, y + size / 2 + 4, String(l + 1), { size: 12, fill: l === layer ? palette.accent : palette.soft, anchor: "end", weight: l === layer ? 700 : 400 });
        }
        surface.rect(view.x, view.y, view.width, top - 6, { fill: palette.paper });
        surface.text(4, view.y + 16, `${text("layer")} ↓`, { size: 11, fill: palette.soft });
        for (let h = 0; h < heads && heads > 1; h++) {
          surface.text(left + h * pitch + size / 2, view.y + 16, h === 0 ? `${text("head")} 1` : String(h + 1), { size: 12, fill: h === head ? palette.accent : palette.soft, anchor: "middle", weight: h === head ? 700 : 400 });
        }
      },
      pick(x, y) {
        const h = Math.floor((x - left) / pitch);
        const l = Math.floor((y - top) / pitch);
        return h >= 0 && h < heads && l >= 0 && l < data.layers && (x - left) % pitch < size && (y - top) % pitch < size ? { layer: l, head: h } : null;
      },
      describe(hit) {
        const name = nameHead(context, { ...chosen, layer: hit.layer, head: heads > 1 ? hit.head : -1 });
        const entropy = data.hasHeads(measure) ? data.entropy?.[hit.layer]?.[hit.head] : null;
        const distance = data.hasHeads(measure) ? data.distance?.[hit.layer]?.[hit.head] : null;
        return [name, entropy != null ? text("entropy_bits", { value: formatNumber(entropy, 2) }) : null, distance != null ? text("distance_tokens", { value: formatNumber(distance, 1) }) : null].filter(Boolean).join(" · ");
      },
      choose: (hit) => context.update({ layer: hit.layer, head: heads > 1 ? hit.head : context.state.head, view: "head" }),
    };
  },
  table(context) {
    const { text } = context;
    const { data, kind } = limitChoice(context);
    const rows = [];
    for (let l = 0; l < data.layers; l++) {
      for (let h = 0; h < data.heads; h++) rows.push([String(l + 1), String(h + 1), formatNumber(data.entropy?.[l]?.[h], 2), formatNumber(data.distance?.[l]?.[h], 1)]);
    }
    return { caption: text(`kind_${kind}`), head: [text("layer"), text("head"), text("entropy"), text("distance")], rows };
  },
  label: (context) => context.text("keys_help"),
};

// One token in all heads: the text coloured by what it reads, and a row for every head.
export const tokenView = {
  id: "token",
  has: (document) => listKinds(document).length > 0,
  controls(context) {
    const { text, state, update } = context;
    const { data, token } = limitChoice(context);
    return [
      makeTokenField(text("token"), data.queries, token, (value) => update({ token: value })),
      makeSelect(text("direction"), [["reads", text("direction_reads")], ["is_read", text("direction_is_read")]], state.direction, (direction) => update({ direction })),
      ...makeAttentionControls(context),
    ];
  },
  explain: ({ text }) => text("explain_token"),
  build(context) {
    const { palette, text, state, update } = context;
    const chosen = limitChoice(context);
    const { data, measure, layer, head, token } = chosen;
    const isInward = state.direction === "is_read" && data.isSquare;
    const words = isInward ? data.queries : data.keys;
    const heads = data.hasHeads(measure) ? data.heads : 1;
    const readColumn = (l, h) => {
      if (!isInward) return data.readQuery(measure, l, h, token);
      const out = new Float32Array(data.queries.length);
      const matrix = data.readMatrix(measure, l, h);
      for (let q = 0; q < out.length; q++) out[q] = matrix[q * data.keys.length + token + data.memory];
      return out;
    };
    const values = readColumn(layer, head);
    const largest = findLargest(values) || 1;
    const flow = layoutFlow(words, context.width - 16, { left: 8, top: 30 });
    const strips = new Float32Array(data.layers * heads * words.length);
    for (let l = 0; l < data.layers; l++) for (let h = 0; h < heads; h++) strips.set(readColumn(l, h), (l * heads + h) * words.length);
    const stripTop = 30 + flow.height + 44;
    const stripLeft = 76;
    const stripWidth = context.width - stripLeft - 16;
    const stripRow = Math.max(4, Math.min(14, Math.round(420 / (data.layers * heads))));
    const image = palette.paintMatrix(strips, words.length, data.layers * heads, findLargest(strips));
    const selectedRow = data.hasHeads(measure) ? (head < 0 ? null : layer * heads + head) : layer;
    return {
      width: context.width, height: stripTop + data.layers * heads * stripRow + 16,
      draw(surface, view, hover) {
        drawLegend(surface, 8, 8, { palette, low: "0", high: formatWeight(measure, largest), title: `${data.queries[token]} · ${nameHead(context, chosen)}` });
        flow.boxes.forEach((box, i) => {
          if (!isVisible(box, view)) return;
          const fill = palette.pickRising(values[i], largest);
          const isSelf = data.isSquare && i === token + (isInward ? 0 : data.memory);
          drawToken(surface, box, { fill, ink: palette.pickInk(fill), stroke: isSelf ? palette.accent : hover?.token === i ? palette.ink : palette.line, line: isSelf ? 2.5 : 1 });
        });
        surface.text(8, stripTop - 12, text("all_heads_of_token", { token: data.queries[token] }), { size: 12, fill: palette.ink, weight: 600 });
        surface.image(image, stripLeft, stripTop, stripWidth, data.layers * heads * stripRow);
        surface.rect(stripLeft - 0.5, stripTop - 0.5, stripWidth + 1, data.layers * heads * stripRow + 1, { stroke: palette.line });
        for (let l = 0; l < data.layers; l++) {
          const y = stripTop + l * heads * stripRow;
          if (l) surface.line([[stripLeft, y], [stripLeft + stripWidth, y]], { stroke: palette.line });
          if (heads * stripRow >= 11) surface.text(stripLeft - 8, y + (heads * stripRow) / 2 + 4, text("layer_n", { layer: l + 1 }), { size: 11, fill: palette.soft, anchor: "end" });
        }
        if (selectedRow !== null) surface.rect(stripLeft, stripTop + selectedRow * stripRow, stripWidth, stripRow, { stroke: palette.accent, line: 1.5 });
        if (hover?.row !== undefined) surface.rect(stripLeft, stripTop + hover.row * stripRow, stripWidth, stripRow, { stroke: palette.ink });
      },
      pick(x, y) {
        const box = findBox(flow.boxes, x, y);
        if (box >= 0) return { token: box };
        const row = Math.floor((y - stripTop) / stripRow);
        const column = Math.floor(((x - stripLeft) / stripWidth) * words.length);
        return row >= 0 && row < data.layers * heads && column >= 0 && column < words.length ? { row, column } : null;
      },
      describe(hit) {
        if (hit.token !== undefined) return `${words[hit.token]} (${hit.token}): ${formatWeight(measure, values[hit.token])}`;
        const name = nameHead(context, { ...chosen, layer: Math.floor(hit.row / heads), head: hit.row % heads });
        return `${name} · ${words[hit.column]} (${hit.column}): ${formatWeight(measure, strips[hit.row * words.length + hit.column])}`;
      },
      choose(hit) {
        if (hit.row !== undefined) update({ layer: Math.floor(hit.row / heads), head: heads > 1 ? hit.row % heads : state.head });
        else if (data.isSquare && hit.token >= (isInward ? 0 : data.memory)) update({ token: hit.token - (isInward ? 0 : data.memory) });
      },
    };
  },
  table(context) {
    const { text } = context;
    const chosen = limitChoice(context);
    const values = chosen.data.readQuery(chosen.measure, chosen.layer, chosen.head, chosen.token);
    const rows = findTop(values, 50).map((k) => [chosen.data.keys[k], String(k), formatWeight(chosen.measure, values[k])]);
    return { caption: `${chosen.data.queries[chosen.token]} · ${nameHead(context, chosen)}`, head: [text("token"), text("position"), text(`measure_${chosen.measure}`)], rows };
  },
  label: (context) => `${nameHead(context, limitChoice(context))}. ${context.text("keys_help")}`,
};

// The products of query and key in each dimension of one head: their sum is the score that the softmax sees.
const SCORE_WIDTH = 156; // beside the dimensions: a bar and a number for each token

export const neuronView = {
  id: "neuron",
  has: (document) => Object.keys(document.neuron ?? {}).length > 0,
  controls(context) {
    const { document, text, state, update } = context;
    const { kind, queries, query } = readNeuron(context);
    const kinds = Object.keys(document.neuron);
    return [
      kinds.length > 1 ? makeSelect(text("kind"), kinds.map((name) => [name, text(`kind_${name}`)]), kind, (value) => update({ kind: value })) : null,
      makeTokenField(text("token"), queries, query, (value) => update({ token: value })),
      makeSelect(text("neuron_show"), [["product", "q · k"], ["key", "k"], ["query", "q"]], state.neuron, (neuron) => update({ neuron })),
    ].filter(Boolean);
  },
  explain: ({ text, ...context }) => {
    const { part } = readNeuron(context);
    return text("explain_neuron", { layer: part.layer + 1, head: part.head + 1 });
  },
  build(context) {
    const { palette, text, state } = context;
    const { part, q, k, queries, keys, query } = readNeuron(context);
    const dims = q.columns;
    const own = q.readRow(query);
    const shown = state.neuron === "query" ? queries : keys;
    const values = new Float32Array(shown.length * dims);
    const scores = new Float32Array(shown.length);
    for (let i = 0; i < shown.length; i++) {
      const row = state.neuron === "query" ? q.readRow(i) : k.readRow(i);
      for (let d = 0; d < dims; d++) {
        values[i * dims + d] = state.neuron === "product" ? row[d] * own[d] * part.scale : row[d];
        if (state.neuron !== "query") scores[i] += row[d] * own[d] * part.scale;
      }
    }
    const matrix = makeMatrixPicture({
      values, rows: shown, columns: Array.from({ length: dims }, (_, d) => String(d)), palette, signed: true,
      width: context.width - (state.neuron === "query" ? 0 : SCORE_WIDTH), cellHeight: 18, largestCell: 16,
      selected: state.neuron === "query" ? query : -1, rowTitle: state.neuron === "query" ? text("reads") : text("is_read"), columnTitle: text("dimension"),
      choose: state.neuron === "query" ? (hit) => context.update({ token: hit.row }) : undefined,
    });
    if (state.neuron === "query") return matrix;
    const extent = findExtent(scores) || 1;
    const draw = matrix.draw;
    const at = matrix.width + 12;
    return {
      ...matrix, width: matrix.width + SCORE_WIDTH,
      draw(surface, view, hover) {
        const narrow = { ...view, width: Math.min(view.width, matrix.width - view.x) };
        draw.call(matrix, surface, narrow, hover);
        const top = matrix.height - 12 - shown.length * 18;
        surface.text(at, view.y + 13, text("score"), { size: 11, fill: palette.soft });
        surface.clip(at - 4, view.y + top, SCORE_WIDTH, Math.max(0, view.height - top), () => {
          shown.forEach((_, i) => {
            const y = top + i * 18;
            const middle = at + 45;
            const length = (scores[i] / extent) * 42;
            surface.rect(Math.min(middle, middle + length), y + 3, Math.abs(length), 12, { fill: palette.pickSigned(scores[i], extent) });
            surface.line([[middle, y], [middle, y + 18]], { stroke: palette.line });
            surface.text(at + 132, y + 13, formatNumber(scores[i], 2), { size: 11, fill: palette.ink, anchor: "end" });
          });
        });
      },
    };
  },
  table(context) {
    const { text } = context;
    const { part, q, k, queries, keys, query } = readNeuron(context);
    const own = q.readRow(query);
    const scores = keys.map((_, i) => k.readRow(i).reduce((sum, value, d) => sum + value * own[d], 0) * part.scale);
    return { caption: queries[query], head: [text("token"), text("score")], rows: keys.map((word, i) => [word, formatNumber(scores[i])]) };
  },
  label: (context) => context.text("tab_neuron"),
};

const neurons = new WeakMap();

function readNeuron({ document, state }) {
  const kinds = Object.keys(document.neuron);
  const kind = kinds.includes(state.kind) ? state.kind : kinds[0];
  const part = document.neuron[kind];
  if (!neurons.has(part)) neurons.set(part, { q: decodeArray(part.q), k: decodeArray(part.k) });
  const { queries, keys } = getAttention(document, kind);
  return { kind, part, ...neurons.get(part), queries, keys, query: Math.min(state.token, queries.length - 1) };
}
