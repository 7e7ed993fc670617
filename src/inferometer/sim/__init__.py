"""What the engine does with a workload: compiled schedulers, and the same rules in plain Python."""
