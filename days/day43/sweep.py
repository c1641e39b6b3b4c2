"""The sweep: registers, block size and shared memory against bandwidth and FLOP/s."""

from functools import partial

import torch

from common.day import figure_as_svg, print_table, rows_as_json, seconds

COUNTS = (1, 2, 4, 8)  # packs, or chains, per thread
BLOCKS = (32, 64, 128, 256, 512, 1024)  # threads
LIMITS = (1, 2, 4, 8, 0)  # resident blocks that the shared memory allows, 0: no limit
STEPS = 2048
FILES = ("occupancy.json", "occupancy.svg")  # what --write stores of a GPU
LAUNCHES = (  # chains, block, limit
    *((1, 256, 0), (8, 256, 0), (1, 1024, 0), (1, 32, 0), (1, 96, 0)),
    *((1, 256, 1), (1, 256, 3), (1, 128, 8)),
)


def print_residents(operators, device):
    """The occupancy API's answers and, on a GPU, the counts of blocks that were there at once."""
    on_gpu = device.type == "cuda"
    threads = 0  # of the whole GPU
    if on_gpu:
        properties = torch.cuda.get_device_properties(device)
        most = properties.max_threads_per_multi_processor
        threads = most * properties.multi_processor_count
    x = torch.rand(8 * threads, device=device) - 0.5
    rows = []
    for chains, block, limit in LAUNCHES:
        registers, shared, by_api = operators.residents_facts(x, chains, block, limit)
        row = [f"{block} threads, chains: {chains}", registers, f"{shared:,}", by_api]
        if on_gpu:
            counted = operators.residents(x, 0.1, 20000, chains, block, limit).item()
            row += [counted, f"{100 * by_api * block / most:.0f} %"]
        rows.append(row)
    print("resident blocks per multiprocessor")
    header = ["", "registers", "bytes shared", "by the API", "counted", "occupancy"]
    print_table(header[: len(rows[0])], rows)
    if on_gpu:
        equal = sum(row[3] == row[4] for row in rows)
        print(f"the API's answer is the count for {equal} of {len(rows)} launches")


def gigabytes(operators, x, packs, block, limit):
    """GB/s of the copy in one shape of launch, reads plus writes."""
    return 2 * x.nbytes / seconds(partial(operators.copy_sweep, x, packs, block, limit)) / 1e9


def teraflops(operators, x, chains, block, limit):
    """TFLOP/s of the map in one shape of launch."""
    call = partial(operators.map_sweep, x, 0.1, STEPS, chains, block, limit)
    return 2 * STEPS * x.numel() / seconds(call, repeats=5) / 1e12


def measured(operators, x, facts, rate):
    """[count, registers, threads per block, bytes of shared memory per block, resident warps per
    multiprocessor, rate] of each shape of launch."""
    found = []
    for count in COUNTS:
        for block in BLOCKS:
            for limit in LIMITS:
                registers, shared, resident = facts(x, count, block, limit)
                speed = rate(operators, x, count, block, limit)
                warps = resident * block // 32
                found.append([count, registers, block, shared, warps, float(f"{speed:.4g}")])
    return found


def sweep(operators, copied, mapped):
    """All launches of both kernels: {"copy": …, "map": …}, see `measured`."""
    return {
        "copy, GB/s": measured(operators, copied, operators.copy_facts, gigabytes),
        "map, TFLOP/s": measured(operators, mapped, operators.map_facts, teraflops),
    }


def print_best(found):
    """By count and resident warps, the best and the worst rate of all block sizes."""
    for title, launches in found.items():
        warps = sorted({launch[4] for launch in launches})
        rows = []
        for count in COUNTS:
            row = [f"{count} per thread"]
            for number in warps:
                rates = [launch[5] for launch in launches if launch[::4] == [count, number]]
                row.append(f"{min(rates):.3g} to {max(rates):.3g}" if rates else "")
            rows.append(row)
        print(f"{title}, by resident warps per multiprocessor, worst to best block size")
        print_table(["", *map(str, warps)], rows)


def files(found):
    """The sweep as data, a line per launch, and as a plot."""
    return dict(zip(FILES, (rows_as_json(found), svg(found)), strict=True))


def svg(found):
    """A panel per kernel: rates over the resident warps, a colour per count, a marker per block."""

    def draw(figure):
        for axis, (title, launches) in zip(figure.subplots(1, 2), found.items(), strict=True):
            for color, count in enumerate(COUNTS):
                of_count = [launch for launch in launches if launch[0] == count]
                for marker, block in zip("v<^>sD", BLOCKS, strict=True):
                    points = [launch[4:] for launch in of_count if launch[2] == block]
                    axis.scatter(*zip(*points, strict=True), 18, f"C{color}", marker, alpha=0.7)
                label = f"{count} per thread, {of_count[0][1]} registers"
                axis.scatter([], [], 18, f"C{color}", label=label)
            most = max(launch[4] for launch in launches)
            powers = [number for number in (1, 2, 4, 8, 16, 32, 64) if number <= most]
            axis.set_xscale("log", base=2)
            axis.set_xticks(powers, [str(number) for number in powers])
            axis.minorticks_off()
            axis.set_ylim(bottom=0)
            axis.set_xlabel("resident warps per multiprocessor")
            axis.set_title(title)
            axis.legend()

    return figure_as_svg((8.6, 3.6), draw)


def show_sweep(operators, device):
    """Prints the answers of the occupancy API; on a GPU sweeps, prints that and returns it as
    files."""
    print_residents(operators, device)
    if device.type != "cuda":
        return None
    x = torch.randn(1 << 27, device=device)
    found = sweep(operators, x, torch.rand(1 << 22, device=device) - 0.5)
    print_best(found)
    return files(found)
