// Tokens as a reader sees them, and their layout as running text.

import { fitText, measureWidth } from "./surfaces.js";

// A token's words: white space made visible, a piece inside a character as a dot.
export function showToken(token) {
  if (token.joined || (token.text === "" && !token.special)) return "·";
  // Sentencepiece marks a space by ▁.
  const words = token.text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^▁+/, "").trim();
  return words === "" ? "␣" : words;
}

// The tokens of a side; with `memory`, the remembered ones come first.
export function listTokens(document, side, memory = 0) {
  const part = document.sides[side];
  const remembered = memory ? (part.memory_tokens ?? []).slice(-memory) : [];
  const missing = Array.from({ length: memory - remembered.length }, (_, i) => ({ text: `−${memory - i}`, special: true }));
  return [...missing, ...remembered].map((token) => ({ ...token, remembered: true })).concat(part.tokens);
}

// Boxes (x, y, width, height) of words set as running text within a width.
export function layoutFlow(words, width, { size = 14, height = 26, gap = 3, pad = 6, left = 0, top = 0, most = 180, breaks = null } = {}) {
  const boxes = [];
  let x = left;
  let y = top;
  words.forEach((word, i) => {
    const wanted = Math.min(most, Math.max(12, measureWidth(word, size) + 2 * pad));
    if (x > left && (x + wanted > left + width || breaks?.has(i))) {
      x = left;
      y += height + gap;
    }
    boxes.push({ x, y, width: wanted, height, words: fitText(word, wanted - 2 * pad + 1, size) });
    x += wanted + gap;
  });
  return { boxes, height: words.length ? y + height - top : 0 };
}

export function findBox(boxes, x, y) {
  return boxes.findIndex((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height);
}

// Draw a box with its word: on a colour, with a border where it is chosen.
export function drawToken(surface, box, { fill, ink, stroke, size = 14, weight = 400, alpha = 1, line = 1 }) {
  surface.rect(box.x, box.y, box.width, box.height, { fill, stroke, radius: 4, alpha, line });
  surface.text(box.x + box.width / 2, box.y + box.height / 2 + size * 0.36, box.words, { size, fill: ink, anchor: "middle", weight, alpha });
}

// A hit of the pointer is drawn only if it is inside what is seen.
export function isVisible(box, view) {
  return box.x < view.x + view.width && box.x + box.width > view.x && box.y < view.y + view.height && box.y + box.height > view.y;
}
