"""Programs whose batches change in shape, and the peak that each allocator reserves for them."""
