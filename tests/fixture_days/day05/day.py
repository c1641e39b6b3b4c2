"""A day whose second rung hangs, and has started processes that would outlive it."""

import subprocess
import time

from tests.fixture_days import parts

TITLE = "Hangs"
TEACHES = "That a hang costs one day"
TOPICS = ("doubling", "patience")
SOURCE = "twice.cu"


def hang(x):
    for alone in (False, True):
        subprocess.Popen(["sleep", "1234.5"], start_new_session=alone)
    while True:
        time.sleep(1)


PROBLEMS = (parts.problem(parts.rung("twice_v1", parts.twice), parts.rung("twice_v2_hangs", hang)),)
