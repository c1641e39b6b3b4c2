"""The kernels of color_patterns.cu in Numba, and their launchers below them."""

import math

import torch
from numba import cuda, float32, uint8, uint32

from common.day import require

WAVES, CHANNELS = 4, 3
PIXELS, WORDS = 4, 3  # per thread at a time, in v2
BLOCK = 128  # threads; in v2 also the rows of a block
MOST = 65536  # frames, rows or columns
TURN, HALF = 2**32, 2**31
RADIANS = float32(2 * math.pi / TURN)
QUARTER_PI = float32(math.pi / 4)
MIDDLE, SWING = float32(128), float32(127.5)


@cuda.jit(device=True, fastmath=True)
def angle(turns):
    """In radians, [-π, π), of an integer phase in turns / 2^32. Numba computes with integers in
    int64, which does not wrap where a turn ends."""
    return float32((turns + HALF) % TURN - HALF) * RADIANS


@cuda.jit(device=True)
def phase_of(wave, x, y, t):
    """In turns / 2^32. wave: (4,) int32, of which int() makes Python's integers in the
    simulator, where NumPy's would overflow."""
    return int(wave[0]) * x + int(wave[1]) * y + int(wave[2]) * t + int(wave[3])


@cuda.jit(fastmath=True)
def thread_per_pixel_kernel(waves, palette, out):
    """waves: (4, 4), palette: (3,), int32. out: (frames, height, width, 3) uint8."""
    frames, height, width = out.shape[:3]
    i = cuda.grid(1)
    if i >= frames * height * width:
        return
    x, y, t = i % width, i // width % height, i // width // height
    theta = float32(0)
    for k in range(WAVES):
        theta += QUARTER_PI * math.sin(angle(phase_of(waves[k], x, y, t)))
    for c in range(CHANNELS):
        shade = theta + angle(int(palette[c]))
        out[t, y, x, c] = uint8(MIDDLE + SWING * math.cos(shade))


@cuda.jit(fastmath=True)
def angle_sums_kernel(waves, palette, out, height):
    """out: (frames · height, width / 4, 3) uint32: three words for four pixels. A block has BLOCK
    rows, whose sines and cosines are a table in shared memory, of four pixels per thread."""
    sines = cuda.shared.array((BLOCK, WAVES), float32)
    cosines = cuda.shared.array((BLOCK, WAVES), float32)
    column_sines = cuda.local.array((PIXELS, WAVES), float32)
    column_cosines = cuda.local.array((PIXELS, WAVES), float32)
    thread = cuda.threadIdx.x
    first = cuda.blockIdx.x * BLOCK
    group = cuda.blockIdx.y * BLOCK + thread  # which four pixels of a row
    row, frame = (first + thread) % height, (first + thread) // height
    for k in range(WAVES):
        a = angle(phase_of(waves[k], 0, row, frame))
        sines[thread, k] = QUARTER_PI * math.sin(a)
        cosines[thread, k] = QUARTER_PI * math.cos(a)
        for j in range(PIXELS):
            b = angle(int(waves[k, 0]) * (group * PIXELS + j))
            column_sines[j, k] = math.sin(b)
            column_cosines[j, k] = math.cos(b)
    shades = cuda.local.array(CHANNELS, float32)
    for c in range(CHANNELS):
        shades[c] = angle(int(palette[c]))
    cuda.syncthreads()  # the table is complete before any thread reads it
    if group >= out.shape[1]:
        return
    for i in range(min(BLOCK, out.shape[0] - first)):
        words = cuda.local.array(WORDS, uint32)
        for w in range(WORDS):
            words[w] = 0
        for j in range(PIXELS):
            theta = float32(0)
            for k in range(WAVES):
                theta += sines[i, k] * column_cosines[j, k] + cosines[i, k] * column_sines[j, k]
            for c in range(CHANNELS):
                value = uint32(MIDDLE + SWING * math.cos(theta + shades[c]))
                byte = CHANNELS * j + c
                words[byte // 4] |= value << uint32(byte % 4 * 8)
        for w in range(WORDS):
            out[first + i, group, w] = words[w]


def launch(kernel, waves, arrays, grid, *sizes):
    """On the stream that PyTorch is using. Numba has a current GPU of its own."""
    if waves.device.type == "cpu":  # the simulator
        kernel[grid, BLOCK](*(array.numpy() for array in arrays), *sizes)
        return
    stream = cuda.external_stream(torch.cuda.current_stream(waves.device).cuda_stream)
    with cuda.gpus[waves.device.index]:
        kernel[grid, BLOCK, stream](*map(cuda.as_cuda_array, arrays), *sizes)


def output(waves, palette, frames, height, width):
    """Checks the arguments as the launchers in C++ do."""
    require(waves, "waves", dtypes=(torch.int32,), shape=(WAVES, 4))
    require(palette, "palette", dtypes=(torch.int32,), shape=(CHANNELS,), device=waves.device)
    for name, size in (("frames", frames), ("height", height), ("width", width)):
        if not 0 <= size <= MOST:
            raise ValueError(f"{name}: expected 0 to {MOST}, got {size}")
    shape = frames, height, width, CHANNELS
    return torch.empty(shape, dtype=torch.uint8, device=waves.device)


def numba_v1_thread_per_pixel(waves, palette, frames, height, width):
    out = output(waves, palette, frames, height, width)
    if out.numel():
        blocks = -(-frames * height * width // BLOCK)
        launch(thread_per_pixel_kernel, waves, (waves, palette, out), blocks)
    return out


def numba_v2_angle_sums(waves, palette, frames, height, width):
    """Rows that are no whole words are for v1."""
    if width % PIXELS:
        return numba_v1_thread_per_pixel(waves, palette, frames, height, width)
    out = output(waves, palette, frames, height, width)
    if out.numel():
        rows, groups = frames * height, width // PIXELS
        words = out.view(-1).view(torch.uint32).view(rows, groups, WORDS)
        grid = -(-rows // BLOCK), -(-groups // BLOCK)
        launch(angle_sums_kernel, waves, (waves, palette, words), grid, height)
    return out
