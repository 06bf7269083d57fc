// Nothing: the stubs of torch's libraries lend their names alone. See Torch.cmake.
