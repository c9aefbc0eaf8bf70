// Attribution with its deletion curve, and the cost of each head.

import { findExtent } from "./arrays.js";
import { formatNumber, formatShare, makeSelect } from "./dom.js";
import { drawChart, drawLegend, makeMatrixPicture } from "./pictures.js";
import { fitText, shiftSurface } from "./surfaces.js";
import { drawToken, findBox, isVisible, layoutFlow, listTokens, showToken } from "./tokens.js";

const CHART_WIDTH = 300;
const CHART_HEIGHT = 190;

function layoutMethods(context) {
  const { document, text } = context;
  const width = context.width;
  const isWide = width > 760;
  const flowWidth = isWide ? width - CHART_WIDTH - 40 : width - 16;
  const blocks = [];
  let y = 72;
  for (const [name, method] of Object.entries(document.attribution.methods)) {
    const block = { name, method, y, sides: [], extent: Math.max(...Object.values(method.sides).map(findExtent)) || 1 };
    let at = y + 46;
    for (const [side, values] of Object.entries(method.sides)) {
      const words = listTokens(document, side).map(showToken);
      const hasName = Object.keys(method.sides).length > 1;
      if (hasName) at += 16;
      const flow = layoutFlow(words, flowWidth, { left: 8, top: at });
      block.sides.push({ side, values, words, boxes: flow.boxes, label: hasName ? text(`side_${side}`) : "", y: at });
      at += flow.height + 10;
    }
    const below = isWide ? 0 : CHART_HEIGHT + 10;
    block.chart = method.deletion ? { x: isWide ? width - CHART_WIDTH - 12 : 8, y: isWide ? y : at, width: CHART_WIDTH, height: CHART_HEIGHT } : null;
    y = Math.max(at + (block.chart ? below : 0), block.chart && isWide ? y + CHART_HEIGHT : 0) + 26;
    blocks.push(block);
  }
  return { blocks, height: y };
}

export const attributionView = {
  id: "attribution",
  has: (document) => Object.keys(document.attribution?.methods ?? {}).length > 0,
  controls: () => [],
  explain: ({ text, document }) => text("explain_attribution", { replacement: document.attribution.target.replacement ?? "[PAD]" }),
  build(context) {
    const { document, palette, text } = context;
    const { target } = document.attribution;
    const { blocks, height } = layoutMethods(context);
    const what = target.contrast ? text("why_not", { token: target.text, other: target.contrast.text }) : text("why", { token: target.text });
    return {
      width: context.width, height,
      draw(surface, view, hover) {
        surface.text(8, 18, what, { size: 14, fill: palette.ink, weight: 600 });
        const values = { value: formatNumber(target.value, 2), baseline: formatNumber(target.baseline, 2), replacement: target.replacement ?? "[PAD]" };
        surface.text(8, 35, target.contrast ? text("value_and_baseline_contrast", values) : text("value_and_baseline", values), { size: 12, fill: palette.soft });
        drawLegend(surface, 8, 44, { palette, low: text("against"), high: text("in_favour"), signed: true });
        blocks.forEach((block, b) => {
          if (block.y > view.y + view.height) return;
          surface.line([[8, block.y - 4], [context.width - 12, block.y - 4]], { stroke: palette.line });
          surface.text(8, block.y + 14, text(`method_${block.name}`), { size: 13, fill: palette.ink, weight: 600 });
          const gap = block.method.gap;
          const note = gap === null || gap === undefined ? text(`method_${block.name}_note`) : `${text(`method_${block.name}_note`)} ${text("gap", { value: formatShare(Math.abs(gap)) })}`;
          const room = block.chart && block.chart.x > 100 ? block.chart.x - 14 : context.width;
          surface.text(8, block.y + 32, fitText(note, room - 16, 12), { size: 12, fill: palette.soft });
          block.sides.forEach((part, s) => {
            if (part.label) surface.text(8, part.y - 4, part.label, { size: 11, fill: palette.soft });
            part.boxes.forEach((box, i) => {
              if (!isVisible(box, view)) return;
              const fill = palette.pickSigned(part.values[i], block.extent);
              const isHovered = hover?.block === b && hover?.part === s && hover?.token === i;
              drawToken(surface, box, { fill, ink: palette.pickInk(fill), stroke: isHovered ? palette.ink : palette.line });
            });
          });
          const curve = block.method.deletion;
          if (block.chart) {
            const toPoints = (values) => curve.shares.map((share, i) => [share, values[i]]);
            drawChart(surface, block.chart, {
              palette, title: text("deletion"), xTitle: text("share_removed"),
              series: [{ name: text("deletion_ordered"), points: toPoints(curve.score), colour: palette.accent }, { name: text("deletion_random"), points: toPoints(curve.random), colour: "#c76a00", dash: [5, 4] }],
            });
          }
        });
      },
      pick(x, y) {
        for (const [block, one] of blocks.entries()) {
          for (const [part, side] of one.sides.entries()) {
            const token = findBox(side.boxes, x, y);
            if (token >= 0) return { block, part, token };
          }
        }
        return null;
      },
      describe(hit) {
        const part = blocks[hit.block].sides[hit.part];
        return `${part.words[hit.token]} (${hit.token}): ${formatNumber(part.values[hit.token])}`;
      },
    };
  },
  table(context) {
    const { document, text } = context;
    const names = Object.keys(document.attribution.methods);
    const rows = [];
    for (const side of Object.keys(document.attribution.methods[names[0]].sides)) {
      listTokens(document, side).forEach((token, i) => rows.push([text(`side_${side}`), String(i), showToken(token), ...names.map((name) => formatNumber(document.attribution.methods[name].sides[side]?.[i]))]));
    }
    return { caption: text("tab_attribution"), head: [text("side"), text("position"), text("token"), ...names.map((name) => text(`method_${name}`))], rows };
  },
  label: (context) => context.text("tab_attribution"),
};

function listHeadTables(document, kind) {
  const tables = [];
  const cost = document.heads?.[kind]?.cost;
  if (cost) tables.push({ name: "cost", values: cost, signed: true });
  const attention = document.attention?.[kind];
  if (attention?.entropy) tables.push({ name: "entropy", values: attention.entropy });
  if (attention?.distance) tables.push({ name: "distance", values: attention.distance });
  return tables;
}

function listHeadKinds(document) {
  const kinds = new Set([...Object.keys(document.attention ?? {}), ...Object.keys(document.heads ?? {})]);
  return [...kinds].filter((kind) => listHeadTables(document, kind).length);
}

// What each head costs when it is masked, how widely it spreads, and how far it looks.
export const headsView = {
  id: "heads",
  has: (document) => listHeadKinds(document).length > 0,
  controls({ document, text, state, update }) {
    const kinds = listHeadKinds(document);
    return kinds.length > 1 ? [makeSelect(text("kind"), kinds.map((name) => [name, text(`kind_${name}`)]), pickHeadKind(document, state), (kind) => update({ kind }))] : [];
  },
  explain: ({ text, document }) => (document.heads ? text("explain_heads", { baseline: formatNumber(document.heads.baseline, 2) }) : text("explain_heads_summary")),
  build(context) {
    const { document, palette, text, state, update } = context;
    const kind = pickHeadKind(document, state);
    const tables = listHeadTables(document, kind);
    const layers = tables[0].values.length;
    const heads = tables[0].values[0].length;
    const pruned = document.heads?.prune?.[kind] ?? {};
    const perRow = context.width > 900 ? tables.length : context.width > 600 ? 2 : 1;
    const panel = Math.floor(context.width / perRow);
    const parts = tables.map((table, i) => {
      const values = Float32Array.from(table.values.flat());
      const picture = makeMatrixPicture({
        values, rows: Array.from({ length: layers }, (_, l) => String(l + 1)), columns: Array.from({ length: heads }, (_, h) => String(h + 1)),
        palette, width: panel - 12, signed: table.signed ?? false, rowTitle: text("layer"), columnTitle: text("head"), largestCell: 44, cellHeight: Math.min(44, Math.max(16, (panel - 60) / heads)),
      });
      return { table, values, picture, x: (i % perRow) * panel, row: Math.floor(i / perRow) };
    });
    const height = Math.max(...parts.map((part) => part.picture.height)) + 44;
    return {
      width: context.width, height: height * (Math.max(...parts.map((part) => part.row)) + 1),
      draw(surface, view, hover) {
        parts.forEach((part, i) => {
          const top = part.row * height;
          surface.text(part.x + 8, top + 18, text(`heads_${part.table.name}`), { size: 13, fill: palette.ink, weight: 600 });
          const moved = shiftSurface(surface, part.x, top + 30);
          const own = hover ? { row: hover.layer, column: hover.head } : null;
          part.picture.draw(moved, { x: 0, y: 0, width: panel - 4, height: part.picture.height }, own);
          if (part.table.name === "cost") {
            for (const [layer, list] of Object.entries(pruned)) {
              for (const head of list) {
                const box = part.picture.locateCell(Number(layer), head);
                const corner = [box.x + box.width - 9, box.y + 3];
                const mark = { stroke: palette.pickInk(palette.pickSigned(part.table.values[layer][head], findExtent(part.values))), width: 1.5 };
                moved.line([corner, [corner[0] + 6, corner[1] + 6]], mark);
                moved.line([[corner[0] + 6, corner[1]], [corner[0], corner[1] + 6]], mark);
              }
            }
          }
          if (i === 0 && Object.keys(pruned).length) surface.text(part.x + 8, top + height - 6, text("prune_note"), { size: 11, fill: palette.soft });
        });
      },
      pick(x, y) {
        for (const part of parts) {
          const hit = part.picture.pick(x - part.x, y - part.row * height - 30);
          if (hit) return { layer: hit.row, head: hit.column };
        }
        return null;
      },
      describe: (hit) => `${text("layer_head", { layer: hit.layer + 1, head: hit.head + 1 })}: ${parts.map((part) => `${text(`heads_${part.table.name}_short`)} ${formatNumber(part.table.values[hit.layer][hit.head])}`).join(" · ")}`,
      choose: (hit) => update({ kind, layer: hit.layer, head: hit.head, ...(document.attention?.[kind] ? { view: "head" } : {}) }),
    };
  },
  table(context) {
    const { document, text, state } = context;
    const kind = pickHeadKind(document, state);
    const tables = listHeadTables(document, kind);
    const rows = [];
    tables[0].values.forEach((row, l) => row.forEach((_, h) => rows.push([String(l + 1), String(h + 1), ...tables.map((table) => formatNumber(table.values[l][h]))])));
    return { caption: text("tab_heads"), head: [text("layer"), text("head"), ...tables.map((table) => text(`heads_${table.name}_short`))], rows };
  },
  label: (context) => context.text("tab_heads"),
};

function pickHeadKind(document, state) {
  const kinds = listHeadKinds(document);
  return kinds.includes(state.kind) ? state.kind : kinds[0];
}
