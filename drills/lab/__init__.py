"""The embedded deployment that `drill` starts when no other target is named."""
