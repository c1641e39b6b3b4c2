"""The ladder beside cuBLAS under load; what data and layout change; many shapes."""

import time
from functools import partial

import torch

from common.bench.showing import card_state, seconds_in_turn
from common.bench.traces import launches_of
from common.day import print_table, rows_as_json

from ..day import RUNGS as MAIN
from .products import PROBLEMS

MAIN_NAMES = [rung.name for rung in MAIN]  # they take B as (N, K)
NAMES = [*MAIN_NAMES, *(rung.name for rung in PROBLEMS[0].rungs)]
LAST = NAMES[-1]
BEST = ("gemm_v6_wide_tiles", "every_layout_v5_ping_pong", LAST)  # both tiles, and the choice
SQUARES = (4096, 8192)
SHAPES = (  # M, N, K
    *((1024, 1024, 1024), (2048, 2048, 2048), (16384, 16384, 16384)),
    *((128, 8192, 8192), (8192, 128, 8192), (8192, 8192, 128), (256, 256, 65536)),
    *((4096, 11008, 4096), (4096, 14336, 4096), (16384, 5120, 5120), (4000, 4000, 4000)),
)
FILES = ("ladder.json",)  # what --write stores of a GPU


def normal(*shape):
    return torch.randn(shape, device="cuda").bfloat16()


def zeros(*shape):
    return torch.zeros(shape, device="cuda", dtype=torch.bfloat16)


def quantised(*shape):
    """Whole numbers from -8 to 7, as after a quantisation to 4 bits."""
    return torch.randint(-8, 8, shape, device="cuda").bfloat16()


def matrices(shape, transposed=False, draw=normal):
    M, N, K = shape
    return draw(M, K), draw(N, K).t() if transposed else draw(K, N)


def call_of(operators, name, a, b):
    """Return the product by a rung or by cuBLAS, to be called."""
    if name == "cuBLAS":
        return partial(torch.mm, a, b)
    return partial(getattr(operators, name), a, b.t() if name in MAIN_NAMES else b)


def tflops(operators, shape, names, transposed=False, draw=normal, rounds=10):
    """TFLOP/s under load of the rungs `names` and of cuBLAS, which take turns."""
    a, b = matrices(shape, transposed, draw)
    calls = {name: call_of(operators, name, a, b) for name in (*names, "cuBLAS")}
    M, N, K = shape
    return {
        name: 2e-12 * M * N * K / s for name, s in seconds_in_turn(calls, rounds=rounds).items()
    }


def ladder(operators):
    """Rows of (rung, registers, KB shared, and for each size TFLOP/s and × cuBLAS)."""
    found = {n: tflops(operators, (n, n, n), NAMES, transposed=True) for n in SQUARES}
    rows = []
    for name in [*NAMES, "cuBLAS"]:
        kernel = launches_of(call_of(operators, name, *matrices((4096,) * 3, transposed=True)))[0]
        rates = [
            figure
            for at in found.values()
            for figure in (f"{at[name]:.0f}", f"{at[name] / at['cuBLAS']:.3f}")
        ]
        shared = f"{kernel['shared memory'] / 1024:.0f}"
        rows.append([name, kernel["registers per thread"], shared, *rates])
    return rows


def by_shape(operators):
    """Rows of (sizes and layout of B, TFLOP/s of BEST and cuBLAS, the last rung × cuBLAS)."""
    rows = []
    for shape, transposed in ((shape, layout) for shape in SHAPES for layout in (False, True)):
        rates = tflops(operators, shape, BEST, transposed, rounds=5)
        label = " × ".join(map(str, shape)) + (", Bᵀ" if transposed else "")
        rows.append(
            [label, *(f"{r:.0f}" for r in rates.values()), f"{rates[LAST] / rates['cuBLAS']:.3f}"]
        )
    return rows


def by_data(operators):
    """Rows of (data, kernel, TFLOP/s, clock and power in the midst of a second of products)."""
    shape = (8192,) * 3
    rows = []
    for draw in (zeros, quantised, normal):
        rates = tflops(operators, shape, [LAST], draw=draw)
        for name, rate in rates.items():
            call = call_of(operators, name, *matrices(shape, draw=draw))
            for _ in range(round(rate)):  # 1.1 s
                call()
            time.sleep(0.5)
            state = card_state()
            torch.cuda.synchronize()
            rows.append([draw.__name__, name, f"{rate:.0f}", state])
    return rows


def show_ladder(operators, device):
    """Prints all tables, on a GPU, and returns them as a file."""
    if device.type != "cuda":
        return None
    sizes = [f"{n}³{what}" for n in SQUARES for what in (" TFLOP/s", " × cuBLAS")]
    tables = {
        "ladder": (["rung", "registers", "KB shared", *sizes], ladder(operators)),
        "shapes": (["M × N × K", *BEST, "cuBLAS", "v8 × cuBLAS"], by_shape(operators)),
        "data": (["8192³", "kernel", "TFLOP/s", "clock, power"], by_data(operators)),
    }
    for header, rows in tables.values():
        print_table(header, rows)
    return {
        FILES[0]: rows_as_json({name: [header, *rows] for name, (header, rows) in tables.items()})
    }
