"""The PTX wrappers: their CPU bodies against exact references, and on a GPU the PTX against both.

`cpu_kernels/ptx.cu` uses each wrapper once. On a machine with a GPU, the same tests run there with
the same inputs.
"""

import numpy as np
import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call, best_of_three, names_line

KERNELS = "ptx"
OPS = torch.ops.test_ptx


@pytest.fixture
def runtime(operators: object, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """Return the CPU backend with default settings, with the operators loaded."""
    return cpu_runtime


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


# ---------------------------------------------------------------- cp.async


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_cp_async(call: Call, generator: torch.Generator, size: int, rounds: int) -> None:
    x = torch.randint(0, 256, (rounds, 64, size), generator=generator, dtype=torch.uint8)
    assert call("copy", x, size, size).equal(x.flip(1))
    for valid in (0, 1, size // 2, size - 1):
        want = x.clone()
        want[..., valid:] = 0
        assert call("copy", x, size, valid).equal(want.flip(1)), valid


def test_copies_come_as_late_as_is_legal(runtime: backend.Runtime) -> None:
    x = torch.arange(1.0, 65.0)
    for order in ("forward", "reverse"):
        runtime.set_schedule(order)
        assert OPS.mistake(x, 1).isnan().all()
        assert OPS.mistake(x, 4).isnan().all()
    results = []
    for seed in range(4):
        runtime.set_schedule("random", seed)
        results.append(OPS.mistake(x, 2))
    assert any(not y.equal(x.flip(0)) for y in results), "a copy that is early shows nowhere"
    runtime.set_schedule("forward")
    assert OPS.mistake(x, 3)[:32].isnan().all()


# ---------------------------------------------------------------- ldmatrix


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix(call: Call, generator: torch.Generator, matrices: int, transposed: bool) -> None:
    x = torch.randint(-(2**15), 2**15, (3, 4, 8, 8), generator=generator, dtype=torch.int16)
    got = call("ldmatrix", x, matrices, transposed).view(torch.int16)
    source = x[:, :matrices].mT if transposed else x[:, :matrices]
    # (block, matrix, row, 4 pairs, 2) → (block, lane = row and pair, matrix, 2)
    want = source.reshape(3, matrices, 8, 4, 2).permute(0, 2, 3, 1, 4).reshape(3, 32, matrices * 2)
    assert got.equal(want)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_stmatrix(call: Call, generator: torch.Generator, matrices: int, transposed: bool) -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("stmatrix came with sm_90")
    x = torch.randint(-(2**15), 2**15, (3, matrices, 8, 8), generator=generator, dtype=torch.int16)
    source = x.mT if transposed else x
    lanes = source.reshape(3, matrices, 32, 2).permute(0, 2, 1, 3).contiguous()
    got = call("stmatrix", lanes.view(torch.int32).reshape(3, 32, matrices), transposed)
    assert got[:, :matrices].equal(x)
    assert got[:, matrices:].eq(0).all()


def test_movmatrix(call: Call, generator: torch.Generator) -> None:
    x = torch.randint(-(2**15), 2**15, (5, 8, 8), generator=generator, dtype=torch.int16)
    got = call("movmatrix", x.view(torch.int32).reshape(5, 32))
    assert got.view(torch.int16).reshape(5, 8, 8).equal(x.mT)


# ---------------------------------------------------------------- mma

FLOATS = [torch.half, torch.bfloat16, torch.float32]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP8 = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)]


def _depth(dtype: torch.dtype) -> int:
    return 32 // dtype.itemsize


def _needs_fp8() -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("products of fp8 came with sm_89")


def _tf32(x: torch.Tensor) -> torch.Tensor:
    """Return x rounded to 10 bits of mantissa, halves away from zero, as float64."""
    word = x.numpy().view(np.uint32).astype(np.uint64) + 0x1000 & 0xFFFFE000
    return torch.from_numpy(word.astype(np.uint32).view(np.float32).astype(np.float64))


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mma_of_floats(call: Call, generator: torch.Generator, dtype: torch.dtype, n: int) -> None:
    k = _depth(dtype)
    a = torch.randn(n, 16, k, generator=generator).to(dtype)
    b = torch.randn(n, 8, k, generator=generator).to(dtype)
    c = torch.randn(n, 16, 8, generator=generator)
    exact_a, exact_b = (_tf32(a), _tf32(b)) if dtype == torch.float32 else (a.double(), b.double())
    want = exact_a @ exact_b.mT + c.double()
    scale = exact_a.abs() @ exact_b.abs().mT + c.double().abs()
    got = call("mma", a, b, c, exact=False).double()
    assert ((got - want).abs() <= k * 2**-23 * scale).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mma_of_small_integers_is_exact(
    call: Call, generator: torch.Generator, dtype: torch.dtype
) -> None:
    k = _depth(dtype)
    a = torch.randint(-8, 9, (3, 16, k), generator=generator)
    b = torch.randint(-8, 9, (3, 8, k), generator=generator)
    c = torch.randint(-99, 100, (3, 16, 8), generator=generator)
    got = call("mma", a.to(dtype), b.to(dtype), c.float())
    assert got.long().equal(a @ b.mT + c)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mma_of_infinities_and_nan(call: Call, dtype: torch.dtype) -> None:
    k = _depth(dtype)
    a, b, c = torch.ones(1, 16, k), torch.ones(1, 8, k), torch.zeros(1, 16, 8)
    a[0, 0, 0], a[0, 1, 1], c[0, 2, 3] = torch.inf, torch.nan, -torch.inf
    b[0, 5, 0] = 0
    got = call("mma", a.to(dtype), b.to(dtype), c, exact=False)[0]
    want = (a @ b.mT + c)[0]
    assert torch.allclose(got, want, equal_nan=True)


@pytest.mark.parametrize("sums", [torch.float32, torch.half], ids=str)
@pytest.mark.parametrize("dtypes", [(torch.half, torch.half), *FP8], ids=str)
def test_mma_of_small_integers_with_either_sum(
    call: Call,
    generator: torch.Generator,
    dtypes: tuple[torch.dtype, torch.dtype],
    sums: torch.dtype,
) -> None:
    _needs_fp8()
    k = _depth(dtypes[0])
    a, b = (
        torch.randint(-4, 5, (5, n, k), generator=generator).float().to(dtype)
        for n, dtype in zip((16, 8), dtypes, strict=True)
    )
    c = torch.randint(-99, 100, (5, 16, 8), generator=generator).to(sums)
    got = call("mma", a, b, c)
    assert got.double().equal(a.double() @ b.double().mT + c.double())


@pytest.mark.parametrize("sums", [torch.float32, torch.half], ids=str)
@pytest.mark.parametrize("dtypes", [(torch.half, torch.half), *FP8], ids=str)
def test_mma_of_floats_with_either_sum(
    call: Call,
    generator: torch.Generator,
    dtypes: tuple[torch.dtype, torch.dtype],
    sums: torch.dtype,
) -> None:
    _needs_fp8()
    k = _depth(dtypes[0])
    a = torch.randn(5, 16, k, generator=generator).to(dtypes[0])
    b = torch.randn(5, 8, k, generator=generator).to(dtypes[1])
    c = torch.randn(5, 16, 8, generator=generator).to(sums)
    want = a.double() @ b.double().mT + c.double()
    scale = a.double().abs() @ b.double().abs().mT + c.double().abs()
    got = call("mma", a, b, c, exact=False).double()
    error = ((got - want).abs() / scale).max().item()
    print(f"{dtypes} with sums of {sums}, {call.device}: largest error {error:.3g} of Σ|a·b| + |c|")
    assert error <= (2**-10 if sums == torch.half else k * 2**-23)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_mma_of_integers(call: Call, generator: torch.Generator, dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    a = torch.randint(low, high + 1, (6, 16, 32), generator=generator, dtype=dtype)
    b = torch.randint(low, high + 1, (6, 8, 32), generator=generator, dtype=dtype)
    c = torch.randint(-(2**31), 2**31, (6, 16, 8), generator=generator)  # sums that wrap around
    want = (a.long() @ b.long().mT + c).int()
    assert call("mma", a, b, c.int()).equal(want)


def test_rounding_to_tf32(call: Call, generator: torch.Generator) -> None:
    x = torch.randn(1000, generator=generator)
    x[:8] = torch.tensor([0.0, -0.0, 1 + 2**-11, -1 - 2**-11, torch.inf, -torch.inf, 1e-40, 3.4e38])
    got = call("tf32", x).view(torch.float32)
    assert got.double().equal(_tf32(x))
    assert call("tf32", torch.full((32,), torch.nan), exact=False).view(torch.float32).isnan().all()


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_matmul_by_cp_async_ldmatrix_and_mma(
    call: Call, generator: torch.Generator, dtype: torch.dtype
) -> None:
    for m, n, k in ((64, 64, 32), (64, 128, 96), (128, 64, 64)):
        a = torch.randn(m, k, generator=generator).to(dtype)
        b = torch.randn(k, n, generator=generator).to(dtype)
        got = call("matmul", a, b, exact=False).double()
        scale = a.double().abs() @ b.double().abs()
        assert ((got - a.double() @ b.double()).abs() <= k * 2**-23 * scale).all()


# ---------------------------------------------------------------- exp2


def test_exp2(call: Call, generator: torch.Generator) -> None:
    x = torch.rand(4000, generator=generator) * 254 - 126
    want = x.double().exp2()
    got = call("powers", x, exact=False).double()
    assert ((got - want).abs() <= 2**-22 * want).all()
    special = torch.tensor([-126.5, -140.0, -torch.inf, torch.inf, 0.0, -0.0, 1e-40, 128.0])
    expected = torch.tensor([0.0, 0.0, 0.0, torch.inf, 1.0, 1.0, 1.0, torch.inf])
    assert call("powers", special).equal(expected)
    assert call("powers", torch.full((4,), torch.nan), exact=False).isnan().all()


# ---------------------------------------------------------------- log2, sqrt


def test_log2_and_sqrt(call: Call, generator: torch.Generator) -> None:
    powers = (torch.rand(4000, generator=generator) * 252 - 126).exp2()
    x = torch.cat([powers, 1 + torch.linspace(-0.5, 1, 4000)])
    logarithm, root, reciprocal = call("logarithms", x, exact=False).double()
    exact = x.double().log2()
    assert ((logarithm - exact).abs() <= 2**-21 * exact.abs().clamp(min=1)).all()
    assert ((root - x.double().sqrt()).abs() <= 2**-22 * x.double().sqrt()).all()
    assert ((reciprocal * x.double().sqrt() - 1).abs() <= 2**-22).all()
    special = torch.tensor([0.0, 1.0, 1e-40, torch.inf, 4.0])
    expected = torch.tensor(
        [
            [-torch.inf, 0.0, -torch.inf, torch.inf, 2.0],
            [0.0, 1.0, 0.0, torch.inf, 2.0],
            [torch.inf, 1.0, torch.inf, 0.0, 0.5],
        ]
    )
    assert call("logarithms", special).equal(expected)
    assert call("logarithms", torch.tensor([-1.0, torch.nan]), exact=False).isnan().all()


# ---------------------------------------------------------------- redux, dp4a, lop3


def _bytes(x: np.ndarray, dtype: type) -> np.ndarray:
    return x.view(dtype).reshape(-1, 4).astype(np.int64)


def test_integers(call: Call, generator: torch.Generator) -> None:
    x = torch.randint(-(2**31), 2**31, (96,), generator=generator).int()
    got = call("integer", x).numpy()
    v = x.numpy()
    signed, unsigned = v.reshape(3, 32), v.view(np.uint32).reshape(3, 32)
    reduced = [
        *(signed.sum(1, dtype=np.int64), signed.min(1), signed.max(1)),
        *(unsigned.min(1), unsigned.max(1)),
        *(f.reduce(unsigned, axis=1) for f in (np.bitwise_and, np.bitwise_or, np.bitwise_xor)),
    ]
    for row, want in enumerate(reduced):
        assert (got[row] == np.repeat(want.astype(np.int64).astype(np.int32), 32)).all(), row
    apart = signed.astype(np.int64).reshape(3, 16, 2).sum(1)  # of the even and the odd lanes
    assert (got[8] == np.tile(apart[:, None], (1, 16, 1)).reshape(-1).astype(np.int32)).all()
    other = v.reshape(-1, 2)[:, ::-1].reshape(-1).copy()
    kinds = [(np.int8, np.int8), (np.uint8, np.uint8), (np.uint8, np.int8)]
    for row, (left, right) in enumerate(kinds):
        want = (_bytes(v, left) * _bytes(other, right)).sum(1) + v
        assert (got[9 + row] == want.astype(np.int32)).all(), row
    lane = np.arange(v.size, dtype=np.uint32) % 32
    a, b, c = v.view(np.uint32), other.view(np.uint32), np.uint32(0x0FF0F0F1) * (lane + 1)
    for row, want in enumerate([a & b | c, a ^ b ^ c, b & c | a & ~c]):
        assert (got[12 + row].view(np.uint32) == want).all(), row


# ---------------------------------------------------------------- named barriers, mbarrier


@pytest.mark.parametrize("tiles", [1, 2, 3, 20])
def test_named_barriers(call: Call, tiles: int) -> None:
    x = torch.arange(tiles * 64, dtype=torch.int32).reshape(tiles, 64)
    assert call("named_barriers", x).equal(x.flip(1))


@pytest.mark.parametrize("tiles", [1, 2, 3, 20])
@pytest.mark.parametrize("how", [0, 1, 2], ids=["stores", "cp_async", "bulk"])
def test_mbarriers(call: Call, how: int, tiles: int) -> None:
    if call.device == "cuda" and how == 2 and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("TMA came with sm_90")
    x = torch.arange(tiles * 64, dtype=torch.int32).reshape(tiles, 64)
    for test in (False, True):
        assert call("mbarriers", x, how, test).equal(x.flip(1))


# ---------------------------------------------------------------- mistakes

MISTAKES = {
    10: (r"cp\.async: misaligned address: to copy 16 bytes", "misaligned copy"),
    11: (r"cp\.async: the destination 0x\w+ is not in the block's shared", "copy to global memory"),
    12: (r"cp\.async: 5 valid bytes of 4", "too many valid bytes"),
    13: ("null pointer", "copy from null"),
    14: (r"ldmatrix\.x4: misaligned address: the row at", "misaligned row"),
    15: (r"ldmatrix\.x4: the row at \w+ that lane 0 passes is not in", "row in global memory"),
    18: (
        r"stmatrix\.x4: the row at \w+ that lane 0 passes is not in",
        "row stored to global memory",
    ),
    16: (r"f16: all 32 lanes of a warp must call it, but only lanes 0xffff0000", "half a warp"),
    17: (r"lane 1 is in mma\.m16n8k16\.f16 while lanes 0x00000001 .* wait in mma.m16n8k8.tf32", ""),
    20: ("in bar.sync .* barrier 1, where 32 of 64 threads have arrived", "two barriers for one"),
    21: ("barrier 1 for 32 threads, while another warp there says 64", "two numbers of threads"),
    22: (r"bar\.sync: barrier 0; allowed are 1 to 15", "barrier 0"),
    23: (r"bar\.sync: barrier 1 for 48 threads; it must be a multiple of 32", "no whole warps"),
    24: ("the lanes of a warp name different barriers", "lanes apart"),
    30: (r"mbarrier\.arrive: the mbarrier at \w+ was not initialised", "never initialised"),
    31: ("phase of parity 0, where 64 of 65 arrivals have come", "too few arrivals"),
    32: ("where 1 of 1 arrivals have come and 256 bytes are pending", "too few bytes"),
    33: ("no thread makes progress", "no thread arrives"),
    34: (r"cp\.async\.bulk: misaligned: 128 bytes", "misaligned bulk copy"),
}


@pytest.mark.parametrize("which", MISTAKES)
def test_a_mistake_is_named(runtime: backend.Runtime, which: int) -> None:
    message, marker = MISTAKES[which]
    with pytest.raises(RuntimeError, match=message) as caught:
        OPS.mistake(torch.zeros(64), which)
    assert not marker or names_line(str(caught.value), KERNELS, marker), str(caught.value)


def test_speed_is_of_the_right_order(runtime: backend.Runtime) -> None:
    """A limit with room for a busy machine; `-s` prints the figure."""
    a = torch.randn(512, 512).bfloat16()
    seconds = best_of_three(lambda: OPS.matmul(a, a))
    print(f"512³ by cp.async, ldmatrix and mma: {1e3 * seconds:.0f} ms")
    assert seconds < 1
