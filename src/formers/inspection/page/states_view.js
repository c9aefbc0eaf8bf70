// Hidden states: the tokens on the first two principal axes of a layer, and each token's neighbours layer by layer.

import { formatNumber, formatShare, makeRange } from "./dom.js";
import { fitText, measureWidth } from "./surfaces.js";
import { listTokens, showToken } from "./tokens.js";

function readStates({ document, state }) {
  const part = document.states;
  const words = listTokens(document, part.side ?? Object.keys(document.sides)[0]).map(showToken);
  const at = Math.min(state.stateLayer ?? part.layers.length - 1, part.layers.length - 1);
  return { part, words, at, layer: part.layers[at], token: Math.min(state.token, words.length - 1) };
}

// Where the words stand: to the right of their points, those that would cover others left out.
function placeLabels(points, words, chosen) {
  const taken = [];
  const order = words.map((_, i) => i).sort((a, b) => (b === chosen) - (a === chosen));
  const labels = [];
  for (const i of order) {
    const box = { x: points[i][0] + 7, y: points[i][1] - 8, width: measureWidth(words[i], 12), height: 15 };
    const covers = taken.some((other) => box.x < other.x + other.width && box.x + box.width > other.x && box.y < other.y + other.height && box.y + box.height > other.y);
    if (covers && i !== chosen) continue;
    taken.push(box);
    labels.push(i);
  }
  return labels;
}

export const statesView = {
  id: "states",
  has: (document) => (document.states?.layers ?? []).length > 0,
  controls(context) {
    const { part, at } = readStates(context);
    const { text, update } = context;
    const format = (i) => (part.layers[i].layer === 0 ? text("embeddings") : String(part.layers[i].layer));
    return part.layers.length > 1 ? [makeRange(text("layer"), { min: 0, max: part.layers.length - 1, step: 1, value: at, format }, (stateLayer) => update({ stateLayer }, { redraw: true }))] : [];
  },
  explain: ({ text }) => text("explain_states"),
  build(context) {
    const { palette, text, update } = context;
    const { part, words, layer, token } = readStates(context);
    const isWide = context.width > 860;
    const size = Math.min(isWide ? 540 : context.width - 16, context.width - 16);
    const height = Math.min(size, 460);
    const xs = layer.pca.map((point) => point[0]);
    const ys = layer.pca.map((point) => point[1]);
    const span = (values) => [Math.min(...values), Math.max(...values)];
    const [lowX, highX] = span(xs);
    const [lowY, highY] = span(ys);
    const points = layer.pca.map(([x, y]) => [
      28 + ((x - lowX) / (highX - lowX || 1)) * (size - 100), 24 + ((highY - y) / (highY - lowY || 1)) * (height - 66),
    ]);
    const labels = placeLabels(points, words, token);
    const listLeft = isWide ? size + 36 : 8;
    const listTop = isWide ? 8 : height + 24;
    const listWidth = isWide ? context.width - listLeft - 12 : context.width - 16;
    const rowHeight = 24;
    const neighbours = part.layers.map((one) => one.neighbours?.[token] ?? []);
    const hasList = neighbours.some((list) => list.length);
    return {
      width: context.width, height: Math.max(height + 16, hasList ? listTop + 34 + part.layers.length * rowHeight + 8 : 0),
      draw(surface, view, hover) {
        surface.rect(8, 4, size - 8, height - 4, { stroke: palette.line, radius: 4, fill: palette.paper });
        if (layer.explained) surface.text(16, height - 8, text("explained", { first: formatShare(layer.explained[0]), second: formatShare(layer.explained[1]) }), { size: 11, fill: palette.soft });
        const near = new Map((layer.neighbours?.[token] ?? []).map((one) => [one.index, one.cosine]));
        near.forEach((_, i) => points[i] && surface.line([points[token], points[i]], { stroke: palette.accent, alpha: 0.35 }));
        points.forEach(([x, y], i) => {
          const isChosen = i === token;
          surface.circle(x, y, isChosen ? 6 : hover?.token === i ? 5.5 : 4, { fill: isChosen || near.has(i) ? palette.accent : palette.soft, alpha: isChosen || near.has(i) || hover?.token === i ? 1 : 0.55 });
        });
        for (const i of labels) {
          const isChosen = i === token;
          surface.text(points[i][0] + 8, points[i][1] + 4, words[i], { size: 12, fill: isChosen ? palette.accent : palette.ink, weight: isChosen ? 700 : 400 });
        }
        if (!hasList) return;
        surface.text(listLeft, listTop + 14, text("neighbours_of", { token: words[token] }), { size: 13, fill: palette.ink, weight: 600 });
        part.layers.forEach((one, r) => {
          const y = listTop + 34 + r * rowHeight;
          const isCurrent = one === layer;
          if (isCurrent) surface.rect(listLeft - 4, y - 4, listWidth + 8, rowHeight - 2, { fill: palette.wash, radius: 3 });
          surface.text(listLeft + 62, y + 12, one.layer === 0 ? text("embeddings_short") : text("layer_n", { layer: one.layer }), { size: 11, fill: isCurrent ? palette.accent : palette.soft, anchor: "end" });
          let x = listLeft + 74;
          for (const { text: name, cosine } of neighbours[r]) {
            const word = fitText(showToken({ text: name }), 90, 13);
            const value = formatNumber(cosine, 2).replace("0.", ".");
            const needed = measureWidth(word, 13) + 6 + measureWidth(value, 11) + 14;
            if (x + needed > listLeft + listWidth) break;
            surface.text(x, y + 12, word, { size: 13, fill: palette.ink });
            surface.text(x + measureWidth(word, 13) + 5, y + 12, value, { size: 11, fill: palette.soft });
            x += needed;
          }
        });
      },
      pick(x, y) {
        let best = null;
        let nearest = 14;
        points.forEach(([px, py], i) => {
          const distance = Math.hypot(px - x, py - y);
          if (distance < nearest) [best, nearest] = [i, distance];
        });
        return best === null ? null : { token: best };
      },
      describe: ({ token: i }) => `${words[i]} (${i}): ${(layer.neighbours?.[i] ?? []).slice(0, 4).map((one) => `${showToken({ text: one.text })} ${formatNumber(one.cosine, 2)}`).join(", ")}`,
      choose: ({ token: i }) => update({ token: i }),
    };
  },
  table(context) {
    const { text } = context;
    const { layer, words } = readStates(context);
    const rows = words.map((word, i) => [String(i), word, formatNumber(layer.pca[i][0], 2), formatNumber(layer.pca[i][1], 2), (layer.neighbours?.[i] ?? []).slice(0, 5).map((one) => `${showToken({ text: one.text })} ${formatNumber(one.cosine, 2)}`).join(", ")]);
    return { caption: text("layer_n", { layer: layer.layer }), head: [text("position"), text("token"), "x", "y", text("neighbours")], rows };
  },
  label: (context) => context.text("tab_states"),
};
