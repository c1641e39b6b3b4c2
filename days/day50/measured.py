"""What the day's kernels measure on a GPU: ceilings, latencies, launches; and five lies."""

import datetime
import statistics
import time
from functools import partial

import torch

from common.base.ceilings import UNITS, Ceilings, keep
from common.bench.showing import card_state, gpu_times, wake_gpu
from common.day import print_table, seconds

from .problems import ROW_BYTES, M, N, chain

LARGE = 1 << 28  # elements of 4 bytes: 1 GB
SMALL = LARGE // 64  # 16 MB: a quarter of an H200's L2
ROUNDS = 2000  # of a kernel that repeats its work
STEPS = 20_000  # of a chase
CYCLES = 1_000_000_000  # about half a second, over which the clock is measured

NAMES = {
    "copy": "copy",
    "read": "read",
    "l2": "read, L2",
    "shared": "read, shared",
    "fp32": "multiply-adds, fp32",
    "fp16": "multiply-adds, fp16",
    "int32": "multiply-adds, int32",
    "exp": "exponentials, fp32",
    "tensor": "tensor cores, bf16",
    "fp8": "tensor cores, fp8",
}


def tables(operators, device):
    """Prints all tables. Returns the ceilings as files by name, see common/base/ceilings.py."""
    wake_gpu()
    found = ceilings(operators, device)
    print_table(["ceiling", "kernel", "MHz", "PyTorch"], [row(*item) for item in found.items()])
    measured = Ceilings(
        torch.cuda.get_device_name(device),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        {name: float(f"{rate:.4g}") for name, (rate, _, _) in found.items()},
        {name: float(f"{mhz:.4g}") for name, (_, mhz, _) in found.items()},
    )
    keep(measured)
    print_table(["latency", "ns per load"], latencies(operators, device))
    print_table(["launch", "µs"], launches(operators, device))
    print_table(["lie", "it says", "the truth"], lies(operators, device))
    return {measured.file_name: measured.to_text()}


def row(name, found):
    """A row of the table of ceilings."""
    rate, mhz, library = found
    theirs = f"{library:.4g}" if library else ""
    return NAMES[name], f"{rate:.4g} {UNITS[name]}", f"{mhz:.0f}", theirs


def words(n, device):
    return torch.randint(-(1 << 31), (1 << 31) - 1, (n,), dtype=torch.int32, device=device)


def multiprocessors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_wgmma(device):
    return torch.cuda.get_device_capability(device) == (9, 0)


def products(operators, device, dtype=torch.bfloat16, zeros=False):
    """Operations of a call of `products`, two warpgroups per multiprocessor, and that call."""
    fill, count, K = torch.zeros if zeros else torch.randn, 2 * multiprocessors(device), ROW_BYTES
    K //= dtype.itemsize
    a, b = fill(count, M, K, device=device).to(dtype), fill(N, K, device=device).to(dtype)
    return 2 * M * N * K * count * ROUNDS, partial(operators.products, a, b, ROUNDS)


def tensor_rate(operators, device, zeros=False):
    """TFLOP/s of `products` in bf16."""
    work, call = products(operators, device, zeros=zeros)
    return work / seconds(call) / 1e12


def best_seconds(call):
    """The shortest time of several calls: a ceiling is the most that was ever reached."""
    call()
    return min(gpu_times(call, 20))


def clock_under(call):
    """The mean clock of the multiprocessors, in MHz, while `call` runs again and again. A thread of
    a second stream counts the cycles."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        start.record()
        torch.cuda._sleep(CYCLES)
        stop.record()
    while not stop.query():
        call()
    torch.cuda.synchronize()
    return CYCLES / start.elapsed_time(stop) / 1e3


def ceilings(operators, device):
    """By name: the rate of the day's fastest kernel in GB/s or 10^12 operations per second, the
    clock under it in MHz, and the rate of PyTorch's operator or None."""
    found = {}

    def measure(name, work, *calls, library=None):
        scale = 1e9 if UNITS[name] == "GB/s" else 1e12
        taken, call = min(((best_seconds(call), call) for call in calls), key=lambda each: each[0])
        theirs = work / best_seconds(library) / scale if library else None
        found[name] = work / taken / scale, clock_under(call), theirs

    x = torch.randn(LARGE, device=device)
    y = torch.empty_like(x)
    copies = (operators.copy_v1_one_pack, operators.copy_v2_four_packs)
    measure("copy", 2 * x.nbytes, *(partial(f, x) for f in copies), library=partial(y.copy_, x))
    read = partial(operators.read_global, x.view(torch.int32), 1)
    measure("read", x.nbytes, read, library=x.sum)
    del x, y
    small = words(SMALL, device)
    measure("l2", 20 * small.nbytes, partial(operators.read_global, small, 20))
    shared = words(1024 * 8 * multiprocessors(device), device)
    measure("shared", ROUNDS * shared.nbytes, partial(operators.read_shared, shared, ROUNDS))
    count = 2048 * multiprocessors(device)  # all threads that a multiprocessor can hold
    lanes = torch.rand(count, device=device)
    for name, x in (("fp32", lanes), ("fp16", lanes.half()), ("int32", words(count, device))):
        call = partial(operators.multiply_adds, x, ROUNDS)
        measure(name, 2 * 8 * count * ROUNDS, call)
    measure("exp", 8 * count * ROUNDS, partial(operators.exponentials, lanes, ROUNDS))
    if has_wgmma(device):
        n = 8192
        a, b = (torch.randn(n, n, device=device).bfloat16() for _ in range(2))
        theirs = 2 * n**3 / best_seconds(lambda: a @ b) / 1e12
        measure("tensor", *products(operators, device))
        found["tensor"] = (*found["tensor"][:2], theirs)
        measure("fp8", *products(operators, device, torch.float8_e4m3fn))
    return found


def latencies(operators, device):
    """Rows of (where, nanoseconds per load), from the difference of two lengths, because what a
    launch takes is in both. One element per line of 128 bytes."""
    rows = []
    for where, lines in (("shared memory", 256), ("L1", 128), ("L2", 1 << 16), ("memory", 1 << 23)):
        following = torch.zeros(lines, 32, dtype=torch.int32, device=device)
        following[:, 0] = 32 * chain(lines, device=device)
        chase = operators.chase_shared if where == "shared memory" else operators.chase
        short, long = (
            seconds(partial(chase, following.view(-1), 0, steps)) for steps in (STEPS, 3 * STEPS)
        )
        rows.append((where, f"{(long - short) / (2 * STEPS) * 1e9:.1f}"))
    return rows


def launches(operators, device):
    """Rows of (how, microseconds per launch of a kernel that does nothing)."""
    call = partial(operators.multiply_adds, torch.zeros(1, device=device), 0)

    def many():
        for _ in range(100):
            call()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        many()
    ways = {"one after the other": many, "in a CUDA graph": graph.replay}
    return [(how, f"{seconds(run) / 100 * 1e6:.2f}") for how, run in ways.items()]


def cold_seconds(call, large):
    """Median of a call's time after other bytes, those of `large`, have passed through L2."""
    times = []
    for _ in range(10):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        large.add_(0)
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times)


def lies(operators, device):
    """Rows of (lie, what it says, the truth)."""
    rows = []
    small, large = words(SMALL, device), words(LARGE, device)

    call = partial(operators.read_global, small, 1)
    warm, cold = seconds(call), cold_seconds(call, large)
    rate = "{:.0f} GB/s".format
    rows.append(("warm L2", rate(small.nbytes / warm / 1e9), rate(small.nbytes / cold / 1e9)))

    if has_wgmma(device):
        zeros, random = (tensor_rate(operators, device, zeros=zeros) for zeros in (True, False))
        rows.append(("zeros as data", f"{zeros:.0f} TFLOP/s", f"{random:.0f} TFLOP/s"))

    began = time.perf_counter()
    operators.read_global(large, 1)
    says = large.nbytes / (time.perf_counter() - began) / 1e9
    truth = large.nbytes / seconds(partial(operators.read_global, large, 1)) / 1e9
    rows.append(("no synchronisation", rate(says), rate(truth)))

    if has_wgmma(device):
        rows += fixed_order(operators, device)

    tiny = torch.randn(1 << 12, device=device)
    big = torch.randn(LARGE, device=device)
    says, truth = (
        2 * x.nbytes / seconds(partial(operators.copy_v2_four_packs, x)) / 1e9 for x in (tiny, big)
    )
    rows.append(("tiny sizes", rate(says), rate(truth)))
    return rows


def fixed_order(operators, device):
    """Rows of the same call before and after two seconds of work: the second finds a hot card."""
    first, idle = tensor_rate(operators, device), card_state()
    began = time.perf_counter()
    while time.perf_counter() - began < 2:
        second = tensor_rate(operators, device)
    says, truth = f"{first:.0f} TFLOP/s for the first", f"{second:.0f} for the same, as the second"
    return [("fixed order", says, truth), ("  clock and power", idle, card_state())]
