"""What a release goes through before it is one: ``./run release-check``; see RELEASING.md."""
