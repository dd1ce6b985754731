"""A Kubernetes cluster as a target: pods are replicas, a controller brings them back, custody lies in the namespace."""
