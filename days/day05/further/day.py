"""Day 5, further: softmax of few long rows, each shared by many blocks."""

from common.day import FLOATS, Rung, Target, grid

from ..day import V2, softmax

SOURCE = "long_rows.cu"

LONG = Rung("softmax_long_rows", "a row in pieces, one per block", target=Target(1.0, "pytorch"))

PROBLEMS = (
    softmax(
        "softmax of 4 long rows",
        (V2, LONG),
        *grid([(1, 1), (3, 1025), (2, 8191), (3, 8192), (2, 16_385), (0, 8), (4, 0)], FLOATS),
        *grid([(2, 9000)], FLOATS, values="large"),
        *grid([(2, 8200)], FLOATS, values="nonfinite"),
        *grid([(1, 2_100_000)], ["float32"]),  # more pieces than a block has threads
        bench=(4, 1_000_000),
        bench_cpu=(2, 20_000),
    ),
)
