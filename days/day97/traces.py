"""Traces to try an allocator on, and where each strategy must place their blocks, by loops."""

import random
from itertools import pairwise
from types import SimpleNamespace

import torch

ALLOCATE, FREE, USE, SYNCHRONISE = range(4)
STREAMS = 4
MB = 1 << 20
LARGEST = 1 << 40
# Where strategies change their mind: a unit, a small block, a large one, a rest of a small block.
BORDERS = (512, MB, 10 * MB, 11 * MB)
LIVE, LATE = 1, 2  # states of a block; 0 is free

# ---------------------------------------------------------------- traces


class Trace:
    """Rows (kind, id, bytes, stream), and which ids are live."""

    def __init__(self):
        self.rows, self.live = [], []

    def allocate(self, size, stream=0):
        self.rows.append((ALLOCATE, len(self.rows), size, stream))
        self.live.append(len(self.rows) - 1)
        return self.live[-1]

    def free(self, id):
        self.live.remove(id)
        self.rows.append((FREE, id, 0, 0))

    def use(self, id, stream):
        self.rows.append((USE, id, 0, stream))

    def synchronise(self, stream):
        self.rows.append((SYNCHRONISE, 0, 0, stream))


def size_of(rng, largest):
    """Log-uniform, often at a border of ROUND, of a power of two or of a strategy."""
    if rng.random() < 0.2:
        return rng.choice([border for border in BORDERS if border <= largest] or [largest])
    size = int(2 ** rng.uniform(0, largest.bit_length() - 1))
    near = rng.choice((0, 0, 512, 1 << size.bit_length()))
    return max(0, (near and size // near * near) + rng.choice((-1, 0, 1)) if near else size)


def at_random(rng, rows, largest):
    """Any operation on any block, of any stream."""
    t = Trace()
    while len(t.rows) < rows:
        kind = rng.random()
        if not t.live or kind < 0.45:
            t.allocate(size_of(rng, largest), rng.randrange(STREAMS))
        elif kind < 0.8:
            t.free(rng.choice(t.live))
        elif kind < 0.95:
            t.use(rng.choice(t.live), rng.randrange(STREAMS))
        else:
            t.synchronise(rng.randrange(STREAMS))
    return t


def in_turns(rng, rows, largest, last_first):
    """Half of the rows allocate and half free, in the same order or in the opposite one."""
    t = Trace()
    for _ in range(rows // 2):
        t.allocate(size_of(rng, largest))
    for id in list(reversed(t.live) if last_first else t.live):
        t.free(id)
    return t


def adversarial(rng, rows, largest):
    """Equal blocks of which every second one is freed: no two of the holes are neighbours, and
    nothing that is larger fits. Then the others, which makes one piece of all."""
    t = Trace()
    size = max(1, largest // 4)
    ids = [t.allocate(size) for _ in range(rows // 4)]
    for id in ids[::2]:
        t.free(id)
    for _ in ids[:2]:
        t.allocate(size + 512)
    for id in ids[1::2]:
        t.free(id)
    while len(t.rows) < rows:
        t.allocate(rng.choice((size, 2 * size)))
    return t


def streamed(rng, rows, largest):
    """Each block is used by another stream and freed at once, and the next request would fit."""
    t = Trace()
    while len(t.rows) < rows:
        id = t.allocate(rng.randrange(largest // 2, largest), owner := rng.randrange(2))
        for stream in rng.sample(range(STREAMS), rng.randrange(1, 4)):
            t.use(id, stream)
        t.free(id)
        if rng.random() < 0.1:
            t.synchronise(1 - owner)
    return t


KINDS = {
    "random": at_random,
    "lifo": lambda *args: in_turns(*args, last_first=True),
    "fifo": lambda *args: in_turns(*args, last_first=False),
    "adversarial": adversarial,
    "streams": streamed,
}
NAMES = tuple(KINDS)


def as_tensor(rows):
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)


def drawn(case, draw, largest):
    """The trace of a case (rows, number of its kind), as a host array."""
    rows, kind = case.shape[:2]
    seed = int(draw(1, device="cpu", dtype="int64", low=0, high=1 << 30))
    return as_tensor(KINDS[NAMES[kind]](random.Random(seed), rows, largest).rows[:rows])


def checked(trace):
    """The rows as lists; raises ValueError for one that is not in order."""
    rows, live = trace.tolist(), set()
    for number, (kind, id, size, stream) in enumerate(rows):
        right = 0 <= kind <= 3 and 0 <= stream < STREAMS and 0 <= size <= LARGEST
        if kind == ALLOCATE:
            right = right and id == number
            live.add(id)
        elif kind != SYNCHRONISE:
            right = right and id in live
            if kind == FREE:
                live.discard(id)
        if not right:
            raise ValueError(f"trace: row {number} is not in order")
    return rows


# ---------------------------------------------------------------- what a replay must return


def byte_sum(id, count):
    """Of the first bytes of the pattern of a block."""
    word = 0xFFFFFFFF
    x = (id * 0x9E3779B1 + torch.arange(count) * 0x85EBCA77) & word
    x = ((x ^ (x >> 15)) * 0xC2B2AE3D) & word
    return int((x >> 24).sum())


def replayed(trace, touch, keep):
    """(sums, live): the sum of each row, the requested bytes that are live after it. keep changes
    nothing of it."""
    if touch < 0:
        raise ValueError("touch is negative")
    rows, live, now = checked(trace), set(), 0
    sums, requested = [0] * len(rows), []

    def summed(id):
        return byte_sum(id, min(rows[id][2], touch))

    for number, (kind, id, size, _) in enumerate(rows):
        if kind == ALLOCATE:
            live.add(id)
            now += size
        elif kind in (FREE, USE):
            sums[number] = summed(id)
            if kind == FREE:
                live.remove(id)
                now -= rows[id][2]
        requested.append(now)
    for id in live:
        sums[id] = summed(id)
    return torch.tensor(sums, dtype=torch.int64), torch.tensor(requested, dtype=torch.int64)


def by_threads(trace, threads):
    """Each of the threads gets all bytes that the trace requests."""
    if not 1 <= threads <= 64:
        raise ValueError("threads is not between 1 and 64")
    requested = sum(size for kind, _, size, _ in checked(trace) if kind == ALLOCATE)
    return torch.full((threads,), requested, dtype=torch.int64)


# ---------------------------------------------------------------- where blocks must be placed


def ceil(size, unit):
    return -(-size // unit) * unit


class Model:
    """A strategy by its rules: a list of blocks, and loops over all of them."""

    def __init__(self, version, limit):
        self.version, self.limit = version, limit
        self.blocks, self.waiting = [], []  # blocks in the order of their addresses
        self.next, self.allocated, self.reserved, self.calls = 2 * MB, 0, 0, 0
        self.waits = [0] * STREAMS  # how often the host waited for each stream

    def rounded(self, size):
        if self.version == 1:
            return size
        if self.version == 2:
            return max(512, 1 << (size - 1).bit_length())
        return ceil(size, 512)

    def find(self, size, stream):
        if self.version == 1:
            return None
        fitting = [
            b
            for b in self.blocks
            if b.state == 0
            and b.stream == stream
            and (b.size == size if self.version == 2 else b.size >= size)
            and (self.version == 2 or b.small == (size <= MB))
        ]
        return min(fitting, key=lambda b: (b.size, b.at), default=None)

    def grow(self, size, stream):
        room = size
        if self.version > 2:
            room = 2 * MB if size <= MB else 20 * MB if size < 10 * MB else ceil(size, 2 * MB)
        self.calls += 1
        if self.reserved + room > self.limit:
            return None
        block = SimpleNamespace(
            at=self.next, size=room, segment=self.next, room=room, stream=stream, state=0,
            small=size <= MB, readers=[],
        )  # fmt: skip
        self.next += ceil(room, 2 * MB)
        self.reserved += room
        self.blocks.append(block)
        return block

    def allocate(self, size, stream):
        if size == 0:
            return None
        rounded = self.rounded(size)
        self.reclaim(wait=False)
        block = self.find(rounded, stream) or self.grow(rounded, stream)
        if block is None:
            self.reclaim(wait=True)
            block = self.find(rounded, stream)
        if block is None:
            self.release()
            block = self.grow(rounded, stream)
        if block is None:
            raise MemoryError
        rest = block.size - rounded
        if self.version > 2 and (rest >= 512 if block.small else rest > MB):
            piece = SimpleNamespace(**vars(block) | {"at": block.at + rounded, "size": rest})
            piece.readers = []
            self.blocks.insert(self.blocks.index(block) + 1, piece)
            block.size = rounded
        block.state = LIVE
        self.allocated += block.size
        return block

    def free(self, block):
        self.allocated -= block.size
        if self.version == 1:
            self.give(block)
        elif self.version == 4 and block.readers:
            block.state = LATE
            self.waiting.append((block, [(r, self.waits[r]) for r in block.readers]))
        else:
            for reader in block.readers:
                self.wait(reader)
            self.keep(block)

    def wait(self, stream):
        self.calls += 1
        self.waits[stream] += 1

    def give(self, block):
        self.calls += 1
        self.reserved -= block.size
        self.blocks.remove(block)

    def keep(self, block):
        block.state, block.readers = 0, []
        if self.version > 2:
            place = self.blocks.index(block)
            for low, high in ((place, place + 1), (place - 1, place)):
                if low >= 0 and high < len(self.blocks):
                    a, b = self.blocks[low], self.blocks[high]
                    if a.state == b.state == 0 and a.segment == b.segment:
                        a.size += b.size
                        self.blocks.remove(b)

    def reclaim(self, wait):
        still = []
        for block, marks in self.waiting:
            while marks and (wait or self.waits[marks[-1][0]] > marks[-1][1]):
                if wait:
                    self.wait(marks[-1][0])
                marks.pop()
            if marks:
                still.append((block, marks))
            else:
                self.keep(block)
        self.waiting = still

    def release(self):
        for block in list(self.blocks):
            if block.state == 0 and block.size == block.room:
                self.give(block)


def placed(version, trace, limit):
    """(history, snapshot) of a strategy; raises AssertionError where two live blocks overlap."""
    if limit < 0:
        raise ValueError("limit is negative")
    model, blocks, history = Model(version, limit), {}, []
    for kind, id, size, stream in checked(trace):
        address = -1
        if kind == ALLOCATE:
            try:
                blocks[id] = model.allocate(size, stream)
                address = blocks[id].at if blocks[id] else 0
            except MemoryError:
                blocks[id] = None
        elif kind == FREE and blocks[id]:
            model.free(blocks[id])
        elif kind == USE and blocks[id] and stream != blocks[id].stream:
            if stream not in blocks[id].readers:
                blocks[id].readers.append(stream)
        elif kind == SYNCHRONISE:
            model.waits[stream] += 1
        history.append((address, model.allocated, model.reserved, model.calls))
        assert model.allocated <= model.reserved <= limit
        ends = [(b.at, b.at + b.size) for b in model.blocks]
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    found = [(b.segment, b.at, b.size, b.state) for b in model.blocks]
    return as_tensor(history), as_tensor(found)
