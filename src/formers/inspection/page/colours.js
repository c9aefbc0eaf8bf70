// Colours: those of the page's theme, and colour maps that colour-blind readers can read (one hue by lightness, and
// blue against orange around zero).

const SEQUENTIAL = {
  light: ["#ffffff", "#dce8fb", "#9dc0f0", "#4f8bdc", "#1f5bb5", "#0b2f6b"],
  dark: ["#151a22", "#1d3357", "#2a5590", "#4a86d0", "#8fbdf5", "#eaf3ff"],
};
const DIVERGING = {
  light: ["#8f4a00", "#d98324", "#f6d3a6", "#ffffff", "#b5d0f3", "#4f8bdc", "#12458f"],
  dark: ["#ffc37d", "#d98324", "#6f4416", "#151a22", "#1f4272", "#4a86d0", "#b5d7ff"],
};
// For kinds without an order (experts, lines of a chart); told apart by lightness too, and always beside a label.
export const CATEGORIES = ["#2f6fd0", "#c76a00", "#3c8d5a", "#9b59b6", "#a8763e", "#d1495b", "#5b6b7d", "#1b9aaa"];
const SIZE = 256;

function parseColour(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function buildTable(stops) {
  const colours = stops.map(parseColour);
  const table = new Uint8ClampedArray(SIZE * 4);
  for (let i = 0; i < SIZE; i++) {
    const place = (i / (SIZE - 1)) * (colours.length - 1);
    const low = Math.min(Math.floor(place), colours.length - 2);
    const share = place - low;
    for (let c = 0; c < 3; c++) table[4 * i + c] = colours[low][c] * (1 - share) + colours[low + 1][c] * share;
    table[4 * i + 3] = 255;
  }
  return table;
}

const TABLES = {};
for (const theme of ["light", "dark"]) TABLES[theme] = { rising: buildTable(SEQUENTIAL[theme]), signed: buildTable(DIVERGING[theme]) };

function limitIndex(share) {
  return Math.max(0, Math.min(SIZE - 1, Math.round(share * (SIZE - 1))));
}

function formatColour(table, index) {
  return `rgb(${table[4 * index]},${table[4 * index + 1]},${table[4 * index + 2]})`;
}

// The colours of a theme. A weight's colour follows its square root: most weights are small, and all should be seen.
export class Palette {
  constructor(root, theme) {
    const style = getComputedStyle(root);
    for (const name of ["ink", "soft", "line", "paper", "wash", "accent"]) this[name] = style.getPropertyValue(`--${name}`).trim();
    this.theme = theme;
    this.tables = TABLES[theme];
  }

  pickRising(value, largest) {
    return formatColour(this.tables.rising, limitIndex(Math.sqrt(Math.max(0, value) / (largest || 1))));
  }

  // The colour of a share from 0 to 1 without the square root.
  pickShare(share) {
    return formatColour(this.tables.rising, limitIndex(share));
  }

  pickSigned(value, largest) {
    return formatColour(this.tables.signed, limitIndex(0.5 + value / (2 * (largest || 1))));
  }

  // Black or white, whichever has the higher contrast (WCAG's relative luminance) on a colour.
  pickInk(colour) {
    const [r, g, b] = colour.match(/\d+/g).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.19 ? "#10141b" : "#ffffff";
  }

  // A canvas with one pixel for each value of a matrix.
  paintMatrix(values, width, height, largest, signed = false) {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const table = new Uint32Array((signed ? this.tables.signed : this.tables.rising).buffer);
    const scale = 1 / (largest || 1);
    const last = SIZE - 1;
    for (let i = 0; i < pixels.length; i++) {
      const share = signed ? 0.5 + (values[i] * scale) / 2 : Math.sqrt(values[i] > 0 ? values[i] * scale : 0);
      pixels[i] = table[share >= 1 ? last : share <= 0 ? 0 : (share * last + 0.5) | 0];
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
}
