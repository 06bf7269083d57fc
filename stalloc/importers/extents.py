"""The extents of a recording's microbatches, found from sizes alone.

A recording tells no inputs. But if its forwards make the same requests with other sizes, one number
a forward, or two, may tell them all: the tokens, or rows and tokens. Such a number is proportional
to the size of some request (the token numbers), or to the quotient of two sizes:

    request          forward 1    2    3    4        with tokens = size / 8
    token numbers          192  320  512  256        8 * tokens
    activations           3072 5120 8192 4096        128 * tokens
    scores                 576 1600 4096 1024        tokens * tokens

Candidates are tried with the product's own size laws. The numbers are taken for extents if proven
laws explain nearly all sizes that vary. Otherwise the recording has no extents: its sizes differ
for reasons of their own, as in a mixture of experts.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stalloc import _core
from stalloc.importers.history import Lifetimes
from stalloc.importers.phases import Hint, Spans
from stalloc.tables import LAW_PROOFS

_FEWEST = 3  # distinct values of an extent: fewer prove no law
_EXPLAINED = 0.75  # share of the varying requests that laws have to explain
_NEAR = 0.9  # share of the most that counts as nearly the most
_CLASSES = 12  # sets of proportional requests that may be an extent
_QUOTIENTS = 16
_SCORED = 64  # classes that choose between candidates
_CHECKED = 256  # requests of an odd forward that are compared
_PROGRAMS = 8  # sets of forwards that may have extents of their own
_WORD = 8  # bytes of a token number
_LARGEST_SIZE = 1 << 48  # bytes; larger than any request of a device
_LARGEST_EXTENT = 1 << 40
_NAME = "size.{}"
_PROVEN = LAW_PROOFS.index("proven")

Key = tuple[int, int, int]
"""A request of a forward: call site, stream, and its number among those, counted from the end."""

Vector = tuple[int, ...]
"""A number for each of some forwards."""

Sizes = Mapping[Key, int]
"""The sizes of a forward's requests."""


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents of the forwards.

    Attributes:
        names: `size.0`, `size.1`.
        spans: Rows of the forwards among the spans, ascending.
        values: A number for each name, one list a forward; -1 where it is not known.
    """

    names: list[str]
    spans: list[int]
    values: list[list[int]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A number that may be an extent: the size of a request, perhaps by another's, times a factor.

    Attributes:
        above: The request.
        below: The one that divides it, or None.
        factor: Makes the result small and whole.
    """

    above: Key
    below: Key | None
    factor: Fraction

    def of(self, sizes: Sizes) -> int:
        """The number for a forward; -1 if it is no number from 1 on."""
        if self.above not in sizes or (self.below is not None and self.below not in sizes):
            return -1
        value = self.factor * sizes[self.above]
        if self.below is not None:
            value /= sizes[self.below]
        whole = value.denominator == 1 and 0 < value <= _LARGEST_EXTENT
        return int(value) if whole else -1

    def text(self, sites: Sequence[str]) -> str:
        """The number as a formula."""

        def size(key: Key) -> str:
            return f"size of a request of {sites[key[0]] if key[0] >= 0 else 'an unknown site'}"

        text = size(self.above)
        if self.below is not None:
            text += f" / {size(self.below)}"
        if self.factor.numerator != 1:
            text += f" * {self.factor.numerator:,}"
        return text if self.factor.denominator == 1 else f"{text} / {self.factor.denominator:,}"


@dataclass(frozen=True, slots=True)
class _Class:
    """Requests whose sizes are proportional: `keys[0]` is the smallest, with the sizes `sizes`."""

    keys: list[Key]
    sizes: Vector

    @property
    def weight(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The extents of forwards that make the same requests.

    Attributes:
        alike: The forwards.
        chosen: One or two candidates, which are the extents.
        explained: The requests that follow them.
        share: Their share of the requests that vary.
    """

    alike: list[Sizes]
    chosen: list[_Candidate]
    explained: list[_Class]
    share: float

    def of(self, sizes: Sizes) -> list[int] | None:
        """The extents of a forward; None if the laws do not explain it."""
        if sizes.keys() != self.alike[0].keys() and not self._fits(sizes):
            return None
        return [candidate.of(sizes) for candidate in self.chosen]

    def _fits(self, sizes: Sizes) -> bool:
        """True if the laws explain a forward that makes other requests besides."""
        row = [candidate.of(sizes) for candidate in self.chosen]
        keys = [
            key
            for each in self.explained
            for key in each.keys
            if sizes.get(key, _LARGEST_SIZE + 1) <= _LARGEST_SIZE
        ][:_CHECKED]
        if min(row) < 0 or len(keys) <= len(row):
            return False
        rows = [*_rows(self.chosen, self.alike), row]
        observed = [[*(each[key] for each in self.alike), sizes[key]] for key in keys]
        proven = sum(proof == _PROVEN for proof, _ in _core.fit_laws(rows, observed))
        return proven >= _EXPLAINED * len(keys)


def find_extents(
    lifetimes: Lifetimes, spans: Spans, sites: Sequence[str], assumptions: list[str]
) -> Extents | None:
    """Finds one or two extents that explain the sizes of the forwards' requests.

    Forwards of different programs, such as those of a generator and its critic, have extents of
    their own under the same names. A forward that has fewer extents than others has ones.

    Args:
        lifetimes: The requests.
        spans: The phases.
        sites: Names of the call sites.
        assumptions: Receives the assumptions.

    Returns:
        The extents, or None if sizes do not vary, or not by laws that three forwards prove.
    """
    forwards = _forwards(lifetimes, spans)
    rules: list[_Rule] = []
    for alike in _sets(forwards.values())[:_PROGRAMS]:
        if all(any(rule.of(sizes) for rule in rules) for sizes in alike):
            continue
        rule = _rule(alike)
        if rule is not None:
            rules.append(rule)
    if not rules:
        return None
    values: list[list[int]] = []
    followers: dict[int, list[list[int]]] = defaultdict(list)
    width = max(len(rule.chosen) for rule in rules)
    for sizes in forwards.values():
        found = [(number, row) for number, rule in enumerate(rules) if (row := rule.of(sizes))]
        for number, row in found[:1]:
            followers[number].append(row)
            values.append([*row, *[1] * (width - len(row))])
        if not found:
            values.append([-1] * width)
    for number, rows in followers.items():
        assumptions.append(_described(rules[number], rows, len(values), sites))
    return Extents([_NAME.format(number) for number in range(width)], list(forwards), values)


def _rule(alike: list[Sizes]) -> _Rule | None:
    """The extents of forwards that make the same requests; None if nothing explains enough."""
    classes = _classes(alike) if len(alike) >= _FEWEST else []
    chosen = _chosen(alike, classes)
    if not chosen:
        return None
    explained = [each for each, _ in _explained(classes, _rows(chosen, alike))]
    share = sum(each.weight for each in explained) / sum(each.weight for each in classes)
    return _Rule(alike, chosen, explained, share) if share >= _EXPLAINED else None


def _forwards(lifetimes: Lifetimes, spans: Spans) -> dict[int, Sizes]:
    """The requests of each forward, by the row of its span."""
    born = lifetimes.born
    starts = np.searchsorted(born, spans.begin)
    ends = np.append(starts[1:], len(born))
    columns = [c.tolist() for c in (lifetimes.size, lifetimes.site, lifetimes.stream)]
    result: dict[int, Sizes] = {}
    for row in np.flatnonzero(spans.kind == Hint.FORWARD).tolist():
        counts: Counter[tuple[int, int]] = Counter()
        sizes: dict[Key, int] = {}
        for i in range(int(ends[row]) - 1, int(starts[row]) - 1, -1):
            size, site, stream = (column[i] for column in columns)
            sizes[site, stream, counts[site, stream]] = size
            counts[site, stream] += 1
        result[row] = sizes
    return result


def _sets(forwards: Iterable[Sizes]) -> list[list[Sizes]]:
    """The forwards by the requests that they make; the largest set comes first."""
    sets: dict[frozenset[Key], list[Sizes]] = defaultdict(list)
    for sizes in forwards:
        sets[frozenset(sizes)].append(sizes)
    return sorted(sets.values(), key=len, reverse=True)


def _classes(alike: Sequence[Sizes]) -> list[_Class]:
    """The requests whose sizes vary, by proportion; those with the smallest sizes come first."""
    members: dict[Vector, list[tuple[Vector, Key]]] = defaultdict(list)
    for key in alike[0]:
        vector = tuple(sizes[key] for sizes in alike)
        if min(vector) < max(vector) <= _LARGEST_SIZE:
            members[_reduced(vector)].append((vector, key))
    classes = []
    for vectors in members.values():
        vectors.sort()
        classes.append(_Class([key for _, key in vectors], vectors[0][0]))
    return sorted(classes, key=lambda each: each.sizes)


def _reduced(vector: Vector) -> Vector:
    divisor = math.gcd(*vector)
    return tuple(size // divisor for size in vector)


def _chosen(alike: Sequence[Sizes], classes: Sequence[_Class]) -> list[_Candidate]:
    """The candidate, or pair, that explains most requests; empty if none explains another one."""
    scored = sorted(classes, key=lambda each: -each.weight)[:_SCORED]
    singles = _observed(_candidates(classes), alike)
    one, most = _best([(single,) for single in singles], scored)
    if most < sum(each.weight for each in scored):
        quotients = _observed(_quotients(classes), alike)
        two, more = _best(list(itertools.combinations([*singles, *quotients], 2)), scored)
        # An extent explains the request that it is made of, which is no evidence.
        if more >= most + 2:
            one, most = two, more
    return one if most > len(one) else []


def _observed(
    candidates: Iterable[_Candidate], alike: Sequence[Sizes]
) -> list[tuple[_Candidate, Vector]]:
    """The candidates that are a number for each forward, with these numbers."""
    observed = ((each, tuple(each.of(sizes) for sizes in alike)) for each in candidates)
    return [(each, vector) for each, vector in observed if min(vector) > 0]


def _best(
    sets: Sequence[Sequence[tuple[_Candidate, Vector]]], classes: Sequence[_Class]
) -> tuple[list[_Candidate], int]:
    """The set of candidates to take, and the number of requests that it explains.

    Of the sets that explain nearly the most, the one with the smallest sizes at the largest
    extents wins: if batches of many rows are short, then most rows times most tokens is a batch
    that nobody has.
    """
    found: list[tuple[int, int, int]] = []  # requests, bytes, place in `sets`
    for place, candidates in enumerate(sets):
        rows = [list(row) for row in zip(*(vector for _, vector in candidates), strict=True)]
        if len({tuple(row) for row in rows}) < _FEWEST:
            continue
        explained = _explained(classes, rows)
        requests = sum(each.weight for each, _ in explained)
        # The others take at least the largest size that was seen.
        excess = sum(each.weight * (size - max(each.sizes)) for each, size in explained)
        found.append((requests, excess, place))
    most = max((requests for requests, _, _ in found), default=0)
    near = [
        (excess, -requests, place) for requests, excess, place in found if requests >= _NEAR * most
    ]
    if not near:
        return [], 0
    _, requests, place = min(near)
    return [candidate for candidate, _ in sets[place]], -requests


def _explained(classes: Sequence[_Class], rows: list[list[int]]) -> list[tuple[_Class, int]]:
    """The classes that follow proven laws of these extents, with the size at the largest."""
    laws = _core.fit_laws(rows, [list(each.sizes) for each in classes])
    return [
        (each, size) for each, (proof, size) in zip(classes, laws, strict=True) if proof == _PROVEN
    ]


def _rows(candidates: Sequence[_Candidate], alike: Sequence[Sizes]) -> list[list[int]]:
    return [[candidate.of(sizes) for candidate in candidates] for sizes in alike]


def _candidates(classes: Sequence[_Class]) -> list[_Candidate]:
    """The sizes of requests, in words and reduced; the most frequent ones are among them.

    A number in words has a value for lengths in between, too. A reduced one is smaller, and laws
    of higher degree divide by less.
    """
    frequent = sorted(classes, key=lambda each: -each.weight)[: _CLASSES // 2]
    smallest = [each for each in classes if each not in frequent][: _CLASSES - len(frequent)]
    result = []
    for each in sorted([*smallest, *frequent], key=lambda each: each.sizes):
        divisor = math.gcd(*each.sizes)
        for unit in sorted({math.gcd(divisor, _WORD), divisor}):
            result.append(_Candidate(each.keys[0], None, Fraction(1, unit)))
    return result


def _quotients(classes: Sequence[_Class]) -> list[_Candidate]:
    """Quotients of sizes that are whole numbers and no size themselves."""
    known = {_reduced(each.sizes) for each in classes}
    found: list[tuple[Vector, _Candidate]] = []
    for above, below in itertools.permutations(classes[:_CLASSES], 2):
        shares = [Fraction(a, b) for a, b in zip(above.sizes, below.sizes, strict=True)]
        factor = Fraction(
            math.lcm(*(share.denominator for share in shares)),
            math.gcd(*(share.numerator for share in shares)),
        )
        vector = _reduced(tuple(int(share * factor) for share in shares))
        if min(vector) < max(vector) <= _LARGEST_EXTENT and vector not in known:
            known.add(vector)
            found.append((vector, _Candidate(above.keys[0], below.keys[0], factor)))
    return [candidate for _, candidate in sorted(found, key=lambda f: sum(f[0]))[:_QUOTIENTS]]


def _described(rule: _Rule, rows: list[list[int]], forwards: int, sites: Sequence[str]) -> str:
    """The assumption that these rows of extents are."""
    parts = [
        f"{_NAME.format(number)} = {candidate.text(sites)}, from {min(column):,} to {max(column):,}"
        for number, (candidate, column) in enumerate(
            zip(rule.chosen, zip(*rows, strict=True), strict=True)
        )
    ]
    return (
        f"inputs are not recorded: extents are taken from sizes, in {len(rows):,} of {forwards:,} "
        f"forwards, and {rule.share:.0%} of the sizes that vary in forward follow them: "
        + "; ".join(parts)
    )
