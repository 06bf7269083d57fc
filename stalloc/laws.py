"""Size laws as text, as in `256 * ids.1 + 64`."""

from __future__ import annotations

from stalloc.plans import Plan
from stalloc.tables import LAW_PROOFS, LAW_SOURCES

_SOURCES = {
    "upcoming": ", of the next microbatch",
    "returning": ", of the next microbatch that goes back",
}


def terms_of(plan: Plan) -> list[list[tuple[int, list[int]]]]:
    """The terms of each of the plan's laws: a coefficient, and the extents' indices."""
    terms = plan.law_terms
    result: list[list[tuple[int, list[int]]]] = [[] for _ in range(len(plan.laws))]
    for law, coefficient, *factors in zip(
        terms.law.tolist(),
        terms.coefficient.tolist(),
        terms.first.tolist(),
        terms.second.tolist(),
        terms.third.tolist(),
        strict=True,
    ):
        result[law].append((coefficient, [factor for factor in factors if factor >= 0]))
    return result


def formulas(plan: Plan) -> list[str]:
    """The formula of each of the plan's laws: bytes, in the extents of a microbatch."""
    names = list(plan.extents)
    return [
        _formula(
            plan,
            law,
            [
                " * ".join([f"{coefficient:,}", *(names[factor] for factor in factors)])
                for coefficient, factors in terms
            ],
        )
        for law, terms in enumerate(terms_of(plan))
    ]


def _formula(plan: Plan, law: int, terms: list[str]) -> str:
    laws = plan.laws
    constant, divisor, step = (
        int(column[law]) for column in (laws.constant, laws.divisor, laws.step)
    )
    if LAW_PROOFS[laws.proof[law]] == "unexplained":
        return f"at most {constant:,}"
    parts = [*terms, f"{constant:,}"] if constant or not terms else terms
    text = " + ".join(parts).replace("+ -", "- ")
    if divisor > 1:
        text = f"({text}) / {divisor:,}" if len(parts) > 1 else f"{text} / {divisor:,}"
    if step > 1:
        text = f"{text}, up to a multiple of {step:,}"
    text += _SOURCES.get(LAW_SOURCES[laws.source[law]], "")
    return text
