"""Day 53: matrix products on tensor cores, through WMMA."""

from common.day import Exercise

from . import accuracy, products

TITLE = "Tensor cores through WMMA"
TEACHES = "WMMA fragments in fp16, bf16, tf32 and int8, and what each type loses against float64"
TOPICS = ("WMMA", "GEMM", "tensor cores", "fp16", "bf16", "tf32", "int8", "accuracy", "matmul")
SOURCE = "gemm_wmma.cu"
INTRODUCES = ("WMMA",)
EQUIVALENT = {  # mutants that compute the same, and why
    'run_any: device check dropped: `check(a, "a").on_gpu()` -> `check(a, "a")`': (
        "one tensor on the host fails same_device, and both are refused by PyTorch's dispatcher"
    ),
    "gemm_shared_kernel: transposed: `sums[i / EACH][i % EACH]` -> `sums[i % EACH][i / EACH]`": (
        "all sums become 0, in another order"
    ),
    'gemm_fp16_sums: device check dropped: `check(a, "a").on_gpu()` -> `check(a, "a")`': (
        "one tensor on the host fails same_device, and both are refused by PyTorch's dispatcher"
    ),
}

EXERCISE = Exercise(
    function="multiply",
    task=(
        "Add the products of a warp for one step to sums[i][j]: 64 rows of tiles.a, from row m on, "
        "times 64 columns of tiles.b, from column n on. Load each fragment once per 16 (tf32: 8) "
        "of k, with load<Type>."
    ),
    hints=(
        "A step holds BK numbers of each row, a fragment only DEPTH of them. Which loop comes "
        "first, and how many fragments of A and of B does one of its rounds need?",
        "Four of each for 16 products. Keep the four of A in an array; a fragment of B can go as "
        "soon as it has been multiplied by all four. Where does row m + 16 i of tiles.a begin?",
        "for k: load<Type>(a[i], tiles.a + (m + SIDE * i) * Tiles::A_PITCH + k, Tiles::A_PITCH) "
        "for all i; for j: load b from tiles.b + k * Tiles::B_PITCH + n + SIDE * j, then "
        "wmma::mma_sync(sums[i][j], a[i], b, sums[i][j]) for all i. Unroll all loops.",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """The errors of each type against float64, as a table, and stored as data and a plot."""
    return accuracy.show_errors(operators, device)
