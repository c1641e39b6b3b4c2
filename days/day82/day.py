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
INTRODUCES = ("LM head", "tied weights")

EXERCISE = Exercise(
    function="rank_kernel",
    source="sort_by_word.cuh",
    task="Write it.",
    hints=("a", "b", "c"),
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
