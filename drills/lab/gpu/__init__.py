"""The lab's GPUs: one state file, and an nvidia-smi, an NVML and a dcgm-exporter that all tell of it."""
