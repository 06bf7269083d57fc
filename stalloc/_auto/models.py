"""Notices that a program goes on with another model, which the inputs of a forward do not show.

A fine-tuning unfreezes layers, or replaces its adapters by larger ones. Then most requests are
those of the plan, and some are not, or are larger. They displace others, until the pool is full of
holes, and the rest lies beside it. So the plan goes out of force at once.

The parameters of a plan's model are looked at in each iteration, which is cheap. Their names and
shapes are compared only once they have changed.
"""

from __future__ import annotations

import weakref

import torch

from stalloc.hooks import model_signature


class Models:
    """Follows the model of a plan.

    An iteration may begin with another model than the one before, as in adversarial training. So a
    model tells something only once parameters of the last one that was looked at have gone, or once
    that one has more of them, or other trained ones.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._is_another = False  # the model that was looked at last
        self._root: weakref.ref[torch.nn.Module] | None = None
        self._parameters: list[tuple[weakref.ref[torch.nn.Parameter], bool]] = []

    def learn(self, root: torch.nn.Module) -> None:
        """A plan serves this model, or is made for it.

        Args:
            root: The one with whose forward the iteration begins.
        """
        self._known.add(model_signature(root))
        self._look_at(root)

    def is_another(self, root: torch.nn.Module) -> bool:
        """True if the program goes on with a model that has not been learnt.

        Args:
            root: The one with whose forward the iteration begins.
        """
        if self._has_changed(root):
            self._look_at(root)
        return self._is_another

    def _look_at(self, root: torch.nn.Module) -> None:
        self._is_another = model_signature(root) not in self._known
        self._root = weakref.ref(root)
        self._parameters = [(weakref.ref(p), p.requires_grad) for p in root.parameters()]

    def _has_changed(self, root: torch.nn.Module) -> bool:
        is_root = self._root is not None and self._root() is root
        if is_root and sum(1 for _ in root.parameters()) != len(self._parameters):
            return True
        for reference, was_trained in self._parameters:
            parameter = reference()
            if parameter is None or (is_root and parameter.requires_grad != was_trained):
                return True
        return False
