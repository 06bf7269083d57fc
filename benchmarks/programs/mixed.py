"""Several tasks, data that come later, and several kinds of input in one training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Language,
    Transformer,
    convolutions,
    descend,
    frozen,
    patches,
    token_loss,
    tokens,
)
from programs.registry import Run, program


@program(
    "Two tasks with a trunk in common take turns: short texts with a class, and long ones "
    "whose words are predicted; both losses are logged."
)
def _two_tasks(run: Run) -> None:
    trunk = Language(32_000, 1024, 5, causal=False, dropout=0.1)
    classify = nn.Linear(1024, 12)
    optimizer = torch.optim.AdamW([*trunk.parameters(), *classify.parameters()])
    losses: dict[bool, Tensor] = {}
    for i in run:
        long = i % 2 == 1 if i < 12 else run.chance(0.4)
        if long:
            ids = tokens(6, max(run.lengths(6, 400, 1200)))
            loss = token_loss(trunk(ids), ids)
        else:
            ids = tokens(48, max(run.lengths(48, 30, 128)))
            loss = token_loss(classify(trunk.hidden(ids)[:, 0]), tokens(48))
        losses[long] = loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trunk.parameters(), 1.0)
        optimizer.step()


@program(
    "Continual learning: examples of earlier tasks stay in a buffer that grows, the batch has "
    "a share of them, and the model of the last task, kept as a copy, is distilled."
)
def _growing_replay(run: Run) -> None:
    model = nn.Sequential(convolutions(64), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    heads = nn.ModuleList([nn.Linear(512, 20)])
    optimizer = torch.optim.SGD([*model.parameters(), *heads.parameters()], lr=0.05, momentum=0.9)
    before: nn.Module | None = None
    buffer: list[Tensor] = []
    for i in run:
        images = torch.zeros(64, 3, 160, 160)
        if buffer:
            images = torch.cat((images, torch.cat(buffer)[tokens(min(64, 8 * len(buffer)))]))
        features = model(images)
        scores = torch.cat([head(features) for head in heads], 1)
        loss = token_loss(scores, tokens(len(images)))
        if before is not None:
            with torch.no_grad():
                wanted = before(images)
            loss = loss + functional.mse_loss(features, wanted)
        descend(loss, optimizer)
        if run.chance(0.7):
            buffer.append(images[: run.between(8, 32)].clone())
        if i % 8 == 7:
            before = frozen(model)
            heads.append(nn.Linear(512, 20))
            optimizer.add_param_group({"params": list(heads[-1].parameters())})


@program(
    "Half-supervised: a teacher labels images without labels, those it is sure of train, and "
    "the student sees both in one batch."
)
def _noisy_students(run: Run) -> None:
    model = nn.Sequential(
        convolutions(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 200)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    sure: list[Tensor] = []
    for i in run:
        weak, strong = (torch.zeros(256, 3, 112, 112) for _ in range(2))
        with torch.no_grad():
            odds = model(weak).softmax(-1)
        chosen = int(run.rng.binomial(256, min(0.9, 0.1 + 0.04 * i)))
        images = torch.cat((torch.zeros(64, 3, 112, 112), strong[tokens(chosen)]))
        scores = model(images)
        loss = token_loss(scores[:64], tokens(64))
        if chosen:
            loss = loss + token_loss(scores[64:], tokens(chosen))
        sure.append(odds.amax(-1))
        descend(loss, optimizer)
        if i % 9 == 8:
            torch.cat(sure).mean()
            sure.clear()


@program(
    "Pictures, sounds and texts of a batch go through towers of their own, of which a row may "
    "lack any; the towers align in pairs."
)
def _several_kinds_of_input(run: Run) -> None:
    pictures = nn.Sequential(nn.Linear(768, 768), Transformer(768, 4))
    sounds = nn.Sequential(nn.Linear(256, 768), Transformer(768, 4))
    texts = nn.Sequential(nn.Embedding(32_000, 768), Transformer(768, 4))
    towers = nn.ModuleList((pictures, sounds, texts)).bfloat16()
    optimizer = torch.optim.AdamW(towers.parameters(), foreach=True)
    for i in run:
        rows = 48
        has = [rows - int(run.rng.binomial(rows, odds)) for odds in (0.3, 0.5, 0.1)]
        found = []
        if has[0]:
            images = torch.zeros(has[0], 3, 224, 224, dtype=torch.bfloat16)
            found.append(pictures(patches(images, 16)).mean(1))
        if has[1]:
            frames = run.length(350, 900)
            found.append(sounds(torch.zeros(has[1], frames, 256, dtype=torch.bfloat16)).mean(1))
        found.append(texts(tokens(has[2], max(run.lengths(has[2], 30, 160)))).mean(1))
        losses = []
        for k, one in enumerate(found):
            for other in found[:k]:
                shared = min(len(one), len(other))
                like = one[:shared].float() @ other[:shared].float().t()
                losses.append(token_loss(like, tokens(shared)))
        loss = torch.stack(losses).mean()
        descend(loss, optimizer, clip=1.0 if i else 0.1)
