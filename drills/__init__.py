"""Fault drills for LLM inference. Read `drills.model` first."""

__version__ = "0.1.0"
