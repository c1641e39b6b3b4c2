"""What the day's `show` proves and draws: the spectrum of a chirp, a chord and noise, and back."""

import math
from pathlib import Path

import torch

from common.day import print_table
from common.report.picture import save_pictures

from .spectra import RATE, mel_filters

SECONDS = 3
CHORD = (440.0, 554.37, 659.26)  # A, C sharp and E, in Hz, from second 1 to 2.5
LOW, HIGH = 200.0, 7000.0  # of the chirp, in Hz, over all 3 seconds
N, HOP, MELS = 512, 160, 80
COLOURS = ((4, 4, 20), (70, 20, 110), (180, 50, 100), (245, 130, 50), (252, 250, 180))
SHADES = 32


def signal():
    """fp32 (1, samples): a chirp whose pitch rises evenly, a chord, and a little noise."""
    seconds = torch.arange(SECONDS * RATE, dtype=torch.float64) / RATE
    x = (2 * math.pi * (LOW * seconds + (HIGH - LOW) / SECONDS * seconds**2 / 2)).sin()
    playing = (seconds >= 1) & (seconds < 2.5)
    x += sum((2 * math.pi * pitch * seconds).sin() for pitch in CHORD) * playing
    noise = torch.randn(len(x), generator=torch.Generator().manual_seed(91), dtype=torch.float64)
    return (0.2 * x + 0.002 * noise).float()[None]


def overlap_added(spectrum, window, hop, samples):
    """The signal of a spectrum (frames, bins, 2): each frame is transformed back and multiplied by
    the window again; where frames overlap they are added, and divided by the sum of the windows'
    squares."""
    n = len(window)
    frames = torch.fft.irfft(torch.view_as_complex(spectrum), n) * window
    places = torch.arange(len(frames))[:, None] * hop + torch.arange(n)
    total, weight = (torch.zeros(int(places[-1, -1]) + 1) for _ in range(2))
    total.index_add_(0, places.flatten(), frames.flatten())
    weight.index_add_(0, places.flatten(), window.square().repeat(len(frames)))
    return (total / weight)[n // 2 : n // 2 + samples]


def print_reconstruction(operators, device, x):
    """Raises RuntimeError where overlap-add does not give the signal back."""
    rows = []
    for name, n in [("stft_v2_stockham", N), *(("stft_v3_registers", n) for n in (N, 400, 2048))]:
        window = torch.hann_window(n)
        spectrum = getattr(operators, name)(x.to(device), window.to(device), HOP)[0].cpu()
        again = overlap_added(spectrum, window, HOP, x.size(1))
        error = float((again - x[0]).abs().max())
        rows.append([name, str(n), f"{error:.1e}"])
        if not error < 2e-6:
            raise RuntimeError(f"{name}, frames of {n}: overlap-add is off by {error:.3g}")
    print_table(["overlap-add of", "samples per frame", "largest error"], rows)


def print_tones(power):
    """power: (frames, bins). Raises RuntimeError where a tone is not where it is due."""
    width = RATE / N
    rows = []

    def row(title, found, expected):
        rows.append([title, f"{found:.0f} Hz", f"{expected:.0f} Hz"])
        if not abs(found - expected) <= width:
            raise RuntimeError(f"{title}: found {found:.0f} Hz, expected {expected:.0f} Hz")

    for second in (0.5, 2.75):
        loudest = int(power[round(second * RATE / HOP)].argmax()) * width
        row(f"chirp at {second} s", loudest, LOW + (HIGH - LOW) * second / SECONDS)
    chord = power[round(1.2 * RATE / HOP) : round(2.4 * RATE / HOP), : round(1000 / width)].mean(0)
    peaks = (chord[1:-1] > chord[:-2]) & (chord[1:-1] > chord[2:])
    places = peaks.nonzero().flatten() + 1
    highest = places[chord[places].topk(len(CHORD)).indices].sort().values
    for pitch, place in zip(CHORD, highest.tolist(), strict=True):
        row("a tone of the chord", place * width, pitch)
    print_table(["tone", "found", "expected"], rows)


def picture(decibels, height):
    """Values (frames, rows) from -80 dB below the loudest to the loudest, as uint8 RGB: time to the
    right, low pitches at the bottom; each row is `height` pixels high."""
    share = ((decibels - decibels.max()) / 80 + 1).clamp(0, 1)
    place = (share * (SHADES - 1)).round() / (SHADES - 1) * (len(COLOURS) - 1)
    below = place.floor().clamp(max=len(COLOURS) - 2).long()
    colours = torch.tensor(COLOURS, dtype=torch.float32)
    mixed = torch.lerp(colours[below], colours[below + 1], (place - below)[..., None])
    return mixed.round().to(torch.uint8).transpose(0, 1).flip(0).repeat_interleave(height, 0)


def show(operators, device):
    """Prints the proofs, and saves the spectrogram and the log-mel spectrogram as pictures."""
    x, window = signal(), torch.hann_window(N)
    print_reconstruction(operators, device, x)
    on_device = x.to(device), window.to(device), HOP
    power = operators.stft_v3_registers(*on_device)[0].cpu().square().sum(-1)
    print_tones(power)
    filters = mel_filters(MELS, N).float().to(device)
    mels = operators.log_mel_v4_fused(*on_device, filters)[0].cpu()
    pictures = {
        "stft": picture(10 * power.clamp(min=1e-20).log10(), 1),
        "log_mel": picture(10 * mels.T, 3),
    }
    save_pictures(Path(__file__).parent, pictures)
