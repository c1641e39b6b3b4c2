"""What the day's `show` proves: absorbed weights compute the same; and what a cache costs."""

import torch

from common.day import print_table

from .latent import RANK, ROPE

HEADS, TOKENS, PLAIN = 128, 200, 128  # PLAIN: elements of q, k and v per head, without the position
LAYERS = 61  # of DeepSeek-V3
BYTES = 2  # per element
FAR = 1e-12  # of the largest output: what float64 leaves of another order of the sums
FAR_HALF = 0.03  # where q, the latent vectors and o are rounded to bf16


def layer(generator):
    """One layer for one new token, in float64: the latent vectors c (TOKENS, RANK) and the rotated
    keys (TOKENS, ROPE) of its sequence; the weights that make keys and values of them, each (HEADS,
    PLAIN, RANK); and the queries of the token, in two parts."""

    def drawn(*shape, by=1.0):
        return torch.randn(shape, generator=generator, dtype=torch.float64) / by

    root = RANK**0.5
    up_keys, up_values = (drawn(HEADS, PLAIN, RANK, by=root) for _ in range(2))
    return (
        *(drawn(TOKENS, RANK), drawn(TOKENS, ROPE), up_keys, up_values),
        *(drawn(HEADS, PLAIN), drawn(HEADS, ROPE)),
    )


def plain(c, rotated, up_keys, up_values, q, q_rotated):
    """With the keys and the values of each head: (HEADS, PLAIN)."""
    keys = torch.cat([c @ up_keys.mT, rotated.expand(HEADS, -1, -1)], -1)
    values = c @ up_values.mT
    scores = torch.cat([q, q_rotated], -1)[:, None] @ keys.mT * SCALE
    return (scores.softmax(-1) @ values)[:, 0]


def absorbed(c, rotated, up_keys, up_values, q, q_rotated, attend=None):
    """With W_UK applied to the queries and W_UV to the sum: no keys and values are computed.
    attend: (queries, cache) -> o (HEADS, RANK), by default in float64."""
    queries = torch.cat([(q[:, None] @ up_keys)[:, 0], q_rotated], -1)
    cache = torch.cat([c, rotated], -1)
    attend = attend or in_float64
    return (attend(queries, cache)[:, None] @ up_values.mT)[:, 0]


def in_float64(queries, cache):
    return (queries @ cache.mT * SCALE).softmax(-1) @ cache[:, :RANK]


SCALE = (PLAIN + ROPE) ** -0.5


def by_rung(operator, device):
    def attend(queries, cache):
        q, rows = (x[None].to(device, torch.bfloat16) for x in (queries, cache))
        lengths = torch.full((1,), TOKENS, dtype=torch.int32, device=device)
        return operator(q, rows, lengths, SCALE)[0].to("cpu", torch.float64)

    return attend


def show(operators, device):
    """Raises RuntimeError where absorbed weights change more than rounding does."""
    one = layer(torch.Generator().manual_seed(79))
    truth = plain(*one)
    print("largest difference to keys and values of every head, relative to the largest output:")
    ways = {"absorbed, float64": (None, FAR)}
    for name in ("mla_v2_mma", "mla_v4_even"):
        ways[f"{name}, bf16"] = (by_rung(getattr(operators, name), device), FAR_HALF)
    for name, (attend, far) in ways.items():
        try:
            error = float((absorbed(*one, attend=attend) - truth).abs().max() / truth.abs().max())
        except RuntimeError as refused:
            if "this card lacks" not in str(refused):
                raise
            continue
        print(f"  {name:20} {error:.0e}")
        if error > far:
            raise RuntimeError(f"{name}: {error:.1e} is more than {far:.0e}")
    print()
    print_costs()


def print_costs():
    """Elements per token and layer, of 128 heads. Keys of multi-head attention have 192."""
    kinds = {
        "128 heads of keys and values": HEADS * (PLAIN + ROPE + PLAIN),
        "8 heads of keys and values": 8 * (PLAIN + ROPE + PLAIN),
        "latent": RANK + ROPE,
    }
    rows = []
    for name, elements in kinds.items():
        tokens = 80e9 / (elements * BYTES * LAYERS)
        rows.append((name, elements, elements * BYTES, f"{tokens / 1e3:.0f}"))
    print_table(("cache", "elements", "bytes", "thousand tokens in 80 GB"), rows)
    print(f"per token and layer in bf16; {LAYERS} layers")
