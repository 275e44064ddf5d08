"""Changes of tables (`readChanges`): the files of snapshots, and the rows by which they differ."""
