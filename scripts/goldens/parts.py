"""What goldens are made of: random numbers, and the tensors of one case. Needs torch."""

import torch


def random(*shape, low=-1.0, high=1.0):
    return (low + (high - low) * torch.rand(*shape)).float().double()


def integers(*shape, below):
    return torch.randint(below, shape, dtype=torch.int32)


def run(function, inputs, parameters, layout=lambda name, tensor: tensor, cast_gradient=lambda gradient: gradient):
    """Tensors of one case: forward, and backward with random gradients of the outputs. Where `function` returns a
    scalar (a loss), its gradient is one and it is left out. `layout` turns PyTorch's layout into ours."""
    leaves = {f"input{i}": tensor for i, tensor in enumerate(inputs)} | parameters
    for tensor in leaves.values():
        tensor.requires_grad_(tensor.is_floating_point())
    outputs = function(*inputs, **parameters)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [cast_gradient(random(*output.shape) if output.dim() else torch.ones(()).double()) for output in outputs]
    torch.autograd.backward(outputs, gradients)
    tensors = dict(leaves)
    for i, (output, gradient) in enumerate(zip(outputs, gradients)):
        tensors[f"output{i}"] = output
        if output.dim():
            tensors[f"gradient of output{i}"] = gradient
    for name, tensor in leaves.items():
        if tensor.grad is not None:
            tensors[f"gradient of {name}"] = tensor.grad
    return {name: layout(name, tensor.detach()) for name, tensor in tensors.items()}


def channels_last(name, tensor):
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
