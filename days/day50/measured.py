"""What the day's kernels measure: ceilings, latencies, launches; and five lies."""

import statistics
import time
from collections import namedtuple
from functools import partial

import torch

from common.base.cache import cache_directory
from common.bench.ceilings import raise_ceilings
from common.bench.showing import card_state
from common.day import print_table, seconds

from .problems import K, M, N, chain

# Elements of a large array; threads per multiprocessor; rounds of a kernel that repeats its work.
Sizes = namedtuple("Sizes", "large threads rounds steps")
GPU = Sizes(large=1 << 28, threads=2048, rounds=2000, steps=20_000)

# The runner's ceilings, by the name of the row that measures them here.
CEILINGS = {
    "copy": "copy",
    "read": "read",
    "multiply-adds, fp32": "fp32",
    "multiply-adds, int32": "int32",
    "tensor cores, bf16": "tensor",
}


def tables(operators, device, sizes):
    """Prints all tables. sizes: a Sizes; the tests take a small one."""
    multiprocessors = 1
    if device.type == "cuda":
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    rates = ceilings(operators, device, sizes, multiprocessors)
    print_table(["ceiling", "kernel", "PyTorch"], [shown(name, *rates[name]) for name in rates])
    if device.type == "cuda":  # what the runner holds every rung's rate beside, from now on
        raise_ceilings({CEILINGS[name]: rates[name][0] for name in CEILINGS}, cache_directory())
    print_table(["latency", "ns per load"], latencies(operators, device, sizes))
    print_table(["launch", "µs"], launches(operators, device))
    print_table(["lie", "it says", "the truth"], lies(operators, device, sizes, multiprocessors))


def words(n, device):
    return torch.randint(-(1 << 31), (1 << 31) - 1, (n,), dtype=torch.int32, device=device)


def tiles(device, count, zeros=False):
    """Arguments of `products` for `count` of them."""
    fill = torch.zeros if zeros else torch.randn
    a, b = fill(count, M, K, device=device), fill(N, K, device=device)
    return a.bfloat16(), b.bfloat16()


def tensor_rate(operators, device, sizes, multiprocessors, zeros=False):
    """TFLOP/s of `products`, two per multiprocessor."""
    count = 2 * multiprocessors
    call = partial(operators.products, *tiles(device, count, zeros), sizes.rounds)
    return 2 * M * N * K * count * sizes.rounds / seconds(call) / 1e12


def shown(name, rate, unit, library):
    """A row of the table of ceilings."""
    return name, f"{rate:.4g} {unit}", f"{library:.4g}" if library else ""


def ceilings(operators, device, sizes, multiprocessors):
    """By name: rate of the day's kernel, its unit, rate of PyTorch's operator or None."""
    rates = {}

    def measure(name, unit, work, call, library=None):
        rates[name] = work / seconds(call), unit, work / seconds(library) if library else None

    x = torch.randn(sizes.large, device=device)
    y = torch.empty_like(x)
    gb, tflop = x.nbytes / 1e9, 2 * 8 / 1e12  # tflop: of one element and step
    copy = partial(operators.copy_v2_four_packs, x)
    measure("copy", "GB/s", 2 * gb, copy, partial(y.copy_, x))
    measure("read", "GB/s", gb, partial(operators.read_global, x.view(torch.int32), 1), x.sum)
    del x, y
    small = words(sizes.large // 64, device)  # 16 MB: a quarter of an H200's L2
    work = 20 * small.nbytes / 1e9
    measure("read, L2", "GB/s", work, partial(operators.read_global, small, 20))
    shared = words(1024 * 8 * multiprocessors, device)
    work = sizes.rounds * shared.nbytes / 1e9
    measure("read, shared", "GB/s", work, partial(operators.read_shared, shared, sizes.rounds))
    count = sizes.threads * multiprocessors
    for name, lanes in (
        ("fp32", torch.rand(count, device=device)),
        ("fp16", torch.rand(count, device=device).half()),
        ("int32", words(count, device)),
    ):
        call = partial(operators.multiply_adds, lanes, sizes.rounds)
        measure(f"multiply-adds, {name}", "TFLOP/s", tflop * count * sizes.rounds, call)
    n = 8192 if device.type == "cuda" else 64
    a, b = (torch.randn(n, n, device=device).bfloat16() for _ in range(2))
    theirs = 2 * n**3 / seconds(lambda: a @ b) / 1e12
    mine = tensor_rate(operators, device, sizes, multiprocessors)
    rates["tensor cores, bf16"] = mine, "TFLOP/s", theirs
    return rates


def latencies(operators, device, sizes):
    """Rows of (where, nanoseconds per load), from the difference of two lengths, because what a
    launch takes is in both. One element per line of 128 bytes."""
    rows = []
    for where, lines in (("shared memory", 256), ("L1", 128), ("L2", 1 << 16), ("memory", 1 << 23)):
        lines = min(lines, sizes.large // 32)
        following = torch.zeros(lines, 32, dtype=torch.int32, device=device)
        following[:, 0] = 32 * chain(lines, device=device)
        chase = operators.chase_shared if where == "shared memory" else operators.chase
        short, long = (
            seconds(partial(chase, following.view(-1), 0, steps))
            for steps in (sizes.steps, 3 * sizes.steps)
        )
        rows.append((where, f"{(long - short) / (2 * sizes.steps) * 1e9:.1f}"))
    return rows


def launches(operators, device):
    """Rows of (how, microseconds per launch of a kernel that does nothing)."""
    call = partial(operators.multiply_adds, torch.zeros(1, device=device), 0)

    def many():
        for _ in range(100):
            call()

    rows = [("one after the other", f"{seconds(many) / 100 * 1e6:.2f}")]
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        rows.append(("in a CUDA graph", f"{seconds(graph.replay) / 100 * 1e6:.2f}"))
    return rows


def cold_seconds(call, large):
    """Median of a call's time after other bytes, those of `large`, have passed through L2."""
    times = []
    for _ in range(10):
        if large.device.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            large.add_(0)
            start.record()
            call()
            stop.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(stop) / 1e3)
        else:
            large.add_(0)
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def lies(operators, device, sizes, multiprocessors):
    """Rows of (lie, what it says, the truth)."""
    rows = []
    small, large = words(sizes.large // 64, device), words(sizes.large, device)

    call = partial(operators.read_global, small, 1)
    warm, cold = seconds(call), cold_seconds(call, large)
    rate = "{:.0f} GB/s".format
    rows.append(("warm L2", rate(small.nbytes / warm / 1e9), rate(small.nbytes / cold / 1e9)))

    zeros = tensor_rate(operators, device, sizes, multiprocessors, zeros=True)
    random = tensor_rate(operators, device, sizes, multiprocessors)
    rows.append(("zeros as data", f"{zeros:.0f} TFLOP/s", f"{random:.0f} TFLOP/s"))

    began = time.perf_counter()
    operators.read_global(large, 1)
    says = large.nbytes / (time.perf_counter() - began) / 1e9
    truth = large.nbytes / seconds(partial(operators.read_global, large, 1)) / 1e9
    rows.append(("no synchronisation", rate(says), rate(truth)))

    # The same call before and after two seconds of work: the second one finds a hot card.
    first = tensor_rate(operators, device, sizes, multiprocessors)
    idle = card_state()
    began = time.perf_counter()
    while device.type == "cuda" and time.perf_counter() - began < 2:
        second = tensor_rate(operators, device, sizes, multiprocessors)
    second = tensor_rate(operators, device, sizes, multiprocessors)
    rows.append(
        (
            "fixed order",
            f"{first:.0f} TFLOP/s for the first",
            f"{second:.0f} for the same, as the second",
        )
    )
    rows.append(("  clock and power", idle, card_state()))

    tiny = torch.randn(1 << 12, device=device)
    big = torch.randn(sizes.large, device=device)
    says, truth = (
        2 * x.nbytes / seconds(partial(operators.copy_v2_four_packs, x)) / 1e9 for x in (tiny, big)
    )
    rows.append(("tiny sizes", rate(says), rate(truth)))
    return rows
