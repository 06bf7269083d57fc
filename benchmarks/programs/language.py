"""Language models and translation: documents, beams, recurrence, trees, texts of all lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from programs.layers import Language, Transformer, descend, mlp, token_loss, tokens
from programs.registry import Run, program

_VOCABULARY = 32_000


@program("A pack of 8,192 tokens has documents of any length, and attention works on each alone.")
def _packed_documents(run: Run) -> None:
    width, heads = 1024, 16
    embed = nn.Embedding(_VOCABULARY, width)
    layers = [
        (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            mlp(width, 4 * width, width),
        )
        for _ in range(4)
    ]
    head = nn.Linear(width, _VOCABULARY)
    model = nn.ModuleList((embed, *map(nn.ModuleList, layers), head)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in run:
        documents = _pack(run, 8192)
        x = embed(tokens(1, sum(documents)))
        for norm, inside, outside, change in layers:
            qkv = inside(norm(x)).unflatten(-1, (3, heads, -1))
            parts = []
            for part in qkv.split(documents, 1):
                q, k, v = part.permute(2, 0, 3, 1, 4)
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                parts.append(y.transpose(1, 2).flatten(2))
            x = x + outside(torch.cat(parts, 1))
            x = x + change(x)
        loss = token_loss(head(x), tokens(1, sum(documents)))
        descend(loss, optimizer, clip=1.0)


def _pack(run: Run, budget: int) -> list[int]:
    documents: list[int] = []
    while sum(documents) < budget:
        documents.append(min(run.length(900, 6000, 0.9), budget - sum(documents)))
    return documents


@program(
    "Batches of a budget of tokens train a translation; each sixth iteration translates with "
    "a beam of five, whose keys and values are reordered at each step."
)
def _translation_with_beams(run: Run) -> None:
    encoder = nn.Sequential(nn.Embedding(_VOCABULARY, 768), Transformer(768, 4, dropout=0.1))
    decoder = Language(_VOCABULARY, 768, 4, cross=True, dropout=0.1)
    both = nn.ModuleList((encoder, decoder))
    optimizer = torch.optim.Adam(both.parameters(), betas=(0.9, 0.98))
    losses: list[Tensor] = []
    for i in run:
        longest = max(run.lengths(16, 25, 200, 0.6))
        rows = max(1, 8192 // longest)
        source, target = tokens(rows, longest), tokens(rows, run.between(longest // 2, longest) + 2)
        optimizer.zero_grad()
        scores = decoder(target[:, :-1], encoder(source))
        loss = functional.cross_entropy(
            scores.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if i % 6 == 4:
            both.eval()
            _beam_search(encoder, decoder, tokens(48, run.length(40, 120)), run.between(8, 20))
            both.train()
            torch.stack(losses).mean()


@torch.no_grad()
def _beam_search(encoder: nn.Module, decoder: Language, source: Tensor, steps: int) -> Tensor:
    beams = 5
    context = encoder(source).repeat_interleave(beams, 0)
    rows = len(context)
    ids = new = tokens(rows, 1)
    total = torch.zeros(rows, 1)
    pasts: list[list[Tensor]] = [[] for _ in decoder.body.blocks]
    for _ in range(steps):
        scores = decoder(new, context, pasts)[:, -1].log_softmax(-1) + total
        best = scores.view(len(source), -1).topk(beams)
        total = best.values.view(-1, 1)
        order = tokens(rows)
        pasts = [[t.index_select(0, order) for t in past] for past in pasts]
        new = best.indices.view(-1, 1) % _VOCABULARY
        ids = torch.cat((ids.index_select(0, order), new), 1)
    return ids


@program("An LSTM reads a book in stretches of about 40 tokens and carries its state, as AWD-LSTM.")
def _truncated_backpropagation(run: Run) -> None:
    embed = nn.Embedding(_VOCABULARY, 1024)
    lstm = nn.LSTM(1024, 1536, 1, batch_first=True)
    head = nn.Linear(1536, _VOCABULARY)
    model = nn.ModuleList((embed, lstm, head))
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0, weight_decay=1e-6)
    state: tuple[Tensor, Tensor] | None = None
    for i in run:
        length = max(5, int(run.rng.normal(40 if run.chance(0.95) else 20, 3)))
        ids = tokens(128, length)
        if i % 12 == 11:
            state = None  # a new book
        y, state = lstm(functional.dropout(embed(ids), 0.4), state)
        state = (state[0].detach(), state[1].detach())
        loss = token_loss(head(y), ids) + 2 * y.square().mean()
        loss = loss + (y[:, 1:] - y[:, :-1]).square().mean()
        descend(loss, optimizer, clip=0.25)


@program(
    "A captioner decodes step by step, with its own word as input ever more often, which "
    "needs its scores at that step."
)
def _scheduled_sampling(run: Run) -> None:
    width = 1024
    encoder = mlp(2048, width, width)
    embed = nn.Embedding(_VOCABULARY, width)
    cell = nn.LSTMCell(2 * width, width)
    head = nn.Linear(width, _VOCABULARY)
    model = nn.ModuleList((encoder, embed, cell, head))
    optimizer = torch.optim.Adam(model.parameters())
    for i in run:
        rows, steps = 256, run.between(8, 26)
        regions = encoder(torch.zeros(rows, 36, 2048))
        word = tokens(rows)
        hidden = state = torch.zeros(rows, width)
        own_scores, states = [], []
        for _ in range(steps):
            weights = (regions * hidden[:, None]).sum(-1).softmax(-1)
            seen = (weights[..., None] * regions).sum(1)
            hidden, state = cell(torch.cat((embed(word), seen), -1), (hidden, state))
            states.append(hidden)
            word = tokens(rows)
            if run.chance(min(0.5, 0.02 * i)):
                own_scores.append(head(hidden))
                word = own_scores[-1].detach().argmax(-1)
        loss = token_loss(head(torch.stack(states, 1)), tokens(rows, steps))
        descend(loss, optimizer, clip=5.0)


@program("Sentences are trees: each level of a batch of trees has as many nodes as the trees have.")
def _tree_lstm(run: Run) -> None:
    width = 1024
    embed = nn.Embedding(_VOCABULARY, width)
    gates = nn.Linear(2 * width, 5 * width)
    classify = nn.Linear(width, 5)
    model = nn.ModuleList((embed, gates, classify))
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-4)
    correct = []
    for _ in run:
        leaves = sum(run.lengths(256, 20, 56))
        hidden = embed(tokens(leaves)).tanh()
        state = torch.zeros_like(hidden)
        found = [classify(hidden)]
        while len(hidden) > 256:
            merged = max(1, int(len(hidden) * run.rng.uniform(0.3, 0.48)))
            left, right = tokens(merged), tokens(merged)
            z = gates(torch.cat((hidden[left], hidden[right]), -1))
            i, low, high, o, u = z.chunk(5, -1)
            below = low.sigmoid() * state[left] + high.sigmoid() * state[right]
            new = i.sigmoid() * u.tanh() + below
            rest = tokens(max(1, len(hidden) - 2 * merged))
            out = o.sigmoid() * new.tanh()
            state, hidden = torch.cat((new, state[rest])), torch.cat((out, hidden[rest]))
            found.append(classify(out))
        scores = torch.cat(found)
        loss = functional.cross_entropy(scores, tokens(len(scores)))
        correct.append((scores.argmax(-1) == 0).float().mean())
        descend(loss, optimizer)


@program(
    "A masked language model has a head on the masked tokens alone, whose number varies, and "
    "evaluates four batches after each fifth iteration, whose losses a list holds."
)
def _masked_chunks_with_evaluation(run: Run) -> None:
    model = Language(50_000, 1024, 5, causal=False, dropout=0.1).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for i in run:
        rows, length = 16, 512
        masked = int(run.rng.binomial(rows * length, 0.15))
        hidden = model.hidden(tokens(rows, length)).flatten(0, 1)
        scores = model.head(hidden[tokens(masked)])
        loss = token_loss(scores, tokens(masked))
        descend(loss, optimizer, clip=1.0)
        if i % 5 == 3:
            model.eval()
            losses, guesses = [], []
            with torch.no_grad():
                for _ in range(4):
                    masked = int(run.rng.binomial(32 * length, 0.15))
                    hidden = model.hidden(tokens(32, length)).flatten(0, 1)
                    scores = model.head(hidden[tokens(masked)])
                    losses.append(token_loss(scores, tokens(masked)))
                    guesses.append(scores.argmax(-1))
            torch.cat(guesses)
            model.train()


@program(
    "Extra heads predict later tokens on a frozen trunk; a schedule switches one more on after "
    "each eighth iteration."
)
def _speculative_heads(run: Run) -> None:
    trunk = Language(_VOCABULARY, 1536, 4).bfloat16().requires_grad_(False)
    heads = nn.ModuleList(
        nn.Sequential(mlp(1536, 1536), nn.SiLU(), nn.Linear(1536, _VOCABULARY)) for _ in range(4)
    ).bfloat16()
    optimizer = torch.optim.AdamW(heads.parameters(), foreach=True)
    for i in run:
        ids = tokens(4, max(run.lengths(4, 350, 1500, 0.7)))
        with torch.no_grad():
            hidden = trunk.hidden(ids)
        losses = []
        for k, head in enumerate(heads[: 2 + i // 8], 2):
            scores = head(hidden[:, :-k])
            losses.append(0.8**k * token_loss(scores, ids[:, k:]))
        loss = torch.stack(losses).sum()
        descend(loss, optimizer)
