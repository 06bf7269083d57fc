"""Speech: transcripts, alignments, vocoders, batches of sounds of like lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import (
    Language,
    Mlp,
    Transformer,
    ceil,
    descend,
    frozen,
    mlp,
    token_loss,
    tokens,
    total,
)
from programs.registry import Run, program


@program(
    "Fine-tuning of a transcriber: fixed sounds, transcripts of all lengths, and an "
    "evaluation that generates transcripts each fifth iteration, with keys and values that "
    "grow."
)
def _whisper_with_generation(run: Run) -> None:
    convolve = nn.Sequential(
        nn.Conv1d(80, 1024, 3, 1, 1), nn.GELU(), nn.Conv1d(1024, 1024, 3, 2, 1), nn.GELU()
    )
    encoder = Transformer(1024, 3)
    decoder = Language(51_865, 1024, 3, cross=True)
    model = nn.ModuleList((convolve, encoder, decoder))
    optimizer = torch.optim.AdamW(model.parameters())

    def hear(rows: int) -> Tensor:
        y: Tensor = encoder(convolve(torch.zeros(rows, 80, 3000)).transpose(1, 2))
        return y

    for i in run:
        ids = tokens(8, max(run.lengths(8, 40, 448, 0.7)) + 1)
        optimizer.zero_grad()
        scores = decoder(ids[:, :-1], hear(8))
        loss = token_loss(scores, ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if i % 5 == 4:
            model.eval()
            transcripts = []
            for _ in range(2):
                with torch.no_grad():
                    sounds = hear(16)
                    labels = tokens(16, run.length(60, 200))
                    token_loss(decoder(labels, sounds), labels)
                transcripts.append(decoder.generate(tokens(16, 4), run.between(8, 24), sounds))
            model.train()


@program(
    "RNN-T: the joint network scores every pair of a frame and a token, in buckets of lengths."
)
def _transducer(run: Run) -> None:
    encoder = nn.Sequential(nn.Linear(320, 512), Transformer(512, 6, dropout=0.1))
    embed = nn.Embedding(1024, 640)
    predict = nn.Conv1d(640, 640, 2)  # sees the last two tokens
    joint = nn.ModuleList((nn.Linear(512, 640), nn.Linear(640, 640), nn.Linear(640, 1024)))
    model = nn.ModuleList((encoder, embed, predict, joint))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in run:
        frames = run.length(280, 700, 0.45)
        rows = max(2, 3600 // frames)
        labels = max(4, int(frames / 6 * run.rng.uniform(0.8, 1.3)))
        sounds = encoder(torch.zeros(rows, frames, 320))[:, ::2]
        texts = predict(embed(tokens(rows, labels + 1)).transpose(1, 2)).transpose(1, 2)
        pairs = (joint[0](sounds)[:, :, None] + joint[1](texts)[:, None]).tanh()
        lattice = joint[2](pairs).log_softmax(-1)
        loss = -lattice[..., 0].mean() - lattice.amax(-1).mean()
        descend(loss, optimizer, clip=5.0)


@program(
    "A recognizer whose loss sums over alignments, eight frames at a time; sounds are sorted by "
    "length into batches of a budget of frames, and masked in stripes."
)
def _aligned_transcripts(run: Run) -> None:
    encoder = nn.Sequential(
        nn.Linear(640, 512), *(nn.Sequential(Transformer(512, 1), Mlp(512)) for _ in range(4))
    )
    head = nn.Linear(512, 500)
    model = nn.ModuleList((encoder, head))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in run:
        frames = ceil(run.length(150, 400), 8)
        rows, labels = 20_000 // frames, frames // 5
        sounds = torch.zeros(rows, frames, 640)
        for _ in range(run.between(1, 4)):
            sounds = sounds.masked_fill(torch.zeros(frames, 1, dtype=torch.bool), 0.0)
        odds = head(encoder(sounds)).log_softmax(-1)
        states = odds[..., tokens(2 * labels + 1)]
        alpha = states[:, 0]
        for t in range(1, frames, 8):
            moved = functional.pad(alpha[:, :-1], (1, 0), value=-1e9)
            alpha = torch.logaddexp(alpha, moved) + states[:, t]
        descend(-alpha[:, -2:].logsumexp(-1).mean(), optimizer, clip=1.0)


@program(
    "A vocoder trains on segments, with discriminators of several periods, whose features at "
    "each layer are compared; whole sounds of any length are synthesized each sixth "
    "iteration."
)
def _vocoder(run: Run) -> None:
    layers: list[nn.Module] = [nn.Conv1d(80, 512, 7, 1, 3)]
    for width, factor in ((512, 8), (256, 8), (128, 4)):
        up = nn.ConvTranspose1d(width, width // 2, 2 * factor, factor, factor // 2)
        layers += [nn.LeakyReLU(0.1), up, nn.Conv1d(width // 2, width // 2, 7, 1, 3)]
    generator = nn.Sequential(*layers, nn.Conv1d(64, 1, 7, 1, 3), nn.Tanh())
    judges = [
        [nn.Conv1d(low, high, 5, 3, 2) for low, high in ((p, 128), (128, 512), (512, 1))]
        for p in (2, 3, 5, 7)
    ]
    first = torch.optim.AdamW(generator.parameters(), betas=(0.8, 0.99))
    second = torch.optim.AdamW(
        nn.ModuleList(map(nn.ModuleList, judges)).parameters(), betas=(0.8, 0.99)
    )

    def judge(sound: Tensor) -> list[Tensor]:
        features = []
        for period, layers in zip((2, 3, 5, 7), judges, strict=True):
            x = functional.pad(sound, (0, -sound.shape[-1] % period))
            x = x.view(len(x), -1, period).transpose(1, 2)
            for layer in layers:
                x = functional.leaky_relu(layer(x), 0.1)
                features.append(x)
        return features

    for i in run:
        real = torch.zeros(32, 1, 64 * 256)
        made = generator(torch.zeros(32, 80, 64))
        second.zero_grad()
        judged = zip(judge(real), judge(made.detach()), strict=True)
        total([(1 - r).square().mean() + f.square().mean() for r, f in judged]).backward()
        second.step()
        first.zero_grad()
        compared = zip(judge(real), judge(made), strict=True)
        total([(r.detach() - f).abs().mean() for r, f in compared]).backward()
        first.step()
        if i % 6 == 2:
            with torch.no_grad():
                for _ in range(3):
                    sound = generator(torch.zeros(1, 80, run.length(700, 4000)))
                    sound[0].stft(1024, window=torch.zeros(1024), return_complex=True).abs()


@program(
    "Self-supervised speech: raw sounds cropped to the shortest of a batch, negatives from "
    "other frames, and a teacher that averages the student."
)
def _masked_speech(run: Run) -> None:
    convolve = nn.Sequential(
        nn.Conv1d(1, 512, 10, 5), nn.GELU(), nn.Conv1d(512, 512, 8, 8), nn.GELU(),
        nn.Conv1d(512, 768, 8, 8),
    )  # fmt: skip
    encoder, project = Transformer(768, 5, dropout=0.1), mlp(768, 256)
    model = nn.ModuleList((convolve, encoder, project))
    teacher = frozen(encoder)
    optimizer = torch.optim.AdamW(model.parameters())
    for i in run:
        longest = 250_000
        samples = min(run.lengths(6, 180_000, longest, 0.4))
        rows = max(2, 1_400_000 // samples)
        x = convolve(torch.zeros(rows, 1, samples)).transpose(1, 2)
        masked = int(run.rng.binomial(x.shape[1], 0.5)) + 1
        with torch.no_grad():
            wanted = teacher(x)[:, tokens(masked)]
        y = project(encoder(x)[:, tokens(masked)])
        targets = wanted[..., :256]
        negatives = targets.flatten(0, 1)[tokens(rows * masked * 50)].unflatten(0, (rows, -1, 50))
        like = functional.cosine_similarity(y[:, :, None], negatives, dim=-1)
        loss = token_loss(like / 0.1, tokens(rows, masked))
        descend(loss, optimizer, clip=25.0 if i else 10.0)
        with torch.no_grad():
            for kept, now in zip(teacher.parameters(), encoder.parameters(), strict=True):
                kept.mul_(0.999).add_(now, alpha=0.001)
