"""GPU hosts for the tests: machines with systemd, sshd and GPUs of their own, in namespaces of this one."""
