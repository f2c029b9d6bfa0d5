"use strict";
// The arithmetic of a Transformer on flat typed arrays. A matrix (n, m) is stored row after row. Results are
// Float64Arrays, so that rounding stays far below what the library's float32 has; weights are Float32Arrays.
(() => {
const Live = (globalThis.Live = globalThis.Live || {});

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

// Weights that are positive and sum to 1. A score of -Infinity is a forbidden key: its weight is 0.
function softmax(scores) {
  let largest = -Infinity;
  for (const score of scores) if (score > largest) largest = score;
  const weights = new Float64Array(scores.length);
  if (largest === -Infinity) return weights; // nothing may be attended to
  let sum = 0;
  for (let i = 0; i < weights.length; i++) {
    weights[i] = Math.exp(scores[i] - largest); // at most 1: it cannot overflow
    sum += weights[i];
  }
  for (let i = 0; i < weights.length; i++) weights[i] /= sum;
  return weights;
}

// (n, m) times (m, p)
function matmul(a, b, n, m, p) {
  const product = new Float64Array(n * p);
  for (let row = 0; row < n; row++) {
    for (let k = 0; k < m; k++) {
      const factor = a[row * m + k];
      for (let column = 0; column < p; column++) product[row * p + column] += factor * b[k * p + column];
    }
  }
  return product;
}

// (n, m) times (p, m) transposed: a linear layer, w as PyTorch stores it. Almost all time is spent here.
// Four rows of w at once: four sums that need not wait for each other, and each number of a is read once.
function matmulT(a, w, n, m, p) {
  const product = new Float64Array(n * p);
  const whole = p - (p % 4);
  for (let column = 0; column < whole; column += 4) {
    const w0 = column * m, w1 = w0 + m, w2 = w1 + m, w3 = w2 + m;
    for (let row = 0; row < n; row++) {
      let sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
      for (let k = 0; k < m; k++) {
        const factor = a[row * m + k];
        sum0 += factor * w[w0 + k];
        sum1 += factor * w[w1 + k];
        sum2 += factor * w[w2 + k];
        sum3 += factor * w[w3 + k];
      }
      const at = row * p + column;
      product[at] = sum0;
      product[at + 1] = sum1;
      product[at + 2] = sum2;
      product[at + 3] = sum3;
    }
  }
  for (let column = whole; column < p; column++) {
    const weights = w.subarray(column * m, (column + 1) * m);
    for (let row = 0; row < n; row++) {
      product[row * p + column] = dot(weights, a.subarray(row * m, (row + 1) * m));
    }
  }
  return product;
}

// Each row of x, as wide as the weight, gets mean 0 and variance 1, then weight and bias.
function layerNorm(x, weight, bias, eps = 1e-5) {
  const width = weight.length;
  const normalised = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let mean = 0, variance = 0;
    for (let i = 0; i < width; i++) mean += x[start + i] / width;
    for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2 / width;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < width; i++) {
      normalised[start + i] = weight[i] * (x[start + i] - mean) * scale + (bias ? bias[i] : 0);
    }
  }
  return normalised;
}

// Each row gets root mean square 1, then the weight; its mean stays.
function rmsNorm(x, weight, eps = 1e-5) {
  const width = weight.length;
  const normalised = new Float64Array(x.length);
  for (let start = 0; start < x.length; start += width) {
    let meanSquare = 0;
    for (let i = 0; i < width; i++) meanSquare += x[start + i] ** 2 / width;
    const scale = 1 / Math.sqrt(meanSquare + eps);
    for (let i = 0; i < width; i++) normalised[start + i] = weight[i] * x[start + i] * scale;
  }
  return normalised;
}

const relu = (x) => Float64Array.from(x, (value) => Math.max(0, value));
const silu = (x) => Float64Array.from(x, (value) => value / (1 + Math.exp(-value)));

// By what a pair turns: float32, as in the library.
const turn = (position, pair, width, theta) => Math.fround(position * Math.fround(theta ** ((-2 * pair) / width)));

// What is added to the embedding at a position: sines (even features) and cosines (odd ones).
function sinusoid(position, width, theta = 10000) {
  const added = new Float64Array(width);
  for (let pair = 0; pair < width / 2; pair++) {
    const angle = turn(position, pair, width, theta);
    added[2 * pair] = Math.sin(angle);
    added[2 * pair + 1] = Math.cos(angle);
  }
  return added;
}

// RoPE: neighbouring features, 0 with 1, 2 with 3, turn together. x may hold several heads of this width.
function rotate(x, position, width = x.length, theta = 10000) {
  const turned = new Float64Array(x.length);
  for (let pair = 0; pair < width / 2; pair++) {
    const angle = turn(position, pair, width, theta);
    const cos = Math.cos(angle), sin = Math.sin(angle);
    for (let i = 2 * pair; i < x.length; i += width) {
      turned[i] = x[i] * cos - x[i + 1] * sin;
      turned[i + 1] = x[i] * sin + x[i + 1] * cos;
    }
  }
  return turned;
}

// Numbers between 0 and 1, the same in Python for the same seed (mulberry32).
function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (((mixed ^ (mixed >>> 14)) >>> 0) + 0.5) / 2 ** 32; // never 0, which has no logarithm
  };
}

// n draws from the standard normal distribution, two at a time (Box-Muller).
function normals(seed, n) {
  const next = uniform(seed);
  const drawn = new Float64Array(n);
  for (let i = 0; i < n; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(next()));
    const angle = 2 * Math.PI * next();
    drawn[i] = radius * Math.cos(angle);
    if (i + 1 < n) drawn[i + 1] = radius * Math.sin(angle);
  }
  return drawn;
}

Live.tensor = {
  dot, softmax, matmul, matmulT, layerNorm, rmsNorm, relu, silu, sinusoid, rotate, uniform, normals,
};
})();
