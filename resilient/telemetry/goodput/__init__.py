"""Where the time of a run went, over all its attempts: productive, lost, or neither.

It is computed from ``events.jsonl`` and the last heartbeat of a checkpoint directory,
which are read and never changed; what makes no sense in them is left out.

An attempt is cut at its events. From "started" to "training" (the first batch is done)
it is starting, but for the seconds that "restored" and "replayed" say they took. From
then on it trains, validates and runs callbacks, but for the stalls of its saves. That
time is productive until a restore goes back over it: then what came after the save of
the restored step is lost.

Measured: when an attempt started and, unless it was killed, ended; its restores,
replays and stalls. Imports are not seen: they come before "started", and count as down.

Estimated:

* the moment of a saved step: that of "saved" less the seconds of the whole write;
* a stall is taken from the time after the step that was saved;
* an attempt without a last word died at its last sign of life: the heartbeat, which is
  rewritten about twice a second while batches are done, or else its last event. What it
  did after that, such as the batch it was in, is not seen, and its time counts as down;
* what was lost where the save of the restored step is not in the events: the seconds
  between the moments known before and after it are shared out by steps;
* attempts from before there was an event "training": their start counts as training;
* where a clock goes back, time stands still.

What a dead run will have to do again counts as productive until it is resumed. After
the last save of an attempt that ended or was preempted it waits for the write: that is
saving. After a fit that ended nothing is missing until somebody starts another one:
that wait belongs to no part, nor to the whole.
"""

from resilient.telemetry.goodput.report import AttemptReport, Goodput, goodput

__all__ = ["AttemptReport", "Goodput", "goodput"]
