"""How a command runs and a file lands on a host, behind one small interface."""
