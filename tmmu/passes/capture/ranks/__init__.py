"""One rank of a sharded model: what torch.distributed does beside the work of the rank, and its process group."""
