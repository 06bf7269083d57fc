"""`stalloc run` on unchanged scripts of many kinds: the same output, and the same files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from isolation import isolated
from processes import python
from torch import nn

import stalloc

HEAD = """
import torch
from torch import nn
torch.manual_seed(1)
"""

# As in pytorch/examples: weights updated by hand, the hidden state carried on, the whole model
# saved, and loaded under the rules for files of strangers.
LANGUAGE_MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.drop, self.rnn = nn.Dropout(0.2), nn.LSTM(16, 16, 2, dropout=0.2)

    def forward(self, x, hidden):
        y, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(y)).view(-1, 50), hidden

model, data = Model(), torch.randint(50, (201, 8))
for epoch in range(2):
    model.train()
    hidden = torch.zeros(2, 8, 16), torch.zeros(2, 8, 16)
    for i in range(0, 200, 20):
        model.zero_grad()
        y, hidden = model(data[i:i + 20], tuple(h.detach() for h in hidden))
        loss = nn.functional.cross_entropy(y, data[i + 1:i + 21].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-2.0)
        print(loss.item().hex())
    model.eval()
    with torch.no_grad():
        print(model(data[:20], hidden)[0].sum().item().hex())
    torch.save(model, "model.pt")
torch.serialization.add_safe_globals([Model, nn.Embedding, nn.Linear, nn.Dropout, nn.LSTM])
print(torch.load("model.pt", weights_only=True)(data[:20], hidden)[0].sum().item().hex())
"""

CLOSURES = """
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1)).double()
x = torch.randn(64, 4, dtype=torch.double)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

def closure():
    optimizer.zero_grad()
    loss = (model(x) - x.square().sum(1, keepdim=True)).square().mean()
    loss.backward()
    print(loss.item().hex())
    return loss

for _ in range(8):
    optimizer.step(closure)
    with torch.no_grad():
        print(model(x).sum().item().hex())
torch.save(model, "model.pt")
"""

FUNCTIONAL = """
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
params = {name: p.detach() for name, p in model.named_parameters()}

def loss_of(params, x):
    return (torch.func.functional_call(model, params, x) - x.sum(1, keepdim=True)).square().mean()

step = torch.func.grad_and_value(loss_of)
for _ in range(12):
    gradients, loss = step(params, torch.randn(16, 4))
    params = {name: p - 0.1 * gradients[name] for name, p in params.items()}
    print(loss.item().hex())
torch.save(params, "model.pt")
"""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(LANGUAGE_MODEL, id="language_model"),
        pytest.param(CLOSURES, id="closures"),
        pytest.param(FUNCTIONAL, id="functional"),
    ],
)
def test_a_script_says_and_saves_the_same(body: str, tmp_path: Path) -> None:
    script, model = tmp_path / "train.py", tmp_path / "model.pt"
    script.write_text(HEAD + body)
    plain = python(script, cwd=tmp_path)
    expected = model.read_bytes()
    assert plain.stderr == ""

    def run(*options: str) -> dict[str, Any]:
        model.unlink()
        done = python("-m", "stalloc", "run", *options, "--json", script, cwd=tmp_path)
        *out, figures = done.stdout.splitlines()
        assert (out, done.stderr) == (plain.stdout.splitlines(), "")
        assert model.read_bytes() == expected
        found: dict[str, Any] = json.loads(figures)
        return found

    assert run("--profile", "plans")["iterations"] == 5
    stats = run("--plan", "plans")
    assert stats["enabled"]
    assert stats["iterations"] >= 6
    assert stats["hit_rate"] > 0.7


def test_a_script_without_an_end_of_an_iteration_is_told_how_to_mark_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + "model = nn.Linear(8, 8)\nmodel(torch.ones(1, 8)).sum().backward()\n")
    profile = ("-m", "stalloc", "run", "--profile", "plans", script)
    (line,) = python(*profile, cwd=tmp_path, code=1).stderr.splitlines()
    assert line.startswith("stalloc run: no complete iteration was seen: there was no step of a ")
    assert "call stalloc.step() at the end of each iteration" in line
    script.write_text(script.read_text() + "raise SystemError('its own')\n")
    said = python(*profile, cwd=tmp_path, code=1).stderr
    assert said.splitlines()[-1] == "SystemError: its own"


def iterations_of(step: Callable[[], None], steps: int) -> tuple[int, str | None]:
    """The number of recorded iterations if five are asked for, and the way their ends are told."""
    with stalloc.profile(device="cpu", iterations=5) as prof:
        for _ in range(steps):
            step()
        assert prof.complete
    assert prof.plan().pool > 0
    return len(prof.trace.iterations) - 1, prof.trace.info.get("ends")


@isolated
def test_microbatches_before_the_first_step_are_one_iteration() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for _ in range(7):  # more than there are iterations to record
            model(torch.ones(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert iterations_of(step, 6) == (5, None)


@isolated
def test_a_loop_without_modules_ends_its_iterations_with_the_backward_pass() -> None:
    weight = torch.ones(64, 64, requires_grad=True)

    def step() -> None:
        (torch.ones(8, 64) @ weight).square().mean().backward()
        with torch.no_grad():
            weight.sub_(weight)
        weight.grad = None

    assert iterations_of(step, 7) == (5, "backward")


@isolated
def test_calls_of_step_replace_the_guess() -> None:
    model = nn.Linear(8, 8)
    with stalloc.profile(model) as prof:
        for _ in range(3):
            for _ in range(2):
                model(torch.ones(4, 8)).sum().backward()
            prof.step()
    assert len(prof.trace.iterations) - 1 == 3
    assert "ends" not in prof.trace.info
    first, *others = (
        prof.trace.phases.microbatch[prof.trace.phases.iteration == i].max() for i in range(3)
    )
    assert [first, *others] == [1, 1, 1]
