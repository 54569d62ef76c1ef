"""`fluid.incubate.fleet.base`."""
