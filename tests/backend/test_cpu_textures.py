"""Textures and surfaces on the CPU backend, against the formulas of NVIDIA's CUDA C++ Programming
Guide ("Texture Fetching"): the sampled elements, and the interpolation of neighbours."""

from __future__ import annotations

import math
from functools import cache

import pytest

from tests.cpu_programs import PROGRAMS, run

SOURCE = PROGRAMS / "textures.cu"
WRAP, CLAMP, MIRROR, BORDER = range(4)
POINT, LINEAR = range(2)
ARRAY, PITCH_2D = 0, 3
TEXELS = (10.0, 20.0, 40.0, 80.0)
BORDER_COLOUR = 5.0


@cache
def _lines() -> dict[str, list[str]]:
    done = run(SOURCE)
    assert (done.returncode, done.stderr) == (0, "")
    return {name: words for name, *words in map(str.split, done.stdout.splitlines())}


def _numbers(name: str) -> list[float]:
    return [float(word) for word in _lines()[name]]


def _at(x: float, mode: int, normalized: bool) -> float:
    """Return TEXELS sampled at the nearest point: the coordinate is mapped into the texture by the
    address mode, multiplied by the size if it is normalised, and rounded down."""
    size = len(TEXELS)
    if not normalized:
        x /= size
        mode = CLAMP if mode in (WRAP, MIRROR) else mode  # those two need normalised coordinates
    if mode == WRAP:
        x -= math.floor(x)
    elif mode == MIRROR:
        fraction = x - math.floor(x)
        x = fraction if math.floor(x) % 2 == 0 else 1 - fraction
    elif mode == CLAMP:
        x = min(max(x, 0.0), 1 - 1 / size)
    elif not 0 <= x < 1:
        return BORDER_COLOUR
    return TEXELS[min(int(x * size), size - 1)]


def _between(x: float, mode: int, normalized: bool) -> float:
    """Return TEXELS filtered linearly: (1 - a) T[i] + a T[i + 1], i = floor(x - 0.5), a = frac(x -
    0.5) of the coordinate in elements; outside, the sampled element at its middle is used."""
    size = len(TEXELS)
    scale = size if normalized else 1
    below = math.floor(x * scale - 0.5)
    weight = x * scale - 0.5 - below  # a multiple of 1/8
    pair = [_at((below + step + 0.5) / scale, mode, normalized) for step in range(2)]
    return (1 - weight) * pair[0] + weight * pair[1]


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("mode", [WRAP, CLAMP, MIRROR, BORDER])
@pytest.mark.parametrize("filtered", [POINT, LINEAR])
def test_address_modes_and_filters(filtered: int, mode: int, normalized: bool) -> None:
    sample = _between if filtered == LINEAR else _at
    found = _numbers(f"1d,{filtered},{mode},{int(normalized)}")
    places = [(i - 14) / (32 if normalized else 8) for i in range(57)]
    if mode == MIRROR and normalized and filtered == POINT:
        # At a boundary between two elements, mirrored, either of them is the nearest.
        pairs = [(x, v) for x, v in zip(places, found, strict=True) if (x * 4) % 1 or 0 <= x < 1]
        places, found = map(list, zip(*pairs, strict=True))
        assert len(found) > 48
    assert found == [sample(x, mode, normalized) for x in places]


def test_weights_have_eight_bits_of_fraction() -> None:
    """Between 0 and 256 every weight is a whole number, next to the exact one."""
    found = _numbers("weights")
    assert all(value == int(value) for value in found)
    assert all(abs(value - i / 4) < 1 for i, value in enumerate(found))
    assert all(value == i / 4 for i, value in enumerate(found) if i % 4 == 0)


def _pair(x: int, y: int) -> tuple[float, float]:
    x, y = min(max(x, 0), 4), min(max(y, 0), 2)
    return (x * x + 10.0 * y * x, 100.0 * x - y**3)


@pytest.mark.parametrize("resource", [ARRAY, PITCH_2D])
@pytest.mark.parametrize("filtered", [POINT, LINEAR])
def test_two_dimensions(filtered: int, resource: int) -> None:
    expected: list[float] = []
    for x, y in [(0.5, 0.5), (2.5, 1.5), (1.75, 2.25), (-1, 2.625), (4.75, 0.25), (3, 9)]:
        if filtered == POINT:
            expected += _pair(math.floor(x), math.floor(y))
            continue
        i, j = math.floor(x - 0.5), math.floor(y - 0.5)
        a, b = x - 0.5 - i, y - 0.5 - j
        corners = [_pair(i + q % 2, j + q // 2) for q in range(4)]
        weights = [(1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b]
        for part in range(2):
            expected.append(sum(w * c[part] for w, c in zip(weights, corners, strict=True)))
    assert _numbers(f"2d,{resource},{filtered}") == expected
    assert _numbers("back") == [11, 24, 92, 192]


def test_three_dimensions_and_layers() -> None:
    # Texel (x, y, z) is x + 10y + 100z. x - 0.5 = 0.75, z - 0.5 = 1; y = 3.75 is clamped to row 3.
    assert _numbers("3d") == [103.25, 113.25, 123.25, 130.75]
    assert _numbers("layers") == [10, 10, 110, 210, 210], "layers -1 to 3 of three, row 1"


# Between two zeros: the values before and after linear memory.
ELEMENTS = {
    "char": [-128, 127, 5],
    "uchar": [0, 128, 255],
    "short": [-32768, 32767],
    "ushort": [65535, 7],
    "int": [-2147483647, 5],
    "uint": [4294967295, 5],
    "float": [1.5, -0.1],
    "half": [1.5, -1638 / 2**14],
    "char,n": [-1, -1, 0, 1],
    "uchar,n": [0, 0.2, 1],
    "short,n": [-1, -1, 1],
    "ushort,n": [1, 0.2],
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_element_types(name: str) -> None:
    assert _numbers(name) == pytest.approx([0, *ELEMENTS[name], 0], rel=1e-7)
    assert _numbers("vectors") == [1, -2, 3, -4, 1, 0.2, 0]


def test_surfaces_and_their_boundaries() -> None:
    # Element (x, y) is 10y + x. 100 * the one before, clamped, + the one to the right, or 0.
    expected = [
        100 * (10 * max(y - 1, 0) + max(x - 1, 0)) + (10 * y + x + 1 if x < 3 else 0)
        for y in range(3)
        for x in range(4)
    ]
    assert _numbers("surface") == expected


# The reason for a kernel's end, and its line.
FAULTS = {
    "outside": (
        "surf2Dwrite outside of the surface: byte 0 of a row of 16, row 3 of 3",
        "surf2Dwrite(1, surface",
    ),
    "components": ("tex2D reads 2 components of a texture that has 1", "tex2D(&out["),
    "integers": ("tex1Dfetch reads float of a texture that returns integers", "tex1Dfetch<T>"),
    "two dimensions": ("tex1D of an image with 2 dimensions", "(i - 14) * unit"),
    "destroyed": ("is no texture object: never created, or destroyed", "(i - 14) * unit"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_texture_can_answer_ends_the_kernel(fault: str) -> None:
    done = run(SOURCE, "--", fault)
    words, code = FAULTS[fault]
    source = SOURCE.read_text().splitlines()
    line = next(i for i, row in enumerate(source, 1) if code in row)
    assert done.returncode == 1
    assert words in done.stderr and f"textures.cu:{line}\n" in done.stderr, done.stderr


def test_a_texture_that_is_longer_than_its_memory_is_found() -> None:
    done = run(SOURCE, "--sanitize", "--", "beyond")
    assert done.returncode == 1
    row = done.stdout[done.stdout.index("\naddresses") : done.stdout.index("\nraces")]
    assert "FAIL" in row and "beyond the end of an allocation of 16 bytes" in row, done.stdout


def test_what_has_no_texture_is_an_error() -> None:
    assert _lines()["errors"] == [
        "cudaErrorInvalidValue",  # a surface of an array that is not for surfaces
        "cudaErrorInvalidFilterSetting",  # integers, filtered
        "cudaErrorInvalidValue",  # memory that is not aligned
        "cudaErrorInvalidValue",  # a copy beyond the end of a row
        "cudaErrorInvalidValue",  # no texture
    ]


def test_the_debugger_finds_nothing_in_them() -> None:
    """The address mode defines fetches outside of a texture."""
    done = run(SOURCE, "--sanitize")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row.split() for row in done.stdout.splitlines()]
    found = {row[0]: row[1] for row in rows if len(row) > 1}
    assert found.get("addresses") == "PASS" and found.get("races") == "PASS", done.stdout
