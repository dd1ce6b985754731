"""A service on GPU hosts that are reached over SSH, as a target."""
