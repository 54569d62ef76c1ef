"""`fluid.incubate`."""
