"""Several processes of one run: data parallel (DDP), fully sharded (FSDP2), expert parallel."""
