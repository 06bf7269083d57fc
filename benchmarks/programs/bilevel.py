"""Training of what trains: learning to learn, architectures, populations."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from programs.layers import Residual, descend, mlp, token_loss, tokens
from programs.registry import Run, program


@program(
    "MAML: tasks adapt weights in inner steps, and the outer gradient goes through the steps; "
    "ways and shots of a task vary, and it begins with first-order steps."
)
def _learning_to_learn(run: Run) -> None:
    model = nn.Sequential(
        *(Residual(low, high, 2) for low, high in ((3, 128), (128, 256))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 20),
    )
    optimizer = torch.optim.Adam(model.parameters())
    for i in run:
        losses = []
        for _ in range(2):
            ways, shots = run.between(5, 20), run.between(1, 5)
            weights: dict[str, Tensor] = dict(model.named_parameters())
            support, query = torch.zeros(ways * shots, 3, 84, 84), torch.zeros(ways * 8, 3, 84, 84)
            for _ in range(2):
                loss = token_loss(functional_call(model, weights, (support,)), tokens(len(support)))
                slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=i >= 2)
                pairs = zip(weights.items(), slopes, strict=True)
                weights = {name: w - 0.01 * slope for (name, w), slope in pairs}
            losses.append(token_loss(functional_call(model, weights, (query,)), tokens(len(query))))
        descend(torch.stack(losses).mean(), optimizer, clip=10.0)


class _Choice(nn.Module):
    """A weighted sum of operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.operations = nn.ModuleList(
            [
                nn.Identity(),
                nn.Conv2d(width, width, 3, 1, 1, groups=width),
                nn.Conv2d(width, width, 5, 1, 2, groups=width),
                nn.Conv2d(width, width, 3, 1, 2, dilation=2),
                nn.AvgPool2d(3, 1, 1),
            ]
        )

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Images to images."""
        outputs = [w * f(x) for w, f in zip(weights.softmax(-1), self.operations, strict=True)]
        return torch.stack(outputs).sum(0)


@program(
    "DARTS: the weights of operations learn from validation batches through a step of the "
    "model, in every second iteration; operations of no use are pruned on the way."
)
def _architecture_search(run: Run) -> None:
    stem = nn.Conv2d(3, 64, 4, 4)
    cells = [_Choice(64) for _ in range(6)]
    head = nn.Linear(64, 100)
    model = nn.ModuleList((stem, *cells, head))
    alphas = nn.Parameter(torch.zeros(6, 5))
    first = torch.optim.SGD(model.parameters(), lr=0.025, momentum=0.9)
    second = torch.optim.Adam([alphas], betas=(0.5, 0.999))

    def loss_of(rows: int) -> Tensor:
        x = stem(torch.zeros(rows, 3, 128, 128))
        for cell, weights in zip(cells, alphas, strict=True):
            x = functional.relu(cell(x, weights[: len(cell.operations)]))
        return token_loss(head(x.mean((2, 3))), tokens(rows))

    for i in run:
        if i % 2:
            kept = [p.detach().clone() for p in model.parameters()]
            slopes = torch.autograd.grad(loss_of(48), list(model.parameters()))
            with torch.no_grad():
                for p, slope in zip(model.parameters(), slopes, strict=True):
                    p.sub_(0.025 * slope)
            loss_of(48).backward()
            with torch.no_grad():
                for p, old in zip(model.parameters(), kept, strict=True):
                    p.copy_(old)
            second.step()
            second.zero_grad()
            first.zero_grad()
        descend(loss_of(64), first, clip=5.0)
        if i % 8 == 7:
            for cell in cells:
                if len(cell.operations) > 2 and run.chance(0.7):
                    del cell.operations[run.between(1, len(cell.operations) - 1)]


@program(
    "A population of models of different widths trains in turns; the worst takes the weights "
    "of the best, and a new optimizer, after each sixth iteration."
)
def _population(run: Run) -> None:

    def make(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = mlp(2048, width, width, width, 1000)
        return model, torch.optim.Adam(model.parameters(), lr=run.rng.uniform(1e-4, 1e-2))

    members = [make(512 * run.between(2, 8)) for _ in range(5)]
    for i in run:
        for model, optimizer in members:
            rows = 1024 * run.between(2, 12)
            loss = token_loss(model(torch.zeros(rows, 2048)), tokens(rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if i % 6 == 5:
            best, worst = run.rng.permutation(5)[:2]
            copied = copy.deepcopy(members[best][0])
            members[worst] = (copied, torch.optim.Adam(copied.parameters(), lr=1e-3))
            with torch.no_grad():
                for model, _ in members:
                    model(torch.zeros(16_384, 2048)).argmax(-1)
