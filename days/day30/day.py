"""Day 30: the pieces of a GPT-2 block that are not attention."""

from common.day import Exercise

from . import mlp, norm

TITLE = "GPT-2 pieces"
TEACHES = "Residual, layer norm and the MLP with their gradients, fused by kernels and by epilogues"
TOPICS = ("GPT-2", "layer norm", "GELU", "MLP", "fusion", "epilogue", "backward", "autograd")
SOURCE = "gpt2_style_ops.cu"
EXTRA_SOURCES = ("mlp.cu",)
INTRODUCES = ("residual stream", "pre-activation")

EXERCISE = Exercise(
    function="bias_gelu_backward_v2_kernel",
    source="mlp.cu",
    first="for (int i = 0; i < N; ++i) {",
    last="gx[(r0 + k) * packs + p] = g[k];",
    task=(
        "gx = gy · gelu'(x + bias) for the pack of row r0 + k, and in the same pass the sum of gx "
        "over the rows of this block, in the registers sums. v has x, g has gy, b the bias."
    ),
    hints=(
        "What is added to sums: gx as it is stored, rounded to T, or as it is in fp32? Which of "
        "the two has the smaller error over 65,536 rows?",
        "For each element i of the pack, gelu_derivative<T> of v + b, in fp32, times g. The same "
        "number goes to sums[i] and, as T, back to g[k].at[i].",
        "const float gi = float(g) * gelu_derivative<T>(float(v) + float(b)); sums[i] += gi; after "
        "the loop over the pack, g[k] is stored to gx at row r0 + k and pack p.",
    ),
)

PROBLEMS = (norm.problem, mlp.activation, mlp.whole)
show = mlp.show
