"""What a run says about itself: the manifest, the per-record report, the plots."""
