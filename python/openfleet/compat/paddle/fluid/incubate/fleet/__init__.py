"""`fluid.incubate.fleet`."""
