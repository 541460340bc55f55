"""The checks, one area a module; ``opdock.testing.check.MODULES`` has the order in which they run."""
