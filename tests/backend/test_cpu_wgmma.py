"""wgmma: every size, swizzle and type, tiles laid out here, against exact references.

`cpu_kernels/wgmma.cu` copies a prepared image to shared memory, so that the layout comes from this
file, not from the code under test. Sizes × types × layouts are a selection, since each is a kernel
to compile: bf16 in all 32 sizes, every other type and every pair of layouts in one.
"""

from dataclasses import dataclass

import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call, best_of_three, names_line

KERNELS = "wgmma"
OPS = torch.ops.test_wgmma
DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.half,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
SWIZZLES = [0, 1, 2, 3]  # none, 32, 64, 128 bytes


@pytest.fixture
def runtime(operators: object, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """Return the CPU backend with default settings, with the operators loaded."""
    return cpu_runtime


@dataclass
class Tile:
    """The layout of a matrix with rows of 32 bytes of k in shared memory: the bytes of an image,
    and the descriptor's numbers. Distances are larger than necessary, so that mixing them up is
    detected."""

    image: torch.Tensor
    swizzle: int
    leading: int
    stride: int

    def numbers(self, start: int) -> list[int]:
        """Return the operator's arguments."""
        return [start, self.swizzle, self.leading, self.stride]


def _lay_out(x: torch.Tensor, swizzle: int, mn_major: bool) -> Tile:
    """Return the tile of x: (rows, K), of which 32 bytes are one row; any 16-bit type for
    mn_major."""
    rows = x.shape[0]
    width = 16 << swizzle
    pieces = x.t().contiguous() if mn_major else x.contiguous()
    pieces = pieces.view(torch.uint8).reshape(pieces.shape[0], -1, 16)  # lines of 16-byte pieces
    lines, per_line = pieces.shape[:2]
    line = torch.arange(lines)[:, None]
    part = torch.arange(per_line)[None, :]
    if not mn_major:
        stride = 8 * width + 1024
        leading = rows // 8 * stride + 256 if swizzle == 0 else 0
        inner = part * (leading if swizzle == 0 else 16)
        address = line // 8 * stride + line % 8 * width + inner
    elif swizzle == 0:
        stride, leading = 8 * 16 + 64, per_line * (8 * 16 + 64) + 256
        address = part * stride + line // 8 * leading + line % 8 * 16
    else:
        stride = 8 * width + 1024
        leading = 2 * stride + 2048
        outer, inner = part // (width // 16), part % (width // 16)
        address = outer * leading + inner * 16 + line // 8 * stride + line % 8 * width
    address = address ^ ((address >> 7 & (1 << swizzle) - 1) << 4)
    image = torch.full((int(address.max()) // 1024 * 1024 + 1024,), 0xFF, dtype=torch.uint8)
    image[(address[..., None] + torch.arange(16)).flatten()] = pieces.flatten()
    return Tile(image, swizzle, leading, stride)


def _product(
    call: Call,
    name: str,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    swizzles: tuple[int, int] = (0, 0),
    accumulate: bool = True,
    exact: bool = True,
) -> torch.Tensor:
    """Return the product of a: (64, K) and b: (n, K), added to c: (64, n), as (64, n)."""
    in_registers = "registers" in name
    words = name.split()
    layouts = words[-2:] if words[-1] in ("K", "MN") and not in_registers else ["K", words[-1]]
    if in_registers:
        image = a.contiguous().view(torch.uint8).reshape(-1)
        tile_a = Tile(image, 0, 0, 0)
    else:
        tile_a = _lay_out(a, swizzles[0], layouts[0] == "MN")
    tile_b = _lay_out(b, swizzles[1], layouts[1] == "MN")
    image = torch.cat([tile_a.image, tile_b.image])
    numbers = tile_a.numbers(0), tile_b.numbers(len(tile_a.image))
    return call("product", image, c, name, accumulate, *numbers, exact=exact)


def _types(name: str) -> tuple[torch.dtype, torch.dtype]:
    words = name.split()
    a = DTYPES[words[0]]
    return a, DTYPES.get(words[1], a) if len(words) > 1 else a


def _depth(dtype: torch.dtype) -> int:
    return 32 // dtype.itemsize


def _integers(name: str, n: int, most: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtypes = _types(name)
    generator = torch.Generator().manual_seed(n)

    def draw(rows: int, dtype: torch.dtype) -> torch.Tensor:
        size = (rows, _depth(dtype))
        return torch.randint(-most, most + 1, size, generator=generator).float().to(dtype)

    c = torch.randint(-99, 100, (64, n), generator=generator).float()
    return draw(64, dtypes[0]), draw(n, dtypes[1]), c


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_sizes(call: Call, n: int) -> None:
    a, b, c = _integers("bf16", n)
    got = _product(call, "bf16", a, b, c, (n // 8 % 4, 3))
    assert got.double().equal(a.double() @ b.double().mT + c.double())


@pytest.mark.parametrize("swizzle_b", SWIZZLES)
@pytest.mark.parametrize("swizzle_a", SWIZZLES)
@pytest.mark.parametrize("name", ["bf16", "bf16 MN K", "bf16 K MN", "bf16 MN MN"])
def test_layouts(call: Call, name: str, swizzle_a: int, swizzle_b: int) -> None:
    a, b, c = _integers(name, 128)
    got = _product(call, name, a, b, c, (swizzle_a, swizzle_b))
    assert got.double().equal(a.double() @ b.double().mT + c.double())


OTHERS = [
    ("f16", 96),
    ("f16 MN MN", 24),
    ("f16 registers", 40),
    ("bf16 registers", 64),
    ("bf16 registers MN", 256),
    ("tf32", 32),
    ("tf32 registers", 48),
    ("e4m3 e4m3", 64),
    ("e4m3 e5m2", 64),
    ("e5m2 e4m3", 64),
    ("e5m2 e5m2", 64),
    ("e4m3 registers", 80),
    ("e5m2 registers", 80),
]


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("name", "n"), OTHERS)
def test_types(call: Call, name: str, n: int, swizzle: int) -> None:
    a, b, c = _integers(name, n)
    want = a.double() @ b.double().mT
    assert _product(call, name, a, b, c, (swizzle, swizzle)).double().equal(want + c.double())
    fresh = _product(call, name, a, b, torch.full_like(c, torch.nan), (3, swizzle), False)
    assert fresh.double().equal(want)


@pytest.mark.parametrize(
    ("name", "sign"),
    [("bf16 -a", -1), ("bf16 -b", -1), ("bf16 -a -b", 1), ("bf16 -a registers", -1)],
)
def test_signs(call: Call, name: str, sign: int) -> None:
    a, b, c = _integers(name, 16)
    got = _product(call, name, a, b, c)
    assert got.double().equal(sign * (a.double() @ b.double().mT) + c.double())


def _truncated(x: torch.Tensor) -> torch.Tensor:
    """Return x as tf32: the lower 13 bits do not count."""
    return (x.view(torch.int32) & -(1 << 13)).view(torch.float32)


@pytest.mark.parametrize(("name", "n"), [("bf16", 64), *OTHERS])
def test_real_numbers(call: Call, name: str, n: int) -> None:
    generator = torch.Generator().manual_seed(5)
    dtypes = _types(name)
    a = torch.randn(64, _depth(dtypes[0]), generator=generator).to(dtypes[0])
    b = torch.randn(n, _depth(dtypes[1]), generator=generator).to(dtypes[1])
    c = torch.randn(64, n, generator=generator)
    exact_a, exact_b = ((_truncated(x) if "tf32" in name else x).double() for x in (a, b))
    want = exact_a @ exact_b.mT + c.double()
    got = _product(call, name, a, b, c, (3, 3), exact=a.dtype.itemsize == 1).double()
    products = (exact_a[:, None, :] * exact_b[None, :, :]).abs()
    scale = products.sum(2) + c.double().abs()
    error = (got - want).abs()
    print(f"{name}, {call.device}: largest error {(error / scale).max():.3g} of Σ|a·b| + |d|")
    if a.dtype.itemsize == 1:
        assert (error <= 33 * 2**-13 * products.amax(2).maximum(c.double().abs())).all()
    else:
        assert (error <= a.shape[1] * 2**-23 * scale).all()


def _exponents(x: torch.Tensor, least: int) -> torch.Tensor:
    """Return the exponents of float64 numbers; of subnormal ones that of the smallest normal, of 0
    almost none."""
    return torch.where(x == 0, -500, torch.frexp(x).exponent.sub(1).clamp(min=least))


def _cut_sums(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a·bᵀ + c as Hopper's wgmma adds up products of fp8: with 13 bits below the largest
    number, whose exponent is the sum of its factors', and 13 bits of the sum."""
    least = {torch.float8_e4m3fn: -6, torch.float8_e5m2: -14}
    exponents = [_exponents(x.double(), least[x.dtype]) for x in (a, b)]
    pairs = exponents[0][:, None, :] + exponents[1][None, :, :]
    c = c.double()
    unit = 2.0 ** (pairs.amax(2).maximum(_exponents(c, -126)).clamp(min=-100) - 13)
    products = a.double()[:, None, :] * b.double()[None, :, :]
    sums = ((products / unit[..., None]).trunc().sum(2) + (c / unit).trunc()) * unit
    last = 2.0 ** (_exponents(sums, -100).clamp(min=-100) - 13)
    return (sums / last).trunc() * last


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["e4m3 e4m3", "e4m3 e5m2", "e5m2 e4m3", "e5m2 e5m2"])
def test_sums_of_fp8_have_an_h200_s_bits(call: Call, name: str, seed: int) -> None:
    """Exponents close together and far apart, subnormal numbers, zeros; d with all its bits."""
    generator = torch.Generator().manual_seed(seed)
    spread = 4 * (seed % 3)

    def draw(dtype: torch.dtype) -> torch.Tensor:
        scale = 2.0 ** torch.randint(-spread, spread + 1, (64, 32), generator=generator)
        x = torch.randn(64, 32, generator=generator) * scale
        x[:, 28:] *= torch.tensor([0.0, 2.0**-7, 2.0**-8, 2.0**-15])
        return x.clamp(-400, 400).to(dtype)

    a, b = (draw(dtype) for dtype in _types(name))
    c = torch.randn(64, 64, generator=generator) * (2.0**spread if seed < 5 else 0)
    got = _product(call, name, a, b, c, (3, 3))
    assert got.double().equal(_cut_sums(a, b, c))


@pytest.mark.parametrize("name", ["e4m3 e4m3", "e5m2 e5m2"])
def test_small_products_of_fp8_vanish_beside_a_large_one(call: Call, name: str) -> None:
    dtype = _types(name)[0]
    a, b = torch.ones(64, 32), torch.ones(64, 32)
    bits = torch.arange(7, 17)
    for row, bit in enumerate(bits):  # 1 and 31 small ones
        a[row, 1:] = 2.0 ** -(bit // 2)
        b[row, 1:] = 2.0 ** -(bit - bit // 2)
    got = _product(call, name, a.to(dtype), b.to(dtype), torch.zeros(64, 64), (3, 3))
    assert got.diagonal()[:10].equal(torch.where(bits <= 13, 1 + 31 * 2.0**-bits, 1.0))


def test_sums_of_fp8_with_infinity_and_nan(call: Call) -> None:
    a, b, c = torch.ones(64, 32), torch.ones(64, 32), torch.zeros(64, 64)
    a[0, 0], a[1, 1], c[2, 3] = torch.inf, torch.nan, -torch.inf
    b[5, 0] = 0
    dtype = torch.float8_e5m2
    got = _product(call, "e5m2 e5m2", a.to(dtype), b.to(dtype), c, exact=False)
    assert torch.allclose(got, a @ b.mT + c, equal_nan=True)


def test_infinities_and_nan(call: Call) -> None:
    a, b, c = torch.ones(64, 16), torch.ones(64, 16), torch.zeros(64, 64)
    a[0, 0], a[1, 1], c[2, 3] = torch.inf, torch.nan, -torch.inf
    b[5, 0] = 0
    got = _product(call, "bf16", a.bfloat16(), b.bfloat16(), c, exact=False)
    assert torch.allclose(got, a @ b.mT + c, equal_nan=True)


def test_groups_and_two_accumulators(call: Call) -> None:
    x = torch.randint(-4, 5, (64, 16), generator=torch.Generator().manual_seed(1)).float()
    product = x @ x[:8].mT
    want = torch.stack([product, 3 * product, product])
    assert call("groups", x.bfloat16()).equal(want)


@pytest.mark.parametrize("shape", [(128, 128, 64), (256, 128, 192), (128, 384, 128)])
def test_matmul(call: Call, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(m, k, generator=generator).bfloat16()
    b = torch.randn(k, n, generator=generator).bfloat16()
    got = call("matmul", a, b, exact=False).double()
    scale = a.double().abs() @ b.double().abs()
    assert ((got - a.double() @ b.double()).abs() <= k * 2**-23 * scale).all()
    a, b = (x.mul(4).round() for x in (a, b))
    assert call("matmul", a, b).double().equal(a.double() @ b.double())


# ---------------------------------------------------------------- mistakes


def _mistake(which: int) -> torch.Tensor:
    return OPS.mistake(torch.zeros(64, 8), which)


def test_the_same_kernel_without_a_mistake(cpu_call: Call) -> None:
    assert cpu_call("mistake", torch.zeros(64, 8), 0).eq(16).all()


@pytest.mark.parametrize("which", [1, 4, 5], ids=["no wait", "wait<1> for wait<0>", "no commit"])
def test_accumulators_are_nan_until_the_wait(cpu_call: Call, which: int) -> None:
    assert cpu_call("mistake", torch.zeros(64, 8), which).isnan().all()


def test_a_tile_overwritten_too_early_shows(runtime: backend.Runtime) -> None:
    for order in ("forward", "reverse"):
        runtime.set_schedule(order)
        assert _mistake(2).eq(64).all()


def test_a_wgmma_without_a_barrier_before_shows(runtime: backend.Runtime) -> None:
    results = []
    for seed in range(4):
        runtime.set_schedule("random", seed)
        results.append(_mistake(3))
    assert any(not y.eq(16).all() for y in results), "a wgmma that is early shows nowhere"


MISTAKES = {
    10: ("no wgmma.fence before the first one", ""),
    11: ("the accumulators were written since the last wgmma", "changed without a fence"),
    12: ("written while wgmmas were still computing them", "changed under way"),
    13: (r"have issued 1, 1, 0, 0 wgmmas", "two warps of four"),
    14: ("all 32 lanes of a warp must call it, but only lanes 0x0000ffff", "half a warp"),
    15: ("the tile of a starts at .* in the middle of a swizzle of 128 bytes", "misaligned"),
    16: ("out of range: the tile of a reaches from", "out of range"),
    17: ("warps of a warpgroup issue different wgmmas", "different operations"),
    18: ("the lanes of a warp pass different arguments", "lanes apart"),
    19: (r"wgmma of another shape \(N = 16\) that is in flight", "overlap"),
    20: ("the descriptor of b has base offset 1: only 0 is modelled", "base offset"),
    21: ("registers, while another warp of the warpgroup says", ""),
    22: ("warp 0 is not part of a complete warpgroup.* the block has 96 threads", ""),
}


@pytest.mark.parametrize("which", MISTAKES)
def test_a_mistake_is_named(runtime: backend.Runtime, which: int) -> None:
    message, marker = MISTAKES[which]
    with pytest.raises(RuntimeError, match=message) as caught:
        _mistake(which)
    assert not marker or names_line(str(caught.value), KERNELS, marker), str(caught.value)


def test_speed_is_of_the_right_order(runtime: backend.Runtime) -> None:
    """A limit with room for a busy machine; `-s` prints the figure."""
    a = torch.randn(512, 512).bfloat16()
    seconds = best_of_three(lambda: OPS.matmul(a, a))
    print(f"512³ by cp.async and wgmma: {1e3 * seconds:.0f} ms")
    assert seconds < 1
