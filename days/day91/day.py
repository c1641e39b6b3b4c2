"""Day 91: the short-time Fourier transform of audio, and its log-mel spectrogram."""

if __name__ == "__main__":  # python days/day91/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day91

from common.day import Case, Library, Problem, Rung, Target, Tolerance, grid

from . import spectra
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "STFT and log-mel spectrogram"
TEACHES = "The fast Fourier transform in registers, fused with all that audio models do around it"
TOPICS = ("audio", "FFT", "Fourier", "STFT", "spectrogram", "mel", "Whisper", "fusion")
SOURCE = "stft.cu"
EXTRA_SOURCES = ("proof.py", "spectra.py")
INTRODUCES = ("fast Fourier transform", "twiddle factor", "spectrogram", "mel filter")

SPECTRUM = Tolerance(
    factor=32, why="v1 adds N products in one chain, where an FFT has a tree of log N levels"
)
LOGARITHM = Tolerance(
    ulps=8,
    factor=32,
    why="an error of the power becomes one of the logarithm, which may itself be near 0",
)

# (clips, samples, samples per frame, hop)
SHAPES = [(1, 129, 256, 77), (3, 700, 256, 64), (2, 2001, 512, 160), (2, 1500, 1024, 333)]
SHAPES += [(1, 1025, 2048, 2000), (5, 1400, 512, 512), (0, 600, 256, 64), (1, 300, 512, 1000)]
OTHERS = [(2, 1000, 400, 160), (3, 201, 400, 50), (1, 1501, 400, 33)]
MANY = (5, 15_000, 2048, 50)  # more tiles than blocks are resident
LENGTHS = [(2, 140, 15, 4), (5, 200, 1, 17), (3, 100, 46, 7), (1, 90, 2, 100)]
MEL_SHAPES = [
    (*shape, mels) for shape, mels in zip(SHAPES, (5, 20, 80, 33, 128, 0, 3, 1), strict=True)
]

PROBLEMS = (
    Problem(
        name="STFT",
        inputs=spectra.audio,
        reference=spectra.stft,
        pytorch=spectra.stft,
        libraries=(Library("compile", spectra.compiled_stft),),
        rungs=(
            Rung("stft_v1_definition", "one thread per output"),
            Rung("stft_v2_stockham", "radix 2, one block per frame"),
            Rung("stft_v3_registers", "radix 16 in registers", target=Target(1.0, "pytorch")),
        ),
        cases=(
            *grid(SHAPES, ["float32"]),
            *(Case((2, 2001, 512, 160), values=values) for values in ("tiny", "large")),
        ),
        bench=Case((64, 480_000, 512, 160)),
        bench_cpu=Case((1, 1600, 512, 160)),
        cost=spectra.stft_cost,
        tolerance=SPECTRUM,
    ),
    Problem(
        name="log-mel",
        inputs=spectra.audio_and_filters,
        reference=spectra.log_mel,
        pytorch=spectra.log_mel,
        libraries=(Library("compile", spectra.compiled_log_mel),),
        rungs=(
            Rung("log_mel_v3_unfused", "two kernels"),
            Rung("log_mel_v4_fused", "one kernel", target=Target(1.0, "pytorch")),
        ),
        cases=(
            *grid([*MEL_SHAPES, *((*shape, 80) for shape in OTHERS)], ["float32"]),
            *(Case((3, 3001, 400, 160, 40), values=each) for each in ("nonfinite", "constant")),
            Case((2, 700, 256, 100, 7), values="uniform"),
            Case((*MANY, 3)),
        ),
        refused=(Case((1, 700, 384, 100, 20)), Case((1, 2500, 4096, 100, 20))),
        bench=Case((64, 480_000, 512, 160, 80)),
        bench_cpu=Case((1, 3200, 512, 160, 80)),
        cost=spectra.mel_cost,
        tolerance=LOGARITHM,
    ),
    Problem(
        name="frames of 400",
        inputs=spectra.audio,
        reference=spectra.stft,
        rungs=(
            Rung("stft_v1_definition", "any length"),
            Rung("stft_v3_registers", "radix 20 and 10"),
        ),
        cases=grid(OTHERS, ["float32"]),
        timed=False,
        tolerance=SPECTRUM,
    ),
    Problem(
        name="many frames",
        inputs=spectra.audio,
        reference=spectra.stft,
        rungs=(Rung("stft_v3_registers", "several tiles per block"),),
        cases=(Case(MANY),),
        timed=False,
        tolerance=SPECTRUM,
    ),
    Problem(
        name="frames of any length",
        inputs=spectra.audio,
        reference=spectra.stft,
        rungs=(Rung("stft_v1_definition", "any length"),),
        cases=grid(LENGTHS, ["float32"]),
        timed=False,
        tolerance=SPECTRUM,
    ),
)
