"""Goldens of optimizers, moving averages and schedules: one function for each file, which yields (case, {name: tensor})."""

import torch

from goldens.parts import random


def optimizers():
    def case(kind, **options):
        p = torch.nn.Parameter(random(13))
        tensors = {"parameters": p.detach().clone()}
        optimizer = kind([p], **options)
        gradients, steps = [], []
        for _ in range(5):
            p.grad = random(13)
            optimizer.step()
            gradients.append(p.grad.clone())
            steps.append(p.detach().clone())
        return tensors | {"gradients": torch.stack(gradients), "after each step": torch.stack(steps)}

    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    yield "sgd", case(sgd, lr=0.1)
    yield "sgd_decay", case(sgd, lr=0.1, weight_decay=0.3)
    yield "sgd_momentum", case(sgd, lr=0.1, momentum=0.9, weight_decay=0.2)
    yield "sgd_nesterov", case(sgd, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.2)
    yield "adam", case(adam, lr=0.05, betas=(0.9, 0.99), eps=1e-8)
    yield "adam_decay", case(adam, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    yield "adamw", case(adamw, lr=0.05, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)


def late_gradients():
    """A parameter that has no gradient in the first three of eight steps, beside one that always has."""
    def case(kind, **options):
        late, always = torch.nn.Parameter(random(13)), torch.nn.Parameter(random(13))
        tensors = {"parameters": late.detach().clone()}
        optimizer = kind([late, always], **options)
        gradients, steps = [], []
        for step in range(8):
            always.grad = random(13)
            if step >= 3:
                late.grad = random(13)
                gradients.append(late.grad.clone())
            optimizer.step()
            steps.append(late.detach().clone())
        return tensors | {"gradients": torch.stack(gradients), "after each step": torch.stack(steps[3:])}

    yield "adam", case(torch.optim.Adam, lr=0.05, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    yield "adamw", case(torch.optim.AdamW, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)


def averages():
    """Moving averages as torch.optim.swa_utils has them. Up to `start` updates they are the parameters."""
    def case(kind, decay, start, **options):
        model = torch.nn.Linear(13, 1, bias=False).double()
        model.weight.data = random(1, 13)
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
        optimizer = kind(model.parameters(), **options)
        tensors = {"parameters": model.weight.detach().clone()}
        gradients, steps = [], []
        for step in range(6):
            model.weight.grad = random(1, 13)
            optimizer.step()
            if step + 1 <= start:
                average.n_averaged.zero_()
            average.update_parameters(model)
            gradients.append(model.weight.grad.clone())
            steps.append(average.module.weight.detach().clone())
        return tensors | {"gradients": torch.stack(gradients), "average after each step": torch.stack(steps)}

    yield "sgd", case(torch.optim.SGD, 0.9, 0, lr=0.1)
    yield "sgd_momentum", case(torch.optim.SGD, 0.75, 3, lr=0.1, momentum=0.9)
    yield "adamw", case(torch.optim.AdamW, 0.5, 2, lr=0.05, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)


def muon():
    """torch.optim.Muon, whose iterations are made to run in double precision, not in bfloat16."""
    def case(rows, columns, **options):
        p = torch.nn.Parameter(random(rows, columns))
        tensors = {"parameters": p.detach().clone()}
        optimizer = torch.optim.Muon([p], **options)
        gradients, steps = [], []
        narrow, torch.bfloat16 = torch.bfloat16, torch.float64
        try:
            for _ in range(5):
                p.grad = random(rows, columns)
                optimizer.step()
                gradients.append(p.grad.clone())
                steps.append(p.detach().clone())
        finally:
            torch.bfloat16 = narrow
        return tensors | {"gradients": torch.stack(gradients), "after each step": torch.stack(steps)}

    yield "wide", case(5, 12, lr=0.05, weight_decay=0)
    yield "tall", case(12, 5, lr=0.05, weight_decay=0.3)
    yield "plain_momentum", case(7, 4, lr=0.05, momentum=0.8, nesterov=False, ns_steps=3, weight_decay=0)
    yield "match_adamw", case(6, 6, lr=0.05, adjust_lr_fn="match_rms_adamw", weight_decay=0.1)


def schedules():
    """Learning rates of optimizer steps, from the first on."""
    kinds = torch.optim.lr_scheduler

    def case(steps, rate, make):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        schedule = make(optimizer)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return {"rates": torch.tensor(rates, dtype=torch.float64)}

    def one_cycle(steps, **options):
        # Past its end PyTorch refuses: it has a step more than is read.
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule = kinds.OneCycleLR(optimizer, max_lr=0.5, total_steps=steps, cycle_momentum=False, **options)
        rates = [optimizer.param_groups[0]["lr"]]
        for _ in range(steps - 1):
            optimizer.step()
            schedule.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return {"rates": torch.tensor(rates, dtype=torch.float64)}

    yield "step", case(10, 0.4, lambda o: kinds.StepLR(o, step_size=3, gamma=0.5))
    yield "multi_step", case(10, 0.4, lambda o: kinds.MultiStepLR(o, milestones=[2, 5, 7], gamma=0.1))
    yield "linear", case(10, 0.4, lambda o: kinds.LinearLR(o, start_factor=1, end_factor=0.2, total_iters=9))
    yield "polynomial", case(10, 0.4, lambda o: kinds.PolynomialLR(o, total_iters=9, power=2.5))
    yield "cosine", case(10, 0.4, lambda o: kinds.CosineAnnealingLR(o, T_max=9, eta_min=0.01))
    yield "one_cycle", one_cycle(20)
    yield "one_cycle_linear", one_cycle(17, pct_start=0.25, anneal_strategy="linear", div_factor=10, final_div_factor=100)
    yield "one_cycle_three_phase", one_cycle(21, pct_start=0.4, three_phase=True)
    yield "stable_decay", case(20, 0.4, lambda o: kinds.SequentialLR(
        o, [kinds.LinearLR(o, start_factor=1 / 4, end_factor=1, total_iters=3), kinds.ConstantLR(o, factor=1),
            kinds.LinearLR(o, start_factor=1, end_factor=0.25, total_iters=6)], milestones=[4, 13]))


FILES = [optimizers, late_gradients, averages, muon, schedules]
