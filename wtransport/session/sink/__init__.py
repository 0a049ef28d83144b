"""A sink of versions: slots, landings, what is shown, and how a late one catches up."""
