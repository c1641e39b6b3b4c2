"""What the day's `show` prints and draws: fragmentation, peaks of training steps, PyTorch's use."""

import ctypes
import re
import statistics
import subprocess
import sys
import time

import torch

from common.day import figure_as_svg, print_table

from .step import CATEGORIES, FILE, GPT2, LEAN, PLAIN, WAYS, as_json, by_pytorch, record, step_rows
from .step import stored as stored_step
from .traces import LARGEST, MB, Trace, as_tensor

FILES = (FILE.name, "step.svg", "snapshot.svg")
GIB = 1 << 30
ROOM = 1 << 45  # bytes on paper: more than any trace here needs
STEPS = 3
WIDTH = GIB // 2  # of a row of a snapshot


def gib(size):
    return f"{size / GIB:.3f}"


# ---------------------------------------------------------------- fragmentation


def place(operators, version, trace, room=ROOM):
    return getattr(operators, f"place_v{version}")(trace, room)


def print_fragmentation(operators):
    """Raises RuntimeError where a cache calls the driver in its last step, or where best fit
    reserves more than a power of two does."""
    rows = []
    for name in (PLAIN, LEAN):
        trace = step_rows(name, STEPS)
        begin = len(trace) - len(stored_step(name).events) - 1
        reserved = {}
        for version in (1, 2, 3):
            history, _ = place(operators, version, trace)
            _, allocated, most, calls = history.max(0).values.tolist()
            last = calls - int(history[begin, 3])
            reserved[version] = most
            rows.append([f"v{version}, {name}", gib(allocated), gib(most), calls, last])
            if version > 1 and last:
                raise RuntimeError(f"v{version} calls the driver in its last step: {last} times")
        if not reserved[1] <= reserved[3] <= reserved[2]:
            raise RuntimeError(f"{name}: reserved at the peak by version {reserved}")
    print(f"GPT-2, {GPT2['batch']} × {GPT2['positions']} tokens, fp32, {STEPS} steps, on paper")
    head = ["peak in GiB", "allocated", "reserved", "driver calls", "in the last step"]
    print_table(head, rows)


# ---------------------------------------------------------------- peaks of training steps


def print_peaks():
    """Records each way; returns the steps that are stored."""
    rows, steps = [], {}
    for name, way in WAYS.items():
        step = steps[name] = record(way, **GPT2)
        memory = step.memory()
        at, late = step.peak(), step.peak(step.parts[1])
        rows.append(
            [
                name,
                gib(sum(memory[at].values())),
                step.part_of(at),
                *(gib(memory[at][each]) for each in CATEGORIES[2:]),
                gib(sum(memory[late].values())),
            ]
        )
    print_table(["peak in GiB", "all", "in", *CATEGORIES[2:], "of optimizer"], rows)
    return {name: steps[name] for name in (PLAIN, LEAN)}


# ---------------------------------------------------------------- in use


def print_shortage(operators):
    """What is said where there is not so much memory."""
    trace = Trace()
    trace.allocate(30 << 20)
    for _ in range(2):
        trace.allocate(LARGEST)
    try:
        operators.allocator_v4_events(as_tensor(trace.rows), 0, False)
    except RuntimeError as error:
        print(next(line for line in str(error).splitlines() if "out of memory" in line))
    else:
        raise RuntimeError("2 TiB were allocated")


def library_path():
    return next(path for path in torch.ops.loaded_libraries if "day97" in path)


def try_c_functions(path):
    """The functions that PyTorch is given, called as it calls them. Raises RuntimeError where
    their statistics are wrong."""
    library = ctypes.CDLL(path)
    library.day97_malloc.restype = ctypes.c_void_p
    library.day97_malloc.argtypes = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p
    library.day97_free.argtypes = ctypes.c_void_p, *library.day97_malloc.argtypes
    library.day97_record_stream.argtypes = ctypes.c_void_p, ctypes.c_void_p
    numbers = (ctypes.c_int64 * 4)()
    found = []
    blocks = [library.day97_malloc(size, 0, None) for size in (1, 1000, 3 << 20)]
    library.day97_record_stream(blocks[0], None)
    for block in (None, *blocks):
        library.day97_free(block, 0, 0, None)
        library.day97_statistics(0, numbers)
        found.append(list(numbers))
    size, reserved = 3 << 20, 22 << 20
    expected = [
        [1001 + size, 1536 + size, reserved, 2],
        [1000 + size, 1024 + size, reserved, 2],
        [size, size, reserved, 2],
        [0, 0, reserved, 2],
    ]
    if found != expected:
        raise RuntimeError(f"statistics by the C functions: {found}, expected {expected}")


TRAINING = """
import ctypes, sys, torch
if path := sys.argv[1]:
    ours = torch.cuda.memory.CUDAPluggableAllocator(path, "day97_malloc", "day97_free")
    library = ctypes.CDLL(path)
    recorded = ctypes.cast(library.day97_record_stream, ctypes.c_void_p).value
    if hasattr(ours.allocator(), "set_record_stream_fn"):
        ours.allocator().set_record_stream_fn(recorded)
    torch.cuda.memory.change_current_allocator(ours)
torch.manual_seed(97)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(4096, 512, device="cuda")
for _ in range(20):
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{float(loss):.6f}")
if path:
    numbers = (ctypes.c_int64 * 4)()
    library.day97_statistics(0, numbers)
    print(*numbers)
"""


def train_with(path):
    """The loss of a small training in a process of its own, and the allocator's statistics."""
    run = subprocess.run(
        [sys.executable, "-c", TRAINING, path], capture_output=True, text=True, timeout=100
    )
    if run.returncode:
        raise RuntimeError(f"the training with the allocator {path!r}: {run.stderr[-500:]}")
    return run.stdout.split()


def print_pluggable(path):
    """Raises RuntimeError where the loss is another one than with PyTorch's own allocator."""
    (theirs,), (ours, _, allocated, reserved, calls) = train_with(""), train_with(path)
    print(f"a training by CUDAPluggableAllocator: loss {ours}, with PyTorch's own {theirs}")
    print(f"allocated {gib(int(allocated))} GiB of {gib(int(reserved))} GiB, {calls} driver calls")
    if abs(float(ours) - float(theirs)) > 1e-3 * float(theirs):
        raise RuntimeError("the two trainings differ")


def print_reserved_by_pytorch(operators):
    """Raises RuntimeError where v3 reserves more than 1.05 times as much on a step. PyTorch's
    allocator has a pool of its own: free parts of its earlier segments would lower its peak."""
    rows = []
    for name in (PLAIN, LEAN):
        trace = step_rows(name, STEPS)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            by_pytorch(trace, 0, True)
        theirs = sum(segment["total_size"] for segment in pool.snapshot())
        del pool
        torch.cuda.empty_cache()
        ours = int(place(operators, 3, trace)[0][:, 2].max())
        rows.append([name, gib(ours), gib(theirs), f"{ours / theirs:.3f}"])
        if ours > 1.05 * theirs:
            raise RuntimeError(f"{name}: v3 reserves {ours} bytes, PyTorch {theirs}")
    print_table(["peak reserved in GiB", "v3", "PyTorch", "ratio"], rows)


def show_times(operators, device):
    """On a GPU, prints microseconds per block of a step with a kernel on each, and without any."""
    if device.type != "cuda":
        return
    trace = step_rows(PLAIN, 1)
    blocks = int((trace[:, 0] == 0).sum())
    rows = []
    for name in ("v1_driver", "v2_size_classes", "v3_best_fit", "v4_events", "driver_pool"):
        call = getattr(operators, f"allocator_{name}")
        medians = []
        for touch in (0, 1 << 20):
            times = []
            for _ in range(6):
                began = time.perf_counter()
                call(trace, touch, True)
                times.append(time.perf_counter() - began)
            medians.append(statistics.median(times[1:]))
        call(trace[:1], 0, False)  # gives up what it has kept
        rows.append([name, *(f"{1e6 * each / blocks:.2f}" for each in medians)])
    print_table(["µs per block", "no kernels", "two on 1 MB each"], rows)


# ---------------------------------------------------------------- pictures


def drawn(height, draw):
    """The text of an SVG: draw(figure)."""
    text = figure_as_svg((8.6, height), draw)
    return re.sub(r"\d+\.\d{3,}", lambda each: f"{float(each[0]):.2f}", text)


def thinned(memory, points=150):
    """Of each piece of the events the one at which most is allocated."""
    width = max(1, len(memory) // points)
    pieces = (range(i, min(i + width, len(memory))) for i in range(0, len(memory), width))
    return [max(piece, key=lambda i: sum(memory[i].values())) for piece in pieces]


def draw_steps(figure, steps):
    """A panel per step: what is allocated after each event, by category."""
    axes = figure.subplots(1, len(steps), sharey=True)
    for axis, (name, step) in zip(axes, steps.items(), strict=True):
        memory = step.memory()
        kept = thinned(memory)
        values = [[memory[i][each] / GIB for i in kept] for each in CATEGORIES]
        axis.stackplot(kept, values, labels=CATEGORIES)
        for event in step.parts:
            axis.axvline(event, color="black", linewidth=0.8, linestyle=":")
        at = step.peak()
        most = sum(memory[at].values()) / GIB
        axis.annotate(f"{most:.2f} GiB", (at, most), ha="center", va="bottom")
        axis.set_title(name, loc="left")
        axis.set_xlabel("allocation or release; dotted: the passes end")
        axis.set_xlim(0, len(memory) - 1)
    axes[0].set_ylim(top=1.1 * axes[0].get_ylim()[1])
    axes[0].set_ylabel("GiB allocated")
    axes[-1].legend(loc="upper right")


STYLES = (
    {"color": "#d9d9d9"},
    {"color": "C0"},
    {"color": "none", "edgecolor": "black", "lw": 0.5, "zorder": 3},
)


def pieces_of(blocks):
    """(segment, address, bytes, state) with neighbours of one state as one."""
    found = []
    for segment, at, size, state in blocks:
        if found and found[-1][0] == segment and found[-1][3] == state:
            found[-1][2] += size
        else:
            found.append([segment, at, size, state])
    return found


def draw_snapshots(figure, snapshots):
    """A panel per snapshot: segments side by side in rows of WIDTH, allocated memory in colour."""
    axes = figure.subplots(len(snapshots), 1, sharex=True)
    for axis, (name, blocks) in zip(axes, snapshots.items(), strict=True):
        ends, row, begin = {}, 0, 0
        bars = {}  # by row and state, 2 for segments
        for segment, at, size, _ in blocks:
            ends[segment] = at + size
        for segment, end in ends.items():
            size = end - segment
            if begin + size > WIDTH:
                row, begin = row + 1, 0
            for each, at, length, state in pieces_of(blocks):
                if each == segment and length > MB:
                    bars.setdefault((row, state), []).append((begin + at - segment, length))
            bars.setdefault((row, 2), []).append((begin, size))
            begin += size
        for (row, state), found in bars.items():
            scaled = [(begin / GIB, size / GIB) for begin, size in found]
            axis.broken_barh(scaled, (row - 0.4, 0.8), **STYLES[state])
        live = sum(size for *_, size, state in blocks if state)
        kept = sum(size for _, _, size, _ in blocks)
        axis.set_title(f"{name}: {gib(live)} of {gib(kept)} GiB allocated", loc="left")
        axis.set_yticks([])
        axis.invert_yaxis()
    axes[-1].set_xlabel("GiB; outlined: segments; blue: allocated; grey: free")


def snapshots_of(operators):
    """Where v3 has the blocks of the lean step: at its peak, and when it has ended."""
    peak = stored_step(LEAN).peak() + 1
    titles = {"at the peak of the second step": peak, "after it": None}
    return {
        title: place(operators, 3, step_rows(LEAN, 2, until=until))[1].tolist()
        for title, until in titles.items()
    }


def show(operators, device):
    """Prints where memory goes; returns the recorded steps and the pictures."""
    steps = print_peaks()
    text = as_json(steps)
    print_fragmentation(operators)
    path = library_path()
    try_c_functions(path)
    if device.type == "cuda":
        print_shortage(operators)
        print_reserved_by_pytorch(operators)
        print_pluggable(path)
    else:
        print("CUDAPluggableAllocator is left out: it is for a GPU; its C functions were called")
    pictures = (
        drawn(3.6, lambda figure: draw_steps(figure, steps)),
        drawn(4.8, lambda figure: draw_snapshots(figure, snapshots_of(operators))),
    )
    return dict(zip(FILES, (text, *pictures), strict=True))
