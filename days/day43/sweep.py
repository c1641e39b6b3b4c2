"""The sweep: registers, block size and shared memory against bandwidth and FLOP/s."""

import io
from functools import partial
from pathlib import Path

import torch

from common.day import print_table, seconds

COUNTS = (1, 2, 4, 8)  # packs, or chains, per thread
RESIDENT = ((32, 1), (64, 1), (128, 1), (256, 1), (256, 2), (256, 4), (256, 8))  # block, blocks
BLOCKS = (32, 64, 128, 256, 512, 1024)
STEPS = 2048


def all_threads():
    """Those of the whole GPU."""
    properties = torch.cuda.get_device_properties(0)
    return properties.multi_processor_count * properties.max_threads_per_multi_processor


def gigabytes(operators, x, packs, block, blocks):
    """GB/s of the copy in one shape of launch, reads plus writes."""
    return 2 * x.nbytes / seconds(partial(operators.copy_sweep, x, packs, block, blocks)) / 1e9


def teraflops(operators, x, chains, block, blocks):
    """TFLOP/s of the map in one shape of launch."""
    call = partial(operators.map_sweep, x, 0.1, STEPS, chains, block, blocks)
    return 2 * STEPS * x.numel() / seconds(call, repeats=5) / 1e12


def inputs():
    """What is copied, and what is mapped: fp32 tensors on the GPU."""
    return torch.randn(1 << 27, device="cuda"), torch.rand(1 << 22, device="cuda") - 0.5


def print_residents(operators):
    """The occupancy API's answer and the count of blocks that were there at once.

    Raises RuntimeError where they differ.
    """
    x = torch.rand(8 * all_threads(), device="cuda") - 0.5
    rows = []
    threads = torch.cuda.get_device_properties(0).max_threads_per_multi_processor
    for chains, block, blocks in ((1, 256, 0), (8, 256, 0), (1, 1024, 0), (1, 32, 0), (1, 96, 0),
                                  (1, 256, 1), (1, 256, 3), (1, 128, 8)):  # fmt: skip
        by_api, counted = operators.residents(x, 0.1, 20000, chains, block, blocks).tolist()
        limit = blocks or "none"
        share = by_api * block / threads
        rows.append([f"{block} threads, {chains} chains, limit {limit}", by_api, counted,
                     f"{100 * share:.0f} %"])  # fmt: skip
        if by_api != counted:
            raise RuntimeError(f"{block} threads: the API says {by_api} blocks, {counted} ran")
    print("resident blocks per multiprocessor")
    print_table(["", "by the API", "counted", "occupancy"], rows)


def print_blocks(operators):
    """Block sizes without any limit: the rates hardly depend on them."""
    x, v = inputs()
    print("block size, without a limit of the resident blocks")
    rows = [
        [block, f"{gigabytes(operators, x, 1, block, 0):.0f} GB/s",
         f"{teraflops(operators, v, 1, block, 0):.1f} TFLOP/s"]
        for block in BLOCKS
    ]  # fmt: skip
    print_table(["threads", "copy, 1 pack", "map, 1 chain"], [[str(r[0]), *r[1:]] for r in rows])


def plot_occupancy(operators):
    """Saves occupancy.svg: a curve per count, over the warps that are resident."""
    x, v = inputs()
    warps = [block * blocks // 32 for block, blocks in RESIDENT]
    panels = []
    for title, unit, measure, data in (
        ("copy", "GB/s", gigabytes, x),
        ("map", "TFLOP/s", teraflops, v),
    ):
        curves = {c: [measure(operators, data, c, *shape) for shape in RESIDENT] for c in COUNTS}
        panels.append((title, unit, curves))
        print(f"{title}, {unit}, by resident warps per multiprocessor")
        rows = [[f"{c} per thread", *(f"{r:.3g}" if r < 100 else f"{r:.0f}" for r in rates)]
                for c, rates in curves.items()]  # fmt: skip
        print_table(["", *warps], rows)
    Path(__file__).with_name("occupancy.svg").write_text(svg(warps, panels))


def svg(warps, panels):
    """Curves over the resident warps: (title, unit, {count: rates}) side by side."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "hundred days", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(8.2, 3.2), layout="constrained", facecolor="white")
        for axis, (title, unit, curves) in zip(figure.subplots(1, 2), panels, strict=True):
            for count, rates in curves.items():
                axis.plot(warps, rates, marker="o", label=f"{count} per thread")
            axis.set_xscale("log", base=2)
            axis.set_xticks(warps, [str(w) for w in warps])
            axis.set_ylim(bottom=0)
            axis.set_xlabel("resident warps per multiprocessor")
            axis.set_title(f"{title}, {unit}")
            axis.legend()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
