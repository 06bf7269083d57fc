"""`stalloc.auto`: records, plans, serves and follows a run by itself.

settings     the options
proposal     solves a plan of a trace, and compares it with torch's policy
background   runs that beside the training
drift        tells when a plan no longer fits
budget       limits the exchanges of an hour
status       what is told to users
journal      keeps that, and tells it
room         measures memory while plans come and go
ends         hears of the ends of iterations
automatic    the state machine, which calls `profile`, `enable` and `disable`
entry        the public functions
"""
