"""Results as pages: one HTML file each, which loads nothing else. The scripts and styles are in `assets/`."""
