"""stalloc in the trainers that people use; a module each, which imports its framework when used.

transformers   StallocCallback, of Hugging Face's Trainer
lightning      StallocCallback, of Lightning's Trainer
accelerate     install(accelerator)
pipelining     install(schedule), of torch.distributed.pipelining

All of them are on `stalloc.driver.Driver`, which profiles, plans and serves each rank by itself.
`stalloc.megatron` and `stalloc.colossalai` do the same for those two.
"""
