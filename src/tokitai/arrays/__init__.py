"""Arrays of other libraries: read where they lie, and results in the caller's own library."""
