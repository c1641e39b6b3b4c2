"""Count and draw a day's accesses with the commands that a user types."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from common.base.paths import DAYS
from tests.command_line import CommandLine


def test_a_day_s_profile() -> None:
    done = CommandLine(DAYS)("2", "--profile")
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["vec_add_v1_thread_per_element_kernel<float>", "4.00", "4.00", "0"] in lines
    assert ["vec_add_v3_float4_kernel<float>", "16.00", "16.00", "0"] in lines
    assert any("z[i] = x[i] + y[i];" in line for line in done.stdout.splitlines())


def test_a_day_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "day02.svg"
    done = CommandLine(DAYS)("2", "--draw", str(file))
    assert done.returncode == 0, done.stdout
    text = done.stdout
    assert "each written once, 16 shown: [i] by thread i of the grid" in text
    loops = (
        r"2_grid_stride on 2201 .*\n(.*\n)+?    \[2048\.\.2055\] block 0: t0 t1 t2 t3 t4 t5 t6 t7"
    )
    assert re.search(loops, text), text
    assert "t0 ·· ·· ·· t1 ·· ·· ··" in text  # of a float4
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert ET.fromstring(file.read_text()).tag.endswith("svg")
