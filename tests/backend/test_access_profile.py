"""A day's accesses, counted by the command that a user types."""

from common.base.paths import DAYS
from tests.command_line import CommandLine


def test_a_day_s_profile() -> None:
    done = CommandLine(DAYS)("2", "--profile")
    assert done.returncode == 0, done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["vec_add_v1_thread_per_element_kernel<float>", "4.00", "4.00", "0"] in lines
    assert ["vec_add_v3_float4_kernel<float>", "16.00", "16.00", "0"] in lines
    assert any("z[i] = x[i] + y[i];" in line for line in done.stdout.splitlines())
