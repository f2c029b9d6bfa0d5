"""Watch a model at work: its steps, its weights, influence."""

from transformer_lib.tracing.letters import STEP_LETTERS
from transformer_lib.tracing.recorder import Recorder, Step
from transformer_lib.tracing.report import Trace
from transformer_lib.tracing.watch import attention_maps, hidden_states, influence, trace
from transformer_lib.tracing.words import WORDS, Words

__all__ = [
    "STEP_LETTERS",
    "WORDS",
    "Recorder",
    "Step",
    "Trace",
    "Words",
    "attention_maps",
    "hidden_states",
    "influence",
    "trace",
]
