"""Torch's own tests about memory, without stalloc and with it: `make test-conformance`."""
