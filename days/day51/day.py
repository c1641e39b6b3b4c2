"""Day 51: SGEMM with register tiles."""

from common.day import Exercise

from . import products, sizes

TITLE = "SGEMM with register tiles"
TEACHES = "Thread coarsening, 1D and 2D register tiles, packs of 16 bytes; loads per multiply-add"
TOPICS = ("GEMM", "SGEMM", "register tile", "thread coarsening", "bank conflicts", "float4")
SOURCE = "sgemm_register_tiling.cu"
INTRODUCES = ("thread coarsening", "K-major", "TF32")

EXERCISE = Exercise(
    function="multiply_tiles",
    task=(
        "For all BK rows of the two tiles: load the thread's packs of a row of each, and add the "
        "products of all pairs to sum[i][j]."
    ),
    hints=(
        "Row k of a_tile holds one value for each row of D, row k of b_tile one for each column. "
        "Which 8 of each does the thread need, and how many loads of 16 bytes are they?",
        "Per k: ROW_PACKS packs of a_tile from row on, ROW_STEP apart, and COL_PACKS packs of "
        "b_tile from col on, COL_STEP apart, all in registers. Then 64 multiply-adds.",
        "a[i] = *reinterpret_cast<const Float4*>(&a_tile[k][row + i * ROW_STEP]), b[j] likewise; "
        "sum[i][j] += a[i / 4].at[i % 4] * b[j / 4].at[j % 4], in an unrolled loop over k.",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """Wavefronts of shared memory per multiply-add; on a GPU, the rates for many sizes."""
    return sizes.print_wavefronts(device) | sizes.print_rates(operators, device)
