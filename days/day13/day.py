"""Day 13: images, converted to grey and blurred."""

from pathlib import Path

from common.day import Exercise, hills_at_night, save_pictures

from .blur import BLURS, box, gaussian
from .grey import GREY

TITLE = "Images: grey and blurred"
TEACHES = "Bytes packed in words, fixed-point arithmetic, separable filters in shared memory"
TOPICS = ("images", "grey", "blur", "convolution", "shared memory", "integers")
SOURCE = "color2gray.cu"
EXTRA_SOURCES = ("blur.cu",)
INTRODUCES = ("fixed point", "separable filter")

EXERCISE = Exercise(
    function="luma_of_four",
    task=(
        "Compute four grey pixels from twelve bytes in three words, RGBR GBRG BRGB, and pack "
        "them into one word, the first pixel in the lowest byte."
    ),
    hints=(
        "byte_of(word, k) is byte k of a word, 0 the lowest. Which bytes of which words belong "
        "to the second pixel?",
        "The pixels are: three bytes of the first word; its last byte and two of the second; the "
        "second's last two and one of the third; the third's last three.",
        "luma(r, g, b) gives 0 to 255, so four of them fit: y0 | y1 << 8 | y2 << 16 | y3 << 24.",
    ),
)

PROBLEMS = (GREY, *BLURS)


def show(operators, device):
    """Saves a picture as drawn, in grey, and blurred with both filters."""
    image = hills_at_night().to(device)
    pictures = {
        "picture": image,
        "grey": operators.grey_v3_sixteen_pixels(image),
        "box": operators.blur_v3_register_window(image, box(4)),
        "gaussian": operators.blur_v3_register_window(image, gaussian(4)),
    }
    save_pictures(Path(__file__).parent, pictures)
