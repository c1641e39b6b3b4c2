"""A latent cache: how it is drawn, what attention over it is, and how PyTorch computes it."""

from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from common.day import Cost
from common.references.attention import attention_by, ragged_lengths, unused
from common.references.rivals import use_nvcc

RANK, ROPE = 512, 64
KEY = RANK + ROPE
SCALE = 0.07  # DeepSeek-V3: about 1 / sqrt(192), of the keys before they are absorbed


def inputs(case, draw):
    """Shape (B, H, T), with lengths as of day 76.

    What lies beyond the end of a sequence is NaN: no kernel may use it. Only q has the case's
    values: one NaN in the cache makes every output of its sequence NaN.
    """
    B, H, T = case.shape
    q = draw(B, H, KEY)
    cache = draw(B, T, KEY, values="normal")
    lengths = ragged_lengths(draw, B, T)
    if not draw.fast:
        cache.masked_fill_(unused(lengths, T)[:, :, None], torch.nan)
    return q, cache, lengths, SCALE


def reference(q, cache, lengths, scale):
    beyond = unused(lengths, cache.shape[1])
    rows = cache.to(q.dtype).masked_fill(beyond[:, :, None], 0)
    scores = (q @ rows.mT * scale).masked_fill(beyond[:, None], -torch.inf)
    o = scores.softmax(-1) @ rows[..., :RANK]
    return o.masked_fill((lengths <= 0)[:, None, None], 0)


def products(q, cache, lengths, scale):
    """Two products and a softmax: with all heads as the rows of a matrix, both products are large.
    The scale is applied to q, which is small. All sequences fill the cache: a mask would only cost
    time."""
    return (q * scale @ cache.mT).softmax(-1) @ cache[..., :RANK]


def sdpa(q, cache, lengths, scale):
    """PyTorch's choice of a backend. The heads are rows of one head, so that it need not read the
    cache once per head."""
    rows = cache[:, None]
    return F.scaled_dot_product_attention(q[:, None], rows, rows[..., :RANK], scale=scale)[:, 0]


def by(backend, q, cache, lengths, scale):
    """The same by one backend, which may refuse."""
    rows = cache[:, None]
    return attention_by(backend, q[:, None], rows, rows[..., :RANK], scale=scale)[:, 0]


flash = partial(by, SDPBackend.FLASH_ATTENTION)
cudnn = partial(by, SDPBackend.CUDNN_ATTENTION)


PAGE = 64  # tokens


@lru_cache(maxsize=1)
def planned(q, cache, lengths, scale):
    """FlashInfer's plan for a cache in pages, which lie in order; it is not timed."""
    use_nvcc()
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    B, H = q.shape[:2]
    sequences = torch.arange(B + 1, dtype=torch.int32, device=q.device)
    count = cache.shape[1] // PAGE
    pages = torch.arange(B * count, dtype=torch.int32, device=q.device)
    workspace = torch.empty(1 << 27, dtype=torch.uint8, device=q.device)
    wrapper = BatchMLAPagedAttentionWrapper(workspace)
    lengths = lengths.int()
    sizes = (H, RANK, ROPE, PAGE, False, scale, q.dtype, cache.dtype)
    wrapper.plan(sequences, sequences * count, pages, lengths, *sizes)
    return wrapper


def flashinfer(q, cache, lengths, scale):
    """For whole pages."""
    pages = cache.view(-1, PAGE, KEY)
    parts = (q[..., :RANK], q[..., RANK:], pages[..., :RANK], pages[..., RANK:])
    return planned(q, cache, lengths, scale).run(*parts)


def cost(case):
    """All sequences fill the cache."""
    B, H, T = case.shape
    elements = B * T * KEY + B * H * (KEY + RANK)
    return Cost(bytes=elements * case.itemsize, flops=2 * B * H * T * (KEY + RANK), unit="tensor")
