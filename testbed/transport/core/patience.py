"""When the patience with a peer ends, and what is then said of it."""

import math

# The time, a text with the fields of `Connection`'s formatting, and the transfer. It is asked for
# at every wake-up, so the text is formatted only when the time has come.
Patience = tuple[float, str, int]

NEVER: Patience = (math.inf, "", 0)
SILENT = "silent for {timeout_s:g} s"
DATA_BLOCKED = "control works, data does not arrive"
BOTH_HOLD = "both sides send and neither receives, for {timeout_s:g} s"
NO_NEW_CHUNK = ": no new chunk of transfer {transfer} for {timeout_s:g} s"
