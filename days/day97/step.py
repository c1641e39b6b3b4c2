"""A training step of GPT-2, recorded without memory: when each tensor is allocated and freed.

Fake tensors have a shape and no memory. A dispatch mode sees each operator's results; a finalizer
on a storage is called when its last tensor, saved ones included, is gone.
"""

import json
import math
import weakref
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from .traces import ALLOCATE, Trace, as_tensor

GPT2 = {"layers": 12, "channels": 768, "words": 50257, "positions": 1024, "batch": 8}
HEAD = 64  # channels of a head


@dataclass(frozen=True)
class Way:
    """How a step is written. chunks: of the rows of the loss. grads_kept: zeroed, not freed."""

    activation: str = "gelu"
    checkpoints: bool = False
    chunks: int = 1
    grads_kept: bool = False
    optimizer: str = "fused"


PLAIN, LEAN = "plain", "checkpoints, loss in 32 chunks"
WAYS = {
    PLAIN: Way(),
    "gradients zeroed, not freed": Way(grads_kept=True),
    "ReLU instead of GELU": Way("relu"),
    "ReLU in place": Way("relu_"),
    "loss in 8 chunks": Way(chunks=8),
    "checkpoints": Way(checkpoints=True),
    LEAN: Way(checkpoints=True, chunks=32),
    "the same, foreach optimizer": Way(checkpoints=True, chunks=32, optimizer="foreach"),
}


class Layer(nn.Module):
    def __init__(self, channels, way):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.activation = getattr(F, way.activation)

    def forward(self, x):
        batch, positions, channels = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, positions, 3, -1, min(HEAD, channels))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class GPT(nn.Module):
    """GPT-2, whose head has the weights of its embedding."""

    def __init__(self, layers, channels, words, positions, way):
        super().__init__()
        self.way = way
        self.words, self.places = nn.Embedding(words, channels), nn.Embedding(positions, channels)
        self.layers = nn.ModuleList(Layer(channels, way) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.places.weight
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.way.checkpoints else layer(x)
        rows, targets = self.norm(x).flatten(0, 1), targets.flatten()
        if self.way.chunks == 1:
            return self.loss(rows, targets)
        parts = zip(rows.chunk(self.way.chunks), targets.chunk(self.way.chunks), strict=True)
        return sum(checkpoint(self.loss, *part, use_reentrant=False) for part in parts)

    def loss(self, rows, targets):
        return F.cross_entropy(F.linear(rows, self.words.weight), targets, reduction="sum")


class Recorder(TorchDispatchMode):
    """Events (+number, bytes) and (-number, bytes) of storages 1, 2, …, in their order."""

    def __init__(self):
        super().__init__()
        self.events, self.numbers, self.seen = [], {}, 0

    def watch(self, result):
        if not isinstance(result, torch.Tensor):
            return
        storage = result.untyped_storage()
        key = storage._cdata
        if key in self.numbers or storage.nbytes() == 0:
            return
        self.seen += 1
        number, size = self.seen, storage.nbytes()
        self.numbers[key] = number
        self.events.append((number, size))

        def freed():
            del self.numbers[key]
            self.events.append((-number, size))

        weakref.finalize(storage, freed).atexit = False

    def number_of(self, tensor):
        return self.numbers[tensor.untyped_storage()._cdata]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self.watch(leaf)
        return result


FILE = Path(__file__).parent / "results/show/steps.json"  # what show records, for replays
CATEGORIES = ("parameters", "optimizer state", "gradients", "activations", "others")


@dataclass
class Step:
    """Of the second step. resident: bytes of what lives before it and after it, with categories.
    events: (number, bytes), then (-number, bytes). categories: of each number. parts: the events
    with which the forward and the backward pass end."""

    resident: list[tuple[int, str]]
    events: list[tuple[int, int]]
    categories: dict[int, str]
    parts: tuple[int, int]

    def memory(self):
        """Bytes by category after each event."""
        now = dict.fromkeys(CATEGORIES, 0)
        for size, category in self.resident:
            now[category] += size
        found = []
        for number, size in self.events:
            now[self.categories[abs(number)]] += size if number > 0 else -size
            found.append(dict(now))
        return found

    def peak(self, first=0):
        """The event at which most is allocated, from the first one on."""
        memory = self.memory()
        return max(range(first, len(memory)), key=lambda i: sum(memory[i].values()))

    def part_of(self, event):
        forward, backward = self.parts
        return "forward" if event < forward else "backward" if event < backward else "optimizer"


def record(way, layers, channels, words, positions, batch):
    with FakeTensorMode(), Recorder() as recorder:
        model = GPT(layers, channels, words, positions, way)
        tokens = torch.zeros(batch, positions, dtype=torch.int64)
        # fused: no temporary tensors. foreach: one operator after the other on all parameters
        kind = way.optimizer
        optimizer = torch.optim.AdamW(
            model.parameters(), fused=kind == "fused", foreach=kind == "foreach"
        )
        for _ in range(2):
            began = len(recorder.events)
            loss = model(tokens, tokens)
            middle = len(recorder.events)
            loss.backward()
            ended = len(recorder.events)
            gradients = {recorder.number_of(p.grad) for p in model.parameters()}
            optimizer.step()
            optimizer.zero_grad(set_to_none=not way.grads_kept)
            del loss
        parameters = {recorder.number_of(p) for p in model.parameters()}
        state = {
            recorder.number_of(t)
            for each in optimizer.state.values()
            for t in each.values()
            if isinstance(t, torch.Tensor)
        }
        events = list(recorder.events)
    alive = {}
    for number, size in events[:began]:
        if number > 0:
            alive[number] = size
        else:
            del alive[-number]
    freed = {-number: i for i, (number, _) in enumerate(events) if number < 0}

    def category(number, first=0):
        if number in parameters:
            return "parameters"
        if number in state:
            return "optimizer state"
        if number in gradients:
            return "gradients"
        saved = began <= first < middle <= freed.get(number, 0)
        return "activations" if saved else "others"

    categories = {n: category(n, i) for i, (n, _) in enumerate(events) if n > 0}
    resident = [(size, categories[number]) for number, size in alive.items()]
    return Step(resident, events[began:], categories, (middle - began, ended - began))


# ---------------------------------------------------------------- the file, and traces of it


def as_json(steps):
    """Of each step: resident blocks and, of the step itself, [bytes, category] where a block is
    allocated and its number, from 0 on, where it is freed."""
    text = {}
    for name, step in steps.items():
        numbers = [number for number, _ in step.events if number > 0]
        places = {number: i for i, number in enumerate(numbers)}
        events = [
            [size, CATEGORIES.index(step.categories[n])] if n > 0 else places[-n]
            for n, size in step.events
        ]
        resident = [[size, CATEGORIES.index(category)] for size, category in step.resident]
        text[name] = {"resident": resident, "parts": step.parts, "events": events}
    return json.dumps(text, separators=(",", ":")).replace('"events"', '\n"events"') + "\n"


@cache
def stored(name):
    """The step of that name in the file."""
    found = json.loads(FILE.read_text(encoding="utf-8"))[name]
    events, sizes, categories = [], [], {}
    for event in found["events"]:
        if isinstance(event, list):
            sizes.append(event[0])
            categories[len(sizes)] = CATEGORIES[event[1]]
            events.append((len(sizes), event[0]))
        else:
            events.append((-event - 1, sizes[event]))
    resident = [(size, CATEGORIES[category]) for size, category in found["resident"]]
    return Step(resident, events, categories, tuple(found["parts"]))


def step_rows(name, steps, shrink=1, until=None):
    """What lives all the time, then the step so many times, each size divided by `shrink` and
    rounded up; until: only so many events of the last one."""
    step, trace = stored(name), Trace()
    for size, _ in step.resident:
        trace.allocate(math.ceil(size / shrink))
    for turn in range(steps):
        ids = {}
        for number, size in step.events[: until if turn == steps - 1 else None]:
            if number > 0:
                ids[number] = trace.allocate(math.ceil(size / shrink))
            else:
                trace.free(ids.pop(-number))
    return as_tensor(trace.rows)


def step_trace(draw, *args):
    """The same as a host array of a problem; nothing in it is drawn."""
    draw(0, device="cpu")
    return step_rows(*args)


# ---------------------------------------------------------------- what a replay is timed beside


def by_pytorch(trace, touch, keep):
    """Requests to PyTorch's caching allocator, or on the CPU to torch.empty, and what `replayed`
    returns where no byte is touched."""
    if touch or bool((trace[:, 0] > 1).any()):
        raise ValueError("trace: expected only blocks that no kernel touches")
    if torch.cuda.is_available():
        stream = torch.cuda.current_stream().cuda_stream

        def allocate(size):  # what torch.cuda.caching_allocator_alloc calls
            return torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream)

        free = torch._C._cuda_cudaCachingAllocator_raw_delete
    else:

        def allocate(size):
            return torch.empty(size, dtype=torch.uint8)

        def free(block):
            del block

    at = {}
    for kind, id, size, _ in trace.tolist():
        if kind == ALLOCATE:
            at[id] = allocate(size)
        else:
            free(at.pop(id))
    for block in at.values():
        free(block)
    kinds, ids, sizes, _ = trace.unbind(1)
    change = torch.where(kinds == ALLOCATE, sizes, -sizes[ids])
    return torch.zeros_like(sizes), change.cumsum(0)
