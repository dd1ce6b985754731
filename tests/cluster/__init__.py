"""Tests on a real Kubernetes, and the single node they run on: `make cluster-up`, `cluster-down`, `test-cluster`."""
