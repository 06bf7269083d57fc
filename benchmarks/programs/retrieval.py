"""Retrieval, contrast and recommendation: queues, bags, late interaction, cached gradients."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Transformer,
    average,
    convolutions,
    descend,
    frozen,
    log_likelihood,
    mlp,
    patches,
    token_loss,
    tokens,
    total,
)
from programs.registry import Run, program

_VOCABULARY = 32_000


@program(
    "MoCo: keys of an averaged encoder go into a queue, which is a new tensor after each "
    "iteration; a classifier of neighbours is evaluated at times."
)
def _contrast_with_queue(run: Run) -> None:
    model = nn.Sequential(
        convolutions(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), mlp(512, 512, 128)
    )
    keys = frozen(model)
    queue = torch.zeros(128, 65_536)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for i in run:
        rows = 96 if run.chance(0.85) else run.between(32, 95)  # the last batch of a shard
        q = functional.normalize(model(torch.zeros(rows, 3, 160, 160)), dim=1)
        average(keys, model)
        with torch.no_grad():
            k = functional.normalize(keys(torch.zeros(rows, 3, 160, 160)), dim=1)
        like = torch.cat(((q * k).sum(1, keepdim=True), q @ queue.detach()), 1)
        loss = token_loss(like / 0.07, tokens(rows))
        descend(loss, optimizer)
        queue = torch.cat((k.t(), queue[:, : 65_536 - rows]), 1)
        if i % 8 == 5:
            model.eval()
            with torch.no_grad():
                bank = torch.cat([model(torch.zeros(256, 3, 160, 160)) for _ in range(4)])
                (bank @ bank.t()).topk(20)
            model.train()


@program(
    "ColBERT: every token of a query is compared with every token of the texts, one that "
    "answers and several that do not."
)
def _late_interaction(run: Run) -> None:
    embed = nn.Embedding(_VOCABULARY, 768)
    encoder = Transformer(768, 5)
    project = nn.Linear(768, 128)
    model = nn.ModuleList((embed, encoder, project)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        optimizer.zero_grad()
        negatives = run.between(3, 9)
        queries = functional.normalize(project(encoder(embed(tokens(24, 32)))), dim=-1)
        length = max(run.lengths(8, 110, 300))
        texts = project(encoder(embed(tokens(24 * (1 + negatives), length))))
        texts = functional.normalize(texts, dim=-1).unflatten(0, (24, -1))
        like = torch.einsum("qtd,qnsd->qnts", queries, texts).float()
        scores = like.amax(-1).sum(-1)
        crossed = torch.einsum("qtd,psd->qpts", queries, texts[:, 0]).float().amax(-1).sum(-1)
        loss = token_loss(scores, tokens(24)) + token_loss(crossed, tokens(24))
        loss.backward()
        optimizer.step()


@program(
    "GradCache: a large batch is embedded in parts without gradients, the loss gives "
    "gradients of the embeddings, and each part runs again to use them."
)
def _cached_gradients(run: Run) -> None:
    embed = nn.Embedding(_VOCABULARY, 1024)
    encoder = Transformer(1024, 3, dropout=0.1)
    model = nn.ModuleList((embed, encoder)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def represent(ids: Tensor) -> Tensor:
        return functional.normalize(encoder(embed(ids)).mean(1), dim=-1)

    for _ in run:
        parts = [tokens(32, max(run.lengths(4, n, 512))) for n in (24, 24, 24, 160, 160, 160)]
        with torch.no_grad():
            cached = [represent(part) for part in parts]
        leaves = [part.detach().requires_grad_(True) for part in cached]
        queries, texts = torch.cat(leaves[:3]), torch.cat(leaves[3:])
        loss = token_loss(queries @ texts.t() / 0.02, tokens(len(queries)))
        loss.backward()
        for part, leaf in zip(parts, leaves, strict=True):
            represent(part).backward(leaf.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@program(
    "DLRM: each table sums the rows of bags whose sizes differ by table and by batch; "
    "products of pairs of features follow."
)
def _sparse_bags(run: Run) -> None:
    sizes = (1_000_000, 600_000, 300_000, 200_000, 100_000, 50_000, 10_000, 5_000)
    tables = nn.ModuleList(nn.EmbeddingBag(n, 64, mode="sum") for n in sizes)
    bottom, top = mlp(13, 512, 256, 64), mlp(64 + 36, 1024, 1024, 1)
    dense = torch.optim.SGD([*bottom.parameters(), *top.parameters()], lr=0.1)
    sparse = torch.optim.SGD(tables.parameters(), lr=0.1)
    hits: list[Tensor] = []
    for i in run:
        rows = 32_768
        features = [bottom(torch.zeros(rows, 13))]
        for k, table in enumerate(tables):
            looked = int(rows * (1 + 6 * (k % 4)) * run.rng.lognormal(0, 0.25))
            features.append(table(tokens(looked), tokens(rows)))
        stacked = torch.stack(features, 1)
        pairs = (stacked @ stacked.transpose(1, 2)).flatten(1)[:, tokens(36)]
        scores = top(torch.cat((features[0], pairs), 1)).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(scores, torch.zeros(rows))
        hits.append(scores.detach().sigmoid())
        loss.backward()
        dense.step()
        sparse.step()
        dense.zero_grad()
        sparse.zero_grad()
        if i % 6 == 5:
            torch.cat(hits).sort()  # the area under the curve
            hits.clear()


@program(
    "A recommender of sequences: histories are flattened without padding, and their scores "
    "are of sampled items, as many as the batch has."
)
def _histories_with_sampled_negatives(run: Run) -> None:
    items = nn.Embedding(400_000, 256)
    encoder = Transformer(256, 4, causal=True, dropout=0.2)
    optimizer = torch.optim.Adam([*items.parameters(), *encoder.parameters()])
    for i in run:
        lengths = run.lengths(128, 60, 400, 0.9)
        hidden = encoder(items(tokens(128, max(lengths))))
        flat = hidden.flatten(0, 1)[tokens(sum(lengths))]
        positive = (flat * items(tokens(len(flat)))).sum(-1, keepdim=True)
        negative = (items(tokens(len(flat), 32)) @ flat[..., None]).squeeze(-1)
        loss = token_loss(torch.cat((positive, negative), 1), tokens(len(flat)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 6:
            encoder.eval()
            with torch.no_grad():
                last = encoder(items(tokens(512, 200)))[:, -1]
                (last @ items.weight.t()).topk(100)
            encoder.train()


@program(
    "A model of many tables: each batch comes from one, with its own number of columns, and "
    "rows for examples that attention may see."
)
def _tabular_cardinalities(run: Run) -> None:
    categories = nn.Embedding(200_000, 256)
    numbers = nn.Linear(1, 256)
    columns, rows = Transformer(256, 3), Transformer(256, 3)
    head = nn.Linear(256, 100)
    model = nn.ModuleList((categories, numbers, columns, rows, head))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in run:
        known, asked = run.length(500, 1500), run.between(64, 400)
        kinds, values = run.length(8, 40, 0.7), run.length(15, 60, 0.7)
        cells = [categories(tokens(known + asked, kinds))]
        cells.append(numbers(torch.zeros(known + asked, values, 1)))
        x = columns(torch.cat(cells, 1)).mean(1)
        y = rows(x[None])[0, known:]
        classes = run.between(2, 100)
        loss = token_loss(head(y)[:, :classes], tokens(asked))
        descend(loss, optimizer, clip=1.0)


@program(
    "A model of images among texts: some rows have none, some have several, and the tower of "
    "images takes all of a batch, or does not run."
)
def _images_and_texts(run: Run) -> None:
    tower = nn.Sequential(nn.Linear(768, 1024), Transformer(1024, 4)).bfloat16()
    embed = nn.Embedding(_VOCABULARY, 1024)
    body = Transformer(1024, 5, causal=True)
    head = nn.Linear(1024, _VOCABULARY, bias=False)
    model = nn.ModuleList((embed, body, head)).bfloat16()
    tower_frozen = False
    optimizer = torch.optim.AdamW([*model.parameters(), *tower.parameters()], foreach=True)
    for i in run:
        counts = run.rng.poisson(0.9, 4) if run.chance(0.75) else [0] * 4
        images = int(sum(counts))
        length = max(
            n + 196 * int(c) for n, c in zip(run.lengths(4, 350, 1200), counts, strict=True)
        )
        ids = tokens(4, length)
        x = embed(ids)
        if images:
            pixels = torch.zeros(images, 3, 224, 224, dtype=torch.bfloat16)
            with torch.no_grad() if tower_frozen else nullcontext():
                seen = tower(patches(pixels, 16)).flatten(0, 1)
            places = tokens(len(seen))
            x = x.flatten(0, 1).index_copy(0, places, seen).view_as(x)
        loss = -log_likelihood(head(body(x)), ids).mean()
        losses = [loss]
        descend(total(losses), optimizer, clip=1.0)
        tower_frozen = i % 7 == 6
