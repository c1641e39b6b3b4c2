"""Spectra of audio in PyTorch: inputs, references, and what the rungs are timed beside."""

import math
from functools import cache

import torch

from common.day import Cost

RATE = 16_000  # samples per second
SILENCE = 1e-10


def audio(case, draw):
    """Clips, a window, and the hop between frames.

    The window is Hann's, tilted a little: the first frame mirrors its second half, and a symmetric
    window would make its imaginary parts 0, for which an error of the frame's size is no relative
    one."""
    clips, samples, n, hop = case.shape[:4]
    window = torch.hann_window(n, dtype=torch.float64) * torch.linspace(1, 1.1, n)
    x = draw(clips, samples, values="normal" if case.values == "nonfinite" else case.values)
    if case.values == "nonfinite" and samples:
        x[::2, samples // 3] = torch.nan  # an infinity would be one or NaN, as the FFT goes
    if case.values == "constant":
        x[0] = 0  # silence
    return x, draw(n, values="normal").copy_(window), hop


def mel_of(hertz):
    """Slaney's scale: linear up to 1000 Hz, logarithmic above."""
    high = 15 + (hertz.clamp(min=1000) / 1000).log() * (27 / math.log(6.4))
    return torch.where(hertz < 1000, hertz * (3 / 200), high)


def hertz_of(mel):
    high = 1000 * ((mel.clamp(min=15) - 15) * (math.log(6.4) / 27)).exp()
    return torch.where(mel < 15, mel * (200 / 3), high)


def mel_filters(mels, n):
    """Triangles of equal area, as Whisper's: float64 (mels, n // 2 + 1)."""
    bins = torch.linspace(0, RATE / 2, n // 2 + 1, dtype=torch.float64)
    top = mel_of(torch.tensor(RATE / 2, dtype=torch.float64))
    edges = hertz_of(torch.linspace(0, 1, mels + 2, dtype=torch.float64) * top)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return torch.minimum(rising, falling).clamp(min=0) * (2 / (high - low))


def audio_and_filters(case, draw):
    mels, n = case.shape[4], case.shape[2]
    x, window, hop = audio(case, draw)
    filters = draw(mels, n // 2 + 1)
    if case.values != "uniform":  # else no weight is 0
        filters.copy_(mel_filters(mels, n))
    return x, window, hop, filters


# ---------------------------------------------------------------- references and PyTorch's calls


def complex_stft(x, window, hop):
    """(clips, bins, frames); in memory, the bins of a frame are neighbours."""
    n = window.numel()
    if x.size(0) == 0:  # torch.stft refuses it
        frames = (x.size(1) - n % 2) // hop + 1
        return torch.view_as_complex(x.new_zeros(0, frames, n // 2 + 1, 2)).transpose(1, 2)
    return torch.stft(x, n, hop, window=window, center=True, return_complex=True)


def stft(x, window, hop):
    return torch.view_as_real(complex_stft(x, window, hop).transpose(1, 2))


def log_mel(x, window, hop, filters):
    power = complex_stft(x, window, hop).abs().square()
    return (filters @ power).clamp(min=SILENCE).log10()


def real_log_mel(x, window, hop, filters):
    """The same in real numbers: torch.compile makes no kernels of complex ones."""
    power = stft(x, window, hop).square().sum(-1)
    return (filters @ power.transpose(1, 2)).clamp(min=SILENCE).log10()


@cache
def compiled(function):
    return torch.compile(function, dynamic=False)


def compiled_stft(x, window, hop):
    return compiled(stft)(x, window, hop)


def compiled_log_mel(x, window, hop, filters):
    return compiled(real_log_mel)(x, window, hop, filters)


# ---------------------------------------------------------------- costs


def frames_of(case):
    clips, samples, _, hop = case.shape[:4]
    return clips * (1 + samples // hop)


def operations(n):
    """Of one frame: window, N/2 complex points by radix 2, and the sum of even and odd samples."""
    half = n // 2
    return n + 5 * half * (half.bit_length() - 1) + 10 * half


def stft_cost(case):
    clips, samples, n, _ = case.shape
    frames = frames_of(case)
    written = 8 * frames * (n // 2 + 1)
    return Cost(bytes=4 * clips * samples + written, flops=frames * operations(n))


def mel_cost(case):
    clips, samples, n, _, mels = case.shape
    frames = frames_of(case)
    more = 3 * (n // 2 + 1) + 4 * (n // 2 + 1)  # power, and two products per bin
    return Cost(
        bytes=4 * clips * samples + 4 * frames * mels, flops=frames * (operations(n) + more)
    )
