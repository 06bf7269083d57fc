"""Ways to optimize: twice per batch, through updates, with second moments, curvature, averages."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Language,
    average,
    convolutions,
    descend,
    frozen,
    token_loss,
    tokens,
)
from programs.registry import Run, program


def _classifier(channels: int, classes: int = 1000) -> nn.Sequential:
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(
        convolutions(channels), pool, nn.Flatten(), nn.Linear(8 * channels, classes)
    )


@program(
    "Projected gradient descent makes images harder in one to seven steps before each update; "
    "rows that fail already leave early."
)
def _adversarial_training(run: Run) -> None:
    model = _classifier(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in run:
        images = torch.zeros(96, 3, 128, 128)
        harder = images + torch.zeros_like(images)
        attacked = len(images)
        model.eval()
        for _ in range(run.between(1, 7)):
            part = harder[tokens(attacked)].detach().requires_grad_(True)
            scores = model(part)
            loss = token_loss(scores, tokens(len(part)))
            (slope,) = torch.autograd.grad(loss, part)
            step = part.detach() + 0.01 * slope.sign()
            harder = harder.index_copy(0, tokens(attacked), step).clamp(0, 1)
            attacked = max(8, int(attacked * run.rng.uniform(0.6, 1.0)))
        model.train()
        loss = token_loss(model(harder), tokens(len(images)))
        descend(loss, optimizer)


@program(
    "SAM climbs to the worst weights near by, takes the gradient there, and returns; the "
    "climb is left out in some iterations."
)
def _sharpness_aware(run: Run) -> None:
    model = _classifier(96)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for i in run:
        side = 32 * run.between(4, 6)
        images = torch.zeros(64, 3, side, side)
        loss = token_loss(model(images), tokens(64))
        loss.backward()
        if i % 3:
            norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
            kept = [p.detach().clone() for p in parameters]
            with torch.no_grad():
                for p in parameters:
                    if p.grad is not None:
                        p.add_(p.grad * (0.05 / norm))
            optimizer.zero_grad()
            token_loss(model(images), tokens(64)).backward()
            with torch.no_grad():
                for p, old in zip(parameters, kept, strict=True):
                    p.copy_(old)
        optimizer.step()
        optimizer.zero_grad()


def _roots(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix.float())
    root: Tensor = vectors @ torch.diag(values.clamp_min(1e-6).pow(-0.25)) @ vectors.t()
    return root


@program(
    "Shampoo gathers the curvature of both sides of each matrix, and takes inverse roots of "
    "them after each fifth iteration; the batch is of whole texts."
)
def _shampoo(run: Run) -> None:
    model = Language(16_000, 1024, 4)
    matrices = [p for p in model.body.parameters() if p.ndim == 2 and max(p.shape) <= 2048]
    known = {id(p) for p in matrices}
    others = torch.optim.AdamW([p for p in model.parameters() if id(p) not in known])
    sides = [
        (torch.zeros(p.shape[0], p.shape[0]), torch.zeros(p.shape[1], p.shape[1])) for p in matrices
    ]
    roots = [(torch.eye(p.shape[0]), torch.eye(p.shape[1])) for p in matrices]
    momenta = [torch.zeros_like(p) for p in matrices]
    for i in run:
        ids = tokens(8, max(run.lengths(8, 300, 900)))
        loss = token_loss(model(ids), ids)
        loss.backward()
        with torch.no_grad():
            for k, p in enumerate(matrices):
                if p.grad is None:
                    continue
                left, right = sides[k]
                left.lerp_(p.grad @ p.grad.t(), 0.05)
                right.lerp_(p.grad.t() @ p.grad, 0.05)
                if i % 5 == 2:
                    roots[k] = (_roots(left), _roots(right))
                momenta[k].mul_(0.9).add_(roots[k][0] @ p.grad @ roots[k][1])
                p.sub_(0.01 * momenta[k])
        others.step()
        model.zero_grad()


@program(
    "K-FAC: hooks keep the inputs of layers and the gradients of their outputs, factors come "
    "from samples of the model's own labels, and inverses at times."
)
def _kronecker_curvature(run: Run) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(6)))
    head = nn.Linear(2048, 4000)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    inputs: dict[nn.Module, Tensor] = {}
    factors: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    inverses: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    gathers = False

    def remember(layer: nn.Module, seen: tuple[Tensor, ...]) -> None:
        if gathers:
            inputs[layer] = seen[0].detach()

    def gather(layer: nn.Module, _: object, given: tuple[Tensor, ...]) -> None:
        if gathers:
            x, g = inputs[layer], given[0]
            factors[layer] = (x.t() @ x / len(x), g.t() @ g * len(g))

    for layer in layers:
        layer.register_forward_pre_hook(remember)
        layer.register_full_backward_hook(gather)
    both = nn.ModuleList((model, head))
    optimizer = torch.optim.SGD(both.parameters(), lr=0.01, momentum=0.9)
    for i in run:
        rows = run.between(8_000, 16_000)
        gathers = i % 3 == 0
        scores = head(model(torch.zeros(rows, 2048, requires_grad=True)))
        if gathers:
            sampled = torch.multinomial(scores.detach().softmax(-1), 1).squeeze(1)
            functional.cross_entropy(scores, sampled).backward(retain_graph=True)
            optimizer.zero_grad()
            gathers = False
        if i % 6 == 0:
            for module, (a, g) in factors.items():
                inverses[module] = (torch.linalg.inv(a + torch.eye(2048)), torch.linalg.inv(g))
        functional.cross_entropy(scores, tokens(rows)).backward()
        with torch.no_grad():
            for layer in layers:
                a, g = inverses[layer]
                if layer.weight.grad is not None:
                    layer.weight.grad = g @ layer.weight.grad @ a
        optimizer.step()
        optimizer.zero_grad()


@program(
    "An average of the weights begins after ten iterations; its batch statistics are made "
    "anew over some batches before each evaluation."
)
def _late_average(run: Run) -> None:
    model = _classifier(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    mean: nn.Module | None = None
    for i in run:
        rows, side = 96, 32 * run.between(4, 6)
        loss = token_loss(model(torch.zeros(rows, 3, side, side)), tokens(rows))
        descend(loss, optimizer)
        if i < 10:
            continue
        if mean is None:
            mean = frozen(model)
        average(mean, model, 1 / (i - 8))
        if i % 5 == 4:
            mean.train()
            with torch.no_grad():
                for _ in range(3):
                    mean(torch.zeros(rows, 3, 160, 160))
                mean.eval()
                for _ in range(2):
                    mean(torch.zeros(2 * rows, 3, 192, 192)).softmax(-1)


@program(
    "A checkpoint of copied weights and optimizer state is held until a writer has saved it, "
    "some iterations later; the best so far is kept, too."
)
def _checkpoints_of_copies(run: Run) -> None:
    model = Language(32_000, 1024, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    best: dict[str, Tensor] = {}
    saving: list[Tensor] = []
    for i in run:
        ids = tokens(8, max(run.lengths(8, 350, 1000)))
        loss = token_loss(model(ids), ids)
        descend(loss, optimizer, clip=1.0)
        if saving and run.chance(0.5):
            saving = []
        if i % 7 == 5:
            saving = [p.detach().clone() for p in model.parameters()]
            for state in optimizer.state.values():
                saving += [v.clone() for v in state.values() if isinstance(v, Tensor)]
        if i % 6 == 4 and run.chance(0.6):
            best = copy.deepcopy(model.state_dict())
    best.clear()


@program(
    "A network with spectral normalization estimates a distance of distributions, with a "
    "penalty, several steps of the critic for one of the generator, the more the longer it "
    "trains."
)
def _normalized_spectra(run: Run) -> None:
    norm = nn.utils.parametrizations.spectral_norm
    critic = nn.Sequential(
        norm(nn.Conv2d(3, 128, 4, 2, 1)), nn.LeakyReLU(0.2), norm(nn.Conv2d(128, 256, 4, 2, 1)),
        nn.LeakyReLU(0.2), norm(nn.Conv2d(256, 512, 4, 2, 1)), nn.Flatten(),
        norm(nn.Linear(512 * 64, 1)),
    )  # fmt: skip
    generator = nn.Sequential(
        nn.Linear(256, 512 * 64), nn.Unflatten(1, (512, 8, 8)), nn.Upsample(scale_factor=4),
        nn.Conv2d(512, 256, 3, 1, 1), nn.ReLU(), nn.Upsample(scale_factor=2),
        nn.Conv2d(256, 3, 3, 1, 1),
    )  # fmt: skip
    first = torch.optim.RMSprop(generator.parameters())
    second = torch.optim.RMSprop(critic.parameters())
    for i in run:
        for _ in range(2 + i % 5):
            with torch.no_grad():
                made = generator(torch.zeros(96, 256))
            second.zero_grad()
            (critic(made).mean() - critic(torch.zeros(96, 3, 64, 64)).mean()).backward()
            second.step()
        rows = run.between(48, 128)
        descend(-critic(generator(torch.zeros(rows, 256))).mean(), first)
        second.zero_grad()
