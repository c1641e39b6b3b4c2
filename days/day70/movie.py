"""A GIF of the patterns, whose last frame leads to its first."""

import io
from pathlib import Path

import torch

FRAMES, HEIGHT, WIDTH = 32, 90, 160
COLOURS = 32  # of all frames together
TURN = 2**32
# Periods per picture along x and along y, per loop, and where the first pixel begins, in turns.
# Only the third has to be whole.
WAVES = ((1.5, 0.5, 1, 0.0), (-0.75, 1.25, 1, 0.25), (2.0, -1.0, -1, 0.5), (0.25, 1.75, 2, 0.125))
PALETTE = (0.0, 0.3, 0.55)  # turns of red, green and blue


def as_phases(turns):
    """Turns as int32: whole ones are lost, and more than half a turn is less than none."""
    units = torch.tensor(turns, dtype=torch.float64).mul(TURN).round().long()
    return units.to(torch.int32)


def arguments(device):
    periods = torch.tensor(WAVES, dtype=torch.float64)
    per_pixel = periods / torch.tensor([WIDTH, HEIGHT, FRAMES, 1])
    return as_phases(per_pixel.tolist()).to(device), as_phases(PALETTE).to(device)


def encoded(frames):
    """The bytes of a GIF of frames (F, H, W, 3) with one table of colours for all."""
    from PIL import Image

    sheet = Image.fromarray(frames.flatten(0, 1).numpy())  # the frames one below the other
    table = sheet.quantize(COLOURS)
    pictures = [
        Image.fromarray(frame.numpy()).quantize(palette=table, dither=Image.Dither.NONE)
        for frame in frames
    ]
    file = io.BytesIO()
    pictures[0].save(
        file, "GIF", save_all=True, append_images=pictures[1:], duration=60, loop=0, optimize=False
    )
    return file.getvalue()


def decoded(gif):
    """The frames of a GIF, (F, H, W, 3) uint8."""
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(gif)) as image:
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    shape = len(frames), *frames[0].size[::-1], 3
    pixels = bytearray().join(frame.tobytes() for frame in frames)
    return torch.frombuffer(pixels, dtype=torch.uint8).view(shape)


def alike(one, other):
    """Whether frames differ by less than a level on average, as between two GPUs."""
    return one.shape == other.shape and float((one.float() - other.float()).abs().mean()) < 1


def show(operators, device):
    """Saves patterns.gif, unless the file that is there shows the same."""
    frames = operators.patterns_v4_staged(*arguments(device), FRAMES, HEIGHT, WIDTH).cpu()
    try:
        gif = encoded(frames)
    except ImportError as error:
        print(f"no GIF without Pillow: python -m pip install pillow ({error})")
        return
    path = Path(__file__).parent / "patterns.gif"
    if not path.exists() or not alike(decoded(path.read_bytes()), decoded(gif)):
        path.write_bytes(gif)
    print(f"{path.name}: {FRAMES} frames of {WIDTH}×{HEIGHT}, {path.stat().st_size:,} bytes")
