"""`stalloc.auto`: records, plans, serves and follows a run by itself.

settings     the options
proposal     solves a plan of a trace, and compares it with torch's policy
background   runs the solver beside the training
drift        detects that a plan no longer fits
budget       limits the exchanges of an hour
status       the state that users see
journal      records the events, and prints them
memory       measures memory while plans come and go
first_steps  keeps optimizer states out of torch's segments
ends         receives the ends of iterations
automatic    the state machine, which calls `profile`, `enable` and `disable`
entry        the public functions
"""
