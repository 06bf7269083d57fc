"""Alignment of language models: preferences, rewards, and generation between the updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Language,
    Transformer,
    ceil,
    descend,
    frozen,
    log_likelihood,
    tokens,
)
from programs.registry import Run, program

_VOCABULARY = 32_000


class _Scalar(nn.Module):
    """A model that gives each token a value: a reward or a critic."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, width)
        self.body = Transformer(width, depth, causal=True)
        self.value = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.value(self.body(self.embed(ids))).squeeze(-1)
        return y


@program(
    "PPO: samples answers, scores them with a reward model and a reference, and trains twice "
    "on each minibatch of what they were."
)
def _ppo_with_reward_model(run: Run) -> None:
    policy = Language(_VOCABULARY, 1536, 2).bfloat16()
    critic = _Scalar(1536, 2).bfloat16()
    reference, reward = frozen(policy), frozen(critic)
    optimizer = torch.optim.AdamW(policy.parameters(), foreach=True)
    critic_optimizer = torch.optim.AdamW(critic.parameters(), foreach=True)
    for _ in run:
        prompt = tokens(32, max(run.lengths(4, 120, 400)))
        ids = policy.generate(prompt, run.between(4, 9))
        ids = torch.cat((ids, tokens(32, run.length(150, 500))), 1)  # the rest of the answers
        old, known, values = [], [], []
        with torch.no_grad():
            for rows in ids.split(16):
                old.append(log_likelihood(policy(rows[:, :-1]), rows[:, 1:]))
                known.append(log_likelihood(reference(rows[:, :-1]), rows[:, 1:]))
                values.append(critic(rows)[:, :-1].float())
            scores = torch.cat([reward(rows)[:, -1] for rows in ids.split(16)])
            penalty = torch.cat(old) - torch.cat(known)
            returns = scores[:, None] - 0.1 * penalty
            advantages = returns - torch.cat(values)
        for _ in range(2):
            for i, rows in enumerate(ids.split(16)):
                now = log_likelihood(policy(rows[:, :-1]), rows[:, 1:])
                ratio = (now - old[i]).exp()
                mine = advantages[16 * i : 16 * i + 16]
                loss = -torch.minimum(ratio * mine, ratio.clamp(0.8, 1.2) * mine).mean()
                descend(loss, optimizer, clip=1.0)
                value = critic(rows)[:, :-1].float()
                value_loss = (value - returns[16 * i : 16 * i + 16]).square().mean()
                descend(value_loss, critic_optimizer, clip=1.0)


@program(
    "GRPO: samples a group of answers of one prompt, recomputes layers, and accumulates "
    "gradients over microbatches of answers of like lengths."
)
def _grpo_with_generation(run: Run) -> None:
    policy = Language(_VOCABULARY, 2048, 3, recompute=True).bfloat16()
    reference = frozen(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), foreach=True)
    for i in run:
        policy.eval()
        sampled = policy.generate(tokens(64, run.length(200, 512)), run.between(4, 9))
        policy.train()
        lengths = sorted(sampled.shape[1] + n for n in run.lengths(4, 250, 1200, 0.7))
        rewards = torch.zeros(64)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        del sampled
        for j, length in enumerate(lengths):
            rows = tokens(16, length)
            with torch.no_grad():
                before = log_likelihood(reference(rows[:, :-1]), rows[:, 1:])
            now = log_likelihood(policy(rows[:, :-1]), rows[:, 1:])
            away = before - now
            kl = away.exp() - away - 1
            gain = (now - now.detach()).exp() * advantages[16 * j : 16 * j + 16, None]
            loss = (0.04 * kl - gain).mean() / 4
            loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.2)
        optimizer.step()
        optimizer.zero_grad(set_to_none=i % 2 == 0)


@program(
    "DPO: a pair is an accepted and a rejected answer of their own lengths, padded to the "
    "longest, and a frozen reference scores them, too."
)
def _dpo_pairs(run: Run) -> None:
    policy = Language(_VOCABULARY, 1536, 5).bfloat16()
    reference = frozen(policy)
    optimizer = torch.optim.RMSprop(policy.parameters(), foreach=True)
    margins = []

    def likelihoods(model: Language, ids: Tensor) -> Tensor:
        return log_likelihood(model(ids[:, :-1]), ids[:, 1:]).sum(-1)

    for i in run:
        rows = 4
        prompt = run.length(200, 800)
        accepted, rejected = (prompt + max(run.lengths(rows, 200, 1200)) for _ in range(2))
        longest = max(accepted, rejected)
        ids = torch.cat(
            (
                functional.pad(tokens(rows, accepted), (0, longest - accepted)),
                functional.pad(tokens(rows, rejected), (0, longest - rejected)),
            )
        )
        with torch.no_grad():
            known = likelihoods(reference, ids)
        now = likelihoods(policy, ids)
        margin = (now[:rows] - now[rows:]) - (known[:rows] - known[rows:])
        loss = -functional.logsigmoid(0.1 * margin).mean()
        margins.append(margin.detach())
        descend(loss, optimizer, clip=10.0)
        if i % 10 == 9:
            torch.cat(margins).mean()
            margins.clear()


@program(
    "A reward model ranks from two to seven answers of a prompt, in one batch of as many rows."
)
def _reward_model_of_rankings(run: Run) -> None:
    model = _Scalar(1536, 6).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        optimizer.zero_grad()
        for _ in range(2):
            answers = run.between(2, 7)
            ids = tokens(answers, ceil(max(run.lengths(answers, 500, 2048)), 8))
            rewards = model(ids)[:, -1].float()
            pairs = rewards[:, None] - rewards[None]
            loss = -functional.logsigmoid(pairs).triu(1).mean()
            loss.backward()
        optimizer.step()


@program("A student learns from a teacher's scores, in two iterations of three on its own samples.")
def _online_distillation(run: Run) -> None:
    student = Language(_VOCABULARY, 1024, 4).bfloat16()
    teacher = Language(_VOCABULARY, 2048, 5).bfloat16().requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(student.parameters(), foreach=True)
    for i in run:
        if i % 3:
            ids = student.generate(tokens(8, run.length(150, 400)), run.between(6, 16))
            ids = torch.cat((ids, tokens(8, run.length(200, 500))), 1)
        else:
            ids = tokens(8, max(run.lengths(8, 300, 900)))
        with torch.no_grad():
            wanted = teacher(ids)
        scores = student(ids)
        loss = functional.kl_div(
            scores.float().log_softmax(-1), wanted.float().softmax(-1), reduction="batchmean"
        )
        descend(loss, optimizer, clip=1.0)
