"""Day 74: the KV cache, and attention of one query over it."""

if __name__ == "__main__":  # python days/day74/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day74

from common.day import Case, Cost, Problem, Rung, Target, Tolerance, grid

from . import cache

TITLE = "KV cache"
TEACHES = "Decoding: one query per head over a cache, read once, in 16 bits and in int8"
TOPICS = ("attention", "KV cache", "decoding", "inference", "int8", "online softmax")
SOURCE = "kv_cache.cu"
EXTRA_SOURCES = ("kv_cache_int8.cu",)
INTRODUCES = ("KV cache",)

WHY = "sums over tokens are merged in another order than PyTorch's, in fp32"


def cost(bytes_per_row, extra=0):
    def of(case):
        B, H, T, D = case.shape
        read = 2 * B * H * T * (D * bytes_per_row + extra)
        return Cost(bytes=read + 2 * B * H * D * case.itemsize, flops=4 * B * H * T * D)

    return of


TYPES = ["bfloat16", "float16"]
# (B, H, T, D)
SHAPES = [(1, 1, 1, 64), (3, 2, 70, 128), (2, 3, 129, 64), (1, 2, 515, 128), (4, 1, 64, 64)]
EMPTY = [(0, 2, 8, 64), (2, 0, 8, 64), (2, 1, 0, 64)]

PROBLEMS = (
    Problem(
        name="append",
        inputs=cache.new_rows_and_cache,
        reference=cache.store,
        rungs=(Rung("append", "one warp per head"),),
        cases=grid([*SHAPES, *EMPTY], TYPES),
        refused=(Case((1, 1, 8, 32), "bfloat16"), Case((1, 1, 8, 96), "bfloat16")),
        timed=False,
        outputs_exact=True,
    ),
    Problem(
        name="append, int8",
        inputs=cache.new_rows_and_codes,
        reference=cache.store_int8,
        rungs=(Rung("append_int8", "absmax by shuffles"),),
        cases=(
            *grid([*SHAPES, *EMPTY], TYPES),
            *(
                case
                for values in ("nonfinite", "tiny", "extreme")
                for case in grid([(5, 3, 6, 64), (3, 5, 6, 128)], TYPES, values=values)
            ),
        ),
        timed=False,
        outputs_exact=True,
    ),
    Problem(
        name="decode",
        inputs=cache.query_and_cache,
        reference=cache.attention,
        rungs=(
            Rung("decode_v1_rows", "one thread per row"),
            Rung("decode_v2_lanes", "D / 8 lanes per row"),
            Rung("decode_v3_online", "one pass, online softmax", target=Target(0.85, "read")),
        ),
        cases=(
            *grid([*SHAPES, *EMPTY], TYPES),
            *grid([(2, 9, 40, 64)], TYPES, values="nonfinite"),
            *grid([(2, 2, 300, 128)], TYPES, values="large"),
        ),
        bench=Case((32, 32, 4096, 128), "bfloat16"),
        bench_cpu=Case((2, 2, 512, 128), "bfloat16"),
        cost=cost(2),
        pytorch=cache.sdpa,
        tolerance=Tolerance(factor=8, why=WHY),
    ),
    Problem(
        name="decode, int8",
        inputs=cache.codes_and_scales,
        reference=cache.attention_int8,
        rungs=(
            Rung("decode_int8_v1_floats", "codes to fp32, 16 per load"),
            Rung("decode_int8_v2_integers", "dp4a, rows by cp.async", target=Target(0.85, "read")),
        ),
        cases=grid([*SHAPES, *EMPTY], TYPES),
        bench=Case((32, 32, 4096, 128), "bfloat16"),
        bench_cpu=Case((2, 2, 512, 128), "bfloat16"),
        cost=cost(1, 4),
        pytorch=cache.sdpa_16_bits,
        tolerance=Tolerance(factor=8, why=WHY),
    ),
)
