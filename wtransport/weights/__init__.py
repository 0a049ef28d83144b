"""What is moved and which bytes go where: manifests, plans and digests, without torch or I/O."""
