"""Day 60: convolution as a matrix product on tensor cores, forward and both gradients."""

from common.day import Exercise

from . import convolutions, networks

TITLE = "Convolution as implicit GEMM"
TEACHES = "Implicit GEMM in NHWC: gathered rows, boxes of pixels by TMA; both gradients as products"
TOPICS = ("convolution", "conv2d", "implicit GEMM", "NHWC", "TMA", "wgmma", "backward", "cuDNN")
SOURCE = "conv2d_implicit_gemm.cu"
EXTRA_SOURCES = ("conv2d_boxes.cu", "conv2d_split.cu", "conv2d_weight_gradient.cu")
INTRODUCES = ("data gradient", "im2col")

EQUIVALENT = {  # mutants that compute the same, and why
    "conv2d_boxes.cu: conv2d_by_boxes: "
    "comparison: `stride > MOST_SCALE` -> `stride >= MOST_SCALE`": (
        "at a stride of 8 the other kernel computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: "
    "comparison: `stride > MOST_SCALE` -> `stride >= MOST_SCALE`": (
        "at a stride of 8 the other kernel computes the same"
    ),
    "conv2d_weight_gradient.cu: conv2d_weight_gradient_v2: "
    "comparison: `stride > MOST_SCALE` -> `stride >= MOST_SCALE`": (
        "at a stride of 8 the other kernel computes the same"
    ),
}

EXERCISE = Exercise(
    function="Pixels::load",
    task=(
        "Start the copies of one tap's inputs: for each of this thread's pixels the chunk of 8 "
        "channels from tap.c + Rows::offset() on, or zeros where the tap is outside of the image "
        "or the channel beyond the last."
    ),
    hints=(
        "row[i] and col[i] say where the first tap of pixel i reads. By how much does tap (tap.i, "
        "tap.j) move that, and when is it inside of an image of g.rows.inputs × g.cols.inputs?",
        "Row row[i] + tap.i · g.rows.step, column col[i] + tap.j · g.cols.step. Element ((row · "
        "g.cols.inputs) + column) · g.depth + channel of image[i], in int64_t. Rows::copy takes "
        "an address that is valid even for zeros: g.from.",
        "const bool inside = r >= 0 && r < g.rows.inputs && c >= 0 && c < g.cols.inputs && "
        "channel < g.depth; Rows::copy(tile, i, inside ? image[i] + offset : g.from, inside), in "
        "an unrolled loop over Rows::COUNT.",
    ),
)

PROBLEMS = convolutions.problems


def show(operators, device):
    """On a GPU: every layer of ResNet-50, all rungs and gradients beside cuDNN."""
    return networks.print_layers(operators, device)
