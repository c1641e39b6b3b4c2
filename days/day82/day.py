"""Day 82: an embedding and the LM head that shares its weights, forward and backward."""

if __name__ == "__main__":  # python days/day82/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day82

from .embedding import backward, forward, wrong_tokens, wrong_tokens_backward
from .head import head, ignored, tied, wrong_below, wrong_targets
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Embedding and LM head"
TEACHES = "Fused linear and cross-entropy without the logits; one gradient for tied weights"
TOPICS = ("embedding", "LM head", "cross-entropy", "tied weights", "backward", "memory", "cuBLAS")
SOURCE = "embedding_lm_head.cu"
EXTRA_SOURCES = ("embedding.cu", "embedding.py", "head.py", "proof.py")
INTRODUCES = ("LM head", "tied weights", "Zipf's law")

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
