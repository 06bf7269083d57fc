"""`stalloc.auto` with evaluations between iterations: what it tells about them."""

from __future__ import annotations

import contextlib
import copy
import io

import torch
from isolation import isolated
from test_auto import Silent, train
from training import assert_same, loss_of, tokens, twins

import stalloc


def share_served(kind: type[Silent], steps: int) -> float:
    """Trains without and with stalloc; the share of training's requests served as planned."""
    a, b = twins()
    plain, trainer = kind(a.model), kind(b.model)
    train(None, plain, steps)
    with stalloc.auto(time_limit=0.1) as auto:
        train(auto, trainer, steps)
        status = stalloc.status()
    assert_same(plain, trainer)
    training = status["requests"] - status["evaluation_requests"]
    served = status["served_as_planned"] - status["evaluation_served_as_planned"]
    return served / training


class Evaluating(Silent):
    """It evaluates after each third iteration."""

    def finish(self) -> None:
        super().finish()
        if self.steps % 3 == 0:
            self.model.eval()
            with torch.no_grad():
                self.losses.append(loss_of(self.model, tokens(self.steps, 0)).item())
            self.model.train()


@isolated
def test_the_requests_of_evaluations_are_told_apart() -> None:
    a, b = twins()
    plain, trainer = Evaluating(a.model), Evaluating(b.model)
    train(None, plain, 20)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), stalloc.auto() as auto:
        train(auto, trainer, 20)
        status = stalloc.status()
    assert_same(plain, trainer)
    assert 0 < status["evaluation_served_as_planned"] < status["evaluation_requests"]
    training = status["requests"] - status["evaluation_requests"]
    served = status["served_as_planned"] - status["evaluation_served_as_planned"]
    assert training * 0.99 <= served <= training
    assert served / training > status["served_as_planned"] / status["requests"]
    line = said.getvalue().splitlines()[-1]
    assert f", {served / training:.2%} of training's requests as planned" in line
    assert line.endswith("% of evaluations'")


class Scoring(Silent):
    """It scores two splits after each sixth iteration, and keeps the best scores."""

    def finish(self) -> None:
        super().finish()
        if self.steps % 6:
            return
        self.model.eval()
        with torch.no_grad():
            self.scores = [self.score(split) for split in range(2)]
        self.model.train()

    def score(self, split: int) -> torch.Tensor:
        losses = torch.zeros(3)
        for i in range(3):
            rows = [tokens(self.steps, 3 * split + i)[row].clone() for row in (0, 1)]
            losses[i] = loss_of(self.model, torch.stack(rows))
        return losses.mean()


@isolated
def test_numbers_that_a_loop_keeps_displace_no_planned_requests() -> None:
    assert share_served(Scoring, 30) >= 0.999


class Keeping(Silent):
    """It evaluates once, and keeps a copy of the model from then on."""

    def finish(self) -> None:
        super().finish()
        if self.steps == 12:
            self.model.eval()
            with torch.no_grad():
                self.losses.append(loss_of(self.model, tokens(self.steps, 0)).item())
            self.best = copy.deepcopy(self.model)
            self.model.train()


@isolated
def test_a_copy_of_the_model_after_an_evaluation_displaces_no_planned_requests() -> None:
    assert share_served(Keeping, 40) >= 0.999
