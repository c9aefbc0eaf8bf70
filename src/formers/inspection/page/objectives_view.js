// Pretraining objectives on the reader's own sentence: what is hidden, what is asked for, step by step.

import { makeButton, makeElement, makeSelect } from "./dom.js";
import { fitText, measureWidth } from "./surfaces.js";
import { drawToken, findBox, layoutFlow, showToken } from "./tokens.js";

const STEP_SECONDS = 1.6;
const GLIDE = 700; // milliseconds in which tokens move from one step to the next

function chooseStyle(state, palette) {
  const filled = (fill, ink = "#ffffff") => ({ fill, ink, stroke: fill });
  return {
    kept: { fill: palette.paper, ink: palette.ink, stroke: palette.line },
    special: { fill: palette.wash, ink: palette.soft, stroke: palette.line },
    masked: filled("#1f5bb5"),
    replaced: filled("#a85800"),
    random: filled("#a85800"),
    sentinel: filled("#75429b"),
    target: filled("#2b7346"),
    dropped: { fill: palette.paper, ink: palette.soft, stroke: palette.soft, struck: true },
    moved: filled("#116b77"),
    hidden: filled("#4a5665"),
  }[state] ?? { fill: palette.paper, ink: palette.ink, stroke: palette.line };
}

// For each token of a step, the token of the step before that it was: by place if nothing moved, else by its word.
function matchTokens(before, after) {
  if (before.length === after.length && !after.some((token) => token.state === "moved")) return after.map((_, i) => i);
  const free = new Set(before.keys());
  return after.map((token, i) => {
    let best = -1;
    for (const j of free) if (before[j].text === token.text && (best < 0 || Math.abs(j - i) < Math.abs(best - i))) best = j;
    free.delete(best);
    return best;
  });
}

// An objective in the language of the page: titles, notes and answers in words may have translations beside them.
function translateObjective(objective, language) {
  const pick = (one) => ({ ...one, ...(typeof one[language] === "string" ? { text: one[language] } : one[language]) });
  return { ...pick(objective), steps: objective.steps.map((part) => ({ ...pick(part), tokens: part.tokens.map(pick) })) };
}

function readObjective({ document, state, language }) {
  const at = Math.min(state.objective, document.objectives.length - 1);
  const objective = translateObjective(document.objectives[at], language);
  return { at, objective, step: Math.min(state.step, objective.steps.length - 1) };
}

export const objectivesView = {
  id: "objectives",
  has: (document) => (document.objectives ?? []).length > 0,
  controls(context) {
    const { document, text, state, update } = context;
    const { at, objective, step } = readObjective(context);
    const names = document.objectives.map((one, i) => [i, `${one.family}: ${one.name}`]);
    const count = objective.steps.length;
    const group = makeElement("div", { class: "fv-buttons", role: "group", "aria-label": text("steps") });
    group.append(
      makeButton("←", () => update({ step: Math.max(0, step - 1), isPlaying: false }), { "aria-label": text("step_back"), disabled: step === 0 }),
      makeButton(state.isPlaying ? text("pause") : text("play"), () => update(state.isPlaying ? { isPlaying: false } : { isPlaying: true, step: step === count - 1 ? 0 : step })),
      makeButton("→", () => update({ step: Math.min(count - 1, step + 1), isPlaying: false }), { "aria-label": text("step_on"), disabled: step === count - 1 }),
      makeElement("span", { class: "fv-soft", text: text("step_of", { step: step + 1, count }) }),
    );
    return [makeSelect(text("objective"), names, at, (value) => update({ objective: Number(value), step: 0, isPlaying: true })), group];
  },
  explain: ({ text, ...context }) => {
    const { objective } = readObjective(context);
    const help = objective.help ? `${objective.help[0].toUpperCase()}${objective.help.slice(1).replace(/\.$/, "")}.` : "";
    return [text("explain_objectives"), help, objective.tokenizer === "small" ? text("small_tokenizer") : ""].filter(Boolean).join(" ");
  },
  // The time after which the next step is shown, while it plays.
  wait(context) {
    const { objective, step } = readObjective(context);
    if (!context.state.isPlaying) return null;
    return step < objective.steps.length - 1 ? [STEP_SECONDS * 1000, { step: step + 1 }] : [STEP_SECONDS * 1000, { isPlaying: false }];
  },
  build(context) {
    const { palette, text, width } = context;
    const { objective, step } = readObjective(context);
    const rows = [];
    let y = 6;
    for (const [i, part] of objective.steps.slice(0, step + 1).entries()) {
      const flow = layoutFlow(part.tokens.map(showToken), width - 24, { left: 12, top: y + 44, size: 15, height: 28 });
      rows.push({ ...part, boxes: flow.boxes, y, sources: i ? matchTokens(objective.steps[i - 1].tokens, part.tokens) : null });
      y += 44 + flow.height + 26;
    }
    const states = [...new Set(objective.steps.flatMap((part) => part.tokens.map((token) => token.state)))].filter((name) => name !== "kept" && name !== "special");
    const isStill = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const started = performance.now();
    return {
      width, height: y + 30, duration: isStill || step === 0 ? 0 : GLIDE,
      selectedPlace: { y: rows[step].y, height: y - rows[step].y, margin: 0 },
      draw(surface, view, hover) {
        const share = isStill || step === 0 ? 1 : Math.min(1, (performance.now() - started) / GLIDE);
        const eased = 1 - (1 - share) ** 3;
        rows.forEach((row, r) => {
          const isCurrent = r === step;
          surface.text(12, row.y + 16, `${r + 1}. ${row.title}`, { size: 13, fill: isCurrent ? palette.ink : palette.soft, weight: 600 });
          surface.text(12, row.y + 34, fitText(row.note ?? "", width - 24, 12), { size: 12, fill: palette.soft });
          row.tokens.forEach((token, i) => {
            const style = chooseStyle(token.state, palette);
            let box = row.boxes[i];
            let alpha = 1;
            if (isCurrent && share < 1) {
              const from = row.sources?.[i] >= 0 ? rows[r - 1].boxes[row.sources[i]] : null;
              if (from) box = { ...box, x: from.x + (box.x - from.x) * eased, y: from.y + (box.y - from.y) * eased };
              else alpha = eased;
            }
            const isHovered = hover?.row === r && hover.token === i;
            drawToken(surface, box, { ...style, stroke: isHovered ? palette.ink : style.stroke, size: 15, alpha });
            if (style.struck) surface.line([[box.x + 3, box.y + 14], [box.x + box.width - 3, box.y + 14]], { stroke: palette.soft, width: 1.5 });
          });
        });
        let x = 12;
        for (const name of states) {
          const style = chooseStyle(name, palette);
          surface.rect(x, y + 8, 12, 12, { fill: style.fill, stroke: style.stroke, radius: 2 });
          surface.text(x + 17, y + 18, text(`state_${name}`), { size: 11, fill: palette.soft });
          x += 17 + measureWidth(text(`state_${name}`), 11) + 16;
        }
      },
      pick(x, py) {
        for (const [row, part] of rows.entries()) {
          const token = findBox(part.boxes, x, py);
          if (token >= 0) return { row, token };
        }
        return null;
      },
      describe(hit) {
        const token = rows[hit.row].tokens[hit.token];
        return `${showToken(token)}: ${text(`state_${token.state}`)}`;
      },
    };
  },
  table(context) {
    const { text } = context;
    const { objective } = readObjective(context);
    const rows = objective.steps.map((part, i) => [String(i + 1), part.title, part.tokens.map((token) => (token.state === "kept" || token.state === "special" ? showToken(token) : `${showToken(token)} [${text(`state_${token.state}`)}]`)).join(" "), part.note ?? ""]);
    return { caption: `${objective.family}: ${objective.name}`, head: [text("steps"), text("title"), text("token"), text("note")], rows };
  },
  label: (context) => context.text("tab_objectives"),
};
