"""The alignment of dynamic shared memory, in the sources of all days."""

from __future__ import annotations

import re

import pytest

from common.base.paths import ROOT

DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\((\d+)\)\s+)?([\w:]+(?: \w+)?)\s+\w+\[\];"
)
SINGLE = {"float", "float2", "int", "unsigned"}  # accessed one by one


def is_misplaced(declaration: re.Match[str]) -> bool:
    """Return True if packs of 16 bytes may begin in the middle of a sector of 32: with the
    alignment of their type, after a kernel's own arrays (day 76 measures the cost)."""
    alignment, element = declaration.groups()
    return element not in SINGLE and int(alignment or 1) < 128


def test_dynamic_shared_memory_of_packs_is_aligned() -> None:
    tops = (ROOT / "days", ROOT / "common" / "cuda")
    sources = [path for top in tops for path in sorted(top.rglob("*.cu*"))]
    found = [(path, match) for path in sources for match in DYNAMIC.finditer(path.read_text())]
    assert len(found) > 50, "the declarations were not found"
    declared = sum(path.read_text().count("extern __shared__") for path in sources)
    assert declared == len(found), "some have another form, which this test does not see"
    wrong = [f"{path.relative_to(ROOT)}: {m.group()}" for path, m in found if is_misplaced(m)]
    assert not wrong, "declare with __align__(128): " + "; ".join(wrong)


@pytest.mark.parametrize(
    ("text", "misplaced"),
    [
        ("extern __shared__ uint4 ring[];", True),
        ("extern __shared__ __align__(16) unsigned char memory[];", True),
        ("extern __shared__ __align__(128) uint4 ring[];", False),
        ("extern __shared__ float row[];", False),
    ],
)
def test_a_misplaced_declaration_is_seen(text: str, misplaced: bool) -> None:
    match = DYNAMIC.fullmatch(text)
    assert match is not None and is_misplaced(match) is misplaced
