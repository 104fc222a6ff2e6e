"""What runs on the device: x W^T for integers in groups (`grouped.py` has the layout) and 8-bit floats (`float8.py`).

A program computes a tile [TOKENS, ROWS] of the result, in float32, over every SPLIT-th step of inputs; `out` is
[SPLIT, num_tokens, num_rows]. Pointers move by 64 bits, offsets within a tile have 32: wide ones for every element
would fill the registers. Functions of Triton have no annotations but those of constants.
"""

import triton
import triton.language as tl


@triton.jit
def multiplied(activations, weight, total, WIDEN: tl.constexpr):
    """Add activations [tokens, step] x weight [rows, step]^T to total; widened numbers give the same products."""
    if WIDEN:
        activations, weight = activations.to(tl.float32), weight.to(tl.float32)
    return tl.dot(activations, tl.trans(weight), total, input_precision="ieee")


@triton.jit
def _dequantised(code, scales, minimums, at, mask):
    """Codes [rows, step] of one group: one scale and minimum a row."""
    scale = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
    minimum = tl.load(minimums + at, mask=mask, other=0.0).to(tl.float32)
    return code.to(tl.float32) * scale[:, None] + minimum[:, None]


@triton.jit(do_not_specialize=["num_tokens"])
def grouped_linear(
    x, codes, scales, minimums, order, out,
    num_tokens, num_rows, num_inputs, num_groups, group_size, stride,
    PER_BYTE: tl.constexpr, HAS_ORDER: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply by `GroupedInt`: codes [blocks, rows, STEP], PER_BYTE steps a block; scales, minimums [groups, rows]."""
    first, part = tl.program_id(1) * TOKENS, tl.program_id(2)
    tokens, inner = tl.arange(0, TOKENS), tl.arange(0, STEP)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    has_token, has_row = first + tokens < num_tokens, n < num_rows
    x += first.to(tl.int64) * stride
    codes += part.to(tl.int64) * num_rows * STEP
    total = tl.zeros((TOKENS, ROWS), dtype=tl.float32)
    for block in range(part, tl.cdiv(num_inputs, STEP * PER_BYTE), SPLIT):
        packed = tl.load(codes + n[:, None] * STEP + inner[None, :], mask=has_row[:, None], other=0)
        codes += SPLIT * num_rows * STEP
        for half in tl.static_range(PER_BYTE):
            k = (block * PER_BYTE + half) * STEP + inner
            inside = k < num_inputs
            columns = tl.load(order + k, mask=inside, other=0) if HAS_ORDER else k
            at = tokens[:, None] * stride + columns[None, :]
            activations = tl.load(x + at, mask=has_token[:, None] & inside[None, :], other=0.0)
            code = (packed >> (4 * half)) & 15 if PER_BYTE == 2 else packed
            group = tl.minimum((block * PER_BYTE + half) * STEP // group_size, num_groups - 1)
            weight = _dequantised(code, scales, minimums, group * num_rows + n, has_row)
            total = multiplied(activations, weight.to(activations.dtype), total, WIDEN)
    out += (part.to(tl.int64) * num_tokens + first) * num_rows
    mask = has_token[:, None] & has_row[None, :]
    tl.store(out + tokens[:, None] * num_rows + n[None, :], total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def decoded(byte, FIVE_TWO: tl.constexpr):
    """8-bit floats by their bits, exactly: as float16, whose exponent e4m3 is 8 below."""
    wide = byte.to(tl.int16)
    if FIVE_TWO:
        return (wide << 8).to(tl.float16, bitcast=True).to(tl.float32)
    bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value)


@triton.jit(do_not_specialize=["num_tokens"])
def float8_linear(
    x, token_scales, data, scales, out,
    num_tokens, num_rows, num_inputs, num_blocks, high, wide, stride,
    ROUNDED: tl.constexpr, FIVE_TWO: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, SPLIT: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply by `Float8`: bytes that are decoded here or, where activations are ROUNDED, 8-bit floats themselves."""
    first, row, part = tl.program_id(1) * TOKENS, tl.program_id(0) * ROWS, tl.program_id(2)
    tokens, rows = tl.arange(0, TOKENS), tl.arange(0, ROWS)
    has_token, has_row = first + tokens < num_tokens, row + rows < num_rows
    x += first.to(tl.int64) * stride
    data += row.to(tl.int64) * num_inputs
    total = tl.zeros((TOKENS, ROWS), dtype=tl.float32)
    for step in range(part, tl.cdiv(num_inputs, STEP), SPLIT):
        k = step * STEP + tl.arange(0, STEP)
        inside = k < num_inputs
        at = tokens[:, None] * stride + k[None, :]
        activations = tl.load(x + at, mask=has_token[:, None] & inside[None, :], other=0.0)
        at, held = rows[:, None] * num_inputs + k[None, :], has_row[:, None] & inside[None, :]
        if ROUNDED:
            weight = tl.load(data + at, mask=held, other=0.0)
        else:
            weight = decoded(tl.load(data + at, mask=held, other=0), FIVE_TWO).to(activations.dtype)
        sums = multiplied(activations, weight, tl.zeros((TOKENS, ROWS), dtype=tl.float32), WIDEN)
        at = (row + rows) // high * num_blocks + step * STEP // wide
        total += sums * tl.load(scales + at, mask=has_row, other=0.0)[None, :]
    if ROUNDED:
        total *= tl.load(token_scales + first + tokens, mask=has_token, other=0.0)[:, None]
    out += (part.to(tl.int64) * num_tokens + first) * num_rows + row
    mask = has_token[:, None] & has_row[None, :]
    tl.store(out + tokens[:, None] * num_rows + rows[None, :], total.to(out.dtype.element_ty), mask=mask)
