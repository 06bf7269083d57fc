"""The tests of torch that are about memory: allocation, streams, graphs, pools, snapshots, pinned
memory, several GPUs, and FSDP's memory.

Left out as files: test_multiprocessing.py, since the pretended GPU shares no memory with another
process; and test_cuda_primary_ctx.py, whose tests need a process that has never used the GPU.
"""

from __future__ import annotations

import re

# Files of torch's `test/`, and an expression for the tests ("Class.test") that are left out: those
# of arithmetic, and those of the CPU alone.
FILES = {
    "test_cuda.py": r"^(TestCudaAutocast|TestCudaOptimsCPU)\b",
    "test_cuda_multigpu.py": r"^$",
    "test_cuda_trace.py": r"^$",
    "distributed/_composable/fsdp/test_fully_shard_memory.py": r"^$",
    "distributed/fsdp/test_fsdp_memory.py": r"^$",
}

# Files whose tests compile models, which takes longer than all other tests together.
SLOW_FILES = {"inductor/test_cudagraph_trees.py": r"^$"}


def selected(tests: list[str]) -> list[str]:
    """Those of a file's tests, named "file::Class.test", that are about memory."""
    return [
        test
        for test in tests
        for file, _, name in [test.partition("::")]
        if not re.search((FILES | SLOW_FILES)[file], name)
    ]
