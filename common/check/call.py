"""Make one guarded call of a rung, and judge its results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from common.base.declaration import Case, Problem, Rung
from common.base.figures import counted
from common.base.outcome import WRITTEN_OUTSIDE, Mistake
from common.base.paths import ROOT
from common.check.compare import Mismatch, compare, same_values
from common.check.device import Watched
from common.check.expected import (
    Expected,
    Signature,
    map_tensors,
    message_of,
    passed_on,
    places_of,
    tensors_of,
)
from common.check.guard import GuardedAllocations, GuardedMemory, bits, near_host, values_of
from common.check.host_state import unchanged
from common.check.lacks import Lacking, lacking
from common.check.patterns import NO_LOOK, Look

if TYPE_CHECKING:
    from common.check.device import Backend


@dataclass(frozen=True)
class Failure:
    """A failed check. summary: one line that names the case. details: lines that explain it.
    example: lines that show one tiny case in full (common/check/tiny_case.py). values: an output
    has the right shape and dtype, but wrong elements."""

    summary: str
    details: list[str] = field(default_factory=list)
    example: list[str] = field(default_factory=list)
    values: bool = False

    def __str__(self) -> str:
        lines = [f"    {line}" for line in (*self.details, *self.example)]
        return "\n".join([self.summary, *lines])

    def about(self, case: Case | str) -> Failure:
        """Return the same failure with the case in front of its summary."""
        return replace(self, summary=f"{case}: {self.summary}")


@dataclass
class Call:
    """One call of a rung that returned: its arguments after the call, and its outputs. left: the
    state of the process that it changed, in words."""

    args: tuple[Any, ...]
    outputs: list[Tensor]
    names: list[str]
    memory: GuardedMemory
    watched: Watched = field(default_factory=Watched)
    foreign: list[str] = field(default_factory=list)
    modified: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def storage_of(tensor: Tensor) -> int:
    """Return the address of the memory that the tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


def outputs_of(
    result: Any, args: tuple[Any, ...], signature: Signature
) -> tuple[list[Tensor], list[str]]:
    """Return the outputs as `common.check.expected` defines them, and their names in messages."""
    returned = tensors_of(result)
    outputs = list(returned)
    many = len(returned) > 1
    names = [f"output {place}" if many else "the output" for place in range(len(returned))]
    for place in signature.writes:
        title, single = f"argument {signature.names[place]}", isinstance(args[place], Tensor)
        for number, argument in enumerate(tree_leaves(args[place])):
            if not isinstance(argument, Tensor):
                continue
            itself = title if single else f"{title}, tensor {number}"
            for i, tensor in enumerate(returned):
                shared = tensor.numel() and storage_of(tensor) == storage_of(argument)
                if tensor is argument or shared:
                    names[i] = f"{itself}, returned"
                    break
            else:
                outputs.append(argument)
                names.append(itself)
    return outputs, names


def call_guarded(
    call: Callable[..., Any],
    signature: Signature,
    args: tuple[Any, ...],
    backend: Backend,
    variant: int = 0,
    on_host: bool = False,
    into: Call | None = None,
    key: str = "",
    other_device: int | None = None,
    late: bool = False,
    pinned: bool = False,
) -> Call:
    """Call a rung on copies of `args` in guarded memory; its allocations are guarded as well.

    variant: content of fresh memory, see `GuardedMemory`. on_host: see `Backend.watching`. into: an
    earlier call, whose arguments' memory is reused for the copies if they fit. key: see
    `GuardedAllocations`. other_device: position of the argument that is on another GPU than the
    rest (of a list, its last tensor). late: on the CPU backend, streams run their work as late as
    legal, including the copy that sets the arguments' values. pinned: these count host arrays as
    pinned. Raise what the call raises, and the error that the device reports after it.
    """
    copies = _copied_into(into, args) if into is not None else None
    if copies is not None:
        assert into is not None
        memory = into.memory
    else:
        memory = GuardedMemory(backend.device, variant, backend.namer())
        copies = _copies(memory, args, signature)
    written = [f"argument {signature.names[place]}" for place in signature.writes]
    placed = (
        nullcontext()
        if other_device is None
        else backend.on_other_device(tree_leaves(copies[other_device])[-1])
    )
    mode = GuardedAllocations(memory, backend, written, key)
    arriving = _taken_out(copies) if late else None
    left: list[str] = []
    with (
        backend.watching(
            None if late else lambda runtime: memory.add_arguments(runtime, written),
            on_host,
            arriving,
            pinned,
        ) as seen,
        placed,
        torch.no_grad(),
        mode,
        unchanged(left),
    ):
        result = call(*copies)
    backend.synchronize()
    outputs, names = outputs_of(result, copies, signature)
    for tensor, name in zip(outputs, names, strict=True):
        if tensor.device.type != "meta" and not name.startswith("argument"):
            memory.rename(tensor, name)
    if seen.device_left >= 0:
        left.append(f"current device: {seen.device_left} was set, and not the one before again")
    return Call(copies, outputs, names, memory, seen, mode.foreign, mode.modified, left)


def _copies(memory: GuardedMemory, args: tuple[Any, ...], signature: Signature) -> tuple[Any, ...]:
    copies = list(args)
    for place, value in enumerate(args):
        name = f"argument {signature.names[place]}"
        copies[place] = map_tensors(
            lambda tensor, name=name: (
                memory.copy_of(tensor, name) if tensor.device.type != "meta" else tensor
            ),
            (value,),
        )[0]
    return tuple(copies)


def _taken_out(args: tuple[Any, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return each contiguous tensor with a copy of its values, after overwriting the tensor."""
    pairs = []
    for leaf in tree_leaves(args):
        if isinstance(leaf, Tensor) and leaf.device.type != "meta" and leaf.is_contiguous():
            pairs.append((leaf, leaf.clone()))
            bits(leaf).fill_(-1)  # NaN, where it is a float
    return pairs


def _copied_into(earlier: Call, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return an earlier call's arguments with the values of `args`, or None if they do not fit."""
    leaves, structure = tree_flatten(args)
    places = tree_leaves(earlier.args)
    if len(places) != len(leaves):
        return None
    for i, (place, leaf) in enumerate(zip(places, leaves, strict=True)):
        if isinstance(leaf, Tensor) != isinstance(place, Tensor):
            return None
        if isinstance(leaf, Tensor):
            if leaf.device.type == "meta" or not earlier.memory.refill(place, leaf):
                return None
            leaves[i] = place
    return tree_unflatten(leaves, structure)


def side_effects(done: Call, before: tuple[Any, ...], signature: Signature) -> Failure | None:
    """Return a failure if the call wrote memory that it must not write, or left the process in
    another state."""
    if done.left:
        return Failure("the call changed the state of the process", done.left)
    outside = done.memory.violations()
    if outside:
        hint = (
            "hint: is the index computed as it should be, and does each thread check that it is "
            "inside the tensor before it stores?"
        )
        return Failure(WRITTEN_OUTSIDE, [*outside, hint])
    kept = [
        (signature.names[place], mine, theirs)
        for place, (now, was) in enumerate(zip(done.args, before, strict=True))
        if place not in signature.writes
        for mine, theirs in zip(tree_leaves(now), tree_leaves(was), strict=True)
        if isinstance(mine, Tensor) and mine.device.type != "meta"
    ]
    changes = [bits(mine) != bits(theirs) for _, mine, theirs in kept]
    modified = values_of([changed.any() for changed in changes])
    for (name, mine, theirs), changed, wrong in zip(kept, changes, modified, strict=True):
        if wrong:
            index = tuple(changed.nonzero()[0].tolist())
            return Failure(
                f"argument {name} was modified, and the schema does not mark it as written",
                [
                    f"{int(changed.sum()):,} of {changed.numel():,} elements, the first at "
                    f"{index}: {theirs[index].item()} became {mine[index].item()}"
                ],
            )
        for output, title in zip(done.outputs, done.names, strict=True):
            if output.numel() and storage_of(output) == storage_of(mine):
                return Failure(f"{title} shares its memory with argument {name}")
    return None


def not_a_kernels(
    done: Call, rung: Rung, backend: Backend, on_host: bool = False
) -> Failure | None:
    """Return a failure if the result was not computed by the operator's own kernels."""
    if done.modified:
        return Failure(
            "an argument was written that the schema does not mark as written, and was restored",
            done.modified,
        )
    if done.watched.touched:
        return Failure(
            "host code touched memory of the device",
            [
                done.watched.touched,
                "on a GPU that is an illegal access: let a kernel, or an asynchronous copy, do it",
            ],
        )
    foreign = [name for name in done.foreign if name.split(".")[1] not in rung.calls]
    if foreign:
        return Failure(
            f"the operator calls {', '.join(foreign)}: PyTorch's kernels compute, not its own",
            [
                "a launcher may allocate, fill, copy and view tensors; if more is the point, the "
                "rung names it in `calls`"
            ],
        )
    arguments = [leaf for leaf in tree_leaves(done.args) if isinstance(leaf, Tensor)]
    empty = any(argument.numel() == 0 for argument in arguments) or all(
        output.numel() == 0 for output in done.outputs
    )
    # A function in Python may compute anywhere, as a simulator does.
    counts = backend.watches_calls and rung.of_library
    if counts and not (done.watched.work or empty or on_host):
        return Failure(
            "it gave a result, but launched no kernel, and copied or filled nothing on the device",
            ["the result was computed on the host, or kept from an earlier call"],
        )
    return None


def judge(
    problem: Problem,
    expected: Expected,
    outputs: Sequence[Tensor],
    names: Sequence[str],
    signature: Signature,
    samples: Callable[[], Sequence[Expected]] = tuple,
    strides: bool = True,
    looks: Sequence[Look] = (),
    drawn: bool = False,
) -> Failure | None:
    """Compare outputs with the expected results.

    samples: returns the expected results of further inputs, for PyTorch's error; called only if an
    output fails without them. strides: a returned tensor must have PyTorch's strides; an argument
    keeps its strides. looks: further facts about each output, for the explanation. drawn: see
    `compare`.
    """
    pairs = expected.pairs(len(outputs))
    if pairs is None:
        return Failure(
            f"the rung gives {counted(len(outputs), 'tensor')} ({', '.join(names) or 'none'}), "
            f"the reference {len(expected.returned)}"
        )

    rules = (problem.tolerance, problem.outputs_exact, tuple(names), strides, drawn)
    if expected.accepts(outputs, rules):
        return None

    def mismatch(place: int, against: int) -> Mismatch | None:
        got, (truth, own) = outputs[place], pairs[against]
        if not strides or names[place].startswith("argument"):
            got, truth, own = got.contiguous(), truth.contiguous(), own.contiguous()
        more = list(expected.rough[against : against + 1])
        look = looks[place] if looks else NO_LOOK
        how = problem.tolerance, problem.outputs_exact
        found = compare(got, truth, own, *how, more, look, drawn)
        further = samples() if found is not None and found.kind == "values" else ()
        for sample in further:
            others = sample.pairs(len(outputs)) or []
            more += [*others[against : against + 1], *sample.rough[against : against + 1]]
        if further:
            found = compare(got, truth, own, *how, more, look, drawn)
        return found

    for place, name in enumerate(names):
        found = mismatch(place, place)
        if found is None:
            continue
        details = list(found.details)
        for other in range(len(outputs)):
            if other != place and mismatch(place, other) is None:
                details.insert(0, f"hint: it is what {names[other]} should be: swapped?")
                break
        for position, argument in enumerate(expected.args):
            output, its = outputs[place], f"argument {signature.names[position]}"
            if not isinstance(argument, Tensor) or argument.device != output.device:
                continue
            itself = name.split(",")[0] == its
            if (argument.numel() > 1 or itself) and same_values(argument, output):
                seen = "nothing was written: it holds what it held before the call"
                details.insert(0, f"hint: {seen if itself else f'it is {its} unchanged'}")
                break
        return Failure(f"{name}: {found.summary}", details, values=found.kind == "values")
    expected.accept(outputs, rules)
    return None


# The prefix that STD_TORCH_CHECK adds to a message if the check is in a helper: not the line that
# went wrong.
_OF_A_HELPER = re.compile(r"^\S+, common/cuda/\S+:\d+, ")


def raised(error: Exception, where: str = "") -> Failure:
    """Return the failure of a call that raised; where: prefix of its summary, ends in a comma and a
    blank.

    Raise Lacking if the message reports that the card lacks something.
    """
    if lacks := lacking(message_of(error)):
        raise Lacking(lacks) from error
    cause = passed_on(error)
    lines = message_of(cause).replace(f"{ROOT}/", "").splitlines()
    if isinstance(cause, Mistake):
        return Failure(f"{where}{lines[0]}", lines[1:])
    lines[0] = _OF_A_HELPER.sub("", lines[0])
    kind = "" if type(cause) in (RuntimeError, Exception) else f"{type(cause).__name__}: "
    return Failure(f"{where}it raised {kind}{lines[0]}", lines[1:] + places_of(cause, True))


def first_difference(
    before: Sequence[Tensor], after: Sequence[Tensor], names: Sequence[str]
) -> str | None:
    """Return the first bitwise difference of two lists of tensors as text (all NaN are equal), or
    None."""
    near = near_host([*before, *after])
    for old, new, name in zip(near[: len(before)], near[len(before) :], names, strict=True):
        if same_values(old, new):
            continue
        if old.shape != new.shape or old.dtype != new.dtype:
            return f"{name}: {old.dtype} {tuple(old.shape)} and {new.dtype} {tuple(new.shape)}"
        different = bits(old) != bits(new)
        index = tuple(different.nonzero()[0].tolist())
        return (
            f"{name}: {int(different.sum()):,} of {different.numel():,} elements, the first at "
            f"{index}: {old[index].item()!r} and {new[index].item()!r}"
        )
    return None
