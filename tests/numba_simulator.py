"""The tiled matmul of `cpu_kernels/features.cu` on Numba's CUDA simulator, for tests/cpu_benchmark.

    python numba_simulator.py 64        n; prints the seconds of one launch

The interpreter that runs this file must have Numba, as one has with this project's requirements.
"""

import os
import sys
import time

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read when numba is imported

import numpy as np
from numba import cuda, float32

TILE = 32


@cuda.jit
def matmul(a, b, c):  # type: ignore[no-untyped-def]  # Numba compiles it
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
    total = 0.0
    for start in range(0, a.shape[0], TILE):
        left[y, x] = a[row, start + x]
        right[y, x] = b[start + y, column]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[y, k] * right[k, x]
        cuda.syncthreads()
    c[row, column] = total


def main(n: int) -> None:
    """Print the time of one launch, after checking its result."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    c = np.zeros_like(a)
    start = time.perf_counter()
    matmul[(n // TILE, n // TILE), (TILE, TILE)](a, b, c)
    seconds = time.perf_counter() - start
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    print(seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]))
