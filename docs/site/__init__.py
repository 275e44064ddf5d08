"""The documentation as a site: the repository's pages, and parts that only a site has."""
