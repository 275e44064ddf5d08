"""The checks of a release: ``./run release-check``; see RELEASING.md."""
