"""Results as pages: one HTML file each, which asks nobody for anything. The scripts and styles are in `assets/`."""
