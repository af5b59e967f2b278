"""What `scripts/bench.py` is made of: workloads, indexes side by side, passes over them, and the figures."""
