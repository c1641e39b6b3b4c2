"""What the day's `show` proves: draws with the right chances, and one text for one seed."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

from common.day import print_table, seconds
from days.day86 import model as characters
from days.day86.training import Plan, Training, read_checkpoint

from . import model
from .generate import stream
from .weights import Weights, character_vocabulary, from_checkpoint

WAYS = {"all": (6.0, 0, 1.0), "top-k 5": (6.0, 5, 1.0), "top-p 0.7": (6.0, 0, 0.7)}
# A chi-square with d degrees of freedom exceeds d + 8 sqrt(2 d) by chance less than once in 10^4
# times, and with each seed of this proof either always or never.
DEVIATIONS = 8


def little(device, layers=1, heads=1, words=11, positions=48):
    """Random weights whose logits lie a few units apart."""
    generator = torch.Generator().manual_seed(100)
    C = 64 * heads

    def drawn(*shape, scale):
        return (scale * torch.randn(shape, generator=generator)).bfloat16().to(device)

    vectors = drawn(layers, 13 * C, scale=0.1)
    vectors[:, :C] += 1
    vectors[:, 6 * C : 7 * C] += 1
    last = torch.cat([torch.ones(C), torch.zeros(C)]).bfloat16().to(device)
    matrices = (
        drawn(layers, rows, columns, scale=columns**-0.5)
        for rows, columns in ((3 * C, C), (C, C), (4 * C, C), (C, 4 * C))
    )
    tensors = drawn(words, C, scale=0.2), drawn(positions, C, scale=0.2), vectors, last, *matrices
    return Weights(tensors, heads)


def shortened(weights, positions):
    """Return the same model with its first positions only."""
    wte, wpe, *others = weights.tensors
    return Weights((wte, wpe[:positions].clone(), *others), weights.heads)


def chances(logits, temperature, top_k, top_p):
    allowed = model.kept(logits, temperature, top_k, top_p)
    return (logits.double() / temperature).masked_fill(~allowed, -torch.inf).softmax(-1)


def print_draws(operators, device):
    """Raises RuntimeError where words are drawn more or less often than they should be."""
    weights, count = little(device, layers=0), 3000 if device.type == "cuda" else 200
    token, rows = torch.tensor([3], device=device), []
    cache = weights.new_cache()
    for name, way in WAYS.items():
        found = torch.zeros(len(weights.tensors[0]))
        for seed in range(count):
            tokens, logits = operators.decode_v2_inside(*weights.tensors, cache, token, 2, 1, *way,
                                                        seed)  # fmt: skip
            found[int(tokens)] += 1
        expected = count * chances(logits[0].cpu(), *way)
        inside = expected > 0
        square = float(((found - expected)[inside] ** 2 / expected[inside]).sum())
        free = int(inside.sum()) - 1
        limit = free + DEVIATIONS * (2 * free) ** 0.5
        rows.append([name, f"{int(inside.sum())} of {len(found)}", f"{square:.1f}", f"{limit:.1f}"])
        if found[~inside].any() or not square < limit:
            raise RuntimeError(f"{name}: drawn {found.tolist()}, expected {expected.tolist()}")
    print_table([f"{count} draws", "words kept", "chi-square", "limit"], rows)


PROMPT, WAY = [1, 5, 2, 7, 3], (1.5, 8, 0.95)


def print_texts(operators, device):
    """Raises RuntimeError where the number of tokens per launch changes a token, where a stop token
    is not the last one, or where a window that slides changes the tokens before."""
    weights, prompt, way = little(device), PROMPT, WAY
    count = 40 if device.type == "cuda" else 8
    at_once = list(stream(operators, weights, prompt, count, way, 7, count))
    for chunk in (1, 5):
        tokens = list(stream(operators, weights, prompt, count, way, 7, chunk))
        if tokens != at_once:
            raise RuntimeError(f"{chunk} tokens per launch: {tokens} instead of {at_once}")
    stop = at_once[3]
    stopped = list(stream(operators, weights, prompt, count, way, 7, 5, stop))
    if stopped != at_once[: at_once.index(stop) + 1]:
        raise RuntimeError(f"stopped at {stop}: {stopped} instead of the beginning of {at_once}")
    few = shortened(weights, 8)  # full after 4 tokens: position 7 makes the last one
    slid = list(stream(operators, few, prompt, count, way, 7))
    same = 8 - len(prompt) + 1
    if len(slid) != count or slid[:same] != at_once[:same]:
        raise RuntimeError(f"with 8 positions: {slid} instead of {at_once[:same]} and others")
    kept = [*prompt, *slid[:same]][-4:]
    after = list(stream(operators, few, kept, 2, way, 8))
    if slid[same : same + 2] != after:
        raise RuntimeError(f"after the window slid: {slid[same:]} instead of {after}")
    print(f"with 8 positions, the window slides after {same} tokens, which stay the same")
    print(f"{count} tokens, the same by 1, 5 and {count} per launch; a stop token ends the text")


def check_checkpoint():
    """Raises RuntimeError where a checkpoint's model has other logits than day 86's."""
    plan = Plan(layers=2, heads=2, positions=24, batch=1, steps=1)
    rungs = SimpleNamespace(train_step_v2_fused=None, train_step_v3_epilogues=None)
    training = Training(rungs, plan, torch.device("cpu"))
    training.weights.add_(0.1 * torch.randn(len(training.weights)))  # no bias stays 0
    with tempfile.TemporaryDirectory() as folder:
        training.save(Path(folder) / "checkpoint")
        weights = from_checkpoint(*read_checkpoint(Path(folder) / "checkpoint", ("weights",)))
    prompt = character_vocabulary().encode("To be, or not to be")
    views = training.model.views(training.weights.double())
    theirs = characters.forward(training.model, views, torch.tensor([prompt]))[0, -1]
    tensors = [t.double() for t in (*weights.tensors, weights.new_cache())]
    ours = model.prefill(*(*tensors, torch.tensor(prompt)))
    if not torch.allclose(ours, theirs[: len(ours)], atol=1e-9):
        raise RuntimeError("a checkpoint's model has other logits than day 86's")
    print(f"a checkpoint of day 86: the same logits of {len(ours)} characters")


def show(operators, device):
    print_draws(operators, device)
    print_texts(operators, device)
    check_checkpoint()


def show_times(operators, device):
    """On a GPU, prints how fast a small model streams."""
    if device.type == "cuda":
        weights = little(device)
        each = seconds(lambda: list(stream(operators, weights, PROMPT, 40, WAY)), 3) / 40
        print(f"streamed: {1 / each:,.0f} tokens per second of a model of one layer")
