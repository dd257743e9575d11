"""Real training over the transport under study: workers, server, models, data, phases, filling."""
