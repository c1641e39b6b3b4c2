"""Day 13: images, converted to grey and blurred."""

if __name__ == "__main__":  # python days/day13/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day13

from pathlib import Path

from common.report.picture import hills_at_night, save_pictures

from .blur import BLURS, box, gaussian
from .grey import GREY

TITLE = "Images: grey and blurred"
TEACHES = "Bytes packed in words, fixed-point arithmetic, separable filters in shared memory"
TOPICS = ("images", "grey", "blur", "convolution", "shared memory", "integers")
SOURCE = "color2gray.cu"
EXTRA_SOURCES = ("blur.cu",)
INTRODUCES = ("fixed point", "separable filter")

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
