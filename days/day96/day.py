"""Day 96: one persistent kernel decodes tokens through all layers of a GPT-2."""

from common.day import Case, Exercise, Library, Problem, Rung, Target, Tolerance

from . import model
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "A decoding megakernel"
TEACHES = (
    "A whole model in one launch: numbers that carry their own flag, weights ahead of their use"
)
TOPICS = ("inference", "GPT-2", "decode", "persistent kernel", "megakernel", "KV cache", "cp.async")
SOURCE = "decode_megakernel.cu"
EXTRA_SOURCES = ("model.py", "proof.py")
INTRODUCES = ("megakernel", "tagged word")
EQUIVALENT = {  # mutants that compute the same, and why
    "new_buffers: constant off by one: `10 * C` -> `11 * C`": (
        "memory behind the buffers, which nothing uses"
    ),
    "new_buffers: constant off by one: `at + 2` -> `at + 3`": (
        "v then lies where attention stores its result: a block has read an element of a head "
        "before it stores that one"
    ),
    "decode_v3_persistent: constant off by one: `4 * m.C` -> `5 * m.C`": (
        "shared memory behind the vector, which nothing uses"
    ),
    "arguments.cuh: decode: 64-bit index in 32 bits: `int64_t dim` -> `int dim`": (
        "it is at most 5"
    ),
    "megakernel.cuh: dispatch_ring: comparison: `C <= 256` -> `C < 256`": (
        "at 256 channels the kernel for more of them computes the same"
    ),
    "megakernel.cuh: dispatch_ring: comparison: `C <= 768` -> `C < 768`": (
        "at 768 channels the kernel for more of them computes the same"
    ),
    "phases.cuh: embed: other dimension: `gridDim.x` -> `gridDim.y`": (
        "blocks then also write what the blocks after them write, the same numbers"
    ),
    "phases.cuh: attend_heads: other dimension: `gridDim.x` -> `gridDim.y`": (
        "blocks then also attend for the heads of the blocks after them, with the same numbers"
    ),
    "stream.cuh: Place::settle: comparison: `step < m.steps` -> `step <= m.steps`": (
        "behind the last token nothing is fetched, whatever the unit"
    ),
    "worker.cuh: Worker::load_x: loop bound off by one: `e < PER_CHUNK` -> `e < PER_CHUNK - 1`": (
        "a chunk that is not loaded is not multiplied either"
    ),
    "worker.cuh: Worker::load_x: bounds check dropped: `lane + 32 * i >= chunks` -> `false`, 3rd": (
        "a chunk that is not loaded is not multiplied either"
    ),
    "model.cuh: Best::consider: comparison: `other.index < index` -> `other.index <= index`": (
        "the candidate with the same index is the same"
    ),
    "phases.cuh: choose: constant off by one: `threadIdx.x == 0` -> `threadIdx.x == 1`": (
        "every thread has the best"
    ),
    "stream.cuh: receive: comparison: `N > 2` -> `N >= 2`": (
        "of two words, too, the first is then polled alone"
    ),
    "worker.cuh: Worker::gather: comparison: `first < n` -> `first <= n`": (
        "beyond n there is no word to wait for"
    ),
    "megakernel.cuh: stream: 64-bit index in 32 bits: `int64_t{m.H} * SPLITS` -> `m.H * SPLITS`": (
        "the channels are limited, and with them the heads"
    ),
    "phases.cuh: normalise: arithmetic operator: `vector[c] - mean` -> `vector[c] + mean`, 2nd": (
        "(v - mean) (v + mean) adds up to the same, but for rounding"
    ),
    'arguments.cuh: decode: device check dropped: `check(token, "token").on_gpu()` -> '
    '`check(token, "token")`': ("same_device refuses a token on the host, too"),
    "arguments.cuh: decode: contiguity check dropped: `check(token, "
    '"token").on_gpu().dtype({ScalarType::Long}).rank(1).contiguous()` -> `check(token, '
    '"token").on_gpu().dtype({ScalarType::Long}).rank(1)`': ("one element is always contiguous"),
    "megakernel.cuh: most_blocks: rounded down: `ceil_div<int64_t>(wte.size(1), QUOTA)` -> "
    "`((wte.size(1)) / (QUOTA))`": ("a block less, whose rows the others multiply"),
    "megakernel.cuh: Exchange::operator: loop stride: `b += THREADS` -> `b += 2 * THREADS`": (
        "no GPU has more multiprocessors than a block has threads"
    ),
}

EXERCISE = Exercise(
    function="norm_kernel",
    task=(
        "One block normalises x (b.x, C numbers) with the norm that stands before the matrices of "
        "`kind`, and stores it to b.normed. normalise() of phases.cuh works in shared memory."
    ),
    hints=(
        "All threads of the block copy x into a vector in dynamic shared memory first.",
        "A barrier stands between the copy and normalise(), which every thread calls and which "
        "ends with one. norm_before(m, kind, layer) gives the weights and biases.",
        "extern __shared__ float vector[]; a loop over c from threadIdx.x in steps of THREADS "
        "copies b.x[c]; __syncthreads(); normalise(vector, norm_before(m, kind, layer), m.C); the "
        "same loop stores vector[c] to b.normed[c].",
    ),
)

# (layers, heads, channels, words, positions, position, steps)
ONE_STEP = [(2, 4, 64, 131, 65, position, 1) for position in (0, 1, 7, 63)]
ONE_STEP += [(1, 1, 8, 1, 5, 2, 1), (1, 1, 128, 33, 80, 79, 1), (0, 2, 32, 70, 3, 1, 1)]
ONE_STEP += [(1, 5, 40, 301, 500, 470, 1), (1, 9, 288, 50, 12, 11, 1), (1, 7, 896, 9, 3, 1, 1)]
SEVERAL = [(2, 4, 64, 131, 40, 14, 4), (1, 2, 64, 97, 9, 3, 6), (2, 4, 64, 131, 9, 0, 9)]
SEVERAL += [(1, 1, 32, 2, 12, 3, 8)]  # half of the tokens are the last word
# 12 elements per head; a position too many; no step; more channels, layers, words, positions than
# the kernels take
REFUSED = [(1, 3, 36, 20, 8, 1, 1), (1, 2, 32, 20, 8, 6, 3), (1, 2, 32, 20, 8, 6, 0)]
REFUSED += [(0, 17, 2176, 2, 2, 1, 1), (1025, 1, 8, 3, 2, 1, 1)]
REFUSED += [(0, 1, 8, (1 << 20) + 1, 2, 1, 1), (1, 1, 8, 3, (1 << 20) + 1, 1, 1)]

RUNGS = (
    Rung("decode_v1_kernels", "8 kernels per layer"),
    Rung("decode_v2_fused", "5 kernels per layer"),
    Rung("decode_v3_persistent", "one kernel, barriers of the grid"),
    Rung("decode_v4_stream", "tagged words, weights ahead", target=Target(1.5, "pytorch")),
)
SUMS = Tolerance(
    ulps=8,
    factor=16,
    why="a chain of layers, each of which adds hundreds of products in its order",
)

PROBLEMS = (
    Problem(
        name="decode",
        inputs=model.model,
        reference=model.decode,
        pytorch=model.by_pytorch,
        libraries=(Library("compile", model.compiled_pytorch),),
        rungs=RUNGS,
        cases=(
            *(Case(shape, "bfloat16") for shape in ONE_STEP + SEVERAL),
            Case((1, 2, 16, 20, 5, 1, 2), "bfloat16", "offset"),
        ),
        refused=tuple(Case(shape, "bfloat16") for shape in REFUSED),
        bench=Case((12, 12, 768, 50257, 1024, 512, 1), "bfloat16"),
        bench_cpu=Case((2, 4, 64, 300, 64, 32, 1), "bfloat16"),
        cost=model.cost,
        tolerance=SUMS,
    ),
)
