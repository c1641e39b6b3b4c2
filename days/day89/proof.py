"""Each planted fault in each way to run it, which of them name it, and what checks cost."""

import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from os import cpu_count
from pathlib import Path
from textwrap import shorten

import torch

from common.day import print_table, seconds
from common.tools.watched_program import Said, run_program, ways_to_run

from .planted_faults import CHECKED, CODES, FAULTS, PLAIN

HERE = Path(__file__).parent
SECONDS = {"cpu": 20.0, "cuda": 30.0}  # that a process may take
PROGRAMS = (PLAIN, CODES, CHECKED)
NO_END = 6.0  # the same for one that never ends, on a GPU
AT_ONCE = 6  # processes
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
WIDTH = 118  # characters of a line
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20)  # picks


def modes(ways):
    """(title, way, argument) of each column: three kinds of program, then the tools."""
    plain = next(way for way in ways if way.name == PLAIN)
    found = [(mode, plain, mode) for mode in PROGRAMS]
    for way in ways:
        if way.name != PLAIN:
            found.append((way.name, way, CHECKED if way.name == "late streams" else PLAIN))
    return found


def limit(fault, mode, device):
    return NO_END if fault.name == "no_end" and mode != CHECKED else SECONDS[device]


def all_runs(device):
    """What was said, by fault and column; and why columns are missing."""
    columns = modes(ways_to_run(HERE / "faults.cu", device))
    missing = {title: way.missing for title, way, _ in columns if way.missing}
    runs: dict[object, Future[Said]] = {}
    with ThreadPoolExecutor(min(AT_ONCE, cpu_count() or 1)) as pool:
        for fault in FAULTS:
            for title, way, mode in columns:
                if not way.missing and (title in PROGRAMS or fault.name != "no_end"):
                    most = limit(fault, mode, device)
                    runs[fault.name, title] = pool.submit(
                        run_program, way, [fault.name, mode], most
                    )
        if device == "cuda":
            title, way, _ = columns[0]
            blocking = replace(way, variables=BLOCKING)
            runs["blocking"] = pool.submit(
                run_program, blocking, ["illegal_address", CODES], SECONDS[device]
            )
        said = {key: future.result() for key, future in runs.items()}
    return [title for title, _, _ in columns], missing, said


def new_words(said, fault, title):
    """What a column says: of a tool, what the program alone did not say already."""
    told = said.get((fault.name, title))
    if told is None:
        return ()
    words = [*told.findings, *told.lines]
    if title in (PLAIN, CODES):
        return tuple(words)
    before = said[fault.name, CHECKED if title == "late streams" else PLAIN]
    if title == CHECKED:
        return tuple(words)
    return tuple(word for word in words if word not in (*before.findings, *before.lines))


def print_faults(device):
    """Prints the table; raises RuntimeError where a fault is named by nothing that should."""
    titles, missing, said = all_runs(device)
    rows, words, wrong = [], [], []
    for fault in FAULTS:
        heard = {title: new_words(said, fault, title) for title in titles}
        run = [(fault.name, title) in said for title in titles]
        marks = ["named" if heard[title] else "-" for title in titles]
        rows.append([fault.name, *(m if r else "not run" for m, r in zip(marks, run, strict=True))])
        expected = fault.cpu if device == "cpu" else fault.gpu
        named = {title: matching(heard[title], text) for title, text in expected.items()}
        right = {title: line for title, line in named.items() if line}
        words += [f"{fault.name}, {title}: {line}" for title, line in right.items()]
        words += [
            f"{fault.name}, {title}: silent"
            for title in named
            if title not in right and title not in missing
        ]
        untried = [missing[title] for title in expected if title in missing]
        if not right and untried:
            words.append(f"{fault.name}: not tried, {untried[0]}")
        elif not right:
            wrong.append(f"{fault.name}: named by none of {', '.join(expected)}: {heard}")
        after = [line for line in heard[CHECKED] if line.startswith("afterwards")]
        if device == "cuda" and after and fault.afterwards not in after[0]:
            wrong.append(f"{fault.name}: {after[0]}, expected {fault.afterwards}")
        words += [f"{fault.name}, {line}" for line in after]
    print_table(["", *titles], rows)
    for title, reason in missing.items():
        print(f"{title}: not tried, {reason}")
    print("\n".join(shorten(line, WIDTH, placeholder=" …") for line in words))
    if device == "cuda":
        print_blame(said)
    if wrong:
        raise RuntimeError("\n".join(wrong))


def matching(lines, text):
    return next((line for line in lines if re.search(text, line)), "")


def print_blame(said):
    """Where the first error of illegal_address is seen: the fault is in gather."""
    shown = {
        "codes": said["illegal_address", CODES],
        "codes, CUDA_LAUNCH_BLOCKING=1": said["blocking"],
        "checked": said["illegal_address", CHECKED],
    }
    print("illegal_address: the first error is seen by")
    for title, told in shown.items():
        print(f"  {title}: {next(iter(told.lines), 'nothing')}")


def in_a_process(device, library):
    """What in_pytorch.py prints. Raises RuntimeError where it gets no further than its first step,
    or the bad index passes."""
    command = [sys.executable, str(HERE / "in_pytorch.py"), device, library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    text = re.sub("0x[0-9a-f]+", "…", done.stdout)
    lines = [shorten(line, WIDTH, placeholder=" …") for line in text.splitlines()]
    if len(lines) < 3 or all(line.endswith("no error") for line in lines):
        raise RuntimeError(f"a bad index is not seen: {lines} {done.stderr.strip()[-300:]}")
    return lines


def in_pytorch(device):
    """What PyTorch says of a bad index and of too large a tensor."""
    library = next(path for path in torch.ops.loaded_libraries if "day89" in path)
    callers = {"index_select": "", "gather_v1_trusting": library}
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda path: in_a_process(device, path), callers.values()))
    for name, lines in zip(callers, said, strict=True):
        print(f"a bad index, {name}:")
        print("\n".join(f"  {line}" for line in lines))
    try:
        torch.empty(1 << 50, device=device)
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        works = bool(torch.ones(3, device=device).sum() == 3)
        print(f"4 PiB: {type(error).__name__}; afterwards: {'it works' if works else 'broken'}")
        return
    raise RuntimeError("4 PiB were allocated")


def print_answers(operators, device):
    """What v2 and v3 do about two bad indices among 1000."""
    x = torch.ones(1000, 64, device=device)
    index = torch.arange(1000, device=device)
    index[9], index[700] = 2**33, -1
    try:
        operators.gather_v2_host(x, index)
        raise AssertionError("v2 took a bad index")
    except RuntimeError as error:
        if "at place 9" not in str(error):
            raise
        print(f"v2: {''.join(str(error).splitlines()[0].rpartition('index:')[1:])}")
    y, report = operators.gather_v3_device(x, index)
    rows = y.isnan().all(dim=1).nonzero().flatten().tolist()
    print(f"v3: report {int(report)}, rows of NaN: {rows}")
    if int(report) != 9 or rows != [9, 700]:
        raise RuntimeError("v3 does not name the bad index")


def show_times(operators, device):
    """On a GPU, prints times at several sizes: a wait costs the same at each."""
    if device.type != "cuda":
        return
    names = ("gather_v1_trusting", "gather_v2_host", "gather_v3_device")
    rows = []
    for picks in SIZES:
        x = torch.rand(picks, 512, device="cuda")
        index = torch.randperm(picks, device="cuda")
        times = [seconds(partial(getattr(operators, name), x, index), 21) for name in names]
        rows.append([f"{picks:,}", *(f"{each * 1e6:.1f}" for each in times)])
    print("µs per call")
    print_table(["picks", "v1", "v2", "v3"], rows)


def show(operators, device):
    print_faults(device.type)
    in_pytorch(device.type)
    print_answers(operators, device)
