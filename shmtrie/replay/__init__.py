"""Offline replay of request traces through an index: simulated engines, writer and router processes.

Modules, from the bottom: `trace` (files, generator), `blocks` (cutting, hashes), `eventlog`, `engine`
(caches), `routing` (choices), `config`, `fleet` (all engines), `check` (the model), `messages`, `tasks`,
`sources` (the index) and `processes` (who does what where), `report`, `tally`, `plot`, `run`.
"""

from .config import ReplayConfig
from .report import ReplayReport
from .run import run_replay
from .trace import TraceError, TraceRequest, generate_trace, read_trace

__all__ = [
    "ReplayConfig",
    "ReplayReport",
    "TraceError",
    "TraceRequest",
    "generate_trace",
    "read_trace",
    "run_replay",
]
