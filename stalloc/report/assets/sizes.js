// The sizes of the plan's requests at chosen extents, as stalloc's runtime computes them:
//
//   size = align_up((constant + sum of coefficient * product of extents) / divisor, step)
//
// A remainder rounds up, and a size is at least one byte. A coefficient times three extents may
// exceed 2^53, so the arithmetic is BigInt's. There are few laws, however many the requests.

class Sizes {
  constructor({ extents, laws, recorded, summaries }, { law, size }, rectangles) {
    Object.assign(this, { extents, recorded, summaries, law, size });
    this.rectangles = rectangles; // of the last layout, once extents are chosen
    this.largest = extents.map((extent) => extent.largest);
    this.laws = laws.map(({ constant, divisor, step, terms }) => ({
      constant: BigInt(constant),
      divisor: BigInt(divisor),
      step: BigInt(step),
      terms: terms.map(({ coefficient, factors }) => ({ coefficient: BigInt(coefficient), factors })),
    }));
    this.places = this.at(this.largest); // the bytes that the plan keeps for each request
  }

  // The size of each request; `values` are the extents in the order of `extents`.
  at(values) {
    const exact = values.map(BigInt);
    const sizes = this.laws.map((law) => Number(sizeOf(law, exact)));
    return Float64Array.from(this.law, (law, row) => (law < 0 ? this.size[row] : sizes[law]));
  }

  // The chosen extents as text; those that no law uses are left out.
  describe(values) {
    const used = this.extents.map(({ name }, i) => `${name} = ${formatCount(values[i])}`).filter((_, i) => this.extents[i].used);
    return used.join(", ");
  }
}

function sizeOf({ constant, divisor, step, terms }, extents) {
  let sum = constant;
  for (const { coefficient, factors } of terms) {
    sum += factors.reduce((product, factor) => product * extents[factor], coefficient);
  }
  if (sum < 0n) return 1n;
  const size = roundedUp(roundedUp(sum, divisor), step) * step;
  return size > 0n ? size : 1n;
}

// number / divisor, rounded up; neither is negative.
function roundedUp(number, divisor) {
  return (number + divisor - 1n) / divisor;
}
