"""Models whose structure changes: depth, width, experts, ranks, the layers that train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Block,
    Language,
    Residual,
    Transformer,
    descend,
    mlp,
    patches,
    token_loss,
    tokens,
)
from programs.registry import Run, program

_VOCABULARY = 32_000


@program(
    "A vision transformer drops each layer for the rows of a batch that a coin chooses, as "
    "DINOv2 does, or as a whole."
)
def _stochastic_depth(run: Run) -> None:
    embed = nn.Linear(768, 1024)
    blocks = nn.ModuleList(Block(1024) for _ in range(8))
    head = nn.Linear(1024, 1000)
    model = nn.ModuleList((embed, blocks, head)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    images = torch.zeros(48, 3, 224, 224, dtype=torch.bfloat16)
    for _ in run:
        x = embed(patches(images, 16))
        for depth, block in enumerate(blocks):
            kept = int(run.rng.binomial(len(x), 1 - 0.4 * depth / len(blocks)))
            if kept == 0 or run.chance(0.05):
                continue
            rows = tokens(kept)
            x = x.index_add(0, rows, block(x[rows]) - x[rows])
        loss = token_loss(head(x.mean(1)), tokens(len(images)))
        descend(loss, optimizer, clip=3.0)


@program(
    "Rows that a layer's head is sure of leave the batch; the others go on, so that deep "
    "layers have ever fewer rows."
)
def _early_exit(run: Run) -> None:
    embed = nn.Embedding(_VOCABULARY, 1024)
    blocks = nn.ModuleList(Block(1024) for _ in range(6))
    heads = nn.ModuleList(nn.Linear(1024, 20) for _ in range(6))
    model = nn.ModuleList((embed, blocks, heads))
    optimizer = torch.optim.AdamW(model.parameters())
    exits = []
    for _ in run:
        x = embed(tokens(48, run.length(250, 512)))
        losses = []
        for block, head in zip(blocks, heads, strict=True):
            x = block(x)
            scores = head(x[:, 0])
            losses.append(token_loss(scores, tokens(len(x))))
            left = int(run.rng.binomial(len(x), 0.2))
            exits.append(scores.detach().softmax(-1).amax(-1))
            if left == len(x):
                break
            if left:
                x = x[tokens(len(x) - left)]
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if len(exits) > 40:
            torch.cat(exits).mean()
            exits.clear()


@program(
    "Every second layer works on the eighth of the tokens that its router chooses, of batches "
    "whose length varies."
)
def _mixture_of_depths(run: Run) -> None:
    embed = nn.Embedding(_VOCABULARY, 1024)
    blocks = nn.ModuleList(Block(1024, causal=True) for _ in range(8))
    routers = nn.ModuleList(nn.Linear(1024, 1) for _ in range(8))
    head = nn.Linear(1024, _VOCABULARY, bias=False)
    model = nn.ModuleList((embed, blocks, routers, head)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        ids = tokens(8, max(run.lengths(8, 500, 1536, 0.4)))
        x = embed(ids)
        for i, (block, router) in enumerate(zip(blocks, routers, strict=True)):
            if i % 2 == 0:
                x = block(x)
                continue
            weights, places = router(x).squeeze(-1).topk(max(1, x.shape[1] // 8), -1)
            places = places.sort(-1).values[..., None].expand(-1, -1, 1024)
            y = block(x.gather(1, places)) * weights.sigmoid()[..., None]
            x = x.scatter_add(1, places, y)
        loss = token_loss(head(x), ids)
        descend(loss, optimizer, clip=1.0)


@program(
    "Experts take tokens up to a capacity, the others are dropped, and some experts are "
    "switched off for an iteration."
)
def _experts_with_capacity(run: Run) -> None:
    width, experts = 1024, 16
    embed = nn.Embedding(_VOCABULARY, width)
    blocks = nn.ModuleList(Block(width, causal=True) for _ in range(3))
    gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(3))
    layers = [[mlp(width, 2 * width, width) for _ in range(experts)] for _ in range(3)]
    head = nn.Linear(width, _VOCABULARY, bias=False)
    model = nn.ModuleList((embed, blocks, gates, *map(nn.ModuleList, layers), head)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        ids = tokens(8, 1024)
        x = embed(ids)
        for block, gate, layer in zip(blocks, gates, layers, strict=True):
            x = block(x)
            flat = x.flatten(0, 1)
            weights = gate(flat).softmax(-1).amax(-1, keepdim=True)
            on = run.rng.random(experts) > 0.1
            odds = run.rng.dirichlet([2.0] * experts) * on
            counts = run.rng.multinomial(len(flat), odds / odds.sum())
            out = torch.zeros_like(flat)
            for expert, count in zip(layer, counts, strict=True):
                held = min(int(count), len(flat) * 5 // (4 * experts))
                if held:
                    rows = tokens(held)
                    out = out.index_add(0, rows, expert(flat[rows]) * weights[rows])
            x = x + out.view_as(x)
        loss = token_loss(head(x), ids)
        descend(loss, optimizer, clip=1.0)


@program(
    "A supernet samples depth, width and image side: the sandwich rule trains the largest, "
    "the smallest and two in between in each iteration."
)
def _supernet(run: Run) -> None:
    widest = 256
    stem = nn.Conv2d(3, widest, 4, 4)
    weights = nn.ParameterList(nn.Parameter(torch.zeros(widest, widest, 3, 3)) for _ in range(10))
    head = nn.Linear(widest, 1000)
    parameters = [*stem.parameters(), *weights, *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)
    for _ in run:
        side = 32 * run.between(4, 7)
        images = torch.zeros(48, 3, side, side)
        choices = [(10, 256), (4, 128)]
        choices += [(run.between(4, 10), 32 * run.between(4, 8)) for _ in range(2)]
        wanted: Tensor | None = None
        for depth, width in choices:
            x = stem(images)[:, :width]
            for weight in weights[:depth]:
                y = functional.conv2d(x, weight[:width, :width].contiguous(), padding=1)
                x = x + functional.relu(y)
            scores = functional.linear(x.mean((2, 3)), head.weight[:, :width], head.bias)
            if wanted is None:
                loss = token_loss(scores, tokens(len(images)))
                wanted = scores.detach().softmax(-1)
            else:
                loss = functional.cross_entropy(scores, wanted)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program(
    "Fine-tuning begins with the head and thaws one more layer after each third iteration, "
    "whose state the optimizer makes then."
)
def _unfreezing(run: Run) -> None:
    model = Language(_VOCABULARY, 1280, 8, causal=False)
    head = nn.Linear(1280, 40)
    model.requires_grad_(False)
    optimizer = torch.optim.AdamW(head.parameters())
    for i in run:
        if i % 3 == 2 and i // 3 < len(model.body.blocks):
            block = model.body.blocks[-1 - i // 3].requires_grad_(True)
            optimizer.add_param_group({"params": list(block.parameters()), "lr": 1e-5})
        hidden = model.hidden(tokens(16, run.length(180, 512)))
        loss = token_loss(head(hidden.mean(1)), tokens(16))
        descend(loss, optimizer, clip=1.0)


class _Adapted(nn.Module):
    """A frozen layer and an adapter whose rank grows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, width), requires_grad=False)
        self.down = nn.Parameter(torch.zeros(8, width))
        self.up = nn.Parameter(torch.zeros(width, 8))

    def grow(self, more: int) -> None:
        """Replaces both factors by larger ones."""
        rows, columns = self.down.data, self.up.data
        self.down = nn.Parameter(torch.cat((rows, torch.zeros(more, rows.shape[1]))))
        self.up = nn.Parameter(torch.cat((columns, torch.zeros(len(columns), more)), 1))

    def forward(self, x: Tensor) -> Tensor:
        low = functional.linear(functional.dropout(x, 0.05), self.down)
        out: Tensor = functional.linear(x, self.weight) + functional.linear(low, self.up)
        return functional.silu(out)


@program(
    "Adapters of a frozen model get a higher rank after each fourth iteration, and a new "
    "optimizer with them."
)
def _growing_ranks(run: Run) -> None:
    layers = nn.Sequential(*(_Adapted(4096) for _ in range(8)))
    head = nn.Linear(4096, _VOCABULARY, bias=False).requires_grad_(False)

    def make() -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in layers.parameters() if p.requires_grad])

    optimizer = make()
    for i in run:
        if i % 4 == 3:
            for layer in layers:
                if isinstance(layer, _Adapted) and run.chance(0.6):
                    layer.grow(8 * run.between(1, 3))
            optimizer = make()
        ids = tokens(2, max(run.lengths(2, 500, 1400)))
        x = torch.zeros(*ids.shape, 4096).requires_grad_(True)
        loss = token_loss(head(layers(x)), ids)
        descend(loss, optimizer)


@program(
    "The batch grows with training: ever more microbatches are accumulated, and their lengths "
    "come from a curriculum that begins with short texts."
)
def _growing_accumulation(run: Run) -> None:
    model = Language(_VOCABULARY, 1024, 5).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for i in run:
        sums = torch.zeros(())
        longest = min(2048, 512 + 96 * i)
        microbatches = min(6, 1 + i // 4)
        for _ in range(microbatches):
            ids = tokens(4, run.between(longest // 2, longest) + 1)
            loss = token_loss(model(ids[:, :-1]), ids[:, 1:]) / microbatches
            sums += loss.detach()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@program("A network grows: a layer is stacked on it after each fifth iteration, with wider images.")
def _progressive_layers(run: Run) -> None:
    layers = nn.ModuleList([Residual(128, 128), Residual(128, 128)])
    stem, head = nn.Conv2d(3, 128, 4, 4), nn.Linear(128, 100)
    optimizer = torch.optim.SGD(
        [*stem.parameters(), *layers.parameters(), *head.parameters()], lr=0.1, momentum=0.9
    )
    encoder = Transformer(128, 2)
    optimizer.add_param_group({"params": list(encoder.parameters())})
    for i in run:
        if i % 5 == 4 and len(layers) < 10:
            layers.append(Residual(128, 128))
            optimizer.add_param_group({"params": list(layers[-1].parameters())})
        side = min(256, 96 + 16 * (i // 3))
        x = stem(torch.zeros(64, 3, side, side))
        for layer in layers:
            x = layer(x)
        pooled = encoder(functional.adaptive_avg_pool2d(x, 8).flatten(2).transpose(1, 2))
        loss = token_loss(head(pooled.mean(1)), tokens(64))
        descend(loss, optimizer)
