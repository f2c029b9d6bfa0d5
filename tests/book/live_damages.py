"""Mistakes that a careless programmer could make in the live figures' arithmetic."""

_PAIR = """for (let i = 2 * pair; i < x.length; i += width) {
      turned[i] = x[i] * cos - x[i + 1] * sin;
      turned[i + 1] = x[i] * sin + x[i + 1] * cos;"""
_SPLIT = _PAIR.replace("i = 2 * pair", "i = pair").replace("i + 1", "i + width / 2")

TENSOR = {
    "Math.exp(scores[i] - largest)": "Math.exp(scores[i])",
    "if (largest === -Infinity) return weights;": "",
    "weights[i] /= sum": "weights[i] /= sum + 1e-3",
    "factor * b[k * p + column]": "factor * b[column * m + k]",
    "w3 = w2 + m": "w3 = w2",
    "sum0 += factor * w[w0 + k]": "sum0 += factor * w[k * p + column]",
    "const whole = p - (p % 4)": "const whole = p",
    "dot(weights, a.subarray(row * m, (row + 1) * m))": "dot(weights, a.subarray(0, m))",
    "(x[start + i] - mean) ** 2 / width": "(x[start + i] - mean) ** 2 / (width - 1)",
    "1 / Math.sqrt(variance + eps)": "1 / (Math.sqrt(variance) + eps)",
    "1 / Math.sqrt(meanSquare + eps)": "1 / Math.sqrt(meanSquare)",
    "Math.max(0, value)": "Math.abs(value)",
    "value / (1 + Math.exp(-value))": "1 / (1 + Math.exp(-value))",
    "theta ** ((-2 * pair) / width)": "theta ** (-pair / width)",
    "added[2 * pair] = Math.sin(angle)": "added[2 * pair] = Math.cos(angle)",
    "x[i] * cos - x[i + 1] * sin": "x[i] * cos + x[i + 1] * sin",
    _PAIR: _SPLIT,
    "mixed | 61": "mixed | 60",
}
MODEL = {
    "bias.data[i % outputs]": "bias.data[i % inputs]",
    "rmsNorm(x, weight.data, config.norm_eps)": "rmsNorm(x, weight.data)",
    "layerNorm(x, weight.data, bias.data, config.norm_eps)": "layerNorm(x, weight.data, bias.data)",
    "silu(linear(x, gate))": "silu(linear(x, up))",
    "linear(relu(wide), down)": "linear(wide, down)",
    "S - T + t + 1 : S": "S - T + t + 2 : S",
    "const seen = causal ? S - T + t + 1": "const seen = causal ? t + 1",
    "sum / Math.sqrt(query.length)": "sum / query.length",
    "sum += query[i] * data[s * width + start + i]": "sum += query[i] * data[s * width + i]",
    "weights[s] * data[s * width + start + i]": "weights[s] * data[s * width + i]",
    "rotateRows(rows, memory.keys.length, config)": "rotateRows(rows, 0, config)",
    "d_model / n_heads, rope_theta": "d_model, rope_theta",
    "k = turn(linear(x, layer.key))": "k = linear(x, layer.key)",
    "const sum = add(x, update);": "const sum = update;",
    "work(before ? normed(x) : x": "work(x",
    "const after = before ? sum : normed(sum)": "const after = sum",
    "linear(source.x, cross_attention.key)": (
        "linear(source.x, this.decoder.stack.blocks[0].cross_attention.key)"
    ),
    "linear(source.x, cross_attention.value)": "linear(source.x, cross_attention.key)",
    "attend(linear(x, layer.query), memory, config.n_heads, false)": (
        "attend(linear(x, layer.query), memory, config.n_heads, true)"
    ),
    "sinusoid(position + t, D)": "sinusoid(t, D)",
    "config.scale_embeddings ? Math.sqrt(D) : 1": "1",
    "cache.length += ids.length;": "",
    "last ? norm(x, last, this.config) : x": "x",
    "x.subarray(-this.config.d_model)": "x.subarray(0, this.config.d_model)",
    "numbers[i] * scales[row]": "numbers[i] * scales[0]",
    "three = (three << 6)": "three = (three << 5)",
    "floats.subarray(float, float + rows)": "floats.subarray(float + 1, float + 1 + rows)",
    "4 * header.floats)": "header.floats)",
    'parts.map((part) => part[0]).join("")': 'parts.map((part) => part[0]).reverse().join("")',
    "parts.length === PARTS": "parts.length === PARTS - 1",
}
TEXT = {
    "byte !== 173 && ": "",
    "Array.from(text).flatMap": 'text.split("").flatMap',
    "first === 0xe0 ? 0xa0 : 0x80": "0x80",
    "bytes[end] >> 6 === 2": "bytes[end] > 127",
    "id < special.length ? [] : bytes[id]": "bytes[id]",
}
SEQ2SEQ = {
    "memories, this.config, kept, false)": "memories, this.config, kept, true)",
    "logit > logits[best]": "logit < logits[best]",
    "if (id === stop) break;": "",
}
BYTE_PAIRS = {
    "Math.min(n, merges.length)": "merges.length",
    "Math.min(best, rank": "Math.max(0, rank",
    "result[result.length - 1] === first && symbol": "symbol",
    "[${SPACE}]+(?![^${SPACE}])|": "",
}
FILES = {
    "tensor.js": TENSOR,
    "model.js": MODEL,
    "text.js": TEXT,
    "seq2seq.js": SEQ2SEQ,
    "byte_pairs.js": BYTE_PAIRS,
}
DAMAGES = [(file, old, new) for file, damages in FILES.items() for old, new in damages.items()]
