"""Size laws as text, as in `256 * ids.1 + 64`."""

from __future__ import annotations

from collections import defaultdict

from stalloc.plans import Plan
from stalloc.tables import LAW_PROOFS, LAW_SOURCES


def formulas(plan: Plan) -> list[str]:
    """The formula of each of the plan's laws: bytes, in the extents of a microbatch."""
    names = list(plan.extents)
    sums: dict[int, list[str]] = defaultdict(list)
    terms = plan.law_terms
    for law, coefficient, *factors in zip(
        terms.law.tolist(),
        terms.coefficient.tolist(),
        terms.first.tolist(),
        terms.second.tolist(),
        terms.third.tolist(),
        strict=True,
    ):
        product = [names[factor] for factor in factors if factor >= 0]
        sums[law].append(" * ".join([f"{coefficient:,}", *product]))
    return [_formula(plan, law, sums[law]) for law in range(len(plan.laws))]


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
    if LAW_SOURCES[laws.source[law]] == "upcoming":
        text += ", of the next microbatch"
    return text
