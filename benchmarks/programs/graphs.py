"""Graphs, molecules and clouds of points, whose nodes and edges differ in each batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import average, descend, frozen, mlp, token_loss, tokens
from programs.registry import Run, program


def _gathered(x: Tensor, messages: Tensor) -> Tensor:
    """Sums the messages of edges at nodes."""
    return torch.zeros_like(x).index_add(0, tokens(len(messages)), messages)


@program(
    "Energies of molecules and the forces, which are their slope, so that training goes "
    "backward twice; atoms and neighbours vary."
)
def _molecules_with_forces(run: Run) -> None:
    width = 128
    embed = nn.Embedding(100, width)
    filters = nn.ModuleList(mlp(64, width, width) for _ in range(4))
    updates = nn.ModuleList(mlp(width, width, width) for _ in range(4))
    out = mlp(width, width, 1)
    model = nn.ModuleList((embed, filters, updates, out))
    mean = frozen(model)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    for i in run:
        molecules = 64
        atoms = sum(run.lengths(molecules, 30, 120, 0.6))
        edges = int(atoms * run.rng.uniform(18, 30))
        place = torch.zeros(atoms, 3, requires_grad=True)
        away = (place[tokens(edges)] - place[tokens(edges)]).norm(dim=-1)
        basis = torch.exp(-(away[:, None] - torch.zeros(64)).square())
        x = embed(tokens(atoms))
        for weigh, update in zip(filters, updates, strict=True):
            x = x + update(_gathered(x, x[tokens(edges)] * weigh(basis)))
        energy = torch.zeros(molecules, 1).index_add(0, tokens(atoms), out(x))
        (slope,) = torch.autograd.grad(energy.sum(), place, create_graph=True)
        loss = energy.square().mean() + 100 * slope.square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        average(mean, model)
        if i % 9 == 8:
            energy.detach().abs().mean()


@program(
    "GraphSAGE: each layer samples neighbours of the nodes before, without doubles, so that "
    "their number varies; all nodes are evaluated in parts after each eighth iteration."
)
def _sampled_neighbours(run: Run) -> None:
    width = 512
    features = torch.zeros(400_000, 256)
    layers = [
        (nn.Linear(low, high), nn.Linear(low, high))
        for low, high in ((256, width), (width, width), (width, 172))
    ]
    optimizer = torch.optim.Adam(nn.ModuleList(map(nn.ModuleList, layers)).parameters())
    for i in run:
        nodes = [2048]
        for fan in (5, 10, 15):
            nodes.append(int(nodes[-1] * (1 + fan * run.rng.uniform(0.25, 0.6))))
        nodes.reverse()
        x = features[tokens(nodes[0])]
        for depth, (own, other) in enumerate(layers):
            edges = int(nodes[depth] * run.rng.uniform(1.1, 1.6))
            target = x[: nodes[depth + 1]]
            y = own(target) + other(_gathered(target, x[tokens(edges)]))
            x = functional.dropout(y.relu(), 0.5) if depth < 2 else y
        loss = token_loss(x, tokens(len(x)))
        descend(loss, optimizer)
        if i % 8 == 7:
            _infer(run, layers, features)


@torch.no_grad()
def _infer(run: Run, layers: list[tuple[nn.Linear, nn.Linear]], features: Tensor) -> Tensor:
    x = features
    for own, other in layers:
        parts = []
        for _ in range(4):
            count = len(x) // 4
            edges = int(count * run.rng.uniform(1.5, 3.0))
            target = x[:count]
            parts.append(own(target) + other(_gathered(target, x[tokens(edges)])))
        x = torch.cat(parts)
    return x


@program(
    "Small graphs of all sizes are batched: attention of edges at nodes, normalization by "
    "batch, and gradients that are accumulated over two batches."
)
def _batched_graphs(run: Run) -> None:
    width = 256
    nodes_in, edges_in = nn.Embedding(64, width), nn.Embedding(16, width)
    layers = [
        (mlp(3 * width, width, 4), nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(5)
    ]
    out = nn.Linear(width, 12)
    model = nn.ModuleList((nodes_in, edges_in, *map(nn.ModuleList, layers), out))
    optimizer = torch.optim.AdamW(model.parameters())
    for i in run:
        nodes = sum(run.lengths(512, 26, 200, 0.6))
        edges = int(nodes * run.rng.uniform(4.0, 5.2))
        x, e = nodes_in(tokens(nodes)), edges_in(tokens(edges))
        for weigh, change, norm in layers:
            ends = torch.cat((x[tokens(edges)], x[tokens(edges)], e), -1)
            weights = weigh(ends).exp()
            sums = torch.zeros(nodes, 4).index_add(0, tokens(edges), weights)
            weights = weights / sums[tokens(edges)]
            messages = change(x)[tokens(edges)].unflatten(-1, (4, -1)) * weights[..., None]
            x = norm(x + _gathered(x, messages.flatten(1))).relu()
        pooled = torch.zeros(512, width).index_add(0, tokens(nodes), x)
        loss = functional.l1_loss(out(pooled), torch.zeros(512, 12))
        loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


@program(
    "Clouds of points: each of 27 offsets gathers pairs of voxels, multiplies and scatters; "
    "deeper levels have fewer voxels, and the decoder comes back to the first."
)
def _sparse_convolutions(run: Run) -> None:
    widths = (64, 128, 256)
    stem = nn.Linear(4, 64)
    down = [
        nn.ParameterList(nn.Parameter(torch.zeros(low, high)) for _ in range(27))
        for low, high in ((64, 64), (64, 128), (128, 256))
    ]
    norms = [nn.BatchNorm1d(width) for width in widths]
    up = nn.ModuleList((nn.Linear(256, 128), nn.Linear(128, 64)))
    head = nn.Linear(64, 20)
    model = nn.ModuleList((stem, *down, *norms, up, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in run:
        voxels = sum(run.lengths(2, 45_000, 120_000, 0.5))
        x = stem(torch.zeros(voxels, 4))
        levels = []
        for kernel, norm in zip(down, norms, strict=True):
            out = torch.zeros(len(x), norm.num_features)
            for k, weight in enumerate(kernel):
                pairs = len(x) if k == 13 else int(len(x) * run.rng.uniform(0.15, 0.5))
                out = out.index_add(0, tokens(pairs), x[tokens(pairs)] @ weight)
            x = norm(out).relu()
            levels.append(x)
            if norm is not norms[-1]:
                x = x[tokens(int(len(x) * run.rng.uniform(0.3, 0.45)))]
        for layer, level in zip(up, reversed(levels[:-1]), strict=True):
            x = layer(x)[tokens(len(level))] + level
        loss = token_loss(head(x), tokens(len(x)))
        descend(loss, optimizer)


@program("Points of a scene: neighbours by distances between all, in stages that keep a quarter.")
def _point_sets(run: Run) -> None:
    first = mlp(3, 64, 128)
    stages = nn.ModuleList(mlp(2 * w, 2 * w, 2 * w) for w in (128, 256, 512))
    head = nn.Linear(1024, 40)
    model = nn.ModuleList((first, stages, head))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in run:
        points = run.between(2048, 6144)
        place = torch.zeros(8, points, 3)
        x = first(place)
        for stage in stages:
            kept = x.shape[1] // 4
            with torch.no_grad():
                near = torch.cdist(place[:, :kept], place).topk(16, largest=False).indices
            rows = torch.arange(8)[:, None, None]
            around = x[rows, near]
            center = x[:, :kept, None].expand(-1, -1, 16, -1)
            x = stage(torch.cat((around - center, center), -1)).amax(2)
            place = place[:, :kept]
        descend(token_loss(head(x.amax(1)), tokens(8)), optimizer)
