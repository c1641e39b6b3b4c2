"""Device functions: the list of CUDA's functions is complete, and the less common ones are right.

`cpu_kernels/intrinsics.cu` calls SIMD integers, inverse functions, random numbers and cache hints.
"""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from common.base import toolchain
from common.cpu import backend, features
from tests.kernel_files import Call

KERNELS = "intrinsics"

# ---------------------------------------------------------------- the list of device functions

HEADERS = (
    *("cuda_fp16.h", "cuda_bf16.h", "crt/device_functions.h", "crt/device_double_functions.h"),
    *("crt/math_functions.h", "device_atomic_functions.h", "sm_20_atomic_functions.h"),
    *("sm_20_intrinsics.h", "sm_30_intrinsics.h", "sm_32_atomic_functions.h"),
    *("sm_32_intrinsics.h", "sm_35_atomic_functions.h", "sm_60_atomic_functions.h"),
    "sm_61_intrinsics.h",
)
_DECLARATION = re.compile(
    r"^[^\n#;{}]*(?:__device__|__\w+_DECL__)[^;{}()=]*?\b(\w+)\s*\(", re.MULTILINE
)
# Names in these headers that a program does not call.
INTERNAL = re.compile(
    r"operator.*|__CUDA.*|__cuda.*|__attribute__|__declspec|__DEPRECATED__|__libcpp_.*|__nv_.*"
    r"|defined|_[A-Zdfhl]\w+|__(?:FLOAT|DOUBLE)_BITS|__\w*_(?:helper|power)|dim3|cudaStream_t"
    r"|__is\w+d|__isfinitef?|__signbitd|syncthreads_\w+|__cvta_\w+_to_\w+_impl"
)
# Not provided: profiler triggers, older names of other functions, barriers below __syncthreads.
MISSING = {
    *("__prof_trigger", "__pm0", "__pm1", "__pm2", "__pm3", "fdivide", "dmul", "dadd", "dsub"),
    *("double2int", "double2uint", "double2ll", "double2ull", "ll2double", "ull2double"),
    *("int2double", "uint2double", "float2double", "__barrier_sync", "__barrier_sync_count"),
    "__uni_sync",
}


def test_no_device_function_of_cuda_is_forgotten(tmp_path: Path) -> None:
    include = toolchain.cuda_headers()
    names = set()
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", (include / header).read_text(errors="replace"), flags=re.S)
        names |= {m.group(1) for m in _DECLARATION.finditer(text)}
    names = {name for name in names if not INTERNAL.fullmatch(name)}
    assert len(names) > 800 and {"__hfma2", "atomicAdd", "__shfl_sync", "erfinvf"} <= names
    lines = "".join(f"using ::{name};\n" for name in sorted(names))
    source = tmp_path / "names.cpp"
    source.write_text(
        f"#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nnamespace all {{\n{lines}}}\n"
    )
    compiler = toolchain.find_compiler().path
    command = [compiler, "-fsyntax-only", *backend.cflags(include, compiler), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines_in_error = {int(n) for n in re.findall(r"names\.cpp:(\d+):\d+: error", done.stderr)}
    written = source.read_text().splitlines()
    missing = {written[n - 1].removeprefix("using ::").removesuffix(";") for n in lines_in_error}
    assert missing == MISSING, (sorted(missing - MISSING), sorted(MISSING - missing))


# ---------------------------------------------------------------- SIMD integers


def _words(count: int, seed: int) -> torch.Tensor:
    """Return random words, with all pairs of extreme bytes among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator).int()


def _saturated(x: np.ndarray, kind: type) -> np.ndarray:
    return x.clip(np.iinfo(kind).min, np.iinfo(kind).max)


def _simd_rows(x: torch.Tensor, y: torch.Tensor, signed: type, unsigned: type) -> list[np.ndarray]:
    """Return the kernel's rows, by numpy with 64-bit integers: (n, parts), or sums (n,)."""
    n = x.numel()
    s, t = (v.numpy().view(signed).astype(np.int64).reshape(n, -1) for v in (x, y))
    u, v = (w.numpy().view(unsigned).astype(np.int64).reshape(n, -1) for w in (x, y))
    pairs = [(u == v), (u != v), (s >= t), (u >= v), (s > t), (u > v), (s <= t), (u <= v)]
    pairs += [(s < t), (u < v)]
    return [
        *(u + v, _saturated(s + t, signed), _saturated(u + v, unsigned)),
        *(u - v, _saturated(s - t, signed), _saturated(u - v, unsigned)),
        *((s + t + (s + t >= 0)) >> 1, (u + v + 1) >> 1, (u + v) >> 1),
        *(abs(s - t), abs(u - v)),
        *(np.maximum(s, t), np.maximum(u, v), np.minimum(s, t), np.minimum(u, v)),
        *(-p.astype(np.int64) for p in pairs),
        *(p.astype(np.int64) for p in pairs),
        *(abs(s), _saturated(abs(s), signed), -s, _saturated(-s, signed)),
        *(abs(s - t).sum(1), abs(u - v).sum(1)),
    ]


def test_integers_in_parts_of_a_word(call: Call) -> None:
    x, y = _words(500, 1), _words(500, 2)
    x[:4] = torch.tensor([-(2**31), 0x7FFFFFFF, 0x7F807F80, -0x7F7F7F80], dtype=torch.int32)
    got = call("simd", x, y).numpy()
    want = _simd_rows(x, y, np.int16, np.uint16) + _simd_rows(x, y, np.int8, np.uint8)
    assert len(want) == len(got)
    for row, values in enumerate(want):
        unsigned = np.uint16 if row < len(want) // 2 else np.uint8
        parts = values.astype(unsigned) if values.ndim == 2 else values.astype(np.uint32)
        assert (got[row] == np.ascontiguousarray(parts).view(np.int32).reshape(-1)).all(), row


def test_minima_and_maxima_of_three(call: Call) -> None:
    x, y, z = (_words(500, seed) for seed in (3, 4, 5))
    got = call("dpx", x, y, z).numpy()
    s, t, u = (v.numpy().astype(np.int64) for v in (x, y, z))
    assert (got[0] == np.maximum(np.maximum(s, t), u)).all()
    assert (got[18] == np.minimum(np.minimum(s, t), u)).all()
    added = (s + t).astype(np.int32).astype(np.int64)
    assert (got[8] == np.maximum(added, u)).all()
    assert (got[12] == np.maximum(np.maximum(added, u), 0)).all()
    halves = [v.numpy().view(np.int16).reshape(-1, 2) for v in (x, y, z)]
    three = np.maximum(np.maximum(halves[0], halves[1]), halves[2])
    assert (got[2] == np.ascontiguousarray(three).view(np.int32).reshape(-1)).all()
    first = (s >= t).astype(np.uint32) << 31
    largest = np.maximum(s, t).astype(np.int32).view(np.uint32)
    assert (got[14].view(np.uint32) == (largest ^ first)).all()
    b = y.numpy().view(np.int8).reshape(-1, 4).astype(np.int64)
    a = halves[0].astype(np.int64)
    dots = (a * b[:, :2]).sum(1) + u, (a * b[:, 2:]).sum(1) + u
    for row, want in enumerate(dots):
        assert (got[36 + row] == want.astype(np.int32)).all()


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inverse_functions(call: Call, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(0.001, 0.999, 401), torch.tensor([1e-6, 0.5, 1e-30])]).to(dtype)
    d = x.double()
    got = call("inverses", x, exact=False).double()
    norm = (5 * d * d + 4).sqrt()
    want = [
        *(torch.erfinv(2 * x - 1).double(), -torch.special.ndtri(d) / 2**0.5),
        *(torch.special.ndtri(d), torch.special.i0(d), -torch.special.i1(d)),
        *(norm, 1 / norm, 1 / norm, 0.5 / d, torch.full_like(d, 15)),
    ]
    eps = torch.finfo(dtype).eps
    for row, expected in enumerate(want):
        if row == 0:  # 2x - 1 is rounded, which counts near ±1: judged by what it inverts
            back, given = torch.erf(got[0]), (2 * x - 1).double()
            inside = given.abs() < 1
            torch.testing.assert_close(back[inside], given[inside], rtol=8 * eps, atol=eps)
            continue
        torch.testing.assert_close(got[row], expected, rtol=32 * eps, atol=16 * eps)


def test_integers_rounded_to_bfloat16(call: Call) -> None:
    x = torch.randint(-(2**62), 2**62, (300,), generator=torch.Generator().manual_seed(6))
    x[:6] = torch.tensor([0, 1, -1, 257, -257, 2**31 - 1])
    got = call("to_bfloat16", x).double()
    for start, value in ((0, x.int().long()), (3, x)):
        down, up = got[start + 1], got[start + 2]
        exact = [int(v) for v in value]
        for i, v in enumerate(exact):
            assert int(down[i]) <= v <= int(up[i])
            assert int(got[start][i]) == (int(down[i]) if v >= 0 else int(up[i]))
            spacing = 2 ** max(abs(v).bit_length() - 8, 0)
            assert int(up[i]) - int(down[i]) <= spacing
            assert (down[i] == up[i]) == (v % spacing == 0)


# ---------------------------------------------------------------- random numbers


def _signed(words: list[int]) -> list[int]:
    return [w - 2**32 if w >= 2**31 else w for w in words]


def _philox(counter: list[int], key: list[int]) -> list[int]:
    """Return Philox4x32-10 by Python's integers, after the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & 0xFFFFFFFF]
        c += [(first >> 32) ^ counter[3] ^ k[1], first & 0xFFFFFFFF]
        counter = c
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


# Counter and key, and the answer, as published with Random123.
KNOWN = [
    ([0] * 6, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 6, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def test_philox_gives_the_known_answers(call: Call) -> None:
    words = torch.tensor([_signed(given) for given, _ in KNOWN], dtype=torch.int32)
    assert call("philox_words", words).tolist() == [_signed(answer) for _, answer in KNOWN]
    more = _words(600, 8).reshape(100, 6)
    got = call("philox_words", more).numpy().view(np.uint32)
    for row, answer in zip(more.numpy().view(np.uint32).tolist(), got.tolist(), strict=True):
        assert answer == _philox(row[:4], row[4:])


def test_uniform_and_normal_numbers(call: Call) -> None:
    n = 400_000
    uniform, normal = torch.zeros(n), torch.zeros(n)
    call("random", uniform, 42, False)
    call("random", normal, 42, True, exact=False)
    assert 0 <= uniform.min() < 1e-4 and 1 - 1e-4 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.003
    assert torch.histc(uniform, 20, 0, 1).sub(n / 20).abs().max() < 6 * (n / 20) ** 0.5
    words = _philox([1, 0, 0, 0], [42, 0])  # elements 4 to 7
    assert uniform[4:8].tolist() == [(w >> 8) / 2**24 for w in words]
    u, v = ((w >> 8) / 2**24 for w in words[:2])
    radius = (-2 * np.log(1 - u)) ** 0.5
    want = [radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)]
    assert normal[4:6].tolist() == pytest.approx(want, rel=1e-5, abs=2e-6)
    assert abs(normal.mean()) < 0.008 and abs(normal.std() - 1) < 0.005
    share = torch.special.ndtr(torch.tensor([-2.0, -1, 0, 1, 2]))
    counted = torch.stack([(normal < edge).float().mean() for edge in (-2, -1, 0, 1, 2)])
    assert (share - counted).abs().max() < 0.004
    other = torch.zeros(n)
    call("random", other, 43, True, exact=False)
    assert abs((normal * other).mean()) < 0.01


def test_curand_is_refused_and_the_fix_is_named() -> None:
    reason = features.missing_header("curand_kernel.h")
    assert reason and "cuRAND" in reason and "common/cuda/philox.cuh" in reason


# ---------------------------------------------------------------- caches, early kernels


@pytest.mark.parametrize("size", [4, 8, 16])
def test_loads_and_stores_with_a_hint(call: Call, size: int) -> None:
    x = torch.randint(0, 256, (16 * 1000,), dtype=torch.uint8)
    assert call("cache", x, size).equal(x)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_kernel_that_may_begin_early(call: Call, by_name: bool) -> None:
    x = torch.randn(10_000)
    assert call("early", x, by_name).equal(2 * x + 1)


# ---------------------------------------------------------------- kinds of memory


def test_kinds_of_memory(call: Call) -> None:
    assert call("kinds", torch.zeros(1)).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
