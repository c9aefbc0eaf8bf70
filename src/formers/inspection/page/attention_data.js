// One kind of attention (encoder, decoder, cross, alignment …) of a document: its weights by measure.

import { decodeArray } from "./arrays.js";
import { listTokens, showToken } from "./tokens.js";

const decoded = new WeakMap();

// The attention of a kind, decoded once for each document.
export function getAttention(document, kind) {
  let kinds = decoded.get(document);
  if (!kinds) decoded.set(document, (kinds = new Map()));
  if (!kinds.has(kind)) kinds.set(kind, new AttentionData(document, kind));
  return kinds.get(kind);
}

export function listKinds(document) {
  return Object.keys(document.attention ?? {});
}

class AttentionData {
  constructor(document, kind) {
    const part = document.attention[kind];
    this.kind = kind;
    this.layers = part.layers;
    this.heads = part.heads;
    this.entropy = part.entropy;
    this.distance = part.distance;
    this.weights = decodeArray(part.weights);
    this.rollout = decodeArray(part.rollout);
    this.norms = decodeArray(part.value_norms);
    this.whole = part.whole ? { ...part.whole, weights: decodeArray(part.whole.weights) } : null;
    this.queryTokens = listTokens(document, part.queries);
    this.keyTokens = listTokens(document, part.keys, part.memory ?? 0);
    this.queries = this.queryTokens.map(showToken);
    this.keys = this.keyTokens.map(showToken);
    this.isSquare = part.queries === part.keys;
    this.memory = part.memory ?? 0;
    this.cache = new Map();
    this.querySide = part.queries;
    this.keySide = part.keys;
  }

  listMeasures() {
    return ["weights", ...(this.norms ? ["norms"] : []), ...(this.rollout ? ["rollout"] : [])];
  }

  // A measure has heads unless it follows the tokens through whole layers.
  hasHeads(measure) {
    return measure !== "rollout";
  }

  readMatrix(measure, layer, head) {
    if (measure === "rollout") return this.rollout.readMatrix(layer);
    if (measure !== "norms") {
      if (this.whole && this.whole.layer === layer && this.whole.head === head) return this.whole.weights.readMatrix(0);
      return this.weights.readMatrix(layer, head);
    }
    const key = `${layer}.${head}`;
    if (!this.cache.has(key)) {
      const heads = this.weights.listHeads(head);
      const sum = new Float32Array(this.weights.queries * this.weights.columns);
      for (const one of heads) {
        const norms = this.norms.readRow(layer * this.heads + one);
        const weights = this.weights.readMatrix(layer, one);
        for (let i = 0, k = 0; i < sum.length; i++, k = (k + 1) % norms.length) sum[i] += (weights[i] * norms[k]) / heads.length;
      }
      if (this.cache.size > 16) this.cache.clear();
      this.cache.set(key, sum);
    }
    return this.cache.get(key);
  }

  readQuery(measure, layer, head, query) {
    if (measure === "rollout") return this.rollout.readQuery(layer, 0, query);
    if (measure === "norms") {
      const columns = this.weights.columns;
      return this.readMatrix(measure, layer, head).subarray(query * columns, (query + 1) * columns);
    }
    return this.weights.readQuery(layer, head, query);
  }

  poolMatrix(measure, layer, head, size) {
    if (measure === "rollout") return this.rollout.poolMatrix(layer, 0, size);
    const norms = measure === "norms" ? this.norms.readRow(layer * this.heads + head) : null;
    return this.weights.poolMatrix(layer, head, size, norms);
  }
}
