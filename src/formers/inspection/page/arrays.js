// Arrays of a view document: weights packed into bytes, whole ("u8") or the strongest of each row ("top"), or floats.

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function multiplyAll(numbers) {
  return numbers.reduce((product, n) => product * n, 1);
}

function measureNested(list) {
  const shape = [];
  for (let level = list; Array.isArray(level); level = level[0]) shape.push(level.length);
  return shape;
}

const CACHED_MATRICES = 24;

// An array whose rows (its last axis) are read one at a time, so that 12 × 12 × 512 × 512 weights stay packed.
export class PackedArray {
  constructor(spec) {
    this.cache = new Map();
    if (Array.isArray(spec)) {
      this.shape = measureNested(spec);
      this.values = Float32Array.from(spec.flat(this.shape.length - 1), (value) => value ?? 0);
    } else {
      this.shape = spec.shape;
      const bytes = decodeBase64(spec.data);
      this.values = spec.encoding === "f32" ? new Float32Array(bytes.buffer) : bytes;
    }
    this.columns = this.shape[this.shape.length - 1];
    this.queries = this.shape.length > 1 ? this.shape[this.shape.length - 2] : 1;
    this.heads = this.shape.length === 4 ? this.shape[1] : 1;
    this.rows = multiplyAll(this.shape.slice(0, -1));
    if (this.values instanceof Uint8Array) {
      this.table = new Float32Array(256); // what each byte stands for
      for (let i = 0; i < 256; i++) this.table[i] = (i / 255) ** (spec.power ?? 1) * spec.scale;
    }
    if (spec.encoding === "top") {
      this.kept = spec.k;
      this.places = new Uint16Array(decodeBase64(spec.index).buffer);
    }
  }

  // Add a row, times `share`, to `out` from `start` on.
  addRow(row, out, start = 0, share = 1) {
    const { values, table, places } = this;
    if (places) {
      for (let i = row * this.kept, end = i + this.kept; i < end; i++) out[start + places[i]] += table[values[i]] * share;
      return;
    }
    for (let j = 0, i = row * this.columns; j < this.columns; j++, i++) out[start + j] += (table ? table[values[i]] : values[i]) * share;
  }

  readRow(row) {
    const out = new Float32Array(this.columns);
    this.addRow(row, out);
    return out;
  }

  listHeads(head) {
    return head < 0 ? Array.from({ length: this.heads }, (_, i) => i) : [Math.min(head, this.heads - 1)];
  }

  // One layer's and head's matrix of (L, H, Q, K), or one layer's of (L, Q, K). Head −1 is the mean of all heads.
  readMatrix(layer, head = 0) {
    const key = `${layer}.${head}`;
    let matrix = this.cache.get(key);
    if (matrix) return matrix;
    matrix = new Float32Array(this.queries * this.columns);
    const heads = this.listHeads(head);
    for (const one of heads) {
      const first = (layer * this.heads + one) * this.queries;
      for (let q = 0; q < this.queries; q++) this.addRow(first + q, matrix, q * this.columns, 1 / heads.length);
    }
    if (this.cache.size >= CACHED_MATRICES) this.cache.delete(this.cache.keys().next().value);
    this.cache.set(key, matrix);
    return matrix;
  }

  // One query's row, without building the matrix.
  readQuery(layer, head, query) {
    const out = new Float32Array(this.columns);
    const heads = this.listHeads(head);
    for (const one of heads) this.addRow((layer * this.heads + one) * this.queries + query, out, 0, 1 / heads.length);
    return out;
  }

  // A small picture of one head: the largest weight that falls on each of size × size cells.
  poolMatrix(layer, head, size, factors = null) {
    const out = new Float32Array(size * size);
    const row = new Float32Array(this.columns);
    const { values, table, places, columns } = this;
    for (let q = 0; q < this.queries; q++) {
      const base = (layer * this.heads + head) * this.queries + q;
      const line = Math.floor((q * size) / this.queries) * size;
      if (places) {
        for (let i = base * this.kept, end = i + this.kept; i < end; i++) {
          const value = table[values[i]] * (factors ? factors[places[i]] : 1);
          const place = line + Math.floor((places[i] * size) / columns);
          if (value > out[place]) out[place] = value;
        }
        continue;
      }
      row.fill(0);
      this.addRow(base, row);
      for (let k = 0; k < columns; k++) {
        const value = row[k] * (factors ? factors[k] : 1);
        const place = line + Math.floor((k * size) / columns);
        if (value > out[place]) out[place] = value;
      }
    }
    return out;
  }
}

// Decode an array of the document; what is absent stays null.
export function decodeArray(spec) {
  return spec === null || spec === undefined ? null : new PackedArray(spec);
}

export function findLargest(values) {
  let largest = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > largest) largest = values[i];
  return largest;
}

// The largest distance from zero.
export function findExtent(values) {
  let extent = 0;
  for (let i = 0; i < values.length; i++) if (Math.abs(values[i]) > extent) extent = Math.abs(values[i]);
  return extent;
}

// The places of the `count` largest values, largest first.
export function findTop(values, count) {
  const order = Array.from({ length: values.length }, (_, i) => i);
  return order.sort((a, b) => values[b] - values[a]).slice(0, count);
}
