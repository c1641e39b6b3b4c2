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
    task=(
        "gx = gy · gelu'(x + bias), and in the same pass the sum of gx over the rows of this block "
        "for each column. A thread has pack p of the columns and walks down the rows."
    ),
    hints=(
        "Which threads return at once? The bias of the pack is loaded once, and the sums of its N "
        "columns live in registers.",
        "The block takes rows blockIdx.y · ROWS, then gridDim.y · ROWS further. Load the packs of "
        "ROWS rows before you use the first one; the last rows may be fewer.",
        "For each element: gi = g · gelu_derivative<T>(v + b), sums[i] += gi, and gi is stored as "
        "T. At the end partial[(blockIdx.y · packs + p) · N + i] = sums[i].",
    ),
)

PROBLEMS = (norm.problem, mlp.activation, mlp.whole)
show = mlp.show
