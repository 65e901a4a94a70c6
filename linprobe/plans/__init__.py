"""A request and a data set become a plan: every release of a run, before a private row is used."""
