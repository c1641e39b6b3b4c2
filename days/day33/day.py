"""Day 33: a diffusion step."""

if __name__ == "__main__":  # python days/day33/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day33

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, Tolerance, grid, streamed

from .moons import sample_moons
from .philox import WORDS, normals
from .statistics import print_statistics

TITLE = "Diffusion step"
TEACHES = "Counter-based random numbers, drawn in the kernel that uses them; what arithmetic hides"
TOPICS = ("diffusion", "DDPM", "random numbers", "Philox", "Box-Muller", "fusion")
SOURCE = "ddpm.cu"
INTRODUCES = ("counter-based generator", "Box-Muller transform")

SHAPES = [(1, 1), (5, 7), (3, 1025)]  # odd rows: groups of four and a rest
WIDE = [(3, 8), (70, 16), (2, 4128), (2, 8256)]  # rows of whole packs, around those of a block


def state_of(case, draw):
    """Seed and step; the same for each draw of a case would hide a state that is not read."""
    return draw(2, dtype="int64")


def schedule(rows, draw):
    """sqrt(abar) and sqrt(1 - abar) of a time per row, fp32."""
    signal = draw(rows, dtype="float32", low=0.0, high=1.0)
    return signal, (1 - signal**2).sqrt()


def add_noise_inputs(case, draw):
    return draw(*case.shape), *schedule(case.shape[0], draw), state_of(case, draw)


def wide(x):
    """fp32 for 16-bit types, as the kernels compute."""
    return torch.promote_types(x.dtype, torch.float32)


def add_noise(x, signal, noise, state, bits=32):
    z = normals(state, wide(x), *x.shape, bits=bits).to(x.dtype)  # as torch.randn_like gives it
    return (signal[:, None] * x + noise[:, None] * z).to(x.dtype)


def add_half_words(x, signal, noise, state):
    return add_noise(x, signal, noise, state, bits=16)


def add_noise_pytorch(x, signal, noise, state):
    """In place where it can be; PyTorch draws from a generator of its own, not from `state`."""
    signal, noise = (w[:, None].to(x.dtype) for w in (signal, noise))
    return torch.randn_like(x).mul_(noise).addcmul_(x, signal)


def ddpm_step_inputs(case, draw):
    coefficients = draw(3, dtype="float32", low=-1.0, high=1.0)
    return draw(*case.shape), draw(*case.shape), coefficients, state_of(case, draw)


def ddpm_step(x, predicted, coefficients, state):
    z = normals(state, wide(x), 1, x.numel()).to(x.dtype).reshape(x.shape)
    signal, direction, noise = coefficients.view(3, 1)  # of one dimension, so that they promote
    y = signal * x.flatten() + direction * predicted.flatten() + noise * z.flatten()
    return y.to(x.dtype).view(x.shape)


def ddpm_step_pytorch(x, predicted, coefficients, state):
    c = coefficients
    return torch.randn_like(x).mul_(c[2]).addcmul_(x, c[0]).addcmul_(predicted, c[1])


CASES = (
    *grid([*SHAPES, *WIDE, (0, 8)], FLOATS),
    *grid([(9, 200)], FLOATS, values="nonfinite"),
    *grid([(4, 64)], FLOATS, values="extreme"),
)

TOLERANCE = Tolerance(
    factor=16, why="the special function unit's sine, which cuRAND takes too, is exact to 2^-21"
)

NOISE = Problem(
    name="normal numbers",
    inputs=lambda case, draw: (draw(*case.shape), state_of(case, draw)),
    reference=lambda x, state: normals(state, wide(x), *x.shape).to(x.dtype).contiguous(),
    rungs=(Rung("noise", "Box and Muller's formula, exact functions"),),
    cases=grid([*SHAPES, (2, 4128), (8, 0)], FLOATS),
    timed=False,
)


def addition(name, dtype, rungs, cases, reference=add_noise):
    """The noise addition, timed in one dtype."""
    return Problem(
        name=f"noise addition, {name}",
        inputs=add_noise_inputs,
        reference=reference,
        rungs=rungs,
        cases=cases,
        bench=Case((1024, 196608), dtype),  # 3 × 256 × 256 per image
        bench_cpu=Case((8, 12288), dtype),
        cost=streamed(2, 40),
        pytorch=add_noise_pytorch,
        libraries=(COMPILE,),
        own_numbers=True,
        tolerance=TOLERANCE,
    )


LADDER = (
    Rung("add_noise_v1_separate", "noise through memory"),
    Rung("add_noise_v2_in_registers", "each thread draws its four numbers"),
    Rung("add_noise_v3_packs", "16 bytes per load and store"),
    Rung("add_noise_v4_fast_math", "special function unit"),
)
LAST = Rung("add_noise_v5_half_words", "two numbers of one word", target=Target(0.90, "copy"))
ADDITION = addition("bfloat16", "bfloat16", LADDER, CASES)
ADDITION_HALVES = addition(
    "bfloat16, half words",
    "bfloat16",
    (LAST,),
    [case for case in CASES if case.dtype != "float32"],
    add_half_words,
)
ADDITION_FP32 = addition("float32", "float32", LADDER[2:], grid([(2, 4128)], ["float32"]))

STEP = Problem(
    name="denoising step",
    inputs=ddpm_step_inputs,
    reference=ddpm_step,
    rungs=(
        Rung("ddpm_step_v1_separate", "noise through memory"),
        Rung("ddpm_step_v2_fused", "noise in registers", target=Target(0.90, "copy")),
    ),
    cases=(*CASES, *grid([(2, 3, 5, 8)], FLOATS)),
    bench=Case((1024, 196608), "bfloat16"),
    bench_cpu=Case((8, 12288), "bfloat16"),
    cost=streamed(3, 42),
    pytorch=ddpm_step_pytorch,
    libraries=(COMPILE,),
    own_numbers=True,
    tolerance=TOLERANCE,
)

PROBLEMS = (WORDS, NOISE, ADDITION, ADDITION_HALVES, ADDITION_FP32, STEP)


def show(operators, device):
    """Tests the noise for what it should be, times both dtypes, and samples two moons."""
    print_statistics(operators, device)
    return sample_moons(operators, device)
