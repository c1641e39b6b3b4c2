"""Launchers do nothing in a call that could have been queried once, or done at a lower cost by the
helpers of common/cuda."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from common.base.paths import DAYS, ROOT

# Each with its replacement, and the places that may have it: the helper itself, and the days that
# teach or show it.
COSTLY = {
    r"\bcudaGetDeviceProperties\b": ("cudaDeviceGetAttribute", {"day01"}),
    r"\bcudaFuncSetAttribute\b": (
        "allow_shared or raise_attribute",
        {"kernel_queries.cuh", "day05", "day15", "day22"},
    ),
    r"\bcudaOccupancyMaxActiveBlocks\w*": (
        "resident_grid or blocks_per_multiprocessor",
        {"kernel_queries.cuh", "day43"},
    ),
    r"\bcudaOccupancyMaxActiveClusters\b": ("resident_clusters", {"kernel_queries.cuh"}),
    r"\bcudaFuncGetAttributes\b": ("nothing: they are the compiler's", {"day43"}),
    r"\bcuTensorMapEncode\w*": ("ptx::make_tensor_map", {"tensor_map.cuh"}),
    r"\btorch::stable::(empty_like|new_empty|new_zeros)\b": (
        "allocate_like, allocate, allocate_zeros",
        {"tensor.cuh"},
    ),
    r"\baccelerator::DeviceGuard\b": ("DeviceGuard", set()),
    r"\bshape_of\([^()]*\) *[!=]= *shape_of\b": ("same_shape", set()),
}
COMMENT = re.compile(r"//.*")


@cache
def places() -> dict[str, str]:
    """Return the code of each source without its comments, by its path."""
    files = [*DAYS.glob("day*/**/*.cu*"), *(ROOT / "common" / "cuda").rglob("*.cuh")]
    return {
        str(file.relative_to(ROOT)): COMMENT.sub("", file.read_text(encoding="utf-8"))
        for file in files
    }


def used(texts: dict[str, str], pattern: str) -> dict[str, list[str]]:
    """Return the places of the pattern: a day's folder, or a file of common/cuda, with the
    paths."""
    found = defaultdict(list)
    for path, text in texts.items():
        if re.search(pattern, text):
            place = Path(path)
            found[place.parts[1] if place.parts[0] == "days" else place.name].append(path)
    return found


@pytest.mark.parametrize("pattern", COSTLY)
def test_no_launcher_pays_for_it_in_each_call(pattern: str) -> None:
    texts = places()
    assert len(texts) > 150, "the sources were not found"
    instead, allowed = COSTLY[pattern]
    found = used(texts, pattern)
    wrong = [path for place, paths in found.items() if place not in allowed for path in paths]
    assert not wrong, f"{', '.join(wrong)}: in each call; use {instead}"
    assert allowed <= set(found), f"{allowed - set(found)} no longer use it"


def test_the_search_sees_them() -> None:
    text = "if (shape_of(a) == shape_of(b)) x = torch::stable::new_empty(x, {1});"
    hits = [pattern for pattern in COSTLY if used({"days/day02/x.cu": text}, pattern)]
    assert len(hits) == 2
