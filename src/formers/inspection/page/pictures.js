// Pictures that several views share: a matrix with labels, a line chart, a bar list.
//
// A picture has `width` and `height`, `draw(surface, view, hover)` in its own coordinates (`view` is the part that is
// seen), and for the pointer `pick(x, y)` → hit, `describe(hit)` → words, `choose(hit)`.

import { findExtent, findLargest } from "./arrays.js";
import { formatNumber } from "./dom.js";
import { fitText, measureWidth } from "./surfaces.js";

const LABEL_SIZE = 12;
const SMALLEST_LABELLED = 10; // cells of fewer pixels have no room for a word

function measureLabels(labels, most) {
  let width = 16;
  for (const label of labels) width = Math.max(width, measureWidth(label, LABEL_SIZE));
  return Math.min(most, width) + 10;
}

// A matrix (rows × columns). Labels stay in sight while the rest scrolls.
export function makeMatrixPicture(options) {
  const { values, rows, columns, palette, width, zoom = 0, signed = false, selected = -1, rowTitle = "", columnTitle = "", isNumeric = false } = options;
  const { describe, choose, largest = signed ? findExtent(values) : findLargest(values), largestCell = 30, rowLimit = 150 } = options;
  const reach = Math.max(...[measureLabels(rows, rowLimit)]);
  const fitted = Math.max(1, Math.min(largestCell, (width - reach - 36) / columns.length)); // 20 before the labels, 16 after the cells
  const cell = zoom || fitted;
  const tall = options.cellHeight ?? cell;
  const labelled = cell >= SMALLEST_LABELLED;
  const rowLabelled = tall >= SMALLEST_LABELLED;
  const left = (rowLabelled ? reach : 44) + 20;
  const isLevel = labelled && columns.every((label) => measureWidth(label, LABEL_SIZE) <= cell - 4);
  const top = (labelled && !isLevel ? measureLabels(columns, 110) : 24) + 20;
  const image = palette.paintMatrix(values, columns.length, rows.length, largest, signed);
  const right = left + columns.length * cell;
  const bottom = top + rows.length * tall;
  return {
    width: Math.ceil(right + 16),
    height: Math.ceil(bottom + 12),
    selectedPlace: selected < 0 ? null : { y: top + selected * tall, height: tall, margin: top },
    draw(surface, view, hover) {
      const x0 = view.x + left;
      const y0 = view.y + top;
      surface.clip(x0, y0, Math.max(0, view.width - left), Math.max(0, view.height - top), () => {
        surface.image(image, left, top, columns.length * cell, rows.length * tall);
        if (cell >= 30 && columns.length * rows.length <= 900) {
          for (let r = 0; r < rows.length; r++) {
            for (let c = 0; c < columns.length; c++) {
              const value = values[r * columns.length + c];
              if (Math.abs(value) < largest * 0.02) continue;
              const colour = signed ? palette.pickSigned(value, largest) : palette.pickRising(value, largest);
              surface.text(left + (c + 0.5) * cell, top + (r + 0.5) * tall + 3.5, formatCell(value), { size: 10, fill: palette.pickInk(colour), anchor: "middle" });
            }
          }
        }
        if (selected >= 0) surface.rect(left, top + selected * tall, columns.length * cell, tall, { stroke: palette.accent, line: 1.5 });
        if (hover && hover.row !== undefined) {
          surface.rect(left, top + hover.row * tall, columns.length * cell, tall, { stroke: palette.ink, alpha: 0.45 });
          surface.rect(left + hover.column * cell, top, cell, rows.length * tall, { stroke: palette.ink, alpha: 0.45 });
        }
      });
      surface.rect(left - 0.5, top - 0.5, columns.length * cell + 1, rows.length * tall + 1, { stroke: palette.line });
      surface.rect(view.x, view.y, left - 1, view.height, { fill: palette.paper });
      surface.rect(view.x, view.y, view.width, top - 1, { fill: palette.paper });
      surface.clip(view.x, y0 - (rowLabelled ? 0 : 8), left, Math.max(0, view.height - top + 8), () => {
        const first = Math.max(0, Math.floor((view.y - tall) / tall));
        const last = Math.min(rows.length, Math.ceil((view.y + view.height) / tall) + 1);
        const step = rowLabelled ? 1 : chooseStep(rows.length, tall);
        for (let r = rowLabelled ? first : 0; r < last; r += step) {
          const isMarked = r === selected || hover?.row === r;
          const words = rowLabelled ? fitText(rows[r], left - 30, LABEL_SIZE) : String(r);
          surface.text(x0 - 6, top + (r + 0.5) * tall + 4, words, { size: LABEL_SIZE, fill: isMarked ? palette.accent : palette.ink, anchor: "end", weight: isMarked ? 700 : 400 });
        }
      });
      surface.clip(x0 - 8, view.y, Math.max(0, view.width - left + 8), top, () => {
        const first = Math.max(0, Math.floor((view.x - cell) / cell));
        const last = Math.min(columns.length, Math.ceil((view.x + view.width) / cell) + 1);
        const step = labelled ? 1 : chooseStep(columns.length, cell);
        for (let c = labelled ? first : 0; c < last; c += step) {
          const isMarked = hover?.column === c;
          const style = { size: LABEL_SIZE, fill: isMarked ? palette.accent : palette.ink, weight: isMarked ? 700 : 400 };
          if (isLevel) surface.text(left + (c + 0.5) * cell, y0 - 6, columns[c], { ...style, anchor: "middle" });
          else if (labelled) surface.text(left + (c + 0.5) * cell + 4, y0 - 6, fitText(columns[c], top - 30, LABEL_SIZE), { ...style, upright: true });
          else surface.text(left + (c + 0.5) * cell, y0 - 6, isNumeric ? columns[c] : String(c), { ...style, anchor: "middle" });
        }
      });
      surface.text(x0, view.y + 13, columnTitle, { size: 11, fill: palette.soft });
      surface.text(view.x + 12, Math.min(y0 + 4 + measureWidth(rowTitle, 11), view.y + view.height - 4), rowTitle, { size: 11, fill: palette.soft, upright: true });
    },
    locateCell: (row, column) => ({ x: left + column * cell, y: top + row * tall, width: cell, height: tall }),
    pick(x, y) {
      const column = Math.floor((x - left) / cell);
      const row = Math.floor((y - top) / tall);
      return column >= 0 && column < columns.length && row >= 0 && row < rows.length ? { row, column } : null;
    },
    describe: describe ?? ((hit) => `${rows[hit.row]} → ${columns[hit.column]}: ${formatNumber(values[hit.row * columns.length + hit.column])}`),
    choose,
  };
}

// Two digits in every cell: ".25", "-.03", "1.00".
function formatCell(value) {
  const words = Math.abs(value) < 10 && Math.abs(value) >= 0.001 ? value.toFixed(2) : formatNumber(value, 2);
  return words.replace(/^(-?)0\./, "$1.");
}

function chooseStep(count, cell) {
  return [8, 16, 32, 64, 128, 256, 512, 1024].find((step) => step * cell >= 40) ?? count;
}

// Lines over a common axis: series {name, points: [[x, y]], colour, dash}; drawn into a box of the surface.
export function drawChart(surface, box, { series, palette, title, xTitle, format = formatNumber }) {
  const values = series.flatMap((one) => one.points.map((point) => point[1])).filter(Number.isFinite);
  const places = series.flatMap((one) => one.points.map((point) => point[0]));
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const firstX = Math.min(...places);
  const lastX = Math.max(...places);
  const left = box.x + 46;
  const top = box.y + 22;
  const width = box.width - 56;
  const height = box.height - 58;
  const toPixels = ([x, y]) => [left + (width * (x - firstX)) / (lastX - firstX || 1), top + (height * (high - y)) / (high - low)];
  surface.text(box.x, box.y + 12, title, { size: 12, fill: palette.ink, weight: 600 });
  for (const share of [0, 0.5, 1]) {
    const value = low + (high - low) * share;
    const y = top + height * (1 - share);
    surface.line([[left, y], [left + width, y]], { stroke: palette.line });
    surface.text(left - 6, y + 4, format(value, 2), { size: 11, fill: palette.soft, anchor: "end" });
  }
  surface.text(left, top + height + 14, formatNumber(firstX, 2), { size: 11, fill: palette.soft });
  surface.text(left + width, top + height + 14, formatNumber(lastX, 2), { size: 11, fill: palette.soft, anchor: "end" });
  surface.text(left + width / 2, top + height + 14, xTitle, { size: 11, fill: palette.soft, anchor: "middle" });
  series.forEach((one, i) => {
    surface.line(one.points.map(toPixels), { stroke: one.colour, width: 2, dash: one.dash ?? [] });
    const x = left + i * 110;
    surface.line([[x, top + height + 27], [x + 18, top + height + 27]], { stroke: one.colour, width: 2, dash: one.dash ?? [] });
    surface.text(x + 23, top + height + 31, fitText(one.name, 86, 11), { size: 11, fill: palette.ink });
  });
}

// Words with a bar each: items {words, value, note}; drawn from a place on, within a width.
export function drawBars(surface, box, items, { palette, largest = 1, row = 22, labelWidth = 110, noteWidth = 62, marked = -1 }) {
  items.forEach((item, i) => {
    const y = box.y + i * row;
    const room = box.width - labelWidth - noteWidth;
    const share = Math.max(0, Math.min(1, item.value / (largest || 1)));
    surface.text(box.x + labelWidth - 8, y + row * 0.68, fitText(item.words, labelWidth - 10, 13), { size: 13, fill: i === marked ? palette.accent : palette.ink, anchor: "end", weight: i === marked ? 700 : 400 });
    surface.rect(box.x + labelWidth, y + 4, room, row - 8, { fill: palette.wash, radius: 2 });
    if (share > 0) surface.rect(box.x + labelWidth, y + 4, Math.max(1, room * share), row - 8, { fill: palette.accent, radius: 2 });
    surface.text(box.x + box.width, y + row * 0.68, item.note ?? formatNumber(item.value), { size: 12, fill: palette.soft, anchor: "end" });
  });
}

// A scale of colours with its ends.
export function drawLegend(surface, x, y, { palette, low, high, signed = false, title = "" }) {
  const steps = 24;
  let at = x;
  if (title) {
    surface.text(at, y + 10, title, { size: 11, fill: palette.soft });
    at += measureWidth(title, 11) + 10;
  }
  surface.text(at, y + 10, low, { size: 11, fill: palette.soft });
  at += measureWidth(low, 11) + 5;
  for (let i = 0; i < steps; i++) {
    const share = i / (steps - 1);
    surface.rect(at + i * 4, y, 4.5, 12, { fill: signed ? palette.pickSigned(2 * share - 1, 1) : palette.pickRising(share, 1) });
  }
  surface.rect(at - 0.5, y - 0.5, steps * 4 + 1, 13, { stroke: palette.line });
  surface.text(at + steps * 4 + 6, y + 10, high, { size: 11, fill: palette.soft });
}
