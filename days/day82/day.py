"""Day 82: an embedding and the LM head that shares its weights, forward and backward."""

from common.day import Exercise

from .embedding import backward, forward, wrong_tokens, wrong_tokens_backward
from .head import head, ignored, tied, wrong_below, wrong_targets
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Embedding and LM head"
TEACHES = "Fused linear and cross-entropy without the logits; one gradient for tied weights"
TOPICS = ("embedding", "LM head", "cross-entropy", "tied weights", "backward", "memory", "cuBLAS")
SOURCE = "embedding_lm_head.cu"
EXTRA_SOURCES = ("embedding.cu", "embedding.py", "head.py", "proof.py")
INTRODUCES = ("LM head", "tied weights", "Zipf's law")

EQUIVALENT = {  # mutants that compute the same, and why
    "sort_by_word.cuh: sort_by_word: min for max: `max<int64_t>(SHORTEST_TILE, "
    "ceil_div<int64_t>(n, MOST_TILES))` -> `min<int64_t>(SHORTEST_TILE, ceil_div<int64_t>(n, "
    "MOST_TILES))`": ("shorter tiles, hence more of them and more scratch, give the same order"),
    "embedding_lm_head.cu: lm_head_v1_plain: constant off by one: `1` -> `2`": (
        "no more rows are taken than there are"
    ),
    "embedding_lm_head.cu: mean_kernel: constant off by one: `threadIdx.x == 0` -> "
    "`threadIdx.x == 1`": "every thread has the sum",
    "embedding_lm_head.cu: weight_kernel: constant off by one: `threadIdx.x == 0` -> "
    "`threadIdx.x == 1`": "every thread has the sum",
    "embedding_lm_head.cu: lm_head_v2_chunked: arithmetic operator: `BLOCK * EACH` -> "
    "`BLOCK / EACH`": "blocks too many find no element",
    "products.cuh: product_kernel: factor dropped: `beta * static_cast<float>(to)` -> "
    "`static_cast<float>(to)`": "all products have a beta of 0 or 1",
}

EXERCISE = Exercise(
    function="by_chunks",
    first="multiply(by, of_hidden, Matrix<T>{of_weight.at, C, true}",
    last="add || first > 0 ? 1 : 0",
    task=(
        "Of this chunk of `count` rows: compute the logits h · Wᵀ into the buffer x, launch the "
        "kernel that replaces them by their gradient, then compute dh = x · W of these rows, and "
        "dW = xᵀ · h, which the chunks add up."
    ),
    hints=(
        "multiply(by, A, B, C, ld of C, M, N, K, β) computes C = A · B + β · C. A Matrix says "
        "whether it is transposed. Which sizes have the three products?",
        "x is (count, words) with ld elements from row to row; dh begins at row `first`. Only the "
        "first chunk may overwrite dW, and not even that one where `add` is set.",
        "multiply(…, x, ld, count, words, C, 0); the kernel with `count` blocks of BLOCK threads "
        "and `bytes` of shared memory if the row stays; multiply(…, count, C, words, 0); "
        "multiply(…, to_weight, C, words, C, count, add || first > 0 ? 1 : 0).",
    ),
)

PROBLEMS = (
    forward,
    wrong_tokens,
    backward,
    wrong_tokens_backward,
    head,
    ignored,
    wrong_targets,
    wrong_below,
    tied,
)
