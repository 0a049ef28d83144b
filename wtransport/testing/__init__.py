"""What a backend's author needs: the conformance suite, fault injection, a fault proxy."""
