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
    "conv2d_boxes.cu: conv2d_boxes_kernel: other dimension: `threadIdx.x` -> `threadIdx.y`, 3rd": (
        "all threads wait for bulk copies, and most of them have started none"
    ),
    "conv2d_boxes.cu: launch_boxes: "
    "min for max: `min(tiles, places_for(on, CLUSTER))` -> `max(tiles, places_for(on, CLUSTER))`": (
        "each tile then has a block of its own, or blocks without a tile return"
    ),
    "conv2d_boxes.cu: convolve: arithmetic operator: "
    "`rounds(g, M, N, CLUSTER, places_for(on, CLUSTER)) * M` -> "
    "`rounds(g, M, N, CLUSTER, places_for(on, CLUSTER)) / M`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_boxes.cu: convolve: arithmetic operator: `g.steps() / rate` -> `g.steps() * rate`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_boxes.cu: convolve: arithmetic operator: `rate + STORE` -> `rate - STORE`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_boxes.cu: convolve: arithmetic operator: `STORE / P::CONSUMERS` -> "
    "`STORE * P::CONSUMERS`": "another tile size is chosen, which computes the same",
    "conv2d_boxes.cu: convolve: arithmetic operator: `M * N` -> `M / N`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_boxes.cu: convolve: arithmetic operator: "
    "`N * (g.steps() / rate + STORE / P::CONSUMERS)` -> "
    "`N / (g.steps() / rate + STORE / P::CONSUMERS)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_boxes.cu: convolve: initial value: `double least = 0` -> `double least = 1`": (
        "the first tile size sets it"
    ),
    "conv2d_boxes.cu: convolve: comparison: `time >= least` -> `time > least`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split_kernel: barrier removed: `ptx::cluster_sync()` -> ``": (
        "a cluster's barrier does not wait for threads that have returned"
    ),
    "conv2d_split.cu: conv2d_v4_split_kernel: barrier removed: `ptx::cluster_sync()` -> ``, 2nd": (
        "a cluster's barrier does not wait for threads that have returned"
    ),
    "conv2d_split.cu: conv2d_v4_split: comparison: "
    "`split_time(g, 128, 256, 4, 1.0, x) < split_time(g, 128, 128, 2, 0.75, x)` -> "
    "`split_time(g, 128, 256, 4, 1.0, x) <= split_time(g, 128, 128, 2, 0.75, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: constant off by one: "
    "`split_time(g, 128, 256, 4, 1.0, x)` -> `split_time(g, 129, 256, 4, 1.0, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: constant off by one: "
    "`split_time(g, 128, 256, 4, 1.0, x)` -> `split_time(g, 128, 257, 4, 1.0, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: constant off by one: "
    "`split_time(g, 128, 256, 4, 1.0, x)` -> `split_time(g, 128, 256, 5, 1.0, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: constant off by one: "
    "`split_time(g, 128, 128, 2, 0.75, x)` -> `split_time(g, 129, 128, 2, 0.75, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: constant off by one: "
    "`split_time(g, 128, 128, 2, 0.75, x)` -> `split_time(g, 128, 129, 2, 0.75, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_split.cu: conv2d_v4_split: constant off by one: "
    "`split_time(g, 128, 128, 2, 0.75, x)` -> `split_time(g, 128, 128, 3, 0.75, x)`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_weight_gradient.cu: weight_gradient_by_boxes: "
    "constant off by one: `1` -> `2`, 2nd": "a tensor map does not read the number of taps",
    "conv2d_split.cu: conv2d_v4_split: "
    "comparison: `stride > MOST_SCALE` -> `stride >= MOST_SCALE`": (
        "at a stride of 8 the other kernel computes the same"
    ),
    "conv2d_weight_gradient.cu: conv2d_weight_gradient_v2: comparison: "
    "`ceil_div(chunks, 3) * 3 < ceil_div(chunks, 4) * 4` -> "
    "`ceil_div(chunks, 3) * 3 <= ceil_div(chunks, 4) * 4`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_weight_gradient.cu: conv2d_weight_gradient_v2: arithmetic operator: "
    "`ceil_div(chunks, 3) * 3` -> `ceil_div(chunks, 3) / 3`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_weight_gradient.cu: conv2d_weight_gradient_v2: arithmetic operator: "
    "`ceil_div(chunks, 4) * 4` -> `ceil_div(chunks, 4) / 4`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv2d_weight_gradient.cu: conv2d_weight_gradient_v2: "
    "comparison: `stride > MOST_SCALE` -> `stride >= MOST_SCALE`": (
        "at a stride of 8 the other kernel computes the same"
    ),
    "conv2d_implicit_gemm.cu: load_filter: 64-bit index in 32 bits: "
    "`int64_t{tap.of_filter(g)} * g.filter_channels` -> `tap.of_filter(g) * "
    "g.filter_channels`": (
        "a filter has at most 2^31 elements, so the index of a tap's first one fits"
    ),
    "conv2d_implicit_gemm.cu: conv2d_data_gradient_v1: min for max: `min(v.stride, v.H)` -> "
    "`max(v.stride, v.H)`": (
        "a phase beyond the stride has rows of another phase, with the same results; one "
        "beyond the image has none"
    ),
    "conv2d_boxes.cu: conv2d_data_gradient_v2: min for max: `min(v.stride, v.H)` -> "
    "`max(v.stride, v.H)`": (
        "a phase beyond the stride has rows of another phase, with the same results; one "
        "beyond the image has none"
    ),
    "conv2d_boxes.cu: conv2d_data_gradient_v2: comparison: `col < std::min(v.stride, v.W)` ->"
    " `col <= std::min(v.stride, v.W)`": (
        "the additional phase has columns of phase 0, with the same results, or none"
    ),
    "conv2d_weight_gradient.cu: conv2d_weight_gradient_v2: arithmetic operator: `v.S * "
    "ceil_div(v.C, DEPTH)` -> `v.S / ceil_div(v.C, DEPTH)`": (
        "another tile size is chosen, which computes the same"
    ),
    "box_roles.cuh: BoxRoles::release: constant off by one: `32 == 0` -> `32 == 1`": (
        "any lane of the warp can arrive for it"
    ),
    "box_roles.cuh: BoxRoles::store_pixels: bounds check dropped: `n >= g.channels` -> `false`": (
        "TMA stores nothing beyond the last channel; the check saves time"
    ),
    "box_roles.cuh: require_boxes: constant off by one: `128` -> `129`": (
        "the limit of no GPU lies between the two sizes of shared memory"
    ),
    "boxes.cuh: best_box: constant off by one: `c >= 1` -> `c >= 2`": (
        "another box is chosen, which covers the same outputs"
    ),
    "boxes.cuh: best_box: constant off by one: `r >= 1` -> `r >= 2`": (
        "another box is chosen, which covers the same outputs"
    ),
    "boxes.cuh: places_for: constant off by one: `std::max(1, multiprocessor_count(on) / "
    "cluster)` -> `std::max(2, multiprocessor_count(on) / cluster)`": (
        "a cluster for which there is no place waits for another one's"
    ),
    "boxes.cuh: rounds: rounded down: `ceil_div(best_box(g.rows, g.cols, g.N, m).count(), "
    "cluster)` -> `((best_box(g.rows, g.cols, g.N, m).count()) / (cluster))`": (
        "another tile size is chosen, which computes the same"
    ),
    "boxes.cuh: rounds: rounded down: `ceil_div(clusters * ceil_div(g.channels, n), places)` "
    "-> `((clusters * ceil_div(g.channels, n)) / (places))`": (
        "another tile size is chosen, which computes the same"
    ),
    "boxes.cuh: rounds: rounded down: `ceil_div(g.channels, n)` -> `((g.channels) / (n))`": (
        "another tile size is chosen, which computes the same"
    ),
    "boxes.cuh: split_time: rounded down: `ceil_div(g.steps(), split)` -> `((g.steps()) / "
    "(split))`": ("another tile size is chosen, which computes the same"),
    "boxes.cuh: split_time: arithmetic operator: `ceil_div(g.steps(), split) / rate` -> "
    "`ceil_div(g.steps(), split) * rate`": "another tile size is chosen, which computes the same",
    "boxes.cuh: split_time: arithmetic operator: `rate + EXCHANGE` -> "
    "`rate - EXCHANGE`": "another tile size is chosen, which computes the same",
    "boxes.cuh: split_time: arithmetic operator: "
    "`rounds(g, m, n, 1, places_for(on, split)) * steps` -> "
    "`rounds(g, m, n, 1, places_for(on, split)) / steps`": (
        "another tile size is chosen, which computes the same"
    ),
    "boxes.cuh: split_time: arithmetic operator: `m * n` -> "
    "`m / n`": "another tile size is chosen, which computes the same",
    "boxes.cuh: split_time: constant off by one: `1` -> `2`": (
        "another tile size is chosen, which computes the same"
    ),
    "boxes.cuh: split_time: arithmetic operator: `steps * m` -> `steps / m`": (
        "another tile size is chosen, which computes the same"
    ),
    "conv.cuh: filter_row: 64-bit index in 32 bits: `int64_t{v.R} * v.S` -> `v.R * v.S`": (
        "a filter has at most 2^31 elements and at least 8 output channels"
    ),
    "conv.cuh: gradient_gather: 64-bit index in 32 bits: `int64_t{col} * v.C` -> `col * v.C`": (
        "an image has at most 2^31 elements"
    ),
    "conv.cuh: parts_for: initial value: `int64_t best = 1` -> `int64_t best = 0`": (
        "the first round of the loop sets it"
    ),
    "conv.cuh: parts_for: initial value: `double least = 0` -> `double least = 1`": (
        "the first round of the loop sets it"
    ),
    "conv.cuh: parts_for: loop bound off by one: `parts <= std::clamp<int64_t>(steps / "
    "FEWEST_STEPS, 1, MOST_PARTS)` -> `parts <= std::clamp<int64_t>(steps / FEWEST_STEPS, 1, "
    "MOST_PARTS) - 1`": ("another number of parts is chosen, whose sum is the same"),
    "conv.cuh: parts_for: loop stride: `++parts` -> `parts += 2`": (
        "another number of parts is chosen, whose sum is the same"
    ),
    "conv.cuh: parts_for: rounded down: `ceil_div(steps, parts)` -> `((steps) / (parts))`": (
        "another number of parts is chosen, whose sum is the same"
    ),
    "conv.cuh: bounded: 64-bit index in 32 bits: `int64_t low` -> `int low`": (
        "every lower limit is at most 8"
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
