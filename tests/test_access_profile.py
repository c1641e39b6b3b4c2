"""`--profile` on the CPU backend: its tables, from the counts of lines."""

from common import access_profile
from common.cpu.trace import LineCounts
from common.day import DAYS
from tests.command_line import CommandLine

LOAD = LineCounts("k", "a.cu", 3, "global load", 10, 320, 1280, 40)
OTHER_LOAD = LineCounts("k", "a.cu", 4, "global load", 10, 160, 640, 80)
STORE = LineCounts("k", "a.cu", 3, "global store", 4, 128, 512, 128)
SHARED = LineCounts("k", "a.cu", 5, "shared load", 2, 64, 256, 0, 64, 62)
SHARED_ATOMIC = LineCounts("other", "a.cu", 9, "shared atomic", 2, 64, 256)


def test_a_kernel_s_row_adds_up_its_lines() -> None:
    rows = access_profile.kernel_rows([LOAD, OTHER_LOAD, STORE, SHARED, SHARED_ATOMIC])
    assert rows == [["k", "6.00", "32.00", "62"], ["other", "–", "–", "0"]]


def test_a_line_s_row() -> None:
    rows = access_profile.line_rows([OTHER_LOAD, SHARED, SHARED_ATOMIC])
    assert [row[1:] for row in rows] == [
        ["global load", "10", "16.0", "8.00", "", ""],
        ["shared load", "2", "32.0", "", "32.00", "62"],
        ["shared atomic", "2", "32.0", "", "", ""],
    ]
    assert all(len(row) == len(access_profile.LINE_HEADER) for row in rows)


def test_a_day_s_profile() -> None:
    done = CommandLine(DAYS)("2", "--profile")
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["vec_add_v1_thread_per_element_kernel<float>", "4.00", "4.00", "0"] in lines
    assert ["vec_add_v3_float4_kernel<float>", "16.00", "16.00", "0"] in lines
    assert any("z[i] = x[i] + y[i];" in line for line in done.stdout.splitlines())
