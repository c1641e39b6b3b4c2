"""Kepler's equation in PyTorch: the reference, and ways to solve it from host arrays."""

import functools

import torch

ECCENTRICITY = 0.8
STEPS = 80
STREAMS = 4


def solve(M):
    E = M
    for _ in range(STEPS):
        E = M + ECCENTRICITY * torch.sin(E)
    return E


def solve_into(M, E, chunk=0):
    """The rungs' function: writes E, however M is cut."""
    return E.copy_(solve(_gpu(M)))


def _gpu(M):
    on_host = M.device.type == "cpu" and torch.cuda.is_available()
    return M.cuda(non_blocking=True) if on_host else M


def eager(M, E, chunk):
    """On the GPU where there is one, step by step."""
    E.copy_(solve(_gpu(M)), non_blocking=True)


@functools.cache
def _compiled():
    return torch.compile(solve, dynamic=False)


def compiled(M, E, chunk):
    """All steps in one kernel, copies before and after it."""
    E.copy_(_compiled()(_gpu(M)), non_blocking=True)


_streams = []


def compiled_in_streams(M, E, chunk):
    """The same in chunks, in streams of PyTorch's."""
    if not _streams:
        _streams.extend(torch.cuda.Stream() for _ in range(STREAMS))
    current = torch.cuda.current_stream()
    for stream in _streams:
        stream.wait_stream(current)
    for i, (part, out) in enumerate(zip(M.split(chunk), E.split(chunk), strict=True)):
        with torch.cuda.stream(_streams[i % STREAMS]):
            out.copy_(_compiled()(_gpu(part)), non_blocking=True)
    for stream in _streams:
        current.wait_stream(stream)
