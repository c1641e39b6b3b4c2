"""Build a CUDA program for the CPU, and run it: `python -m common.cpu prog.cu -- arguments`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from common.base import toolchain
from common.base.compiling import BuildError
from common.base.outcome import FAIL
from common.cpu import models, program, program_debugger, program_profile

_RUN_LIMIT = 120.0  # seconds of one run of --sanitize

_EPILOG = """examples:
  python -m common.cpu vector_add.cu                    build, kept in the cache, and run
  python -m common.cpu reduce.cu -- 1000000             with an argument of the program
  python -m common.cpu reduce.cu --order reverse        threads and blocks from last to first
  python -m common.cpu reduce.cu --streams late         each wait that is missing shows
  python -m common.cpu reduce.cu --model 8.6            on a card like an RTX 3090
  python -m common.cpu reduce.cu --sanitize -- 1000     look for mistakes: races, bad addresses
  python -m common.cpu reduce.cu --profile -- 1000      count sectors and bank conflicts per line
  python -m common.cpu reduce.cu -o reduce              build only; run it as ./reduce

The exit code is the program's; 1 after a kernel that failed, 2 when the program did not build.
A built program reads its settings from CUDACPU_ORDER, CUDACPU_SEED, CUDACPU_THREADS,
CUDACPU_TIME_LIMIT and CUDACPU_STREAMS. It plays the card that it was built for, or that of
CUDACPU_MODEL."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m common.cpu",
        description="Builds a .cu that has a main() for the CPU, and runs it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "source", type=Path, nargs="+", help="the program's .cu files, and other C++ files of it"
    )
    parser.add_argument("-o", dest="out", type=Path, help="write the program there, and do not run")
    orders = ["forward", "reverse", "random"]
    parser.add_argument("--order", choices=orders, help="of threads and blocks")
    parser.add_argument("--seed", type=int, help="of the random order")
    parser.add_argument("--threads", type=int, help="OS threads that run blocks (default: all)")
    parser.add_argument(
        "--time-limit", type=float, help="seconds of one launch (default: 30; 0: no limit)"
    )
    parser.add_argument(
        "--streams",
        choices=["early", "late"],
        help="run the work of streams at once (default), or when something waits for it",
    )
    parser.add_argument(
        "--model",
        default="",
        help=f"the card to play: {models.listing()}; default {models.default()}",
    )
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="run it in several orders and with every access watched; exit code 1 if that found "
        "something. --time-limit is for each run then",
    )
    parser.add_argument(
        "--profile", action="store_true", help="run it, and count what its accesses cost on a GPU"
    )
    parser.add_argument("-I", action="append", default=[], metavar="DIR", help="look for headers")
    parser.add_argument("-D", action="append", default=[], metavar="NAME", help="define a macro")
    parser.add_argument("-l", action="append", default=[], metavar="LIB", help="link a library")
    parser.add_argument("-L", action="append", default=[], metavar="DIR", help="look for libraries")
    parser.add_argument("-std", metavar="=c++20", help="the C++ standard (default: c++17, as nvcc)")
    parser.add_argument(
        "-Xcompiler",
        action="append",
        default=[],
        metavar="FLAGS",
        help="flags for the compiler, separated by commas",
    )
    return parser


def _joined(words: list[str]) -> list[str]:
    """Return the words with `-Xcompiler -fopenmp`, as for nvcc, joined into one with a dash."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "-Xcompiler":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def main(words: list[str]) -> int:
    """Build the program and replace this process by it; return if there is nothing to run."""
    own, arguments = words, []
    if "--" in words:
        own, arguments = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = _parser()
    args = parser.parse_args(_joined(own))
    for source in args.source:
        if not source.is_file():
            parser.error(f"source: {source} is not a file")
    flags = [f"-{kind}{value}" for kind in "IDlL" for value in getattr(args, kind)]
    flags += [f"-std={args.std.removeprefix('=')}"] if args.std else []
    flags += [flag for words in args.Xcompiler for flag in words.split(",")]
    try:
        model = models.chosen(args.model or os.environ.get("CUDACPU_MODEL", ""))
    except models.ModelError as error:
        parser.error(f"--model: {error}")
    try:
        platform = replace(toolchain.detect("cpu"), model=model)
        if args.sanitize:
            seconds = args.time_limit or _RUN_LIMIT
            rows = program_debugger.report(args.source, platform, flags, arguments, seconds)
            print(program_debugger.show(rows))
            return int(any(row.status == FAIL for row in rows))
        if args.profile:
            seconds = args.time_limit or _RUN_LIMIT
            done, tables = program_profile.report(args.source, platform, flags, arguments, seconds)
            print(done.output, end="")
            print(done.errors, end="", file=sys.stderr)
            print(tables)
            return done.code or 0
        built = program.executable(args.source, platform, flags)
    except (BuildError, toolchain.ToolchainError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.out is not None:
        shutil.copy(built, args.out)
        return 0
    for name in ("order", "seed", "threads", "time_limit", "streams"):
        if getattr(args, name) is not None:
            os.environ[f"CUDACPU_{name.upper()}"] = str(getattr(args, name))
    os.environ["CUDACPU_MODEL"] = model
    sys.stdout.flush()
    os.execv(built, [str(args.source[0].with_suffix("")), *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
