"""Reinforcement learning: buffers of what was played, targets, delayed updates, dreams."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import Transformer, average, convolutions, descend, frozen, mlp, tokens, total
from programs.registry import Run, program


@program(
    "PPO on a game: a buffer fills frame by frame, then several epochs of minibatches train, "
    "and an epoch stops early when the policy has moved enough."
)
def _rollouts(run: Run) -> None:
    trunk = nn.Sequential(convolutions(32, 3, inputs=4), nn.Flatten(), nn.LazyLinear(512))
    trunk(torch.zeros(1, 4, 84, 84))
    policy, value = nn.Linear(512, 18), nn.Linear(512, 1)
    model = nn.ModuleList((trunk, policy, value))
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-5)
    for i in run:
        environments, steps = 384, 8
        frames, odds, values = [], [], []
        with torch.no_grad():
            for _ in range(steps):
                frames.append(torch.zeros(environments, 4, 84, 84))
                hidden = trunk(frames[-1])
                odds.append(policy(hidden).log_softmax(-1))
                values.append(value(hidden).squeeze(1))
            advantages = torch.stack(values) - torch.stack(values).mean()
        seen, old = torch.cat(frames), torch.cat(odds)
        flat = advantages.flatten()
        for _ in range(run.between(1, 2)):
            for rows in torch.randperm(len(seen)).chunk(2):
                hidden = trunk(seen[rows])
                now = policy(hidden).log_softmax(-1)
                ratio = (now - old[rows]).exp().mean(-1)
                gain = torch.minimum(ratio * flat[rows], ratio.clamp(0.9, 1.1) * flat[rows])
                error = (value(hidden).squeeze(1) - flat[rows]).square()
                entropy = -(now.exp() * now).sum(-1)
                loss = (0.5 * error - gain - 0.01 * entropy).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        if i % 6 == 5:
            flat.std()


@program(
    "TD3 from pixels: two critics train in each iteration, actor and targets in every second, "
    "out of a buffer on the GPU that grows in pieces."
)
def _delayed_actor(run: Run) -> None:
    encoder = nn.Sequential(convolutions(32, 3, inputs=9), nn.Flatten(), nn.LazyLinear(256))
    encoder(torch.zeros(1, 9, 84, 84))
    actor = mlp(256, 1024, 1024, 8)
    critics = nn.ModuleList(mlp(264, 1024, 1024, 1) for _ in range(2))
    targets, actor_target, encoder_target = frozen(critics), frozen(actor), frozen(encoder)
    first = torch.optim.Adam(actor.parameters())
    second = torch.optim.Adam([*critics.parameters(), *encoder.parameters()])
    buffer: list[Tensor] = []
    for i in run:
        buffer.append(torch.zeros(run.between(200, 1000), 9, 84, 84, dtype=torch.uint8))
        if len(buffer) > 12:
            buffer.pop(0)
        seen, later = (torch.cat(buffer)[tokens(256)].float() / 255 for _ in range(2))
        with torch.no_grad():
            z = encoder_target(later)
            moves = torch.cat((z, actor_target(z).tanh()), 1)
            wanted = torch.minimum(*(target(moves) for target in targets))
        z = encoder(seen)
        pairs = torch.cat((z, torch.zeros(256, 8)), 1)
        loss = total([functional.mse_loss(critic(pairs), wanted) for critic in critics])
        descend(loss, second)
        if i % 2:
            z = z.detach()
            loss = -critics[0](torch.cat((z, actor(z).tanh()), 1)).mean()
            descend(loss, first)
            critics.zero_grad()
            average(targets, critics)
            average(actor_target, actor)
            average(encoder_target, encoder)


@program(
    "Dreamer: a recurrent model learns from episodes cut at their ends, then an actor and a "
    "critic train on dreams that start at each of its states."
)
def _world_model(run: Run) -> None:
    encoder = nn.Sequential(convolutions(32, 3), nn.Flatten(), nn.LazyLinear(512))
    encoder(torch.zeros(1, 3, 64, 64))
    cell = nn.GRUCell(512 + 16, 1024)
    decoder = mlp(1024, 2048, 3 * 64 * 64)
    actor, critic = mlp(1024, 512, 512, 16), mlp(1024, 512, 512, 255)
    dream = mlp(1024, 512, 512)
    model = nn.ModuleList((encoder, cell, decoder, dream))
    slow = frozen(critic)
    optimizers = [torch.optim.Adam(m.parameters(), eps=1e-8) for m in (model, actor, critic)]
    for _ in run:
        rows, steps, horizon = 24, run.between(14, 28), 8
        images = torch.zeros(rows * steps, 3, 64, 64)
        seen = encoder(images).unflatten(0, (rows, steps))
        state, states = torch.zeros(rows, 1024), []
        for t in range(steps):
            state = cell(torch.cat((seen[:, t], torch.zeros(rows, 16)), 1), state)
            states.append(state)
        hidden = torch.stack(states, 1).flatten(0, 1)
        loss = functional.mse_loss(decoder(hidden), images.flatten(1))
        loss = loss + (dream(hidden) - seen.flatten(0, 1).detach()).square().mean()
        descend(loss, optimizers[0], clip=1000.0)
        state, dreamt = hidden.detach(), []
        for _ in range(horizon):
            move = functional.gumbel_softmax(actor(state), dim=-1)
            state = cell(torch.cat((dream(state), move), 1), state)
            dreamt.append(state)
        dreams = torch.stack(dreamt)
        values = critic(dreams).softmax(-1).mean(-1)
        descend(-values.mean(), optimizers[1], clip=100.0)
        model.zero_grad()
        critic.zero_grad()
        with torch.no_grad():
            wanted = slow(dreams).softmax(-1)
        loss = -(wanted * critic(dreams.detach()).log_softmax(-1)).sum(-1).mean()
        descend(loss, optimizers[2], clip=100.0)
        average(slow, critic)


@program(
    "A decision transformer: windows of trajectories of varying length, and episodes played "
    "with a context that grows after each fifth iteration."
)
def _returns_as_tokens(run: Run) -> None:
    inside = [nn.Linear(1, 768), nn.Linear(376, 768), nn.Linear(17, 768)]
    body = Transformer(768, 6, causal=True, dropout=0.1)
    out = nn.Linear(768, 17)
    model = nn.ModuleList((*inside, body, out))
    optimizer = torch.optim.AdamW(model.parameters())

    def act(rows: int, steps: int) -> Tensor:
        parts = [m(torch.zeros(rows, steps, m.in_features)) for m in inside]
        x = torch.stack(parts, 2).flatten(1, 2)
        y: Tensor = out(body(x)[:, 1::3])
        return y

    for i in run:
        steps = run.between(10, 60)
        loss = act(64, steps).square().mean()
        descend(loss, optimizer, clip=0.25)
        if i % 5 == 4:
            model.eval()
            with torch.no_grad():
                played = [act(200, 4 * t)[:, -1] for t in range(1, run.between(5, 16))]
                torch.stack(played).mean()
            model.train()
