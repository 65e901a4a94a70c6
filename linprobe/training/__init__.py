"""Planning and training: request and data set become a plan, which states every release, then weights with a guarantee."""
