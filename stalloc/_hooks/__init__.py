"""The parts of `stalloc.hooks`, bottom-up: sink, frames, phases, then the listeners."""
