"""A training: the text, the steps by one captured graph, its checkpoints, and samples."""

import hashlib
import json
import lzma
import math
import os
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from common.base.cache import digest
from common.report.files import write_atomically

from .model import BETAS, EPS, Model, first_weights

TEXT = Path(__file__).with_name("shakespeare.txt.xz")
SMALL = Path(__file__).with_name("shakespeare.gpt")  # a trained model, see README
MAGIC = b"hundred days of CUDA, day 86, checkpoint 1\n"
HELD_BACK = 0.1  # share of the text, its end, that no step sees


@cache
def characters():
    """The text, and its characters in order: a token is a place in them."""
    text = lzma.decompress(TEXT.read_bytes()).decode()
    return text, "".join(sorted(set(text)))


def tokens_of(text):
    """uint8. Raises ValueError for a character that Shakespeare has not."""
    known = {c: i for i, c in enumerate(characters()[1])}
    for c in text:
        if c not in known:
            raise ValueError(f"prompt: {c!r} is no character of the text")
    return torch.tensor([known[c] for c in text], dtype=torch.uint8)


def read_tokens(path, plan):
    """Return the tokens of a file of 16-bit numbers, as nanoGPT's prepare.py writes them: int32.
    Raise ValueError for a file that the plan cannot be trained on, and OSError."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise ValueError(f"expected a file, got {path}, which is none")
    content = Path(path).read_bytes()
    least = math.ceil((plan.positions + 1) / HELD_BACK)  # a sequence of the part held back
    if len(content) % 2 or len(content) < 2 * least:
        raise ValueError(
            f"{path}: expected at least {least} numbers of 16 bits, got {len(content)} bytes"
        )
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint16).int()
    if (most := int(tokens.max())) >= plan.words:
        raise ValueError(f"{path}: expected tokens below {plan.words}, the words, got {most}")
    return tokens


def text_of(tokens):
    """Return what a plan calls this text: "" for the characters, None."""
    return "" if tokens is None else digest([tokens.numpy().tobytes()])


@dataclass(frozen=True)
class Plan:
    """What a training depends on, beside its rung. batch: sequences per step, each of
    model.positions tokens. steps: after which the learning rate, a cosine after `warmup` steps,
    is a tenth of `rate`. decay: AdamW's weight decay. seed: of the first weights and of all
    batches. words: of the vocabulary, by default the characters. text: see text_of."""

    layers: int = 6
    heads: int = 6
    positions: int = 256
    batch: int = 64
    steps: int = 2000
    rate: float = 1e-3
    decay: float = 4.0
    warmup: int = 100
    seed: int = 86
    words: int = 65
    text: str = ""

    def model(self):
        return Model(self.layers, self.heads, -(-self.words // 8) * 8, self.positions)

    def schedule(self):
        """The learning rate of each step."""

        def rate(t):
            if t < self.warmup:
                return self.rate * (t + 1) / self.warmup
            share = (t - self.warmup) / max(1, self.steps - self.warmup)
            return self.rate * (0.55 + 0.45 * math.cos(math.pi * share))

        return torch.tensor([rate(t) for t in range(self.steps)])


def fastest_rung(device):
    """v3 has instructions of Hopper alone."""
    hopper = device.type == "cpu" or torch.cuda.get_device_capability(device) == (9, 0)
    return "train_step_v3_epilogues" if hopper else "train_step_v2_fused"


class CheckpointError(ValueError):
    """A file that is no checkpoint, is damaged, or belongs to another training."""


class Training:
    """Buffers of a model in training. The number of the step and the seed are the whole random
    state: batches are drawn by Philox from these two. text: tokens, those of plan.text; None: the
    characters."""

    KEPT = ("weights", "masters", "exp_avg", "exp_avg_sq", "step")

    def __init__(self, operators, plan, device, rung="", graph=True, text=None):
        self.operators, self.plan = operators, plan
        self.rung = getattr(operators, rung or fastest_rung(device))
        self.model = plan.model()
        generator = torch.Generator().manual_seed(plan.seed)
        self.masters = first_weights(self.model, generator, device)
        self.weights = self.masters.bfloat16()
        self.grads, self.exp_avg, self.exp_avg_sq = (
            torch.zeros_like(self.masters) for _ in range(3)
        )
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.schedule = plan.schedule().to(device)
        if plan.text != text_of(text):
            raise ValueError("text: expected the one that the plan names")
        text = tokens_of(characters()[0]) if text is None else text
        kept = len(text) - int(HELD_BACK * len(text))
        self.text, self.held_back = text[:kept].to(device), text[kept:].to(device)
        shape = plan.batch, plan.positions + 1
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.losses: torch.Tensor  # of the last step
        self.graph, self.captures = None, graph and device.type == "cuda"

    @property
    def steps_done(self):
        return int(self.step)

    def one_step(self):
        self.operators.draw_batch(self.text, self.step, self.tokens, self.plan.seed)
        self.losses = self.rung(
            self.weights, self.masters, self.grads, self.exp_avg, self.exp_avg_sq, self.step,
            self.schedule, self.tokens, *self.model.numbers, *BETAS, EPS, self.plan.decay,
        )  # fmt: skip

    def capture(self):
        """One step as a graph. It is not executed; its losses are where each replay writes them."""
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.one_step()

    def run(self, steps, every=0):
        """So many steps. Returns the mean losses of every `every`-th, (step, loss)."""
        found, done = [], self.steps_done
        for i in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.one_step()
            if every and (i + 1) % every == 0:
                found.append((done + i + 1, self.losses.mean()))
            if self.captures and self.graph is None:
                self.capture()  # the first step has made what the libraries make once
        return [(step, float(loss)) for step, loss in found]

    def logits(self, tokens):
        return self.operators.gpt_logits(self.weights, tokens, *self.model.numbers)

    def held_back_loss(self, batches=8):
        """Of sequences that lie evenly in the part of the text that no step sees."""
        length = self.plan.positions + 1
        count = min(batches * self.plan.batch, len(self.held_back) // length)
        starts = torch.linspace(0, len(self.held_back) - length, count).long().tolist()
        total = 0.0
        for first in range(0, count, self.plan.batch):
            rows = [self.held_back[s : s + length] for s in starts[first : first + self.plan.batch]]
            tokens = torch.stack(rows).long()
            logits = self.logits(tokens[:, :-1].contiguous()).float()
            total += float(
                F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
            )
        return total / (count * self.plan.positions)

    def sample(self, count, seed=0, prompt="\n", temperature=0.8):
        """So many characters after the prompt. The same seed gives the same ones."""
        if self.plan.text:
            raise ValueError("sample: tokens are written by day 100, which has a tokeniser")
        if count < 0:
            raise ValueError(f"sample: expected 0 or more characters, got {count}")
        if not temperature > 0:
            raise ValueError(f"temperature: expected a positive number, got {temperature}")
        if not prompt:
            raise ValueError("prompt: expected at least one character")
        generator = torch.Generator().manual_seed(seed)
        known = characters()[1]
        tokens = tokens_of(prompt).long().tolist()
        for _ in range(count):
            last = torch.tensor([tokens[-self.plan.positions :]], device=self.step.device)
            logits = self.logits(last)[0, -1, : len(known)].double().cpu()
            chances = (logits / temperature).softmax(0)
            tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
        return "".join(known[t] for t in tokens[-count:]) if count else ""

    # ---------------------------------------------------------------- checkpoints

    def save(self, path, kept=KEPT):
        """Write the training as a file: a line that says what it is, the SHA-256 of the rest, a
        line with the plan, and the buffers. An interrupted save leaves the old file as it was.
        kept: the buffers; ("weights",) is enough to use the model, and a seventh of the bytes.
        Raise ResultsError, which names the file."""
        parts = {}
        for name in kept:
            parts[name] = getattr(self, name).cpu().view(torch.uint8).numpy().tobytes()
        sizes = {name: len(part) for name, part in parts.items()}
        header = json.dumps({"plan": asdict(self.plan), "bytes": sizes}).encode() + b"\n"
        content = header + b"".join(parts.values())
        checksum = hashlib.sha256(content).hexdigest().encode() + b"\n"
        write_atomically(Path(path), MAGIC + checksum + content)

    @classmethod
    def resume(cls, path, operators, device, **options):
        """Return the training of a checkpoint; options: of Training. Raises CheckpointError, which
        names the file, and OSError."""
        plan, parts = read_checkpoint(path)
        training = cls(operators, plan, device, **options)
        for name, part in parts.items():
            buffer = getattr(training, name)
            if len(part) != buffer.numel() * buffer.element_size():
                raise CheckpointError(f"{path}: {name} has {len(part)} bytes, which do not fit")
            buffer.copy_(torch.frombuffer(bytearray(part), dtype=buffer.dtype))
        return training


def read_checkpoint(path, needed=Training.KEPT):
    """Return the plan, and the bytes of each buffer. needed: buffers that must be there. Raise
    CheckpointError, and OSError."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise CheckpointError(f"expected a checkpoint, got {path}, which is no file")
    whole = Path(path).read_bytes()
    if not whole.startswith(MAGIC):
        raise CheckpointError(f"{path}: is no checkpoint of day 86")
    content = whole[len(MAGIC) + 65 :]
    if whole[len(MAGIC) :][:64] != hashlib.sha256(content).hexdigest().encode():
        raise CheckpointError(f"{path}: is damaged, its checksum does not match its content")
    parts, at = {}, 0
    try:
        header, payload = content.split(b"\n", 1)
        described = json.loads(header)
        for name, size in described["bytes"].items():
            parts[name] = payload[at : at + size]
            at += size
        plan = Plan(**described["plan"])
        fits = len(parts["weights"]) == 2 * plan.model().parameters()
        weights = torch.frombuffer(bytearray(parts["weights"]), dtype=torch.bfloat16)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is no checkpoint of day 86: {error}") from None
    if missing := [name for name in needed if name not in parts]:
        raise CheckpointError(f"{path}: holds weights only, without {', '.join(missing)}")
    if at != len(payload) or not fits:
        raise CheckpointError(f"{path}: its plan does not belong to its weights")
    if not weights.isfinite().all():
        raise CheckpointError(f"{path}: its weights are not finite numbers")
    return plan, parts


def default_model():
    """Return the file of the model that programs take by default: the best one of a training in the
    current folder, or the small one of this repository."""
    own = Path("gpt.best.checkpoint")
    if not own.is_file():
        return SMALL
    print(f"model: {own}, which day 86 has trained here", file=sys.stderr)
    return own
