"""Images and clips whose sides, crops, boxes, frames or tokens vary."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Block,
    Residual,
    Transformer,
    average,
    convolutions,
    descend,
    frozen,
    mlp,
    patches,
    token_loss,
    tokens,
    total,
)
from programs.registry import Run, program


@program(
    "DINO: a teacher sees two large crops and a student these and a varying number of small "
    "ones, all crops of one side in one batch."
)
def _multi_crop(run: Run) -> None:
    student = nn.Sequential(nn.Linear(768, 768), Transformer(768, 4))
    head = mlp(768, 2048, 256, 16_384)
    teacher, teacher_head = frozen(student), frozen(head)
    both = nn.ModuleList((student, head))
    optimizer = torch.optim.AdamW(both.parameters())
    center = torch.zeros(1, 16_384)
    for i in run:
        small = run.between(4, 10)
        large_crops = torch.zeros(2 * 12, 3, 224, 224)
        small_crops = torch.zeros(small * 12, 3, 96, 96)
        with torch.no_grad():
            wanted = teacher_head(teacher(patches(large_crops, 16)).mean(1))
            targets = ((wanted - center) / 0.05).softmax(-1).chunk(2)
        crops = [student(patches(large_crops, 16)).mean(1)]
        crops.append(student(patches(small_crops, 16)).mean(1))
        outputs = (head(torch.cat(crops)) / 0.1).chunk(2 + small)
        losses = [
            -(target * output.log_softmax(-1)).sum(-1).mean()
            for j, target in enumerate(targets)
            for k, output in enumerate(outputs)
            if j != k
        ]
        loss = total(losses) / len(losses)
        optimizer.zero_grad()
        loss.backward()
        if i < 10:
            for parameter in head[-1].parameters():
                parameter.grad = None  # the last layer is frozen at first
        nn.utils.clip_grad_norm_(both.parameters(), 3.0)
        optimizer.step()
        average(teacher, student)
        average(teacher_head, head)
        center = center * 0.9 + wanted.mean(0, keepdim=True) * 0.1


@program(
    "DETR: images of a batch are padded to the largest sides, and each is matched with its "
    "boxes by a matrix of costs."
)
def _detection_with_queries(run: Run) -> None:
    backbone = convolutions(64)
    project = nn.Conv2d(512, 256, 1)
    encoder, decoder = Transformer(256, 3, dropout=0.1), Transformer(256, 3, cross=True)
    queries = nn.Embedding(100, 256)
    classify, locate = nn.Linear(256, 92), mlp(256, 256, 4)
    model = nn.ModuleList((backbone, project, encoder, decoder, queries, classify, locate))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in run:
        height, width = (32 * run.between(15, 30) for _ in range(2))
        features = project(backbone(torch.zeros(4, 3, height, width)))
        memory = encoder(features.flatten(2).transpose(1, 2))
        found = decoder(queries.weight.expand(4, -1, -1), memory)
        scores, boxes = classify(found), locate(found).sigmoid()
        losses = []
        for image in range(4):
            count = run.length(7, 60, 0.8)
            wanted = torch.zeros(count, 4)
            with torch.no_grad():
                cost = torch.cdist(boxes[image], wanted, p=1)
                cost = cost - scores[image].softmax(-1)[:, tokens(count)]
                cost.argmin(0)  # a greedy matching
            matched = boxes[image][tokens(count)]
            losses.append((matched - wanted).abs().sum() / count)
        losses.append(token_loss(scores, tokens(4, 100)))
        descend(total(losses), optimizer, clip=0.1)


@program(
    "Faster R-CNN: anchors are compared with the boxes of an image, proposals that remain are "
    "cut out of the features, and masks are predicted for those with an object."
)
def _detection_in_two_stages(run: Run) -> None:
    backbone = convolutions(64, 3)
    propose = nn.Conv2d(256, 15, 1)
    heads = mlp(256 * 49, 1024, 91)
    masks = nn.Sequential(Residual(256, 256), nn.ConvTranspose2d(256, 91, 2, 2))
    model = nn.ModuleList((backbone, propose, heads, masks))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in run:
        height, width = 32 * run.between(20, 28), 32 * run.between(20, 40)
        features = backbone(torch.zeros(4, 3, height, width))
        scores = propose(features)
        anchors = scores[0].numel()
        losses = [scores.sigmoid().mean()]
        pooled, positive = [], 0
        for image in range(4):
            boxes = run.length(8, 80, 0.8)
            overlap = torch.zeros(boxes, anchors)  # each box with each anchor
            overlap.amax(0)
            kept = run.between(250, 512)
            places = torch.zeros(1, kept * 7, 7, 2)
            cut = functional.grid_sample(features[image : image + 1], places, align_corners=False)
            pooled.append(cut.view(256, kept, 7, 7).transpose(0, 1))
            positive += min(kept // 4, boxes * 4)
            del overlap
        regions = torch.cat(pooled)
        losses.append(token_loss(heads(regions.flatten(1)), tokens(len(regions))))
        losses.append(masks(regions[tokens(positive)]).sigmoid().mean())
        descend(total(losses), optimizer)


@program(
    "Queries predict masks; masks of the true segments, whose number varies by image, are "
    "compared with them at full size after each decoder layer."
)
def _panoptic_masks(run: Run) -> None:
    backbone = convolutions(64, 3)
    up = nn.Conv2d(256, 256, 1)
    queries = nn.Embedding(100, 256)
    decoder = nn.ModuleList(Block(256, cross=True) for _ in range(3))
    classify = nn.Linear(256, 134)
    model = nn.ModuleList((backbone, up, queries, decoder, classify))
    optimizer = torch.optim.AdamW(model.parameters())
    for i in run:
        side = 64 * run.between(6, 12)
        features = up(backbone(torch.zeros(3, 3, side, side)))
        large = functional.interpolate(features, scale_factor=2, mode="bilinear")
        memory = features.flatten(2).transpose(1, 2)
        segments = run.lengths(3, 14, 60)
        truth = [torch.zeros(n, side // 4, side // 4) for n in segments]
        x = queries.weight.expand(3, -1, -1)
        losses = []
        for layer in decoder:
            x = layer(x, memory)
            masks = torch.einsum(
                "bqc,bchw->bqhw", x, functional.interpolate(large, (side // 4,) * 2)
            )
            for mask, wanted in zip(masks, truth, strict=True):
                chosen = mask[tokens(len(wanted))]
                losses.append(functional.binary_cross_entropy_with_logits(chosen, wanted))
                overlap = (chosen.sigmoid() * wanted).sum((1, 2))
                losses.append(1 - (2 * overlap / (chosen.sigmoid().sum((1, 2)) + 1)).mean())
            losses.append(token_loss(classify(x), tokens(3, 100)))
        descend(total(losses), optimizer, clip=0.01)
        if i % 7 == 6:
            with torch.no_grad():  # the log shows a picture
                functional.interpolate(masks.detach(), (side, side)).argmax(1)


@program(
    "A classifier trains on ever larger images, and is evaluated on the largest each six "
    "iterations."
)
def _progressive_sides(run: Run) -> None:
    model = nn.Sequential(convolutions(64), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Linear(512, 1000)
    both = nn.ModuleList((model, head))
    optimizer = torch.optim.RMSprop(both.parameters(), momentum=0.9)
    for i in run:
        side = min(288, 128 + 16 * (i // 2))
        x = model(torch.zeros(96, 3, side, side))
        loss = token_loss(head(x), tokens(96))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 6 == 5:
            both.eval()
            with torch.no_grad():
                for _ in range(3):
                    scores = head(model(torch.zeros(128, 3, 288, 288)))
                    scores.topk(5)
            both.train()


@program(
    "Clips have from 8 to 40 frames and three sides; attention in time and in space alternates."
)
def _video_clips(run: Run) -> None:
    embed = nn.Linear(768, 768)
    space, time = Transformer(768, 3, recompute=True), Transformer(768, 3)
    head = nn.Linear(768, 400)
    model = nn.ModuleList((embed, space, time, head)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        frames, side = run.between(8, 40), (160, 192, 224)[run.between(0, 2)]
        clip = torch.zeros(4 * frames, 3, side, side, dtype=torch.bfloat16)
        x = space(embed(patches(clip, 16)))
        x = x.unflatten(0, (4, frames)).transpose(1, 2).flatten(0, 1)
        x = time(x).unflatten(0, (4, -1)).mean((1, 2))
        descend(token_loss(head(x), tokens(4)), optimizer, clip=1.0)


@program("Each layer merges like tokens: how many depends on the batch.")
def _token_merging(run: Run) -> None:
    embed = nn.Linear(768, 1024)
    blocks = nn.ModuleList(Block(1024) for _ in range(8))
    head = nn.Linear(1024, 1000)
    model = nn.ModuleList((embed, blocks, head)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        x = embed(patches(torch.zeros(32, 3, 384, 384, dtype=torch.bfloat16), 16))
        for block in blocks:
            x = block(x)
            merged = run.between(16, 72)
            if x.shape[1] > 2 * merged:
                even, odd = x[:, ::2], x[:, 1::2]
                metric = functional.normalize(x.detach(), dim=-1)
                like = metric[:, ::2] @ metric[:, 1::2].transpose(1, 2)
                like.max(-1)
                taken = tokens(32, merged, 1).expand(-1, -1, 1024)
                rest = tokens(32, even.shape[1] - merged, 1).expand(-1, -1, 1024)
                odd = odd.scatter_reduce(1, taken, even.gather(1, taken), "mean")
                x = torch.cat((even.gather(1, rest), odd), 1)
        descend(token_loss(head(x.mean(1)), tokens(32)), optimizer)


@program(
    "Images keep their shape; those of a batch are one sequence, and attention works on each alone."
)
def _native_resolution(run: Run) -> None:
    embed = nn.Linear(588, 1152)
    blocks = nn.ModuleList(Block(1152) for _ in range(3))
    project = mlp(4608, 2048, 2048)
    model = nn.ModuleList((embed, blocks, project)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    kept: list[Tensor] = []
    for _ in run:
        counts = [4 * run.length(240, 1100, 0.7) for _ in range(run.between(3, 9))]
        x = embed(torch.zeros(1, sum(counts), 588, dtype=torch.bfloat16))
        for block in blocks:
            x = torch.cat([block(part) for part in x.split(counts, 1)], 1)
        merged = project(x.view(1, -1, 4608))
        kept = [part.mean(1) for part in merged.split([n // 4 for n in counts], 1)]
        descend(total([part.float().square().mean() for part in kept]), optimizer, clip=1.0)
