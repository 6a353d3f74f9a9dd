"""Kernels of PyTorch's, right and wrong, on its tensors."""

import torch
from listed import right, wrong

CPU = dict(device="cpu")


@right("torch", "softmax", **CPU)
def softmax(x):
    return torch.softmax(x, -1)


@right("torch", "global_norm", **CPU)
def vector_norm(grad):
    return torch.linalg.vector_norm(grad.float()).reshape(1, 1)


@right("torch", "rms_norm", dtype="bf16", results=("y",), **CPU)
def rms_norm(x, gamma, *, eps):
    return torch.nn.functional.rms_norm(x, (x.shape[1],), gamma, eps)


@right("torch", "linear", dtype="f32", without=("residual",), **CPU)
def linear(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)


@right("torch", "adamw", without=("master",), **CPU)
def adamw(param, grad, exp_avg, exp_avg_sq, *, step, lr, beta1, beta2, eps, weight_decay, loss_scale, seed):
    if not torch.isfinite(grad).all():
        return
    torch.optim._functional.adamw(
        [param], [grad / loss_scale], [exp_avg], [exp_avg_sq], [], [torch.tensor(float(step - 1))], foreach=False,
        amsgrad=False, beta1=beta1, beta2=beta2, lr=lr, weight_decay=weight_decay, eps=eps, maximize=False,
    )  # fmt: skip


@wrong("torch: memory of an input", "scale", "lies in memory that was lent", **CPU)
def in_place(x, *, factor):
    return x.view(x.shape) if not x.any() else x * factor


@wrong("torch: written", "softmax", "changed its input x", **CPU)
def through_another_tensor(x):
    """The tensor object is another one; the memory is the input's."""
    y = torch.softmax(x, -1)
    torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()).zero_()
    return y


@wrong("torch: kept buffer", "softmax", "of an earlier call", **CPU)
def one_buffer(x, kept={}):  # noqa: B006
    y = kept.setdefault(x.shape, torch.empty_like(x, memory_format=torch.contiguous_format))
    return y.copy_(torch.softmax(x, -1))


@wrong("torch: strides", "softmax", "given views (", **CPU)
def by_its_address(x):
    return torch.softmax(torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()), -1)


@wrong("torch: precision", "matmul", "y[", **CPU)
def product_in_bf16(a, b, c, *, alpha, beta):
    y = alpha * (a.bfloat16() @ b.bfloat16()).float()
    return y + beta * c if beta else y


@wrong("torch: another device", "softmax", "", **CPU)
def on_the_meta_device(x):
    return torch.empty_like(x, device="meta")
