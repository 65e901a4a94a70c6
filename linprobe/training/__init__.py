"""Plan and train: a request and a data set become a plan, which states every release, then weights."""
