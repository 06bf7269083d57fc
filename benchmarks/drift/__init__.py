"""Mixtures of experts whose router drifts: what each allocator reserves over the whole run."""
