"""The load process: arrivals, client and records."""
