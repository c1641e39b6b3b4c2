"""Time the rungs of a problem and PyTorch, interleaved, and compare the rates with ceilings.

Contenders are called in turn, a b c a b c, because a GPU lowers its clock under load, and those
timed later in a row would look slower. Before each timed call the L2 cache is overwritten, so
that inputs come from memory, and so that a kernel pays for the write-back of dirty lines as it
does in a running program. The copy that defines the ceiling pays for it too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from time import perf_counter, sleep  # before a day can replace them
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from common.base.ceilings import Ceilings, share_of
from common.base.declaration import Case, Cost, Library, Problem, Rung
from common.base.outcome import HOST_CLOCK, Skip, Timing
from common.base.rivals import not_installed
from common.base.targets import PYTORCH
from common.bench.fresh_inputs import TRIES, draw_into, fill, too_slow
from common.bench.host_time import host_microseconds
from common.bench.showing import wake_gpu
from common.check.device import Backend
from common.check.draw import Draw
from common.check.expected import (
    Expected,
    evaluate,
    map_tensors,
    message_of,
    samples_needed,
    signature_of,
    tensors_of,
)
from common.check.lacks import lacking
from common.check.random_case import SEED_VARIABLE, session_seed
from common.check.rungs import check_outputs

THOROUGH, ON_CPU, QUICK = 1.0, 0.1, 0.05  # seconds of samples per rung, at most
RECOMPILED = 64  # shapes and dtypes for which torch.compile compiles one function
WAKE = 0.3  # seconds of other work before the first sample, if time allows
LONG = 20e-3  # seconds; one call longer than this is enough to choose how it is timed
SHORT = 20e-6  # seconds; a shorter call is timed in a batch, since events would add to its time
MARGIN = 1.10  # a rate above the ceiling by more than this factor is a measuring fault
USUAL_BALANCE = 15  # operations per byte above which arithmetic bounds, if no ceiling is known
CPU_MARGIN = 4.0  # the same on the CPU, against a copy of as many bytes, caches included
CPU_AGAIN = 20  # times that a copy is measured again before a rate counts as too high
MIN_ROUNDS, MAX_ROUNDS = 10, 200
PRECISE = 0.003  # stop when the median's error is below this share


class MeasuringFault(Exception):
    """A time that cannot be right, such as a rate above the machine's ceiling."""


@dataclass
class Contender:
    """A call to time. run: one timed unit, which makes `calls` calls. samples: seconds per call.

    output: returns the last call's result; arguments: those of that call; both are checked again.
    restore: resets, before each unit, the arguments that the last one wrote. refill: gives all
    arguments the values of the problem's inputs. once: makes one call.
    call: the callable itself, kept because a CUDA graph reads memory that it holds.
    """

    name: str
    run: Callable[[], None]
    calls: int
    note: str
    host_timed: bool
    output: Callable[[], Any]
    arguments: tuple[Any, ...]
    restore: Callable[[], None]
    refill: Callable[[], None]
    once: Callable[[], None]
    call: Callable[..., Any]
    samples: list[float] = field(default_factory=list)


class Untimed(str):
    """The reason why the card cannot run the rung on the timing case: not a failure."""


def time_problem(
    problem: Problem,
    calls: dict[str, Callable[..., Any]],
    backend: Backend,
    ceilings: Ceilings | None,
    fallback: Callable[[], str] = lambda: "",
    *,
    quick: bool = False,
    lesser_card: bool = False,
    stage: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing | str]:
    """Time the rungs in `calls` (by name) and PyTorch on the problem's timing case.

    ceilings: the GPU's, None if unknown. fallback: returns, after a call, the rung whose kernel
    did the work instead ("" for none): then the time is not the rung's. lesser_card: the rungs may
    fall back because the card lacks something. stage: called with a name for each part of the work
    after the samples are taken.
    Return for each rung its Timing, or the reason why its time cannot be trusted (a wrong result
    afterwards, a rate above the ceiling); Untimed if the card lacks what the rung needs.
    Raise MeasuringFault if PyTorch's own call fails.
    """
    case = problem.timing_case(backend.name)
    seconds = QUICK if quick else ON_CPU if backend.name == "cpu" else THOROUGH
    inputs = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
    rungs = {rung.name: rung for rung in problem.rungs if rung.name in calls}
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if backend.name == "cuda" else 0
    writes = _written(problem, calls)
    step = _training_step if problem.gradients else _as_it_is
    contenders, fell_back = [], {}
    results: dict[str, Timing | str] = {}
    fallback()
    for name, rung in rungs.items():
        try:
            contenders.append(_prepare(backend, rung, step(calls[name], inputs), inputs, writes))
        except RuntimeError as error:
            if not (lacks := lacking(message_of(error))):
                raise
            results[name] = Untimed(lacks)
        fell_back[name] = fallback()
    assert problem.pytorch is not None  # see load_lesson
    plain = Rung(
        PYTORCH,
        "",
        not_captured=problem.pytorch_not_captured,
        host_timed=any(rung.host_timed for rung in rungs.values()),
    )
    try:
        call = step(problem.pytorch, inputs)
        contenders.append(_prepare(backend, plain, call, inputs, writes, baseline=True))
    except RuntimeError as error:
        raise MeasuringFault(
            "PyTorch's own call cannot be timed; if it is one that no CUDA graph can hold, the "
            f"problem says why in pytorch_not_captured: {str(error).splitlines()[0]}"
        ) from error
    missing: dict[str, str] = {}
    for each in _libraries(problem, backend, quick):
        if reason := not_installed(each.name):
            missing[each.name] = reason
            continue
        call = library_call(problem, each)
        other = Rung(each.name, "", not_captured=each.not_captured, host_timed=plain.host_timed)
        try:
            call = step(call, inputs)
            changes = sorted({*writes, *each.writes})
            contenders.append(_prepare(backend, other, call, inputs, changes, baseline=True))
        except Exception as error:  # a Skip, or the library's own failure: the rungs go on
            missing[each.name] = _why(error)

    clock = _Clock(backend)
    clock.interleave(contenders, seconds)

    stage("comparing what was timed")
    medians = {c.name: statistics.median(c.samples) for c in contenders}
    own = [c for c in contenders if c.name in rungs]
    # A baseline may have prepared a part of these inputs, so it is compared before others come.
    differences = {
        baseline.name: {
            c.name: differs(baseline.output(), c.output(), problem.own_numbers) for c in own
        }
        for baseline in contenders
        if baseline.name not in rungs
    }
    slow = _on_fresh_inputs(problem, case, clock, inputs, own, medians)
    expected = cache(partial(evaluate, problem, inputs))

    @cache
    def samples(writes: tuple[int, ...]) -> list[Expected]:
        numbers = range(1, 1 + samples_needed(problem, expected(writes)))
        drawn = (problem.inputs(case, Draw(case, backend, seed, fast=True)) for seed in numbers)
        return [evaluate(problem, each, writes) for each in drawn]

    wrong = {
        c.name: check_outputs(problem, calls[c.name], expected, samples, c.arguments, c.output())
        for c in own
        if not fell_back[c.name]
    }
    right = [name for name, failure in wrong.items() if failure is None]
    for name, found in differences.items():
        if right and all(found[rung] for rung in right):
            difference = found[right[-1]]
            if name == PYTORCH:
                raise MeasuringFault(f"pytorch= does not compute what the rungs do: {difference}")
            del medians[name]
            missing[name] = difference
    host: dict[str, float] = {}
    if backend.name == "cuda" and not quick:
        launching = {
            c.name: calls[c.name]
            for c in contenders
            if c.name in wrong and not rungs[c.name].host_timed
        }
        if launching:
            launching[PYTORCH] = problem.pytorch
            stage("timing the host")
            host = host_microseconds(problem, launching, backend, step, fallback)
    cost = problem.cost(case)
    fastest = cpu_copy_rate(cost.bytes) if backend.name == "cpu" else None
    for contender in contenders:
        if contender.name not in rungs:
            continue
        if to := fell_back[contender.name]:
            results[contender.name] = (
                Untimed(f"on this card it falls back to {to}")
                if lesser_card
                else f"timed on a case for which it fell back to {to}"
            )
            continue
        if (failure := wrong[contender.name]) is not None:
            again = f"{SEED_VARIABLE}={session_seed()} repeats it"
            results[contender.name] = f"wrong after timing ({again}): {failure}"
            continue
        if contender in slow:
            median = medians[contender.name]
            kept = _still_slow(problem, case, clock, inputs, contender, median)
            if kept:
                results[contender.name] = kept
                continue
        timing = Timing(
            case=str(case),
            ms=medians[contender.name] * 1e3,
            spread=_spread(contender.samples),
            samples=len(contender.samples),
            pytorch_ms=medians[PYTORCH] * 1e3,
            libraries={
                each.name: medians[each.name] * 1e3
                for each in problem.libraries
                if each.name in medians
            },
            missing=missing,
            host_us=host.get(contender.name),
            pytorch_host_us=host.get(PYTORCH),
            note=contender.note,
        )
        try:
            rate(timing, cost, ceilings, 0 if contender.host_timed else l2_bytes)
            if fastest is not None:
                fastest = check_cpu_rate(timing, fastest, cost.bytes)
        except MeasuringFault as fault:
            results[contender.name] = str(fault)
        else:
            results[contender.name] = timing
    return results


def _why(error: Exception) -> str:
    """Return the reason why a library was not timed, in a line."""
    first = next(iter(message_of(error).splitlines()), "")
    return first if isinstance(error, Skip) else f"{type(error).__name__}: {first}"


def _written(problem: Problem, calls: dict[str, Callable[..., Any]]) -> list[int]:
    """Return the positions of arguments that a rung writes: each contender gets copies of them,
    since PyTorch's call may write them too."""
    signatures = [signature_of(call, problem.reference) for call in calls.values()]
    return sorted({place for signature in signatures for place in signature.writes})


def _libraries(problem: Problem, backend: Backend, quick: bool) -> tuple[Library, ...]:
    """Return the libraries to time: all on a GPU, none on the CPU or if `quick`."""
    return problem.libraries if backend.name == "cuda" and not quick else ()


def library_call(problem: Problem, library: Library) -> Callable[..., Any]:
    """Return the library's call; torch.compile reuses a function that it has compiled before."""
    if library.call is not None:
        return library.call
    assert problem.pytorch is not None
    from torch._dynamo import config  # here: the import takes a second

    # From the ninth shape of a function on, torch.compile would call it uncompiled without a word.
    config.recompile_limit, config.fail_on_recompile_limit_hit = RECOMPILED, True
    compiled: Callable[..., Any] = torch.compile(problem.pytorch, dynamic=False)
    return compiled


def warm_up(
    problem: Problem,
    calls: dict[str, Callable[..., Any]],
    backend: Backend,
    *,
    quick: bool = False,
) -> str:
    """Call everything that `time_problem` times once, while other days may run on the GPU, so that
    a first call's compilation, loading and tuning take no time of the day's turn.

    A call that fails here fails again there, and is reported there. Return the name of a library
    that left the device in an error, which all later calls would report; "" if none did.
    """
    case = problem.timing_case(backend.name)
    step = _training_step if problem.gradients else _as_it_is
    assert problem.pytorch is not None
    with suppress(Exception):
        inputs = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
        writes = _written(problem, calls)
        for call in (*calls.values(), problem.pytorch):
            with suppress(Exception):
                step(call, inputs)(*_with_copies(inputs, writes))
        backend.synchronize()
        for each in _libraries(problem, backend, quick):
            with suppress(Exception):
                call = step(library_call(problem, each), inputs)
                call(*_with_copies(inputs, [*writes, *each.writes]))
            try:
                backend.synchronize()
            except RuntimeError:
                return each.name
    return ""


def rate(timing: Timing, cost: Cost, ceilings: Ceilings | None, l2_bytes: int = 0) -> None:
    """Fill in GB/s, TFLOP/s, and which ceiling bounds this cost with the share of it.

    l2_bytes: size of the GPU's second-level cache. Raise MeasuringFault if the rate is above the
    ceiling.
    """
    seconds = timing.ms / 1e3
    timing.gbs = cost.bytes / seconds / 1e9 if cost.bytes else None
    timing.tflops = cost.flops / seconds / 1e12 if cost.flops else None
    if not (cost.bytes or cost.flops):
        return
    known = ceilings.rates if ceilings else {}
    if "copy" in known and cost.unit in known:
        balance = 1e3 * known[cost.unit] / known["copy"]
    else:
        balance = USUAL_BALANCE
    arithmetic = cost.flops > balance * cost.bytes
    if not arithmetic and cost.bytes < 4 * l2_bytes:
        timing.note += ", mostly in L2"  # so the memory bandwidth does not bound it
        return
    timing.bound = cost.unit if arithmetic else "copy"
    timing.share = share_of(timing, ceilings)
    if timing.share is None:
        return
    # Reading alone is faster than copying, for the memory bus need not turn around.
    more = 1.0 if arithmetic else max(1.0, known.get("read", 0.0) / known["copy"])
    if timing.share > MARGIN * more:
        raise MeasuringFault(
            f"{timing.share:.2f} of the {timing.bound} ceiling: no kernel is that fast, "
            "so the time or the declared cost is wrong"
        )


def cpu_copy_rate(moved: int) -> float | None:
    """Return the rate in GB/s of a copy that moves `moved` bytes, read and written, from memory or
    from a cache that holds them; None if they are so few that the call itself takes longer.

    PyTorch copies on all cores, NumPy on one, which does not wait for others that are busy.
    """
    if moved < 1 << 16:
        return None
    source = torch.zeros(moved // 2, dtype=torch.uint8)
    target = torch.zeros_like(source)
    on_all_cores = partial(target.copy_, source)
    on_one = partial(np.copyto, target.numpy(), source.numpy())
    seconds = []
    for copy in (on_all_cores, on_one) * 5:
        start = perf_counter()
        copy()
        seconds.append(perf_counter() - start)
    return moved / min(seconds) / 1e9


def check_cpu_rate(timing: Timing, fastest: float, moved: int) -> float:
    """Raise MeasuringFault for a rate on the CPU that its memory and caches cannot reach.

    fastest: rate in GB/s of a copy of `moved` bytes. Before a rate counts as too high the copy is
    measured again, since other programs may have slowed it. Return the highest of these rates.
    """
    for _ in range(CPU_AGAIN):
        if timing.gbs is None or timing.gbs <= CPU_MARGIN * fastest:
            return fastest
        sleep(0.02)
        fastest = max(fastest, cpu_copy_rate(moved) or fastest)
    raise MeasuringFault(
        f"{timing.gbs:.0f} GB/s, where a copy of as many bytes reaches {fastest:.0f}: the data was "
        "not read and written in each call (a result that is kept?), or the declared cost is wrong"
    )


FAR = 0.05  # of the norm: a baseline may round more, but must compute the same


def differs(other: Any, ours: Any, own_numbers: bool = False) -> str:
    """Return how the result of a baseline differs from a rung's, or "" if they are about equal.

    A baseline may return fewer outputs. Arguments written in place are not compared. own_numbers:
    the baseline draws other random numbers, so only the norms have to be about equal.
    """
    for their, our in zip(tensors_of(other), tensors_of(ours), strict=False):
        if their.shape != our.shape:
            return f"its result has the shape {tuple(their.shape)}, not {tuple(our.shape)}"
        x, y = their.to(our.device).float(), our.float()
        size = _norm(y.nan_to_num(0, 0, 0))
        if own_numbers:
            if not abs(_norm(x) - size) <= FAR * size:
                return f"its result has the norm {float(_norm(x)):.3g}, not {float(size):.3g}"
            continue
        distance = _norm((x - y).masked_fill_((x == y) | (x.isnan() & y.isnan()), 0))
        if not distance <= FAR * size:  # also of NaN
            return f"its result differs by {float(distance / size):.0%} of the norm"
    return ""


def _norm(x: torch.Tensor) -> torch.Tensor:
    """Return the norm, computed in float64: the squares of 64-bit integers overflow fp32."""
    return torch.linalg.vector_norm(x, dtype=torch.float64)


Step = Callable[..., Any]  # called with a problem's arguments


def _as_it_is(call: Step, inputs: tuple[Any, ...]) -> Step:
    return call


def _training_step(call: Step, inputs: tuple[Any, ...]) -> Step:
    """Return a step that runs the call's forward and backward pass and returns its outputs.

    The upstream gradients are drawn once, in the first step.
    """
    upstream: list[torch.Tensor] = []

    def step(*arguments: Any) -> Any:
        with torch.enable_grad():
            leaves = [_leaf(value) for value in arguments]
            result = call(*leaves)
            outputs = [t for t in tensors_of(result) if t.requires_grad]
            if not upstream:
                upstream.extend(torch.randn_like(output) for output in outputs)
            inputs_with_gradient = [
                x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad
            ]
            torch.autograd.grad(outputs, inputs_with_gradient, upstream)
        return map_tensors(torch.Tensor.detach, (result,))[0]

    return step


def _leaf(value: Any) -> Any:
    differentiable = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if differentiable else value


def _prepare(
    backend: Backend,
    rung: Rung,
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    writes: list[int],
    baseline: bool = False,
) -> Contender:
    """Return a contender. writes: positions of arguments that a call may write: it gets copies.

    baseline: if the call is long, time the faster of the graph and the call itself. A copy by
    cudaMemcpyAsync, such as that of torch.clone, is slower as a node of a graph.
    """
    last: list[Any] = [None]
    arguments = _with_copies(inputs, writes)

    def contender(
        run: Callable[[], None], calls: int, note: str, host_timed: bool, used: list[Any]
    ) -> Contender:
        def restore() -> None:
            for one in used:
                for place in writes:
                    pairs = zip(tree_leaves(one[place]), tree_leaves(inputs[place]), strict=True)
                    for mine, first in pairs:
                        if isinstance(mine, torch.Tensor):
                            mine.copy_(first)

        def refill() -> None:
            for one in used:
                for mine, first in zip(tree_leaves(one), tree_leaves(inputs), strict=True):
                    fill(mine, first)

        return Contender(
            name=rung.name,
            run=run,
            calls=calls,
            note=note,
            host_timed=host_timed,
            output=lambda: last[0],
            arguments=used[-1],
            restore=restore,
            refill=refill,
            once=once,
            call=call,
        )

    def with_inputs(arguments: tuple[Any, ...]) -> Callable[[], None]:
        def run() -> None:
            last[0] = call(*arguments)

        return run

    once = with_inputs(arguments)
    for _ in range(2):
        once()
    backend.synchronize()
    if backend.name == "cpu" or rung.host_timed:
        single = _host_seconds(backend, once)
        # Arguments that it writes cannot be restored between the calls of one unit.
        repeats = max(1, round(0.002 / single)) if backend.name == "cpu" and not writes else 1
        return contender(_repeat(once, repeats), repeats, HOST_CLOCK, True, [arguments])
    if rung.not_captured:
        return contender(once, 1, "events", False, [arguments])

    graph = _capture([once])
    single = _event_seconds(graph.replay)
    if single >= SHORT:
        by_call = baseline and _event_seconds(once) < single
        return contender(once if by_call else graph.replay, 1, "events", False, [arguments])
    # Each call of the batch has separate inputs, so that the cache does not hold the last call's.
    batch = min(32, max(2, round(10 * SHORT / single)))
    copies = [tuple(_clone(value) for value in inputs) for _ in range(batch)]
    graph = _capture([with_inputs(arguments) for arguments in copies])
    return contender(graph.replay, batch, f"graph of {batch} calls", False, copies)


def _with_copies(inputs: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
    return tuple(_clone(value) if i in places else value for i, value in enumerate(inputs))


def _clone(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tree_map(_clone, value)
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.clone()
    return copy.pin_memory() if value.is_pinned() else copy  # clone() gives pageable memory


def _repeat(call: Callable[[], None], repeats: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(repeats):
            call()

    return run


def _capture(calls: Iterable[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _host_seconds(backend: Backend, run: Callable[[], None]) -> float:
    backend.synchronize()
    start = perf_counter()
    run()
    backend.synchronize()
    return perf_counter() - start


def _between_events(run: Callable[[], None]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Make a call, and return the events that the GPU's stream records before and after it."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    return start, stop


def _event_seconds(run: Callable[[], None]) -> float:
    times: list[float] = []
    while len(times) < 5 and max(times, default=0.0) < LONG:
        start, stop = _between_events(run)
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times)


class _Clock:
    """The samples of contenders. Before each, a call overwrites the GPU's L2 cache; while it runs,
    the host queues the sample, whose launches then follow each other without a pause."""

    def __init__(self, backend: Backend):
        self.backend = backend
        self._flush: Callable[[], object] = lambda: None
        if backend.name == "cuda":
            l2 = torch.cuda.get_device_properties(0).L2_cache_size
            self._flush = torch.empty(4 * l2, dtype=torch.uint8, device="cuda").zero_

    def interleave(self, contenders: list[Contender], seconds: float) -> None:
        """Fill every contender's samples, round by round, until they are precise or time is up.

        seconds: per contender, at most.
        """
        if self.backend.name == "cuda":
            wake_gpu(min(WAKE, seconds))
        deadline = perf_counter() + seconds * len(contenders)
        for done in range(MAX_ROUNDS):
            if done >= MIN_ROUNDS and all(_precise(c.samples) for c in contenders):
                break
            if done >= 3 and perf_counter() > deadline:
                break
            pending = []
            for contender in contenders:
                contender.restore()
                self._flush()
                if contender.host_timed:
                    sample = _host_seconds(self.backend, contender.run) / contender.calls
                    contender.samples.append(sample)
                else:
                    pending.append((contender, *_between_events(contender.run)))
            self.backend.synchronize()
            for contender, start, stop in pending:
                contender.samples.append(start.elapsed_time(stop) / 1e3 / contender.calls)

    def seconds_once(self, contender: Contender) -> float:
        """Return the seconds of one call: by the host's clock, or of one unit by events."""
        self._flush()
        if contender.host_timed:
            return _host_seconds(self.backend, contender.once)
        start, stop = _between_events(contender.run)
        self.backend.synchronize()
        return start.elapsed_time(stop) / 1e3 / contender.calls


def _on_fresh_inputs(
    problem: Problem,
    case: Case,
    clock: _Clock,
    inputs: tuple[Any, ...],
    contenders: list[Contender],
    medians: dict[str, float],
) -> list[Contender]:
    """Run the rungs once more, on inputs that none has been given before, by which their outputs
    are judged. Return those that take far longer on them.

    If the problem has no other inputs of this layout, the outputs stay those of the last sample.
    """
    if not draw_into(problem, case, clock.backend, inputs):
        return []
    for contender in contenders:
        contender.refill()
    seconds = {c.name: clock.seconds_once(c) for c in contenders}
    return [c for c in contenders if too_slow(clock.backend, medians[c.name], seconds[c.name])]


def _still_slow(
    problem: Problem,
    case: Case,
    clock: _Clock,
    inputs: tuple[Any, ...],
    contender: Contender,
    median: float,
) -> str:
    """Return the message for a call that takes far longer on fresh inputs each time, or ""."""
    times = []
    for attempt in range(1, 1 + TRIES):
        draw_into(problem, case, clock.backend, inputs, attempt)
        contender.refill()
        times.append(clock.seconds_once(contender))
        if not too_slow(clock.backend, median, times[-1]):
            return ""
    return (
        f"a call takes {min(times) / median:.1f} times as long on inputs that it has not been "
        "given before: is a result kept?"
    )


def _spread(samples: list[float]) -> float:
    """Return half the interquartile range divided by the median."""
    if len(samples) < 4:
        return (max(samples) - min(samples)) / 2 / statistics.median(samples)
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle


def _precise(samples: list[float]) -> bool:
    # The median's standard error is about 1.25 σ/√n, and σ about 1.5 × the half-quartile range.
    return 1.9 * _spread(samples) / len(samples) ** 0.5 < PRECISE
