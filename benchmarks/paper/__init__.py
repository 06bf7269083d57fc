"""The paper's evaluation, side by side with torch's own allocators: `python benchmarks/paper`."""
