"""Day 30: the pieces of a GPT-2 block that are not attention."""

if __name__ == "__main__":  # python days/day30/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day30

from . import mlp, norm

TITLE = "GPT-2 pieces"
TEACHES = "Residual, layer norm and the MLP with their gradients, fused by kernels and by epilogues"
TOPICS = ("GPT-2", "layer norm", "GELU", "MLP", "fusion", "epilogue", "backward", "autograd")
SOURCE = "gpt2_style_ops.cu"
EXTRA_SOURCES = ("mlp.cu",)
INTRODUCES = ("residual stream", "pre-activation")

PROBLEMS = (norm.problem, norm.backward, mlp.activation, mlp.gradient, mlp.whole)
show_times = mlp.show_times
