"""Integrations into trainers: one module each, which imports its framework when it is used.

transformers   StallocCallback, of Hugging Face's Trainer
lightning      StallocCallback, of Lightning's Trainer
accelerate     install(accelerator)
deepspeed      install(engine), with and without its pipeline
pipelining     install(schedule), of torch.distributed.pipelining
torchtitan     install()
trl            share(trainer): phases of GRPO's two engines

All but the last use `stalloc.driver.Driver`, which profiles, plans and serves each rank
separately.
`stalloc.megatron` and `stalloc.colossalai` do the same for those two.
"""
