"""Ledger proxies that a run puts in front of engines for its time, on machines of any kind."""
