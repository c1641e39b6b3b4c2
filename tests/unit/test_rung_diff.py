"""The change from one rung to another."""

from __future__ import annotations

import pytest

from common.base.days import discover
from common.base.paths import ROOT
from common.base.refusal import UsageError
from common.practice.rung_diff import pairs_of, rung_diff, times_of

DAY = next(day for day in discover()[0] if day.number == 21)


def test_versions_name_the_rungs_of_one_ladder() -> None:
    assert pairs_of(DAY, "v2", "v3") == [("transpose_v2_shared", "transpose_v3_padded")]
    assert pairs_of(DAY, "transpose_v1_naive", "v4")[0][1] == "transpose_v4_vector_swizzle"
    with pytest.raises(UsageError, match=r"'v2' and 'v99' name no two rungs .* day 21; it has"):
        pairs_of(DAY, "v2", "v99")


def test_only_what_differs_is_shown() -> None:
    lines = rung_diff(DAY, "transpose_v2_shared", "transpose_v3_padded")
    changes = [line for line in lines if line[0] in "+-" and not line.startswith(("+++", "---"))]
    code = [line for line in changes if not line[1:].startswith("//")]
    assert code == ["-  through_tile<T, SIDE>(x, y, rows, cols);",
                    "+  through_tile<T, SIDE + 1>(x, y, rows, cols);"]  # fmt: skip


def test_both_stored_times_are_named() -> None:
    text = times_of(DAY, "transpose_v2_shared", "transpose_v3_padded", ROOT)
    assert "transpose_v2_shared" in text and "× as fast" in text
