"""What a run says about itself: the reviewer's page, the per-record report, tables and plots."""
