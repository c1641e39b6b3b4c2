"""The blur of blur_transpose.cu in Triton: a program walks down a strip of an image."""

import torch
import triton
import triton.language as tl

from common.day import aligned, require

# Of x, per program. In Triton's interpreter, small images have several programs too.
ROWS, COLS = 32 if triton.knobs.runtime.interpret else 128, 512
WARPS = 4
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def weighted(v0, v1, v2, v3, v4, v5, v6, k):
    """The weighted sum of seven values; k: seven weights."""
    sums = v0 * k[0] + v1 * k[1] + v2 * k[2] + v3 * k[3]
    return sums + v4 * k[4] + v5 * k[5] + v6 * k[6]


@triton.jit
def pixels(row, w, W, in_image):
    """Elements of a row of x in fp32, zeros beyond the image."""
    return tl.load(row + w, mask=in_image & (w >= 0) & (w < W), other=0).to(tl.float32)


@triton.jit
def quarters(v, COUNT: tl.constexpr):
    """Of every four neighbours the first, the second, the third, the fourth: (COUNT,) each."""
    even, odd = tl.split(tl.reshape(v, (COUNT, 2, 2)))
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def row_sums(x, h, w, H, W, k, COLS: tl.constexpr, CHUNKS: tl.constexpr):
    """Sums along row h of x for the columns w, (COLS,); zeros for a row beyond the image."""
    row = x + h * W
    inside = (h >= 0) & (h < H)
    if CHUNKS:
        # Every load begins at a multiple of 4. A thread has four neighbours of each block.
        _, l1, l2, l3 = quarters(pixels(row, w - 4, W, inside), COLS // 4)
        c0, c1, c2, c3 = quarters(pixels(row, w, W, inside), COLS // 4)
        r0, r1, r2, _ = quarters(pixels(row, w + 4, W, inside), COLS // 4)
        s0 = weighted(l1, l2, l3, c0, c1, c2, c3, k)
        s1 = weighted(l2, l3, c0, c1, c2, c3, r0, k)
        s2 = weighted(l3, c0, c1, c2, c3, r0, r1, k)
        s3 = weighted(c0, c1, c2, c3, r0, r1, r2, k)
        return tl.reshape(tl.join(tl.join(s0, s2), tl.join(s1, s3)), (COLS,))
    else:
        return weighted(
            pixels(row, w - 3, W, inside), pixels(row, w - 2, W, inside),
            pixels(row, w - 1, W, inside), pixels(row, w, W, inside),
            pixels(row, w + 1, W, inside), pixels(row, w + 2, W, inside),
            pixels(row, w + 3, W, inside), k,
        )  # fmt: skip


@triton.jit
def blur_transpose_kernel(
    x, weights, y, H, W, ROWS: tl.constexpr, COLS: tl.constexpr, CHUNKS: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    first = program % tl.cdiv(H, ROWS) * ROWS
    strip = program // tl.cdiv(H, ROWS)  # of all strips of all images
    image = strip // tl.cdiv(W, COLS)
    w = strip % tl.cdiv(W, COLS) * COLS + tl.arange(0, COLS)  # (COLS,)
    x += image * H * W
    y += image * H * W
    k = (
        tl.load(weights), tl.load(weights + 1), tl.load(weights + 2), tl.load(weights + 3),
        tl.load(weights + 4), tl.load(weights + 5), tl.load(weights + 6),
    )  # fmt: skip
    # The six row sums above the next one: those of the rows h - 3 to h + 2.
    r0 = row_sums(x, first - 3, w, H, W, k, COLS, CHUNKS)
    r1 = row_sums(x, first - 2, w, H, W, k, COLS, CHUNKS)
    r2 = row_sums(x, first - 1, w, H, W, k, COLS, CHUNKS)
    r3 = row_sums(x, first, w, H, W, k, COLS, CHUNKS)
    r4 = row_sums(x, first + 1, w, H, W, k, COLS, CHUNKS)
    r5 = row_sums(x, first + 2, w, H, W, k, COLS, CHUNKS)
    for h in range(first, tl.minimum(first + ROWS, H), 8):
        r6 = row_sums(x, h + 3, w, H, W, k, COLS, CHUNKS)
        r7 = row_sums(x, h + 4, w, H, W, k, COLS, CHUNKS)
        r8 = row_sums(x, h + 5, w, H, W, k, COLS, CHUNKS)
        r9 = row_sums(x, h + 6, w, H, W, k, COLS, CHUNKS)
        r10 = row_sums(x, h + 7, w, H, W, k, COLS, CHUNKS)
        r11 = row_sums(x, h + 8, w, H, W, k, COLS, CHUNKS)
        r12 = row_sums(x, h + 9, w, H, W, k, COLS, CHUNKS)
        r13 = row_sums(x, h + 10, w, H, W, k, COLS, CHUNKS)
        y0 = weighted(r0, r1, r2, r3, r4, r5, r6, k)
        y1 = weighted(r1, r2, r3, r4, r5, r6, r7, k)
        y2 = weighted(r2, r3, r4, r5, r6, r7, r8, k)
        y3 = weighted(r3, r4, r5, r6, r7, r8, r9, k)
        y4 = weighted(r4, r5, r6, r7, r8, r9, r10, k)
        y5 = weighted(r5, r6, r7, r8, r9, r10, r11, k)
        y6 = weighted(r6, r7, r8, r9, r10, r11, r12, k)
        y7 = weighted(r7, r8, r9, r10, r11, r12, r13, k)
        even = tl.join(tl.join(y0, y4), tl.join(y2, y6))  # (COLS, 2, 2), each join's axis is last
        odd = tl.join(tl.join(y1, y5), tl.join(y3, y7))
        at = h + tl.arange(0, 8)
        tl.store(
            y + w[:, None] * H + at[None, :],
            tl.reshape(tl.join(even, odd), (COLS, 8)),  # eight neighbours in each row of y
            mask=(w[:, None] < W) & (at[None, :] < H),
        )
        r0, r1, r2, r3, r4, r5 = r8, r9, r10, r11, r12, r13


# For sizes that are not both multiples of 16: one kernel, whichever of them is.
uneven_kernel = triton.jit(blur_transpose_kernel.fn, do_not_specialize=("H", "W"))


def blur_transpose(x, weights, chunks):
    """x: (N, H, W) of a floating dtype, weights: (7,) fp32. Returns (N, W, H) like x. Raises
    TypeError or ValueError for others."""
    require(x, "x", dtypes=FLOATS, rank=3)
    require(weights, "weights", dtypes=(torch.float32,), shape=(7,), device=x.device)
    x, weights = aligned(x, weights)
    N, H, W = x.shape
    y = x.new_empty((N, W, H))
    if y.numel() > 0:
        programs = N * triton.cdiv(W, COLS) * triton.cdiv(H, ROWS)
        kernel = blur_transpose_kernel if H % 16 == W % 16 == 0 else uneven_kernel
        with torch.cuda.device_of(x):
            kernel[(programs,)](x, weights, y, H, W, ROWS, COLS, chunks, num_warps=WARPS)
    return y


def blur_transpose_v4_triton(x, weights):
    return blur_transpose(x, weights, False)


def blur_transpose_v5_triton_chunks(x, weights):
    return blur_transpose(x, weights, True)
