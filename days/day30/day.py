"""Day 30: the pieces of a GPT-2 block that are not attention."""

from . import mlp, norm

TITLE = "GPT-2 pieces"
TEACHES = "Residual, layer norm and the MLP with their gradients, fused by kernels and by epilogues"
TOPICS = ("GPT-2", "layer norm", "GELU", "MLP", "fusion", "epilogue", "backward", "autograd")
SOURCE = "gpt2_style_ops.cu"
EXTRA_SOURCES = ("mlp.cu",)
INTRODUCES = ("residual stream", "pre-activation")

PROBLEMS = (norm.problem, mlp.activation, mlp.whole)
show = mlp.show
