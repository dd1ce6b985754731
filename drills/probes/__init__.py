"""Probes measure, they never judge; a failure to measure is an event of its own."""
