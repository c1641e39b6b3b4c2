"""A twin of nn.BatchNorm2d (and 1d, and 3d): the same parameters and buffers, by our kernels."""

import torch
from torch import nn


def laid_out_like(gy, x):
    """gy with the strides of x: the gradient of a permuted result may have others."""
    return gy if gy.stride() == x.stride() else torch.empty_like(x).copy_(gy)


class WithBatchStatistics(torch.autograd.Function):
    """torch.library.register_autograd takes no operator that writes its arguments, as the running
    statistics are; so the gradient is registered here."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        y, mean, rstd = torch.ops.day48.batch_norm(
            x, weight, bias, running_mean, running_var, momentum, eps
        )
        ctx.save_for_backward(x, mean, rstd, weight)
        return y

    @staticmethod
    def backward(ctx, gy):
        x, *saved = ctx.saved_tensors
        gradients = torch.ops.day48.batch_norm_backward(laid_out_like(gy, x), x, *saved, True)
        return *gradients, None, None, None, None


class WithRunningStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, eps):
        ctx.save_for_backward(x, weight, running_mean.clone(), (running_var + eps).rsqrt())
        return torch.ops.day48.batch_norm_inference(x, weight, bias, running_mean, running_var, eps)

    @staticmethod
    def backward(ctx, gy):
        x, weight, mean, rstd = ctx.saved_tensors
        gradients = torch.ops.day48.batch_norm_backward(
            laid_out_like(gy, x), x, mean, rstd, weight, False
        )
        return *gradients, None, None, None


class BatchNorm(nn.Module):
    """Normalises each channel of x (N, C, …), fp32, fp16 or bf16, contiguous or channels_last.

    num_features: C. momentum: the weight of a batch in the running statistics; None for the plain
    mean of all batches. track_running_stats: False to use the statistics of the batch in
    evaluation too. Parameters and buffers are those of nn.BatchNorm2d, so its state_dict loads;
    they stay fp32 also where x is not. In training, one value per channel is refused.
    """

    num_batches_tracked: torch.Tensor

    def __init__(self, num_features, eps=1e-5, momentum=0.1, track_running_stats=True, device=None):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features, device=device))
        self.bias = nn.Parameter(torch.zeros(num_features, device=device))
        tracked = track_running_stats
        zeros, ones = (torch.full((num_features,), v, device=device) for v in (0.0, 1.0))
        self.register_buffer("running_mean", zeros if tracked else None)
        self.register_buffer("running_var", ones if tracked else None)
        count = torch.zeros((), dtype=torch.int64, device=device) if tracked else None
        self.register_buffer("num_batches_tracked", count)

    def forward(self, x):
        parameters = self.weight, self.bias, self.running_mean, self.running_var
        if not self.training and self.running_mean is not None:
            return WithRunningStatistics.apply(x, *parameters, self.eps)
        momentum = 0.0
        if self.running_mean is not None:
            self.num_batches_tracked.add_(1)
            # As PyTorch does: the count is read from the GPU, and the host waits for it.
            cumulative = self.momentum is None
            momentum = 1.0 / float(self.num_batches_tracked) if cumulative else self.momentum
        return WithBatchStatistics.apply(x, *parameters, momentum, self.eps)
