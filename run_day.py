#!/usr/bin/env python3
"""The command line of the course: `python run_day.py 5` builds, checks and times day 5."""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends the process without a traceback; a run sets other handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import difflib
import errno
import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from common.base.options import TIME_LIMIT, RunOptions
from common.base.paths import DAYS
from common.base.refusal import CommandError

EXAMPLES = """\
examples:
  python run_day.py 5                 build, check and time day 5
  python run_day.py 1-14              a range; lists work too: 1,3,5-7
  python run_day.py softmax           every day about a topic
  python run_day.py all --no-bench    check all days, time none
  python run_day.py 27 --rivals       beside the libraries that experts use
  python run_day.py 5 --device cpu    without a GPU, from the same source
  python run_day.py 5 --device cpu --model 8.6
                                      the CPU backend as an RTX 3090
  python run_day.py all --compile-only --arch 8.0,9.0a
                                      does it compile? needs no GPU
  python run_day.py 5 --sanitize      look for memory errors and races
  python run_day.py 5 --draw          which thread reads and writes what
  python run_day.py 5 --mutants       would the checks of day 5 notice a bug?
  python run_day.py all --shard 2/8 --json part2.json
  python run_day.py --merge part1.json part2.json --json whole.json
  python run_day.py --compare old.json new.json
                                      what became slower, what fails now?
  python run_day.py --html report.html
                                      the stored results as a page
  python run_day.py 21 --diff v2 v3   what changes from one rung to the next
  python run_day.py --doctor          what is missing on this machine?
  python run_day.py --editor          files for clangd, VS Code and gdb
  python run_day.py --new 101 "Sparse attention"
                                      a folder to start from

exit codes: 0 nothing failed and something passed; 1 a failure, a build error or a time-out;
2 a mistake on the command line, or no such day; 130 interrupted
"""


ALONE = ("list", "doctor", "editor", "diff", "new")  # what is done instead of a run
SELECTING = ("list", "diff")  # of these, what days may be named for
LEARNER = ("hint", "reset", "solution", "next", "watch")  # what goes with --practice


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that offers the nearest option for one that does not exist."""

    def error(self, message: str) -> NoReturn:
        if match := re.match(r"unrecognized arguments: (.*)", message):
            known = [option for action in self._actions for option in action.option_strings]
            for word in match.group(1).split():
                near = difflib.get_close_matches(word.split("=")[0], known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.exit(2, f"{self.prog}: there is no option {word}{hint} (--help lists all)\n")
        self.exit(2, f"{self.prog}: {message} (--help explains)\n")


def positive(text: str) -> float:
    """Return a number above 0, for argparse."""
    try:
        value = float(text) if text.isascii() else 0.0
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def count(text: str) -> int:
    """Return a whole number above 0, for argparse."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def seed(text: str) -> int:
    """Return a whole number, for argparse."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, for argparse."""
    return tuple(filter(None, text.split(",")))


def folder(text: str) -> Path:
    """Return an absolute path, for argparse."""
    return Path(text).resolve()


def drawing(text: str) -> Path:
    """Return the name of an SVG, for argparse."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} is no FILE.svg; days stand before --draw")
    return Path(text)


def parser() -> Parser:
    """Return the parser of the command line."""
    p = Parser(
        prog="run_day.py",
        description="Builds, checks and times the days of a hundred days of CUDA.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument(
        "selected",
        nargs="*",
        metavar="DAY",
        help="a number, range (1-14), list (1,3,5-7), topic or word of a title, or all",
    )
    p.add_argument("--list", action="store_true", help="list days and topics, and do nothing else")
    p.add_argument(
        "--doctor",
        action="store_true",
        help="say what is there on this machine, what is wrong, and how to fix it",
    )
    p.add_argument(
        "--editor",
        action="store_true",
        help="write what clangd and VS Code need to read, check and debug the days' .cu files and "
        "yours",
    )
    p.add_argument(
        "--diff",
        nargs=2,
        metavar=("V2", "V3"),
        help="show the change from one rung of a day to another, with both stored times",
    )
    p.add_argument(
        "--new",
        nargs=2,
        metavar=("N", "TITLE"),
        help="write the folder of a new day, which builds and passes, and do nothing else",
    )

    how = p.add_argument_group("how to run")
    how.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="default: the GPU where there is one, else the CPU backend",
    )
    how.add_argument(
        "--model",
        default="",
        metavar="M",
        help="with --device cpu: the card that the CPU backend plays, by compute capability: 7.5, "
        "8.0, 8.6, 8.9, 9.0 (default), 10.0 or 12.0",
    )
    how.add_argument(
        "--quick",
        action="store_true",
        help="fewer cases, one of four bad inputs, shorter timing; with --model no bad input, "
        "which no card changes",
    )
    how.add_argument(
        "--further",
        action="store_true",
        help="also run what goes beyond the days' main lines; all and --write do so",
    )
    how.add_argument(
        "--verbose",
        action="store_true",
        help="of one day, also say how its rungs were checked: what was not tried, what fell back "
        "on another kernel",
    )
    how.add_argument(
        "--no-bench", dest="bench", action="store_false", help="check, but time nothing"
    )
    how.add_argument(
        "--rivals",
        action="store_true",
        help="on a GPU, also time the libraries that experts use, where they are installed: "
        "FlashAttention-4, quack, CUB and others; of one that is not, show the command",
    )
    how.add_argument(
        "-j",
        "--jobs",
        type=count,
        default=0,
        metavar="N",
        help="builds at a time; default: as cores and memory allow",
    )
    how.add_argument(
        "--side-by-side",
        type=count,
        default=0,
        metavar="N",
        help="days that are checked at a time on one GPU, or on the CPU; default: as many as cores "
        "and memory allow. They are timed one by one, alone",
    )
    how.add_argument(
        "--time-limit",
        type=positive,
        default=0.0,
        metavar="S",
        help=f"seconds that a day may run; default: {TIME_LIMIT['cuda']:.0f} on a GPU, "
        f"{TIME_LIMIT['cpu']:.0f} on the CPU",
    )
    how.add_argument(
        "--shard",
        default="",
        metavar="I/N",
        help="only the I-th of N equal parts of the selected days",
    )

    else_ = p.add_argument_group("instead of checking and timing")
    what = else_.add_mutually_exclusive_group()
    what.add_argument(
        "--compile-only",
        dest="mode",
        action="store_const",
        const="compile-only",
        default="run",
        help="compile with nvcc and run nothing; needs no GPU",
    )
    what.add_argument(
        "--sanitize",
        dest="mode",
        action="store_const",
        const="sanitize",
        help="look for races, bad addresses and waits without end: on a GPU by the four tools of "
        "NVIDIA's compute-sanitizer, on the CPU backend by checks in many orders and with every "
        "access watched",
    )
    what.add_argument(
        "--profile",
        dest="mode",
        action="store_const",
        const="profile",
        help="on a GPU, measure each kernel with Nsight Compute; on the CPU, count sectors, bank "
        "conflicts and divergence by line of the source",
    )
    what.add_argument(
        "--draw",
        dest="svg",
        nargs="?",
        type=drawing,
        const=Path(),
        metavar="FILE.svg",
        help="draw which thread of each rung reads and writes which element, on a small case, from "
        "the CPU backend's record; with a file, also as an SVG",
    )
    what.add_argument(
        "--mutants",
        dest="mode",
        action="store_const",
        const="mutants",
        help="change a source or header of the day in one place at a time, on the CPU backend, and "
        "see whether the day's own checks notice; goes on where an earlier run was ended",
    )
    else_.add_argument(
        "--sample",
        type=count,
        default=0,
        metavar="N",
        help="with --mutants: only N of each day, chosen at random",
    )
    else_.add_argument(
        "--seed",
        type=seed,
        metavar="S",
        help="with --sample: choose the same again; default: the date, as 20260131",
    )
    else_.add_argument(
        "--all-mutants",
        action="store_true",
        help="with --mutants: every one that can be derived, not some of each kind and function",
    )
    else_.add_argument(
        "--fresh",
        action="store_true",
        help="with --mutants: try again also those whose outcome is known from an earlier run",
    )
    else_.add_argument(
        "--arch",
        dest="archs",
        type=names,
        default=argparse.SUPPRESS,
        metavar="LIST",
        help=f"with --compile-only: architectures, default {','.join(RunOptions.archs)}",
    )

    learn = p.add_argument_group("practice: write, debug and speed up the day's own file")
    learn.add_argument(
        "--practice",
        nargs="?",
        const="write",
        metavar="NAME",
        help="without a name: fill the gap of the day's next step; the name of a step: that one; "
        "debug: find the change that is planted in the day's file; speed: make the day's first "
        "rung as fast as its last; the file, practice/dayNN/NAME.cu, is written at first, and then "
        "checked",
    )
    learn.add_argument("--hint", action="store_true", help="show the next hint")
    learn.add_argument(
        "--reset", action="store_true", help="begin anew; the old file is kept beside the new one"
    )
    learn.add_argument(
        "--solution", action="store_true", help="show the difference to the day's own file"
    )

    learn.add_argument(
        "--next", action="store_true", help="go on with the next exercise that is not solved"
    )
    learn.add_argument("--watch", action="store_true", help="check whenever the file is saved")

    out = p.add_argument_group("results")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the whole run as JSON")
    out.add_argument(
        "--write",
        action="store_true",
        help="store the results and write progress.md and the days' READMEs; without a day, only "
        "write these anew; with --compile-only, or --profile --device cpu, store the evidence of "
        "the kernels",
    )
    out.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="with --write: store what --json, or --mutants --json, wrote on another machine",
    )
    out.add_argument(
        "--merge",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="show the --json files of several shards as one report",
    )
    out.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page that needs no network: of this run, of --merge or --compare, or, "
        "without any of these, of the stored results",
    )
    out.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("OLD", "NEW"),
        help="hold two --json files against each other; exit code 1 if anything is worse",
    )
    out.add_argument(
        "--threshold",
        type=positive,
        default=5.0,
        metavar="PERCENT",
        help="with --compare: by how much a time must change to count; default 5",
    )
    out.add_argument(
        "--no-color",
        "--no-colour",
        dest="colour",
        action="store_false",
        help="no colours (so does the variable NO_COLOR)",
    )

    # For tests, and for tools that watch a single process.
    p.add_argument("--days", type=folder, default=DAYS, help=argparse.SUPPRESS)
    p.add_argument("--rungs", type=names, default=(), help=argparse.SUPPRESS)
    p.add_argument("--swap", nargs=2, type=Path, help=argparse.SUPPRESS)
    p.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    p.add_argument(
        "--profiled",
        dest="mode",
        action="store_const",
        const="profiled",
        help=argparse.SUPPRESS,
    )
    return p


def check_alone(p: Parser, args: argparse.Namespace) -> None:
    """Refuse options together with one that runs no day."""
    alone = next((name for name in ALONE if getattr(args, name)), None)
    if alone is None:
        return
    allowed = {alone, "days", "device", "colour", *(("selected",) if alone in SELECTING else ())}
    for action in p._actions:
        if action.dest in allowed or action.dest not in args:
            continue
        value = getattr(args, action.dest)
        given = value == action.const if action.nargs == 0 else value not in (action.default, [])
        if given:
            other = action.option_strings[-1] if action.option_strings else "a day"
            p.error(f"--{alone} runs no day: not with {other}")


def check(p: Parser, args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    check_alone(p, args)
    if args.svg is not None:
        args.mode, args.svg = "draw", args.svg if args.svg.name else None
    if "archs" in args and args.mode != "compile-only":
        p.error("--arch goes with --compile-only")
    if args.model and (args.mode == "compile-only" or args.device == "cuda"):
        p.error("--model is the card that the CPU backend plays: it goes with --device cpu")
    if args.rivals and (args.device == "cpu" or args.quick or not args.bench):
        p.error("--rivals are timed on a GPU: not with --device cpu, --quick or --no-bench")
    if args.rivals and (args.mode != "run" or args.practice):
        p.error("--rivals are timed beside a day's own rungs: only when days are checked and timed")
    if args.model and args.write:
        p.error("--write stores the results of this machine: not with --model")
    check_mutants(p, args)
    if args.source and not args.write:
        p.error("--from goes with --write")
    if args.write and (args.quick or not args.bench):
        p.error("--write stores complete results: not with --quick or --no-bench")
    if args.write and args.rungs:
        p.error("--write stores whole days: not with --rungs")
    if args.write and args.mode in ("sanitize", "draw"):
        p.error("--write stores times: not with --sanitize or --draw")
    if args.write and args.mode == "compile-only":
        if "archs" in args:
            p.error("--compile-only --write is for the GPU of the stored results: not with --arch")
        args.archs = ("9.0a",)
    if args.write and args.mode == "profile" and args.device != "cpu":
        p.error("--profile --write stores the evidence of kernels: it goes with --device cpu")
    if (args.source or args.merge or args.compare) and args.selected:
        p.error("--from, --merge and --compare take files, no days")
    if args.compare and (args.source or args.merge or args.write or args.json):
        p.error("--compare shows what changed: not with --from, --merge, --write or --json")
    learner = [name for name in LEARNER if getattr(args, name)]
    if len(learner) > 1:
        p.error(f"--{learner[0]} and --{learner[1]} do not go together")
    if learner and not args.practice:
        args.practice = "write"
    if args.practice and (args.write or args.json or args.shard or args.source or args.merge):
        p.error("--practice checks one file: not with --write, --json, --shard, --from or --merge")
    if args.practice and args.mode == "draw":
        p.error("--draw draws the days' own rungs: not with --practice")
    if args.practice and args.mode in ("compile-only", "mutants"):
        p.error(f"--{args.mode} takes the days' own files: not with --practice")
    if args.shard and not args.selected:
        p.error("--shard takes part of some days: name them, or all")


def check_mutants(p: Parser, args: argparse.Namespace) -> None:
    """Refuse options that do not go with --mutants, or only with it."""
    if args.mode != "mutants":
        for option in ("sample", "all_mutants", "fresh"):
            if getattr(args, option):
                p.error(f"--{option.replace('_', '-')} goes with --mutants")
    if args.seed is not None and not args.sample:
        p.error("--seed goes with --sample")
    if args.mode != "mutants":
        return
    if args.device == "cuda" or args.model:
        p.error("--mutants are tried on the CPU backend: not with --device cuda or --model")
    if args.quick or not args.bench:
        p.error("--mutants go through all of a day's checks: not with --quick or --no-bench")
    if args.write and (args.sample or args.all_mutants):
        p.error(
            "--write stores the score of the standard mutants: not with --sample or --all-mutants"
        )


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    p = parser()
    args = p.parse_intermixed_args(argv)
    check(p, args)
    try:
        return execute(p, args)
    except CommandError as error:
        for line in error.args:
            print(f"run_day.py: {line}", file=sys.stderr)
        return error.code


def execute(p: Parser, args: argparse.Namespace) -> int:
    """Do what the options request and return the exit code. Raise CommandError."""
    if not args.bench or args.practice or args.mode in ("mutants", "sanitize", "draw"):
        # Nothing is timed. PyTorch's threads then sleep as soon as they have nothing to do, instead
        # of keeping a core busy for a while, which the CPU backend's threads and compilers need.
        # libgomp reads this when it is loaded.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    options, root = RunOptions.of(vars(args)), args.days
    if args.list:
        return list_days(args.selected, root)
    if args.doctor:
        from common.run import doctor

        return doctor.main(colour=args.colour)
    if args.editor:
        from common.run import editor

        return editor.main(root.parent)
    if args.diff:
        from common.run import reports

        first, second = args.diff
        return reports.show_diff(args.selected, first, second, root, args.colour)
    if args.new:
        number, title = args.new
        return new_day(number, title, root)
    if args.compare:
        from common.run import reports

        (old, new), threshold = args.compare, args.threshold / 100
        return reports.compare_reports(old, new, threshold, args.html, root, args.colour)
    if args.merge or args.source or ((args.write or args.html) and not args.selected):
        from common.run import reports

        files = args.merge or ([args.source] if args.source else [])
        store_in = root.parent if args.write else None
        return reports.use_reports(files, store_in, args.json, args.colour, args.html, root)
    if args.practice:
        return practise(args, options)
    if not args.selected:
        if args.mode != "run" or args.json:
            p.error("name a day, a range, a topic, or all; --list shows what there is")
        from common.run.selection import overview

        print(overview(root))
        return 0
    if args.mode == "mutants":
        return mutants(args, options)

    from common.run import command

    return command.run(options)


def practise(args: argparse.Namespace, options: RunOptions) -> int:
    """Run `--practice` and the options that belong to it."""
    from common.run import practising

    if args.in_process:
        return practising.debug(options, args.practice)
    wish = practising.Wish(args.practice, **{name: getattr(args, name) for name in LEARNER})
    return practising.practise(options, wish)


def mutants(args: argparse.Namespace, options: RunOptions) -> int:
    """Run `--mutants`."""
    from common.mutants.campaign import Choice
    from common.run import mutate

    seed = mutate.today_as_seed() if args.seed is None else args.seed
    return mutate.run(options, Choice(args.all_mutants, args.sample, seed, args.fresh))


def list_days(selected: list[str], root: Path) -> int:
    """Run `--list`."""
    from common.run.selection import listing

    text, broken = listing(selected, root)
    if text:
        print(text)
    for each in broken:
        print(f"not a proper day: {each}", file=sys.stderr)
    return 1 if broken else 0


def new_day(number: str, title: str, root: Path) -> int:
    """Run `--new`."""
    from common.run.new_day import new_day as make

    for path in make(number, title, root):
        print(f"wrote {path}")
    print(f"next: python run_day.py {int(number)} --device cpu")
    return 0


def replace_closed_streams() -> None:
    """Replace closed streams, before anything runs."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell (>&-): the next file would get its number
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
            setattr(sys, name, os.fdopen(fd, "w", closefd=False, encoding="utf-8"))
        else:  # a terminal that knows ASCII alone shows "?" for "×"
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    replace_closed_streams()
    if "--in-process" not in sys.argv:  # which a tool watches
        from common.run.supervisor import go_on_supervised

        go_on_supervised()
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        code = 141  # the reader (head, less) has gone: as the shell names a death by SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename:
            raise
        code = 1  # the output goes to a disk that is full
        print(f"run_day.py: no more output can be written: {error.strerror}", file=sys.stderr)
    if "--in-process" in sys.argv:
        sys.exit(code)  # the tool that watches this process reports at its orderly end
    # Without taking torch apart, which takes a third of a second.
    os._exit(code)
