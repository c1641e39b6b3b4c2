"""A cache in pages: how it is drawn, what attention over it is, and how PyTorch computes it."""

from functools import lru_cache
from inspect import signature

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from common.day import Cost, Skip
from common.references.rivals import use_nvcc

SCALE = 0.1
SPARE = 2  # pages that belong to no sequence
WIDE = 256  # FlashAttention-2, which varlen_attn calls, takes pages of a multiple of 256 tokens


def lengths_of(case, shared):
    """Tokens per sequence, and how many pages the sequences have in common at the beginning."""
    B, _H, _G, M, size, _D = case.shape
    if shared:
        return [max(0, M * size - 3 * b) for b in range(B)], 7 * M // 8
    return [min(M * size, max(1, M * size // (b + 1) ** 2)) for b in range(B)], 0


def numbered(lengths, common, size):
    """The pages of each sequence, numbered from 0 on, and the tokens in each page."""
    rows, tokens = [], []
    for b, length in enumerate(lengths):
        row = []
        for i, begin in enumerate(range(0, length, size)):
            if b > 0 and i < common and i < len(rows[0]):
                row.append(rows[0][i])
            else:
                row.append(len(tokens))
                tokens.append(min(size, length - begin))
        rows.append(row)
    return rows, tokens


def inputs(shared, case, draw):
    """Shape (B, H, G, M, S, D), for a table of M pages of S tokens per sequence.

    Pages lie in random order. What belongs to no sequence is NaN, and unused places of the table
    are -1: no kernel may use them. A length may be below 0 or beyond the table, which counts as 0
    or as all of its pages. With "nonfinite" values, two sequences have pages that do not exist.
    Only q has the case's values: one NaN in a key makes every output of its head NaN.
    """
    B, H, G, M, size, D = case.shape
    on_host, common = lengths_of(case, shared)
    if not draw.fast and B == 1:
        on_host[0] = max(0, on_host[0] - 3)
    rows, tokens = numbered(on_host, common, size)
    P = len(tokens) + SPARE
    q = draw(B, H * G, D)
    keys, values = (draw(P, H, size, D, values="normal") for _ in range(2))
    order = draw(P, dtype="float32", low=0, high=1).argsort()
    table, lengths = (draw(*n, dtype="int32", low=0, high=1) for n in ((B, M), (B,)))
    lengths.copy_(torch.tensor(on_host, dtype=torch.int32))
    if not draw.fast and B > 2:
        lengths[0], lengths[1] = M * size + 5, 0 if B == 3 else -3
    if not draw.fast and B > 3:
        lengths[-1] = 0  # of 300, one that no block of an H200 sees first
    table.fill_(-1)
    for b, row in enumerate(rows):
        table[b, : len(row)] = order[row]
    if case.values == "nonfinite":
        table[2, 1], table[4, 0] = P, -1
    if not draw.fast:
        filled = torch.zeros(P, dtype=torch.int64, device=keys.device)
        filled[order[: len(tokens)]] = torch.tensor(tokens, device=keys.device).long()
        beyond = torch.arange(size, device=keys.device) >= filled[:, None]
        for pages in (keys, values):
            pages.masked_fill_(beyond[:, None, :, None], torch.nan)
    return q, keys, values, table, lengths, SCALE


def cost(shared, case):
    """A page that several sequences share is read once."""
    B, H, G, _M, size, D = case.shape
    lengths, common = lengths_of(case, shared)
    _rows, tokens = numbered(lengths, common, size)
    elements = 2 * H * sum(tokens) * D + 2 * B * H * G * D
    flops = 4 * H * G * sum(lengths) * D
    return Cost(bytes=elements * case.itemsize, flops=flops, unit="tensor")


def contiguous(pages, table):
    """(B, H, M · S, D), in one copy."""
    P, H, size, D = pages.shape
    heads = table.long()[:, None] * H + torch.arange(H, device=table.device)[:, None]
    return pages.reshape(P * H, size, D)[heads].flatten(2, 3)


def reference(q, key_pages, value_pages, table, lengths, scale):
    """A page that does not exist is one of NaN."""
    P, H, size, D = key_pages.shape
    table = table.where((table >= 0) & (table < P), P)
    nan = q.new_full((1, H, size, D), torch.nan)
    keys, values = (
        contiguous(torch.cat([pages.to(q.dtype), nan]), table) for pages in (key_pages, value_pages)
    )
    beyond = (torch.arange(keys.shape[2], device=q.device) >= lengths[:, None])[:, None, None]
    grouped = q.unflatten(1, (H, q.shape[1] // max(H, 1)))
    scores = torch.einsum("bhgd,bhtd->bhgt", grouped, keys) * scale
    p = scores.masked_fill(beyond, -torch.inf).softmax(-1)
    o = torch.einsum("bhgt,bhtd->bhgd", p, values.masked_fill(beyond[:, 0, :, :, None], 0))
    return o.flatten(1, 2).masked_fill((lengths <= 0)[:, None, None], 0)


@lru_cache(maxsize=1)
def known(lengths):
    """A server knows the lengths on the host: reading them is not timed."""
    return lengths.tolist()


@lru_cache(maxsize=1)
def planned(q, key_pages, table, lengths, scale):
    """FlashInfer's plan for these lengths, which a server makes once per token for all layers: it
    is not timed."""
    use_nvcc()
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    _, H, size, D = key_pages.shape
    counts = -(-lengths // size)
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    pages = table[torch.arange(table.shape[1], device=table.device) < counts[:, None]]
    workspace = torch.empty(1 << 27, dtype=torch.uint8, device=q.device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    types = {"q_data_type": q.dtype, "kv_data_type": key_pages.dtype}
    last = lengths - (counts - 1) * size
    wrapper.plan(ends, pages, last, q.shape[1], H, D, size, sm_scale=scale, **types)
    return wrapper


def flashinfer(q, key_pages, value_pages, table, lengths, scale):
    return planned(q, key_pages, table, lengths, scale).run(q, (key_pages, value_pages))


def one_by_one(q, key_pages, value_pages, table, lengths, scale):
    """Each sequence: its pages in one copy, then the FLASH backend, without a mask."""
    size, results = key_pages.shape[2], []
    for b, length in enumerate(known(lengths)):
        mine = table[b : b + 1, : -(-length // size)]
        k, v = (contiguous(pages, mine)[:, :, :length] for pages in (key_pages, value_pages))
        with_heads = q[b : b + 1, :, None]
        try:
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION] if q.is_cuda else [SDPBackend.MATH]):
                results.append(
                    F.scaled_dot_product_attention(with_heads, k, v, scale=scale, enable_gqa=True)
                )
        except RuntimeError as error:
            raise Skip(f"no FLASH_ATTENTION here: {error}") from error
    return torch.cat(results)[:, :, 0]


def masked(q, key_pages, value_pages, table, lengths, scale):
    """All sequences at once, padded to the longest one, with a mask. The heads of a group are rows
    of one head, which every backend takes."""
    table = table.clamp(min=0)
    k, v = (contiguous(pages, table) for pages in (key_pages, value_pages))
    seen = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
    grouped = q.unflatten(1, (k.shape[1], -1))
    mask = seen[:, None, None].expand(-1, -1, grouped.shape[2], -1)
    return F.scaled_dot_product_attention(grouped, k, v, mask, scale=scale).flatten(1, 2)


@lru_cache(maxsize=1)
def kept(table, *caches):
    return [contiguous(pages, table.clamp(min=0)) for pages in caches]


def day76(q, key_pages, value_pages, table, lengths, scale):
    """Day 76's kernel on a contiguous cache that was stored before."""
    keys, values = kept(table, key_pages, value_pages)
    return torch.ops.day76.gqa_v4_one_launch(q, keys, values, lengths, scale)


@lru_cache(maxsize=1)
def kept_wide(table, lengths, *caches):
    """Pages as varlen_attn takes them, (P, WIDE, H, D), and their table; where the queries and the
    tokens of each sequence begin. What is shared with the first sequence stays shared."""
    keys, values = (cache.transpose(1, 2).flatten(0, 1) for cache in kept(table, *caches))
    H, D = keys.shape[1:]
    groups = table.unflatten(1, (-1, WIDE // caches[0].shape[2]))
    own = torch.arange(groups[..., 0].numel(), device=table.device, dtype=torch.int32)
    own = own.view(groups.shape[:2])
    wide = torch.where((groups == groups[:1]).all(-1), own[:1], own)
    queries = torch.arange(len(table) + 1, device=table.device, dtype=torch.int32)
    tokens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return *(x.reshape(-1, WIDE, H, D) for x in (keys, values)), wide, queries, tokens


def varlen(q, key_pages, value_pages, table, lengths, scale):
    """PyTorch's own attention over pages, which were stored in its layout before."""
    if "block_table" not in signature(varlen_attn).parameters:
        raise Skip("varlen_attn of this PyTorch takes no block table")
    keys, values, wide, queries, tokens = kept_wide(table, lengths, key_pages, value_pages)
    return varlen_attn(
        *(q, keys, values, queries, tokens, 1, wide.shape[1] * WIDE),
        scale=scale,
        enable_gqa=True,
        seqused_k=lengths,
        block_table=wide,
    )
