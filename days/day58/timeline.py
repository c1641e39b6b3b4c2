"""When copies and kernels ran, by events, as a picture; and what a stream's priority changes."""

import statistics

import torch

from common.day import figure_as_svg, print_table, rows_as_json

N, CHUNK, STREAMS = 1 << 24, 1 << 20, 4
STAGES = ("copy in", "kernel", "copy out")
FILES = ("timeline.json", "timeline.svg")  # what --write stores of a GPU
URGENT = 1 << 12  # elements of the kernel that somebody waits for
BACKGROUND = 1 << 25  # elements of each of the kernels that keep the GPU busy


def stages(operators, M, E, chunk, streams):
    """[stream, [ms at the start, after copy in, after the kernel, after copy out]] of each chunk,
    from the start of the first one."""
    begin = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for stream in streams:
        stream.wait_event(begin)
    marks = []
    for i, (part, out) in enumerate(zip(M.split(chunk), E.split(chunk), strict=True)):
        number = i % len(streams)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(1 + len(STAGES))]
        with torch.cuda.stream(streams[number]):
            events[0].record()
            on_gpu = part.cuda(non_blocking=True)
            events[1].record()
            solved = operators.kepler(on_gpu)
            events[2].record()
            out.copy_(solved, non_blocking=True)
            events[3].record()
        marks.append((number, events))
    torch.cuda.synchronize()
    return [
        [number, [round(begin.elapsed_time(event), 4) for event in events]]
        for number, events in marks
    ]


def measure(operators):
    """The stages of three ways, by name. Each is run before it is measured."""
    M = torch.randn(N).pin_memory()
    E = torch.empty(N).pin_memory()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    ways = {
        "serial": (M, E, N, streams[:1]),
        "chunks in four streams": (M, E, CHUNK, streams),
        "the same, pageable memory": (M.clone(), torch.empty(N), CHUNK, streams),
    }
    found = {}
    for name, way in ways.items():
        stages(operators, *way)
        found[name] = stages(operators, *way)
    return found


def print_stages(found):
    """The whole time, and the sum of what each stage's events enclose."""
    rows = []
    for name, chunks in found.items():
        ends = [marks for _, marks in chunks]
        whole = max(marks[-1] for marks in ends) - min(marks[0] for marks in ends)
        sums = [sum(marks[s + 1] - marks[s] for marks in ends) for s in range(len(STAGES))]
        rows.append([name, f"{whole:.2f}", *(f"{each:.2f}" for each in sums)])
    print("ms, the whole and the sum over the chunks (waiting for the bus included)")
    print_table(["", "whole", *STAGES], rows)


def files(found):
    """The times as data, a line per chunk, and the picture."""
    return dict(zip(FILES, (rows_as_json(found), svg(found)), strict=True))


def svg(found):
    """A panel per way: a row per stream, a colour per stage, over the time in ms."""

    def draw(figure):
        heights = [1 + max(number for number, _ in chunks) for chunks in found.values()]
        axes = figure.subplots(len(found), 1, sharex=True, height_ratios=[1 + h for h in heights])
        for axis, (name, chunks) in zip(axes, found.items(), strict=True):
            for number, marks in chunks:
                for s in range(len(STAGES)):
                    axis.barh(number, marks[s + 1] - marks[s], 0.8, marks[s], color=f"C{s}")
            axis.set_title(name, loc="left")
            axis.set_yticks(range(max(number for number, _ in chunks) + 1))
            axis.invert_yaxis()
        for s, stage in enumerate(STAGES):
            axes[0].bar(0, 0, color=f"C{s}", label=stage)
        axes[0].legend(ncols=len(STAGES), loc="upper right")
        axes[-1].set_xlabel("ms; a row per stream")

    return figure_as_svg((8.6, 4.4), draw)


def wait_of_urgent(operators, priority):
    """Median ms from the submission of a small kernel in a stream of that priority until it is
    done, while another stream of the lowest priority has much to do."""
    busy = torch.cuda.Stream(priority=0)
    urgent = torch.cuda.Stream(priority=priority)
    large = torch.randn(BACKGROUND, device="cuda")
    small = torch.randn(URGENT, device="cuda")
    waits = []
    for _ in range(11):
        torch.cuda.synchronize()
        with torch.cuda.stream(busy):
            for _ in range(4):
                operators.kepler(large)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(urgent):
            start.record()
            operators.kepler(small)
            stop.record()
        torch.cuda.synchronize()
        waits.append(start.elapsed_time(stop))
    return statistics.median(waits)


def show(operators):
    """Prints the stages' times and the effect of a priority; returns the timeline as files."""
    found = measure(operators)
    print_stages(found)
    print("a kernel of 2^12 elements beside kernels of 2^25 elements in another stream")
    rows = [[str(p), f"{wait_of_urgent(operators, p):.3f}"] for p in (0, -5)]
    print_table(["priority of its stream", "ms until it is done"], rows)
    return files(found)
