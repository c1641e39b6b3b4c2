"""The products of corner_turning_matmul.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from common.day import aligned, require
from days.day64.tuning import (
    CONFIGS,
    GROUPED,
    PERSISTENT,
    PLAIN,
    POINTERS,
    chosen,
    multiprocessors,
)

# tl.dot of Triton's interpreter takes the bits of bf16 for integers.
TYPES = (torch.float16,) if triton.knobs.runtime.interpret else (torch.bfloat16, torch.float16)


@triton.jit
def tile_at(program, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Where the program's tile begins. Groups of GROUP rows of tiles, within a group column by
    column; with a group of 1, row by row."""
    across = tl.cdiv(N, BN)
    first = program // (GROUP * across) * GROUP
    rows = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    within = program % (GROUP * across)
    return (first + within % rows) * BM, within // rows * BN


@triton.jit
def product_kernel(
    a, b, c, M, N, K, am, ak, bk, bn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """am, ak, bk, bn: the distances of neighbours along m, k and n, one of each two is 1."""
    first_m, first_n = tile_at(tl.program_id(0), M, N, BM, BN, GROUP)
    m = first_m + tl.arange(0, BM).to(tl.int64)  # (BM,)
    n = first_n + tl.arange(0, BN).to(tl.int64)  # (BN,)
    sums = tl.zeros((BM, BN), tl.float32)
    for first_k in range(0, K, BK):
        k = first_k + tl.arange(0, BK).to(tl.int64)  # (BK,)
        x_mask = (m[:, None] < M) & (k[None, :] < K)
        y_mask = (k[:, None] < K) & (n[None, :] < N)
        x = tl.load(a + m[:, None] * am + k[None, :] * ak, mask=x_mask, other=0.0)  # (BM, BK)
        y = tl.load(b + k[:, None] * bk + n[None, :] * bn, mask=y_mask, other=0.0)  # (BK, BN)
        sums = tl.dot(x, y, sums)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * N + n[None, :], sums.to(c.dtype.element_ty), mask=mask)


# For sizes that are not all multiples of 16: one kernel, whichever of them are.
uneven_product_kernel = triton.jit(
    product_kernel.fn,
    do_not_specialize=("M", "N", "K"),
    do_not_specialize_on_alignment=("am", "ak", "bk", "bn"),
)
SIZES = {"do_not_specialize": ("M", "N", "K")}  # descriptors have their own


@triton.jit
def multiply_tile(
    a, b, c, program, M, N, K, A_BY_K: tl.constexpr, B_BY_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """a, b, c: descriptors of the matrices as they are stored, with the boxes of a tile."""
    m, n = tile_at(program, M, N, BM, BN, GROUP)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = a.load([m, k]) if A_BY_K else a.load([k, m]).T  # (BM, BK)
        y = b.load([n, k]).T if B_BY_K else b.load([k, n])  # (BK, BN)
        sums = tl.dot(x, y, sums)
    c.store([m, n], sums.to(c.dtype))


@triton.jit(**SIZES)
def descriptor_kernel(
    a, b, c, M, N, K, A_BY_K: tl.constexpr, B_BY_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    multiply_tile(a, b, c, tl.program_id(0), M, N, K, A_BY_K, B_BY_K, BM, BN, BK, GROUP)


@triton.jit(**SIZES)
def persistent_kernel(
    a, b, c, M, N, K, A_BY_K: tl.constexpr, B_BY_K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """flatten: both loops become one, so that the next tile's loads start before this one ends."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        multiply_tile(a, b, c, tile, M, N, K, A_BY_K, B_BY_K, BM, BN, BK, GROUP)


def multiply(a, b, a_by_k, b_by_k, config=None):
    """C, (M, N). a: (M, K) if a_by_k, else (K, M). b: (N, K) if b_by_k, else (K, N). config: the
    stored choice where it is None."""
    M, K = a.shape if a_by_k else a.shape[::-1]
    N = b.shape[0 if b_by_k else 1]
    c = a.new_empty(M, N)
    if c.numel() == 0 or K == 0:
        return c.zero_()
    a, b = aligned(a, b)
    whole = all(t.shape[1] % 8 == 0 for t in (a, b, c))  # in rows of a multiple of 16 bytes
    config = config or chosen(a.device, M, N, K, a_by_k, b_by_k, whole)
    if config.loads != POINTERS and not whole:
        raise ValueError("x, w: expected rows of a multiple of 16 bytes, as TMA needs them")
    BM, BN, BK = config[:3]
    tiles = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    constants = (BM, BN, BK, config.group)
    options = {"num_stages": config.stages, "num_warps": config.warps}
    with torch.cuda.device_of(a):
        if config.loads == POINTERS:
            strides = (a if a_by_k else a.t()).stride() + (b.t() if b_by_k else b).stride()
            even = M % 16 == N % 16 == K % 16 == 0
            kernel = product_kernel if even else uneven_product_kernel
            kernel[(tiles,)](a, b, c, M, N, K, *strides, *constants, **options)
            return c
        box_a, box_b = (BM, BK) if a_by_k else (BK, BM), (BN, BK) if b_by_k else (BK, BN)
        boxes = ((a, box_a), (b, box_b), (c, (BM, BN)))
        descriptors = [TensorDescriptor.from_tensor(t, list(box)) for t, box in boxes]
        persistent = config.loads == PERSISTENT
        kernel = persistent_kernel if persistent else descriptor_kernel
        programs = min(tiles, multiprocessors(a.device)) if persistent else tiles
        kernel[(programs,)](*descriptors, M, N, K, a_by_k, b_by_k, *constants, **options)
    return c


def linear(x, w, config=None):
    """x · Wᵀ. x: (M, K), w: (N, K), bf16 or fp16. Raises TypeError or ValueError for others."""
    require(x, "x", dtypes=TYPES, rank=2)
    require(w, "w", dtypes=(x.dtype,), rank=2, device=x.device)
    require(w, "w", shape=(w.shape[0], x.shape[1]))
    return multiply(x, w, True, True, config)


def linear_v4_triton(x, w):
    """Tiles row by row, through pointers."""
    return linear(x, w, PLAIN)


def linear_v5_triton_grouped(x, w):
    """Tiles in groups of 8 rows."""
    return linear(x, w, GROUPED)


def linear_v6_triton_tuned(x, w):
    """The configuration that was the fastest for a size near this one."""
    return linear(x, w)


def linear_configured(x, w, which):
    """With the configuration of this place in CONFIGS. Raises ValueError where TMA cannot load."""
    if not 0 <= which < len(CONFIGS):
        raise ValueError(f"which: expected 0 to {len(CONFIGS) - 1}, got {which}")
    return linear(x, w, CONFIGS[which])


def weight_gradient_v2_triton_tuned(g, x):
    """gᵀ · x. g: (K, M), x: (K, N), bf16 or fp16. Raises TypeError or ValueError for others."""
    require(g, "g", dtypes=TYPES, rank=2)
    require(x, "x", dtypes=(g.dtype,), rank=2, device=g.device)
    require(x, "x", shape=(g.shape[0], x.shape[1]))
    return multiply(g, x, False, False)
