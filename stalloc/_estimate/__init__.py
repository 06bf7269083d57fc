"""Estimates what a training run needs of a GPU, on a machine that has none.

`gpu` lets tensors claim to be on a GPU while their storages are on the meta device, where stalloc
records every request and nothing is computed. `operators` has the answers to some operators.
`patches` leads torch's entry points there; `saving` leaves checkpoints out. `values`
answers what the script reads from such tensors. `recording` runs a function for a few iterations,
`scripts` a script. `answer` makes an `Estimate` of the trace: what each allocator needs
(`stalloc.replaying`), what the load consists of (`parts`), and what the device needs beside it
(`cards`, `extras`).
"""
