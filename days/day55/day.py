"""Day 55: copies by the tensor memory accelerator, and a transpose between two of them."""

from common.day import Exercise

from . import problems

TITLE = "The tensor memory accelerator"
TEACHES = "Copies that no thread touches: bulk copies, mbarrier phases, tensor maps, the swizzle"
TOPICS = ("TMA", "mbarrier", "tensor map", "pipeline", "swizzle", "multicast", "transpose", "copy")
SOURCE = "tma.cu"
EXTRA_SOURCES = ("tma_transpose.cu", "tma_multicast.cu")
INTRODUCES = ("tensor memory accelerator", "bulk copy", "tensor map", "multicast")

EQUIVALENT = {  # mutants that compute the same, and why
    'tma.cu: copy_v3_tensor: validation dropped: `check_row_bytes(x, "x")` -> ``': (
        "the tensor map refuses the same rows, with another message"
    ),
    'tma_multicast.cu: repeat: validation dropped: `check_row_bytes(x, "x")` -> ``': (
        "the tensor map refuses the same rows, with another message"
    ),
    "tma_multicast.cu: repeat_kernel: loop bound off by one: `r < ROWS<T>` -> `r < ROWS<T> - 1`": (
        "a part has two rows at least"
    ),
}

EXERCISE = Exercise(
    function="stream_pieces",
    task=(
        "Move `count` pieces through a ring of STAGES buffers, with STAGES - 1 loads in flight. "
        "One thread calls this: it prepares the mbarriers, starts loads and stores, and waits."
    ),
    hints=(
        "Which stage has piece k, and how often was this stage's mbarrier waited for before it? "
        "When may the stage that piece k - 1 used be loaded again?",
        "Initialise the mbarriers for one arrival each, then fence_mbarrier_init. Start the loads "
        "of the first STAGES - 1 pieces. For each piece: wait for the phase of parity k / STAGES % "
        "2, store, commit, wait until the store before has read its stage, load into that stage.",
        "bulk_wait_read<1>() returns when all groups but the youngest have been read: then load "
        "piece k + STAGES - 1, if there is one. Before the function returns, bulk_wait_read<0>(). "
        "load gets (k, stages + k % STAGES * PIECE, &full[k % STAGES]).",
    ),
)

PROBLEMS = problems.problems
