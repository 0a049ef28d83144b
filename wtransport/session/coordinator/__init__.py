"""The coordinator of a job: who is in it, which versions there are, what is shown, withdrawn and overtaken."""
