# The public names, for `__init__.py` and type checkers. Modules that are imported from `.` can be
# used as attributes.
from stalloc import hooks as hooks
from stalloc._auto.automatic import Auto as Auto
from stalloc._auto.entry import auto as auto
from stalloc._auto.entry import status as status
from stalloc._auto.status import AutoStatus as AutoStatus
from stalloc._auto.status import Change as Change
from stalloc._compat import install_compat as install_compat
from stalloc._estimate.advice import Advice as Advice
from stalloc._estimate.answer import Estimate as Estimate
from stalloc._estimate.largest import Largest as Largest
from stalloc._estimate.recording import advise as advise
from stalloc._estimate.recording import estimate as estimate
from stalloc._estimate.recording import largest as largest
from stalloc.correction import Correction as Correction
from stalloc.errors import NotSupportedError as NotSupportedError
from stalloc.errors import OutOfMemory as OutOfMemory
from stalloc.errors import PlanError as PlanError
from stalloc.errors import StallocError as StallocError
from stalloc.errors import StallocWarning as StallocWarning
from stalloc.errors import TraceError as TraceError
from stalloc.graphs import GraphMemory as GraphMemory
from stalloc.graphs import SharedGraphs as SharedGraphs
from stalloc.graphs import graph_memory as graph_memory
from stalloc.graphs import share_graphs as share_graphs
from stalloc.monitor import StatsLogger as StatsLogger
from stalloc.monitor import log_stats as log_stats
from stalloc.phases import phase as phase
from stalloc.planner import Solution as Solution
from stalloc.planner import plan as plan
from stalloc.plans import Plan as Plan
from stalloc.profiling import Profile as Profile
from stalloc.profiling import profile as profile
from stalloc.session import Session as Session
from stalloc.session import acquire_pool as acquire_pool
from stalloc.session import disable as disable
from stalloc.session import enable as enable
from stalloc.session import release_pool as release_pool
from stalloc.session import step as step
from stalloc.statistics import MemoryStats as MemoryStats
from stalloc.statistics import PhaseStats as PhaseStats
from stalloc.statistics import empty_cache as empty_cache
from stalloc.statistics import memory_stats as memory_stats
from stalloc.statistics import memory_summary as memory_summary
from stalloc.statistics import phase_stats as phase_stats
from stalloc.statistics import reset_peak_memory_stats as reset_peak_memory_stats
from stalloc.trace import IterationProfile as IterationProfile
from stalloc.trace import Trace as Trace

from . import errors as errors
from . import planner as planner
from . import plans as plans
from . import statistics as statistics
from . import tables as tables
from . import trace as trace

__version__: str
