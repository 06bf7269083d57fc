"""The parts of `stalloc.hooks`, bottom-up: sink, frames, phases, then what listens to torch."""
