"""What leaves a run folder: releases, reports, exports and published histograms."""
