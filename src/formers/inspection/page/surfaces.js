// Drawing surfaces with one interface: a canvas for the screen and PNG files, and an SVG file.

export const FONT =
  'system-ui, "Noto Sans KR", "Noto Sans CJK KR", "Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans", sans-serif';

let ruler = null;
const widths = new Map();

// The width of words in pixels; remembered, since the same tokens are measured at every frame.
export function measureWidth(words, size = 13, weight = 400) {
  const key = `${size}|${weight}|${words}`;
  let width = widths.get(key);
  if (width === undefined) {
    ruler ??= document.createElement("canvas").getContext("2d");
    ruler.font = `${weight} ${size}px ${FONT}`;
    width = ruler.measureText(words).width;
    if (widths.size > 20000) widths.clear();
    widths.set(key, width);
  }
  return width;
}

// Words cut to a width, with an ellipsis; characters are counted as a reader does (emoji and syllables whole).
export function fitText(words, width, size = 13, weight = 400) {
  if (measureWidth(words, size, weight) <= width) return words;
  const letters = Array.from(words);
  while (letters.length > 1 && measureWidth(letters.join("") + "…", size, weight) > width) letters.pop();
  return letters.join("") + "…";
}

export class CanvasSurface {
  constructor(context) {
    this.context = context;
  }

  rect(x, y, width, height, { fill, stroke, radius = 0, alpha = 1, line = 1 } = {}) {
    const c = this.context;
    c.globalAlpha = alpha;
    c.beginPath();
    if (radius) c.roundRect(x, y, width, height, radius);
    else c.rect(x, y, width, height);
    this.paintPath(fill, stroke, line);
  }

  line(points, { stroke, width = 1, alpha = 1, dash = [] }) {
    const c = this.context;
    c.globalAlpha = alpha;
    c.strokeStyle = stroke;
    c.lineWidth = width;
    c.setLineDash(dash);
    c.beginPath();
    points.forEach(([x, y], i) => (i ? c.lineTo(x, y) : c.moveTo(x, y)));
    c.stroke();
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  // A smooth connection: horizontal at both ends, or vertical where `upright`.
  curve(x1, y1, x2, y2, { stroke, width = 1, alpha = 1, upright = false }) {
    const c = this.context;
    c.globalAlpha = alpha;
    c.strokeStyle = stroke;
    c.lineWidth = width;
    c.beginPath();
    c.moveTo(x1, y1);
    if (upright) c.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
    else c.bezierCurveTo((x1 + x2) / 2, y1, (x1 + x2) / 2, y2, x2, y2);
    c.stroke();
    c.globalAlpha = 1;
  }

  circle(x, y, radius, { fill, stroke, alpha = 1, line = 1 } = {}) {
    const c = this.context;
    c.globalAlpha = alpha;
    c.beginPath();
    c.arc(x, y, radius, 0, 2 * Math.PI);
    this.paintPath(fill, stroke, line);
  }

  // Fill and stroke the current path as asked, and make what follows opaque again.
  paintPath(fill, stroke, line) {
    const c = this.context;
    if (fill) {
      c.fillStyle = fill;
      c.fill();
    }
    if (stroke) {
      c.strokeStyle = stroke;
      c.lineWidth = line;
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  text(x, y, words, { size = 13, fill, anchor = "start", weight = 400, alpha = 1, upright = false } = {}) {
    const c = this.context;
    c.globalAlpha = alpha;
    c.font = `${weight} ${size}px ${FONT}`;
    c.fillStyle = fill;
    c.textAlign = anchor === "middle" ? "center" : anchor;
    if (upright) {
      c.save();
      c.translate(x, y);
      c.rotate(-Math.PI / 2);
      c.fillText(words, 0, 0);
      c.restore();
    } else c.fillText(words, x, y);
    c.globalAlpha = 1;
  }

  image(source, x, y, width, height) {
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(source, x, y, width, height);
  }

  clip(x, y, width, height, draw) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(x, y, width, height);
    c.clip();
    draw();
    c.restore();
  }
}

function escapeMarkup(words) {
  return String(words).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

const round = (value) => Math.round(value * 100) / 100;

export class SvgSurface {
  constructor(width, height, background) {
    this.width = width;
    this.height = height;
    this.parts = [`<rect width="${width}" height="${height}" fill="${background}"/>`];
    this.clips = 0;
  }

  rect(x, y, width, height, { fill = "none", stroke, radius = 0, alpha = 1, line = 1 } = {}) {
    const edge = stroke ? ` stroke="${stroke}" stroke-width="${line}"` : "";
    const corner = radius ? ` rx="${radius}"` : "";
    this.parts.push(
      `<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" fill="${fill}"${edge}${corner} opacity="${round(alpha)}"/>`,
    );
  }

  line(points, { stroke, width = 1, alpha = 1, dash = [] }) {
    const places = points.map(([x, y]) => `${round(x)},${round(y)}`).join(" ");
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(`<polyline points="${places}" fill="none" stroke="${stroke}" stroke-width="${round(width)}" opacity="${round(alpha)}"${dashes}/>`);
  }

  curve(x1, y1, x2, y2, { stroke, width = 1, alpha = 1, upright = false }) {
    const x = round((x1 + x2) / 2);
    const y = round((y1 + y2) / 2);
    const bend = upright ? `${round(x1)} ${y} ${round(x2)} ${y}` : `${x} ${round(y1)} ${x} ${round(y2)}`;
    this.parts.push(
      `<path d="M${round(x1)} ${round(y1)}C${bend} ${round(x2)} ${round(y2)}" fill="none" stroke="${stroke}" stroke-width="${round(width)}" opacity="${round(alpha)}"/>`,
    );
  }

  circle(x, y, radius, { fill = "none", stroke, alpha = 1, line = 1 } = {}) {
    const edge = stroke ? ` stroke="${stroke}" stroke-width="${line}"` : "";
    this.parts.push(`<circle cx="${round(x)}" cy="${round(y)}" r="${round(radius)}" fill="${fill}"${edge} opacity="${round(alpha)}"/>`);
  }

  text(x, y, words, { size = 13, fill, anchor = "start", weight = 400, alpha = 1, upright = false } = {}) {
    const turn = upright ? ` transform="translate(${round(x)} ${round(y)}) rotate(-90)"` : ` x="${round(x)}" y="${round(y)}"`;
    this.parts.push(
      `<text${turn} font-size="${size}" font-weight="${weight}" fill="${fill}" text-anchor="${anchor}" opacity="${round(alpha)}" xml:space="preserve">${escapeMarkup(words)}</text>`,
    );
  }

  image(source, x, y, width, height) {
    this.parts.push(
      `<image x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${source.toDataURL("image/png")}"/>`,
    );
  }

  clip(x, y, width, height, draw) {
    const name = `clip${this.clips++}`;
    this.parts.push(`<clipPath id="${name}"><rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"/></clipPath><g clip-path="url(#${name})">`);
    draw();
    this.parts.push("</g>");
  }

  toString() {
    const family = escapeMarkup(FONT);
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" font-family="${family}">${this.parts.join("")}</svg>\n`;
  }
}

// A surface whose drawing is moved by (dx, dy).
export function shiftSurface(surface, dx, dy) {
  const move = (points) => points.map(([x, y]) => [x + dx, y + dy]);
  return {
    rect: (x, y, w, h, style) => surface.rect(x + dx, y + dy, w, h, style),
    line: (points, style) => surface.line(move(points), style),
    curve: (x1, y1, x2, y2, style) => surface.curve(x1 + dx, y1 + dy, x2 + dx, y2 + dy, style),
    circle: (x, y, r, style) => surface.circle(x + dx, y + dy, r, style),
    text: (x, y, words, style) => surface.text(x + dx, y + dy, words, style),
    image: (source, x, y, w, h) => surface.image(source, x + dx, y + dy, w, h),
    clip: (x, y, w, h, draw) => surface.clip(x + dx, y + dy, w, h, draw),
  };
}
