"""torch_memory_saver's own tests, without stalloc and beside a plan of stalloc."""
