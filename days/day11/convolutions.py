"""The convolution by PyTorch, and by three libraries."""

from functools import cache

import torch
import torch.nn.functional as F

from common.day import Cost


def inputs(mode):
    def of_case(case, draw):
        rows, n, taps, padding = case.shape
        return draw(rows, n), draw(taps, values="normal"), padding, mode

    return of_case


def reference(x, w, padding=0, mode="zeros"):
    """torch.nn.Conv1d with its padding modes; the rows are a batch of single-channel inputs."""
    x = x.unsqueeze(1)
    if mode != "zeros":
        x, padding = F.pad(x, (padding, padding), mode=mode), 0
    return F.conv1d(x, w.reshape(1, 1, *w.shape), padding=padding).squeeze(1)


def cudnn_searched(x, w, padding, mode):
    """F.conv1d with the fastest of cuDNN's algorithms, which cuDNN finds by trying them."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return F.conv1d(x[:, None], w[None, None], padding=padding)[:, 0]


def by_fft(x, w, padding, mode):
    """Zeros only: the product of two spectra, by cuFFT; its work hardly depends on the taps."""
    n, out = x.shape[1], x.shape[1] + 2 * padding - len(w) + 1
    size = max(n + 2 * padding, n // 8 * 9)  # 9 · 2^17 for the timed rows: small prime factors
    taps = F.pad(w, (0, size - len(w))).roll(-padding)
    spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(taps).conj()
    return torch.fft.irfft(spectrum, size)[:, :out]


@cache
def compiled(call):
    return torch.compile(call, dynamic=False)


def by_shifts(x, w, padding, mode):
    """Zeros only: a sum of shifted rows. The compiler makes one kernel of it."""
    row = F.pad(x, (padding, padding))
    out = row.shape[1] - len(w) + 1
    return sum(w[j] * row[:, j : j + out] for j in range(len(w)))


def cost(case):
    rows, n, taps, padding = case.shape
    outputs = rows * (n + 2 * padding - taps + 1)
    return Cost(bytes=(rows * n + taps + outputs) * case.itemsize, flops=2 * taps * outputs)
