"""Day 30: the pieces of a GPT-2 block that are not attention."""

from common.day import Exercise

from . import mlp, norm

TITLE = "GPT-2 pieces"
TEACHES = "Residual, layer norm and the MLP with their gradients, fused by kernels and by epilogues"
TOPICS = ("GPT-2", "layer norm", "GELU", "MLP", "fusion", "epilogue", "backward", "autograd")
SOURCE = "gpt2_style_ops.cu"
EXTRA_SOURCES = ("mlp.cu",)
INTRODUCES = ("residual stream", "pre-activation")

EQUIVALENT = {  # mutants that compute the same, and why
    "gpt2_style_ops.cu: add_norm_v2_fused_kernel: 64-bit index in 32 bits: `int64_t{packs} * N` "
    "-> `packs * N`": "a row in registers has at most 1024 elements",
    "gpt2_style_ops.cu: add_norm_backward: min for max: `min<int64_t>(blocks, "
    "multiprocessor_count(h) * per_multiprocessor)` -> `max<int64_t>(blocks, "
    "multiprocessor_count(h) * per_multiprocessor)`": "blocks without a row add 0 to the sums",
    "gpt2_style_ops.cu: add_norm_backward: constant off by one: `2` -> `3`": (
        "the last third of the partial sums is not used"
    ),
}

EXERCISE = Exercise(
    function="add_norm_v2_fused_kernel",
    first="if (lane + k * 32 >= packs) continue;",
    last="y[first + k * 32] = v[k];",
    task=(
        "Store pack k of h, which is in v[k], and the same pack normalised, scaled by weight and "
        "shifted by bias, to y. The statistics of the row are in s."
    ),
    hints=(
        "Rows need not fill all packs of all lanes: which lanes have no pack k? And what must "
        "happen to v[k] before you overwrite it?",
        "Pack k of this lane is number lane + k * 32 of the row: of weight and bias at that "
        "index, of h and y at first + k * 32. Each is loaded or stored as one Pack<T>.",
        "s.normalised(value) gives (value - mean) / deviation in fp32. For each of the N elements "
        "compute normalised · weight + bias in fp32, convert to T, and store the whole pack.",
    ),
)

PROBLEMS = (norm.problem, norm.backward, mlp.activation, mlp.gradient, mlp.whole)
show = mlp.show
