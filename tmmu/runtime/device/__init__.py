"""One interface to a device, four backends behind it, two oracles beside it."""
