"""Reports on runs: the reviewer's page, the per-record report, tables and plots."""
