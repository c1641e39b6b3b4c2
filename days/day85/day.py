"""Day 85: mixed precision: loss scaling and fp8 with delayed scaling, kernels and trainings."""

if __name__ == "__main__":  # python days/day85/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day85

from . import casting, unscaling
from .training import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Mixed precision"
TEACHES = "Training in fp16, bf16 and fp8: scales that keep gradients inside a narrow range"
TOPICS = ("mixed precision", "loss scaling", "fp8", "fp16", "training", "multi-tensor", "transpose")
SOURCE = "mixed_precision.cu"
EXTRA_SOURCES = ("fp8_cast.cu", "training.py", "casting.py", "unscaling.py")
INTRODUCES = ("mixed precision", "loss scaling", "delayed scaling", "amax history")

PROBLEMS = (*unscaling.PROBLEMS, *casting.PROBLEMS)
