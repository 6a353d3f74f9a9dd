"""A call from the caller's arrays to the launch: bind, check, lay out, launch, and what of it is cached."""
