"""A model other than that of the plan is noticed."""

from __future__ import annotations

from torch import nn

from stalloc._auto.models import Models


def two_layers(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))


def test_layers_that_are_unfrozen_make_another_model_until_they_are_frozen_again() -> None:
    models, model = Models(), two_layers()
    model[0].requires_grad_(False)
    models.learn(model)
    assert not models.is_another(model)
    model.requires_grad_(True)
    assert models.is_another(model)
    assert models.is_another(model), "it stays one"
    model[0].requires_grad_(False)
    assert not models.is_another(model)
    model.requires_grad_(True)
    models.learn(model)
    assert not models.is_another(model)


def test_models_in_turn_are_none_until_the_parameters_have_gone() -> None:
    models, first, second = Models(), two_layers(), two_layers(8)
    models.learn(first)
    assert not models.is_another(second), "the first one is there, as in adversarial training"
    del first
    assert models.is_another(second)


def test_a_model_of_the_same_tensors_replaces_one() -> None:
    models, model = Models(), two_layers()
    models.learn(model)
    model = two_layers()
    assert not models.is_another(model)
    model[1] = nn.Linear(4, 2)  # as adapters of another rank
    assert models.is_another(model)


def test_a_layer_that_is_added_makes_another_model() -> None:
    models, model = Models(), two_layers()
    models.learn(model)
    model.append(nn.Linear(4, 4))
    assert models.is_another(model)
