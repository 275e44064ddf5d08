"""The documentation as a site: the pages of the repository, and what only a site can show."""
