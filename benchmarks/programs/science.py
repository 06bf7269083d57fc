"""Scientific models: solvers whose steps vary, equations as losses, recycling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from programs.layers import Transformer, descend, mlp, token_loss, tokens
from programs.registry import Run, program


@program(
    "A network solves an equation: L-BFGS keeps differences of gradients, calls a closure as "
    "often as its line search asks, and new points are drawn at times."
)
def _physics_with_line_search(run: Run) -> None:
    model = mlp(3, 512, 512, 512, 512, 1)
    parameters = list(model.parameters())
    differences: list[tuple[Tensor, Tensor]] = []
    points = 20_000

    def equation() -> Tensor:
        place = torch.zeros(points, 3, requires_grad=True)
        u = model(place)
        (slope,) = torch.autograd.grad(u.sum(), place, create_graph=True)
        second = [
            torch.autograd.grad(slope[:, k].sum(), place, create_graph=True)[0][:, k]
            for k in range(2)
        ]
        wrong: Tensor = slope[:, 2] - second[0] - second[1] + u.squeeze(1)
        return wrong.square().mean()

    def closure() -> Tensor:
        model.zero_grad()
        loss = equation()
        loss.backward()
        return loss

    def flat() -> Tensor:
        return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])

    for i in run:
        loss = closure()
        direction = flat().neg()
        for step, change in reversed(differences):
            direction = direction - change * (step @ direction)
        before = flat()
        for _ in range(run.between(1, 4)):
            with torch.no_grad():
                nn.utils.vector_to_parameters(
                    nn.utils.parameters_to_vector(parameters) + direction, parameters
                )
            loss = closure()
        differences.append((direction, flat() - before))
        if len(differences) > 10:
            differences.pop(0)
        if i % 6 == 5:
            points = run.between(15_000, 30_000)
            loss.detach().sqrt()


@program(
    "A neural differential equation: the solver takes as many steps as the tolerance asks, "
    "and rejects some, whose values nothing needs."
)
def _adaptive_solver(run: Run) -> None:
    first, field = nn.Conv2d(3, 128, 4, 4), nn.Conv2d(128, 128, 3, 1, 1)
    last = nn.Conv2d(128, 128, 3, 1, 1)
    head = nn.Linear(128, 100)
    model = nn.ModuleList((first, field, last, head))
    optimizer = torch.optim.Adam(model.parameters())

    def slope(x: Tensor) -> Tensor:
        y: Tensor = last(functional.softplus(field(x)))
        return y

    for i in run:
        x = first(torch.zeros(64, 3, 128, 128))
        k = slope(x)
        for _ in range(run.between(4, 9) + i // 10):
            middle = slope(x + 0.5 * k)
            end = slope(x + 0.75 * middle)
            y = x + (2 * k + 3 * middle + 4 * end) / 9
            error = (y - x).detach().abs().amax()
            if run.chance(0.2):
                continue
            x, k = y, end
            del error
        loss = token_loss(head(x.mean((2, 3))), tokens(64))
        descend(loss, optimizer)


@program(
    "A deep equilibrium: Anderson's method finds a fixed point without gradients in a varying "
    "number of steps, and a second solver works in the backward."
)
def _equilibrium(run: Run) -> None:
    width = 1024
    embed, cell = nn.Embedding(32_000, width), Transformer(width, 1)
    head = nn.Linear(width, 32_000)
    model = nn.ModuleList((embed, cell, head))
    optimizer = torch.optim.Adam(model.parameters())

    def solve(rows: int, steps: int, x: Tensor) -> Tensor:
        history: list[Tensor] = []
        z = torch.zeros_like(x)
        for _ in range(steps):
            history.append(cell(z + x) - z)
            if len(history) > 5:
                history.pop(0)
            stacked = torch.stack([h.flatten(1) for h in history], 1)
            weights = torch.linalg.solve(
                stacked @ stacked.transpose(1, 2), torch.zeros(rows, len(history), 1)
            )
            z = (weights * stacked).sum(1).view_as(x)
        return z

    for _ in run:
        rows, length = 16, 256
        x = embed(tokens(rows, length))
        with torch.no_grad():
            z = solve(rows, run.between(6, 20), x)
        z = z.requires_grad_(True)
        y = cell(z + x)
        slope: Tensor = torch.zeros_like(z)
        loss = token_loss(head(y), tokens(rows, length))
        (given,) = torch.autograd.grad(loss, y, retain_graph=True)
        for _ in range(run.between(4, 12)):
            (back,) = torch.autograd.grad(y, z, slope + given, retain_graph=True)
            slope = 0.5 * slope + 0.5 * back
        y.backward(slope + given)
        optimizer.step()
        optimizer.zero_grad()


class _Pairs(nn.Module):
    """Updates pairs of residues, by products along triangles."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.sides = nn.Linear(width, 2 * width)
        self.change = mlp(width, 4 * width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs to pairs."""
        left, right = self.sides(self.norm(pairs)).chunk(2, -1)
        pairs = pairs + torch.einsum("ikc,jkc->ijc", left, right.sigmoid())
        out: Tensor = self.change(pairs)
        return pairs + out


@program(
    "A model of proteins runs up to three times without gradients and once with them; crops, "
    "alignments and the number of recyclings vary, and layers are recomputed."
)
def _recycling(run: Run) -> None:
    rows_in, pairs_in = nn.Linear(49, 256), nn.Linear(65, 128)
    rows_layers = nn.ModuleList(Transformer(256, 1) for _ in range(4))
    pairs_layers = nn.ModuleList(_Pairs(128) for _ in range(4))
    outer = nn.Linear(256, 32)
    up, head = nn.Linear(1024, 128), nn.Linear(128, 64)
    model = nn.ModuleList((rows_in, pairs_in, rows_layers, pairs_layers, outer, up, head))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in run:
        crop, depth = (192 if run.chance(0.6) else run.between(96, 191)), run.between(32, 128)
        recycled: Tensor | None = None
        features, aligned = torch.zeros(crop, crop, 65), torch.zeros(depth, crop, 49)
        turns = run.between(1, 4)
        for turn in range(turns):
            last = turn == turns - 1
            with torch.set_grad_enabled(last):
                rows, pairs = rows_in(aligned), pairs_in(features)
                if recycled is not None:
                    pairs = pairs + recycled
                for row_layer, pair_layer in zip(rows_layers, pairs_layers, strict=True):
                    rows = row_layer(rows)
                    low = outer(rows)
                    pairs = pairs + up(torch.einsum("sic,sjd->ijcd", low, low).flatten(2))
                    if last:
                        pairs = checkpoint(pair_layer, pairs, use_reentrant=False)
                    else:
                        pairs = pair_layer(pairs)
                recycled = pairs.detach()
        loss = token_loss(head(pairs), tokens(crop, crop)) + rows.square().mean()
        descend(loss, optimizer, clip=0.1)


@program(
    "A neural operator predicts weather: rollouts of ever more steps train it through time, "
    "on grids of three sizes."
)
def _rollouts_of_a_simulator(run: Run) -> None:
    inside, outside = nn.Linear(20, 128), nn.Linear(128, 20)
    weights = nn.ParameterList(nn.Parameter(torch.zeros(128, 128, 24, 24, 2)) for _ in range(2))
    changes = nn.ModuleList(mlp(128, 512, 128) for _ in range(2))
    model = nn.ModuleList((inside, outside, weights, changes))
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-4)
    for i in run:
        side = (96, 128, 192)[run.between(0, 2)]
        field, losses = torch.zeros(4, side, side, 20), []
        for _ in range(min(5, 1 + i // 5)):
            x = inside(field)
            for weight, change in zip(weights, changes, strict=True):
                modes = torch.fft.rfft2(x, dim=(1, 2))
                kept = torch.einsum(
                    "bxyi,ioxy->bxyo", modes[:, :24, :24], torch.view_as_complex(weight)
                )
                padded = functional.pad(kept, (0, 0, 0, side // 2 - 23, 0, side - 24))
                x = x + change(torch.fft.irfft2(padded, s=(side, side), dim=(1, 2)))
            field = field + outside(x)
            losses.append(field.square().mean())
        descend(torch.stack(losses).mean(), optimizer, clip=1.0)
