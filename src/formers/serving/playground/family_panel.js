// The family tree by year, and the facts and the diagram of one member.

import { formatCount, makeElement, makeSelect } from "./page/dom.js";
import { Stage } from "./page/stage.js";
import { fitText, measureWidth } from "./page/surfaces.js";

const ROW = 34;
const ENGLISH_FACTS = ["paper", "objective", "tasks", "shapes", "differs"]; // facts that are written in English in every language
const BOX = 26;
const BELOW = 48; // below a diagram: the name of a side, and how positions reach it

// Members in the order of a walk from the roots, children by year, with their depth.
export function orderMembers(members) {
  const names = new Set(members.map((one) => one.name));
  const children = (name) => members.filter((one) => one.parent === name).sort((a, b) => a.year - b.year || a.name.localeCompare(b.name));
  const ordered = [];
  const visit = (member, depth) => {
    ordered.push({ ...member, depth });
    children(member.name).forEach((child) => visit(child, depth + 1));
  };
  members.filter((one) => !names.has(one.parent)).sort((a, b) => a.year - b.year).forEach((root) => visit(root, 0));
  return ordered;
}

function makeTreePicture({ members, chosen, palette, width, choose }) {
  const years = members.map((one) => one.year);
  const first = Math.min(...years);
  const last = Math.max(...years);
  const left = 24;
  const right = 150;
  const column = Math.max(42, (width - left - right) / (last - first || 1));
  const placeX = (year) => left + (year - first) * column;
  const at = new Map(members.map((one, i) => [one.name, { x: placeX(one.year), y: 34 + i * ROW, width: measureWidth(one.title, 13, 600) + 18 }]));
  const line = new Set();
  for (let one = members.find((member) => member.name === chosen); one; one = members.find((member) => member.name === one.parent)) line.add(one.name);
  return {
    width: Math.max(width, placeX(last) + right), height: 44 + members.length * ROW,
    selectedPlace: { y: at.get(chosen).y, height: ROW, margin: 34 },
    draw(surface, view, hover) {
      for (let year = first; year <= last; year++) surface.line([[placeX(year), 24], [placeX(year), 40 + members.length * ROW]], { stroke: palette.line, alpha: 0.7 });
      for (const one of members) {
        const from = at.get(one.parent);
        const to = at.get(one.name);
        if (!from) continue;
        const isOnLine = line.has(one.name);
        surface.line([[from.x + 12, from.y + BOX], [from.x + 12, to.y + BOX / 2], [to.x, to.y + BOX / 2]], { stroke: isOnLine ? palette.accent : palette.soft, width: isOnLine ? 2 : 1, alpha: isOnLine ? 1 : 0.6 });
      }
      members.forEach((one, i) => {
        const box = at.get(one.name);
        const isChosen = one.name === chosen;
        surface.rect(box.x, box.y, box.width, BOX, { fill: isChosen ? palette.accent : palette.paper, stroke: line.has(one.name) ? palette.accent : hover?.index === i ? palette.ink : palette.line, radius: 4, line: line.has(one.name) ? 1.5 : 1 });
        surface.text(box.x + 9, box.y + 18, one.title, { size: 13, fill: isChosen ? palette.paper : palette.ink, weight: 600 });
      });
      surface.rect(view.x, view.y, view.width, 24, { fill: palette.paper });
      for (let year = first; year <= last; year++) surface.text(placeX(year), view.y + 16, String(year), { size: 12, fill: palette.soft });
    },
    pick(x, y) {
      const index = Math.floor((y - 34) / ROW);
      const box = members[index] && at.get(members[index].name);
      return box && x >= box.x && x <= box.x + box.width && y <= box.y + BOX ? { index } : null;
    },
    describe: ({ index }) => `${members[index].title} (${members[index].year}): ${members[index].help}`,
    choose: ({ index }) => choose(members[index].name),
  };
}

function nameParts(stack, text) {
  const rows = stack.input.map((name) => ({ words: text(`part_${name}`), kind: "input" }));
  const groups = stack.groups.map((group) => {
    const norm = text("part_norm");
    const parts = group.parts.map((name) => text(`part_${name}`));
    let lines = parts;
    let residuals = []; // first and last line that a residual connection goes around
    if (group.order === "pre" || group.order === "normed") {
      const begin = group.order === "pre" ? 0 : 1;
      lines = parts.flatMap((words) => [norm, words]);
      residuals = parts.map((_, i) => [2 * i + begin, 2 * i + 1]);
    }
    if (group.order === "post") {
      lines = parts.flatMap((words) => [words, norm]);
      residuals = parts.map((_, i) => [2 * i, 2 * i]);
    }
    if (group.order === "parallel") {
      lines = [norm, parts.join(" ∥ ")];
      residuals = [[0, 1]];
    }
    return { count: group.count, lines, residuals };
  });
  return { rows, groups };
}

// Words in the largest size that fits, cut only below the smallest.
function writeFitted(surface, x, y, words, room, style) {
  const size = [12, 11, 10].find((one) => measureWidth(words, one, style.weight) <= room) ?? 10;
  surface.text(x, y, fitText(words, room, size, style.weight), { ...style, size, anchor: "middle" });
}

// Boxes from the bottom (tokens) to the top (output), a frame around what is repeated.
function makeDiagramPicture({ member, palette, text, width }) {
  const { stacks, output } = member.diagram;
  const column = Math.min(300, (width - 24) / stacks.length);
  const lineHeight = 30;
  const plans = stacks.map((stack) => {
    const { rows, groups } = nameParts(stack, text);
    const items = rows.map((row) => ({ type: "input", words: row.words }));
    for (const group of groups) items.push({ type: "group", ...group, isShared: stack.is_shared });
    if (!groups.length) items.push({ type: "plain", words: text("part_table") }); // word vectors have no layers
    if (stack.has_norm) items.push({ type: "plain", words: text("part_norm") });
    const height = items.reduce((sum, item) => sum + (item.type === "group" ? item.lines.length * lineHeight + 40 : lineHeight), 0);
    return { stack, items, height };
  });
  const tallest = Math.max(...plans.map((plan) => plan.height));
  const top = 58;
  const height = top + tallest + BELOW + 10;
  return {
    width, height,
    draw(surface) {
      plans.forEach((plan, s) => {
        const x = 12 + s * column;
        const inner = column - 24;
        let y = height - BELOW;
        const middle = x + inner / 2;
        surface.line([[middle, height - BELOW], [middle, height - BELOW - plan.height - 10]], { stroke: palette.soft });
        const drawBox = (words, fill, indent, weight = 400) => {
          surface.rect(x + indent, y - lineHeight + 4, inner - 2 * indent, lineHeight - 8, { fill, stroke: palette.line, radius: 4 });
          writeFitted(surface, middle, y - lineHeight / 2 + 4, words, inner - 2 * indent - 6, { fill: palette.ink, weight });
          y -= lineHeight;
        };
        for (const item of plan.items) {
          if (item.type !== "group") {
            drawBox(item.words, item.type === "input" ? palette.wash : palette.paper, 16);
            continue;
          }
          const box = item.lines.length * lineHeight + 34;
          surface.rect(x + 4, y - box, inner - 8, box, { fill: palette.paper, stroke: palette.accent, radius: 6, line: 1.5 });
          const name = item.isShared ? "shared_layer" : plan.stack.groups.length > 1 && item.residuals.length ? "layers_in_turn" : "layers_times";
          const words = text(name, { count: item.count });
          surface.text(x + 14, y - box + 17, fitText(words, inner - 30, 12, 600), { size: 12, fill: palette.accent, weight: 600 });
          y -= 6;
          const norm = text("part_norm");
          for (const [low, high] of item.residuals) {
            const edge = x + inner - 20;
            const bottom = y - low * lineHeight;
            const end = y - (high + 1) * lineHeight;
            surface.line([[middle, bottom], [edge + 10, bottom], [edge + 10, end], [middle, end]], { stroke: palette.accent, width: 1.2 });
          }
          for (const line of item.lines) drawBox(line, line === norm ? palette.wash : palette.pickShare(0.18), 22);
          y -= 34;
        }
        const style = { fill: palette.soft, weight: 400 };
        writeFitted(surface, middle, height - 28, text(`side_${plan.stack.name}`), inner, style);
        if (plan.stack.positions !== "none") writeFitted(surface, middle, height - 11, text("positions", { name: text(`positions_${plan.stack.positions}`) }), inner, style);
        const isLast = s === plans.length - 1;
        if (isLast && output !== "none") {
          surface.rect(x + 16, 10, inner - 32, 26, { stroke: palette.accent, radius: 4, fill: palette.paper });
          writeFitted(surface, middle, 27, text("part_output", { name: output }), inner - 44, { fill: palette.ink, weight: 600 });
          surface.line([[middle, 36], [middle, height - BELOW - plan.height]], { stroke: palette.soft });
        } else if (!isLast) {
          // The encoder's result enters every layer of the decoder.
          const turn = height - BELOW - plan.height - 10;
          surface.line([[middle, turn], [x + column - 6, turn], [x + column - 6, height - BELOW - plans[s + 1].height / 2], [x + column + 14, height - BELOW - plans[s + 1].height / 2]], { stroke: "#c76a00", width: 2 });
        }
      });
    },
  };
}

function describeDiagram(member, text) {
  return member.diagram.stacks.map((stack) => {
    const { rows, groups } = nameParts(stack, text);
    return `${text(`side_${stack.name}`)}: ${[...rows.map((row) => row.words), ...groups.map((group) => `${group.count} × (${group.lines.join(", ")})`)].join(", ")}`;
  }).join("; ");
}

export class FamilyPanel {
  constructor(root, { members, text, language, makePalette, chosen }) {
    Object.assign(this, { root, text, language, makePalette });
    this.members = orderMembers(members);
    this.chosen = this.members.some((one) => one.name === chosen) ? chosen : "bert";
    this.controls = makeElement("div", { class: "fv-bar" });
    this.tree = makeElement("div");
    this.facts = makeElement("div", { class: "pg-card pg-facts", "aria-live": "polite" });
    root.replaceChildren(this.controls, makeElement("div", { class: "pg-columns pg-family" }, this.tree, this.facts));
    const announce = () => {};
    this.treeStage = new Stage(this.tree, { label: text("tree_label"), announce, move: (event) => this.handleKey(event), share: 3 });
    this.draw();
  }

  choose(name) {
    this.chosen = name;
    this.draw();
  }

  handleKey(event) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!step) return false;
    const at = this.members.findIndex((one) => one.name === this.chosen);
    this.choose(this.members[Math.max(0, Math.min(this.members.length - 1, at + step))].name);
    return true;
  }

  draw() {
    const { text } = this;
    const palette = this.makePalette();
    const member = this.members.find((one) => one.name === this.chosen);
    this.controls.replaceChildren(makeSelect(text("family_member"), this.members.map((one) => [one.name, `${"  ".repeat(one.depth)}${one.title} (${one.year})`]), this.chosen, (name) => this.choose(name)));
    this.treeStage.show(makeTreePicture({ members: this.members, chosen: this.chosen, palette, width: this.treeStage.width, choose: (name) => this.choose(name) }), text("tree_label"));
    const facts = [["year", String(member.year)], ["paper", null], ["parent", this.members.find((one) => one.name === member.parent)?.title ?? (member.parent === "–" ? "–" : text(`ancestor_${member.parent}`))], ["objective", member.objective || "–"], ["tokenizer", member.tokenizer], ["tasks", member.tasks.join(", ") || "–"], ["shapes", member.shapes], ["differs", member.differs === "no known differences" ? text("differs_none") : member.differs]];
    const list = makeElement("dl");
    for (const [name, value] of facts) {
      list.append(makeElement("dt", { text: text(name) }), makeElement("dd", { text: name === "paper" ? member.paper : value, lang: ENGLISH_FACTS.includes(name) && value !== text("differs_none") ? "en" : null }));
    }
    const table = makeElement("table", {}, makeElement("thead", {}, makeElement("tr", {}, makeElement("th", { scope: "col", text: text("preset") }), makeElement("th", { scope: "col", text: text("parameters") }))),
      makeElement("tbody", {}, ...member.presets.map((one) => makeElement("tr", {}, makeElement("td", { text: one.name }), makeElement("td", { text: formatCount(one.parameters) })))));
    const news = this.language === "ko" ? makeElement("p", { text: member.korean }) : makeElement("ol", {}, ...member.new.map((words) => makeElement("li", { text: words })));
    const diagram = makeElement("div");
    this.facts.replaceChildren(makeElement("h2", { text: member.title }), makeElement("h3", { text: text("new") }), news, makeElement("h3", { text: text("diagram") }), diagram, list, table);
    const stage = new Stage(diagram, { label: "", announce: () => {}, move: () => false, share: 2 });
    stage.show(makeDiagramPicture({ member, palette, text, width: stage.width }), text("diagram_label", { name: member.title, words: describeDiagram(member, text) }));
  }
}

