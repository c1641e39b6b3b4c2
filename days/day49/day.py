"""Day 49: profiling: a slow kernel, and three steps that its profile asks for."""

if __name__ == "__main__":  # python days/day49/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day49

from common.day import COMPILE, Case, Problem, Rung, Target, grid, streamed

from . import report

TITLE = "Profiling"
TEACHES = "Reading a profile: NVTX ranges, torch.profiler, and the counters of Nsight Compute"
TOPICS = ("profiling", "Nsight Compute", "NVTX", "torch.profiler", "stalls", "wavefronts")
SOURCE = "profiling.cu"
INTRODUCES = ("NVTX", "stall")

# Counters that ncu reads beside those of every --profile.
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__occupancy_limit_shared_mem",
)
READ = (
    "gpu__time_duration.sum",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    *METRICS,
)


def center(x):
    return x - x.mean(dim=1, keepdim=True)


ROWS = (1, 3, 4, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000, 0)

CENTER = Problem(
    name="center",
    inputs=lambda case, draw: (draw(*case.shape),),
    reference=center,
    rungs=(
        Rung("center_v1_thread_per_row", "32 sectors per request"),
        Rung("center_v2_tile", "4 sectors, bank conflicts"),
        Rung("center_v3_padded", "no conflicts, 12 warps per multiprocessor"),
        Rung("center_v4_lanes", "no tile, all warps that fit", target=Target(0.95, "copy")),
    ),
    cases=(
        *grid([(rows, 32) for rows in ROWS], ["float32"]),
        Case((300, 32), values="nonfinite"),
    ),
    refused=grid([(9, 31), (9, 33), (32,), (2, 2, 32)], ["float32"]),
    bench=Case((1 << 22, 32)),
    bench_cpu=Case((1 << 11, 32)),
    cost=streamed(2, 2),
    pytorch=center,
    libraries=(COMPILE,),
)

PROBLEMS = (CENTER,)


def show_times(operators, device):
    """The counters in three columns, which have to agree, and a trace."""
    files = report.print_counters(device, READ)
    return files | report.print_trace(operators, device, CENTER.timing_case(device.type).shape[0])
