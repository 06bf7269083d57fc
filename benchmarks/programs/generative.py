"""Images and scenes: diffusion, adversaries, code books, points and rays."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Residual,
    Transformer,
    average,
    convolutions,
    descend,
    frozen,
    mlp,
    tokens,
)
from programs.registry import Run, program


def _decoder(channels: int, outputs: int = 3) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (channels, channels // 2, channels // 4):
        layers += [
            Residual(width, width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width // 2, 3, 1, 1),
        ]
    return nn.Sequential(*layers, nn.Conv2d(channels // 8, outputs, 3, 1, 1))


@program(
    "A transformer learns to remove noise from the latents of a frozen autoencoder, in "
    "buckets of aspect ratios, with texts of all lengths; an average of the weights makes "
    "samples at times."
)
def _latent_diffusion(run: Run) -> None:
    encoder = frozen(convolutions(64, 2)).bfloat16()
    decoder = frozen(_decoder(256)).bfloat16()
    inside, outside = nn.Linear(512, 1024), nn.Linear(1024, 512)
    body = Transformer(1024, 5, cross=True)
    model = nn.ModuleList((inside, body, outside)).bfloat16()
    mean = frozen(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def predict(parts: nn.ModuleList, latents: Tensor, text: Tensor) -> Tensor:
        x = functional.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)
        y: Tensor = parts[2](parts[1](parts[0](x), text))
        return y

    shapes = ((512, 512), (448, 576), (576, 448), (384, 704), (640, 640))
    for i in run:
        height, width = shapes[run.between(0, 4)]
        with torch.no_grad():
            images = torch.zeros(12, 3, height, width, dtype=torch.bfloat16)
            latents = encoder(images)
            noise = torch.randn_like(latents)
        text = torch.zeros(12, run.length(30, 120), 1024, dtype=torch.bfloat16)
        wanted = functional.pixel_unshuffle(noise, 2).flatten(2).transpose(1, 2)
        loss = functional.mse_loss(predict(model, latents + noise, text).float(), wanted.float())
        descend(loss, optimizer, clip=1.0)
        average(mean, model)
        if i % 8 == 3:
            with torch.no_grad():
                x = torch.zeros(8, 128, 64, 64, dtype=torch.bfloat16)
                for _ in range(6):
                    step = predict(mean, torch.cat((x, x)), text[:1].expand(16, -1, -1))
                    low, high = step.transpose(1, 2).unflatten(2, (32, 32)).chunk(2)
                    x = x - functional.pixel_shuffle(low + 4 * (high - low), 2)
                samples = decoder(torch.cat((x, x), 1))
                samples.clamp(-1, 1).float()


@program(
    "A generator and its adversary: a penalty on the adversary's gradients each fourth "
    "iteration, one on the lengths of paths each eighth, and an average of the generator."
)
def _adversary_with_penalty(run: Run) -> None:
    generator = nn.Sequential(nn.Linear(512, 512 * 64), nn.Unflatten(1, (512, 8, 8)), _decoder(512))
    adversary = nn.Sequential(convolutions(64, 3), nn.Flatten(), nn.Linear(256 * 16, 1))
    mean = frozen(generator)
    first = torch.optim.Adam(generator.parameters(), betas=(0.0, 0.99))
    second = torch.optim.Adam(adversary.parameters(), betas=(0.0, 0.99))
    for i in run:
        rows = 64
        made = generator(torch.zeros(rows, 512))
        descend(functional.softplus(-adversary(made)).mean(), first)
        real = torch.zeros(rows, 3, 64, 64)
        with torch.no_grad():
            made = generator(torch.zeros(rows, 512))
        loss = functional.softplus(adversary(made)).mean()
        loss = loss + functional.softplus(-adversary(real)).mean()
        descend(loss, second)
        if i % 4 == 0:
            real.requires_grad_(True)
            (slope,) = torch.autograd.grad(adversary(real).sum(), real, create_graph=True)
            descend(slope.square().sum((1, 2, 3)).mean(), second)
        if i % 8 == 0:
            code = torch.zeros(rows // 2, 512, requires_grad=True)
            images = generator(code)
            noise = torch.randn_like(images)
            (slope,) = torch.autograd.grad((images * noise).sum(), code, create_graph=True)
            descend(slope.square().sum(-1).sqrt().var(), first)
        average(mean, generator)


@program(
    "An autoencoder with a code book: vectors are compared with all codes, codes that nothing "
    "uses are replaced, and an adversary joins after twelve iterations."
)
def _code_book(run: Run) -> None:
    encoder, decoder = convolutions(64, 2), _decoder(128)
    adversary = nn.Sequential(convolutions(64, 3), nn.Conv2d(256, 1, 3))
    codes = nn.Parameter(torch.zeros(8192, 128))
    parameters = [*encoder.parameters(), *decoder.parameters(), codes]
    optimizer = torch.optim.Adam(parameters)
    second = torch.optim.Adam(adversary.parameters())
    for i in run:
        side = 16 * run.between(10, 16)
        images = torch.zeros(12, 3, side, side)
        z = encoder(images)
        flat = z.permute(0, 2, 3, 1).flatten(0, 2)
        with torch.no_grad():
            away = torch.cdist(flat, codes)
            chosen = away.argmin(-1)
            used = functional.one_hot(chosen, 8192).sum(0) if i % 5 == 4 else None
        y = codes[chosen]
        loss = functional.mse_loss(y, flat.detach()) + functional.mse_loss(flat, y.detach())
        y = flat + (y - flat).detach()
        made = decoder(y.unflatten(0, (12, side // 8, side // 8)).permute(0, 3, 1, 2))
        loss = loss + (made - images).abs().mean()
        if i >= 12:
            loss = loss - adversary(made).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i >= 12:
            real, false = adversary(images), adversary(made.detach())
            second.zero_grad()
            (functional.relu(1 - real).mean() + functional.relu(1 + false).mean()).backward()
            second.step()
        if used is not None:
            with torch.no_grad():
                dead = run.between(10, 2000)
                codes[tokens(dead)] = flat[tokens(dead)]
                used.float().softmax(0)


def _replaced(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, count: int) -> None:
    """Gives every parameter, and both of its moments, so many points: as splitting code does."""
    for k, group in enumerate(optimizer.param_groups):
        old = parameters[k]
        state = optimizer.state.pop(old, None)
        keep = tokens(min(count, len(old)))
        more = count - len(keep)

        def resized(t: Tensor, keep: Tensor = keep, more: int = more) -> Tensor:
            return torch.cat((t[keep], torch.zeros(more, *t.shape[1:])))

        new = nn.Parameter(resized(old.detach()))
        if state is not None:
            state["exp_avg"] = resized(state["exp_avg"])
            state["exp_avg_sq"] = resized(state["exp_avg_sq"])
            optimizer.state[new] = state
        group["params"] = [new]
        parameters[k] = new


@program(
    "A scene of points: they are split and pruned after each third iteration, which replaces "
    "all parameters and the optimizer's state; each view shows some of them."
)
def _gaussian_splatting(run: Run) -> None:
    count = 600_000
    shapes = ((3,), (4,), (3,), (1,), (15, 3), (1, 3))
    points = [nn.Parameter(torch.zeros(count, *shape)) for shape in shapes]
    optimizer = torch.optim.Adam([{"params": [p]} for p in points], eps=1e-15)
    seen = torch.zeros(count)
    for i in run:
        visible = int(count * run.rng.uniform(0.3, 0.8))
        rows = tokens(visible)
        place, turn, scale, alpha, color, base = (p[rows] for p in points)
        turn = functional.normalize(turn, dim=-1)
        matrix = (turn[:, :3, None] * scale.exp()[:, None]).contiguous()
        covariance = matrix @ matrix.transpose(1, 2)
        light = (torch.cat((base, color), 1) * torch.zeros(visible, 16, 1)).sum(1).sigmoid()
        pairs = int(visible * run.rng.uniform(2.0, 5.0))  # a pair is a point and a tile
        order = torch.zeros(pairs, dtype=torch.long).argsort()
        near = (light * alpha.sigmoid() + place + covariance.mean(1))[order % visible]
        image = torch.zeros(1080 * 1920 // 16, 3).index_add(0, order, near)
        wanted = torch.zeros_like(image)
        loss = (image - wanted).abs().mean() + (image - wanted).square().mean()
        loss.backward()
        with torch.no_grad():
            seen[rows] += 1
        if i % 3 == 2 and i < 60:
            cloned = int(count * run.rng.uniform(0.02, 0.15))
            pruned = int(count * run.rng.uniform(0.0, 0.06))
            _replaced(points, optimizer, count + cloned)
            count += cloned - pruned
            _replaced(points, optimizer, count)
            seen = torch.zeros(count)
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@program(
    "Rays march through an occupied grid; only samples in occupied cells go through the "
    "network, ever fewer of them, and the number of rays grows in turn."
)
def _radiance_field(run: Run) -> None:
    table = nn.Parameter(torch.zeros(16, 1 << 19, 2))
    density, color = mlp(32, 256, 256, 16), mlp(16 + 16, 256, 256, 3)
    parameters = [table, *density.parameters(), *color.parameters()]
    optimizer = torch.optim.Adam(parameters, eps=1e-15)
    rays = 4096
    for i in run:
        share = max(0.05, 0.6 * 0.93**i) * run.rng.uniform(0.8, 1.2)
        samples = int(rays * 256 * share)
        with torch.no_grad():
            places = torch.zeros(rays, 256, 3)
            inside = (places > 0).all(-1)
            kept = places.flatten(0, 1)[tokens(samples)]
            del places, inside
        corners = (kept[:, None] * torch.zeros(16, 1)).long().sum(-1)
        features = torch.stack([table[k, corners[:, k]] for k in range(16)], 1).flatten(1)
        z = density(features)
        rgb = color(torch.cat((z, torch.zeros(samples, 16)), -1)).sigmoid()
        weights = z[:, :1].exp() * z[:, :1].cumsum(0).neg().exp()
        image = torch.zeros(rays, 3).index_add(0, tokens(samples), weights * rgb)
        loss = functional.smooth_l1_loss(image, torch.zeros_like(image))
        descend(loss, optimizer)
        rays = max(1024, min(65_536, int(rays * (1 << 19) / samples)))
        if i % 16 == 15:
            with torch.no_grad():
                density(torch.zeros(1 << 20, 32))[:, 0].exp()  # the whole grid
